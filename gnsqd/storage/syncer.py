"""Keeps fsync off the hub, which it would stop: threads of storage's own, one fsync for many that wait for it, and the
timer of `--sync-timeout`.

One Syncer serves all queues of a daemon. A queue with unsynced operations is noted here and forgotten once it is
synced, so idle queues cost nothing.
"""

from collections.abc import Callable
from time import monotonic_ns, perf_counter
from typing import Protocol, TypeVar

from gevent import Greenlet, spawn
from gevent.event import AsyncResult, Event
from gevent.lock import Semaphore

from gnsqd.errors import StorageError
from gnsqd.hub.cooperative import give_way
from gnsqd.hub.threads import Threads

THREADS = 4
GATHER_SHARE = 0.5  # of the time that an fsync takes
MAX_GATHER_SECONDS = 0.002
LINGER_SECONDS = 1.0

T = TypeVar("T")


class Syncable(Protocol):
    """A queue that can be synced; `sync_timeout` in ns, the same for all queues of a Syncer."""

    sync_timeout: int

    def start_sync(self) -> "AsyncResult[StorageError | None]":
        """Make durable what the queue holds; the outcome to wait for. Never yields."""


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
            queue.start_sync().rawlink(lambda _: self._slots.release())
        return None

    def stop(self) -> None:
        """End syncLoop, wait for what is under way and end the threads. Yields."""
        self._stopped = True
        self._bell.set()
        self._threads.close()


class GroupCommit:
    """Owns the greenlet `name` that syncs by `run_sync()`, which returns the error if that failed, and yields. It stays
    for a while after a sync, because a new one would cost a good part of an fsync."""

    def __init__(self, name: str, run_sync: Callable[[], StorageError | None]) -> None:
        self._name = name
        self._run_sync = run_sync
        self._waiting = 0
        self._group = 0  # waited for the last
        self._seconds = 0.0  # that it took
        self._outcome: AsyncResult[StorageError | None] | None = None  # of the one to come or under way
        self._bell = Event()
        self._greenlet: Greenlet[[], None] | None = None

    def start(self) -> "AsyncResult[StorageError | None]":
        """The outcome of the sync that is under way, or of a new one. Never yields."""
        if self._outcome is None:
            self._outcome = AsyncResult()
            if self._greenlet is None or self._greenlet.ready():
                self._greenlet = spawn(self._run)
                self._greenlet.name = self._name
            else:
                self._bell.set()
        return self._outcome

    def wait(self, is_done: Callable[[], bool]) -> None:
        """Return when `is_done()`, which syncs bring about; StorageError when one fails. Yields."""
        self._waiting += 1
        try:
            while not is_done():
                error = self.start().get()
                if error is not None:
                    raise StorageError(str(error))
        finally:
            self._waiting -= 1

    def close(self) -> None:
        """Return when none is under way. Yields."""
        if self._greenlet is not None:
            self._bell.set()
            self._greenlet.join()

    def _run(self) -> None:
        while (outcome := self._outcome) is not None:
            self._gather()
            begin = perf_counter()
            try:
                error = self._run_sync()
            except BaseException as bug:
                self._outcome = None
                outcome.set_exception(bug)
                raise
            self._seconds = perf_counter() - begin
            self._group = max(self._group, self._waiting)
            self._outcome = None
            outcome.set(error)
            self._bell.wait(LINGER_SECONDS)
            self._bell.clear()

    def _gather(self) -> None:
        """Publishers that waited for the last fsync are likely to come again: a short wait makes one fsync of many."""
        end = perf_counter() + min(self._seconds * GATHER_SHARE, MAX_GATHER_SECONDS)
        while self._waiting < self._group and perf_counter() < end:
            give_way()
        self._group = self._waiting
