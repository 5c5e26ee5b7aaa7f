"""A row: a procedure on a running daemon, which gives figures and the CPU time that the daemon spent on it."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Concatenate, ParamSpec

from kit.daemons import Instance

FASTEST = 5_000_000  # messages per second, more than any daemon takes


@dataclass(frozen=True)
class BenchmarkLoad:
    """The seconds for which the daemon is loaded, and the messages that a backlog has."""

    seconds: float
    stored: int
    certificate: tuple[str, str] = ("", "")  # for TLS: files of the certificate and its key


@dataclass(frozen=True)
class Measurement:
    value: float = 0.0  # in the unit of the row
    messages: int = 0  # or connections; 0 where none are moved
    cpu_seconds: float = 0.0  # of the daemon, over all these messages
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


Procedure = Callable[[Instance, BenchmarkLoad], Measurement]
P = ParamSpec("P")


def procedure(function: Callable[Concatenate[Instance, BenchmarkLoad, P], Measurement]) -> Callable[P, Procedure]:
    """Returns a function that takes the other parameters and gives a procedure."""

    def bind(*args: P.args, **kwargs: P.kwargs) -> Procedure:
        return lambda daemon, load: function(daemon, load, *args, **kwargs)

    return bind


@dataclass(frozen=True)
class Unit:
    name: str
    form: str  # of a figure in the table
    speed: bool = False  # more is better

    @property
    def heading(self) -> str:
        return self.name if self.speed else f"{self.name}, less is better"


RATE = Unit("messages/s", ",.0f", speed=True)
CONNECTIONS = Unit("connections/s", ",.0f", speed=True)
MILLISECONDS = Unit("ms", ".3f")
MICROSECONDS = Unit("µs of CPU per message", ".2f")
MEGABYTES = Unit("MB", ",.1f")
KILOBYTES = Unit("kB", ",.1f")
PERCENT = Unit("% of a CPU", ".1f")
INSTRUCTIONS = Unit("instructions/command", ",.0f")

Variant = tuple[str, tuple[str, ...]]  # a name, and flags; those without flags are the lane itself

ITSELF: tuple[Variant, ...] = (("", ()),)
BY_DURABILITY: tuple[Variant, ...] = (*ITSELF, ("process", ("--durability=process",)), ("disk", ("--durability=disk",)))

_IN_STORE = ("--durability=store", "--log-store=file://{directory}/store")
BY_STORE: tuple[Variant, ...] = (("disk", ("--durability=disk",)), ("store", _IN_STORE))


@dataclass(frozen=True)
class BenchmarkRow:
    name: str
    title: str
    measure: Procedure
    mem_queue_size: Callable[[BenchmarkLoad], int] | None = None  # None is nsqd's default
    unit: Unit = RATE
    tls: bool = False
    variants: tuple[Variant, ...] = ()  # of each gnsqd one row, which compares it with itself by these flags
    parts: dict[str, Unit] = field(default_factory=dict)  # the figures, where there are several: a line each
    flags: tuple[str, ...] = ()  # of the daemon
    prepare: Callable[[Path], object] | None = None  # makes the data path that the daemon starts with
    apart: bool = False  # runs only if a pattern is given

    def flags_with(self, load: BenchmarkLoad) -> list[str]:
        """Returns the flags that a daemon is started with."""
        flags = [*self.flags]
        if self.mem_queue_size is not None:
            flags.append(f"--mem-queue-size={self.mem_queue_size(load)}")
        if self.tls:
            flags += [f"--tls-cert={load.certificate[0]}", f"--tls-key={load.certificate[1]}"]
        return flags


def ratio(value: float, base: float) -> float:
    return value / base if base else math.inf


def write_topics(data_path: Path, topics: Sequence[str], channels: Sequence[str]) -> None:
    """Writes the nsqd.dat of a daemon that has them."""
    named = [{"name": name, "paused": False} for name in channels]
    rows = [{"name": name, "paused": False, "channels": named} for name in topics]
    data_path.mkdir()
    (data_path / "nsqd.dat").write_text(json.dumps({"version": "1.3.0", "topics": rows}), encoding="utf-8")


def all_that_comes(load: BenchmarkLoad) -> int:
    """Returns the size of a memory queue in which every message of the load has room."""
    return int(load.seconds * FASTEST)


def stored(load: BenchmarkLoad) -> int:
    return load.stored
