"""The queues that the timer of `--sync-timeout` syncs."""

from collections.abc import Iterator

import gevent
import pytest
from gevent.event import AsyncResult

from gnsqd.shared.errors import StorageError
from gnsqd.storage.syncer import THREADS, Syncer
from unit.storage.greenlets import eventually

PATIENCE = 10.0  # seconds


class SyncedQueue:
    """A queue whose sync ends when the test sets the outcome."""

    def __init__(self, syncer: Syncer) -> None:
        self.sync_timeout = 1  # ns
        self.syncs = 0
        self.outcome: AsyncResult[StorageError | None] = AsyncResult()
        syncer.note(self)

    def start_sync(self) -> "AsyncResult[StorageError | None]":
        self.syncs += 1
        return self.outcome


@pytest.fixture
def syncer() -> Iterator[Syncer]:
    syncer = Syncer()
    loop = gevent.spawn(syncer.syncLoop)
    yield syncer
    syncer.stop()
    loop.get(timeout=PATIENCE)


def test_a_queue_that_is_closed_while_it_waits_for_others_is_not_synced(syncer: Syncer) -> None:
    # A sync would bring the meta file of a deleted queue back.
    busy = [SyncedQueue(syncer) for _ in range(THREADS - 1)]
    closed, last = SyncedQueue(syncer), SyncedQueue(syncer)
    eventually(lambda: all(queue.syncs for queue in busy))
    gevent.sleep(0)
    assert not closed.syncs
    syncer.forget(closed)
    for queue in busy:
        queue.outcome.set(None)
    eventually(lambda: last.syncs)
    last.outcome.set(None)
    assert [queue.syncs for queue in [*busy, closed, last]] == [1] * len(busy) + [0, 1]
