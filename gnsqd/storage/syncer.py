"""Keeps fsync off the hub, which it would stop: in threads of storage's own, and the timer of `--sync-timeout`.

One Syncer serves all queues of a daemon. A queue with unsynced operations is noted here and forgotten once it is
synced, so idle queues cost nothing.
"""

from collections.abc import Callable
from time import monotonic_ns
from typing import Protocol, TypeVar

from gevent import Greenlet
from gevent.event import Event
from gevent.lock import Semaphore

from gnsqd.hub.threads import Threads

THREADS = 4

T = TypeVar("T")


class Syncable(Protocol):
    """A queue that can be synced; `sync_timeout` in ns, the same for all queues of a Syncer."""

    sync_timeout: int

    def start_sync(self) -> "Greenlet[[], bool]":
        """A greenlet that makes durable what the queue holds; it ends with whether that worked. Never yields."""


class Syncer:
    """Owns the threads, and the times at which queues are to be synced."""

    def __init__(self) -> None:
        self._threads = Threads(THREADS)
        self._deadlines: dict[Syncable, int] = {}  # in order, because all have the same timeout
        self._bell = Event()
        # One thread is left to queues that wait for their own sync.
        self._slots = Semaphore(THREADS - 1)
        self._stopped = False

    def run(self, function: Callable[..., T], *args: object) -> T:
        """What `function` returns or raises, called in a thread. Yields."""
        return self._threads.run(function, *args)

    def note(self, queue: Syncable) -> None:
        """`queue` has unsynced operations: sync it within its `sync_timeout`. Never yields."""
        if queue not in self._deadlines:
            if not self._deadlines:
                self._bell.set()
            self._deadlines[queue] = monotonic_ns() + queue.sync_timeout

    def forget(self, queue: Syncable) -> None:
        """`queue` is synced, or gone. Never yields."""
        self._deadlines.pop(queue, None)

    def syncLoop(self) -> None:
        """Sync every noted queue at its time, until `stop`."""
        while not self._stopped:
            self._bell.clear()
            self._bell.wait(self._sync_due())

    def _sync_due(self) -> float | None:
        """Start what is due; seconds until the next is, None if there is no next."""
        while self._deadlines:
            queue, deadline = next(iter(self._deadlines.items()))
            if (left := deadline - monotonic_ns()) > 0:
                return left / 1e9
            self._slots.acquire()
            self.forget(queue)
            queue.start_sync().rawlink(self._free_slot)
        return None

    def _free_slot(self, _: "Greenlet[[], bool]") -> None:
        self._slots.release()

    def stop(self) -> None:
        """End syncLoop, wait for what is under way and end the threads. Yields."""
        self._stopped = True
        self._bell.set()
        self._threads.close()
