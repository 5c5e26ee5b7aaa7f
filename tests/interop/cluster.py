"""The parts of a cluster besides its daemons: programs that consume by nsqlookupd, and servers that only pretend to be
one."""

import socket
import subprocess
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from kit.daemons import DEADLINE, Instance, eventually
from kit.lookupds import RunningLookupd


def port(nsqd: Instance) -> int:
    """Returns the TCP port that nsqlookupd gets."""
    assert isinstance(nsqd.tcp_address, tuple)
    return nsqd.tcp_address[1]


def is_registered(lookupd: RunningLookupd, *expected: str) -> None:
    """Waits until exactly that is."""
    eventually(lambda: lookupd.registered() == set(expected), f"{expected} registered")


class Program:
    """A program that runs until it is asked to stop; `with` ends it. What it prints is in a file of its own."""

    def __init__(self, argv: Sequence[str], directory: Path) -> None:
        directory.mkdir()
        self._output = directory / "stdout"
        self._log = directory / "stderr"
        with self._output.open("wb") as output, self._log.open("wb") as log:
            self._process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=output, stderr=log, cwd=directory)

    def lines(self) -> list[str]:
        """Returns the whole lines that it printed; AssertionError if it has ended."""
        assert self._process.poll() is None, self._log.read_text("utf-8", "replace")
        return self._output.read_text().split("\n")[:-1]

    def __enter__(self) -> "Program":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait(DEADLINE)


class Pretender:
    """Accepts connections, reads, and sends `respond(line)` for each line: a server that is not an nsqlookupd."""

    def __init__(self, respond: Callable[[bytes], Iterable[bytes]]) -> None:
        self._respond = respond
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.flag = f"--lookupd-tcp-address=127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with suppress(OSError):  # the listener was closed
            while True:
                threading.Thread(target=self._converse, args=[self._listener.accept()[0]], daemon=True).start()

    def _converse(self, sock: socket.socket) -> None:
        with suppress(OSError), sock, sock.makefile("rb") as file:
            for line in file:
                for piece in self._respond(line):
                    sock.sendall(piece)

    def __enter__(self) -> "Pretender":
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
