"""One fsync for many that wait for it."""

from collections.abc import Callable
from time import perf_counter

from gevent import Greenlet, spawn
from gevent.event import AsyncResult, Event

from gnsqd.errors import StorageError
from gnsqd.hub.cooperative import give_way

GATHER_SHARE = 0.5  # of the time that an fsync takes
MAX_GATHER_SECONDS = 0.002
LINGER_SECONDS = 1.0


class GroupCommit:
    """Owns the greenlet `name` that syncs by `run_sync()`, which gives the error if that failed, and yields. There is
    such a greenlet while somebody waits, and a while longer, as to make one costs a good part of an fsync."""

    def __init__(self, name: str, run_sync: Callable[[], StorageError | None]) -> None:
        self._name = name
        self._run_sync = run_sync
        self._waiting = 0
        self._group = 0  # waited for the last
        self._seconds = 0.0  # that it took
        self._outcome: AsyncResult[StorageError | None] | None = None  # of the one to come or under way
        self._bell = Event()
        self._greenlet: Greenlet[[], None] | None = None

    def wait(self, is_done: Callable[[], bool]) -> None:
        """Return when `is_done()`, which syncs bring about; StorageError when one fails. Yields."""
        self._waiting += 1
        try:
            while not is_done():
                error = self._ask().get()
                if error is not None:
                    raise StorageError(str(error))
        finally:
            self._waiting -= 1

    def _ask(self) -> "AsyncResult[StorageError | None]":
        if self._outcome is None:
            self._outcome = AsyncResult()
            if self._greenlet is None or self._greenlet.ready():
                self._greenlet = spawn(self._run)
                self._greenlet.name = self._name
            else:
                self._bell.set()
        return self._outcome

    def close(self) -> None:
        """Return when none is under way; nobody waits from now on. Yields."""
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
        """Those who waited for the last fsync are likely to come again: a moment for them makes one fsync of many."""
        end = perf_counter() + min(self._seconds * GATHER_SHARE, MAX_GATHER_SECONDS)
        while self._waiting < self._group and perf_counter() < end:
            give_way()
        self._group = self._waiting
