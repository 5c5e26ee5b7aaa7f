"""What a cluster is made of besides its daemons: nsqlookupd that dies and comes back, the programs that consume by it,
and servers that only pretend to be one."""

import json
import os
import re
import signal
import socket
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from daemons import DEADLINE, Daemon, eventually


class Lookupd:
    """A real nsqlookupd. After `kill`, `start` begins again on the same ports, knowing nothing; `tcp_port` fixes one
    beforehand, 0 doesn't."""

    def __init__(self, binary: Path, directory: Path, tcp_port: int = 0) -> None:
        self._binary = binary
        self._log = directory / "nsqlookupd.log"
        self._ports = {"tcp": str(tcp_port), "http": "0"}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> "Lookupd":
        flags = [f"--{kind}-address=127.0.0.1:{port}" for kind, port in self._ports.items()]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [os.fspath(self._binary), "--broadcast-address=127.0.0.1", *flags], stderr=log
            )
        for kind in self._ports:
            line = re.compile(rf"\b{kind.upper()}: listening on 127\.0\.0\.1:(\d+)$", re.MULTILINE)
            found = eventually(lambda line=line: line.search(self._log.read_text()))  # type: ignore[misc]
            self._ports[kind] = found[1]
        return self

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(DEADLINE)
            self._process = None

    def freeze(self) -> None:
        """From now on the kernel accepts connections, and nobody answers."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    @property
    def tcp_address(self) -> str:
        return f"127.0.0.1:{self._ports['tcp']}"

    @property
    def http_address(self) -> str:
        return f"127.0.0.1:{self._ports['http']}"

    @property
    def flag(self) -> str:
        return f"--lookupd-tcp-address={self.tcp_address}"

    def ask(self, path: str, method: str = "GET") -> Any:
        request = urllib.request.Request(f"http://{self.http_address}{path}", method=method)
        with urllib.request.urlopen(request, timeout=DEADLINE) as response:
            body = response.read()
        return json.loads(body) if body else None

    def registered(self) -> set[str]:
        """`topic:channel` for each registration of a producer, `topic:` for a topic's own."""
        return {
            f"{topic}:{channel}"
            for category, topic, channel in (key.split(":") for key in self.ask("/debug"))
            if category != "client"
        }

    def producers(self) -> list[dict[str, Any]]:
        return list(self.ask("/nodes")["producers"])

    def having(self, topic: str, channel: str) -> set[int]:
        """The TCP ports of the nodes that registered the channel."""
        return {producer["tcp_port"] for producer in self.ask("/debug").get(f"channel:{topic}:{channel}", [])}

    def found(self, topic: str) -> set[int]:
        """The TCP ports where consumers would look for the topic."""
        try:
            return {producer["tcp_port"] for producer in self.ask(f"/lookup?topic={topic}")["producers"]}
        except urllib.error.HTTPError as error:
            if error.code != 404:
                raise
            return set()


def port(nsqd: Daemon) -> int:
    """The TCP port that nsqlookupd gets."""
    assert isinstance(nsqd.tcp_address, tuple)
    return nsqd.tcp_address[1]


def post(nsqd: Daemon, path: str, body: bytes | None = None) -> None:
    assert nsqd.http("POST", path, body)[0] == 200, path


def is_registered(lookupd: Lookupd, *expected: str) -> None:
    """Wait until exactly that is."""
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
        """All it printed, as far as the lines are whole; AssertionError if it has ended."""
        assert self._process.poll() is None, self._log.read_text("utf-8", "replace")
        return self._output.read_text().split("\n")[:-1]

    def __enter__(self) -> "Program":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
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
