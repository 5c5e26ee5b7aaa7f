"""Processes of our programs without the cost of starting an interpreter: a parent that has imported them forks them.

`start` and `run` do what subprocess.Popen and subprocess.run do for `python -P -m MODULE`. Each test process has one
parent of its own, which ends with it. Tests of the start and of the end themselves use subprocess, as do tests that
change what an interpreter reads when it starts (PYTHON* variables, limits of the process).
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
from functools import cache
from pathlib import Path
from typing import IO, NoReturn

MODULES = ("gnsqd", "gnsqd.lookupd", "nsqadmin_cli")

_REQUEST_SIZE = 1 << 20


class Process:
    """A forked process, with the part of subprocess.Popen that tests use."""

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
            poll = select.poll()  # a test may have more descriptors than select() takes
            poll.register(self._status, select.POLLIN)
            if not poll.poll(None if timeout is None else timeout * 1000):
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            code = os.read(self._status, 16)
            assert code, f"the parent of {self.args} is gone"
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


def can_start(command: Sequence[str]) -> bool:
    """Whether `command` is one of our programs as `python -P -m MODULE`, and would start as the parent did."""
    return (
        list(command[:3]) == [sys.executable, "-P", "-m"]
        and len(command) == 4
        and command[3] in MODULES
        and _parent()[1] == _python_variables()
    )


def start(
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
    """subprocess.Popen([*command, *args], ...) for a `command` that `can_start`.

    With `on_terminal` it is a session of its own, whose terminal is its standard input.
    """
    parent, _ = _parent()
    status, status_end = os.pipe()
    request = {
        "module": command[3],
        "args": list(args),
        "orig_argv": [*command, *args],
        "umask": _umask(),
        "cwd": os.fspath(cwd or Path.cwd()),
        "env": dict(os.environ) if env is None else env,
        "on_terminal": on_terminal,
    }
    streams = [stream if isinstance(stream, int) else stream.fileno() for stream in (stdin, stdout, stderr)]
    try:
        with _lock:
            socket.send_fds(parent, [json.dumps(request).encode()], [*streams, status_end])
            pid = int(parent.recv(16))
    finally:
        os.close(status_end)
    return Process(pid, [*command, *args], status)


def run(
    command: Sequence[str],
    args: Sequence[str],
    stdin: bytes,
    timeout: float,
    cwd: Path | None = None,
    env: dict[str, str] | None = None,
) -> tuple[int, bytes, bytes]:
    """Exit code and what was printed on both streams; subprocess.TimeoutExpired after `timeout` s, and it is killed."""
    ends = [os.pipe(), os.pipe(), os.pipe()]
    (input_read, input_write), (out_read, out_write), (err_read, err_write) = ends
    try:
        process = start(command, args, stdin=input_read, stdout=out_write, stderr=err_write, cwd=cwd, env=env)
    finally:
        for end in (input_read, out_write, err_write):
            os.close(end)
    printed: dict[int, bytes] = {}
    threads = [threading.Thread(target=_write_all, args=(input_write, stdin), daemon=True)]
    threads += [threading.Thread(target=_read_all, args=(end, printed), daemon=True) for end in (out_read, err_read)]
    for thread in threads:
        thread.start()
    try:
        code = process.wait(timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    for thread in threads:
        thread.join()
    return code, printed[out_read], printed[err_read]


def _write_all(end: int, data: bytes) -> None:
    with open(end, "wb") as file, suppress(BrokenPipeError):
        file.write(data)


def _read_all(end: int, printed: dict[int, bytes]) -> None:
    with open(end, "rb") as file:
        printed[end] = file.read()


def _umask() -> int:
    os.umask(mask := os.umask(0))
    return mask


_lock = threading.Lock()


@cache
def _parent() -> tuple[socket.socket, dict[str, str]]:
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in (ours, its):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _REQUEST_SIZE)
    subprocess.Popen([sys.executable, "-P", __file__, str(its.fileno())], pass_fds=[its.fileno()])
    its.close()
    return ours, _python_variables()


def _python_variables() -> dict[str, str]:
    names = ("PYTHONDEVMODE", "PYTHONHASHSEED", "PYTHONHOME", "PYTHONPATH", "PYTHONSTARTUP", "PYTHONWARNINGS")
    return {name: os.environ[name] for name in names if name in os.environ}


# The parent


def _serve(requests: socket.socket) -> None:
    """Fork a child for each request until the test process is gone."""
    for package in MODULES:
        path = importlib.import_module(package).__path__
        for module in pkgutil.walk_packages(path, f"{package}."):
            if not module.name.endswith(("__main__", "pytest_plugin")):
                importlib.import_module(module.name)
    gc.collect()
    gc.freeze()  # else each child's collector writes to all of this memory, which is copied then
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests
    signal.signal(signal.SIGCHLD, lambda *_: None)
    bell, bell_end = os.pipe()
    for end in (bell, bell_end):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(bell_end)
    statuses: dict[int, int] = {}
    while True:
        ready, _, _ = select.select([requests.fileno(), bell], [], [])
        if bell in ready:
            os.read(bell, 4096)
            _report(statuses)
        if requests.fileno() in ready:
            data, fds, _, _ = socket.recv_fds(requests, _REQUEST_SIZE, 4)
            if not data:
                return
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


def _report(statuses: dict[int, int]) -> None:
    while statuses:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        end = statuses.pop(pid)
        os.write(end, b"%d" % os.waitstatus_to_exitcode(status))
        os.close(end)


def _become(request: dict[str, object], streams: list[int]) -> NoReturn:
    for number, fd in enumerate(streams):
        os.dup2(fd, number)
    for fd in set(streams) - {0, 1, 2}:
        os.close(fd)
    if request["on_terminal"]:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    os.environ.clear()
    os.environ.update(request["env"])  # type: ignore[call-overload]
    time.tzset()
    os.chdir(str(request["cwd"]))
    os.umask(request["umask"])  # type: ignore[arg-type]
    encoding, _, errors = os.environ.get("PYTHONIOENCODING", "utf-8").partition(":")
    sys.stdin = os.fdopen(0, encoding=encoding, errors=errors or None, closefd=False)
    sys.stdout = os.fdopen(1, "w", encoding=encoding, errors=errors or None, closefd=False)
    sys.stderr = os.fdopen(2, "w", 1, encoding=encoding, errors="backslashreplace", closefd=False)
    sys.argv = ["", *request["args"]]  # type: ignore[misc]
    sys.orig_argv = request["orig_argv"]  # type: ignore[assignment]
    try:
        runpy.run_module(str(request["module"]), run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        if not isinstance(end.code, int):
            raise
        code = end.code
    _end(code)


def _end(code: int) -> NoReturn:
    """End as Python does, except that no module is taken apart, which costs more than all else of a short run."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):
        sys.exit(code)  # what Python then prints and returns is its own
    os._exit(code & 0xFF)


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
