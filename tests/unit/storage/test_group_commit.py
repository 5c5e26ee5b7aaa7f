"""Group commit: one fsync serves all that wait for it. The fsync of these tests takes as long as the test lets it."""

from functools import partial

import gevent
import pytest
from gevent.event import AsyncResult, Event

from gnsqd.shared.errors import StorageError
from gnsqd.storage import syncer
from gnsqd.storage.syncer import GroupCommit, begin_in_greenlet

PATIENCE = 10.0  # seconds


class Disk:
    """Knows the last write, and what of it is synced."""

    def __init__(self) -> None:
        self.written = self.synced = 0
        self.greenlets: list[object] = []  # that synced, one for each time
        self.begun = Event()
        self.outcome: AsyncResult[StorageError | None] = AsyncResult()
        self.commits = GroupCommit(partial(begin_in_greenlet, "sync:test", self.sync))

    def sync(self) -> StorageError | None:
        self.greenlets.append(gevent.getcurrent())
        written = self.written
        self.begun.set()
        error: StorageError | None = self.outcome.get(timeout=PATIENCE)
        if error is None:
            self.synced = written
        return error

    def end_sync(self, outcome: StorageError | Exception | None = None) -> None:
        """Ends the fsync under way, once there is one."""
        assert self.begun.wait(PATIENCE)
        self.begun.clear()
        ended, self.outcome = self.outcome, AsyncResult()
        if outcome is None or isinstance(outcome, StorageError):
            ended.set(outcome)
        else:
            ended.set_exception(outcome)

    def commit(self) -> "gevent.Greenlet[[], None]":
        """Writes something and has it synced."""
        self.written += 1
        number = self.written
        waiting = gevent.spawn(self.commits.wait, lambda: self.synced >= number)
        gevent.sleep(0)
        return waiting


def all_done(waiting: "list[gevent.Greenlet[[], None]]") -> None:
    for greenlet in waiting:
        greenlet.get(timeout=PATIENCE)


def test_callers_during_a_sync_share_the_next() -> None:
    disk = Disk()
    first = disk.commit()
    assert disk.begun.wait(PATIENCE)
    later = [disk.commit() for _ in range(3)]
    disk.end_sync()
    first.get(timeout=PATIENCE)
    assert not any(greenlet.ready() for greenlet in later)
    disk.end_sync()
    all_done(later)
    assert len(disk.greenlets) == 2


def test_who_waited_for_the_last_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(syncer, "GATHER_SHARE", 1e9)
    monkeypatch.setattr(syncer, "MAX_GATHER_SECONDS", PATIENCE)
    disk = Disk()
    pair = [disk.commit(), disk.commit()]
    disk.end_sync()
    all_done(pair[:1])
    if not pair[1].ready():
        disk.end_sync()
    all_done(pair)

    syncs = len(disk.greenlets)
    one = disk.commit()
    gevent.sleep(0.05)
    assert len(disk.greenlets) == syncs
    other = disk.commit()
    disk.end_sync()
    all_done([one, other])
    assert len(disk.greenlets) == syncs + 1


@pytest.mark.parametrize("error", [StorageError("disk on fire"), ZeroDivisionError("bug")])
def test_an_error_reaches_all_who_wait_and_the_next_sync_may_work(error: StorageError | ZeroDivisionError) -> None:
    disk = Disk()
    pair = [disk.commit(), disk.commit()]
    disk.end_sync(error)
    for greenlet in pair:
        with pytest.raises(type(error), match=f"^{error}$"):
            greenlet.get(timeout=PATIENCE)
    again = disk.commit()
    disk.end_sync()
    all_done([again])


def test_closing_waits_for_the_sync_under_way() -> None:
    disk = Disk()
    waiting = disk.commit()
    assert disk.begun.wait(PATIENCE)
    closing = gevent.spawn(disk.commits.close)
    gevent.sleep(0)
    assert not closing.ready()
    disk.end_sync()
    closing.get(timeout=PATIENCE)
    all_done([waiting])
