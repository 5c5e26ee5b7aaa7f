"""Daemons for tests: start one as a subprocess on free ports, talk HTTP to it, read its log, stop it.

Works for gnsqd and for the real nsqd alike, because both take the same flags and print the same
`TCP: listening on {address}` lines: they are started with port 0, and the port they got is read from their log.
Nothing here imports gnsqd.
"""

import contextlib
import http.client
import importlib.util
import itertools
import json
import os
import re
import secrets
import select
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from kit import preloaded

DEADLINE = 30.0  # seconds; generous, for noisy machines: no test measures time with it

PEERS = Path(__file__).parents[1] / "peers" / "bin"

PORTS = range(20000, 32768)  # below the ports that Linux, macOS and the BSDs choose themselves
_next_ports = itertools.cycle(secrets.SystemRandom().sample(PORTS, len(PORTS)))

Address = tuple[str, int] | str  # (host, port), or the path of a unix socket

T = TypeVar("T")


class StartFailed(AssertionError):
    """The daemon exited, or did not answer in time, instead of serving; the text ends with its log."""


def eventually(condition: Callable[[], T | None], what: str = "condition", timeout: float = DEADLINE) -> T:
    """Call `condition` until its result is true and return that; AssertionError after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not (result := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} not met within {timeout} s: last result {result!r}")
        time.sleep(0.01)
    return result


def wait_until_stopped(pid: int) -> None:
    """Until all threads have stopped: on a busy machine some go on for a while after SIGSTOP."""

    def stopped() -> bool:
        try:
            states = [path.read_text().rpartition(") ")[2][0] for path in Path(f"/proc/{pid}/task").glob("*/stat")]
        except (FileNotFoundError, ProcessLookupError):  # a thread has ended
            return False
        return set(states) == {"T"}

    eventually(stopped, "SIGSTOP")


def is_readable(file: socket.socket | int, seconds: float) -> bool:
    """Whether something can be read within `seconds`. For descriptors of any number, and pytest's process has many."""
    poll = select.poll()
    poll.register(file, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


def free_port() -> int:
    """A port of 127.0.0.1 that nothing uses, for tests that must know it beforehand; another one each time. The system
    chooses none of PORTS itself, so no connection or daemon of another test gets it meanwhile."""
    while True:
        port = next(_next_ports)
        with socket.socket() as sock, contextlib.suppress(OSError):
            sock.bind(("127.0.0.1", port))
            return port


def fixed_ports() -> list[str]:
    """Flags for a daemon that is down for a while: no other test's daemon gets its ports meanwhile."""
    return [f"--{name}-address=127.0.0.1:{free_port()}" for name in ("tcp", "http")]


def own_command() -> list[str]:
    """How to start gnsqd: `$GNSQD_BIN` when set, else the package that this interpreter imports.

    `-P` keeps the working directory off the path, so that a source tree cannot stand in for the installed package.
    """
    if binary := os.environ.get("GNSQD_BIN"):
        return shlex.split(binary)
    return [sys.executable, "-P", "-m", "gnsqd"]


def interpreter(command: Sequence[str]) -> list[str]:
    """The Python that runs the program which `command` starts, also where that is an installed script."""
    if "-m" in command:
        return [word for word in command[: command.index("-m")] if word != "-P"]
    with open(command[0], "rb") as file:
        line = file.readline(4096)
    assert line.startswith(b"#!"), f"it is unclear which Python runs {command[0]}"
    assert b"python" in line, f"it is unclear which Python runs {command[0]}"
    return line[2:].decode().split()


def run_to_end(command: Sequence[str], *flags: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """A daemon that does not serve, for its exit code and what it printed; started as `Daemon` starts them."""
    if Daemon.preloaded and preloaded.can_start(command):
        code, out, err = preloaded.run(command, flags, b"", DEADLINE, cwd)
        return subprocess.CompletedProcess([*command, *flags], code, out.decode(), err.decode())
    return subprocess.run([*command, *flags], cwd=cwd, capture_output=True, text=True, timeout=DEADLINE)


def fast_directory() -> str | None:
    """One whose fsync costs nothing, for tempfile."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def run_tool(module: str, *flags: str) -> subprocess.CompletedProcess[str]:
    """A program of tools/, as `make` runs it."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-P", "-m", module, *flags]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def export_source_tree() -> None:
    """Let child processes import our packages where this one does, when those are source trees and not installed."""
    parents = []
    for package in ("gnsqd", "pyspark_nsq"):
        spec = importlib.util.find_spec(package)
        if spec is not None and spec.submodule_search_locations:
            parents.append(Path(spec.submodule_search_locations[0]).resolve().parent)
    if trees := [str(parent) for parent in parents if parent.name != "site-packages"]:
        os.environ["PYTHONPATH"] = os.pathsep.join(trees)


class Daemon:
    """One nsqd, ours or the real one, on one data path; `with` stops it. Restarting gives a new process and log.

    `command` is the argv prefix; `flags` follow the flags for free ports and the data path, and so override them.
    """

    preloaded = False  # True: gnsqd is forked by a parent that has imported it; conftest.py sets that for the tests

    def __init__(self, command: Sequence[str], data_path: Path, *flags: str) -> None:
        self.command = list(command)
        self.data_path = data_path
        self.flags = flags
        self.logs: list[Path] = []
        self.tcp_address: Address = ("", 0)
        self.http_address: Address = ("", 0)
        self.process: subprocess.Popen[bytes] | preloaded.Process | None = None

    def start(self) -> "Daemon":
        """Start and wait until it serves; StartFailed otherwise."""
        assert self.process is None or self.process.poll() is not None, "still running"
        self.data_path.mkdir(parents=True, exist_ok=True)
        self.logs.append(self.data_path.with_name(f"{self.data_path.name}-{len(self.logs)}.log"))
        flags = [
            "--tcp-address=127.0.0.1:0",
            "--http-address=127.0.0.1:0",
            "--https-address=127.0.0.1:0",  # for those with a certificate; 4152 may be taken
            f"--data-path={self.data_path}",
            *self.flags,
        ]
        with self.logs[-1].open("ab") as log:
            if self.preloaded and preloaded.can_start(self.command):
                with open(os.devnull, "rb") as nothing:
                    self.process = preloaded.start(
                        self.command, flags, stdin=nothing, stdout=log, stderr=log, cwd=self.data_path
                    )
            else:
                self.process = subprocess.Popen(
                    [*self.command, *flags],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    cwd=self.data_path,
                )
        try:
            self.tcp_address = self._wait_listening("TCP", flags)
            if last_flag(flags, "http-address"):
                self.http_address = self._wait_listening("HTTP", flags)
                self._wait(self._answers)
                if self.command[-1] == str(PEERS / "nsqd"):  # it serves a moment before it handles signals

                    def handles_signals() -> bool:
                        status, _, stacks = self.http("GET", "/debug/pprof/goroutine?debug=2")
                        return status != 200 or b"os/signal.loop" in stacks

                    self._wait(handles_signals)
        except BaseException:
            self.kill()
            raise
        return self

    def _wait(self, condition: Callable[[], T | None]) -> T:
        assert self.process is not None

        def met_or_dead() -> T | None:
            # The exit is looked at first: a log line of a daemon that died right after printing it counts for nothing.
            if self.process is not None and (code := self.process.poll()) is not None:
                raise StartFailed(f"{self.command} exited with {code}:\n{self.log()}")
            return condition()

        try:
            return eventually(met_or_dead, "serving")
        except StartFailed:
            raise
        except AssertionError as error:
            raise StartFailed(f"{self.command}: {error}\n{self.log()}") from None

    def _wait_listening(self, protocol: str, flags: Sequence[str]) -> Address:
        """The address a listener really has: from its flag when that has it, else from the log."""
        wanted = last_flag(flags, f"{protocol.lower()}-address") or ""
        host, colon, port = wanted.rpartition(":")
        if not colon:
            return wanted
        if port != "0":
            return host, int(port)
        line = re.compile(rf"\b{protocol}: listening on (\S+):(\d+)$", re.MULTILINE)
        found = self._wait(lambda: line.search(self.log()))
        return found[1].strip("[]"), int(found[2])

    def _answers(self) -> bool:
        try:
            self.http("GET", "/ping")
        except OSError:
            return False
        return True

    def http(
        self, method: str, path: str, body: bytes | str | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, http.client.HTTPMessage, bytes]:
        """One request on a connection of its own: status, headers (names in any case), body."""
        connection = _HTTPConnection(self.http_address)
        try:
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            return response.status, response.headers, response.read()
        finally:
            connection.close()

    def stats(self, topic: str | None = None, channel: str | None = None) -> dict[str, Any]:
        """`/stats?format=json`, of one topic (and channel) if given; its topics are a list, also where the daemon says
        null because it does not know that topic."""
        query = "".join(f"&{key}={value}" for key, value in (("topic", topic), ("channel", channel)) if value)
        status, _, body = self.http("GET", f"/stats?format=json{query}")
        assert status == 200, (status, body)
        answer: dict[str, Any] = json.loads(body)
        answer["topics"] = answer["topics"] or []
        return answer

    def channel_stats(self, topic: str, channel: str) -> dict[str, Any]:
        """The statistics of one channel; {} while it does not exist."""
        for found in self.stats(topic, channel)["topics"]:
            for entry in found["channels"] or []:
                if entry["channel_name"] == channel:
                    result: dict[str, Any] = entry
                    return result
        return {}

    def log(self) -> str:
        """What the current (or last) process printed so far."""
        return self.logs[-1].read_text("utf-8", "replace") if self.logs else ""

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def send_signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)
        if number == signal.SIGSTOP:
            wait_until_stopped(self.pid)

    def wait(self) -> int:
        """Wait for the process to exit and return its exit code (negative: the signal that killed it)."""
        assert self.process is not None
        try:
            return self.process.wait(DEADLINE)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.command} did not exit within {DEADLINE} s:\n{self.log()}") from None

    def terminate(self) -> int:
        """A clean exit by SIGTERM; returns the exit code."""
        self.send_signal(signal.SIGTERM)
        return self.wait()

    def kill(self) -> None:
        """SIGKILL: nothing is written, the data path stays as it is."""
        if self.running:
            self.send_signal(signal.SIGKILL)
            self.wait()

    def restart(self, *flags: str) -> "Daemon":
        """Stop (cleanly, if it still runs) and start again on the same data path.

        New `flags` replace the old ones, no flags keep them; `fixed_ports` are for clients that have to reconnect.
        """
        if self.running:
            self.terminate()
        self.flags = flags or self.flags
        return self.start()

    def close(self) -> None:
        """End the process if it runs: cleanly, by force if it does not obey (then AssertionError)."""
        try:
            if self.running:
                self.send_signal(signal.SIGCONT)
                self.terminate()
        finally:
            self.kill()

    def __enter__(self) -> "Daemon":
        return self if self.running else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def last_flag(flags: Sequence[str], name: str) -> str | None:
    """The value of the last `-name=value` or `--name=value`."""
    values = [value for flag, _, value in (flag.partition("=") for flag in flags) if flag.lstrip("-") == name]
    return values[-1] if values else None


def address_of(text: str) -> Address:
    """The address that `host:port` is."""
    host, _, port = text.rpartition(":")
    return host, int(port)


def accepted_at_end(greetings: Sequence[tuple[Address, bytes]], end: Callable[[], object]) -> list[Address]:
    """The addresses where a client is accepted that connects again as soon as its connection is closed.

    Several clients connect to each address and send its greeting, to which the daemon answers if it is not empty;
    then `end` is called, which lets the daemon exit.
    """

    def reconnects(address: Address, client: socket.socket) -> bool:
        with client:
            try:
                while client.recv(65536):
                    pass
            except ConnectionResetError:
                pass
        try:
            open_socket(address, DEADLINE).close()
        except (ConnectionRefusedError, FileNotFoundError):  # no file of a unix socket
            return False
        except ConnectionResetError:
            pass
        return True

    clients = []
    for address, greeting in greetings:
        for _ in range(3):
            clients.append((address, open_socket(address, DEADLINE)))
            clients[-1][1].sendall(greeting)
            assert not greeting or clients[-1][1].recv(65536)
    with ThreadPoolExecutor(len(clients)) as pool:
        results = [(address, pool.submit(reconnects, address, client)) for address, client in clients]
        end()
        return sorted({address for address, result in results if result.result()})


class _HTTPConnection(http.client.HTTPConnection):
    """http.client on an Address, so on unix sockets too."""

    def __init__(self, address: Address) -> None:
        host, port = ("localhost", 0) if isinstance(address, str) else address
        super().__init__(host, port or None, timeout=DEADLINE)
        self._address = address

    def connect(self) -> None:
        self.sock = open_socket(self._address, DEADLINE)


def open_socket(address: Address, timeout: float) -> socket.socket:
    """A connected stream socket."""
    if isinstance(address, tuple):
        sock = socket.create_connection(address, timeout)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(timeout)
    sock.connect(address)
    return sock
