"""Sets of sequence numbers that are mostly runs: sorted, disjoint spans `start <= number < end`.

What consumers finish is nearly a single run, so sixteen bytes a gap hold what millions of numbers would not.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from sys import byteorder

from gnsqd.errors import StorageError


class Spans:
    """A set of numbers from 0 to 2^63 - 1. Iterating gives its spans in order."""

    __slots__ = ("_ends", "_starts")

    def __init__(self) -> None:
        self._starts = array("q")
        self._ends = array("q")

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(zip(self._starts, self._ends, strict=True))

    def __len__(self) -> int:
        return len(self._starts)

    def __contains__(self, number: int) -> bool:
        position = bisect_right(self._starts, number)
        return position > 0 and number < self._ends[position - 1]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Spans) and (self._starts, self._ends) == (other._starts, other._ends)

    __hash__ = None  # type: ignore[assignment]

    @property
    def floor(self) -> int:
        """Every number below is in the set, this one is not."""
        return self._ends[0] if self._starts and not self._starts[0] else 0

    @property
    def ceiling(self) -> int:
        """No number from this one on is in the set."""
        return self._ends[-1] if self._ends else 0

    def count(self) -> int:
        """How many numbers there are."""
        return sum(self._ends) - sum(self._starts)

    def add(self, start: int, end: int) -> None:
        """Put a span in, whatever of it there is already. An empty one changes nothing."""
        starts, ends = self._starts, self._ends
        if start >= end:
            return
        if not ends or start > ends[-1]:
            starts.append(start)
            ends.append(end)
            return
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

    def update(self, other: "Spans") -> None:
        """Put in all that `other` has."""
        for start, end in other:
            self.add(start, end)

    @classmethod
    def of(cls, numbers: Iterable[int]) -> "Spans":
        """These numbers, in any order."""
        spans = cls()
        for number in sorted(numbers):
            spans.add(number, number + 1)
        return spans

    def copy(self) -> "Spans":
        copy = Spans()
        copy._starts, copy._ends = self._starts[:], self._ends[:]
        return copy

    def gaps(self, start: int, end: int) -> "Spans":
        """What is missing from `start` to `end`."""
        missing = Spans()
        position = bisect_right(self._ends, start)
        while start < end and position < len(self._starts):
            if start < self._starts[position]:
                missing.add(start, min(self._starts[position], end))
            start = self._ends[position]
            position += 1
        if start < end:
            missing.add(start, end)
        return missing

    def without(self, other: "Spans") -> "Spans":
        """What is in here and not in `other`."""
        rest = Spans()
        for start, end in self:
            for gap in other.gaps(start, end):
                rest.add(*gap)
        return rest

    def encode(self) -> bytes:
        """The bounds one after the other, big-endian int64."""
        bounds = array("q", bytes(16 * len(self._starts)))
        bounds[::2], bounds[1::2] = self._starts, self._ends
        if byteorder == "little":
            bounds.byteswap()
        return bounds.tobytes()

    @classmethod
    def decode(cls, data: bytes) -> "Spans":
        """The spans that `encode` gave, or any, in any order; StorageError if these are no bounds."""
        if len(data) % 16:
            raise StorageError("invalid spans")
        bounds = array("q", data)
        if byteorder == "little":
            bounds.byteswap()
        spans = cls()
        for start, end in zip(bounds[::2], bounds[1::2], strict=True):
            if not 0 <= start < end:
                raise StorageError("invalid span")
            spans.add(start, end)
        return spans


def encode_bounds(bounds: list[int]) -> bytes:
    """`Spans.decode` takes it: start, end, start, end, in any order."""
    data = array("q", bounds)
    if byteorder == "little":
        data.byteswap()
    return data.tobytes()
