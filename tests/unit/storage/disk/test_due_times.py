"""The side file of due times: its bytes, what a kill leaves, and that nothing in it can do harm."""

import io
import stat
import struct
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from pathlib import Path
from random import Random
from time import time_ns

import gevent
import pytest

from gnsqd.log import Level, Logger
from gnsqd.shared.errors import StorageError
from gnsqd.storage.disk.diskqueue import DiskQueue
from gnsqd.storage.disk.due_times import DueTimes
from gnsqd.storage.syncer import Syncer
from unit.storage.conftest import OpenQueue
from unit.storage.disk.test_diskqueue import drain
from unit.storage.greenlets import eventually

HOUR = 3600 * 10**9
FIRST_LINE = b"gnsqd due times 1\n"
ID, OTHER = b"18a2973ca8f09000", b"18a2973ca8f09001"


def entry(attempts: int, id: bytes, due: int, payload: bytes = b"") -> bytes:
    """Returns an entry as the module's docstring specifies it."""
    return struct.pack(">H16sqi", attempts, id, due, len(payload)) + payload


def payload(attempts: int, id: bytes, body: bytes = b"") -> bytes:
    return struct.pack(">qH16s", 1_795_228_294_479_665_042, attempts, id) + body


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "q.diskqueue.due_times.dat"


@pytest.fixture
def due_times(path: Path, log_stream: io.StringIO, syncer: Syncer) -> DueTimes:
    return DueTimes("q", str(path), Logger("", Level.DEBUG, log_stream), syncer)


def test_file_says_what_is_still_to_come_and_no_more(path: Path, due_times: DueTimes) -> None:
    soon, later = time_ns() + HOUR, time_ns() + 2 * HOUR
    due_times.add(ID, 0, soon)
    due_times.add(OTHER, 3, later)
    due_times.add(OTHER, 2, time_ns() - 1)
    assert due_times.close(is_empty=False)
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
    due_times.hold([(third, due)])
    assert path.read_bytes() == FIRST_LINE + entry(3, OTHER, due, third)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    due_times.remove()
    assert not path.exists()
    path.write_bytes(content := FIRST_LINE + entry(0, ID, due) + entry(2, OTHER, due))
    due_times.load()
    due_times.hold([(first, due), (second, due)])
    content += entry(0, ID, due, first) + entry(2, OTHER, due, second)
    assert path.read_bytes() == content
    assert due_times.pop(ID, 0) == due
    due_times.release([(ID, 0), (ID, 1)])
    due_times.release([(ID, 0)])
    content += entry(0, ID, 0)
    assert path.read_bytes() == content


@pytest.fixture
def bytes_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Yields how much was read from the file, in one item."""
    size = [0]
    read = DueTimes._read

    def reading(due_times: DueTimes) -> Iterator[tuple[bytes, int, bytes]]:
        for found in read(due_times):
            size[0] += 30 + len(found[2])
            yield found

    monkeypatch.setattr(DueTimes, "_read", reading)
    return size


def hold(due_times: DueTimes, numbers: Iterable[int], size: int) -> None:
    due_times.hold([(payload(1, b"%016d" % number, b"x" * size), time_ns() + HOUR) for number in numbers])


def release(due_times: DueTimes, numbers: Iterable[int]) -> None:
    due_times.release([(b"%016d" % number, 1) for number in numbers])


def held_after_a_kill(path: Path, syncer: Syncer) -> set[int]:
    """Returns the numbers of the messages that come back."""
    loaded = DueTimes("q", str(path), Logger("", Level.FATAL, io.StringIO()), syncer).load()
    assert all(payload(1, key[2:]) == found[:26] for key, found in loaded.items())
    return {int(key[2:]) for key in loaded}


def test_release_costs_as_much_whatever_else_is_held(
    due_times: DueTimes, bytes_read: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    added = 0

    def counting_sum(numbers: Iterable[int]) -> int:
        nonlocal added
        total = 0
        for number in numbers:
            added += 1
            total += number
        return total

    monkeypatch.setattr("gnsqd.storage.disk.due_times.sum", counting_sum, raising=False)
    held = 2000
    hold(due_times, range(held), 2000)
    for number in range(held):
        release(due_times, [number])
        gevent.sleep(0)
    assert added <= held
    assert bytes_read[0] < 3 * held * 2000


def test_file_is_compacted_a_little_at_a_time(
    path: Path, due_times: DueTimes, bytes_read: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = count(step=0.0001)  # seconds: one entry in a tenth of a millisecond
    monkeypatch.setattr("gnsqd.hub.cooperative.perf_counter", lambda: next(clock))
    hold(due_times, range(1000), 10_000)
    bytes_read[0] = 0
    release(due_times, range(600))
    assert bytes_read[0] == 0
    most = before = 0
    while path.stat().st_size > 5 << 20:
        gevent.sleep(1e-6)
        most = max(most, bytes_read[0] - before)
        before = bytes_read[0]
    assert bytes_read[0] > 10_000_000
    assert most < 100_000


@pytest.mark.parametrize("seed", range(3))
def test_messages_come_and_go_while_the_file_is_compacted(
    path: Path, due_times: DueTimes, syncer: Syncer, seed: int
) -> None:
    random = Random(seed)
    held: set[int] = set()
    due = time_ns() + HOUR
    due_times.add(OTHER, 9, due)
    for turn in range(300):
        new = range(10 * turn, 10 * turn + 10)
        hold(due_times, new, 4000)
        held.update(new)
        gone = random.sample(sorted(held), min(len(held), random.randrange(18)))
        release(due_times, gone)
        held.difference_update(gone)
        for _ in range(random.randrange(4)):
            gevent.sleep(1e-6)
        if turn % 10 == 9:
            assert held_after_a_kill(path, syncer) == held
    eventually(lambda: path.stat().st_size < 3000 * 4000 / 2)
    assert held_after_a_kill(path, syncer) == held
    assert due_times.close(is_empty=False)
    assert held_after_a_kill(path, syncer) == held
    assert path.stat().st_size == len(FIRST_LINE) + 30 + len(held) * (30 + 26 + 4000)
    assert list(path.parent.iterdir()) == [path]
    release(due_times, held)
    assert due_times.pop(OTHER, 9) == due
    due_times.close(is_empty=False)
    assert not path.exists()


@pytest.mark.parametrize("removed", [True, False])
def test_compaction_ends_with_what_it_is_for(path: Path, due_times: DueTimes, syncer: Syncer, removed: bool) -> None:
    hold(due_times, range(1000), 10_000)
    release(due_times, range(600))
    with gevent.Timeout(30):
        while not list(path.parent.glob("*.tmp")):
            gevent.sleep(1e-6)
    if removed:
        due_times.remove()
    else:
        due_times.close(is_empty=False)
    hold(due_times, range(2000, 2002), 0)
    eventually(lambda: not list(path.parent.glob("*.tmp")))
    assert held_after_a_kill(path, syncer) == {2000, 2001, *(() if removed else range(600, 1000))}


def test_compaction_that_fails_is_not_tried_again_with_each_message(
    path: Path, due_times: DueTimes, syncer: Syncer, monkeypatch: pytest.MonkeyPatch, log_stream: io.StringIO
) -> None:
    hold(due_times, range(1000), 10_000)

    def full(path: str) -> None:
        raise StorageError("no space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("gnsqd.storage.disk.due_times.sync_path", full)
        for number in range(550):
            release(due_times, [number])
            gevent.sleep(1e-6)
        eventually(log_stream.getvalue)
        for number in range(550, 600):
            release(due_times, [number])
            gevent.sleep(1e-6)
    assert log_stream.getvalue().count("failed to write due times - no space left on device") == 1
    assert held_after_a_kill(path, syncer) == set(range(600, 1000))
    release(due_times, range(600, 1000))
    eventually(lambda: not path.exists())


def test_hints_whose_time_has_come_take_no_memory(due_times: DueTimes) -> None:
    due = time_ns() + HOUR
    for number in range(10_000):
        due_times.add(b"%016d" % number, 0, due if number % 10 == 0 else 1)
    assert len(due_times) < 3000
    assert all(due_times.pop(b"%016d" % number, 0) == due for number in range(0, 10_000, 10))


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


def test_closed_queue_has_the_file_as_long_as_something_is_held_back(open_queue: OpenQueue, path: Path) -> None:
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


@pytest.mark.parametrize("count", [0, 50])
def test_message_that_a_kill_left_in_both_places_comes_once(open_queue: OpenQueue, path: Path, count: int) -> None:
    # A kill during an exit, or before meta had the position behind the message.
    due = time_ns() + HOUR
    queue = open_queue(max_bytes_per_file=100, sync_every=1)
    payloads = [*(payload(0, b"%016d" % number) for number in range(count)), payload(0, ID)]
    queue.put_many(payloads)
    queue.close()
    path.write_bytes(FIRST_LINE + entry(0, ID, due, payload(0, ID)))
    queue = open_queue(max_bytes_per_file=100, sync_every=1)
    assert queue.depth == len(payloads)
    assert drain(queue) == payloads
    assert queue.due_times.pop(ID, 0) == due


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


@pytest.mark.parametrize("drop", [DiskQueue.empty, DiskQueue.delete])
def test_emptied_queue_forgets_due_times(open_queue: OpenQueue, path: Path, drop: Callable[[DiskQueue], None]) -> None:
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
    assert queue.start_sync().get() is None
    assert f"ERROR: DISKQUEUE(q) failed to write due times - open {path}: is a dir" in log_stream.getvalue()
    queue.due_times.add(ID, 0, time_ns() + HOUR)
    queue.close()
    assert "ERROR: DISKQUEUE(q) failed to write due times - rename " in log_stream.getvalue()
    assert not list(path.parent.glob("*.tmp"))
