"""The durability of a disk queue: NSQD-COMPAT 4.5, and fsync off the hub."""

import io
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import gevent
import pytest
from gevent.event import AsyncResult

from gnsqd.shared.errors import StorageError
from gnsqd.storage.disk.diskqueue import DiskQueue
from gnsqd.storage.syncer import Syncer
from unit.storage.conftest import OpenQueue
from unit.storage.greenlets import eventually

ALL = 1_000_000
META = "q.diskqueue.meta.dat"


class SlowDisk:
    """Stands in for os.fsync: notes what was synced, and holds every call up between `hold` and `go_on`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.synced: list[str] = []
        self.error: OSError | None = None
        self.waiting = 0
        self._allowed = float("inf")
        self._changed = threading.Condition()
        monkeypatch.setattr(os, "fsync", self.fsync)

    def fsync(self, descriptor: int) -> None:
        name = os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}"))
        with self._changed:
            self.waiting += 1
            self._changed.wait_for(lambda: self._allowed > 0)
            self._allowed -= 1
            self.waiting -= 1
        if self.error is not None:
            raise self.error
        self.synced.append(name)

    def hold(self) -> None:
        self.go_on(0)

    def hold_sync(self, queue: DiskQueue) -> "AsyncResult[StorageError | None]":
        """Returns a sync of the queue that is under way."""
        self.hold()
        sync = queue.start_sync()
        eventually(lambda: self.waiting)  # it is the hub that looks
        return sync

    def go_on(self, calls: float = float("inf")) -> None:
        """Lets that many calls through."""
        with self._changed:
            self._allowed = calls
            self._changed.notify_all()


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch, syncer: Syncer) -> Iterator[SlowDisk]:
    disk = SlowDisk(monkeypatch)
    yield disk
    disk.error = None
    disk.go_on()


def wait_for_meta(path: Path, text: str) -> None:
    eventually(lambda: (path / META).read_text() == text)


@pytest.fixture
def timer(syncer: Syncer, disk: SlowDisk) -> Iterator[None]:
    """Starts the loop that syncs by time-out."""
    loop = gevent.spawn(syncer.syncLoop)
    yield
    disk.go_on()
    syncer.stop()
    loop.get()


def test_data_is_synced_before_meta_has_it(open_queue: OpenQueue, tmp_path: Path, disk: SlowDisk) -> None:
    queue = open_queue(max_bytes_per_file=20)
    queue.put_many([b"123456"] * 3)
    assert queue.start_sync().get() is None
    assert sorted(disk.synced[:2]) == ["q.diskqueue.000000.dat", "q.diskqueue.000001.dat"]
    assert disk.synced[2].startswith("q.diskqueue.meta.dat.")
    assert (tmp_path / META).read_text() == "3\n0,0\n1,10\n"
    assert sorted(os.listdir(tmp_path)) == ["q.diskqueue.000000.dat", "q.diskqueue.000001.dat", META]


def test_a_slow_disk_stops_neither_the_hub_nor_the_queue(open_queue: OpenQueue, tmp_path: Path, disk: SlowDisk) -> None:
    queue = open_queue()
    queue.put_many([b"1", b"2"])
    sync = disk.hold_sync(queue)
    queue.put_many([b"3"])
    queue.peek_many(ALL, ALL)
    queue.advance(1)
    queue.wait_synced()
    assert not sync.ready()
    disk.go_on()
    assert sync.get() is None
    assert (tmp_path / META).read_text() == "2\n0,0\n0,10\n"
    assert queue.start_sync().get() is None
    assert (tmp_path / META).read_text() == "2\n0,5\n0,15\n"


@pytest.mark.parametrize("reads", [False, True])
def test_at_most_sync_every_operations_are_unsynced(open_queue: OpenQueue, disk: SlowDisk, reads: bool) -> None:
    queue = open_queue(sync_every=10)
    if reads:
        queue.put_many([b"1"] * 10)
        queue.start_sync().get()
    disk.hold()
    for _ in range(10):
        if reads:
            queue.peek_many(1, ALL)
            queue.advance(1)
        else:
            queue.put_many([b"1"])
        queue.wait_synced()
    queue.put_many([b"1"])
    waiter = gevent.spawn(queue.wait_synced)
    eventually(lambda: disk.waiting)
    gevent.idle()
    assert not waiter.ready()
    disk.go_on()
    waiter.get()


def test_sync_every_0_syncs_every_operation(open_queue: OpenQueue, tmp_path: Path, disk: SlowDisk) -> None:
    queue = open_queue(sync_every=0)
    for count in range(1, 4):
        queue.put_many([b"1"])
        queue.wait_synced()
        assert (tmp_path / META).read_text() == f"{count}\n0,0\n0,{5 * count}\n"


def test_a_disk_that_cannot_sync_is_logged_and_tried_again(
    open_queue: OpenQueue, tmp_path: Path, disk: SlowDisk, log_stream: io.StringIO
) -> None:
    queue = open_queue(sync_every=2)
    disk.error = OSError(5, "Input/output error")
    queue.put_many([b"1"] * 5)
    queue.wait_synced()
    path = tmp_path / "q.diskqueue.000000.dat"
    text = f"ERROR: DISKQUEUE(q) failed to sync - sync {path}: input/output error\n"
    assert log_stream.getvalue().endswith(text)
    assert (tmp_path / META).read_text() == "0\n0,0\n0,0\n"
    assert sorted(os.listdir(tmp_path)) == [path.name, META]
    disk.error = None
    assert queue.start_sync().get() is None
    assert disk.synced[0] == path.name
    assert (tmp_path / META).read_text() == "5\n0,0\n0,25\n"


def test_close_syncs_the_data_if_there_is_some(open_queue: OpenQueue, disk: SlowDisk) -> None:
    # The real nsqd leaves that to the system (NSQD-COMPAT 0.1 item 21).
    for _ in range(2):
        open_queue().close()
    assert disk.synced == []
    queue = open_queue()
    queue.put_many([b"1"])
    queue.close()
    assert disk.synced[0] == "q.diskqueue.000000.dat"


@pytest.mark.parametrize("empties", [False, True])
def test_close_waits_for_the_sync_under_way(
    open_queue: OpenQueue, tmp_path: Path, disk: SlowDisk, empties: bool
) -> None:
    queue = open_queue()
    queue.put_many([b"1"])
    disk.hold_sync(queue)
    if empties:
        queue.empty()
    else:
        queue.put_many([b"2"])
    closing = gevent.spawn(queue.close)
    gevent.idle()
    assert not closing.ready()
    disk.go_on()
    closing.get()
    assert (tmp_path / META).read_text() == ("0\n1,0\n1,0\n" if empties else "2\n0,0\n0,10\n")
    assert sorted(os.listdir(tmp_path)) == (["q.diskqueue.000000.dat"] * (not empties)) + [META]


@pytest.mark.parametrize("drop", [DiskQueue.empty, DiskQueue.delete])
def test_sync_under_way_does_not_bring_back_what_was_dropped(
    open_queue: OpenQueue, tmp_path: Path, disk: SlowDisk, drop: Callable[[DiskQueue], None]
) -> None:
    queue = open_queue()
    queue.put_many([b"1"])
    sync = disk.hold_sync(queue)
    drop(queue)
    disk.go_on()
    assert sync.get() is None
    assert os.listdir(tmp_path) == []


def test_sync_under_way_does_not_undo_a_newer_meta_file(open_queue: OpenQueue, tmp_path: Path, disk: SlowDisk) -> None:
    queue = open_queue(max_bytes_per_file=20)
    queue.put_many([b"123456"])
    sync = disk.hold_sync(queue)
    queue.put_many([b"123456"] * 2)
    assert (tmp_path / META).read_text() == "2\n0,0\n1,0\n"
    disk.go_on(2)  # data and meta; then follows a sync of the new file
    eventually(lambda: disk.waiting and len(disk.synced) == 2)
    assert (tmp_path / META).read_text() == "2\n0,0\n1,0\n"
    disk.go_on()
    assert sync.get() is None
    assert (tmp_path / META).read_text() == "3\n0,0\n1,10\n"
    assert sorted(os.listdir(tmp_path)) == ["q.diskqueue.000000.dat", "q.diskqueue.000001.dat", META]


def test_new_file_numbers_come_with_positions_that_are_safe(
    open_queue: OpenQueue, tmp_path: Path, disk: SlowDisk
) -> None:
    queue = open_queue(max_bytes_per_file=20)
    disk.hold()
    queue.put_many([b"123456"] * 3)
    queue.peek_many(ALL, ALL)
    queue.advance(2)
    assert (tmp_path / META).read_text() == "1\n1,0\n1,0\n"
    disk.go_on()
    assert queue.start_sync().get() is None
    assert (tmp_path / META).read_text() == "1\n1,0\n1,10\n"


def test_stop_awaits_syncs_of_deleted_queues(
    open_queue: OpenQueue, tmp_path: Path, syncer: Syncer, disk: SlowDisk
) -> None:
    queues = [open_queue(f"q{i}") for i in range(4)]
    disk.hold()
    for queue in queues:
        queue.put_many([b"1"])
        queue.start_sync()
    eventually(lambda: disk.waiting == 4)
    for queue in queues:
        queue.delete()
    stopping = gevent.spawn(syncer.stop)
    disk.go_on()
    stopping.get()
    assert os.listdir(tmp_path) == []


# The timer


@pytest.mark.usefixtures("timer")
def test_sync_timeout_syncs_whatever_has_changed(open_queue: OpenQueue, tmp_path: Path) -> None:
    changed = [open_queue(f"changed{i}") for i in range(20)]
    open_queue("idle")
    for queue in changed:
        queue.sync_timeout = 1000
        queue.put_many([b"1"])
    metas = [tmp_path / f"changed{i}.diskqueue.meta.dat" for i in range(20)]
    eventually(lambda: all(meta.read_text() == "1\n0,0\n0,5\n" for meta in metas))
    for queue in changed:
        queue.peek_many(1, ALL)
        queue.advance(1)
    eventually(lambda: all(meta.read_text() == "0\n0,5\n0,5\n" for meta in metas))
    assert not (tmp_path / "idle.diskqueue.meta.dat").exists()


@pytest.mark.usefixtures("timer")
def test_sync_timeout_counts_from_the_first_unsynced_operation(open_queue: OpenQueue, disk: SlowDisk) -> None:
    queue = open_queue(sync_every=10**9)
    queue.sync_timeout = 200_000_000
    started = time.monotonic()
    with gevent.Timeout(30):
        while not disk.synced:
            queue.put_many([b"1"])
            gevent.sleep(0.01)
    assert time.monotonic() - started >= 0.2
    assert queue.close()  # the last of them came while the others were synced, and may need another one


@pytest.mark.usefixtures("timer")
def test_failed_sync_is_tried_again_by_the_timer(
    open_queue: OpenQueue, tmp_path: Path, disk: SlowDisk, log_stream: io.StringIO
) -> None:
    disk.error = OSError(5, "Input/output error")
    queue = open_queue()
    queue.sync_timeout = 1_000_000
    queue.put_many([b"1"])
    eventually(lambda: "failed to sync" in log_stream.getvalue())
    disk.error = None
    wait_for_meta(tmp_path, "1\n0,0\n0,5\n")


# The read position in meta


@pytest.mark.parametrize("batch", [1, 3, 7, 20])
@pytest.mark.parametrize("sync_every", [1, 5, 16])
def test_read_position_is_saved_every_sync_every_operations_and_not_before(
    open_queue: OpenQueue, tmp_path: Path, sync_every: int, batch: int
) -> None:
    # As the real nsqd does; what was read behind it comes again after a kill, instead of being lost in flight.
    queue = open_queue(sync_every=sync_every)
    queue.put_many([b"%06d" % number for number in range(40)])
    assert queue.start_sync().get() is None
    read = 0
    while read < 40:
        count = len(queue.peek_many(min(batch, 40 - read), ALL))
        queue.advance(count)
        read += count
        saved = read - read % sync_every
        wait_for_meta(tmp_path, f"{40 - saved}\n0,{10 * saved}\n0,400\n")
    queue.close()
    assert (tmp_path / META).read_text() == "0\n0,400\n0,400\n"


def test_sync_of_written_data_does_not_save_reads(open_queue: OpenQueue, tmp_path: Path) -> None:
    queue = open_queue(sync_every=16)
    queue.put_many([b"%06d" % number for number in range(3)])
    assert queue.start_sync().get() is None
    queue.peek_many(2, ALL)
    queue.advance(2)
    queue.put_many([b"later!"] * 5)
    gevent.idle()
    assert (tmp_path / META).read_text() == "3\n0,0\n0,30\n"
    queue.put_many([b"later!"])  # the eighth operation since: half of sync-every
    wait_for_meta(tmp_path, "9\n0,0\n0,90\n")
    queue.put_many([b"later!"] * 8)  # the sixteenth
    wait_for_meta(tmp_path, "15\n0,20\n0,170\n")
