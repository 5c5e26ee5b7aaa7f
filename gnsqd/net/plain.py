"""A client's socket, the frames of new messages, and the table of messages in flight: `native` has the same in C."""

import socket
from collections.abc import Callable
from functools import cache
from struct import Struct
from typing import Any

from gevent import get_hub

from gnsqd.shared.protocol import FRAME_TYPE_MESSAGE

RECEIVE_SIZE = 65536
_READ = 1
_pack_head = Struct(">iiqH").pack
_FIRST_ATTEMPT = 1


class Endpoint:
    """Owns the non-blocking `sock`. While it watches, `on_readable()` is called on the hub whenever there is something
    to receive."""

    def __init__(self, sock: socket.socket, on_readable: Callable[[], None]) -> None:
        sock.setblocking(False)
        self.watches = False
        self._socket = sock
        self._on_readable: Callable[[], None] | None = on_readable
        self._watcher = get_hub().loop.io(sock.fileno(), _READ)

    def watch(self) -> None:
        """Begins to watch; has no effect while it does."""
        if not self.watches:
            self.watches = True
            self._watcher.start(self._on_readable)

    def stop(self) -> None:
        if self.watches:
            self.watches = False
            self._watcher.stop()

    def receive(self) -> bytes | None:
        """Returns what has arrived, b"" at the end of the stream, None if nothing has; raises OSError."""
        try:
            return self._socket.recv(RECEIVE_SIZE)
        except BlockingIOError:
            return None

    def send(self, frames: list[bytes]) -> bytes:
        """Sends `frames`; returns the bytes that the socket did not accept, b"" if there are none. Raises OSError."""
        data = frames[0] if len(frames) == 1 else b"".join(frames)
        try:
            return data[self._socket.send(data) :]
        except BlockingIOError:
            return data

    def close(self) -> None:
        self.stop()
        self._watcher.close()
        self._on_readable = None  # else it and its owner would form a cycle
        self._socket.close()


def new_frames(id: int, timestamp: int, bodies: list[bytes]) -> list[bytes]:
    """Returns the frames (`queues.message`) of messages that were never delivered. They have consecutive ids from `id`
    on, of which only the last three of the 16 digits differ; `timestamp` is the wall clock in ns."""
    digits = b"%013x" % (id >> 12)
    first = id & 0xFFF
    frames = []
    size = -1
    head = b""
    for last_digits, body in zip(_last_digits()[first : first + len(bodies)], bodies, strict=True):
        if len(body) != size:
            size = len(body)
            head = _pack_head(30 + size, FRAME_TYPE_MESSAGE, timestamp, _FIRST_ATTEMPT) + digits
        frames.append(b"".join((head, last_digits, body)))
    return frames


@cache
def _last_digits() -> list[bytes]:
    return [b"%03x" % number for number in range(1 << 12)]  # late, as it takes 0.5 ms, and `native` does not need it


def id_at(data: bytes, at: int) -> bytes:
    """Returns the 16 bytes of an id, which begins at `at` in `data` and must be complete. The function of `native`
    returns two numbers instead of an object: only `new_by_id` accepts them, as a key."""
    return data[at : at + 16]


def new_by_id() -> dict[bytes, Any]:
    """Returns an empty dict of messages by their ids, results of `id_at`. The table of `native` has `get`,
    `pop`, `setdefault`, `values` and a length, and must not be changed while its values are iterated over."""
    return {}
