"""The commands `gnsqd` and `gnsqlookupd`.

With GNSQD_PRELOAD=1, on Linux, a command asks a parent process that has imported gnsqd (`preloaded`) for a fork. It
then stands for the fork: it forwards signals to it, and they end together. The fork runs nothing before the command has
confirmed that. If there is no parent or anything fails, the command runs the daemon itself; without a parent it starts
one for later commands.

A parent serves the commands that agree with the one that started it in everything that a process inherits and a fork
cannot be given, such as user, limits and namespaces. The name of its socket is a checksum of these and of the files of
the installation.

Before the fork only this module is loaded. It uses `_signal` and `_socket`, as `signal` and `socket` load slowly.
"""

import _signal  # type: ignore[import-not-found]
import _socket
import fcntl
import marshal
import os
import select
import stat
import struct
import sys
import zlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

# Any other signal ends the command, and so the fork.
_FORWARDED: tuple[int, ...] = (_signal.SIGHUP, _signal.SIGINT, _signal.SIGQUIT, _signal.SIGTERM)
_FORWARDED += (_signal.SIGUSR1, _signal.SIGUSR2, _signal.SIGCONT)
_ANSWER_SECONDS = 5.0

_STATUS = ("Cap", "Cpus_", "Gid", "Groups", "Mems_", "NoNewPrivs", "Seccomp", "SigBlk", "Uid")
_FILES = ("attr/current", "cgroup", "limits", "oom_score_adj", "personality")
_VARIABLES = ("GEVENT", "GLIBC", "LANG", "LC_", "LD_", "MALLOC", "OPENSSL", "PYTHON")  # are read as a process starts
_MANAGED = ("LISTEN_FDS", "NOTIFY_SOCKET")  # a service manager knows its service by the pid


def gnsqd() -> int:
    """Runs the command `gnsqd`; returns the exit code."""
    _run_as_fork("gnsqd")
    from gnsqd.__main__ import main

    return main()


def gnsqlookupd() -> int:
    """Runs the command `gnsqlookupd`; returns the exit code."""
    _run_as_fork("gnsqd.lookupd")
    from gnsqd.lookupd.__main__ import main

    return main()


def _run_as_fork(package: str) -> None:
    """Runs `package` in a fork and ends as the fork does; returns if no parent forks it."""
    if os.environ.get("GNSQD_PRELOAD") != "1" or sys.platform != "linux" or any(map(os.environ.get, _MANAGED)):
        return
    connection = None
    pipe: tuple[int, ...] = ()
    try:
        connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        pipe = os.pipe()
        if connection.fileno() < 3 or any("/fd/" in argument for argument in sys.argv):
            return  # a standard stream is closed, or descriptors are used that the fork does not have
        connection.settimeout(_ANSWER_SECONDS)
        path = f"{_private_directory()}/{_context()}{installation()}"
        if connection.connect_ex(path) != 0:
            return _start_parent(path)
        _ask(connection, package, pipe[0])
        os._exit(_stand_for_fork(connection, pipe[1]))
    except OSError:
        pass
    finally:  # a fork ends when the pipe is closed
        for descriptor in pipe:
            os.close(descriptor)
        if connection:
            connection.close()


def _private_directory() -> str:
    """Returns a directory for sockets, which it creates; raises PermissionError if others own it or may enter."""
    user = os.geteuid()
    path = f"{os.environ.get('XDG_RUNTIME_DIR') or os.environ.get('TMPDIR') or '/tmp'}/gnsqd-{user}"
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        pass
    status = os.lstat(path)
    if status.st_uid != user or not stat.S_ISDIR(status.st_mode) or status.st_mode & 0o077:
        raise PermissionError(path)
    return path


def _context() -> str:
    """Returns a checksum of what this process has inherited and a fork of another cannot be given; OSError."""
    facts: list[object] = [sys.executable, _interpreter_options(), os.stat("/")[1:3]]
    facts += [os.readlink(f"/proc/self/ns/{name}") for name in sorted(os.listdir("/proc/self/ns"))]
    stats = _read("stat").rpartition(")")[2].split()
    facts += [stats[16], *stats[37:39]]  # nice, rt_priority and policy (proc(5))
    facts += [number for number in range(1, 32) if _signal.getsignal(number) == _signal.SIG_IGN]  # glibc ignores 32
    facts += [line for line in _read("status").splitlines() if line.startswith(_STATUS)]
    facts += map(_read, _FILES)
    facts += sorted(item for item in os.environ.items() if item[0].startswith(_VARIABLES))
    return _checksum(facts)


def _interpreter_options() -> list[str]:
    return sys.orig_argv[1 : len(sys.orig_argv) - len(sys.argv)]


def _read(name: str) -> str:
    try:
        with open(f"/proc/self/{name}", errors="replace") as file:
            return file.read()
    except OSError:  # without a security module there is no label
        return ""


def _checksum(facts: object) -> str:
    return f"{zlib.crc32(repr(facts).encode()):08x}"


def installation() -> str:
    """Returns a checksum of the files of this package, and of the directories where others are installed."""
    times = [os.stat(path).st_mtime_ns for path in sys.path if path.endswith("-packages")]
    directories = [os.path.dirname(__file__)]
    for directory in directories:
        for entry in os.scandir(directory):
            if not entry.is_dir():
                times.append(entry.stat().st_mtime_ns)
            elif entry.name != "__pycache__":
                directories.append(entry.path)
    return _checksum((sorted(directories), sorted(times)))


def _start_parent(path: str) -> None:
    """Starts the parent that will listen at `path`; raises OSError, also if one runs or starts already."""
    lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the parent inherits it
        if os.fstat(lock).st_nlink == 0:
            return  # the file of a parent that has just ended
        if child := os.fork():
            os.waitpid(child, 0)
            return
        try:
            if os.fork() == 0:  # so that it is not a child of the command
                os.setsid()
                for number in range(3):
                    os.dup2(os.open(os.devnull, os.O_RDWR), number)
                os.set_inheritable(lock, True)
                program = f"{os.path.dirname(__file__)}/preloaded.py"
                options = [*_interpreter_options(), "-P"]
                os.execv(sys.executable, [sys.executable, *options, program, path, str(lock), "gnsqd"])
        finally:
            os._exit(0)
    finally:
        os.close(lock)


def request(module: str, arguments: "Sequence[str]", command: "Sequence[str]") -> "dict[str, Any]":
    """Returns what a parent needs to know to run `module` as this process would."""
    os.umask(mask := os.umask(0))
    return {
        "module": module,
        "args": list(arguments),
        "orig_argv": list(command),
        "umask": mask,
        "cwd": os.getcwd(),
        "env": dict(os.environ),
        "client": os.getpid(),
    }


def _ask(connection: _socket.socket, package: str, pipe: int) -> None:
    """Lets the parent fork a child that will run `package` when it has read a byte from `pipe`; raises OSError."""
    data = marshal.dumps(request(package, sys.argv[1:], sys.orig_argv))
    descriptors = struct.pack("4i", 0, 1, 2, pipe)
    connection.sendmsg([data], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, descriptors)])
    if not connection.recv(16):
        raise ConnectionError


def _stand_for_fork(connection: _socket.socket, pipe: int) -> int:
    """Lets the fork run and forwards signals to it, also ignored ones, which the daemon may handle. Returns its exit
    code when it has ended, or ends by the signal that ended it."""
    connection.setblocking(False)
    _signal.set_wakeup_fd(connection.fileno(), warn_on_full_buffer=False)  # the parent reads the numbers of signals
    for number in _FORWARDED:
        _signal.signal(number, lambda *_: None)
    os.write(pipe, b"!")
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    poll.poll()
    try:
        code = int(connection.recv(16))
    except (OSError, ValueError):  # the parent was killed
        code = -_signal.SIGKILL
    if code < 0:
        if code != -_signal.SIGKILL:
            _signal.signal(-code, _signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code & 0xFF
