"""Runs rows over lanes, interleaved: A B C, A B C, ... so that a slow moment of the machine affects every lane.

Each run has a fresh daemon. Ratios are taken pair by pair, within one turn, for the same reason. In the first turn the
load also runs with the sink, a daemon that does no work: the result is the most that this load can show.
"""

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from benchmarks.lanes import BenchmarkError, Lane
from benchmarks.row import RATE, Load, Measurement, Row

# A figure this close to what the load reaches with the sink depends on the load as much as on the daemon.
NEAR_LIMIT = 0.8


@dataclass(frozen=True)
class Spread:
    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float | None]) -> "Spread | None":
        """None if one is not known."""
        known = [value for value in values if value is not None]
        return cls(statistics.median(known), min(known), max(known)) if len(known) == len(values) else None


@dataclass(frozen=True)
class RowResult:
    """The runs of a row: lane name to measurements in the order of the turns. The first lane is the base; `limit` is
    the sink's run, where there was one."""

    row: Row
    runs: dict[str, list[Measurement]]
    limit: Measurement | None = None

    def figure(self, lane: str) -> Spread:
        """In the row's unit."""
        spread = Spread.of([run.value for run in self.runs[lane]])
        assert spread is not None
        return spread

    def per_million(self, lane: str) -> tuple[Spread | None, Spread | None]:
        """CPU seconds of the daemon and of the clients; None where no messages are moved, or it is not known."""
        runs = self.runs[lane]
        return Spread.of([run.cpu_per_million for run in runs]), Spread.of([run.load_per_million for run in runs])

    def _pairs(self, lane: str) -> Iterator[tuple[Measurement, Measurement]]:
        """The runs of each turn: the lane's and the base's."""
        return zip(self.runs[lane], next(iter(self.runs.values())), strict=True)

    def ratio(self, lane: str) -> Spread | None:
        return Spread.of([self.row.unit.ratio(run.value, base.value) for run, base in self._pairs(lane)])

    def cpu_ratio(self, lane: str) -> Spread | None:
        """Of the CPU time per message; None where no messages are moved."""
        pairs = [(run.cpu_per_million, base.cpu_per_million) for run, base in self._pairs(lane)]
        return Spread.of([cpu / base if cpu is not None and base else None for cpu, base in pairs])

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

        row = replace(
            self.row,
            name=f"{self.row.name}-{part.replace(' ', '-')}",
            title=f"{self.row.title}, {part}",
            unit=self.row.parts[part],
            parts={},
            limits={"": self.row.limits[part]} if part in self.row.limits else {},
        )
        runs = {lane: [pick(run) for run in runs] for lane, runs in self.runs.items()}
        return RowResult(row, runs, self.limit and pick(self.limit))

    def beyond_limits(self) -> Iterator[str]:
        """A line for each lane whose figure is more than gnsqd promises."""
        for limit in self.row.limits.values():
            for lane in self.runs:
                if (median := self.figure(lane).median) > limit:
                    yield f"{self.row.title}, {lane}: {median:{self.row.unit.form}} is more than {limit:g}"


@dataclass
class Harness:
    """Measures rows; `report` reports progress."""

    lanes: Sequence[Lane]
    sink: Lane
    floor: Lane | None
    turns: int
    load: Load
    report: Callable[[str], None]

    def run(self, row: Row) -> list[RowResult]:
        """Every lane `turns` times, and once the sink if the row requires that; BenchmarkError if a daemon or a client
        fails."""
        compared = self._comparisons(row)
        return [result for part, lanes in compared for result in self._turns(part, lanes).split()]

    def _comparisons(self, row: Row) -> list[tuple[Row, Sequence[Lane]]]:
        """The row with its lanes, or a row for each of ours, which is compared with itself."""
        lanes = [*self.lanes, self.floor] if self.floor and row.floor else self.lanes
        if not row.variants:
            return [(row, lanes)]
        return [
            (
                replace(row, name=f"{row.name}-{lane.name.split()[-1]}"),
                [lane.with_flags(*variant) for variant in row.variants],
            )
            for lane in lanes
            if lane.is_ours or lane is self.floor
        ]

    def _turns(self, row: Row, lanes: Sequence[Lane]) -> RowResult:
        runs: dict[str, list[Measurement]] = {lane.name: [] for lane in lanes}
        limit = None
        for turn in range(1, self.turns + 1):
            for lane in lanes:
                runs[lane.name].append(self._measure(row, lane, turn))
            if turn == 1 and row.sink:
                limit = self._measure(row, self.sink, turn)
        return RowResult(row, runs, limit)

    def _measure(self, row: Row, lane: Lane, turn: int) -> Measurement:
        try:
            with lane.running(*row.flags_of(lane, self.load), prepare=row.prepare) as daemon:
                measurement = row.measure(daemon, self.load)
        except (AssertionError, BenchmarkError) as error:  # the former from the test kit
            raise BenchmarkError(f"{row.title}, {lane.name}: {error}") from error
        units = row.parts or {"": row.unit}
        figures = measurement.parts or {"": measurement.value}
        shown = ", ".join(f"{part} {figures[part]:{unit.form}} {unit.name}".lstrip() for part, unit in units.items())
        self.report(f"{row.title}, turn {turn}/{self.turns}, {lane.name}: {shown}")
        return measurement
