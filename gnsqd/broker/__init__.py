"""The broker: topics, channels and messages. It knows no socket, no HTTP and no client class."""
