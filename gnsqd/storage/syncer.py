"""Keeps fsync and the removal of large files off the hub, which they would stop: threads of storage's own, one fsync
for all that wait, and the timer of `--sync-timeout`.

One Syncer serves all queues of a daemon. A queue with unsynced operations is noted here and forgotten once it is
synced, so idle queues cost nothing.
"""

import _thread
import os
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from queue import SimpleQueue
from time import monotonic, monotonic_ns, perf_counter
from typing import Any, Protocol, TypeVar

from gevent import get_hub, spawn
from gevent.event import AsyncResult, Event
from gevent.hub import Waiter

from gnsqd.hub.cooperative import Report
from gnsqd.shared.errors import StorageError
from gnsqd.storage.files import temporary_path

THREADS = 4
LARGE = 1 << 20  # bytes, of a file whose removal takes time: 0.3 ms per MB
MAX_KEPT = 32  # descriptors of removed files
GATHER_SHARE = 0.5  # of the time that an fsync takes
MAX_GATHER_SECONDS = 0.002

T = TypeVar("T")

Outcome = tuple[Any, Any]  # what was returned; what was raised, or None
Callback = Callable[[Outcome], object]
Job = tuple[int, Callback, Callable[..., Any], tuple[object, ...]]  # the first is its number


class Syncable(Protocol):
    """A queue that can be synced; `sync_timeout` in ns, the same for all queues of a Syncer."""

    sync_timeout: int

    def start_sync(self) -> "AsyncResult[StorageError | None]":
        """Starts to make the queue durable; returns the outcome to wait for. Never yields."""


class Syncer:
    """Owns the threads, the times at which queues are to be synced, and removed files until their blocks are free.

    The threads run calls of greenlets, and start when they are needed. gevent's own pool makes several objects for each
    call, with a watcher among them: that took 60 µs where this takes 19, and an fsync 100."""

    def __init__(self) -> None:
        self._started = self._number = 0  # threads, and calls so far
        self._calls: dict[int, float] = {}  # when each that is not finished began (monotonic), the oldest first
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._done: deque[tuple[int, Callback, Outcome]] = deque()
        self._bell = get_hub().loop.async_()
        self._bell.start(self._call_back)
        self._free = Event()
        self._deadlines: dict[Syncable, int] = {}  # in order, because all have the same timeout
        self._noted = Event()
        self._syncing = 0  # syncs that syncLoop has started
        self._stopped = False
        self._removed: deque[tuple[Callable[[Any], None], object]] = deque()  # what frees their blocks: a call each
        self._freeing = False

    def run(self, function: Callable[..., T], *args: object) -> T:
        """Calls `function(*args)` in a thread; returns its result, raises its error. Yields."""
        waiter: Waiter[Outcome] = Waiter()
        self.start(waiter.switch, function, *args)
        result, error = waiter.get()
        if error is not None:
            raise error
        return result  # type: ignore[no-any-return]

    def start(self, report: Callback, function: Callable[..., object], *args: object) -> None:
        """Calls `function(*args)` in a thread, and then, in the hub, `report` with the outcome. Never yields."""
        if len(self._calls) == self._started < THREADS:
            _thread.start_new_thread(self._work, ())
            self._started += 1
        self._number += 1
        self._calls[self._number] = monotonic()
        self._jobs.put((self._number, report, function, args))

    @property
    def lag(self) -> float:
        """Returns the age in seconds of the oldest call that is not finished; 0 if there is none."""
        return monotonic() - next(iter(self._calls.values())) if self._calls else 0.0

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            number, report, function, args = job
            try:
                outcome: Outcome = function(*args), None
            except BaseException as error:
                outcome = None, error
            self._done.append((number, report, outcome))
            self._bell.send()

    def _call_back(self) -> None:
        while self._done:
            number, report, outcome = self._done.popleft()
            del self._calls[number]
            if not self._calls:
                self._free.set()
            report(outcome)

    @contextmanager
    def keeping(self, path: str) -> Iterator[None]:
        """Lets the file lose its name inside `with`; if it is large, a thread frees its blocks. Never yields."""
        descriptor = -1
        with suppress(OSError):
            if len(self._removed) < MAX_KEPT and os.stat(path).st_size >= LARGE:
                descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            yield
        finally:
            if descriptor >= 0:
                self._free_soon(os.close, descriptor)

    def remove(self, path: str) -> None:
        """Removes a file: its name at once, and its blocks as after `keeping`; raises OSError. Never yields."""
        if len(self._removed) >= MAX_KEPT and os.stat(path).st_size >= LARGE:
            temporary = temporary_path(path)
            os.rename(path, temporary)
            self._free_soon(os.unlink, temporary)
        else:
            with self.keeping(path):
                os.unlink(path)

    def _free_soon(self, function: Callable[[Any], None], file: object) -> None:
        self._removed.append((function, file))
        if not self._freeing:
            self._freed()

    def _free_removed(self) -> None:
        """Frees the blocks of removed files, in one thread, so that the others are available for fsync."""
        while self._removed:
            function, file = self._removed[0]
            with suppress(OSError):
                function(file)
            self._removed.popleft()

    def _freed(self, outcome: Outcome | None = None) -> None:
        self._freeing = bool(self._removed)  # again, since the thread looked
        if self._freeing:
            self.start(self._freed, self._free_removed)

    def note(self, queue: Syncable) -> None:
        """Reports that `queue` has unsynced operations, to be synced within its `sync_timeout`. Never yields."""
        if queue not in self._deadlines:
            if not self._deadlines:
                self._noted.set()
            self._deadlines[queue] = monotonic_ns() + queue.sync_timeout

    def forget(self, queue: Syncable) -> None:
        """Reports that `queue` is synced, or gone. Never yields."""
        self._deadlines.pop(queue, None)

    def syncLoop(self) -> None:
        """Syncs every noted queue at its time, until `stop`."""
        while not self._stopped:
            self._noted.clear()
            self._noted.wait(self._sync_due())

    def _sync_due(self) -> float | None:
        """Starts the syncs that are due; returns the seconds until the next one, None to wait for `_noted`. One thread
        is left to queues that wait for their own sync."""
        while self._deadlines and self._syncing < THREADS - 1:
            queue, deadline = next(iter(self._deadlines.items()))
            if (left := deadline - monotonic_ns()) > 0:
                return left / 1e9
            self._syncing += 1
            self.forget(queue)
            queue.start_sync().rawlink(self._synced)
        return None

    def _synced(self, _: object) -> None:
        self._syncing -= 1
        self._noted.set()

    def stop(self) -> None:
        """Ends syncLoop, waits for running calls and ends the threads. Yields."""
        self._stopped = True
        self._noted.set()
        while self._calls:
            self._free.clear()
            self._free.wait()
        for _ in range(self._started):
            self._jobs.put(None)
        self._started = 0
        self._bell.stop()
        self._bell.close()


class GroupCommit:
    """Has all that wait share a sync, one at a time: `begin(report)` begins one, and calls `report` at its end, with
    the error or None. Neither yields."""

    def __init__(self, begin: Callable[[Report], None]) -> None:
        self._begin_sync = begin
        self._waiting: list[tuple[Callable[[], bool], Report, int]] = []
        self._count = 0  # of publishers that wait
        self._group = 0  # how many waited for the last
        self._began = self._seconds = 0.0  # when the last began (perf_counter), and how long it took
        self._is_busy = False  # a sync is under way, or will begin when `_gathering` ends
        self._gathering: Any = None  # a timer

    def start(self) -> "AsyncResult[Exception | None]":
        """Returns the outcome of the sync that is under way, or of a new one. Never yields."""
        outcome: AsyncResult[Exception | None] = AsyncResult()
        self.call(lambda: True, outcome.set, 0)
        return outcome

    def call(self, is_done: Callable[[], bool], report: Report, count: int) -> None:
        """Calls `report`, on behalf of `count` callers, at the end of the first sync after which `is_done()`, or of one
        that fails, with the error. Never yields; nor must `report`."""
        self._waiting.append((is_done, report, count))
        self._count += count
        self.begin()

    def wait(self, is_done: Callable[[], bool]) -> None:
        """Returns when `is_done()`, which syncs bring about; raises StorageError when one fails. Yields."""
        if not is_done():
            outcome: AsyncResult[Exception | None] = AsyncResult()
            self.call(is_done, outcome.set, 1)
            error = outcome.get()
            if isinstance(error, StorageError):
                raise StorageError(str(error)) from error.__cause__
            if error is not None:
                raise error  # a defect

    def close(self) -> None:
        """Waits until no sync is under way. Yields."""
        while self._is_busy:
            self.start().wait()

    def begin(self) -> None:
        """Begins a sync, unless one is under way. Never yields."""
        if self._gathering is not None:
            if self._count >= self._group:
                self._sync()
        elif not self._is_busy:
            self._is_busy = True
            # Publishers of the last fsync are likely to come again: one serves all, if they come soon.
            if self._count < self._group:
                self._gathering = get_hub().loop.timer(min(self._seconds * GATHER_SHARE, MAX_GATHER_SECONDS))
                self._gathering.start(self._sync)
            else:
                self._sync()

    def _sync(self) -> None:
        if self._gathering is not None:
            self._gathering.close()
            self._gathering = None
        self._group = self._count
        self._began = perf_counter()
        self._begin_sync(self._end)

    def _end(self, error: Exception | None) -> None:
        self._seconds = perf_counter() - self._began
        self._group = max(self._group, self._count)
        waiting, self._waiting = self._waiting, []
        self._count = 0
        for is_done, report, count in waiting:
            if error is not None or is_done():
                report(error)
            else:
                self._waiting.append((is_done, report, count))  # it came during this one
                self._count += count
        self._is_busy = False
        if self._waiting:
            self.begin()


def begin_in_greenlet(name: str, run_sync: Callable[[], StorageError | None], report: Report) -> None:
    """Begins, in a greenlet, a sync of a GroupCommit: `run_sync()` returns the error if it failed, and yields."""

    def sync() -> None:
        try:
            error: Exception | None = run_sync()
        except Exception as bug:
            report(bug)
            raise
        report(error)

    spawn(sync).name = name
