"""Turns for everybody else, for those who look at every topic, channel or client there is.

With thousands of them that takes long enough for publishers to notice, so the work is cut by the clock.
"""

from collections.abc import Iterable, Iterator
from time import perf_counter
from typing import TypeVar

from gnsqd.hub.doorbell import give_way

TURN_SECONDS = 0.0005

T = TypeVar("T")


class Turns:
    """Lets everybody else have a turn whenever its owner has been at work for TURN_SECONDS."""

    def __init__(self) -> None:
        self._end = perf_counter() + TURN_SECONDS

    def over(self, items: Iterable[T]) -> Iterator[T]:
        """The items, with turns in between: nobody else may change what they come from."""
        for item in items:
            yield item
            if perf_counter() >= self._end:
                give_way()
                self._end = perf_counter() + TURN_SECONDS
