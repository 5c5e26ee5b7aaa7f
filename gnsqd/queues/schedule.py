"""The due times of deferred messages, each with the message itself, or with its number in the journal if memory has no
room for it. An entry takes about 20 bytes.

They are sorted by due time, in blocks, so that a change moves one block and no others.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain
from operator import itemgetter
from sys import maxsize
from typing import Any

MAX_BLOCK = 1024  # messages
NUMBERS = partial(array, "q")
_first = itemgetter(0)


class Schedule:
    """Numbers of messages by due time (any clock, ns), with `block=list` messages. Iterating yields (due, number), the
    earliest first."""

    __slots__ = ("_block", "_dues", "_numbers")

    def __init__(self, dues: Sequence[int] = (), numbers: Sequence[Any] = (), block: Any = NUMBERS) -> None:
        self._block = block
        order = sorted(range(len(dues)), key=dues.__getitem__)
        blocks = [order[start : start + MAX_BLOCK] for start in range(0, len(order), MAX_BLOCK)]
        self._dues = [array("q", [dues[position] for position in block]) for block in blocks]  # none is empty
        self._numbers = [self._block([numbers[position] for position in block]) for block in blocks]

    def __len__(self) -> int:
        return sum(map(len, self._dues))

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return self.from_due(0)

    @property
    def first(self) -> int:
        """The earliest due time; maxsize if there is none."""
        return self._dues[0][0] if self._dues else maxsize

    def push(self, due: int, number: Any) -> None:
        """Adds `number`, behind all that are due at the same time."""
        if not self._dues or (due >= self._dues[-1][-1] and len(self._dues[-1]) >= MAX_BLOCK):
            self._dues.append(array("q", (due,)))
            self._numbers.append(self._block((number,)))
            return
        block = max(bisect_right(self._dues, due, key=_first) - 1, 0)
        dues, numbers = self._dues[block], self._numbers[block]
        position = bisect_right(dues, due)
        dues.insert(position, due)
        numbers.insert(position, number)
        if len(dues) > MAX_BLOCK:
            half = MAX_BLOCK // 2
            for blocks, items in ((self._dues, dues), (self._numbers, numbers)):
                blocks.insert(block + 1, items[half:])
                del items[half:]

    def extend(self, dues: Sequence[int], numbers: Sequence[int]) -> None:
        """Adds each number, as `push`."""
        if len(dues) < MAX_BLOCK:
            for due, number in zip(dues, numbers, strict=True):
                self.push(due, number)
            return
        both = Schedule([*chain.from_iterable(self._dues), *dues], [*chain.from_iterable(self._numbers), *numbers])
        self._dues, self._numbers = both._dues, both._numbers

    def pop_due(self, now: int, limit: int) -> list[Any]:
        """Removes and returns numbers that are due at `now`, the earliest first, at most `limit`."""
        due: list[Any] = []
        while self._dues and self._dues[0][0] <= now and len(due) < limit:
            end = bisect_right(self._dues[0], now, 0, min(limit - len(due), len(self._dues[0])))
            due += self._numbers[0][:end]
            self._delete(0, 0, end)
        return due

    def find(self, number: Any, near: int, remove: bool = False) -> int | None:
        """Returns when `number` is due; None if it is not in the schedule. The search begins at the time `near`."""
        middle = max(bisect_right(self._dues, near, key=_first) - 1, 0)
        for block in sorted(range(len(self._dues)), key=lambda block: abs(block - middle)):
            if number in self._numbers[block]:
                position = self._numbers[block].index(number)
                due: int = self._dues[block][position]
                if remove:
                    self._delete(block, position, position + 1)
                return due
        return None

    def drop_before(self, end: int) -> None:
        """Removes the numbers less than `end`: a million takes less time than to sort what is left."""
        for block in reversed(range(len(self._numbers))):
            dues, numbers = self._dues[block], self._numbers[block]
            if max(numbers) < end:
                del self._dues[block], self._numbers[block]
            elif min(numbers) < end:
                kept = [position for position, number in enumerate(numbers) if number >= end]
                self._dues[block] = array("q", [dues[position] for position in kept])
                self._numbers[block] = self._block([numbers[position] for position in kept])

    def _delete(self, block: int, start: int, end: int) -> None:
        dues, numbers = self._dues[block], self._numbers[block]
        del dues[start:end]
        del numbers[start:end]
        if not dues:
            del self._dues[block], self._numbers[block]

    def count_before(self, end: int) -> int:
        """Returns how many are due earlier than `end`."""
        block = max(bisect_left(self._dues, end, key=_first) - 1, 0)
        return sum(map(len, self._dues[:block])) + (bisect_left(self._dues[block], end) if self._dues else 0)

    def from_due(self, begin: int) -> Iterator[tuple[int, Any]]:
        """Yields as iterating, from the due time `begin` on. The schedule must not change meanwhile."""
        first = max(bisect_left(self._dues, begin, key=_first) - 1, 0)
        for dues, numbers in zip(self._dues[first:], self._numbers[first:], strict=True):
            start = bisect_left(dues, begin)
            yield from zip(dues[start:], numbers[start:], strict=True)
