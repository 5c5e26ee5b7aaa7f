"""Starts Python packages without the cost of a new interpreter: a parent process that has imported them forks.

    programs = Preloaded("gnsqd")
    process = programs.start([sys.executable, "-P", "-m", "gnsqd"], ["--dev"], [stdin, stdout, stderr])

The parent is a fresh interpreter, so the threads, locks and greenlets of the process that uses it are not forked. It
listens at an abstract address (unix(7)), which vanishes with it, and ends when it has had no forks for a while. On a
connection it sends the pid and the exit code of a fork.
"""

import atexit
import fcntl
import marshal
import os
import select
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NoReturn

_ANSWER_SECONDS = 30.0
_IDLE_MS = 300_000
_TITLE_SIZE = 1000
_REQUEST_SIZE = _MOST_DESCRIPTORS = 1 << 20
_FORWARDED = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


class Process:
    """A forked process, with a part of the interface of subprocess.Popen."""

    def __init__(self, pid: int, connection: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._connection = connection  # a descriptor

    def poll(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            poll = select.poll()  # there may be more descriptors than select() takes
            poll.register(self._connection, select.POLLIN)
            if not poll.poll(None if timeout is None else timeout * 1000):
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
            self.returncode = int(os.read(self._connection, 16) or -signal.SIGKILL)  # unknown if the parent was killed
            os.close(self._connection)
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
    """Starts `python -P -m PACKAGE` for the `packages`; their parent starts at the first use, and ends with this
    process. Its forks that still run get SIGTERM then."""

    def __init__(self, *packages: str) -> None:
        self._packages = packages

    def can_start(self, command: Sequence[str]) -> bool:
        python = [sys.executable, "-P", "-m"]
        return sys.platform == "linux" and list(command[:-1]) == python and command[-1] in self._packages

    def start(
        self, command: Sequence[str], args: Sequence[str], streams: Sequence[int | IO[bytes]], **given: Any
    ) -> Process:
        """Starts `[*command, *args]` as `start`, if `can_start(command)`."""
        address = f"\0gnsqd-{os.getpid()}-{id(self)}"  # a fork of this process has a parent of its own
        request = (address, [*command, *args], command[-1], args, streams)
        try:
            return start(*request, **given)
        except ConnectionRefusedError:
            with suppress(OSError):  # another thread has started it
                parent = start_parent(address, self._packages)
                atexit.register(parent.wait)
                atexit.register(parent.terminate)
            return start(*request, **given)


def start_parent(address: str, packages: Sequence[str]) -> "subprocess.Popen[bytes]":
    """Starts a parent that listens at `address`; raises OSError, also if another one does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(address)
        listener.listen()
        command = [sys.executable, "-P", __file__, str(listener.fileno()), *packages, _TITLE_SIZE * " "]
        options: Any = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
        return subprocess.Popen(command, pass_fds=[listener.fileno()], start_new_session=True, **options)


def start(
    address: str,
    line: Sequence[str],
    module: str,
    args: Sequence[str],
    streams: Sequence[int | IO[bytes]],
    cwd: Path | None = None,
    env: dict[str, str] | None = None,
    at_end: int = signal.SIGTERM,
) -> Process:
    """Lets the parent at `address` fork a process that runs `module` as this one would; raises OSError.

    The process leads a session, of the terminal that its standard input may be. When this one ends, it gets `at_end`.
    """
    os.umask(mask := os.umask(0))
    request = {"module": module, "args": [*args], "line": [*line], "umask": mask, "at_end": int(at_end)}
    request |= {"cwd": os.fspath(cwd or os.getcwd()), "env": dict(os.environ if env is None else env)}
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.settimeout(_ANSWER_SECONDS)
        connection.connect(address)
        _check_user(connection)
        descriptors = [stream if isinstance(stream, int) else stream.fileno() for stream in streams]
        socket.send_fds(connection, [marshal.dumps(request)], descriptors)
        if not (pid := connection.recv(16)):
            raise ConnectionError("the parent does not fork")
        connection.send(b"!")  # it waits for this, as it must not run when there was no answer in time
        return Process(int(pid), connection.detach())
    except BaseException:
        connection.close()
        raise


def _check_user(connection: socket.socket) -> None:
    """Raises PermissionError if the other end is not this user's: an abstract address is open to all."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    if struct.unpack("3i", credentials)[1] != os.geteuid():
        raise PermissionError("a process of another user")


def stand_for(process: Process) -> NoReturn:
    """Forwards signals to the process, and ends as it does."""
    for forwarded in _FORWARDED:  # also where they are ignored: the daemon may handle them
        signal.signal(forwarded, lambda number, _: os.kill(process.pid, number))
    code = process.wait()
    if code < 0:
        with suppress(OSError):  # SIGKILL has no handlers
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code & 0xFF)


# The parent


def _serve(listener: socket.socket) -> None:
    signal.signal(signal.SIGCHLD, lambda *_: None)
    bell, bell_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(bell_end)
    forks: dict[int, socket.socket] = {}  # the connections, by pid
    poll = select.poll()
    poll.register(bell, select.POLLIN)
    poll.register(listener, select.POLLIN)
    while ready := dict(poll.poll(None if forks else _IDLE_MS)):
        if bell in ready:
            os.read(bell, 4096)
            with suppress(ChildProcessError):
                while (end := os.waitpid(-1, os.WNOHANG))[0]:
                    with forks.pop(end[0]) as connection, suppress(OSError):
                        connection.send(b"%d" % os.waitstatus_to_exitcode(end[1]))
        else:
            connection, _ = listener.accept()
            for pid, earlier in forks.items():
                if _is_closed(earlier.fileno()):
                    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # its ports and its lock are free then
            with suppress(OSError):
                forks[_fork(connection, [listener, *forks.values()])] = connection


def _is_closed(connection: int) -> bool:
    poll = select.poll()
    poll.register(connection, 0)
    return bool(poll.poll(0))


def _fork(connection: socket.socket, others: Sequence[socket.socket]) -> int:
    """Forks a process for the request of a connection; returns its pid, or raises OSError. `others` are not for it."""
    _check_user(connection)
    connection.settimeout(_ANSWER_SECONDS)
    data, streams, _, _ = socket.recv_fds(connection, _REQUEST_SIZE, 3)
    connection.settimeout(None)
    request = marshal.loads(data)
    if (pid := os.fork()) == 0:
        for other in others:
            other.detach()  # else it would close later what has the same number then
        try:
            _prepare(request, [*streams, connection.detach()])
            _run(request["module"])
        except OSError:  # `_serve` would go on in this fork
            sys.excepthook(*sys.exc_info())
            process.end(1)
    for stream in streams:
        os.close(stream)
    return pid


def _prepare(request: dict[str, Any], descriptors: list[int]) -> None:
    """Makes this fork as it would be without its parent, when who asked for it confirms."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number, inheritable=number < 3)
    os.closerange(4, _MOST_DESCRIPTORS)
    with suppress(OSError):  # who asked may have gone
        os.write(3, b"%d" % os.getpid())
        os.read(3, 1)
    fcntl.fcntl(3, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(3, fcntl.F_SETSIG, request["at_end"])
    fcntl.fcntl(3, fcntl.F_SETFL, os.O_ASYNC)
    if _is_closed(3):
        os._exit(1)
    os.setsid()
    with suppress(OSError):
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
    sys.argv, sys.orig_argv = ["", *request["args"]], request["line"]
    with suppress(OSError, ValueError):
        _set_title("\0".join([request["module"], *request["args"]]).encode("utf-8", "surrogateescape"))


def _set_title(words: bytes) -> None:
    """Lets `ps` show these instead of the command line of the parent (proc(5), stat, 48 and 49), which has room."""
    with open("/proc/self/stat", "rb") as stat, open("/proc/self/mem", "r+b", 0) as memory:
        begin, end = map(int, stat.read().rpartition(b")")[2].split()[45:47])
        memory.seek(begin)
        memory.write(words[: end - begin - 1].ljust(end - begin, b"\0"))


def _run(module: str) -> NoReturn:
    """Runs the module, and ends."""
    code = 0
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if not isinstance(end.code, int):
            raise
        code = end.code
    process.end(code)


if __name__ == "__main__":
    import gc
    import importlib
    import pkgutil
    import runpy
    import termios
    import time

    from gnsqd import process

    for package in sys.argv[2:-1]:
        for module in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
            if not module.name.endswith(("__main__", "pytest_plugin")):
                importlib.import_module(module.name)
    gc.collect()
    gc.freeze()  # else each fork's collector writes to all of this memory, which is copied then
    _serve(socket.socket(fileno=int(sys.argv[1])))
