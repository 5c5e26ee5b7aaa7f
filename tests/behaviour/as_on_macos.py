"""gnsqd with what Python has on macOS: none of the functions, constants and files that only Linux has, a `TCP_KEEPIDLE`
of another name, F_FULLFSYNC, and no more than 10240 descriptors.

As a program: takes away and adds that, and runs gnsqd's `__main__` with the arguments given. As a module: `MacOS` is
the test's end.
"""

import builtins
import fcntl
import os
import resource
import runpy
import select
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

VARIABLE = "GNSQD_SYNCS"  # path of a file: a line for each sync, `{call} {path}`

F_FULLFSYNC = 51
_MISSING: dict[Any, list[str]] = {
    os: [
        *("fdatasync", "posix_fadvise", "posix_fallocate", "copy_file_range", "splice", "memfd_create", "pipe2"),
        *("sched_yield", "sched_getaffinity", "sched_setaffinity", "eventfd", "pidfd_open", "getrandom", "O_DIRECT"),
    ],
    select: ["epoll"],
    socket: ["TCP_KEEPIDLE", "TCP_USER_TIMEOUT", "SO_PEERCRED", "SOCK_NONBLOCK", "SOCK_CLOEXEC", "MSG_NOSIGNAL"],
}


class MacOS:
    """The daemons started by `command`, which is made of the Python that runs gnsqd; `syncs` is a file that is made."""

    def __init__(self, syncs: Path, python: list[str]) -> None:
        self._syncs = syncs
        syncs.touch()
        self.command = ["env", f"{VARIABLE}={syncs}", *python, "-P", __file__]

    def syncs(self) -> list[tuple[str, str]]:
        """Returns each call so far, with the name of the file or directory."""
        lines = [line.split(" ", 1) for line in self._syncs.read_text().splitlines()]
        return [(call, Path(path).name) for call, path in lines]


def _install(syncs: str) -> None:
    noted = os.open(syncs, os.O_WRONLY | os.O_APPEND)
    functions: Any = os
    constants: Any = socket
    locks: Any = fcntl
    builtin_functions: Any = builtins
    limits: Any = resource
    set_limit = resource.setrlimit
    fsync, control, open_file = os.fsync, fcntl.fcntl, builtins.open

    def note(call: str, descriptor: int) -> None:
        fsync(descriptor)
        os.write(noted, f"{call} {os.readlink(f'/proc/self/fd/{descriptor}')}\n".encode())

    def controlling(descriptor: Any, command: int, argument: Any = 0) -> Any:
        if command != F_FULLFSYNC:
            return control(descriptor, command, argument)
        note("F_FULLFSYNC", descriptor)
        return 0

    def limiting(kind: int, values: tuple[int, int]) -> None:
        if values[0] > 10240:
            raise ValueError("current limit exceeds maximum limit")
        set_limit(kind, values)

    def opening(path: Any, *arguments: Any, **named: Any) -> Any:
        if str(path).startswith("/proc/"):
            raise FileNotFoundError(2, "No such file or directory", path)
        return open_file(path, *arguments, **named)

    calls: list[tuple[Any, str, Callable[..., Any] | int]] = [
        (functions, "fsync", lambda descriptor: note("fsync", descriptor)),
        (constants, "TCP_KEEPALIVE", socket.TCP_KEEPIDLE),
        (limits, "setrlimit", limiting),
        (locks, "F_FULLFSYNC", F_FULLFSYNC),
        (locks, "fcntl", controlling),
        (builtin_functions, "open", opening),
    ]
    for module, name, value in calls:
        setattr(module, name, value)
    for module, names in _MISSING.items():
        for name in names:
            if hasattr(module, name):
                delattr(module, name)
            if name in getattr(module, "__all__", ()):
                module.__all__.remove(name)


if __name__ == "__main__":
    _install(os.environ[VARIABLE])
    runpy.run_module("gnsqd", run_name="__main__", alter_sys=True)
