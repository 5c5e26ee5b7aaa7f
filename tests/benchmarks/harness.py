"""Runs rows over lanes, interleaved: A B C, A B C, ... so that a slow moment of the machine meets every lane.

Each run has a fresh daemon. Ratios are taken pair by pair, within one turn, for the same reason.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.lanes import BenchmarkError, Lane
from benchmarks.rows import Load, Measurement, RanDry, Row


@dataclass(frozen=True)
class Spread:
    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        return cls(statistics.median(values), min(values), max(values))


@dataclass(frozen=True)
class RowResult:
    """The runs of a row: lane name to measurements in the order of the turns. The first lane is the base."""

    row: Row
    runs: dict[str, list[Measurement]]

    def figure(self, lane: str) -> Spread:
        """In the row's unit."""
        return Spread.of([run.value for run in self.runs[lane]])

    def cpu_per_million(self, lane: str) -> Spread | None:
        """None where no messages are moved."""
        values = [run.cpu_per_million for run in self.runs[lane]]
        return Spread.of([value for value in values if value is not None]) if None not in values else None

    def ratio(self, lane: str) -> Spread:
        first = next(iter(self.runs.values()))
        pairs = zip(self.runs[lane], first, strict=True)
        return Spread.of([self.row.speedup(run.value, other.value) for run, other in pairs])


def run_row(
    row: Row,
    lanes: Sequence[Lane],
    turns: int,
    load: Load,
    say: Callable[[str], None],
    stored: Callable[[Lane], Path],
) -> RowResult:
    """Measures `row` on every lane `turns` times; BenchmarkError if a daemon or a client fails.

    `stored` gives the data path that a lane's daemon starts on in rows that want a backlog on disk.
    """
    while True:
        try:
            return run_turns(row, lanes, turns, load, say, stored)
        except RanDry as error:
            load = replace(load, supply=load.supply * 2)
            say(f"{error}; the row starts again with {load.backlog}")


def run_turns(
    row: Row,
    lanes: Sequence[Lane],
    turns: int,
    load: Load,
    say: Callable[[str], None],
    stored: Callable[[Lane], Path],
) -> RowResult:
    flags = [] if row.mem_queue_size is None else [f"--mem-queue-size={row.mem_queue_size(load)}"]
    runs: dict[str, list[Measurement]] = {lane.name: [] for lane in lanes}
    for turn in range(1, turns + 1):
        for lane in lanes:
            try:
                with lane.running(*flags, stored=stored(lane) if row.stored else None) as daemon:
                    measurement = row.measure(daemon, load)
            except RanDry:
                raise
            except (AssertionError, BenchmarkError) as error:  # the former from tests/daemons.py
                raise BenchmarkError(f"{row.title}, {lane.name}: {error}") from error
            runs[lane.name].append(measurement)
            say(f"{row.title}, turn {turn}/{turns}, {lane.name}: {measurement.value:{row.unit.form}} {row.unit.name}")
    return RowResult(row, runs)
