"""gnsqd with a wall clock that a test sets while it runs, as an operator or NTP would; monotonic time goes on.

As a program: adds to `time.time` and `time.time_ns` the number in a shared file, and runs gnsqd's `__main__` with the
arguments given. As a module: `WallClock` is the test's end of that file.
"""

import mmap
import os
import runpy
import struct
import time
from pathlib import Path
from typing import Any

VARIABLE = "GNSQD_CLOCK"  # path of the file: seconds, as one double
_OFFSET = struct.Struct("=d")


class WallClock:
    """That of the daemons started by `command`, which is made of the Python that runs gnsqd."""

    def __init__(self, path: Path, python: list[str]) -> None:
        self._path = path
        self.set(0)
        self.command = ["env", f"{VARIABLE}={path}", *python, "-P", __file__]

    def set(self, offset: float) -> None:
        """That many seconds after the true time, before it where that is negative."""
        with self._path.open("r+b" if self._path.exists() else "wb") as file:
            file.write(_OFFSET.pack(offset))


def _install(path: str) -> None:
    clock: Any = time
    true_time, true_time_ns = time.time, time.time_ns
    with open(path, "rb") as file:
        shared = mmap.mmap(file.fileno(), _OFFSET.size, prot=mmap.PROT_READ)

    def offset() -> float:
        return float(_OFFSET.unpack_from(shared)[0])

    clock.time = lambda: true_time() + offset()
    clock.time_ns = lambda: true_time_ns() + int(offset() * 1e9)


if __name__ == "__main__":
    _install(os.environ[VARIABLE])
    runpy.run_module("gnsqd", run_name="__main__", alter_sys=True)
