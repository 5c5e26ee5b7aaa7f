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
from time import monotonic_ns, perf_counter
from typing import Any, Protocol, TypeVar

from gevent import Greenlet, get_hub, spawn
from gevent.event import AsyncResult, Event
from gevent.hub import Waiter
from gevent.lock import Semaphore

from gnsqd.hub.doorbell import Doorbell
from gnsqd.shared.errors import StorageError
from gnsqd.storage.files import temporary_path

THREADS = 4
LARGE = 1 << 20  # bytes, of a file whose removal takes time: 0.3 ms per MB
MAX_KEPT = 32  # descriptors of removed files
GATHER_SHARE = 0.5  # of the time that an fsync takes
MAX_GATHER_SECONDS = 0.002
LINGER_SECONDS = 1.0

T = TypeVar("T")

Outcome = tuple[Any, BaseException | None]  # what was returned, or raised
Callback = Callable[[Outcome], object]
Report = Callable[[Exception | None], None]  # of a commit: called with the error, None if it worked
Job = tuple[Callback, Callable[..., Any], tuple[object, ...]]


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
        self._started = self._busy = 0  # threads, and calls
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._done: deque[tuple[Callback, Outcome]] = deque()
        self._bell = get_hub().loop.async_()
        self._bell.start(self._call_back)
        self._free = Event()
        self._deadlines: dict[Syncable, int] = {}  # in order, because all have the same timeout
        self._noted = Event()
        # One thread is left to queues that wait for their own sync.
        self._slots = Semaphore(THREADS - 1)
        self._stopped = False
        self._removed: deque[tuple[Callable[[Any], None], object]] = deque()  # what frees their blocks: a call each
        self._freeing = False

    def run(self, function: Callable[..., T], *args: object) -> T:
        """Calls `function(*args)` in a thread; returns its result, raises its error. Yields."""
        waiter: Waiter[Outcome] = Waiter()
        self._start(waiter.switch, function, *args)
        result, error = waiter.get()
        if error is not None:
            raise error
        return result  # type: ignore[no-any-return]

    def _start(self, report: Callback, function: Callable[..., object], *args: object) -> None:
        """Calls `function(*args)` in a thread, and then, in the hub, `report` with the outcome. Never yields."""
        if self._busy == self._started < THREADS:
            _thread.start_new_thread(self._work, ())
            self._started += 1
        self._busy += 1
        self._jobs.put((report, function, args))

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            report, function, args = job
            try:
                outcome: Outcome = function(*args), None
            except BaseException as error:
                outcome = None, error
            self._done.append((report, outcome))
            self._bell.send()

    def _call_back(self) -> None:
        while self._done:
            report, outcome = self._done.popleft()
            self._busy -= 1
            if not self._busy:
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
            self._start(self._freed, self._free_removed)

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
        """Starts the syncs that are due; returns the seconds until the next one, None if there is none."""
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
        """Ends syncLoop, waits for running calls and ends the threads. Yields."""
        self._stopped = True
        self._noted.set()
        while self._busy:
            self._free.clear()
            self._free.wait()
        for _ in range(self._started):
            self._jobs.put(None)
        self._started = 0
        self._bell.stop()
        self._bell.close()


class GroupCommit:
    """Owns the greenlet `name` that syncs by `run_sync()`, which returns the error if that failed, and yields. It stays
    for a while after a sync, because a new one would cost a good part of an fsync."""

    def __init__(self, name: str, run_sync: Callable[[], StorageError | None]) -> None:
        self._name = name
        self._run_sync = run_sync
        self._waiting: list[tuple[Callable[[], bool], Report]] = []
        self._group = 0  # waited for the last
        self._seconds = 0.0  # that it took
        self._outcome: AsyncResult[StorageError | None] | None = None  # of the one to come or under way
        self._bell = Doorbell()
        self._closing = False
        self._greenlet: Greenlet[[], None] | None = None

    def start(self) -> "AsyncResult[StorageError | None]":
        """Returns the outcome of the sync that is under way, or of a new one. Never yields."""
        if self._outcome is None:
            self._outcome = AsyncResult()
            if self._greenlet is None or self._greenlet.ready():
                self._greenlet = spawn(self._run)
                self._greenlet.name = self._name
            else:
                self._bell.ring()
        return self._outcome

    def call(self, is_done: Callable[[], bool], report: Report) -> None:
        """Has `report` called once `is_done()`, which syncs bring about, or with the error when one fails. Never
        yields, nor must `report`."""
        self._waiting.append((is_done, report))
        if len(self._waiting) >= self._group:
            self._bell.ring()
        self.start()

    def wait(self, is_done: Callable[[], bool]) -> None:
        """Waits until `is_done()`, which syncs bring about; raises StorageError when one fails. Yields."""
        if not is_done():
            outcome: AsyncResult[Exception | None] = AsyncResult()
            self.call(is_done, outcome.set)
            error = outcome.get()
            if isinstance(error, StorageError):
                raise StorageError(str(error)) from error.__cause__
            if error is not None:
                raise error  # a defect

    def close(self) -> None:
        """Waits until no sync is under way; the greenlet does not stay after a later one. Yields."""
        self._closing = True
        if self._greenlet is not None:
            self._bell.ring()
            self._greenlet.join()

    def _run(self) -> None:
        while (outcome := self._outcome) is not None:
            self._gather()
            begin = perf_counter()
            try:
                error = self._run_sync()
            except Exception as bug:
                outcome.set_exception(bug)
                self._end(bug)
                raise
            self._seconds = perf_counter() - begin
            self._group = max(self._group, len(self._waiting))
            outcome.set(error)
            self._end(error)
            end = perf_counter() + LINGER_SECONDS
            while self._outcome is None and not self._closing and (left := end - perf_counter()) > 0:
                self._bell.wait(left)

    def _gather(self) -> None:
        """Waits briefly for publishers of the last fsync, who are likely to come again: one fsync serves all."""
        end = perf_counter() + min(self._seconds * GATHER_SHARE, MAX_GATHER_SECONDS)
        while len(self._waiting) < self._group and (left := end - perf_counter()) > 0:
            self._bell.wait(left)
        self._group = len(self._waiting)

    def _end(self, error: Exception | None) -> None:
        """Reports the end of a sync; if somebody came during this one, another follows."""
        self._outcome = None
        waiting, self._waiting = self._waiting, []
        for is_done, report in waiting:
            if error is not None or is_done():
                report(error)
            else:
                self.call(is_done, report)
