"""A raw, blocking NSQ client for tests: bytes out, frames in, nothing hidden.

Heartbeats are frames like any other, errors raise nothing, and wrong bytes can be sent as easily as right ones.
It is written from the protocol description (NSQ "TCP Protocol Spec") and must not use gnsqd's codec: a test that
did would compare our code with itself.
"""

import json
import socket
import struct
import time
from typing import NamedTuple

from kit.daemons import DEADLINE, Address, open_socket

RESPONSE, ERROR, MESSAGE = 0, 1, 2
HEARTBEAT = b"_heartbeat_"


class Frame(NamedTuple):
    """One frame from the daemon; `type` is RESPONSE, ERROR or MESSAGE."""

    type: int
    data: bytes


class ReceivedMessage(NamedTuple):
    """The data of a MESSAGE frame; `timestamp` in nanoseconds, `id` 16 ASCII hex digits."""

    timestamp: int
    attempts: int
    id: bytes
    body: bytes


def parse_message(data: bytes) -> ReceivedMessage:
    timestamp, attempts, id = struct.unpack_from(">qH16s", data)
    return ReceivedMessage(timestamp, attempts, id, data[26:])


def split_frames(data: bytes) -> list[Frame]:
    """Returns all frames of `data`; AssertionError when it ends inside one."""
    frames = []
    while data:
        assert len(data) >= 8, data
        size, kind = struct.unpack_from(">ii", data)
        assert len(data) >= 4 + size >= 8, data
        frames.append(Frame(kind, data[8 : 4 + size]))
        data = data[4 + size :]
    return frames


def sized(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def mpub_body(*bodies: bytes) -> bytes:
    """Returns what MPUB's own size is in front of: the count and every body with its size."""
    return struct.pack(">i", len(bodies)) + b"".join(map(sized, bodies))


class NSQClient:
    """One connection. `magic=b""` sends nothing on connect; every wait ends with TimeoutError after `timeout` s."""

    def __init__(self, address: Address, *, magic: bytes = b"  V2", timeout: float = DEADLINE) -> None:
        self.timeout = timeout
        self.sock: socket.socket = open_socket(address, timeout)
        self.buffer = b""
        if magic:
            self.send(magic)

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def command(self, line: bytes, body: bytes | None = None) -> None:
        """Sends `line` + newline, then `body` (if not None) with its size."""
        self.send(line + b"\n" + (b"" if body is None else sized(body)))

    def identify(self, **fields: object) -> Frame:
        """Sends IDENTIFY with these JSON fields; returns the answering frame."""
        self.command(b"IDENTIFY", json.dumps(fields).encode())
        return self.frame()

    def subscribe(self, topic: str, channel: str, rdy: int = 0) -> None:
        """Sends SUB, expecting OK, then RDY if it is not 0."""
        self.command(f"SUB {topic} {channel}".encode())
        assert self.response() == b"OK"
        if rdy:
            self.command(b"RDY %d" % rdy)

    def publish(self, topic: str, *bodies: bytes) -> None:
        """Publishes one body by PUB, several by MPUB, expecting OK.

        Messages that come before it are kept: nsqd does not order them.
        """
        if len(bodies) == 1:
            self.command(f"PUB {topic}".encode(), bodies[0])
        else:
            self.command(f"MPUB {topic}".encode(), mpub_body(*bodies))
        early = b""
        while (frame := self.frame()).type == MESSAGE:
            early += sized(struct.pack(">i", MESSAGE) + frame.data)
        assert frame == Frame(RESPONSE, b"OK")
        self.buffer = early + self.buffer

    def frame(self, timeout: float | None = None) -> Frame:
        """Returns the next frame, whatever it is. TimeoutError loses nothing; ConnectionError if it closed."""
        deadline = time.monotonic() + (self.timeout if timeout is None else timeout)
        size = struct.unpack(">i", self._peek(4, deadline))[0]
        assert size >= 4, size
        data = self._peek(4 + size, deadline)
        self.buffer = self.buffer[4 + size :]
        return Frame(struct.unpack_from(">i", data, 4)[0], data[8:])

    def response(self) -> bytes:
        """Returns the data of the next frame, which must be a RESPONSE."""
        frame = self.frame()
        assert frame.type == RESPONSE, frame
        return frame.data

    def error(self) -> bytes:
        """Returns the data of the next frame, which must be an ERROR."""
        frame = self.frame()
        assert frame.type == ERROR, frame
        return frame.data

    def message(self, timeout: float | None = None) -> ReceivedMessage:
        """Returns the next frame, which must be a MESSAGE."""
        frame = self.frame(timeout)
        assert frame.type == MESSAGE, frame
        return parse_message(frame.data)

    def nothing_arrives(self, seconds: float) -> bool:
        """True if no whole frame arrives within `seconds` (bounds what must not happen)."""
        try:
            self.frame(seconds)
        except TimeoutError:
            return True
        return False

    def recv_until_closed(self) -> bytes:
        """Returns everything up to the end of the stream (split_frames takes it apart); a reset is an end too."""
        deadline = time.monotonic() + self.timeout
        try:
            while True:
                self._receive(deadline)
        except ConnectionError:
            data, self.buffer = self.buffer, b""
            return data

    def _peek(self, size: int, deadline: float) -> bytes:
        while len(self.buffer) < size:
            self._receive(deadline)
        return self.buffer[:size]

    def _receive(self, deadline: float) -> None:
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            raise TimeoutError(f"nothing more from the daemon; unread: {self.buffer!r}")
        self.sock.settimeout(remaining)
        try:
            data = self.sock.recv(65536)
        finally:
            self.sock.settimeout(self.timeout)
        if not data:
            raise ConnectionError(f"closed by the daemon; unread: {self.buffer!r}")
        self.buffer += data

    def reset(self) -> None:
        """Closes so that the daemon's next read or write fails."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    def close(self) -> None:
        self.sock.close()

    def __enter__(self) -> "NSQClient":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
