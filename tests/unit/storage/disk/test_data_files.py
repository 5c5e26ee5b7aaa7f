"""The listing of the data files: one is enough, and another is made only where it may be out of date."""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from gnsqd.shared.disk_format import frame_records
from gnsqd.shared.errors import StorageError
from gnsqd.storage.disk.diskqueue import DiskQueue
from gnsqd.storage.disk.opening import DataFiles
from unit.storage.conftest import OpenQueue, list_data_files
from unit.storage.disk.test_diskqueue import drain

NAMES = [
    "t.diskqueue.meta.dat", "t.diskqueue.000003.dat", "t.diskqueue.1000000.dat", "t.diskqueue.000002.dat",
    "t.diskqueue.000001.dat.bad", "t.diskqueue.5.dat", "t.diskqueue.meta.dat.17.tmp",
    "t:c.diskqueue.000000.dat", "empty.diskqueue.meta.dat", "late.diskqueue.due_times.dat",
    "bad.diskqueue.000000.dat.bad", "j.journal.000000.dat", "x.diskqueue.000001.dat.diskqueue.000007.dat",
    "nsqd.dat",
]  # fmt: skip


def test_listing_gives_the_numbers_of_each_queue(tmp_path: Path, listings: list[str]) -> None:
    found = DataFiles(os.fspath(tmp_path), NAMES)
    numbers = {"t": [2, 3, 1000000], "t:c": [0], "empty": [], "x.diskqueue.000001.dat": [7]}
    for queue, expected in numbers.items():
        assert queue in found
        assert found.numbers(queue) == expected
    for queue in ("late", "bad", "j", "x", "c", "nsqd"):
        assert queue not in found
        assert found.numbers(queue) == []
    assert not listings


def test_queue_that_was_opened_is_in_doubt_until_it_is_deleted(tmp_path: Path, listings: list[str]) -> None:
    found = DataFiles(os.fspath(tmp_path), [])
    found.note_opened("t")
    (tmp_path / "t.diskqueue.000004.dat").write_bytes(b"")
    assert "t" in found
    assert found.numbers("t") == [4]
    assert listings
    listings.clear()
    found.note_deleted("t")
    assert "t" not in found
    assert found.numbers("t") == []
    assert not listings


@pytest.mark.parametrize("damage", ["none", "meta is missing", "meta is older"])
def test_queues_share_the_listing_of_the_start(
    open_queue: OpenQueue, tmp_path: Path, listings: list[str], damage: str
) -> None:
    # As after a kill, which may leave data files without meta, or with one that is older.
    for number in range(20):
        if damage != "meta is missing":
            write_pos = 5 if damage == "none" else 0
            (tmp_path / f"q{number}.diskqueue.meta.dat").write_bytes(b"1\n0,0\n0,%d\n" % write_pos)
        (tmp_path / f"q{number}.diskqueue.000000.dat").write_bytes(frame_records([b"x"]))
    data_files = list_data_files(tmp_path)
    listings.clear()
    queues = [open_queue(f"q{number}", data_files=data_files) for number in range(20)]
    assert [queue.peek_many(10, 1000) for queue in queues] == [[b"x"]] * 20
    assert not listings


def test_new_queues_list_nothing(open_queue: OpenQueue, tmp_path: Path, listings: list[str]) -> None:
    data_files = list_data_files(tmp_path)
    listings.clear()
    for number in range(20):
        for payload in (b"x", b"y"):
            queue = open_queue(f"q{number}", data_files=data_files)
            queue.put_many([payload])
            assert queue.peek_many(10, 1000) == [payload]
            queue.delete()
    assert not listings


@pytest.mark.parametrize("end", [DiskQueue.delete, DiskQueue.close])
def test_files_that_are_left_are_read_and_not_written_over(
    open_queue: OpenQueue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: Callable[[DiskQueue], object]
) -> None:
    data_files = list_data_files(tmp_path)
    queue = open_queue(data_files=data_files, max_bytes_per_file=5)
    queue.put_many([b"0", b"1", b"2"])
    queue.peek_many(10, 1000)
    queue.advance(1)
    unlink = os.unlink

    def refuse(path: str) -> None:
        if path.endswith("2.dat"):
            raise OSError(30, "Read-only file system")
        unlink(path)

    with monkeypatch.context() as patched, suppress(StorageError):
        patched.setattr(os, "unlink", refuse)
        end(queue)
    (tmp_path / "q.diskqueue.meta.dat").unlink(missing_ok=True)
    left = [b"2"] if end == DiskQueue.delete else [b"1", b"2"]
    assert drain(open_queue(data_files=data_files)) == left
