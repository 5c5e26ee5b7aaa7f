"""nsqlookupd for tests, ours and the real one: start one on free ports, ask it over HTTP, talk protocol V1 to it."""

import json
import os
import re
import signal
import socket
import struct
import subprocess
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kit import preloaded
from kit.daemons import DEADLINE, PEERS, Instance, eventually, free_port, own_command, wait_until_stopped
from kit.nsq_client import sized

REAL_COMMAND = [str(PEERS / "nsqlookupd")]
IDENTITY: dict[str, object] = {"broadcast_address": "b", "hostname": "h", "http_port": 2, "tcp_port": 1, "version": "v"}


def handles_signals(http_address: str) -> bool:
    """True if a real daemon does by now: it serves a moment before."""
    with urllib.request.urlopen(f"http://{http_address}/debug/pprof/goroutine?debug=2") as answer:
        return b"os/signal.loop" in answer.read()


def own_lookupd_command() -> list[str]:
    """Returns the argv of gnsqlookupd: with the interpreter that starts gnsqd, or the program beside that."""
    *interpreter, program = own_command()
    return [*interpreter, program.removesuffix("gnsqd") + ("gnsqd.lookupd" if interpreter else "gnsqlookupd")]


class RunningLookupd:
    """One nsqlookupd by its command, not started yet; `with` starts and ends it. After `kill` or `terminate`, `start`
    begins again on the same `ports` of `host`, of TCP and HTTP, knowing nothing; for 0 it is one that nobody else gets.
    """

    def __init__(
        self,
        command: Sequence[str],
        directory: Path,
        *flags: str,
        ports: tuple[int, int] = (0, 0),
        host: str = "127.0.0.1",
    ) -> None:
        self._command = list(command)
        self._directory = directory
        self._flags = flags
        self._host = host
        self._log = directory / "nsqlookupd.log"
        self._ports = dict(zip(("tcp", "http"), (str(port or free_port()) for port in ports), strict=True))
        self.process: subprocess.Popen[bytes] | preloaded.Process | None = None

    def start(self) -> "RunningLookupd":
        self._directory.mkdir(parents=True, exist_ok=True)
        flags = [f"--{kind}-address={self._host}:{port}" for kind, port in self._ports.items()]
        flags = [f"--broadcast-address={self._host.strip('[]')}", *flags, *self._flags]
        with self._log.open("wb") as log, open(os.devnull, "rb") as nothing:
            if Instance.preloaded and preloaded.can_start(self._command):
                self.process = preloaded.start(self._command, flags, [nothing, log, log])
            else:
                self.process = subprocess.Popen([*self._command, *flags], stdin=nothing, stdout=log, stderr=log)
        for kind in self._ports:
            line = re.compile(rf"\b{kind.upper()}: listening on {re.escape(self._host)}:(\d+)$", re.MULTILINE)
            found = eventually(lambda line=line: self._running() and line.search(self.log()))  # type: ignore[misc]
            self._ports[kind] = found[1]
        if self._command == REAL_COMMAND:
            eventually(lambda: handles_signals(self.http_address))
        return self

    def _running(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.log()
        return True

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def log(self) -> str:
        return self._log.read_text("utf-8", "backslashreplace")

    def terminate(self, number: int = signal.SIGTERM) -> int:
        """Sends a signal and waits for the exit; returns the exit code."""
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(DEADLINE)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(DEADLINE)
            self.process = None

    def freeze(self) -> None:
        """Stops it: the kernel accepts connections, and nobody answers."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        wait_until_stopped(self.process.pid)

    def thaw(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    @property
    def tcp_address(self) -> str:
        return f"{self._host}:{self._ports['tcp']}"

    @property
    def http_address(self) -> str:
        return f"{self._host}:{self._ports['http']}"

    def connect(self, kind: str = "tcp") -> socket.socket:
        return socket.create_connection((self._host.strip("[]"), int(self._ports[kind])), DEADLINE)

    @property
    def flag(self) -> str:
        return f"--lookupd-tcp-address={self.tcp_address}"

    def ask(self, path: str, method: str = "GET", host: str = "") -> Any:
        """Returns the JSON that comes back; `host` is the Host header, if not the address. Raises HTTPError."""
        headers = {"Host": host} if host else {}
        request = urllib.request.Request(f"http://{self.http_address}{path}", headers=headers, method=method)
        with urllib.request.urlopen(request, timeout=DEADLINE) as response:
            body = response.read()
        return json.loads(body) if body else None

    def registered(self) -> set[str]:
        """Returns `topic:channel` for each registration of a producer, `topic:` for a topic's own."""
        return {
            f"{topic}:{channel}"
            for category, topic, channel in (key.split(":") for key in self.ask("/debug"))
            if category != "client"
        }

    def producers(self) -> list[dict[str, Any]]:
        return list(self.ask("/nodes")["producers"])

    def having(self, topic: str, channel: str) -> set[int]:
        """Returns the TCP ports of the nodes that registered the channel."""
        return {producer["tcp_port"] for producer in self.ask("/debug").get(f"channel:{topic}:{channel}", [])}

    def found(self, topic: str) -> set[int]:
        """Returns the TCP ports where consumers would look for the topic."""
        try:
            return {producer["tcp_port"] for producer in self.ask(f"/lookup?topic={topic}")["producers"]}
        except urllib.error.HTTPError as error:
            if error.code != 404:
                raise
            return set()

    def __enter__(self) -> "RunningLookupd":
        return self.start()

    def __exit__(self, *error: object) -> None:
        self.kill()
        assert "Traceback (most" not in self.log(), self.log()


class LookupdInside(RunningLookupd):
    """The nsqlookupd in a gnsqd that runs, started with the flags EMBEDDED."""

    def __init__(self, nsqd: Instance) -> None:
        super().__init__([], nsqd.data_path)
        self._nsqd = nsqd
        listening = re.compile(r"^\[nsqlookupd\] .* (TCP|HTTP): listening on \S+:(\d+)$", re.MULTILINE)
        found = eventually(lambda: listening.findall(nsqd.log()))
        self._ports |= {kind.lower(): port for kind, port in found}

    def log(self) -> str:
        return self._nsqd.log()

    def names(self, host: str = "") -> list[str]:
        """Returns the addresses of nsqds for one that reaches nsqlookupd by this name."""
        return [row["broadcast_address"] for row in self.ask("/nodes", host=host)["producers"]]


EMBEDDED = ("--embedded-lookupd-tcp-address=127.0.0.1:0", "--embedded-lookupd-http-address=127.0.0.1:0")
DEV = ("--dev", *EMBEDDED, "--admin-http-address=127.0.0.1:0")

LookupdPair = tuple[RunningLookupd, RunningLookupd]  # ours and the real one


def normal(text: str) -> str:
    """Removes addresses, times and the build from a text of nsqlookupd; JSON stays JSON."""
    text = re.sub(r"127\.0\.0\.1:\d+", "ADDRESS", text)
    text = re.sub(r'_port":\d{4,}', '_port":4', text)
    text = re.sub(r'"(last_update|tombstoned_at)":1\d{18}', r'"\1":1', text)
    text = re.sub(r"last ping [\d.]+(ns|\u00b5s|ms|s)", "last ping D", text)
    return re.sub(r"built w/[^)]*", "built", text)


def lists_sorted(value: Any) -> Any:
    """Sorts the lists in JSON, as the real nsqlookupd's come in the order of a hash; objects stay as they are."""
    if isinstance(value, dict):
        return {name: lists_sorted(item) for name, item in value.items()}
    return sorted(map(lists_sorted, value), key=json.dumps) if isinstance(value, list) else value


class Registrant:
    """The connection of a pretended nsqd, which has identified itself unless `identity` is None; `with` closes it."""

    def __init__(self, lookupd: RunningLookupd, identity: dict[str, object] | None = IDENTITY) -> None:
        self.sock = lookupd.connect()
        self.file = self.sock.makefile("rb")
        self.address = "{}:{}".format(*self.sock.getsockname())
        self.sock.sendall(b"  V1")
        if identity is not None:
            self.identity = json.loads(self.command(identify(identity)))

    def command(self, command: bytes) -> bytes:
        """Sends a command, with its line feed and body, and returns the reply."""
        self.sock.sendall(command)
        return self.reply()

    def register(self, *names: str) -> None:
        """Registers `topic`s and `topic channel`s."""
        for name in names:
            assert self.command(f"REGISTER {name}\n".encode()) == b"OK"

    def reply(self) -> bytes:
        """Returns the next reply; b"" at the end."""
        head = self.file.read(4)
        return self.file.read(*struct.unpack(">i", head)) if head else b""

    def close(self) -> None:
        self.file.close()
        self.sock.close()

    def __enter__(self) -> "Registrant":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def identify(identity: dict[str, object] | bytes) -> bytes:
    """Returns the command IDENTIFY, with a body that is JSON or anything else."""
    return b"IDENTIFY\n" + sized(identity if isinstance(identity, bytes) else json.dumps(identity).encode())
