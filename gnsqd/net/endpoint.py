"""A client's socket, non-blocking, and the watcher that calls when there is something to receive.

`native` has the same without Python in between.
"""

import socket
from collections.abc import Callable

from gevent import get_hub

RECEIVE_SIZE = 65536
_READ = 1


class Endpoint:
    """Owns `sock`. While it watches, `on_readable()` is called on the hub whenever there is something to receive."""

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
        """Returns what has arrived, b"" at the end of the stream, None if nothing has; OSError."""
        try:
            return self._socket.recv(RECEIVE_SIZE)
        except BlockingIOError:
            return None

    def send(self, frames: list[bytes]) -> bytes:
        """Sends `frames`; returns the bytes that the socket did not accept, b"" if there are none. OSError."""
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
