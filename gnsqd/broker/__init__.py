"""The broker: topics, channels and messages. It uses no socket, no HTTP and no client class."""
