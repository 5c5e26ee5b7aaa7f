"""The daemons under comparison, each a lane: a name and a command line.

A running one is `kit.daemons.Instance`, as in the tests: free ports, data of its own, and a log file with a few lines.
Its CPU time and its memory come from /proc, so the benchmarks need Linux.
"""

import contextlib
import os
import re
import shlex
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kit.daemons import Instance

DIRECTORY_PREFIX = "gnsqd-bench-"


class BenchmarkError(Exception):
    """A comparison or a run that is not possible; str() is the text for people."""


OWN_DIRECTORY = "{directory}"  # in a flag: one that is removed with the daemon


@dataclass(frozen=True)
class Lane:
    name: str
    command: tuple[str, ...]

    @classmethod
    def parse(cls, name: str, command: str) -> "Lane":
        """Returns the lane for a shell-quoted command line; raises BenchmarkError if its program is not there."""
        words = shlex.split(command)
        program = shutil.which(words[0]) if words else None
        if program is None:
            raise BenchmarkError(f"no such program: {command}")
        # A daemon runs in its data directory, so a relative path would lead nowhere.
        return cls(name, (os.path.abspath(program), *words[1:]))

    @property
    def is_ours(self) -> bool:
        return self.name.startswith("gnsqd")

    def with_flags(self, meaning: str, flags: Sequence[str]) -> "Lane":
        return replace(self, name=f"{self.name}, {meaning}", command=(*self.command, *flags)) if flags else self

    @contextlib.contextmanager
    def running(self, *flags: str, prepare: Callable[[Path], object] | None = None) -> Iterator[Instance]:
        """Runs a daemon of this lane on a new data path, which `prepare` may fill; raises AssertionError if it does not
        serve."""
        with tempfile.TemporaryDirectory(prefix=DIRECTORY_PREFIX) as directory:
            command = tuple(word.replace(OWN_DIRECTORY, directory) for word in self.command)
            daemon = Instance(command, Path(directory) / "data", *flags)
            if prepare is not None:
                prepare(daemon.data_path)
            try:
                yield daemon.start()
            finally:
                # Not by SIGTERM: a clean exit would write a million queued messages to disk, and nobody reads them.
                daemon.kill()

    def build(self) -> str | None:
        """Asks the lane's program how it was built, `compiled` or `plain`; returns None for the real nsqd."""
        with self.running() as daemon:
            _, _, body = daemon.http("GET", "/metrics")
        found = re.search(rb'^gnsqd_build_info\{.*lane="(\w+)"', body, re.MULTILINE)
        return found[1].decode() if found else None


def cpu_seconds(daemon: Instance) -> float:
    """Returns user and system time of all threads that `daemon` has, so far (/proc/PID/task/TID/schedstat)."""
    threads = Path(f"/proc/{daemon.pid}/task").glob("*/schedstat")
    return sum(int(thread.read_text(encoding="utf-8").split()[0]) for thread in threads) / 1e9


def cpu_share(daemon: Instance, seconds: float) -> float:
    """Returns the share of one CPU that the daemon uses in the next `seconds`."""
    before, began = cpu_seconds(daemon), time.monotonic()
    time.sleep(seconds)
    return (cpu_seconds(daemon) - before) / (time.monotonic() - began)
