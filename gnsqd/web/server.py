"""The HTTP server: a listening socket, and one greenlet for every connection.

A connection receives, lets its RequestReader find the requests in that, has the router answer them in order, and sends
the answers together. Receiving goes through the hub and a long batch of answers is cut short by a turn for everybody
else, so that no client starves the others, however much it pipelines. Between requests a connection may idle for as
long as it likes, as with Go's server; once a request has begun it has to get on.
"""

import socket
from functools import partial
from time import monotonic
from traceback import format_exc

from gevent import Greenlet, Timeout, joinall

from gnsqd.broker.doorbell import give_way
from gnsqd.broker.environment import Spawn
from gnsqd.log import Logger
from gnsqd.web.http11 import RequestReader
from gnsqd.web.routes import Router
from gnsqd.wire.connection import Connection
from gnsqd.wire.listener import Listener
from gnsqd.wire.stream import StreamError

REQUEST_TIMEOUT = 60.0  # seconds for a head, and for each next piece of a body
SEND_TIMEOUT = 60.0
LINGER_SECONDS = 0.5
CLOSE_SECONDS = 1.0  # for answers under way at exit
BATCH_BYTES = 16384  # of answers, before others get their turn


class HTTPServer:
    """Owns the listener and the connections that came by it. `spawn(name, body)` starts a greenlet."""

    def __init__(
        self,
        listener: Listener,
        router: Router,
        log: Logger,
        spawn: Spawn,
    ) -> None:
        self._listener = listener
        self._router = router
        self._log = log
        self._spawn = spawn
        self._closed = False
        self._connections: set[Connection] = set()
        self._receiving: set[Connection] = set()
        self._greenlets: set[Greenlet[..., None]] = set()

    def serve(self) -> None:
        """Accept connections until `close`. OSError if the listener breaks."""
        self._listener.serve("HTTP", self._log, self._spawn_connection)

    def _spawn_connection(self, sock: socket.socket, remote_address: str) -> None:
        connection = Connection(sock, remote_address)
        connection.write_timeout = SEND_TIMEOUT
        self._connections.add(connection)
        greenlet = self._spawn(f"http:{remote_address}", partial(self._handle, connection, sock))
        self._greenlets.add(greenlet)
        greenlet.rawlink(self._greenlets.discard)

    def close(self) -> None:
        """Stop accepting, end the connections, and return when they are gone; a request being answered still gets its
        answer, unless the client is slow to take it. Yields."""
        self._closed = True
        self._listener.close()
        for connection in list(self._receiving):
            connection.shutdown()
        joinall(list(self._greenlets), CLOSE_SECONDS)
        for connection in list(self._connections):
            connection.shutdown()
        joinall(list(self._greenlets), CLOSE_SECONDS)

    def _handle(self, connection: Connection, sock: socket.socket) -> None:
        try:
            self._converse(connection)
            self._linger(connection, sock)
        except (OSError, StreamError):
            pass  # the client is gone or too slow: as with Go's server, nobody wants to know
        except Exception:
            self._log.error("http: serving %s - %s", connection.remote_address, format_exc())
        finally:
            self._connections.discard(connection)
            connection.close()

    def _converse(self, connection: Connection) -> None:
        reader = RequestReader(self._router.body_limit)
        while not (reader.done or self._closed):
            self._receiving.add(connection)
            try:
                data = connection.receive()
            finally:
                self._receiving.discard(connection)
            requests = reader.feed(data) if data else reader.feed_eof()
            answers = []
            size = 0
            for request in requests:
                if self._closed:
                    break
                answer = self._router.respond(request, connection.remote_address)
                answers.append(answer)
                size += len(answer)
                if size >= BATCH_BYTES:
                    connection.send(b"".join(answers))
                    answers.clear()
                    size = 0
                    give_way()
            answers.append(reader.refusal or reader.take_interim())
            if any(answers):
                connection.send(b"".join(answers))
            if reader.idle:
                connection.read_deadline = 0.0
            elif reader.in_body or not connection.read_deadline:
                connection.read_deadline = monotonic() + REQUEST_TIMEOUT

    def _linger(self, connection: Connection, sock: socket.socket) -> None:
        """Let the client read the last answer before what it still sends makes the kernel reset the connection."""
        sock.shutdown(socket.SHUT_WR)
        with Timeout(LINGER_SECONDS, False):
            while connection.receive():
                pass
