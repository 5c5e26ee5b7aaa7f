"""Daemons for tests: start one as a subprocess on free ports, talk HTTP to it, read its log, stop it.

Works for gnsqd and for the real nsqd alike, because both take the same flags and print the same
`TCP: listening on {address}` lines. How a daemon is started is `gnsqd.testing`'s, which users have too.
"""

import contextlib
import http.client
import importlib.util
import itertools
import json
import os
import resource
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
from typing import IO, Any, TypeVar
from urllib.parse import urlencode

from gnsqd import testing
from gnsqd.testing import last_flag as last_flag
from kit import preloaded

DEADLINE = 30.0  # seconds; generous, for noisy machines: no test measures time with it

PEERS = Path(__file__).parents[1] / "peers" / "bin"

PORTS = range(20000, 32768)  # below the ports that Linux, macOS and the BSDs choose themselves
_next_ports = itertools.cycle(secrets.SystemRandom().sample(PORTS, len(PORTS)))

Address = tuple[str, int] | str  # (host, port), or the path of a unix socket

Process = subprocess.Popen[bytes] | preloaded.Process

T = TypeVar("T")


class NotStarted(testing.StartFailed, AssertionError):
    """The daemon exited, or did not answer in time, instead of serving; the text ends with its log."""


def eventually(condition: Callable[[], T | None], what: str = "condition", timeout: float = DEADLINE) -> T:
    """Calls `condition` until its result is true and returns that; AssertionError after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not (result := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} not met within {timeout} s: last result {result!r}")
        time.sleep(0.01)
    return result


def wait_until_stopped(pid: int) -> None:
    """Waits until all threads have stopped: on a busy machine some go on for a while after SIGSTOP."""

    def stopped() -> bool:
        try:
            states = [path.read_text().rpartition(") ")[2][0] for path in Path(f"/proc/{pid}/task").glob("*/stat")]
        except (FileNotFoundError, ProcessLookupError):  # a thread has ended
            return False
        return set(states) == {"T"}

    eventually(stopped, "SIGSTOP")


def is_readable(file: socket.socket | int, seconds: float) -> bool:
    """True if something can be read within `seconds`. For descriptors of any number, and pytest's process has many."""
    poll = select.poll()
    poll.register(file, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


def free_port() -> int:
    """Returns a port of 127.0.0.1 that nothing uses, another one each time, for tests that must know it beforehand.

    The system chooses none of PORTS itself, so no connection or daemon of another test gets it meanwhile.
    """
    while True:
        port = next(_next_ports)
        with socket.socket() as sock, contextlib.suppress(OSError):
            sock.bind(("127.0.0.1", port))
            return port


def fixed_ports() -> list[str]:
    """Flags for a daemon that is down for a while: no other test's daemon gets its ports meanwhile."""
    return [f"--{name}-address=127.0.0.1:{free_port()}" for name in ("tcp", "http")]


def own_command() -> list[str]:
    """Returns the argv that starts gnsqd: `$GNSQD_BIN` when set, else the package that this interpreter imports.

    `-P` keeps the working directory off the path, so that a source tree cannot stand in for the installed package.
    """
    if binary := os.environ.get("GNSQD_BIN"):
        return shlex.split(binary)
    return [sys.executable, "-P", "-m", "gnsqd"]


def interpreter(command: Sequence[str]) -> list[str]:
    """Returns the Python that runs the program which `command` starts, also where that is an installed script."""
    if "-m" in command:
        return [word for word in command[: command.index("-m")] if word != "-P"]
    with open(command[0], "rb") as file:
        line = file.readline(4096)
    assert line.startswith(b"#!"), f"it is unclear which Python runs {command[0]}"
    assert b"python" in line, f"it is unclear which Python runs {command[0]}"
    return line[2:].decode().split()


def run_to_end(command: Sequence[str], *flags: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Runs a daemon that does not serve, for its exit code and what it printed; starts it as `Instance` does."""
    if Instance.preloaded and preloaded.can_start(command):
        code, out, err = preloaded.run(command, flags, b"", DEADLINE, cwd)
        return subprocess.CompletedProcess([*command, *flags], code, out.decode(), err.decode())
    return subprocess.run([*command, *flags], cwd=cwd, capture_output=True, text=True, timeout=DEADLINE)


def fast_directory() -> str | None:
    """Returns one whose fsync costs nothing, for tempfile."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def run_tool(module: str, *flags: str) -> subprocess.CompletedProcess[str]:
    """Runs a program of tools/, as `make` does."""
    tools = str(Path(__file__).parents[2] / "tools")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [*sys.path, tools]))}
    command = [sys.executable, "-P", "-m", module, *flags]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def exit_on_signals() -> None:
    """Exits the tool on SIGINT and SIGTERM, in the background too, so that all it has started ends with it."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: sys.exit(128 + number))


def raise_file_limit() -> None:
    """Raises the limit of open files as far as allowed, for thousands of connections."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def export_source_tree() -> None:
    """Lets child processes import our packages where this one does, when those are source trees and not installed."""
    parents = []
    for package in ("gnsqd", "pyspark_nsq"):
        spec = importlib.util.find_spec(package)
        if spec is not None and spec.submodule_search_locations:
            parents.append(Path(spec.submodule_search_locations[0]).resolve().parent)
    if trees := [str(parent) for parent in parents if parent.name != "site-packages"]:
        os.environ["PYTHONPATH"] = os.pathsep.join(trees)


class Instance:
    """One nsqd, ours or the real one, on one data path; `with` stops it. Restarting gives a new process and log, and
    other ports.

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
        self._started: _Started | None = None

    def start(self) -> "Instance":
        """Starts it and waits until it serves; NotStarted otherwise."""
        assert not self.running, "still running"
        self._started = started = _Started(self.data_path, self.flags, self.command)
        self.logs.append(started.log_path)
        started.start()
        self.tcp_address = address_of(started.tcp_address)
        if started.http_address:
            self.http_address = address_of(started.http_address)
        return self

    def http(
        self, method: str, path: str, body: bytes | str | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, http.client.HTTPMessage, bytes]:
        """Sends one request on a connection of its own; returns status, headers (names in any case) and body."""
        return _request(self.http_address, method, path, body, headers or {})

    def stats(self, topic: str | None = None, channel: str | None = None) -> dict[str, Any]:
        """Returns `/stats?format=json`, of one topic (and channel) if given.

        Its topics are a list, also where the daemon has null because it does not know that topic.
        """
        query = {"format": "json"} | ({"topic": topic} if topic else {}) | ({"channel": channel} if channel else {})
        status, _, body = self.http("GET", f"/stats?{urlencode(query)}")
        assert status == 200, (status, body)
        answer: dict[str, Any] = json.loads(body)
        answer["topics"] = answer["topics"] or []
        return answer

    def topic_stats(self, topic: str, channel: str | None = None) -> dict[str, Any]:
        """Returns the statistics of one topic; {} while it does not exist."""
        return next(iter(self.stats(topic, channel)["topics"]), {})

    def channel_stats(self, topic: str, channel: str) -> dict[str, Any]:
        """Returns the statistics of one channel; {} while it does not exist."""
        channels = self.topic_stats(topic, channel).get("channels") or []
        return next((entry for entry in channels if entry["channel_name"] == channel), {})

    def log(self) -> str:
        """Returns what the current (or last) process printed so far."""
        return self.logs[-1].read_text("utf-8", "replace") if self.logs else ""

    @property
    def process(self) -> Process | None:
        """The current or last one, also while it starts."""
        return self._started.process if self._started else None

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
        """Waits for the process to exit and returns its exit code (negative: the signal that killed it)."""
        assert self.process is not None
        try:
            return self.process.wait(DEADLINE)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.command} did not exit within {DEADLINE} s:\n{self.log()}") from None

    def terminate(self) -> int:
        """Exits by SIGTERM; returns the exit code."""
        self.send_signal(signal.SIGTERM)
        return self.wait()

    def kill(self) -> None:
        """Ends it by SIGKILL: nothing is written, the data path stays as it is."""
        if self.running:
            self.send_signal(signal.SIGKILL)
            self.wait()

    def restart(self, *flags: str) -> "Instance":
        """Stops it (cleanly, if it still runs) and starts it again on the same data path.

        New `flags` replace the old ones, no flags keep them; `fixed_ports` are for clients that have to reconnect.
        """
        if self.running:
            self.terminate()
        self.flags = flags or self.flags
        return self.start()

    def close(self) -> None:
        """Ends the process if it runs: cleanly, by force if it does not obey (then AssertionError)."""
        try:
            if self.running:
                self.send_signal(signal.SIGCONT)
                self.terminate()
        finally:
            self.kill()

    def __enter__(self) -> "Instance":
        return self if self.running else self.start()

    def __exit__(self, *error: object) -> None:
        self.close()


class _Started(testing.Daemon):
    """One process of a Daemon, in its data path, with a log of its own."""

    def __init__(self, data_path: Path, flags: Sequence[str], command: Sequence[str]) -> None:
        super().__init__(data_path, flags, command)
        logs = (data_path.with_name(f"{data_path.name}-{number}.log") for number in itertools.count())
        self.log_path = next(path for path in logs if not path.exists())
        self.process: Process | None = None

    def _check_flags(self, flags: Sequence[str], are_ours: bool) -> None:
        """Leaves it to the daemon: how it refuses flags is tested."""

    def _start_process(self, log: IO[bytes]) -> Process:
        with open(os.devnull, "rb") as nothing:
            if Instance.preloaded and preloaded.can_start(self._command):
                self.process = preloaded.start(self._command, self._flags, [nothing, log, log], cwd=self.data_path)
            else:
                command = [*self._command, *self._flags]
                self.process = subprocess.Popen(command, stdin=nothing, stdout=log, stderr=log, cwd=self.data_path)
        return self.process

    def _answers(self) -> bool:
        if not self.http_address:
            return super()._answers()
        address = address_of(self.http_address)
        try:
            _request(address, "GET", "/ping")
            if self._command[-1] != str(PEERS / "nsqd"):
                return True
            # It serves a moment before it handles signals.
            status, _, stacks = _request(address, "GET", "/debug/pprof/goroutine?debug=2")
            return status != 200 or b"os/signal.loop" in stacks
        except OSError:
            return False

    def _failure(self, what: str) -> NotStarted:
        return NotStarted(f"{list(self._command)} {what.replace('code ', '')}:\n{self.log()}")


def address_of(text: str) -> Address:
    """Parses `host:port`, or a path."""
    host, colon, port = text.rpartition(":")
    return (host.strip("[]"), int(port)) if colon else text


def accepted_at_end(greetings: Sequence[tuple[Address, bytes]], end: Callable[[], object]) -> list[Address]:
    """Returns the addresses where a client is accepted that connects again as soon as its connection is closed.

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


def _request(
    address: Address, method: str, path: str, body: bytes | str | None = None, headers: dict[str, str] | None = None
) -> tuple[int, http.client.HTTPMessage, bytes]:
    host, port = ("localhost", 0) if isinstance(address, str) else address
    connection = http.client.HTTPConnection(host, port or None, timeout=DEADLINE)
    connection.sock = open_socket(address, DEADLINE)
    try:
        connection.request(method, path, body, headers or {})
        response = connection.getresponse()
        return response.status, response.headers, response.read()
    finally:
        connection.close()


def open_socket(address: Address, timeout: float) -> socket.socket:
    if isinstance(address, tuple):
        sock = socket.create_connection(address, timeout)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(timeout)
    sock.connect(address)
    return sock
