"""Keeps fsync off the hub, which it would stop: threads of storage's own, one fsync for many that wait for it, and the
timer of `--sync-timeout`.

One Syncer serves all queues of a daemon. A queue with unsynced operations is noted here and forgotten once it is
synced, so idle queues cost nothing.
"""

import _thread
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from time import monotonic_ns, perf_counter
from typing import Any, Protocol, TypeVar

from gevent import Greenlet, get_hub, spawn
from gevent.event import AsyncResult, Event
from gevent.hub import Waiter
from gevent.lock import Semaphore

from gnsqd.errors import StorageError
from gnsqd.hub.cooperative import give_way

THREADS = 4
GATHER_SHARE = 0.5  # of the time that an fsync takes
MAX_GATHER_SECONDS = 0.002
LINGER_SECONDS = 1.0

T = TypeVar("T")

Job = tuple["Waiter[Outcome]", Callable[..., Any], tuple[object, ...]]
Outcome = tuple[Any, BaseException | None]  # what was returned, or raised


class Threads:
    """Up to `limit` of them, begun as they are needed, for calls by greenlets of the hub that made this.

    gevent's own pool makes several objects for each call, with a watcher among them: that took 60 µs where this takes
    19, and an fsync 100."""

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


class Syncable(Protocol):
    """A queue that can be synced; `sync_timeout` in ns, the same for all queues of a Syncer."""

    sync_timeout: int

    def start_sync(self) -> "AsyncResult[StorageError | None]":
        """Make durable what the queue holds; the outcome to wait for. Never yields."""


class Syncer(Threads):
    """Owns the threads, and the times at which queues are to be synced."""

    def __init__(self) -> None:
        super().__init__(THREADS)
        self._deadlines: dict[Syncable, int] = {}  # in order, because all have the same timeout
        self._noted = Event()
        # One thread is left to queues that wait for their own sync.
        self._slots = Semaphore(THREADS - 1)
        self._stopped = False

    def note(self, queue: Syncable) -> None:
        """`queue` has unsynced operations: sync it within its `sync_timeout`. Never yields."""
        if queue not in self._deadlines:
            if not self._deadlines:
                self._noted.set()
            self._deadlines[queue] = monotonic_ns() + queue.sync_timeout

    def forget(self, queue: Syncable) -> None:
        """`queue` is synced, or gone. Never yields."""
        self._deadlines.pop(queue, None)

    def syncLoop(self) -> None:
        """Sync every noted queue at its time, until `stop`."""
        while not self._stopped:
            self._noted.clear()
            self._noted.wait(self._sync_due())

    def _sync_due(self) -> float | None:
        """Start what is due; seconds until the next is, None if there is no next."""
        while True:
            self._slots.wait()  # queues are noted and forgotten meanwhile
            if not self._deadlines:
                return None
            queue, deadline = next(iter(self._deadlines.items()))
            if (left := deadline - monotonic_ns()) > 0:
                return left / 1e9
            self._slots.acquire()
            self.forget(queue)
            queue.start_sync().rawlink(lambda _: self._slots.release())

    def stop(self) -> None:
        """End syncLoop, wait for what is under way and end the threads. Yields."""
        self._stopped = True
        self._noted.set()
        self.close()


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
