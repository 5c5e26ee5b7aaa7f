"""The TCP listener of protocol V2: accepts clients, reads their magic, serves each in a greenlet of its own."""

import errno
import socket
from traceback import format_exc
from typing import Any

import gevent.socket
from gevent import Greenlet, sleep, spawn

from gnsqd.log import Logger
from gnsqd.options import Options
from gnsqd.wire.client_v2 import ClientV2
from gnsqd.wire.codec import FRAME_TYPE_ERROR, MAGIC_V2, frame
from gnsqd.wire.listener import format_address
from gnsqd.wire.protocol_v2 import ProtocolV2
from gnsqd.wire.stream import StreamError

KEEPALIVE_SECONDS = 15
_ACCEPT_PAUSE_SECONDS = 0.1
_OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class TCPServer:
    """Owns the listening socket and the clients that came by it, by id."""

    def __init__(self, listener: gevent.socket.socket, protocol: ProtocolV2, options: Options, log: Logger) -> None:
        self.clients: dict[int, ClientV2] = {}
        self._listener = listener
        self._protocol = protocol
        self._options = options
        self._log = log
        self._last_id = 0
        self._closed = False
        self._greenlets: set[Greenlet[..., None]] = set()

    def producers(self) -> list[ClientV2]:
        """Every client that has published."""
        return [client for client in self.clients.values() if client.pub_counts]

    def serve(self) -> None:
        """Accept clients until `close`. OSError if the listener breaks."""
        address = format_address(self._listener.getsockname())
        self._log.info("TCP: listening on %s", address)
        while True:
            try:
                accepted, peer = self._listener.accept()
            except OSError as error:
                if self._closed:
                    break
                if error.errno == errno.ECONNABORTED:
                    continue
                if error.errno not in _OUT_OF_RESOURCES:
                    raise
                self._log.warn("temporary Accept() failure - %s", error)
                sleep(_ACCEPT_PAUSE_SECONDS)
                continue
            greenlet = spawn(self._handle, accepted, format_address(peer))
            greenlet.name = f"IOLoop:{format_address(peer)}"
            self._greenlets.add(greenlet)
            greenlet.rawlink(self._greenlets.discard)
        self._log.info("TCP: closing %s", address)

    def close(self) -> None:
        """Stop accepting."""
        self._closed = True
        self._listener.close()

    def close_clients(self) -> None:
        """End every connection and return when all are gone. Yields."""
        for client in list(self.clients.values()):
            client.close()
        for greenlet in list(self._greenlets):
            greenlet.join()

    def _handle(self, accepted: gevent.socket.socket, address: str) -> None:
        self._log.info("TCP: new client(%s)", address)
        self._last_id += 1
        client = ClientV2(self._last_id, _plain_socket(accepted), address, self._options)
        self.clients[client.id] = client
        try:
            if self._read_magic(client):
                self._protocol.IOLoop(client)
        except Exception:
            # A defect in serving one client is that client's end, not the daemon's.
            self._log.error("client(%s) - IOLoop died\n%s", address, format_exc())
        finally:
            del self.clients[client.id]
            client.stop_tickers()
            client.connection.close()

    def _read_magic(self, client: ClientV2) -> bool:
        magic = None
        try:
            while magic is None:
                data = client.connection.receive()
                if not data:
                    self._log.error("failed to read protocol version - EOF")
                    return False
                client.decoder.feed(data)
                magic = client.decoder.magic()
            self._log.info("CLIENT(%s): desired protocol magic '%s'", client, magic.decode("utf-8", "replace"))
            if magic == MAGIC_V2:
                client.start_tickers()
                return True
            client.send_now(frame(FRAME_TYPE_ERROR, b"E_BAD_PROTOCOL"))
            self._log.error("client(%s) bad protocol magic '%s'", client, magic.decode("utf-8", "replace"))
        except (OSError, StreamError) as error:
            self._log.error("failed to read protocol version - %s", error)
        return False


def _plain_socket(accepted: Any) -> socket.socket:
    """The standard library's socket on the same file: Connection does its own waiting."""
    plain = socket.socket(accepted.family, accepted.type, accepted.proto, fileno=accepted.detach())
    if plain.family != socket.AF_UNIX:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_SECONDS)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_SECONDS)
    return plain
