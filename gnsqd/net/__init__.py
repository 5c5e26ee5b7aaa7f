"""Transport for TCP and HTTP: addresses, listener, dial, connection, stream layers, TLS."""
