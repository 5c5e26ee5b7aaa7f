"""What an attack results in, how large it is, and the daemon that it is made on."""

import json
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from mmap import PAGESIZE
from pathlib import Path
from typing import NamedTuple

from kit.daemons import Address, Daemon

MB = 1e6


class Setting(NamedTuple):
    """`scale` multiplies the sizes of all attacks; `beside` messages a second are published beside freezes; what
    breaks a limit of time is measured up to `attempts` times."""

    scale: float
    beside: int
    attempts: int

    def scaled(self, size: int) -> int:
        return max(int(size * self.scale), 1)

    def seconds(self, seconds: float) -> float:
        """A time in which something is measured or may settle."""
        return max(seconds * min(self.scale, 1.0), 0.1)


class Figure(NamedTuple):
    """One number with its limits, if it has any."""

    what: str
    value: float
    unit: str
    at_most: float = float("inf")
    at_least: float = float("-inf")

    @property
    def holds(self) -> bool:
        return self.at_least <= self.value <= self.at_most

    @property
    def limit(self) -> str:
        if self.at_most != float("inf"):
            return f"at most {self.at_most:g}"
        return f"at least {self.at_least:g}" if self.at_least != float("-inf") else ""


class Attack(NamedTuple):
    """`run` takes the daemon's command; `real` if the real nsqd can also be attacked so."""

    name: str
    run: Callable[[list[str], Setting], list[Figure]]
    real: bool = False


def attempts(measure: Callable[[], float], setting: Setting, limit: float) -> list[float]:
    """One figure if it is within the limit, else as many as may be."""
    values = [measure()]
    while values[0] > limit and len(values) < setting.attempts:
        values.append(measure())
    return values


def spread(values: list[float], unit: str) -> list[Figure]:
    """The least and the most of several attempts."""
    ends = (min(values), max(values)) if len(values) > 1 else ()
    return [Figure(f"{len(values)} attempts", value, unit) for value in ends]


@contextmanager
def running(command: list[str], *flags: str, topics: int = 0, channels: int = 0) -> Iterator[Daemon]:
    """A daemon that starts with that many topics, called t0, t1 and so on, each with channels c0, c1 and so on, and is
    killed in the end."""
    with tempfile.TemporaryDirectory(prefix="gnsqd-attacks-") as directory:
        daemon = Daemon(command, Path(directory) / "data", *flags)
        daemon.data_path.mkdir()
        if topics:
            inner = [{"name": f"c{number}", "paused": False} for number in range(channels)]
            stored = [{"channels": inner, "name": f"t{number}", "paused": False} for number in range(topics)]
            (daemon.data_path / "nsqd.dat").write_text(json.dumps({"topics": stored, "version": "1.3.0"}))
        try:
            yield daemon.start()
        finally:
            daemon.kill()


def address(parts: Address) -> str:
    assert isinstance(parts, tuple)
    return f"{parts[0]}:{parts[1]}"


def post(daemon: Daemon, path: str, body: bytes = b"") -> None:
    status, _, answer = daemon.http("POST", path, body)
    assert status == 200, (path, status, answer)


def resident(pid: int) -> int:
    """Bytes of resident memory of a process and all its descendants."""
    children: dict[int, list[int]] = {}
    sizes: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(") ")[2].split()
        except OSError:
            continue  # it has ended
        children.setdefault(int(fields[1]), []).append(int(path.parent.name))
        sizes[int(path.parent.name)] = int(fields[21]) * PAGESIZE
    family = [pid]
    for member in family:
        family += children.get(member, [])
    return sum(sizes.get(member, 0) for member in family)


class Memory:
    """The most `resident` memory of a process from construction to `stop`, in MB."""

    def __init__(self, pid: int) -> None:
        self.most = 0.0
        self._pid = pid
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def _watch(self) -> None:
        while not self._stopping.wait(0.05):
            self.most = max(self.most, resident(self._pid) / MB)

    def stop(self) -> float:
        self._stopping.set()
        self._thread.join()
        return self.most
