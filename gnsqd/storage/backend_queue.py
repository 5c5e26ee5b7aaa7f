"""Where a topic or channel puts what its memory queue has no room for: the interface, and a backend that keeps nothing.

Nothing that moves messages yields to the hub, so that a batch in hand and the queue's depth always tell the same. Only
`wait_synced` and `close` may.
"""

from collections.abc import Sequence
from typing import Protocol

from gnsqd.storage.disk.due_times import DueTimes


class BackendQueue(Protocol):
    """A queue of payloads (`gnsqd.storage.disk.record`), first in, first out."""

    name: str

    @property
    def due_times(self) -> DueTimes | None:
        """Those of deferred messages among the payloads, up to date if whoever puts and reads adds and pops them. None
        if nothing is kept."""

    @property
    def depth(self) -> int:
        """How many payloads are there; after damage an estimate, but 0 exactly when nothing is left to read."""

    @property
    def size(self) -> int:
        """How many bytes the payloads take, with the length in front of each; after damage, and in a journal, about."""

    def write_held(self) -> None:
        """What `due_times` holds back survives a kill from now on; with messages of this queue that comes by itself,
        before they are forgotten."""

    def put_many(self, payloads: Sequence[bytes]) -> None:
        """Append in order. StorageError on failure; the first `error.written` of them are in the queue nevertheless."""

    def peek_many(self, limit: int, max_bytes: int) -> list[bytes]:
        """The next payloads in order, not yet consumed: at most `limit`, together at most `max_bytes` but for a single
        larger one. There may be more than come at once. None come when nothing is readable: the queue is empty, it
        turned out to be (damage; `depth` is 0 then), or the system is short of memory or file descriptors.
        """

    def advance(self, count: int) -> None:
        """Consume the first `count` payloads of the last `peek_many`; ValueError if it gave fewer."""

    def look(self, limit: int, max_bytes: int) -> list[bytes]:
        """The next payloads as far as they can be read, bounded as in `peek_many`, for somebody who only looks: nothing
        is noted or mended."""

    def wait_synced(self) -> None:
        """Return once at most sync-every operations are unsynced. May yield: call it between batches."""

    def empty(self) -> None:
        """Drop everything; StorageError if files could not be removed."""

    def delete(self) -> None:
        """Drop everything and stop; errors as `empty`. Later calls of `put_many` fail with "exiting"."""

    def close(self) -> bool:
        """Stop, with everything safe on disk; False if that failed. May yield."""


class DummyBackendQueue:
    """Drops everything: for ephemeral topics and channels."""

    due_times = None

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    def depth(self) -> int:
        return 0

    @property
    def size(self) -> int:
        return 0

    def write_held(self) -> None:
        pass

    def put_many(self, payloads: Sequence[bytes]) -> None:
        pass

    def peek_many(self, limit: int, max_bytes: int) -> list[bytes]:
        return []

    def advance(self, count: int) -> None:
        pass

    def look(self, limit: int, max_bytes: int) -> list[bytes]:
        return []

    def wait_synced(self) -> None:
        pass

    def empty(self) -> None:
        pass

    def delete(self) -> None:
        pass

    def close(self) -> bool:
        return True
