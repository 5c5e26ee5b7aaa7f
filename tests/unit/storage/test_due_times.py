"""The side file of due times: its bytes, what a kill leaves, and that nothing in it can do harm."""

import errno
import io
import os
import stat
import struct
from collections.abc import Callable
from pathlib import Path
from time import time_ns

import pytest

from gnsqd.log import Level, Logger
from gnsqd.storage.diskqueue import DiskQueue
from gnsqd.storage.due_times import DueTimes

HOUR = 3600 * 10**9
FIRST_LINE = b"gnsqd due times 1\n"
ID, OTHER = b"18a2973ca8f09000", b"18a2973ca8f09001"

OpenQueue = Callable[..., DiskQueue]


def entry(attempts: int, id: bytes, due: int, payload: bytes = b"") -> bytes:
    """As the module's docstring says."""
    return struct.pack(">H16sqi", attempts, id, due, len(payload)) + payload


def payload(attempts: int, id: bytes, body: bytes = b"") -> bytes:
    return struct.pack(">qH16s", 1_795_228_294_479_665_042, attempts, id) + body


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "q.diskqueue.due_times.dat"


@pytest.fixture
def due_times(path: Path, log_stream: io.StringIO) -> DueTimes:
    return DueTimes("q", str(path), Logger("", Level.DEBUG, log_stream))


def test_file_says_what_is_still_to_come_and_no_more(path: Path, due_times: DueTimes) -> None:
    soon, later = time_ns() + HOUR, time_ns() + 2 * HOUR
    due_times.add(ID, 0, soon)
    due_times.add(OTHER, 3, later)
    due_times.add(OTHER, 2, time_ns() - 1)
    due_times.save()
    assert path.read_bytes() == FIRST_LINE + entry(0, ID, soon) + entry(3, OTHER, later)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(path.parent.iterdir()) == [path]


def test_due_time_counts_once_and_only_for_the_same_attempts(path: Path, due_times: DueTimes) -> None:
    due = time_ns() + HOUR
    path.write_bytes(FIRST_LINE + entry(0, ID, due) + entry(1, OTHER, due) + entry(2, OTHER, time_ns() - 1))
    assert due_times.load() == {}
    assert len(due_times) == 2
    assert due_times.pop(ID, 1) == due_times.pop(OTHER, 2) == 0
    assert due_times.pop(ID, 0) == due_times.pop(OTHER, 1) == due
    assert due_times.pop(ID, 0) == 0
    assert not due_times


def test_what_is_held_back_in_memory_is_in_the_file_until_it_is_released(path: Path, due_times: DueTimes) -> None:
    due = time_ns() + HOUR
    first, second, third = payload(0, ID, b"first"), payload(2, OTHER), payload(3, OTHER)
    path.write_bytes(content := FIRST_LINE + entry(0, ID, due) + entry(2, OTHER, due))
    due_times.load()
    due_times.hold([(first, due), (second, due), (third, due)])
    due_times.release([(OTHER, 3)])
    assert path.read_bytes() == content
    due_times.write_held()
    content += entry(0, ID, due, first) + entry(2, OTHER, due, second)
    assert path.read_bytes() == content
    due_times.release([(ID, 0), (ID, 1)])
    due_times.release([(ID, 0)])
    due_times.write_held()
    content += entry(0, ID, 0)
    assert path.read_bytes() == content


def test_file_does_not_grow_by_what_was_released(path: Path, due_times: DueTimes) -> None:
    due = time_ns() + HOUR
    stays = payload(0, ID, b"stays")
    due_times.add(OTHER, 9, due)
    due_times.hold([(stays, due)])
    largest = 0
    for number in range(100):
        due_times.hold([(payload(1, b"%016d" % number, b"x" * 100_000), due)])
        due_times.write_held()
        largest = max(largest, path.stat().st_size)
        due_times.release([(b"%016d" % number, 1)])
    assert largest < 3 << 20
    due_times.save()
    assert path.read_bytes() == FIRST_LINE + entry(9, OTHER, due) + entry(0, ID, due, stays)
    due_times.release([(ID, 0)])
    assert due_times.pop(OTHER, 9) == due
    due_times.save()
    assert not path.exists()


def test_hints_whose_time_has_come_take_no_memory(due_times: DueTimes) -> None:
    due = time_ns() + HOUR
    for number in range(10_000):
        due_times.add(b"%016d" % number, 0, due if number % 10 == 0 else 1)
    assert len(due_times) < 3000
    assert all(due_times.pop(b"%016d" % number, 0) == due for number in range(0, 10_000, 10))


def test_file_is_begun_by_what_is_held_back(path: Path, due_times: DueTimes) -> None:
    due_times.hold([(payload(0, ID), 5)])
    due_times.write_held()
    assert path.read_bytes() == FIRST_LINE + entry(0, ID, 5, payload(0, ID))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    due_times.remove()
    assert not path.exists()


BROKEN = {
    b"": "is not a file of due times",
    b"gnsqd due times 2\n": "is not a file of due times",
    b"{}": "is not a file of due times",
    FIRST_LINE + b"x": "ends in the middle of an entry",
    FIRST_LINE + entry(0, ID, 1)[:-1]: "ends in the middle of an entry",
    FIRST_LINE + entry(0, ID, 1, b"payload")[:-1]: "ends in the middle of an entry",
    FIRST_LINE + struct.pack(">H16sqi", 0, ID, 1, -30): "ends in the middle of an entry",
}


@pytest.mark.parametrize("content, complaint", BROKEN.items())
def test_broken_file_is_named_and_stops_nothing(
    open_queue: OpenQueue, path: Path, log_stream: io.StringIO, content: bytes, complaint: str
) -> None:
    path.write_bytes(content)
    queue = open_queue()
    assert not queue.due_times
    line = f"ERROR: DISKQUEUE(q) deferred messages may come early or be missing - {path} {complaint}\n"
    assert line in log_stream.getvalue()
    assert f"WARNING: DISKQUEUE(q) saving bad file as {path}.bad\n" in log_stream.getvalue()
    queue.close()
    assert not path.exists()
    assert Path(f"{path}.bad").read_bytes() == content


def test_entries_before_a_broken_one_count(path: Path, due_times: DueTimes) -> None:
    due = time_ns() + HOUR
    path.write_bytes(FIRST_LINE + entry(0, ID, due) + entry(0, OTHER, due, payload(0, OTHER)) + b"torn")
    assert due_times.load() == {struct.pack(">H", 0) + OTHER: payload(0, OTHER)}
    assert due_times.pop(ID, 0) == due


def test_closed_queue_has_the_file_as_long_as_there_is_something_to_hold_back(
    open_queue: OpenQueue, path: Path
) -> None:
    due = time_ns() + HOUR
    queue = open_queue()
    queue.put_many([payload(0, ID)])
    queue.due_times.add(ID, 0, due)
    queue.close()
    assert path.read_bytes() == FIRST_LINE + entry(0, ID, due)
    again = open_queue()
    again.advance(len(again.peek_many(10, 1000)))
    again.close()  # nothing is left in the queue that the entry could be of
    assert not path.exists()


@pytest.mark.parametrize("due", [1, 1 << 62], ids=["past", "future"])
def test_killed_queue_gets_back_what_was_held_back_in_memory(open_queue: OpenQueue, path: Path, due: int) -> None:
    held, released, unread = payload(0, ID, b"held"), payload(1, OTHER, b"released"), payload(0, OTHER, b"unread")
    queue = open_queue()
    queue.put_many([unread])
    queue.close()
    path.write_bytes(
        FIRST_LINE + entry(0, ID, due, held) + entry(1, OTHER, due, released) + entry(1, OTHER, 0) + entry(3, ID, due)
    )
    for _ in range(2):  # killed once more
        queue = open_queue()
        assert queue.peek_many(10, 1000) == [unread, held]
        assert queue.due_times.pop(ID, 0) == (due if due > 1 else 0)
        assert queue.due_times.pop(OTHER, 1) == 0


def test_message_whose_reading_was_not_told_is_not_put_back_twice(open_queue: OpenQueue, path: Path) -> None:
    due = time_ns() + HOUR
    queue = open_queue()
    queue.put_many([payload(0, ID)])
    queue.close()
    path.write_bytes(FIRST_LINE + entry(0, ID, due, payload(0, ID)))
    queue = open_queue()
    assert queue.peek_many(10, 1000) == [payload(0, ID)]
    assert queue.depth == 1
    assert queue.due_times.pop(ID, 0) == due


def test_message_that_a_kill_during_the_exit_left_in_both_places_comes_once(open_queue: OpenQueue, path: Path) -> None:
    queue = open_queue(max_bytes_per_file=100, sync_every=1)
    others = [payload(0, b"%016d" % number) for number in range(50)]
    queue.put_many([*others, payload(0, ID)])
    queue.close()
    path.write_bytes(FIRST_LINE + entry(0, ID, 1, payload(0, ID)))
    assert open_queue(max_bytes_per_file=100, sync_every=1).depth == 51


def test_what_cannot_be_put_back_stops_nothing_and_waits_for_the_next_start(
    open_queue: OpenQueue, path: Path, log_stream: io.StringIO
) -> None:
    large = payload(0, ID, b"x" * 500)
    path.write_bytes(FIRST_LINE + entry(0, ID, 1, large) + entry(0, OTHER, 1, payload(0, OTHER)))
    queue = open_queue(min_msg_size=100)
    assert queue.peek_many(10, 1000) == [large]
    assert "failed to put a deferred message back - invalid message write size (26)" in log_stream.getvalue()
    queue.close()
    assert path.read_bytes() == FIRST_LINE + entry(0, OTHER, 1, payload(0, OTHER))
    assert open_queue().peek_many(10, 1000) == [large, payload(0, OTHER)]


def test_messages_that_a_full_disk_does_not_take_back_wait_for_the_next_start(
    open_queue: OpenQueue, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.write_bytes(content := FIRST_LINE + entry(0, ID, 1, payload(0, ID)))

    def full(descriptor: int, data: bytes, pos: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        queue = open_queue()
        assert queue.depth == 0
        queue.close()
    assert path.read_bytes() == content
    assert open_queue().peek_many(10, 1000) == [payload(0, ID)]


@pytest.mark.parametrize("drop", [DiskQueue.empty, DiskQueue.delete])
def test_emptied_queue_forgets_its_due_times(
    open_queue: OpenQueue, path: Path, drop: Callable[[DiskQueue], None]
) -> None:
    path.write_bytes(FIRST_LINE + entry(0, ID, time_ns() + HOUR))
    queue = open_queue()
    assert queue.due_times
    drop(queue)
    assert not queue.due_times
    assert not path.exists()


def test_due_times_that_cannot_be_written_do_not_stop_the_queue(
    open_queue: OpenQueue, path: Path, log_stream: io.StringIO
) -> None:
    queue = open_queue()
    queue.put_many([payload(0, ID)])
    path.mkdir()
    queue.due_times.hold([(payload(0, OTHER), time_ns() + HOUR)])
    assert queue.start_sync().get()
    assert f"ERROR: DISKQUEUE(q) failed to write due times - open {path}: is a dir" in log_stream.getvalue()
    queue.due_times.add(ID, 0, time_ns() + HOUR)
    queue.close()
    assert "ERROR: DISKQUEUE(q) failed to write due times - rename " in log_stream.getvalue()
    assert not list(path.parent.glob("*.tmp"))
