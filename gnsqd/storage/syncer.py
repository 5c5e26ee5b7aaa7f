"""Keeps fsync off the hub, which it would stop: a thread pool of storage's own, and the tick of `--sync-timeout`.

One Syncer serves all queues of a daemon. A queue with unsynced operations is noted here and forgotten once it is
synced, so idle queues cost nothing.
"""

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from gevent import Greenlet, joinall, sleep
from gevent.threadpool import ThreadPool

from gnsqd.errors import StorageError

THREADS = 4

T = TypeVar("T")


def _outcome(function: Callable[..., T], args: tuple[Any, ...]) -> T | StorageError:
    try:
        return function(*args)
    except StorageError as error:  # gevent would print a traceback of it
        return error


class Syncable(Protocol):
    """A queue that can be synced."""

    def start_sync(self) -> "Greenlet[[], bool]":
        """A greenlet that makes durable what the queue holds; it ends with whether that worked. Never yields."""


class Syncer:
    """Owns the threads. `sync_timeout` is in ns."""

    def __init__(self, sync_timeout: int) -> None:
        self._interval = sync_timeout / 1e9
        self._threads = ThreadPool(THREADS)
        self._unsynced: dict[Syncable, None] = {}

    def run(self, function: Callable[..., T], *args: Any) -> T:
        """What `function` returns, or the StorageError it raises, called in a thread. Yields."""
        result: T | StorageError = self._threads.apply(_outcome, (function, args))
        if isinstance(result, StorageError):
            raise result
        return result

    def note(self, queue: Syncable) -> None:
        """`queue` has unsynced operations. Never yields."""
        self._unsynced[queue] = None

    def forget(self, queue: Syncable) -> None:
        """`queue` is synced, or gone. Never yields."""
        self._unsynced.pop(queue, None)

    def syncLoop(self) -> None:
        """Sync whatever has been written or read in the last `sync_timeout`, for ever."""
        while True:
            sleep(self._interval)
            queues = list(self._unsynced)
            # As many as there are threads, so that a busy queue's own sync does not wait behind all the others.
            for first in range(0, len(queues), THREADS):
                joinall([queue.start_sync() for queue in queues[first : first + THREADS]])

    def close(self) -> None:
        """Wait for what is under way and end the threads. Yields."""
        self._threads.join()
        self._threads.kill()
