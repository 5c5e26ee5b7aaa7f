"""Reads each client's magic, and serves it in a greenlet of its own."""

import socket
from dataclasses import dataclass
from functools import partial
from time import monotonic

from gevent import Greenlet

from gnsqd.broker.environment import Spawn
from gnsqd.log import Logger
from gnsqd.lookupd.client_v1 import ClientV1, CommandRefused, StreamEnded
from gnsqd.lookupd.protocol_v1 import MAGIC_V1, LookupProtocolV1
from gnsqd.net.connection import Connection
from gnsqd.net.listener import Listener
from gnsqd.options import SECOND, LookupdOptions

SEND_TIMEOUT = 60.0  # seconds


@dataclass(eq=False)
class LookupTCPServer:
    """Owns the clients of one listener. `spawn(name, body)` starts a greenlet for a client."""

    _listener: Listener
    _protocol: LookupProtocolV1
    _options: LookupdOptions
    _log: Logger
    _spawn: Spawn

    def __post_init__(self) -> None:
        self._clients: set[ClientV1] = set()

    def serve(self) -> None:
        """Accepts clients until `close`; raises ListenerBroken if the listener breaks."""
        self._listener.serve("TCP", self._log, self._spawn_client, self._options.max_tcp_connections)

    def close(self) -> None:
        """Stops accepting, ends every connection, and returns when all are gone. Yields."""
        self._listener.close()
        for client in list(self._clients):
            client.connection.shutdown()
        self._listener.join()

    def _spawn_client(self, sock: socket.socket, address: str) -> "Greenlet[..., None]":
        connection = Connection(sock, address)
        connection.write_timeout = SEND_TIMEOUT
        client = ClientV1(connection)
        self._clients.add(client)
        return self._spawn(f"IOLoop:{address}", partial(self._handle, client))

    def _handle(self, client: ClientV1) -> None:
        self._log.info("TCP: new client(%s)", client)
        try:
            if self._read_magic(client):
                self._protocol.IOLoop(client)
        except (StreamEnded, OSError, CommandRefused) as error:
            self._log.error("client(%s) - %s", client, error)
        finally:
            self._clients.discard(client)
            client.connection.close()

    def _read_magic(self, client: ClientV1) -> bool:
        if self._options.magic_timeout > 0:
            client.connection.read_deadline = monotonic() + self._options.magic_timeout / SECOND
        try:
            magic = client.read(len(MAGIC_V1))
        except (StreamEnded, OSError) as error:
            self._log.error("failed to read protocol version - %s", error)
            return False
        client.connection.read_deadline = 0.0
        shown = magic.decode("utf-8", "backslashreplace")
        self._log.info("CLIENT(%s): desired protocol magic '%s'", client, shown)
        if magic == MAGIC_V1:
            return True
        client.reply(b"E_BAD_PROTOCOL")
        client.flush()
        self._log.error("client(%s) bad protocol magic '%s'", client, shown)
        return False
