"""One fsync for many that wait for it."""

from collections.abc import Callable
from time import perf_counter

from gevent import Greenlet, sleep, spawn

from gnsqd.errors import StorageError

GATHER_SHARE = 0.5  # of the time that an fsync takes
MAX_GATHER_SECONDS = 0.002


class GroupCommit:
    """Owns the greenlet `name` that syncs by `run_sync()`, which gives the error if that failed, and yields."""

    def __init__(self, name: str, run_sync: Callable[[], StorageError | None]) -> None:
        self._name = name
        self._run_sync = run_sync
        self._waiting = 0
        self._group = 0  # waited for the last
        self._seconds = 0.0  # that it took
        self._sync: Greenlet[[], StorageError | None] | None = None

    def wait(self, is_done: Callable[[], bool]) -> None:
        """Return when `is_done()`, which syncs bring about; StorageError when one fails. Yields."""
        self._waiting += 1
        try:
            while not is_done():
                if self._sync is None or self._sync.ready():
                    self._sync = spawn(self._run)
                    self._sync.name = self._name
                error = self._sync.get()
                if error is not None:
                    raise StorageError(str(error))
        finally:
            self._waiting -= 1

    def join(self) -> None:
        """Return when none is under way."""
        if self._sync is not None:
            self._sync.join()

    def _run(self) -> StorageError | None:
        self._gather()
        begin = perf_counter()
        error = self._run_sync()
        self._seconds = perf_counter() - begin
        self._group = max(self._group, self._waiting)
        return error

    def _gather(self) -> None:
        """Those who waited for the last fsync are likely to come again: a moment for them makes one fsync of many."""
        end = perf_counter() + min(self._seconds * GATHER_SHARE, MAX_GATHER_SECONDS)
        sleep(1e-6)  # once around the hub
        while self._waiting < self._group and perf_counter() < end:
            sleep(1e-6)
        self._group = self._waiting
