"""End-to-end processing latency: the time from publishing to FIN, as quantiles of a window of time.

The figures come from a DDSketch (Masson, Rim, Lee: "DDSketch: A Fast and Fully-Mergeable Quantile Sketch with
Relative-Error Guarantees", PVLDB 12, 2019): samples are counted in buckets whose bounds grow by the factor
(1 + e) / (1 - e), e = 0.01, and a bucket stands for the value in it that is no more than e away from both bounds.

- Error: the answer for quantile q of n samples is within 1 % (and half a nanosecond, as it is an integer) of the
  sample at rank ceil(q n), counted from 1 in ascending order. The largest sample is kept exactly.
- Memory: only buckets that hold samples take any. There are about 115 between t and 10 t, and 2,185 for all of int64.
- A merge has the same bound, however the samples were spread over what is merged: a topic's figure is as good as its
  channels'. The targeted quantiles of the real nsqd, within 1 % in rank, have no bound there.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate
from math import ceil, exp, log
from time import monotonic_ns
from typing import NamedTuple

ERROR = 0.01

_LOG_GROWTH = log((1 + ERROR) / (1 - ERROR))
_BUCKETS_PER_E = 1 / _LOG_GROWTH
_ZERO = -1  # the bucket of samples that are not positive


class LatencyFigures(NamedTuple):
    """`count` samples in the window; `percentiles` are (quantile, ns) in the order of the option, 0 ns without any."""

    count: int  # type: ignore[assignment]  # not the method of tuples
    percentiles: tuple[tuple[float, int], ...]


class Sketch:
    """Counts of samples (ns) by bucket. Negative samples, which a clock set back makes, count as 0."""

    __slots__ = ("_buckets", "_largest", "count")

    def __init__(self) -> None:
        self.count = 0
        self._buckets: dict[int, int] = {}
        self._largest = 0

    def insert(self, value: int) -> None:
        bucket = int(log(value) * _BUCKETS_PER_E) if value > 0 else _ZERO
        self._buckets[bucket] = self._buckets.get(bucket, 0) + 1
        if value > self._largest:
            self._largest = value
        self.count += 1

    def merge(self, other: "Sketch") -> None:
        """Adds the samples of `other`."""
        buckets = self._buckets
        for bucket, count in other._buckets.items():
            buckets[bucket] = buckets.get(bucket, 0) + count
        self._largest = max(self._largest, other._largest)
        self.count += other.count

    def query(self, quantiles: Sequence[float]) -> list[int]:
        """Returns the value at each quantile, 0 < q <= 1; 0 without samples."""
        if not self.count:
            return [0] * len(quantiles)
        buckets = sorted(self._buckets)
        ranks = list(accumulate(self._buckets[bucket] for bucket in buckets))
        values = []
        for quantile in quantiles:
            rank = ceil(quantile * self.count)
            bucket = buckets[bisect_left(ranks, rank)]
            value = 0 if bucket == _ZERO else round(exp(bucket * _LOG_GROWTH) * (1 + ERROR))
            values.append(self._largest if rank == self.count else min(value, self._largest))
        return values


class Quantile:
    """The samples of the last `window_time` ns (2 or more), or at least of the last half of it, in two sketches: when
    half the time has passed, the older one is dropped and a new one begins (NSQD-COMPAT section 3)."""

    def __init__(self, window_time: int, percentiles: Iterable[float]) -> None:
        self._percentiles = tuple(percentiles)
        self._half = window_time // 2
        self._current_since = monotonic_ns()
        self._current = Sketch()
        self._previous = Sketch()

    def insert(self, value: int) -> None:
        """Adds a sample, in ns."""
        self._move_window()
        self._current.insert(value)

    def merged(self, streams: "Iterable[Quantile]") -> LatencyFigures:
        """Returns the figures of all `streams` together, at the percentiles of this one."""
        samples = Sketch()
        for stream in streams:
            stream._move_window()
            samples.merge(stream._previous)
            samples.merge(stream._current)
        values = samples.query(self._percentiles)
        return LatencyFigures(samples.count, tuple(zip(self._percentiles, values, strict=True)))

    def _move_window(self) -> None:
        halves = (monotonic_ns() - self._current_since) // self._half
        if halves:
            self._previous = self._current if halves == 1 else Sketch()
            self._current = Sketch()
            self._current_since += halves * self._half
