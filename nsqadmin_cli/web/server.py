"""The page's HTTP server: gnsqd's, with limits of its own, and one for all large bodies together."""

from contextlib import closing
from dataclasses import dataclass
from socket import socket
from time import monotonic

from gnsqd.hub.cooperative import Spawn, WouldYield
from gnsqd.log import Logger
from gnsqd.net.connection import Connection
from gnsqd.net.listener import Listener
from gnsqd.options import SECOND
from gnsqd.web.http11 import Request
from gnsqd.web.server import Answer, HTTPServer, Responder
from nsqadmin_cli.web.app import MAX_BODY, SMALL_BODY, Application

IDLE_TIMEOUT = 60 * SECOND
MAX_CONNECTIONS = 128
MOST_BODIES = 2 * MAX_BODY  # bytes of large bodies that arrive or are worked on, of all connections


class PageServer(HTTPServer):
    """Serves `application`."""

    def __init__(self, listener: Listener, application: Application, log: Logger, spawn: Spawn) -> None:
        super().__init__(listener, application, IDLE_TIMEOUT, MAX_CONNECTIONS, log, spawn, kind="ADMIN")
        self._application = application
        self._room = Room(MOST_BODIES)
        self._left = monotonic()

    @property
    def idle_seconds(self) -> float:
        """Seconds without any connection."""
        return 0.0 if self._connections else monotonic() - self._left

    def close(self) -> None:
        """As HTTPServer's. Live pages end at once."""
        self._application.close()
        super().close()

    def _handle(self, connection: Connection, sock: socket) -> None:
        try:
            super()._handle(connection, sock)
        finally:
            self._left = monotonic()

    def _serve_requests(self, connection: Connection, router: Responder) -> None:
        with closing(Visitor(router, self._room)) as visitor:
            super()._serve_requests(connection, visitor)


@dataclass
class Room:
    """What is left, in bytes."""

    bytes: int


class Visitor:
    """The responder of one connection. A large body takes its size from `room` until it is answered."""

    def __init__(self, responder: Responder, room: Room) -> None:
        self._responder = responder
        self._room = room
        self._taken: dict[int, int] = {}  # by the id of the request

    def body_limit(self, request: Request) -> int:
        """0 if there is no room for the body."""
        limit = self._responder.body_limit(request)
        size = min(int(request.headers.get(b"content-length", limit)), limit)
        if size <= SMALL_BODY:
            return limit
        if size > self._room.bytes:
            return 0
        self._room.bytes -= size
        self._taken[id(request)] = size
        return limit

    def respond(self, request: Request, remote_address: str) -> Answer:
        if not request.may_yield:
            raise WouldYield
        try:
            return self._responder.respond(request, remote_address)
        finally:
            self._room.bytes += self._taken.pop(id(request), 0)

    def close(self) -> None:
        """The connection has ended."""
        self._room.bytes += sum(self._taken.values())
