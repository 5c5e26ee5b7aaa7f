"""The commands `gnsqd` and `gnsqlookupd`.

With GNSQD_PRELOAD=1, on Linux, a command stands for a fork of a process that has imported gnsqd (`preloaded`): signals
reach the fork, and both end together. The first command starts that process. It runs the daemon itself, as do all that
get no fork.
"""

import os
import sys
from importlib import import_module
from typing import NoReturn

_MANAGED = ("LISTEN_FDS", "NOTIFY_SOCKET")  # a service manager knows its service by the pid

# A process inherits these, and a fork of another cannot be given them.
_STATUS = ("Cap", "Cpus_", "Gid", "Groups", "Mems_", "NoNewPrivs", "Seccomp", "SigBlk", "SigIgn", "Uid")
_FILES = ("cgroup", "limits", "oom_score_adj", "personality")
_VARIABLES = ("GEVENT", "GLIBC", "LANG", "LC_", "LD_", "MALLOC", "OPENSSL", "PYTHON")


def gnsqd() -> NoReturn:
    """Runs the command `gnsqd`."""
    _run("gnsqd")


def gnsqlookupd() -> NoReturn:
    """Runs the command `gnsqlookupd`."""
    _run("gnsqd.lookupd")


def _run(module: str) -> NoReturn:
    _run_as_fork(module)
    from gnsqd import process

    process.end(import_module(f"{module}.__main__").main())


def _run_as_fork(module: str) -> None:
    """Runs `module` in a fork and ends as the fork does; returns if there is none."""
    if os.environ.get("GNSQD_PRELOAD") != "1" or sys.platform != "linux" or any(map(os.environ.get, _MANAGED)):
        return
    if any("/fd/" in argument for argument in sys.argv) or len(sys.orig_argv) != 1 + len(sys.argv):
        return  # a fork does not have these descriptors, or these options of Python
    from gnsqd import preloaded

    try:
        address = _address()
        try:
            process = preloaded.start(address, sys.orig_argv, module, sys.argv[1:], [0, 1, 2], at_end=9)
        except ConnectionRefusedError:
            preloaded.start_parent(address, ["gnsqd"])
            return
    except OSError:
        return
    preloaded.stand_for(process)


def _address() -> str:
    """Returns the address of the parent that may fork for this process: a checksum of all that both have in common.
    Raises OSError, also if a standard stream is closed."""
    from zlib import crc32

    facts: list[object] = [sys.executable, os.stat("/")[1:3]]
    facts += [os.readlink(f"/proc/self/ns/{name}") for name in sorted(os.listdir("/proc/self/ns"))]
    facts += [line for line in _read("status").splitlines() if line.startswith(_STATUS)]
    facts += map(_read, _FILES)
    facts += sorted(item for item in os.environ.items() if item[0].startswith(_VARIABLES))
    facts += [os.stat(path).st_mtime_ns for path in sys.path if path.endswith("-packages")]  # changed by pip
    for stream in range(3):
        os.fstat(stream)
    return f"\0gnsqd-{crc32(repr(facts).encode()):08x}"


def _read(name: str) -> str:
    with open(f"/proc/self/{name}", errors="replace") as file:
        return file.read()
