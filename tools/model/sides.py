"""Connections to a daemon that cost as little as possible, for runs of very many steps.

Nothing here waits for a time: reading ends with what was asked for, with the end of the connection, or, when nothing
has come for a while, with `TimeoutError`.
"""

import json
import re
import socket
from contextlib import suppress
from http.client import HTTPConnection
from operator import itemgetter
from typing import NamedTuple

from kit.daemons import Address, Instance, is_readable
from kit.nsq_client import HEARTBEAT, RESPONSE, Frame, NSQClient

PATIENCE = 10.0  # seconds

NAMELESS = re.compile(
    r"(?m)^nsqd v.*|^start_time .*|^uptime .*|:\d+ +|(?<=connected: ).*"
    r'|"(remote_address|connect_ts)":[^,]+,|"start_time":\d+'
)


class Link(NSQClient):
    """One connection of the protocol. Heartbeats are answered and not shown."""

    def __init__(self, address: Address, patience: float = PATIENCE) -> None:
        super().__init__(address, timeout=patience)
        self._polled: Frame | None = None

    def send(self, data: bytes) -> None:
        with suppress(ConnectionError):  # shown by what is read
            super().send(data)

    def end_of_sending(self) -> None:
        self.sock.shutdown(socket.SHUT_WR)

    def next_frame(self) -> Frame | None:
        """Returns None when the daemon has closed."""
        with suppress(ConnectionError):
            while self._polled is None:
                self._read()
        frame, self._polled = self._polled, None
        return frame

    def poll(self) -> bool:
        """True if `next_frame` would return immediately."""
        try:
            while self._polled is None and (self.buffer or is_readable(self.sock, 0)):
                self._read()
        except ConnectionError:
            return True
        return self._polled is not None

    def _read(self) -> None:
        frame = self.frame()
        if frame == (RESPONSE, HEARTBEAT):
            self.send(b"NOP\n")
        else:
            self._polled = frame


class HTTPAnswer(NamedTuple):
    """An answer of HTTP; `kind` is the Content-Type, "" without one."""

    status: int
    kind: str
    body: bytes


class Web:
    """One HTTP connection, kept. `send` and `answer` are apart, so that two daemons can be asked at a time."""

    def __init__(self, address: Address) -> None:
        assert isinstance(address, tuple)
        self._connection = HTTPConnection(*address, timeout=PATIENCE)
        self.close = self._connection.close

    def send(self, what: str, body: bytes | None = None) -> None:
        """Sends a request; `what` is method and target, such as `GET /ping`."""
        method, target = what.split(" ", 1)
        self._connection.request(method, target, body)

    def answer(self) -> HTTPAnswer:
        response = self._connection.getresponse()
        return HTTPAnswer(response.status, response.getheader("Content-Type", ""), response.read())

    def ask(self, what: str, body: bytes | None = None) -> HTTPAnswer:
        self.send(what, body)
        return self.answer()


class DaemonSide:
    """A daemon and the connection for HTTP that all sessions share."""

    def __init__(self, name: str, daemon: Instance) -> None:
        self.name = name
        self.daemon = daemon
        self.web = Web(daemon.http_address)

    def close(self) -> None:
        self.web.close()


OF_CHANNEL = itemgetter("depth", "in_flight_count", "deferred_count", "client_count", "paused")
Stats = dict[str, tuple[int, bool, dict[str, tuple[int, int, int, int, bool]]]]


def counts(text: bytes) -> Stats:
    """Returns from `/stats?format=json` of each topic depth, paused and the channels; of each channel depth, in flight,
    deferred, clients and paused. `text` begins behind `"topics":`."""
    return {
        topic["topic_name"]: (
            topic["depth"],
            topic["paused"],
            {channel["channel_name"]: OF_CHANNEL(channel) for channel in topic["channels"] or []},
        )
        for topic in json.loads(b'{"topics":' + text)["topics"] or []
    }


def shown(stats: bytes) -> list[str]:
    """Returns the part that both daemons must answer: without times and ports, and the clients in any order."""
    text = NAMELESS.sub("", stats.decode()).replace("},{", "}\n{").replace("[{", "[\n{").replace("}]", "}\n]")
    return sorted(line.strip() for line in text.split("\n"))
