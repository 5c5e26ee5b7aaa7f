"""Runs rows over lanes, interleaved: A B C, A B C, ... so that a slow moment of the machine meets every lane.

Each run has a fresh daemon. Ratios are taken pair by pair, within one turn, for the same reason. In the first turn the
load also meets the sink, a daemon that does no work: what comes out is the most that this load can show.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.lanes import BenchmarkError, Lane
from benchmarks.row import RATE, Load, Measurement, RanDry, Row

# A figure this close to what the load reaches with the sink depends on the load as much as on the daemon.
NEAR_LIMIT = 0.8


@dataclass(frozen=True)
class Spread:
    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        return cls(statistics.median(values), min(values), max(values))

    @classmethod
    def of_known(cls, values: Sequence[float | None]) -> "Spread | None":
        """None if one is not known."""
        known = [value for value in values if value is not None]
        return cls.of(known) if len(known) == len(values) else None


@dataclass(frozen=True)
class RowResult:
    """The runs of a row: lane name to measurements in the order of the turns. The first lane is the base; `limit` is
    the sink's run, where there was one."""

    row: Row
    runs: dict[str, list[Measurement]]
    limit: Measurement | None = None

    def figure(self, lane: str) -> Spread:
        """In the row's unit."""
        return Spread.of([run.value for run in self.runs[lane]])

    def cpu_per_million(self, lane: str) -> Spread | None:
        """Of the daemon; None where no messages are moved."""
        return Spread.of_known([run.cpu_per_million for run in self.runs[lane]])

    def load_per_million(self, lane: str) -> Spread | None:
        """Of the clients; None where no messages are moved, or the clients' time is not known."""
        return Spread.of_known([run.load_per_million for run in self.runs[lane]])

    def ratio(self, lane: str) -> Spread:
        first = next(iter(self.runs.values()))
        pairs = zip(self.runs[lane], first, strict=True)
        return Spread.of([self.row.unit.ratio(run.value, other.value) for run, other in pairs])

    def cpu_ratio(self, lane: str) -> Spread | None:
        """Of the CPU time per message; None where no messages are moved."""
        first = next(iter(self.runs.values()))
        pairs = (
            (run.cpu_per_million, other.cpu_per_million) for run, other in zip(self.runs[lane], first, strict=True)
        )
        return Spread.of_known([cpu / base if cpu is not None and base else None for cpu, base in pairs])

    def near_limit(self, lane: str) -> bool:
        """Whether the load may be what kept this lane from being faster."""
        if self.limit is None or self.row.unit is not RATE:
            return False
        return self.figure(lane).median > NEAR_LIMIT * self.limit.value

    def split(self) -> "list[RowResult]":
        """One result for each part of the row; itself where it has none."""
        return [self._part(part) for part in self.row.parts] or [self]

    def _part(self, part: str) -> "RowResult":
        def pick(run: Measurement) -> Measurement:
            return replace(run, value=run.parts[part], parts={})

        row = replace(self.row, name=f"{self.row.name}-{part}", title=f"{self.row.title}, {part}", parts=())
        runs = {lane: [pick(run) for run in runs] for lane, runs in self.runs.items()}
        return RowResult(row, runs, self.limit and pick(self.limit))


def run_row(
    row: Row,
    lanes: Sequence[Lane],
    turns: int,
    load: Load,
    say: Callable[[str], None],
    stored: Callable[[Lane], Path],
    sink: Lane | None = None,
) -> list[RowResult]:
    """Measures `row` on every lane `turns` times, and once on the sink if the row requires that; BenchmarkError if a
    daemon or a client fails.

    `stored` gives the data path that a lane's daemon starts on in rows that want a backlog on disk.
    """
    while True:
        try:
            return [
                result
                for part, compared in comparisons(row, lanes)
                for result in run_turns(part, compared, turns, load, say, stored, sink).split()
            ]
        except RanDry as error:
            load = replace(load, supply=load.supply * 2)
            say(f"{error}; the row starts again with {load.backlog}")


def comparisons(row: Row, lanes: Sequence[Lane]) -> list[tuple[Row, Sequence[Lane]]]:
    """The row with its lanes, or a row for each gnsqd, which is compared with itself."""
    if not row.variants:
        return [(row, lanes)]
    return [
        (
            replace(row, name=f"{row.name}-{lane.name.split()[-1]}"),
            [lane.with_flags(*variant) for variant in row.variants],
        )
        for lane in lanes
        if lane.is_ours
    ]


def run_turns(
    row: Row,
    lanes: Sequence[Lane],
    turns: int,
    load: Load,
    say: Callable[[str], None],
    stored: Callable[[Lane], Path],
    sink: Lane | None,
) -> RowResult:
    def measure(lane: Lane, turn: int) -> Measurement:
        try:
            with lane.running(*row.flags(load), stored=stored(lane) if row.stored else None) as daemon:
                measurement = row.measure(daemon, load)
        except RanDry:
            raise
        except (AssertionError, BenchmarkError) as error:  # the former from tests/kit/daemons.py
            raise BenchmarkError(f"{row.title}, {lane.name}: {error}") from error
        say(f"{row.title}, turn {turn}/{turns}, {lane.name}: {measurement.value:{row.unit.form}} {row.unit.name}")
        return measurement

    runs: dict[str, list[Measurement]] = {lane.name: [] for lane in lanes}
    limit = None
    for turn in range(1, turns + 1):
        for lane in lanes:
            runs[lane.name].append(measure(lane, turn))
        if turn == 1 and row.sink and sink is not None:
            limit = measure(sink, turn)
    return RowResult(row, runs, limit)
