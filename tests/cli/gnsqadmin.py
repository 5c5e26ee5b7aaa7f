"""Running `gnsqadmin` as users do, as a process with pipes or on a terminal of some size; and nodes that misbehave."""

import codecs
import csv
import fcntl
import io
import json
import os
import pty
import re
import signal
import socket
import ssl
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

import click
import pytest

from kit import preloaded
from kit.daemons import DEADLINE, is_readable
from nsqadmin_cli.cli import cli

COMMAND = [sys.executable, "-P", "-m", "nsqadmin_cli"]


class RunResult(NamedTuple):
    """The exit code of a run and its output. A terminal gets both streams in `out`."""

    code: int
    out: str
    err: str


def environment(**variables: str) -> dict[str, str]:
    """Returns this process' environment without what changes how programs print, and with `variables`. A time limit
    is given, since a busy machine may not begin an answer within the default."""
    dropped = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE")
    kept = {key: value for key, value in os.environ.items() if key not in dropped and not key.startswith("GNSQADMIN_")}
    ours = {"TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8", "GNSQADMIN_CONFIG": "/nonexistent/config.toml"}
    ours["GNSQADMIN_TIMEOUT"] = "5"
    return kept | ours | variables


def gnsqadmin(*args: str, stdin: str = "", **variables: str) -> RunResult:
    """Runs it with pipes; `variables` are added to the environment."""
    assert preloaded.can_start(COMMAND)
    code, out, err = preloaded.run(COMMAND, args, stdin.encode(), DEADLINE, env=environment(**variables))
    return RunResult(code, out.decode(), err.decode())


def ok(*args: str, **given: str) -> str:
    """Returns the output of a run that must go well."""
    result = gnsqadmin(*args, **given)
    assert (result.code, result.err) == (0, ""), result
    return result.out


def document(*args: str, code: int = 0, **given: str) -> Any:
    """Returns the JSON of a run that reports no error."""
    result = gnsqadmin(*args, "--json", **given)
    assert (result.code, result.err) == (code, ""), result
    return json.loads(result.out)


def words(*args: str) -> list[list[str]]:
    """Returns the words of each line of a run that must go well."""
    return [line.split() for line in ok(*args).splitlines()]


def ageless(*args: str) -> list[list[str]]:
    """Returns the same without the ages of messages."""
    return [[word for word in line if not re.fullmatch(r"\d+[smh]", word)] for line in words(*args)]


def rows(*args: str) -> list[dict[str, str]]:
    """Returns the CSV of a run that must go well."""
    return list(csv.DictReader(io.StringIO(ok(*args, "-o", "csv"))))


def failure(*args: str, code: int = 1, **given: str) -> str:
    """Returns the one line of error of a run that prints nothing else, without "Error: "."""
    result = gnsqadmin(*args, **given)
    assert (result.code, result.out, result.err.count("\n")) == (code, "", 1), result
    assert result.err.startswith("Error: ")
    return result.err.removeprefix("Error: ").removesuffix("\n")


def misuse(*args: str) -> str:
    """Returns the reason why this is wrong usage."""
    with pytest.raises(click.UsageError) as error:
        cli.main([*args], "gnsqadmin", standalone_mode=False)
    return error.value.format_message()


def start(*args: str) -> "subprocess.Popen[bytes]":
    """Starts a run that goes on; `with` waits for its end."""
    return subprocess.Popen([*COMMAND, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment())


def end(process: "subprocess.Popen[bytes]", number: int = 0) -> RunResult:
    """Waits for its end, which the signal may cause."""
    if number:
        process.send_signal(number)
    out, err = process.communicate(timeout=DEADLINE)
    return RunResult(process.returncode, out.decode("utf-8", "surrogateescape"), err.decode())


def ctrl_c(process: "subprocess.Popen[bytes]") -> RunResult:
    return end(process, signal.SIGINT)


class Terminal:
    """A run on a terminal that types keys and looks at what was printed; `with` ends it."""

    def __init__(self, columns: int, lines: int, *args: str, **variables: str) -> None:
        self._master, slave = pty.openpty()
        self.resize(columns, lines)
        self.settings = termios.tcgetattr(slave)
        self.slave = slave
        self.process = preloaded.start(COMMAND, args, [slave] * 3, env=environment(**variables))
        self.printed = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")  # a character may come in two parts

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def type(self, keys: str) -> None:
        """Types `keys`; what was printed before is forgotten."""
        self.printed = ""
        os.write(self._master, keys.encode())

    def wait_for(self, *texts: str) -> str:
        """Waits until all of `texts` were printed since the last key; returns what was printed, without codes."""
        deadline = time.monotonic() + DEADLINE
        while not all(text in plain(self.printed) for text in texts):
            try:
                assert is_readable(self._master, max(0.0, deadline - time.monotonic()))
                self._read()
            except (AssertionError, OSError) as error:  # OSError is how Linux reports the end of a terminal
                raise AssertionError(f"no {texts} in {plain(self.printed)[-2000:]}") from error
        return plain(self.printed)

    def end(self) -> int:
        """Reads on until it ends; returns its exit code."""
        deadline = time.monotonic() + DEADLINE
        while True:
            assert time.monotonic() < deadline, f"it does not end: {plain(self.printed)[-2000:]}"
            code = self.process.poll()  # first: what it printed before its end can be read then
            if is_readable(self._master, 0.05 if code is None else 0):
                self._read()
            elif code is not None:
                return code

    def _read(self) -> None:
        self.printed += self._decoder.decode(os.read(self._master, 65536))

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)
        os.close(self.slave)


def on_terminal(columns: int, *args: str, **variables: str) -> RunResult:
    """Runs it on a terminal of `columns` columns; `variables` are added to the environment."""
    with Terminal(columns, 50, *args, **variables) as terminal:
        return RunResult(terminal.end(), terminal.printed.replace("\r\n", "\n"), "")


def plain(printed: str) -> str:
    """Removes the codes for colours and places."""
    return re.sub(r"\x1b(\[[0-9;?]*[A-Za-z]|[()][A-Z0-9])", "", printed)


class FakeNode:
    """A server on a loopback port that reads one request per connection, then sends `answer` or calls it.

    `requests` are what came. With `hangs`, connections stay open afterwards, until the end of the `with` block;
    with `tls`, it speaks that. Without `reads`, it answers at once.
    """

    def __init__(
        self,
        answer: bytes | Callable[[socket.socket], None] = b"",
        *,
        hangs: bool = False,
        reads: bool = True,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.asked = threading.Event()
        self.requests: list[bytes] = []
        self._answer = answer
        self._over = threading.Event()
        self._hangs = hangs
        self._reads = reads
        self._tls = tls
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with suppress(OSError):  # closed
            while True:
                threading.Thread(target=self._talk, args=self._listener.accept()[:1], daemon=True).start()

    def _talk(self, connection: socket.socket) -> None:
        if self._tls is not None:
            try:
                connection = self._tls.wrap_socket(connection, server_side=True)
            except OSError:
                return  # the other side has not passed
        with connection:
            request = b""
            while self._reads and not request.endswith(b"\r\n\r\n") and (data := connection.recv(65536)):
                request += data
            self.requests.append(request)
            self.asked.set()
            with suppress(OSError):  # the other side has gone
                if isinstance(self._answer, bytes):
                    connection.sendall(self._answer)
                else:
                    self._answer(connection)
                if self._hangs:
                    self._over.wait(DEADLINE)

    def __enter__(self) -> "FakeNode":
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


def http_answer(body: bytes, status: str = "200 OK", content_type: str = "application/json") -> bytes:
    """Returns a whole HTTP answer, which ends the connection, as a FakeNode closes it."""
    head = f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}"
    return f"{head}\r\nConnection: close\r\n\r\n".encode() + body
