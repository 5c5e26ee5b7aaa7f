"""Runs rows over lanes, interleaved: A B C, A B C, ... so that a slow moment of the machine meets every lane.

Each run has a fresh daemon. Ratios are taken pair by pair, within one turn, for the same reason.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.lanes import BenchmarkError, Lane
from benchmarks.rows import Load, Measurement, RanDry, Row

# Messages prepared per second of consuming; doubled for the whole row when some lane turns out to be faster.
SUPPLY = 1_000_000


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

    def rate(self, lane: str) -> Spread:
        return Spread.of([run.rate for run in self.runs[lane]])

    def cpu_per_million(self, lane: str) -> Spread:
        return Spread.of([run.cpu_per_million for run in self.runs[lane]])

    def ratio(self, lane: str) -> Spread:
        first = next(iter(self.runs.values()))
        return Spread.of([run.rate / other.rate for run, other in zip(self.runs[lane], first, strict=True)])


def run_row(row: Row, lanes: Sequence[Lane], turns: int, seconds: float, say: Callable[[str], None]) -> RowResult:
    """Measures `row` on every lane `turns` times; BenchmarkError if a daemon or a client fails."""
    load = Load(seconds, SUPPLY)
    while True:
        try:
            return run_turns(row, lanes, turns, load, say)
        except RanDry as error:
            load = Load(seconds, load.supply * 2)
            say(f"{error}; the row starts again with {load.backlog}")


def run_turns(row: Row, lanes: Sequence[Lane], turns: int, load: Load, say: Callable[[str], None]) -> RowResult:
    runs: dict[str, list[Measurement]] = {lane.name: [] for lane in lanes}
    for turn in range(1, turns + 1):
        for lane in lanes:
            try:
                with lane.running(f"--mem-queue-size={row.mem_queue_size(load)}") as daemon:
                    measurement = row.measure(daemon, load)
            except RanDry:
                raise
            except (AssertionError, BenchmarkError) as error:  # the former from tests/daemons.py
                raise BenchmarkError(f"{row.title}, {lane.name}: {error}") from error
            runs[lane.name].append(measurement)
            say(f"{row.title}, turn {turn}/{turns}, {lane.name}: {measurement.rate:,.0f} messages/s")
    return RowResult(row, runs)
