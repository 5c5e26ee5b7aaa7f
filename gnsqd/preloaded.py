"""Starts Python packages without the cost of a new interpreter: a parent process that has imported them forks.

    programs = Preloaded("gnsqd")
    process = programs.start([sys.executable, "-P", "-m", "gnsqd"], ["--dev"], stdin=..., stdout=..., stderr=...)

The parent is a fresh interpreter, so the threads, locks and greenlets of the process that uses it are not forked.
"""

import atexit
import fcntl
import gc
import importlib
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NoReturn

_REQUEST_SIZE = 1 << 20
_EXIT_SECONDS = 10
_VARIABLES = ("PYTHONDEVMODE", "PYTHONHASHSEED", "PYTHONHOME", "PYTHONPATH", "PYTHONSTARTUP", "PYTHONWARNINGS")


class Process:
    """A forked process, with a part of the interface of subprocess.Popen."""

    def __init__(self, pid: int, args: Sequence[str], status: int) -> None:
        self.pid = pid
        self.args = args
        self.returncode: int | None = None
        self._status = status  # the parent writes the exit code there

    def poll(self) -> int | None:
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            poll = select.poll()  # there may be more descriptors than select() takes
            poll.register(self._status, select.POLLIN)
            if not poll.poll(None if timeout is None else timeout * 1000):
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            code = os.read(self._status, 16)
            if not code:
                raise ChildProcessError(f"no exit code of {self.args}: the process that forked it has ended")
            self.returncode = int(code)
            os.close(self._status)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it may end meanwhile
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Preloaded:
    """Starts `python -P -m PACKAGE` for the `packages`. Owns the parent process, which starts at the first use. When
    this process ends, so does the parent, after it has sent SIGTERM to the processes that still run."""

    def __init__(self, *packages: str) -> None:
        self._packages = packages
        self._process: subprocess.Popen[bytes] | None = None
        self._forget()
        os.register_at_fork(after_in_child=self._forget)
        atexit.register(self._close)

    def _forget(self) -> None:
        if self._process is not None:
            self._process.returncode = 0  # a fork has another parent: not to be waited for
        self._process = None
        self._lock = threading.Lock()
        self._parent: socket.socket | None = None
        self._variables: dict[str, str] = {}

    def _close(self) -> None:
        if self._process is not None and self._parent is not None:
            self._parent.close()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_EXIT_SECONDS)

    def can_start(self, command: Sequence[str]) -> bool:
        """Returns True if `command` is `python -P -m PACKAGE` and would have the PYTHON* variables of the parent."""
        return (
            sys.platform == "linux"
            and list(command[:-1]) == [sys.executable, "-P", "-m"]
            and command[-1] in self._packages
            and (self._parent is None or self._variables == _python_variables())
        )

    def start(
        self,
        command: Sequence[str],
        args: Sequence[str],
        *,
        stdin: int | IO[bytes],
        stdout: int | IO[bytes],
        stderr: int | IO[bytes],
        cwd: Path | None = None,
        env: dict[str, str] | None = None,
        on_terminal: bool = False,
    ) -> Process:
        """Starts `[*command, *args]` as Popen would, if `can_start(command)`; raises OSError if the parent has ended.

        With `on_terminal` the process leads a session, whose terminal is its standard input.
        """
        status, status_end = os.pipe()
        os.umask(mask := os.umask(0))
        request = {
            "module": command[3],
            "args": list(args),
            "orig_argv": [*command, *args],
            "umask": mask,
            "cwd": os.fspath(cwd or Path.cwd()),
            "env": dict(os.environ) if env is None else env,
            "on_terminal": on_terminal,
        }
        streams = [stream if isinstance(stream, int) else stream.fileno() for stream in (stdin, stdout, stderr)]
        try:
            with self._lock:
                parent = self._parent or self._start_parent()
                socket.send_fds(parent, [json.dumps(request).encode()], [*streams, status_end])
                pid = parent.recv(16)
            if not pid:
                raise OSError("the parent of preloaded processes has ended")
        except BaseException:
            os.close(status)
            raise
        finally:
            os.close(status_end)
        return Process(int(pid), [*command, *args], status)

    def _start_parent(self) -> socket.socket:
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with its:
            for end in (ours, its):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _REQUEST_SIZE)
            command = [sys.executable, "-P", __file__, str(its.fileno()), *self._packages]
            self._process = subprocess.Popen(command, pass_fds=[its.fileno()], stdin=subprocess.DEVNULL)
        self._parent, self._variables = ours, _python_variables()
        return ours


def _python_variables() -> dict[str, str]:
    return {name: os.environ[name] for name in _VARIABLES if name in os.environ}


# The parent


def _serve(requests: socket.socket, packages: Sequence[str]) -> None:
    """Forks a child for each request until the process that sends them has ended."""
    for package in packages:
        path = importlib.import_module(package).__path__
        for module in pkgutil.walk_packages(path, f"{package}."):
            if not module.name.endswith(("__main__", "pytest_plugin")):
                importlib.import_module(module.name)
    gc.collect()
    gc.freeze()  # else each child's collector writes to all of this memory, which is copied then
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests
    signal.signal(signal.SIGCHLD, lambda *_: None)
    bell, bell_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(bell_end)
    statuses: dict[int, int] = {}
    poll = select.poll()  # descriptors may be above select's limit
    for source in (requests.fileno(), bell):
        poll.register(source, select.POLLIN)
    while True:
        ready = [source for source, _ in poll.poll()]
        if bell in ready:
            os.read(bell, 4096)
            _report(statuses)
        if requests.fileno() in ready:
            data, fds, _, _ = socket.recv_fds(requests, _REQUEST_SIZE, 4)
            if not data:
                break
            *streams, status = fds
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                signal.signal(signal.SIGINT, signal.default_int_handler)
                for fd in (requests.detach(), bell, bell_end, status, *statuses.values()):
                    os.close(fd)
                _become(json.loads(data), streams)
            for fd in streams:
                os.close(fd)
            statuses[pid] = status
            requests.send(b"%d" % pid)
    for pid in statuses:
        os.kill(pid, signal.SIGTERM)
    os._exit(0)


def _report(statuses: dict[int, int]) -> None:
    while statuses:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        end = statuses.pop(pid)
        with suppress(BrokenPipeError):
            os.write(end, b"%d" % os.waitstatus_to_exitcode(status))
        os.close(end)


def _become(request: dict[str, Any], streams: list[int]) -> NoReturn:
    for number, fd in enumerate(streams):
        os.dup2(fd, number)
    for fd in set(streams) - {0, 1, 2}:
        os.close(fd)
    if request["on_terminal"]:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    os.environ.clear()
    os.environ.update(request["env"])
    time.tzset()
    os.chdir(request["cwd"])
    os.umask(request["umask"])
    encoding, _, errors = os.environ.get("PYTHONIOENCODING", "utf-8").partition(":")
    sys.stdin = os.fdopen(0, encoding=encoding, errors=errors or None, closefd=False)
    sys.stdout = os.fdopen(1, "w", encoding=encoding, errors=errors or None, closefd=False)
    sys.stderr = os.fdopen(2, "w", 1, encoding=encoding, errors="backslashreplace", closefd=False)
    sys.argv = ["", *request["args"]]
    sys.orig_argv = request["orig_argv"]
    try:
        runpy.run_module(request["module"], run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        if not isinstance(end.code, int):
            raise
        code = end.code
    _end(code)


def _end(code: int) -> NoReturn:
    """Ends as Python does, except that no module is taken apart, which costs more than all else of a short run."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):
        sys.exit(code)  # what Python then prints and returns is its own
    os._exit(code & 0xFF)


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2:])
