"""Sets of sequence numbers that are mostly runs: sorted, disjoint spans `start <= number < end`.

What consumers finish is nearly a single run, so sixteen bytes a gap hold what millions of numbers would not. Scattered
numbers can make a million spans: these are kept in blocks, so that a change moves those of one block and no others.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import islice
from sys import byteorder, maxsize

from gnsqd.shared.errors import StorageError

MAX_BLOCK = 1024  # spans


class Spans:
    """Holds a set of numbers from 0 to 2^63 - 1. Iterating gives its spans in order."""

    __slots__ = ("_ends", "_firsts", "_starts")

    def __init__(self) -> None:
        self._starts: list[array[int]] = []  # by block; none is empty
        self._ends: list[array[int]] = []
        self._firsts = array("q")  # the first start of each block

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return self._behind(0)

    def __len__(self) -> int:
        return sum(map(len, self._starts))

    def __bool__(self) -> bool:
        return bool(self._starts)

    def __contains__(self, number: int) -> bool:
        block = bisect_right(self._firsts, number) - 1
        return block >= 0 and number < self._ends[block][bisect_right(self._starts[block], number) - 1]

    def missing(self, number: int) -> int:
        """Returns the first number, from this one on, that is not in the set."""
        block = bisect_right(self._firsts, number) - 1
        return number if block < 0 else max(self._ends[block][bisect_right(self._starts[block], number) - 1], number)

    @property
    def floor(self) -> int:
        """Every number below is in the set, this one is not."""
        return self._ends[0][0] if self._firsts and not self._firsts[0] else 0

    @property
    def begin(self) -> int:
        """No number before this one is in the set."""
        return self._firsts[0] if self._firsts else 0

    @property
    def ceiling(self) -> int:
        """No number from this one on is in the set."""
        return self._ends[-1][-1] if self._ends else 0

    def count(self) -> int:
        return sum(map(sum, self._ends)) - sum(map(sum, self._starts))

    def add(self, start: int, end: int) -> None:
        """Puts a span in, whatever of it there is already. An empty one changes nothing."""
        if start >= end:
            return
        if self._ends and self._ends[-1][-1] == start:  # messages finished in order need no search
            self._ends[-1][-1] = end
            return
        block = bisect_right(self._firsts, end) - 1  # the last that begins before the span ends, or where it does
        if block < 0:
            if not self._firsts:
                self._starts.append(array("q"))
                self._ends.append(array("q"))
                self._firsts.append(start)
            block = 0
        elif block and start <= self._ends[block - 1][-1]:
            block = self._join(block, start, end)
        starts, ends = self._starts[block], self._ends[block]
        first = bisect_left(ends, start)  # the first that ends here or later,
        last = bisect_right(starts, end)  # and the first that begins later than this one ends
        if last - first == 1:
            if start < starts[first]:
                starts[first] = start
            if end > ends[first]:
                ends[first] = end
        elif first == last:
            starts.insert(first, start)
            ends.insert(first, end)
        else:
            starts[first] = min(start, starts[first])
            ends[first] = max(end, ends[last - 1])
            del starts[first + 1 : last]
            del ends[first + 1 : last]
        self._firsts[block] = starts[0]
        if len(starts) > MAX_BLOCK:
            self._split(block)

    def _join(self, block: int, start: int, end: int) -> int:
        """Moves the spans of `block` that touch this one to the end of the first such block, which it returns, and
        drops the blocks between."""
        begin = max(bisect_right(self._firsts, start) - 1, 0)
        if self._ends[begin][-1] < start:
            begin += 1
        starts, ends = self._starts[block], self._ends[block]
        stop = bisect_right(starts, end)
        # Of spans that are touched the bounds are enough.
        self._ends[begin][-1] = ends[stop - 1]
        del starts[:stop]
        del ends[:stop]
        if starts:
            self._firsts[block] = starts[0]
        else:
            block += 1
        del self._starts[begin + 1 : block]
        del self._ends[begin + 1 : block]
        del self._firsts[begin + 1 : block]
        return begin

    def _split(self, block: int) -> None:
        starts, ends = self._starts[block], self._ends[block]
        half = len(starts) // 2
        self._starts.insert(block + 1, starts[half:])
        self._ends.insert(block + 1, ends[half:])
        self._firsts.insert(block + 1, starts[half])
        del starts[half:]
        del ends[half:]

    def remove(self, start: int, end: int) -> None:
        """Takes a span out, as far as it is there."""
        block = max(bisect_right(self._firsts, start) - 1, 0)
        while block < len(self._firsts) and self._firsts[block] < end:
            starts, ends = self._starts[block], self._ends[block]
            first = bisect_right(ends, start)  # the first that ends later,
            last = bisect_left(starts, end)  # and the first that begins at the end or later
            if first < last:
                before = (starts[first], start) if starts[first] < start else ()
                behind = (end, ends[last - 1]) if ends[last - 1] > end else ()
                starts[first:last] = array("q", before[:1] + behind[:1])
                ends[first:last] = array("q", before[1:] + behind[1:])
            if not starts:
                del self._starts[block], self._ends[block], self._firsts[block]
                continue
            self._firsts[block] = starts[0]
            if len(starts) > MAX_BLOCK:
                self._split(block)
                block += 1
            block += 1

    def between(self, start: int, end: int) -> "Spans":
        """Returns what is in here of a span."""
        first, last = max(bisect_right(self._firsts, start) - 1, 0), bisect_left(self._firsts, end)
        part = Spans()
        part._starts = [starts[:] for starts in self._starts[first:last]]
        part._ends = [ends[:] for ends in self._ends[first:last]]
        part._firsts = self._firsts[first:last]
        part.remove(0, start)
        part.remove(end, maxsize)
        return part

    def update(self, other: "Spans") -> None:
        """Puts in all that `other` has."""
        for start, end in other:
            self.add(start, end)

    @classmethod
    def of(cls, numbers: Iterable[int]) -> "Spans":
        """Returns the set of these numbers, given in any order."""
        spans = cls()
        start = end = 0
        for number in sorted(numbers):
            if number > end:
                spans.add(start, end)
                start = number
            end = number + 1
        spans.add(start, end)
        return spans

    def copy(self) -> "Spans":
        return self.between(0, maxsize)

    def _behind(self, start: int) -> Iterator[tuple[int, int]]:
        """Iterates over the spans that end behind `start`."""
        for block in range(max(bisect_right(self._firsts, start) - 1, 0), len(self._firsts)):
            position = bisect_right(self._ends[block], start)
            yield from zip(self._starts[block][position:], self._ends[block][position:], strict=True)

    def stretch(self, start: int, limit: int) -> int:
        """Returns where to stop, beyond `start`, so that at most `limit` spans, or one, reach from `start` to there."""
        return next(islice(self._behind(start), limit, None), (maxsize,))[0]

    def gaps(self, start: int, end: int) -> "Spans":
        """Returns what is missing from `start` to `end`."""
        missing = Spans()
        for begin, behind in self._behind(start):
            if begin >= end:
                break
            missing.add(start, begin)
            start = behind
        missing.add(start, end)
        return missing

    def without(self, other: "Spans") -> "Spans":
        """Returns what is in here and not in `other`."""
        if len(other) < len(self):
            rest = self.copy()
            for start, end in other:
                rest.remove(start, end)
            return rest
        rest = Spans()
        for start, end in self:
            for gap in other.gaps(start, end):
                rest.add(*gap)
        return rest

    def encode(self) -> bytes:
        """Returns the bounds one after the other, big-endian int64."""
        bounds = array("q", bytes(16 * len(self)))
        bounds[::2], bounds[1::2] = (array("q", b"".join(blocks)) for blocks in (self._starts, self._ends))
        return encode_bounds(bounds)

    @classmethod
    def decode(cls, data: bytes) -> "Spans":
        """Returns the spans that `encode` gave, or any, in any order; raises StorageError if these are not bounds."""
        if len(data) % 16:
            raise StorageError("invalid spans")
        bounds = decode_bounds(data)
        spans = cls()
        for start, end in zip(bounds[::2], bounds[1::2], strict=True):
            if not 0 <= start <= end:  # an older gnsqd has written empty ones
                raise StorageError("invalid span")
            spans.add(start, end)
        return spans


def encode_bounds(bounds: Iterable[int]) -> bytes:
    """Returns what `Spans.decode` takes: start, end, start, end, in any order."""
    data = array("q", bounds)
    if byteorder == "little":
        data.byteswap()
    return data.tobytes()


def decode_bounds(data: bytes | memoryview) -> "array[int]":
    """Returns whole int64 of big-endian bytes."""
    bounds = array("q")
    bounds.frombytes(data)
    if byteorder == "little":
        bounds.byteswap()
    return bounds
