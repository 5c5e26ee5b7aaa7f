"""Many durations in little memory: counts in buckets that grow with what they hold, so that every quantile is exact to
some percent."""

import math
from bisect import bisect
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

_GROWTH = math.log(1.04)  # of buckets: a quantile is at most 2 % off


_BOUNDS = [digit * 10**power for power in range(3, 14) for digit in (1, 2, 5)]  # ns; the last ones are hours


class Bar(NamedTuple):
    """How many durations there are between two, in seconds."""

    least: float
    most: float
    number: int


class Histogram:
    """Owns the counts. Durations are in nanoseconds; those below 1 count as 1."""

    def __init__(self) -> None:
        self.count = 0
        self.sum = 0
        self.largest = 0
        self._buckets: Counter[int] = Counter()

    def add(self, duration: int, count: int = 1) -> None:
        duration = max(1, duration)
        self._buckets[int(math.log(duration) / _GROWTH)] += count
        self.count += count
        self.sum += duration * count
        if duration > self.largest:
            self.largest = duration

    @property
    def mean(self) -> float:
        """Seconds; 0 if there are none."""
        return self.sum / self.count / 1e9 if self.count else 0.0

    def quantile(self, part: float) -> float:
        """Seconds that the part `part` of the durations does not exceed; 0 if there are none."""
        wanted = max(1, math.ceil(part * self.count))
        seen = 0
        for bucket in sorted(self._buckets):
            seen += self._buckets[bucket]
            if seen >= wanted:
                return min(self.largest, math.exp((bucket + 0.5) * _GROWTH)) / 1e9
        return 0.0

    def bars(self) -> Iterator[Bar]:
        """The durations between 1, 2, 5, 10 and so on microseconds, without gaps from the smallest to the largest."""
        found: Counter[int] = Counter()
        for bucket, count in self._buckets.items():
            found[bisect(_BOUNDS, math.exp((bucket + 0.5) * _GROWTH))] += count
        for place in range(min(found), max(found) + 1) if found else ():
            least, most = (_BOUNDS[place - 1] if place else 0), _BOUNDS[min(place, len(_BOUNDS) - 1)]
            yield Bar(least / 1e9, most / 1e9, found[place])
