"""The TCP server of protocol V2: reads each client's magic and serves it in a greenlet of its own."""

import socket
from functools import partial
from time import monotonic

from gevent import Greenlet

from gnsqd.hub.cooperative import Spawn
from gnsqd.log import Logger
from gnsqd.net.listener import HTTP_MAGICS, Listener
from gnsqd.net.stream import StreamError
from gnsqd.options import SECOND, Options
from gnsqd.shared.protocol import FRAME_TYPE_ERROR, MAGIC_V2
from gnsqd.wire.client_v2 import ClientV2
from gnsqd.wire.codec import Decoder, frame
from gnsqd.wire.commands import Commands
from gnsqd.wire.session import Session

LAST_SECONDS = 0.25  # at exit, for what clients have sent by then


class TCPServer:
    """Owns the clients of one listener, by id; `port` is -1 on a unix socket."""

    def __init__(self, listener: Listener, commands: Commands, options: Options, log: Logger, spawn: Spawn) -> None:
        self.clients: dict[int, ClientV2] = {}
        self.port = listener.port
        self.listener = listener
        self._commands = commands
        self._options = options
        self._log = log
        self._spawn = spawn
        self._last_id = 0

    def producers(self) -> list[ClientV2]:
        """Returns the clients that have published."""
        return [client for client in self.clients.values() if client.counters]

    def serve(self) -> None:
        """Accepts clients until `close`. Raises ListenerBroken if the listener breaks."""
        self.listener.serve("TCP", self._log, self._spawn_client, self._options.max_tcp_connections)

    def shutdown(self, at_once: bool) -> None:
        """Ends all clients as `Server` specifies: what has arrived, such as FINs, is executed."""
        self.listener.close()
        for client in list(self.clients.values()):
            client.close(0.0 if at_once else LAST_SECONDS)

    def _spawn_client(self, sock: socket.socket, address: str) -> "Greenlet[..., None]":
        self._last_id += 1
        client = self.clients[self._last_id] = ClientV2(self._last_id, sock, address, self._options)
        return self._spawn(f"IOLoop:{address}", partial(self._handle, client))

    def _handle(self, client: ClientV2) -> None:
        self._log.info("TCP: new client(%s)", client)
        session = Session(client, self._commands, self._log, self._spawn)
        try:
            if self._read_magic(client, session.decoder):
                session.IOLoop()
        finally:
            del self.clients[client.id]
            client.stop_tickers()
            client.connection.close()

    def _read_magic(self, client: ClientV2, decoder: Decoder) -> bool:
        magic = None
        if self._options.magic_timeout > 0:
            client.connection.read_deadline = monotonic() + self._options.magic_timeout / SECOND
        try:
            while magic is None:
                data = client.connection.receive()
                if not data:
                    cut_off = "unexpected EOF" if decoder.buffered else "EOF"
                    self._log.error("failed to read protocol version - %s", cut_off)
                    return False
                decoder.feed(data)
                magic = decoder.magic()
            shown = magic.decode("utf-8", "backslashreplace")
            self._log.info("CLIENT(%s): desired protocol magic '%s'", client, shown)
            if magic == MAGIC_V2:
                client.start_tickers()
                return True
            client.flush([frame(FRAME_TYPE_ERROR, b"E_BAD_PROTOCOL")])
            self._log.error("client(%s) bad protocol magic '%s'", client, shown)
            if magic in HTTP_MAGICS:
                self.listener.hint(self._log, "TCP", str(client), "HTTP")
        except (OSError, StreamError) as error:
            self._log.error("failed to read protocol version - %s", error)
        return False
