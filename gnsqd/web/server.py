"""The HTTP server, with TLS or without: a listening socket, and one greenlet for every connection.

Receiving goes through the hub, and a long batch of answers yields, so that no client starves the others. Between
requests a connection may idle for any time, as with Go's server, unless --http-idle-timeout is set; a request that has
begun has a deadline, and so has the handshake of TLS, which has none in Go's server.
"""

import socket
from collections.abc import Callable, Generator
from contextlib import closing
from functools import partial
from time import monotonic
from typing import Protocol

from gevent import Greenlet, Timeout

from gnsqd.hub.cooperative import Spawn, yield_turn
from gnsqd.log import Logger
from gnsqd.net.connection import Connection
from gnsqd.net.listener import Listener
from gnsqd.net.stream import TLS, StreamError
from gnsqd.options import SECOND
from gnsqd.shared.record import Record
from gnsqd.web.http11 import Request, RequestReader

REQUEST_TIMEOUT = 60.0  # seconds for a head, and as many for a body, which has more for what has arrived:
SLOWEST_BODY = 4096  # bytes in a second
HANDSHAKE_TIMEOUT = 10.0
SEND_TIMEOUT = 60.0
LINGER_SECONDS = 0.5
CLOSE_SECONDS = 1.0  # for answers under way at exit
BATCH_BYTES = 16384  # of answers, before others get their turn

_HTTP_BEGINNINGS = (b"GET /", b"HEAD ", b"POST ", b"PUT /", b"OPTIO")  # Go's
_RECORD_HEADER = 5  # bytes
_NO_TLS = b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n"


# A response, or its parts, which are sent as they come and are the connection's last.
Answer = bytes | Generator[bytes]


class Responder(Protocol):
    """Answers requests: a Router, or its replacement."""

    def body_limit(self, request: Request) -> int: ...
    def respond(self, request: Request, remote_address: str) -> Answer: ...  # may yield


class HTTPServer(Record):
    """Owns the listener and its connections, whose `idle_timeout` is ns; 0 stands for any time, and for any number.
    `spawn(name, body)` starts a greenlet; with `new_tls`, which makes a layer for one connection, it is HTTPS.
    `for_peer`, if there is one, returns the responder for clients whose certificate has that common name. `kind` is its
    name in the log."""

    _listener: Listener
    _router: Responder
    _idle_timeout: int
    _max_connections: int
    _log: Logger
    _spawn: Spawn
    _new_tls: Callable[[], TLS] | None = None
    _for_peer: Callable[[str], Responder] | None = None
    _kind: str = ""  # HTTP or HTTPS

    def __post_init__(self) -> None:
        self._kind = self._kind or ("HTTP" if self._new_tls is None else "HTTPS")
        self._closed = False
        self._connections: set[Connection] = set()
        self._heads: dict[bytes, Request] = {}

    def serve(self) -> None:
        """Accepts connections until `close`; raises ListenerBroken if the listener breaks."""
        self._listener.serve(self._kind, self._log, self._spawn_connection, self._max_connections)

    def _spawn_connection(self, sock: socket.socket, remote_address: str) -> "Greenlet[..., None]":
        connection = Connection(sock, remote_address)
        connection.write_timeout = SEND_TIMEOUT
        self._connections.add(connection)
        return self._spawn(f"{self._kind.lower()}:{remote_address}", partial(self._handle, connection, sock))

    def close(self) -> None:
        """Stops accepting, ends the connections, and returns when they are gone; a request being answered still gets
        its answer, unless the client is slow to take it. Yields."""
        self._closed = True
        self._listener.close()
        for all_of_them in (False, True):
            for connection in list(self._connections):
                if all_of_them or connection.is_receiving():
                    connection.shutdown()
            self._listener.join(CLOSE_SECONDS)

    def _handle(self, connection: Connection, sock: socket.socket) -> None:
        try:
            if self._new_tls is None:
                self._serve_requests(connection, self._router)
            else:
                self._serve_tls(connection, self._new_tls())
            self._linger(connection, sock)
        except (OSError, StreamError):
            pass  # the client is gone or too slow: not logged, as in Go's server
        finally:
            self._connections.discard(connection)
            connection.close()

    def _serve_tls(self, connection: Connection, layer: TLS) -> None:
        connection.read_deadline = monotonic() + HANDSHAKE_TIMEOUT
        try:
            received = b""
            while len(received) < _RECORD_HEADER:
                data = connection.receive()
                if not data:
                    raise OSError("unexpected EOF" if received else "EOF")
                received += data
            if received.startswith(_HTTP_BEGINNINGS):
                connection.send([_NO_TLS])
                raise StreamError("client sent an HTTP request to an HTTPS server")
            connection.handshake(layer, received)
        except (OSError, StreamError) as error:
            if not self._closed:
                self._log.warn("http: TLS handshake error from %s: %s", connection.remote_address, error)
            return
        router = self._router if self._for_peer is None else self._for_peer(layer.peer_common_name)
        self._serve_requests(connection, router)
        layer.end()
        connection.send([b""])  # nothing but TLS's goodbye, without which clients suspect that the end is missing

    def _serve_requests(self, connection: Connection, router: Responder) -> None:
        began = 0.0  # the head or the body that is under way
        request: Request | None = None  # whose body it is
        idle = True
        reader = RequestReader(router.body_limit, self._heads)
        while not (reader.done or self._closed):
            if idle:
                began, request = 0.0, None
                connection.read_deadline = monotonic() + self._idle_timeout / SECOND if self._idle_timeout else 0.0
            # A connection that waits keeps no body, and no token.
            answered = self._respond(connection, reader, router, connection.receive())
            idle = reader.idle
            if not idle:
                if answered or not began or request is not reader.request:
                    began, request = monotonic(), reader.request
                received = 0 if request is None else request.received
                connection.read_deadline = began + REQUEST_TIMEOUT + received / SLOWEST_BODY

    def _respond(self, connection: Connection, reader: RequestReader, router: Responder, data: bytes) -> bool:
        """Answers the requests that `data` completes, b"" at the end of the stream; returns True if there were any."""
        requests = reader.feed(data) if data else reader.feed_eof()
        answers: list[bytes] = []
        size = 0
        for request in requests:
            if self._closed:
                break
            answer = router.respond(request, connection.remote_address)
            request.body = b""
            if not isinstance(answer, bytes):
                connection.send(answers)
                self._send_parts(connection, answer)
                reader.done = True
                return True
            answers.append(answer)
            size += len(answer)
            if size >= BATCH_BYTES:
                connection.send(answers)
                answers.clear()
                size = 0
                yield_turn()
        if reader.refusal:
            answers.append(reader.refusal)
        elif reader.request is not None and (interim := reader.take_interim()):
            answers.append(interim)
        if answers:
            connection.send(answers)
        return bool(requests)

    def _send_parts(self, connection: Connection, parts: Generator[bytes]) -> None:
        """Sends `parts` until the daemon exits."""
        with closing(parts):
            for part in parts:
                if self._closed:
                    break
                connection.send([part])

    def _linger(self, connection: Connection, sock: socket.socket) -> None:
        """Lets the client read the last answer before what it still sends makes the kernel reset the connection."""
        sock.shutdown(socket.SHUT_WR)
        connection.read_deadline = 0.0
        with Timeout(LINGER_SECONDS, False):
            while connection.receive():
                pass
