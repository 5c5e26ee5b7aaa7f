"""Connections to a daemon that cost as little as possible, for runs of very many steps.

Nothing here waits for a time: reading ends with what was asked for, with the end of the connection, or, when nothing
has come for a while, with `TimeoutError`.
"""

import json
import re
import socket
import struct
from contextlib import suppress
from types import TracebackType
from typing import Any, NamedTuple

from kit.daemons import Address, Daemon, is_readable, open_socket
from kit.nsq_client import HEARTBEAT, RESPONSE, Client, Frame

PATIENCE = 10.0  # seconds

NAMELESS = re.compile(
    r"(?m)^nsqd v.*|^start_time .*|^uptime .*|:\d+ +|(?<=connected: ).*"
    r'|"(remote_address|connect_ts)":[^,]+,|"start_time":\d+'
)

LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
KIND = re.compile(rb"\r\ncontent-type: *([^\r]*)", re.IGNORECASE)
LAST = re.compile(rb"\r\nconnection: *close", re.IGNORECASE)


def connect(address: Address, patience: float) -> socket.socket:
    sock = open_socket(address, patience)
    # The kernel's own time limit: Python's would cost a poll() for each call.
    sock.settimeout(None)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", *divmod(int(patience * 1e6), 1_000_000)))
    return sock


def receive(sock: socket.socket) -> bytes:
    """b"" at the end of the connection, which may be a reset."""
    try:
        return sock.recv(65536)
    except BlockingIOError:
        raise TimeoutError("nothing comes") from None
    except ConnectionError:
        return b""


class Link(Client):
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
        """None when the daemon has closed."""
        frame, self._polled = self._polled, None
        try:
            while frame is None and (frame := self.frame()) == (RESPONSE, HEARTBEAT):
                self.send(b"NOP\n")
                frame = None
        except ConnectionError:
            pass
        return frame

    def poll(self) -> bool:
        """Whether `next_frame` would come back at once."""
        try:
            while self._polled is None and (self.buffer or is_readable(self.sock, 0)):
                if (frame := self.frame()) == (RESPONSE, HEARTBEAT):
                    self.send(b"NOP\n")
                else:
                    self._polled = frame
        except ConnectionError:
            return True
        return self._polled is not None


class Answer(NamedTuple):
    """Of HTTP; `kind` is the Content-Type, "" without one."""

    status: int
    kind: str
    body: bytes


class Web:
    """One HTTP connection, kept. `send` and `answer` are apart, so that two daemons can be asked at a time."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._sock = connect(address, PATIENCE)
        self._buffer = b""

    def send(self, what: str, body: bytes | None = None) -> None:
        """`what` is method and target, such as `GET /ping`."""
        length = "" if body is None else f"Content-Length: {len(body)}\r\n"
        try:
            self._sock.sendall(f"{what} HTTP/1.1\r\nHost: x\r\n{length}\r\n".encode() + (body or b""))
        except ConnectionError:
            pass  # shown by what is read

    def answer(self) -> Answer:
        while (end := self._buffer.find(b"\r\n\r\n")) < 0:
            self._more()
        head = self._buffer[: end + 2]
        self._buffer = self._buffer[end + 4 :]
        length = LENGTH.search(head)
        body = self._take(int(length[1])) if length else self._chunks()
        kind = KIND.search(head)
        if LAST.search(head):
            self._sock.close()
            self._sock = connect(self._address, PATIENCE)
        return Answer(int(head[9:12]), kind[1].decode() if kind else "", body)

    def ask(self, what: str, body: bytes | None = None) -> Answer:
        self.send(what, body)
        return self.answer()

    def _more(self) -> None:
        data = receive(self._sock)
        if not data:
            raise ConnectionError(f"closed by the daemon; unread: {self._buffer!r}")
        self._buffer += data

    def _take(self, size: int) -> bytes:
        while len(self._buffer) < size:
            self._more()
        data, self._buffer = self._buffer[:size], self._buffer[size:]
        return data

    def _chunks(self) -> bytes:
        chunks = []
        while True:
            while (end := self._buffer.find(b"\r\n")) < 0:
                self._more()
            size = int(self._buffer[:end], 16)
            self._buffer = self._buffer[end + 2 :]
            chunks.append(self._take(size))
            self._take(2)
            if not size:
                return b"".join(chunks)

    def close(self) -> None:
        self._sock.close()


class Side:
    """A daemon and the connection for HTTP that all sessions share; `with` ends the connection."""

    def __init__(self, name: str, daemon: Daemon) -> None:
        self.name = name
        self.daemon = daemon
        self.web = Web(daemon.http_address)

    def __enter__(self) -> "Side":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.web.close()


Stats = dict[str, tuple[int, bool, dict[str, tuple[int, int, int, int, bool]]]]


def counts(text: bytes) -> Stats:
    """What `/stats?format=json` has of each topic: depth, paused and the channels; of each channel depth, in flight,
    deferred, clients and paused. `text` begins behind `"topics":`."""
    topics: list[dict[str, Any]] = json.loads(b'{"topics":' + text)["topics"] or []
    return {
        topic["topic_name"]: (
            topic["depth"],
            topic["paused"],
            {
                channel["channel_name"]: (
                    channel["depth"],
                    channel["in_flight_count"],
                    channel["deferred_count"],
                    channel["client_count"],
                    channel["paused"],
                )
                for channel in topic["channels"] or []
            },
        )
        for topic in topics
    }


def shown(stats: bytes) -> list[str]:
    """What both daemons must answer: without times and ports, and the clients in any order."""
    text = NAMELESS.sub("", stats.decode()).replace("},{", "}\n{").replace("[{", "[\n{").replace("}]", "}\n]")
    return sorted(line.strip() for line in text.split("\n"))
