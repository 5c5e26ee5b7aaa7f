"""The page's HTTP server: gnsqd's, with limits of its own, and one for all large bodies together."""

from contextlib import closing
from socket import socket
from time import monotonic

from gevent.event import Event

from gnsqd.hub.cooperative import Spawn
from gnsqd.log import Logger
from gnsqd.net.connection import Connection
from gnsqd.net.listener import Listener, ListenerBroken
from gnsqd.options import SECOND
from gnsqd.supervisor import Supervisor
from gnsqd.web.http11 import Request
from gnsqd.web.server import Answer, HTTPServer, Responder
from nsqadmin_cli.web.app import Application, BodyLimits

IDLE_TIMEOUT = 60 * SECOND
MAX_CONNECTIONS = 128
MOST_BODIES = 2 * BodyLimits.message  # bytes of large bodies that arrive or are worked on, of all connections


def serve(
    listener: Listener,
    application: Application,
    log: Logger,
    supervisor: Supervisor,
    end: Event,
    idle_seconds: float | None = None,
) -> int:
    """Serves until `end`, or nobody has been connected for that long and nobody is logged in; returns the exit code."""
    application.keep_history()
    server = PageServer(listener, application, log, supervisor.spawn_for_client)

    def accept() -> None:
        try:
            server.serve()
        except ListenerBroken:
            if not end.wait(1.0):  # else the daemon, whose socket it is, has closed it, because it exits
                raise

    accepting = supervisor.spawn("adminServer", accept)
    while not end.wait(idle_seconds and idle_seconds / 10):
        if idle_seconds and server.idle_seconds > idle_seconds and not application.security.has_sessions():
            return 0
    application.close()  # live pages end at once
    server.close()
    return int(accepting.exception is not None)


class PageServer(HTTPServer):
    """Serves the application. `room` is what is left for large bodies, in bytes."""

    room = MOST_BODIES

    def __init__(self, listener: Listener, application: Application, log: Logger, spawn: Spawn) -> None:
        super().__init__(listener, application, IDLE_TIMEOUT, MAX_CONNECTIONS, log, spawn, kind="ADMIN")
        self._left = monotonic()

    @property
    def idle_seconds(self) -> float:
        return 0.0 if self._connections else monotonic() - self._left

    def _handle(self, connection: Connection, sock: socket) -> None:
        try:
            super()._handle(connection, sock)
        finally:
            self._left = monotonic()

    def _serve_requests(self, connection: Connection, router: Responder) -> None:
        with closing(Visitor(router, self)) as visitor:
            super()._serve_requests(connection, visitor)


class Visitor:
    """The responder of one connection. A large body takes its size from the room until it is answered."""

    def __init__(self, responder: Responder, server: PageServer) -> None:
        self._responder = responder
        self._server = server
        self._taken: dict[int, int] = {}  # by the id of the request

    def body_limit(self, request: Request) -> int:
        """Returns 0 if there is no room for the body."""
        limit = self._responder.body_limit(request)
        size = min(int(request.headers.get(b"content-length", limit)), limit)
        if size <= BodyLimits.form:
            return limit
        if size > self._server.room:
            return 0
        self._server.room -= size
        self._taken[id(request)] = size
        return limit

    def respond(self, request: Request, remote_address: str) -> Answer:
        try:
            return self._responder.respond(request, remote_address)
        finally:
            if request.may_yield:  # else it comes again
                self._server.room += self._taken.pop(id(request), 0)

    def close(self) -> None:
        """Gives back the room of unanswered bodies: the connection has ended."""
        self._server.room += sum(self._taken.values())
