"""A healthy disk queue, and the files that it leaves (NSQD-COMPAT 4.2 to 4.6)."""

import errno
import io
import os
import struct
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest
from gevent import get_hub

from gnsqd.shared.disk_queue import BUFFER_SIZE, MAX_JOINED
from gnsqd.shared.errors import StorageError
from gnsqd.storage.disk.diskqueue import DiskQueue
from kit.observers import opened

OpenQueue = Callable[..., DiskQueue]

ALL = 1_000_000


def record(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


def files(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir()}


def drain(queue: DiskQueue, limit: int = ALL, max_bytes: int = ALL) -> list[bytes]:
    drained = []
    while payloads := queue.peek_many(limit, max_bytes):
        drained += payloads
        queue.advance(len(payloads))
    return drained


def test_unused_queue_leaves_a_meta_file_of_zeros(open_queue: OpenQueue, tmp_path: Path) -> None:
    queue = open_queue("t:c")
    assert files(tmp_path) == {}
    queue.close()
    assert files(tmp_path) == {"t:c.diskqueue.meta.dat": b"0\n0,0\n0,0\n"}


def test_files_hold_what_was_put_and_what_was_read(open_queue: OpenQueue, tmp_path: Path) -> None:
    queue = open_queue("t:c")
    queue.put_many([b"one", b"three"])
    queue.put_many([b""])
    assert queue.peek_many(1, ALL) == [b"one"]
    queue.advance(1)
    queue.close()
    assert files(tmp_path) == {
        "t:c.diskqueue.000000.dat": record(b"one") + record(b"three") + record(b""),
        "t:c.diskqueue.meta.dat": b"2\n0,7\n0,20\n",
    }
    assert {file.stat().st_mode & 0o777 for file in tmp_path.iterdir()} == {0o600}


def test_head_can_be_seen_without_opening_the_queue_for_reading(
    open_queue: OpenQueue, tmp_path: Path, log_stream: io.StringIO
) -> None:
    queue = open_queue("t:c")
    queue.put_many([b"12345678-one", b"87654321-two", b"short"])
    before = opened(tmp_path)
    assert queue.peek_head() == b"12345678"
    assert opened(tmp_path) == before
    assert "readOne" not in log_stream.getvalue()
    queue.peek_many(ALL, ALL)
    assert f"DISKQUEUE(t:c): readOne() opened {tmp_path}/t:c.diskqueue.000000.dat\n" in log_stream.getvalue()
    queue.advance(1)
    assert queue.peek_head() == b"87654321"
    os.rename(tmp_path / "t:c.diskqueue.000000.dat", tmp_path / "elsewhere")
    assert queue.peek_head() == b"87654321"
    queue.advance(1)
    assert queue.peek_head() == b""
    os.rename(tmp_path / "elsewhere", tmp_path / "t:c.diskqueue.000000.dat")
    assert queue.peek_head() == b"short"
    assert drain(queue) == [b"short"]


def test_peek_keeps_to_the_bytes_but_gives_at_least_one(open_queue: OpenQueue) -> None:
    queue = open_queue(max_msg_size=BUFFER_SIZE)
    large = b"x" * (BUFFER_SIZE * 2 // 3)
    queue.put_many([b"12345", b"67890", large, large, large])
    for max_bytes, count in ((10, 2), (9, 1), (1, 1)):
        assert queue.peek_many(ALL, max_bytes) == [b"12345", b"67890"][:count]
    queue.advance(1)
    with pytest.raises(ValueError, match="cannot consume 1 records of 0"):
        queue.advance(1)
    queue.advance(0)
    assert queue.peek_many(ALL, 5) == [b"67890"]
    queue.advance(1)
    assert queue.peek_many(ALL, 2 * len(large)) == [large, large]


@pytest.mark.parametrize("size", [100, 70_000, 3 * BUFFER_SIZE])
def test_records_across_buffers_come_back_whole(open_queue: OpenQueue, size: int) -> None:
    queue = open_queue(max_bytes_per_file=1 << 30, max_msg_size=1 << 20)
    payloads = [i.to_bytes(2) * (size // 2 + i % 7) for i in range(200_000 // size + 3)]
    queue.put_many(payloads)
    assert queue.peek_many(ALL, 10 * ALL) == payloads
    queue.advance(1)
    assert drain(queue, limit=2, max_bytes=10 * ALL) == payloads[1:]


# Rolling


@pytest.mark.parametrize(
    "sizes, in_files, meta",
    [
        ([6, 6, 0], [2, 1], b"3\n0,0\n1,4\n"),  # filled to the byte
        ([6, 7, 100, 1], [1, 1, 1, 1], b"4\n0,0\n3,5\n"),
        ([100], [1], b"1\n0,0\n0,104\n"),
    ],
)
def test_record_that_would_pass_the_limit_begins_a_file(
    open_queue: OpenQueue, tmp_path: Path, sizes: list[int], in_files: list[int], meta: bytes
) -> None:
    queue = open_queue(max_bytes_per_file=20)
    queue.put_many([b"x" * size for size in sizes])
    queue.close()
    records = iter([record(b"x" * size) for size in sizes])
    expected = {
        f"q.diskqueue.{number:06d}.dat": b"".join(islice(records, count)) for number, count in enumerate(in_files)
    }
    assert files(tmp_path) == {**expected, "q.diskqueue.meta.dat": meta}


# Sizes


def test_wrong_size_is_refused_and_what_came_before_it_is_kept(
    open_queue: OpenQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gnsqd.storage.disk.diskqueue.MAX_RECORD_SIZE", 30)  # no test has 2 GiB
    queue = open_queue(min_msg_size=26)
    for size in (25, 31):
        with pytest.raises(StorageError) as raised:
            queue.put_many([b"a" * 26, b"b" * 30, b"c" * size, b"d" * 26])
        assert str(raised.value) == f"invalid message write size ({size}) minMsgSize=26 maxMsgSize=30"
        assert raised.value.written == 2
    assert drain(queue) == [b"a" * 26, b"b" * 30] * 2


def test_reader_that_keeps_up_needs_no_disk(open_queue: OpenQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = open_queue()
    queue.put_many([b"1"])
    assert drain(queue) == [b"1"]

    def fail(descriptor: int, size: int, pos: int) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "pread", fail)
    for batches in ([[b"2"]], [[b"3", b"44"]], [[b"5"], [b"66"], [b"7"]]):
        for payloads in batches:
            queue.put_many(payloads)
        assert drain(queue) == [payload for payloads in batches for payload in payloads]


def test_reader_that_falls_behind_goes_on_from_disk(open_queue: OpenQueue) -> None:
    queue = open_queue()
    queue.put_many([b"first"])
    assert drain(queue) == [b"first"]
    sent: list[bytes] = []
    received: list[bytes] = []
    for number in range(20):
        sent += [b"%0999d" % number, b"%099d" % number]  # where there is no room for the one, there is for the other
        queue.put_many(sent[-2:-1])
        queue.put_many(sent[-1:])
        received += queue.peek_many(1, 1 << 20)
        queue.advance(1)
    assert sum(map(len, sent)) > MAX_JOINED
    assert received + drain(queue) == sent


# Failing writes


class FullDisk:
    """Replaces os.pwrite: `room` bytes go to disk, then it is full."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.room = 0
        self._pwrite = os.pwrite
        monkeypatch.setattr(os, "pwrite", self.pwrite)

    def pwrite(self, descriptor: int, data: memoryview, pos: int) -> int:
        if not self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = self._pwrite(descriptor, data[: self.room], pos)
        self.room -= written
        return written


@pytest.mark.parametrize("truncates", [True, False])
def test_disk_that_fills_at_any_byte_keeps_what_fits(
    open_queue: OpenQueue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, truncates: bool
) -> None:
    def fail(descriptor: int, length: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    if not truncates:
        monkeypatch.setattr(os, "ftruncate", fail)
    disk = FullDisk(monkeypatch)
    bodies = [b"1111", b"2222", b"3333", b"4444", b"5555"]
    for room in range(5 * 8):
        queue = open_queue(f"q{room}", max_bytes_per_file=20)  # two in a file
        disk.room = room
        with pytest.raises(StorageError) as raised:
            queue.put_many(bodies)
        kept = room // 8
        path = tmp_path / f"q{room}.diskqueue.{kept // 2:06d}.dat"
        assert str(raised.value) == f"write {path}: no space left on device"
        assert raised.value.written == queue.depth == kept
        assert path.stat().st_size == (kept % 2 * 8 if truncates else room - kept // 2 * 16)
        disk.room = 1 << 20
        queue.put_many([b"good"])
        queue.close()
        assert drain(open_queue(f"q{room}")) == [*bodies[:kept], b"good"]


@pytest.mark.parametrize("reads_last", [True, False])
def test_file_that_was_read_is_deleted_on_a_full_disk(
    open_queue: OpenQueue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reads_last: bool
) -> None:
    queue = open_queue()
    queue.put_many([b"1", b"2"])
    if not reads_last:
        assert drain(queue) == [b"1", b"2"]
    with monkeypatch.context() as patch:
        FullDisk(patch)
        with pytest.raises(StorageError, match="no space left"):
            queue.put_many([b"refused"])
    if reads_last:
        assert drain(queue) == [b"1", b"2"]
    assert not (tmp_path / "q.diskqueue.000000.dat").exists()
    queue.put_many([b"3"])
    queue.close()
    assert drain(open_queue()) == [b"3"]


def test_short_write_is_continued(open_queue: OpenQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda descriptor, data, pos: pwrite(descriptor, data[:3], pos))
    queue = open_queue()
    queue.put_many([b"first", b"second"])
    assert drain(queue) == [b"first", b"second"]


def test_write_file_that_cannot_be_opened_is_an_error(open_queue: OpenQueue, tmp_path: Path) -> None:
    queue = open_queue()
    path = tmp_path / "q.diskqueue.000000.dat"
    path.mkdir()
    with pytest.raises(StorageError) as raised:
        queue.put_many([b"1"])
    assert str(raised.value) == f"open {path}: is a directory"
    assert (raised.value.written, queue.depth) == (0, 0)
    path.rmdir()
    queue.put_many([b"2"])
    assert drain(queue) == [b"2"]


# Emptying, deleting, closing


def test_empty_removes_the_files_and_goes_on_in_the_next(open_queue: OpenQueue, tmp_path: Path) -> None:
    queue = open_queue(max_bytes_per_file=20)
    queue.put_many([b"123456"] * 5)
    queue.start_sync().get()
    queue.peek_many(1, ALL)
    queue.empty()
    assert files(tmp_path) == {}
    assert queue.depth == 0
    assert queue.peek_many(ALL, ALL) == []
    queue.put_many([b"after"])
    queue.close()
    assert files(tmp_path) == {"q.diskqueue.000003.dat": record(b"after"), "q.diskqueue.meta.dat": b"1\n3,0\n3,9\n"}
    assert drain(open_queue()) == [b"after"]


def test_empty_keeps_files_set_aside_and_those_of_other_queues(open_queue: OpenQueue, tmp_path: Path) -> None:
    kept = ["q.diskqueue.000000.dat.bad", "q2.diskqueue.000000.dat", "q:c.diskqueue.000000.dat"]
    for name in kept:
        (tmp_path / name).write_bytes(b"")
    queue = open_queue()
    queue.put_many([b"1"])
    queue.empty()
    assert sorted(files(tmp_path)) == sorted(kept)


@pytest.mark.parametrize("end", [DiskQueue.delete, DiskQueue.close])
def test_queue_that_ended_takes_and_gives_nothing(
    open_queue: OpenQueue, tmp_path: Path, end: Callable[[DiskQueue], object]
) -> None:
    queue = open_queue(max_bytes_per_file=20)
    queue.put_many([b"123456"] * 5)
    end(queue)
    assert bool(files(tmp_path)) == bool(queue.depth) == (end == DiskQueue.close)
    with pytest.raises(StorageError, match="^exiting$") as raised:
        queue.put_many([b"1"])
    assert raised.value.written == 0
    with pytest.raises(StorageError, match="^exiting$"):
        queue.empty()
    assert queue.peek_many(ALL, ALL) == []
    left = files(tmp_path)
    queue.close()
    get_hub().join(timeout=0.1)
    assert files(tmp_path) == left


def test_empty_reports_files_that_stay(
    open_queue: OpenQueue, log_stream: io.StringIO, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = open_queue()
    queue.put_many([b"1"])

    def refuse(path: str) -> None:
        raise OSError(errno.EACCES, os.strerror(errno.EACCES))

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", refuse)
        with pytest.raises(StorageError, match=r"^remove .*: permission denied$"):
            queue.empty()
    for kind, number in (("data", "000000"), ("metadata", "meta")):  # the texts of the real nsqd
        path = tmp_path / f"q.diskqueue.{number}.dat"
        line = f"ERROR: DISKQUEUE(q) failed to remove {kind} file - remove {path}: permission denied\n"
        assert line in log_stream.getvalue()
    assert queue.depth == 0
    queue.put_many([b"2"])
    assert drain(queue) == [b"2"]


def test_no_descriptor_stays_open(open_queue: OpenQueue, tmp_path: Path) -> None:
    for end in (DiskQueue.close, DiskQueue.delete, DiskQueue.empty):
        for _ in range(3):
            queue = open_queue(max_bytes_per_file=50)
            queue.put_many([b"123456"] * 20)
            queue.peek_many(ALL, ALL)
            queue.advance(5)
            queue.peek_many(ALL, ALL)
            end(queue)
        assert opened(tmp_path) == 0
