"""The HTTP API: requests and responses, the table of routes, and their handlers."""
