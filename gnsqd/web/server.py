"""The HTTP server, with TLS or without: a listening socket, and one greenlet for every connection.

Receiving goes through the hub, where requests that cannot yield are also answered; the others, and what comes after
them, are left to the greenlet. A long batch of answers yields, so that no client starves the others. Between requests a
connection may idle for any time, as with Go's server, unless --http-idle-timeout is set; a request that has begun has a
deadline, and so has the handshake of TLS, which has none in Go's server.

Pages of other origins may use it if they are allowed to (CORS, https://fetch.spec.whatwg.org/#http-cors-protocol). A
browser shows a response to the script of such a page only if a header names the page's origin. Before it sends what a
form could not, such as a token, it asks by a preflight request, which has no token itself. Cookies are never allowed.
"""

import re
import socket
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from functools import partial
from itertools import islice
from time import monotonic
from typing import Protocol

from gevent import Greenlet, Timeout

from gnsqd.gotext import quote
from gnsqd.hub.cooperative import CLIENT_TURN_SECONDS, Spawn, WouldYield, yield_turn
from gnsqd.log import Logger
from gnsqd.net.connection import Connection, Receiver
from gnsqd.net.listener import Listener, close_servers
from gnsqd.net.stream import TLS, StreamError
from gnsqd.options import SECOND
from gnsqd.shared.errors import StartError
from gnsqd.web.http11 import Request, RequestReader, render

REQUEST_TIMEOUT = 60.0  # seconds for a head, and as many for a body, which has more for what has arrived:
SLOWEST_BODY = 4096  # bytes in a second
HANDSHAKE_TIMEOUT = 10.0
SEND_TIMEOUT = 60.0
LINGER_SECONDS = 0.5
BATCH_BYTES = 16384  # of answers, before others get their turn; or when CLIENT_TURN_SECONDS are over

_HTTP_BEGINNINGS = (b"GET /", b"HEAD ", b"POST ", b"PUT /", b"OPTIO")  # Go's
_NSQ_MAGIC = b"  V"  # and a digit, with which a client of nsqd or nsqlookupd begins over TCP
_RECORD_HEADER = 5  # bytes
_NO_TLS = b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n"


# A response, or its parts, which are sent as they come and are the connection's last.
Answer = bytes | Generator[list[bytes]]


class Responder(Protocol):
    """Answers requests: a Router, or its replacement."""

    def body_limit(self, request: Request) -> int: ...

    def respond(self, request: Request, remote_address: str) -> Answer:
        """Returns the response. May yield if the request does; else raises WouldYield before anything has changed."""


class HTTPServer:
    """Owns the listener and its connections, whose `idle_timeout` is ns; 0 stands for any time, and for any number.
    `spawn(name, body)` starts a greenlet; with `new_tls`, which makes a layer for one connection, it is HTTPS.
    `for_peer`, if there is one, returns the responder for clients whose certificate has that common name. `kind` is its
    name in the log."""

    def __init__(
        self,
        listener: Listener,
        router: Responder,
        idle_timeout: int,
        max_connections: int,
        log: Logger,
        spawn: Spawn,
        new_tls: Callable[[], TLS] | None = None,
        for_peer: Callable[[str], Responder] | None = None,
        kind: str = "",
    ) -> None:
        self.listener = listener
        self._router = router
        self.idle_timeout = idle_timeout
        self._max_connections = max_connections
        self._log = log
        self._spawn = spawn
        self._new_tls = new_tls
        self._for_peer = for_peer
        self._kind = kind or ("HTTP" if new_tls is None else "HTTPS")
        self.closed = False
        self._connections: set[Connection] = set()
        self.heads: dict[bytes, Request] = {}

    def serve(self) -> None:
        """Accepts connections until `close`; raises ListenerBroken if the listener breaks."""
        self.listener.serve(self._kind, self._log, self._spawn_connection, self._max_connections)

    def _spawn_connection(self, sock: socket.socket, remote_address: str) -> "Greenlet[..., None]":
        connection = Connection(sock, remote_address)
        connection.write_timeout = SEND_TIMEOUT
        self._connections.add(connection)
        return self._spawn(f"{self._kind.lower()}:{remote_address}", partial(self._handle, connection, sock))

    def hint(self, client: str) -> None:
        """Warns of a client that has taken this server for that of NSQ's TCP protocol. Never yields."""
        self.listener.hint(self._log, self._kind, client, "the TCP protocol")

    def shutdown(self, at_once: bool) -> None:
        """Ends the connections as `Server` specifies: a request being answered still gets its answer, unless the client
        is slow to take it."""
        self.closed = True
        self.listener.close()
        for connection in list(self._connections):
            if at_once or connection.is_receiving():
                connection.shutdown()

    def close(self) -> None:
        close_servers([self])

    def _handle(self, connection: Connection, sock: socket.socket) -> None:
        try:
            if self._new_tls is None:
                self._serve_requests(connection, self._router)
            else:
                self._serve_tls(connection, self._new_tls())
            # The client reads the last answer before what it still sends makes the kernel reset the connection.
            sock.shutdown(socket.SHUT_WR)
            connection.read_deadline = 0.0
            with Timeout(LINGER_SECONDS, False):
                while connection.receive():
                    pass
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
            if not self.closed:
                self._log.warn("http: TLS handshake error from %s: %s", connection.remote_address, error)
            return
        router = self._router if self._for_peer is None else self._for_peer(layer.peer_common_name)
        self._serve_requests(connection, router)
        layer.end()
        connection.send([b""])  # nothing but TLS's goodbye, without which clients suspect that the end is missing

    def _serve_requests(self, connection: Connection, router: Responder) -> None:
        HTTPSession(self, connection, router).serve()


class HTTPSession(Receiver):
    """The requests of one connection, and their answers."""

    def __init__(self, server: HTTPServer, connection: Connection, responder: Responder) -> None:
        self._server = server
        self._connection = connection
        self._responder = responder
        self._reader = RequestReader(responder.body_limit, server.heads)
        self._requests: list[Request] = []  # complete, and not answered yet
        self._answers: list[bytes] = []  # not sent yet
        self._parts: Generator[list[bytes]] | None = None  # of the last answer
        self._are_parts_marked = False  # the client notices if some are missing
        self._turn_end = 0.0  # 0 before the first look at the clock
        self._is_turn_over = False
        self._began = 0.0  # the head or the body that is under way
        self._request: Request | None = None  # whose body it is

    def serve(self) -> None:
        """Serves the connection up to its last answer. Raises as `Connection.feed` and `send` do. Yields."""
        self._set_deadline(False)
        while not (self._reader.done or self._server.closed):
            if not self._connection.feed(self):
                self._requests = self._reader.feed_eof()
            self._go_on()
            while not self._execute(True):
                self._go_on()
            self._send()
            self._set_deadline(True)

    def receive_data(self, data: bytes) -> bool:
        """Answers the requests that `data` completes. Never yields: returns False if `serve` has to go on."""
        self._turn_end = 0.0
        self._requests = self._reader.feed(data)
        if self._reader.done and data.startswith(_NSQ_MAGIC):
            self._server.hint(self._connection.remote_address)
        answered = bool(self._requests)
        if not self._execute(False):
            return False
        if self._answers:
            answers, self._answers = self._answers, []
            if not self._connection.send_at_once(answers):
                self._answers.append(b"")  # for what the socket did not accept
                return False
        # A connection that waits keeps no body, and no token.
        self._set_deadline(answered)
        return not self._reader.done

    def _execute(self, may_yield: bool) -> bool:
        """Answers the requests that are complete. Returns False if `_go_on` is to be called first: because others are
        to have their turn, an answer has parts, or the next request may yield and is not allowed to."""
        requests = self._requests
        size = 0
        while requests and not self._server.closed:
            if size and (size >= BATCH_BYTES or self._has_used_turn()):
                self._is_turn_over = True
                return False
            request = requests[0]
            request.may_yield = may_yield
            try:
                answer = self._responder.respond(request, self._connection.remote_address)
            except WouldYield:
                return False
            del requests[0]
            request.body = b""
            if not isinstance(answer, bytes):
                self._parts, self._are_parts_marked = answer, not request.http10
                return False
            self._answers.append(answer)
            size += len(answer)
        reply = self._reader.take_reply()
        if reply:
            self._answers.append(reply)
        return True

    def _has_used_turn(self) -> bool:
        now = monotonic()
        if not self._turn_end:
            self._turn_end = now + CLIENT_TURN_SECONDS
        return now > self._turn_end

    def _go_on(self) -> None:
        """Sends the answers, then an answer that has parts, and gives others their turn if that is due: `receive_data`
        and `_execute` stop for these. Raises as `Connection.send` does. Yields."""
        self._send()
        if self._parts is not None:
            self._send_parts(self._parts)
            self._reader.done = True
            self._requests.clear()
        if self._is_turn_over:
            yield_turn()
            self._turn_end, self._is_turn_over = 0.0, False

    def _send(self) -> None:
        if self._answers:
            answers, self._answers = self._answers, []
            self._connection.send(answers)

    def _send_parts(self, parts: Generator[list[bytes]]) -> None:
        """Sends all `parts`. Raises as `Connection.send` does, and StreamError if a part fails or the daemon exits."""
        if not self._are_parts_marked:
            self._connection.resetting = True
        with closing(parts):
            for part in parts:
                if self._server.closed:
                    raise StreamError("the daemon exits")
                self._connection.send(part)
        self._connection.resetting = False

    def _set_deadline(self, answered: bool) -> None:
        """Limits the time until more arrives, or the next request if nothing of it is there. A head or a body begins
        when the client has been `answered`, or when the other ends."""
        reader, connection = self._reader, self._connection
        if reader.is_idle():
            idle_timeout = self._server.idle_timeout
            self._began, self._request = 0.0, None
            connection.read_deadline = monotonic() + idle_timeout / SECOND if idle_timeout else 0.0
            return
        request = reader.request
        if answered or not self._began or request is not self._request:
            self._began, self._request = monotonic(), request
        received = 0 if request is None else request.received
        connection.read_deadline = self._began + REQUEST_TIMEOUT + received / SLOWEST_BODY


def add_headers(headers: bytes, answer: Answer) -> Answer:
    """Returns a response with further lines behind the first."""
    if isinstance(answer, bytes):
        return answer.replace(b"\r\n", b"\r\n" + headers, 1)
    return _add_to_first(headers, answer)


def _add_to_first(headers: bytes, parts: Generator[list[bytes]]) -> Generator[list[bytes]]:
    for head, *rest in islice(parts, 1):
        yield [head.replace(b"\r\n", b"\r\n" + headers, 1), *rest]
    yield from parts


# Other origins

ANY = b"*"
# As browsers send it: in lower case, without a path and without the default port.
_ORIGIN = (
    r"(?!https://[^:]+:443$|http://[^:]+:80$)[a-z][a-z0-9+.-]*://([a-z0-9._-]+|\[[0-9a-f:.]+\])(:[1-9][0-9]{0,4})?"
)
_PREFLIGHT = (
    b"Access-Control-Allow-Methods: %s\r\n"
    b"Access-Control-Allow-Headers: Authorization, Content-Encoding, Content-Type\r\n"
    b"Access-Control-Max-Age: 600\r\n"
)


def allow_origins(origins: Sequence[str], methods: Callable[[str], str]) -> Callable[[Responder], Responder]:
    """Returns a function that makes a responder allow these origins; it changes nothing without any. `methods` is that
    of the Router which answers in the end. Raises StartError."""
    if not origins:
        return lambda responder: responder
    return partial(CrossOrigin, list(map(parse_origin, origins)), methods)


def parse_origin(text: str) -> bytes:
    """Returns an origin as requests have it, or ANY; raises StartError."""
    if text != ANY.decode() and not re.fullmatch(_ORIGIN, text):
        form = "* or an origin as browsers send it, such as https://ops.example.com or http://localhost:3000"
        raise StartError(f"--http-allow-origin must be {form}, not {quote(text)}")
    return text.encode()


class CrossOrigin:
    """Answers preflight requests, and adds headers to the responses of `responder`."""

    def __init__(self, origins: Sequence[bytes], methods: Callable[[str], str], responder: Responder) -> None:
        self._origins = origins
        self._methods = methods
        self._responder = responder

    def body_limit(self, request: Request) -> int:
        return self._responder.body_limit(request)

    def respond(self, request: Request, remote_address: str) -> Answer:
        """Returns the response; yields, and raises WouldYield, as the responder does."""
        origin = ANY if ANY in self._origins else request.headers.get(b"origin", b"")
        headers = b"Vary: Origin\r\n"
        if origin in self._origins:
            headers += b"Access-Control-Allow-Origin: %s\r\n" % origin
            is_preflight = request.method == "OPTIONS" and b"access-control-request-method" in request.headers
            if is_preflight and (methods := self._methods(request.path)):
                return render(request, 200, b"", headers + _PREFLIGHT % methods.encode())
        return add_headers(headers, self._responder.respond(request, remote_address))
