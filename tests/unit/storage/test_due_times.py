"""The side file of due times: its bytes, what is left out, and that nothing in it can do harm."""

import io
import stat
import struct
from collections.abc import Callable
from pathlib import Path
from time import time_ns

import pytest

from gnsqd.errors import StorageError
from gnsqd.storage.diskqueue import DiskQueue
from gnsqd.storage.due_times import DueTimes

HOUR = 3600 * 10**9
ID, OTHER = b"18a2973ca8f09000", b"18a2973ca8f09001"

OpenQueue = Callable[..., DiskQueue]


def file_of(*entries: tuple[int, bytes, int]) -> bytes:
    """As the module's docstring says."""
    return b"gnsqd due times 1\n" + b"".join(struct.pack(">H16sq", *entry) for entry in entries)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "q.diskqueue.due_times.dat"


def test_file_says_what_is_still_to_come_and_no_more(path: Path) -> None:
    soon, later = time_ns() + HOUR, time_ns() + 2 * HOUR
    due_times = DueTimes(str(path))
    due_times.add(ID, 0, soon)
    due_times.add(OTHER, 3, later)
    due_times.add(OTHER, 2, time_ns() - 1)
    due_times.save()
    assert path.read_bytes() == file_of((0, ID, soon), (3, OTHER, later))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(path.parent.iterdir()) == [path]


def test_due_time_counts_once_and_only_for_the_same_attempts(path: Path) -> None:
    due = time_ns() + HOUR
    path.write_bytes(file_of((0, ID, due), (1, OTHER, due), (2, OTHER, time_ns() - 1)))
    due_times = DueTimes(str(path))
    due_times.load()
    assert len(due_times) == 2
    assert due_times.pop(ID, 1) == due_times.pop(OTHER, 2) == 0
    assert due_times.pop(ID, 0) == due_times.pop(OTHER, 1) == due
    assert due_times.pop(ID, 0) == 0
    assert not due_times


@pytest.mark.parametrize("content", [b"", b"gnsqd due times 2\n", file_of((0, ID, 1))[:-1], file_of() + b"x", b"{}"])
def test_file_of_another_kind_is_refused(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    due_times = DueTimes(str(path))
    with pytest.raises(StorageError) as raised:
        due_times.load()
    assert str(raised.value) == f"{path} is not a file of due times"
    assert not due_times


def test_queue_with_an_unreadable_file_of_due_times_opens_and_says_so(
    open_queue: OpenQueue, path: Path, log_stream: io.StringIO
) -> None:
    path.write_bytes(b"garbage")
    queue = open_queue()
    assert not queue.due_times
    line = f"WARNING: DISKQUEUE(q) delivering deferred messages at once - {path} is not a file of due times"
    assert line in log_stream.getvalue()
    queue.close()
    assert not path.exists()


def test_closed_queue_has_the_file_as_long_as_there_is_something_to_hold_back(
    open_queue: OpenQueue, path: Path
) -> None:
    due = time_ns() + HOUR
    queue = open_queue()
    queue.put_many([b"x" * 26])
    queue.due_times.add(ID, 0, due)
    queue.close()
    assert path.read_bytes() == file_of((0, ID, due))
    again = open_queue()
    again.advance(len(again.peek_many(10, 1000)))
    again.close()  # nothing is left in the queue that the entry could be of
    assert not path.exists()


@pytest.mark.parametrize("drop", [DiskQueue.empty, DiskQueue.delete])
def test_emptied_queue_forgets_its_due_times(
    open_queue: OpenQueue, path: Path, drop: Callable[[DiskQueue], None]
) -> None:
    path.write_bytes(file_of((0, ID, time_ns() + HOUR)))
    queue = open_queue()
    assert queue.due_times
    drop(queue)
    assert not queue.due_times
    assert not path.exists()


def test_due_times_that_cannot_be_written_do_not_stop_the_end(
    open_queue: OpenQueue, path: Path, log_stream: io.StringIO
) -> None:
    queue = open_queue()
    queue.put_many([b"x" * 26])
    queue.due_times.add(ID, 0, time_ns() + HOUR)
    path.mkdir()
    queue.close()
    assert "ERROR: DISKQUEUE(q) failed to write due times - rename " in log_stream.getvalue()
    assert not list(path.parent.glob("*.tmp"))
