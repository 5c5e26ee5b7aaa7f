"""What a row is: a procedure on a running daemon, which gives figures and the CPU time that the daemon spent on it."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Concatenate, ParamSpec

from benchmarks.lanes import Lane
from kit.daemons import Daemon

FASTEST = 5_000_000  # messages per second, more than any daemon takes


@dataclass(frozen=True)
class Load:
    """How long to load the daemon, and how many messages a backlog has."""

    seconds: float
    stored: int
    certificate: tuple[str, str] = ("", "")  # for TLS: files of the certificate and its key


@dataclass(frozen=True)
class Measurement:
    value: float = 0.0  # in the unit of the row
    messages: int = 0  # 0 where none are moved
    cpu_seconds: float = 0.0  # of the daemon, over all these messages
    on_disk: int = 0  # messages that the memory queue had no room for
    behind: int = 0  # messages that were published, but not yet in the channel
    load_seconds: float | None = None  # of the clients: their CPU time over the same messages
    parts: dict[str, float] = field(default_factory=dict)  # the figures, where the row names several

    @property
    def cpu_per_million(self) -> float | None:
        return self._per_million(self.cpu_seconds)

    @property
    def load_per_million(self) -> float | None:
        return None if self.load_seconds is None else self._per_million(self.load_seconds)

    def _per_million(self, seconds: float) -> float | None:
        return seconds / self.messages * 1_000_000 if self.messages else None


Procedure = Callable[[Daemon, Load], Measurement]
P = ParamSpec("P")


def procedure(function: Callable[Concatenate[Daemon, Load, P], Measurement]) -> Callable[P, Procedure]:
    """What takes the other parameters and gives a procedure."""

    def bind(*args: P.args, **kwargs: P.kwargs) -> Procedure:
        return lambda daemon, load: function(daemon, load, *args, **kwargs)

    return bind


@dataclass(frozen=True)
class Unit:
    """`inverted`: a figure is time per work, and the ratio that of the speeds. Memory, latency and CPU time at rest are
    no `speed`; their ratio is that of the figures."""

    name: str
    form: str  # of a figure in the table
    inverted: bool = False
    speed: bool = True

    @property
    def heading(self) -> str:
        return self.name if self.speed else f"{self.name}, less is better"

    def ratio(self, value: float, base: float) -> float:
        above, below = (base, value) if self.inverted else (value, base)
        return above / below if below else math.inf


RATE = Unit("messages/s", ",.0f")
SECONDS = Unit("s", ".3f", inverted=True)
MILLISECONDS = Unit("ms", ".3f", speed=False)
MICROSECONDS = Unit("µs of CPU per message", ".2f", speed=False)
MEGABYTES = Unit("MB", ",.1f", speed=False)
KILOBYTES = Unit("kB", ",.1f", speed=False)
PERCENT = Unit("% of a CPU", ".1f", speed=False)
SHARE = Unit("%", ".1f", speed=False)
INSTRUCTIONS = Unit("instructions/command", ",.0f", speed=False)
TIMED = {"p50": MILLISECONDS, "p99": MILLISECONDS}

Variant = tuple[str, tuple[str, ...]]  # a name, and flags; those without flags are the lane itself

OURS: tuple[Variant, ...] = (("", ()),)
BY_DURABILITY: tuple[Variant, ...] = (*OURS, ("process", ("--durability=process",)), ("disk", ("--durability=disk",)))
BY_RETENTION: tuple[Variant, ...] = (
    ("process", ("--durability=process",)),
    ("retention", ("--durability=process", "--retention-bytes=1000000000")),
)
# Segments are also deleted.
FULL_RETENTION: Variant = ("retention of 100 MB", ("--durability=process", "--retention-bytes=100000000"))


@dataclass(frozen=True)
class Row:
    name: str
    title: str
    measure: Procedure
    mem_queue_size: Callable[[Load], int] | None = None  # None is nsqd's default
    unit: Unit = RATE
    in_memory: bool = True  # nothing of what is measured should be on disk
    sink: bool = False  # the load's own limit is worth knowing: it is also run against the sink
    floor: bool = False  # --floor adds a lane: the server of floor.c knows what the row needs
    tls: bool = False
    variants: tuple[Variant, ...] = ()  # of each gnsqd one row, which compares it with itself by these flags
    parts: dict[str, Unit] = field(default_factory=dict)  # the figures, where there are several: a line each
    flags: tuple[str, ...] = ()  # of the daemon
    our_flags: tuple[str, ...] = ()  # of gnsqd, besides
    prepare: Callable[[Path], object] | None = None  # makes the data path that the daemon starts with
    limits: dict[str, float] = field(default_factory=dict)  # of parts, which gnsqd promises
    apart: bool = False  # runs only if a pattern is given

    def flags_of(self, lane: Lane, load: Load) -> list[str]:
        """What the daemon is started with."""
        flags = [*self.flags, *(self.our_flags if lane.is_ours else ())]
        if self.mem_queue_size is not None:
            flags.append(f"--mem-queue-size={self.mem_queue_size(load)}")
        if self.tls:
            flags += [f"--tls-cert={load.certificate[0]}", f"--tls-key={load.certificate[1]}"]
        return flags


def write_topics(data_path: Path, topics: Sequence[str], channels: Sequence[str]) -> None:
    """The nsqd.dat of a daemon that has them."""
    named = [{"name": name, "paused": False} for name in channels]
    rows = [{"name": name, "paused": False, "channels": named} for name in topics]
    data_path.mkdir()
    (data_path / "nsqd.dat").write_text(json.dumps({"version": "1.3.0", "topics": rows}), encoding="utf-8")


def all_that_comes(load: Load) -> int:
    return int(load.seconds * FASTEST)


def stored(load: Load) -> int:
    return load.stored
