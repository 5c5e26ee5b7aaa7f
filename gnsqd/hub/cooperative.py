"""Yields to other greenlets during long work, so that publishers are not delayed."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import TypeVar

from gevent import Greenlet, sleep, spawn

from gnsqd.hub.doorbell import Doorbell
from gnsqd.shared.errors import NSQError

TURN_SECONDS = 0.0005
CLIENT_TURN_SECONDS = 0.004  # a turn of the commands, or requests, of one client that are there together
BACKGROUND_SECONDS = 0.003  # a turn of what has to keep up with publishers
FREED_AT_ONCE = 64  # objects
_ONCE_AROUND = 1e-6

Line = list[Doorbell]  # of greenlets, of which the first has its turn
_publishers: Line = []

T = TypeVar("T")
Report = Callable[[Exception | None], None]  # called at the end of a commit, with its error or None
Spawn = Callable[[str, Callable[[], None]], "Greenlet[..., None]"]  # starts a greenlet by its name


class WouldYield(NSQError):
    """The command or request cannot be executed without a yield, and nothing of it has been."""


def yield_turn() -> None:
    """Lets every other greenlet run, also greenlets that wait for a socket."""
    sleep(_ONCE_AROUND)  # after sleep(0) gevent polls sockets only once in about fifty calls


def stand_in_line(line: Line = _publishers) -> None:
    """Lets others run, and returns for one greenlet of the line after the other: a slice of each large body, or range,
    would take too long for others where there are many."""
    with turn_in(line):
        yield_turn()


@contextmanager
def turn_in(line: Line, ahead: bool = False) -> Iterator[None]:
    """Waits until this greenlet is first in the line, and removes it at the end. Yields unless the line is empty. A
    greenlet that has just had a turn may take the next one, `ahead` of all who wait, if it has not yielded since."""
    # gevent's semaphores do the same, but load `logging`: a start would take a twentieth longer.
    bell = Doorbell()
    line.insert(0 if ahead else len(line), bell)
    try:
        while line[0] is not bell:  # perhaps again: who rang may have gone ahead
            bell.wait()
        yield
    finally:
        line.remove(bell)
        if line:
            line[0].ring()


class Turns:
    """Yields, by `wait` if it is given, whenever its owner has worked for `seconds`, by default TURN_SECONDS."""

    def __init__(self, seconds: float = 0.0, wait: Callable[[], None] | None = None) -> None:
        self._seconds = seconds or TURN_SECONDS
        self._wait = wait
        self._end = perf_counter() + self._seconds

    def give(self) -> None:
        """Yields if the time is over."""
        if perf_counter() >= self._end:
            (self._wait or yield_turn)()
            self._end = perf_counter() + self._seconds

    def over(self, items: Iterable[T]) -> Iterator[T]:
        """Returns the items, yielding in between: their source must not be changed meanwhile."""
        for item in items:
            yield item
            self.give()


def free(pop: Callable[[], object], count: int) -> None:
    """Frees `count` objects by their container's `pop`, many in a greenlet: 1 GB takes 100 ms. Never yields."""
    if count > FREED_AT_ONCE:
        spawn(_free, pop, count).name = "free"


def _free(pop: Callable[[], object], count: int) -> None:
    turns = Turns()
    for _ in range(count):
        pop()
        turns.give()
