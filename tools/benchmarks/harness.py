"""Runs rows over lanes, interleaved: A B C, A B C, ... so that a slow moment of the machine affects every lane.

Each run has a fresh daemon. Ratios are taken pair by pair, within one turn, for the same reason.
"""

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from benchmarks.lanes import BenchmarkError, Lane
from benchmarks.row import BenchmarkLoad, BenchmarkRow, Measurement, ratio


@dataclass(frozen=True)
class Spread:
    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float | None]) -> "Spread | None":
        """Returns None if one is not known."""
        known = [value for value in values if value is not None]
        return cls(statistics.median(known), min(known), max(known)) if len(known) == len(values) else None


@dataclass(frozen=True)
class RowResult:
    """The runs of a row: lane name to measurements in the order of the turns. The first lane is the base."""

    row: BenchmarkRow
    runs: dict[str, list[Measurement]]

    def figure(self, lane: str) -> Spread:
        spread = Spread.of([run.value for run in self.runs[lane]])
        assert spread is not None
        return spread

    def per_million(self, lane: str) -> tuple[Spread | None, Spread | None]:
        """Returns the CPU seconds of the daemon and of the clients; None where no messages are moved, or it is not
        known."""
        runs = self.runs[lane]
        return Spread.of([run.cpu_per_million for run in runs]), Spread.of([run.load_per_million for run in runs])

    def _pairs(self, lane: str) -> Iterator[tuple[Measurement, Measurement]]:
        """Yields the runs of each turn: the lane's and the base's."""
        return zip(self.runs[lane], next(iter(self.runs.values())), strict=True)

    def ratio(self, lane: str) -> Spread | None:
        return Spread.of([ratio(run.value, base.value) for run, base in self._pairs(lane)])

    def cpu_ratio(self, lane: str) -> Spread | None:
        """Compares the CPU time per message; returns None where no messages are moved."""
        pairs = [(run.cpu_per_million, base.cpu_per_million) for run, base in self._pairs(lane)]
        return Spread.of([cpu / base if cpu is not None and base else None for cpu, base in pairs])

    def split(self) -> "list[RowResult]":
        """Returns one result for each part of the row, or itself where it has none."""
        return [self._part(part) for part in self.row.parts] or [self]

    def _part(self, part: str) -> "RowResult":
        row = replace(
            self.row,
            name=f"{self.row.name}-{part.replace(' ', '-')}",
            title=f"{self.row.title}, {part}",
            unit=self.row.parts[part],
            parts={},
        )
        runs = {
            lane: [replace(run, value=run.parts[part], parts={}) for run in runs] for lane, runs in self.runs.items()
        }
        return RowResult(row, runs)


@dataclass
class Harness:
    """Measures rows; `report` reports progress."""

    lanes: Sequence[Lane]
    turns: int
    load: BenchmarkLoad
    report: Callable[[str], None]

    def run(self, row: BenchmarkRow) -> list[RowResult]:
        """Measures every lane `turns` times; raises BenchmarkError if a daemon or a client fails."""
        compared = self._comparisons(row)
        return [result for part, lanes in compared for result in self._turns(part, lanes).split()]

    def _comparisons(self, row: BenchmarkRow) -> list[tuple[BenchmarkRow, Sequence[Lane]]]:
        """Returns the row with its lanes, or a row for each of ours, which is compared with itself."""
        if not row.variants:
            return [(row, self.lanes)]
        return [
            (
                replace(row, name=f"{row.name}-{lane.name.split()[-1]}"),
                [lane.with_flags(*variant) for variant in row.variants],
            )
            for lane in self.lanes
            if lane.is_ours
        ]

    def _turns(self, row: BenchmarkRow, lanes: Sequence[Lane]) -> RowResult:
        runs: dict[str, list[Measurement]] = {lane.name: [] for lane in lanes}
        for turn in range(1, self.turns + 1):
            for lane in lanes:
                runs[lane.name].append(self._measure(row, lane, turn))
        return RowResult(row, runs)

    def _measure(self, row: BenchmarkRow, lane: Lane, turn: int) -> Measurement:
        try:
            with lane.running(*row.flags_with(self.load), prepare=row.prepare) as daemon:
                measurement = row.measure(daemon, self.load)
        except (AssertionError, BenchmarkError) as error:  # the former from the test kit
            raise BenchmarkError(f"{row.title}, {lane.name}: {error}") from error
        units = row.parts or {"": row.unit}
        figures = measurement.parts or {"": measurement.value}
        shown = ", ".join(f"{part} {figures[part]:{unit.form}} {unit.name}".lstrip() for part, unit in units.items())
        self.report(f"{row.title}, turn {turn}/{self.turns}, {lane.name}: {shown}")
        return measurement
