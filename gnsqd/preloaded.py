"""Starts Python packages without the cost of a new interpreter: a parent process that has imported them forks.

    programs = Preloaded("gnsqd")
    process = programs.start([sys.executable, "-P", "-m", "gnsqd"], ["--dev"], stdin=..., stdout=..., stderr=...)

The parent is a fresh interpreter, so the threads, locks and greenlets of the process that uses it are not forked.
"""

import atexit
import fcntl
import gc
import importlib
import marshal
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
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NoReturn

from gnsqd import quick_start

_REQUEST_SIZE = 1 << 20
_EXIT_SECONDS = 10
_REQUEST_SECONDS = 1.0  # a command takes to send its own
_IDLE_SECONDS = 300.0
_IDLE_MS = 10_000  # between looks for a reason to end
_STOP_MS = 100  # between looks at the clients
_VARIABLES = ("PYTHONDEVMODE", "PYTHONHASHSEED", "PYTHONHOME", "PYTHONPATH", "PYTHONSTARTUP", "PYTHONWARNINGS")


class Process:
    """A forked process, with a part of the interface of subprocess.Popen."""

    def __init__(self, pid: int, args: Sequence[str], status: int) -> None:
        self.pid = pid
        self.args = args
        self.returncode: int | None = None
        self._status = status  # a socket, where the parent writes the exit code

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
        request = quick_start.request(command[3], args, [*command, *args])
        request |= {"client": 0, "on_terminal": on_terminal}
        request |= {"env": request["env"] if env is None else env, "cwd": os.fspath(cwd or request["cwd"])}
        streams = [stream if isinstance(stream, int) else stream.fileno() for stream in (stdin, stdout, stderr)]
        connection, its_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with connection:
            with self._lock, its_end:
                parent = self._parent or self._start_parent()
                socket.send_fds(parent, [marshal.dumps(request)], [*streams, its_end.fileno()])
            pid = connection.recv(16)
            if not pid:
                raise OSError("the parent of preloaded processes has ended")
            return Process(int(pid), [*command, *args], connection.detach())

    def _start_parent(self) -> socket.socket:
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with its:
            for end in (ours, its):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _REQUEST_SIZE)
            command = [sys.executable, "-P", __file__, "", str(its.fileno()), *self._packages]
            self._process = subprocess.Popen(command, pass_fds=[its.fileno()], stdin=subprocess.DEVNULL)
        self._parent, self._variables = ours, _python_variables()
        return ours


def _python_variables() -> dict[str, str]:
    return {name: os.environ[name] for name in _VARIABLES if name in os.environ}


# The parent


@dataclass
class _Fork:
    pid: int
    connection: socket.socket  # gets the pid and the exit code, sends numbers of signals
    client: int  # the pid of the command that stands for it; 0 if there is none
    is_running: bool = True
    is_stopped: bool = False


class _Parent:
    """Owns the forks. Requests come from the process that started it, with which it ends, or, if it listens at `path`,
    from commands; then it ends when it has not been used for a while, or the installation has changed."""

    def __init__(self, requests: socket.socket, path: str, lock: int) -> None:
        self._requests = requests
        self._path = path
        self._locks = [lock] if path else []
        self._forks: dict[int, _Fork] = {}  # by descriptors of connections
        self._used = time.monotonic()
        handlers: dict[int, Any] = {signal.SIGINT: signal.SIG_IGN}  # Ctrl-C is for the tests
        handlers[signal.SIGCHLD] = lambda *_: None
        if path:
            handlers[signal.SIGTERM] = lambda *_: Path(path).unlink(missing_ok=True)  # ends after its forks
        self._replaced = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        self._bell, self._bell_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self._bell_end)
        self._poll = select.poll()  # descriptors may be above select's limit
        for source in (requests.fileno(), self._bell):
            self._poll.register(source, select.POLLIN)

    def serve(self) -> None:
        """Forks a child for each request until this process is to end."""
        while self._forks or not self._is_superfluous():
            timeout = _STOP_MS if any(fork.client for fork in self._forks.values()) else _IDLE_MS
            ready = [source for source, _ in self._poll.poll(timeout)]
            if self._bell in ready:
                os.read(self._bell, 4096)
                self._report()
            for source in (signaled := self._forks.keys() & ready):
                self._signal(self._forks[source])
            # A request waits for what came before it: the ports and the lock of a fork that was killed are free then.
            if not signaled and self._requests.fileno() in ready and not self._accept():
                break
            for fork in self._forks.values():
                if fork.client:
                    _stop_with_client(fork)
        for fork in self._forks.values():
            if fork.is_running:
                os.kill(fork.pid, signal.SIGTERM)

    def _is_superfluous(self) -> bool:
        if not self._path:
            return False
        is_idle = time.monotonic() - self._used > _IDLE_SECONDS
        with suppress(OSError):  # the package was removed
            return is_idle or not os.path.exists(self._path) or not self._path.endswith(quick_start.installation())
        return True

    def _report(self) -> None:
        """Sends the exit codes of the forks that have ended."""
        forks = {fork.pid: fork for fork in self._forks.values()}
        with suppress(ChildProcessError):
            while (end := os.waitpid(-1, os.WNOHANG))[0]:
                if fork := forks.get(end[0]):
                    fork.is_running = False
                    with suppress(OSError):
                        fork.connection.send(b"%d" % os.waitstatus_to_exitcode(end[1]))
                        fork.connection.shutdown(socket.SHUT_WR)  # nothing follows, also if no pid came before

    def _signal(self, fork: _Fork) -> None:
        """Sends a fork the signals that its client has got; when the client has gone, ends the fork."""
        numbers = b""
        with suppress(ConnectionError):
            numbers = fork.connection.recv(64)
        if not numbers:
            self._poll.unregister(fork.connection)
            del self._forks[fork.connection.fileno()]
            fork.connection.close()
        if fork.is_running:
            for number in numbers or (signal.SIGKILL if fork.client else signal.SIGTERM,):
                os.kill(fork.pid, number)
            if fork.client and not numbers:
                os.waitid(os.P_PID, fork.pid, os.WEXITED | os.WNOWAIT)

    def _accept(self) -> bool:
        """Forks a child for the next request; returns False if there are no more."""
        source = self._requests
        fds: list[int] = []
        with suppress(OSError):
            if self._path:
                source = source.accept()[0]
                source.settimeout(_REQUEST_SECONDS)
            data, fds, _, _ = socket.recv_fds(source, _REQUEST_SIZE, 4)
        if len(fds) < 4:
            return bool(self._path)
        *streams, last = fds
        connection = source if self._path else socket.socket(fileno=last)
        request = marshal.loads(data)
        pid = -1
        with suppress(OSError):  # of too many processes: without an answer the command runs the daemon itself
            pid = os.fork()
        if pid == 0:
            self._leave(connection)
            if request["client"]:
                _wait_for_client(request["client"], last)
            _become(request, streams)
        for fd in fds if self._path else streams:
            os.close(fd)
        if pid > 0:
            self._forks[connection.fileno()] = _Fork(pid, connection, request["client"])
            self._poll.register(connection, select.POLLIN)
            self._used = time.monotonic()
        return True

    def _leave(self, connection: socket.socket) -> None:
        """Leaves a fork nothing of its parent, and then sends its pid, so that it gets no signal before."""
        signal.set_wakeup_fd(-1)
        for number, handler in self._replaced.items():
            signal.signal(number, handler)
        with suppress(OSError):
            connection.send(b"%d" % os.getpid())
        sockets = (self._requests, connection, *(fork.connection for fork in self._forks.values()))
        for fd in (self._bell, self._bell_end, *self._locks, *(sock.detach() for sock in sockets)):
            os.close(fd)


def _stop_with_client(fork: _Fork) -> None:
    """Stops a fork whose client is stopped, and continues it with the client (proc(5), stat, 3)."""
    with suppress(OSError), open(f"/proc/{fork.client}/stat", "rb") as file:
        is_stopped = file.read().rpartition(b") ")[2].startswith(b"T")
        if is_stopped != fork.is_stopped and fork.is_running:
            os.kill(fork.pid, signal.SIGSTOP if is_stopped else signal.SIGCONT)
            fork.is_stopped = is_stopped


def _wait_for_client(pid: int, pipe: int) -> None:
    """Returns when the client stands for this process, which then ends with it; ends the process if it has given up."""
    if not os.read(pipe, 1):
        os._exit(1)
    fcntl.fcntl(pipe, fcntl.F_SETOWN, os.getpid())  # the kernel sends it SIGKILL when the other end is closed
    fcntl.fcntl(pipe, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(pipe, fcntl.F_SETFL, os.O_ASYNC)
    _set_title(f"NSQ daemon of process {pid}")


def _become(request: dict[str, Any], streams: list[int]) -> NoReturn:
    for number, fd in enumerate(streams):
        os.dup2(fd, number)
    for fd in set(streams) - {0, 1, 2}:
        os.close(fd)
    if request.get("on_terminal"):
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


def _set_title(title: str) -> None:
    """Sets the command line that ps shows: the memory of the parent's (proc(5), stat, 48 and 49)."""
    with suppress(OSError), open("/proc/self/stat", "rb") as file, open("/proc/self/mem", "r+b", 0) as memory:
        start, end = map(int, file.read().rpartition(b")")[2].split()[45:47])
        memory.seek(start)
        memory.write(title.encode().ljust(end - start, b"\0")[: end - start])


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


def _listen(path: str, lock: int) -> socket.socket:
    """Detaches this process from the command that started it; returns a socket for the requests of others."""
    for fd in {*map(int, os.listdir("/proc/self/fd"))} - {0, 1, 2, lock}:
        with suppress(OSError):  # the one of this list
            os.close(fd)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    Path(path).unlink(missing_ok=True)
    listener.bind(path)
    listener.listen()
    os.chdir("/")
    return listener


def _main(path: str, descriptor: int, packages: Sequence[str]) -> None:
    """Runs the parent. `descriptor` is the socket that has the requests or, with a `path`, the lock for that."""
    for package in packages:
        directories = importlib.import_module(package).__path__
        for module in pkgutil.walk_packages(directories, f"{package}."):
            if not module.name.endswith(("__main__", "pytest_plugin")):
                importlib.import_module(module.name)
    gc.collect()
    gc.freeze()  # else each child's collector writes to all of this memory, which is copied then
    requests = _listen(path, descriptor) if path else socket.socket(fileno=descriptor)
    _Parent(requests, path, descriptor).serve()
    if path:
        Path(path).unlink(missing_ok=True)
        os.unlink(f"{path}.lock")
    os._exit(0)


if __name__ == "__main__":
    _main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
