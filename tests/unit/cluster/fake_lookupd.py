"""An nsqlookupd that notes what it receives, and answers what the test specifies."""

import json
import struct
from collections.abc import Callable, Iterable
from contextlib import suppress

from gevent.server import StreamServer
from gevent.socket import SHUT_RDWR, socket


def answer(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def info(**fields: object) -> bytes:
    """Returns the answer to IDENTIFY."""
    values = {"broadcast_address": "127.0.0.1", "http_port": 1, "tcp_port": 2, "version": "1.3.0"} | fields
    return answer(json.dumps(values).encode())


def obliging(line: str) -> Iterable[bytes]:
    return [info() if line == "IDENTIFY" else answer(b"OK")]


class FakeLookupd:
    """Listens on a free port. `respond(line)` gives the pieces of the answer to a command, and may take its time;
    `lines` has a list of the commands of each connection, `received` all of its bytes."""

    def __init__(self, respond: Callable[[str], Iterable[bytes]] = obliging, host: str = "127.0.0.1") -> None:
        self.respond = respond
        self.lines: list[list[str]] = []
        self.received: list[bytes] = []
        self.closed: list[int] = []  # connections that the peer has ended
        self._sockets: list[socket] = []
        self._server = StreamServer((host, 0), self._handle)
        self._server.start()
        self.port: int = self._server.server_port
        self.address = f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"

    def _handle(self, sock: socket, _: object) -> None:
        number = len(self.lines)
        self.lines.append([])
        self.received.append(b"")
        self._sockets.append(sock)
        try:
            file = sock.makefile("rb")
            self.received[number] += file.read(4)
            while line := file.readline():
                self.received[number] += line
                command = line.decode().rstrip("\n")
                if command == "IDENTIFY":
                    size = file.read(4)
                    self.received[number] += size + file.read(*struct.unpack(">i", size))
                self.lines[number].append(command)
                for piece in self.respond(command):
                    sock.sendall(piece)
        except OSError:
            pass
        self.closed.append(number)

    def hang_up(self) -> None:
        """Ends all connections; new ones are taken."""
        for sock in self._sockets:
            with suppress(OSError):  # the peer was first
                sock.shutdown(SHUT_RDWR)
        self._sockets.clear()

    def close(self) -> None:
        self._server.stop()
        self.hang_up()
