"""Snapshots of a journal whose queues hold many messages back: made in steps, and nothing in them is out of date."""

import errno
import io
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from gnsqd.errors import StorageError
from gnsqd.log import Level, Logger
from gnsqd.options import Options
from gnsqd.queues.journaled import JournaledQueue
from gnsqd.queues.message import Message
from gnsqd.storage.disk.record import parse_segment_name
from gnsqd.storage.journal import records
from gnsqd.storage.journal.journal import Journal
from gnsqd.storage.journal.maintenance import find_journals
from gnsqd.storage.journal.open_files import OpenFiles
from gnsqd.storage.journal.records import Encoder
from gnsqd.storage.journal.snapshot import STEP, Held, Snapshot
from gnsqd.storage.journal.spans import Spans
from gnsqd.storage.syncer import Syncer
from unit.storage.journal.topics import SEGMENT, failing, journal_options

HELD = 50_000  # messages
PIECES = STEP // (1000 * 18) + 1  # of 1,000 messages each, which a step makes
FAR = 1 << 62  # a due time
WITHOUT_MEMORY = Options(mem_queue_size=0)


class Queue(JournaledQueue):
    """A channel that counts the pieces that snapshots have taken of it."""

    pieces = 0

    def held(self) -> Iterator[Held]:
        for piece in super().held():
            self.pieces += 1
            yield piece


class Topic:
    """A topic with one channel, which holds back the messages from 1 to HELD, each delivered twice."""

    def __init__(self, directory: Path, syncer: Syncer, durable: bool = False) -> None:
        self.directory = directory
        self.dirty = 0
        self.log = Logger("", Level.DEBUG, io.StringIO())
        self.syncer = syncer
        self.durable = durable
        self.opened: list[Journal] = []
        directory.mkdir()
        self.journal = self.open_journal(directory)
        self.topic, self.channel = (Queue(name, WITHOUT_MEMORY, self.log, self.journal) for name in ("t", "t:c"))
        self.journal.add_queue(self.topic, 0)
        self.channel.index = self.journal.add_queue(self.channel)
        for start in range(1, HELD, 1000):
            self.put(1000)
            for number in range(start, start + 1000):
                self.channel.hold(delivered(number, 2), 10**18)
        self.journal.flush()
        self.channel.pieces = 0

    def put(self, count: int) -> int:
        """The number of the first."""
        first = self.journal.put([frame()] * count)
        self.topic.note_finished_span(first, first + count)
        return first

    def fill(self) -> None:
        """Until the next segment is due, and its snapshot begun."""
        segments = len(self.segments())
        while not self.channel.pieces:
            self.put(100)
            self.journal.flush()
        assert len(self.segments()) == segments

    def end_snapshot(self) -> None:
        """As the loop of all journals does."""
        segments = len(self.segments())
        for _ in range(HELD // (PIECES * 1000) + 2):
            if len(self.segments()) > segments:
                return
            assert self.dirty  # or the loop would not go on
            self.dirty = 0
            before = self.channel.pieces
            self.journal.retry()
            assert self.channel.pieces - before <= PIECES
        raise AssertionError("the snapshot does not end")

    def segments(self) -> list[str]:
        return sorted(name for name in os.listdir(self.directory) if parse_segment_name(name))

    def unfinished(self) -> list[str]:
        return [name for name in os.listdir(self.directory) if name.endswith(".tmp")]

    def after_kill(self, directory: Path) -> Journal:
        """What a daemon finds that starts on a copy of the files."""
        return self.open_journal(shutil.copytree(self.directory, directory))

    def is_whole(self, journal: Journal) -> bool:
        """Whether nothing was lost of what the channel held back when this began."""
        state = journal.replay.queues[self.channel.index]
        assert not journal.replay.damaged
        assert not journal.replay.lost
        assert min(state.due.values()) > 10**18
        assert state.due.keys() == state.attempts.keys()
        return state.attempts == dict.fromkeys(range(1, HELD + 1), 2)

    def close(self) -> None:
        for journal in self.opened:
            journal.close()

    def open_journal(self, directory: Path) -> Journal:
        def on_dirty(journal: Journal) -> None:
            self.dirty += 1

        paths = find_journals(os.fspath(directory), os.listdir(directory)).get("t", [])
        options = journal_options(directory, SEGMENT, self.durable)
        self.opened.append(Journal("t", options, paths, self.log, self.syncer, on_dirty, OpenFiles()))
        return self.opened[-1]


def frame() -> bytes:
    return (100).to_bytes(4, "big") + bytes(100)


def delivered(number: int, attempts: int) -> Message:
    message = Message(frame(), attempts, 0)
    message.number = number
    return message


@pytest.fixture
def topic(tmp_path: Path, syncer: Syncer) -> Iterator[Topic]:
    made = Topic(tmp_path / "data", syncer)
    yield made
    made.close()


def test_snapshot_is_made_in_steps_while_the_old_segment_grows(topic: Topic) -> None:
    topic.fill()
    assert topic.channel.pieces <= PIECES
    path = topic.directory / topic.segments()[-1]
    size = path.stat().st_size
    before = topic.channel.pieces
    first = topic.put(1)
    topic.journal.flush()
    assert path.stat().st_size > size  # a publisher does not do the work of the loop
    assert topic.channel.pieces == before
    topic.end_snapshot()
    assert topic.channel.pieces >= HELD // 1000
    assert topic.journal.read(first, first + 1) == (first, [frame()], 0)


def take(queue: JournaledQueue, messages: list[Message]) -> None:
    queue.taken(messages, messages)


@pytest.mark.parametrize("ends", [False, True])
def test_what_happens_during_a_snapshot_is_there_after_a_kill(topic: Topic, tmp_path: Path, ends: bool) -> None:
    first_of_all = topic.put(3)
    topic.fill()
    channel = topic.channel
    first = topic.put(4)
    take(channel, [delivered(first, 0), delivered(first + 1, 0), delivered(first_of_all, 0)])
    topic.journal.flush()
    take(channel, [delivered(1, 2)])
    channel.note_held(delivered(first + 1, 1), FAR)
    channel.note_held(delivered(2, 3), FAR + 1)
    topic.journal.flush()
    channel.note_finished_span(3, 5)
    channel.note_finished_span(first_of_all, first_of_all + 1)
    late = JournaledQueue("t:late", Options(), topic.log, topic.journal)
    late.finished = topic.topic.finished.copy()
    late.index = topic.journal.add_queue(late)
    last = topic.put(1)
    take(late, [delivered(last, 0)])
    if ends:
        topic.end_snapshot()
    else:
        topic.journal.flush()
    journal = topic.after_kill(tmp_path / "killed")
    states = journal.replay.queues
    assert not journal.replay.damaged
    attempts = states[channel.index].attempts
    assert [attempts.get(number, 0) for number in range(1, 7)] == [3, 3, 0, 0, 2, 2]
    assert [attempts.get(number, 0) for number in range(first, first + 4)] == [1, 1, 0, 0]
    assert attempts.get(first_of_all, 0) == 0
    assert [states[channel.index].due.get(number, 0) for number in (1, 2, first, first + 1)] == [0, FAR + 1, 0, FAR]
    finished = states[channel.index].finished
    assert [number for number in (1, 2, 3, 4, 5, first_of_all, first) if number in finished] == [3, 4, first_of_all]
    assert states[late.index].name == "t:late"
    assert states[late.index].attempts == {last: 1}
    assert journal.next_number == last + 1


def test_a_start_decodes_the_last_snapshot_and_no_other(
    topic: Topic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        topic.channel.pieces = 0
        topic.fill()
        topic.end_snapshot()
    decoded = []

    def decode_held(payload: bytes) -> tuple[int, list[tuple[int, int, int]]]:
        decoded.append(payload)
        return original(payload)

    original = records.decode_held
    monkeypatch.setattr(records, "decode_held", decode_held)
    journal = topic.after_kill(tmp_path / "killed")
    assert len(decoded) == HELD // 1000
    assert topic.is_whole(journal)


def test_channel_that_is_deleted_during_a_snapshot_stays_deleted(topic: Topic, tmp_path: Path) -> None:
    topic.fill()
    topic.journal.remove_queue(topic.channel)
    for _ in range(5):
        topic.put(100)
        topic.journal.retry()
    journal = topic.after_kill(tmp_path / "killed")
    assert list(journal.replay.queues) == [0]
    assert journal.replay.whole  # older segments may be deleted
    assert topic.unfinished() == []


def test_exit_during_a_snapshot_is_known_after_a_kill(topic: Topic, tmp_path: Path) -> None:
    topic.fill()
    topic.journal.mark_converting()
    for _ in range(5):
        topic.journal.retry()
    journal = topic.after_kill(tmp_path / "killed")
    assert journal.replay.converting


class Large:
    """A queue that has much to copy."""

    index = 1
    name = "t:c"
    held_count = STEP
    copies = 0

    def __init__(self) -> None:
        self.finished = Spans()

    def held(self) -> Iterator[Held]:
        self.copies += 1
        return iter([[(1, 2, 0)]])


def test_each_large_copy_has_a_step_of_its_own(tmp_path: Path) -> None:
    queues = [Large(), Large()]
    snapshot = Snapshot(os.fspath(tmp_path / "segment"), queues, Encoder(0), OpenFiles())  # type: ignore[arg-type]
    copies = []
    while not snapshot.advance():
        copies.append(sum(queue.copies for queue in queues))
    assert copies == [0, 1, 1, 2]  # made between steps of other work
    snapshot.discard()


def test_what_follows_a_snapshot_is_written_in_steps(tmp_path: Path) -> None:
    snapshot = Snapshot(os.fspath(tmp_path / "segment"), [], Encoder(0), OpenFiles())
    notes = [b"%01000d" % number for number in range(1000)]
    snapshot.follow(notes[:-1])
    assert not snapshot.advance()
    snapshot.follow(notes[-1:])
    while not snapshot.advance():
        pass
    file, rest = snapshot.finish(1, 1)
    assert len(rest) < STEP
    written = (tmp_path / "segment").read_bytes() + rest
    assert b"".join(notes) in written
    assert os.listdir(tmp_path) == ["segment"]
    file.close()


def test_full_disk_ends_a_snapshot_and_another_is_made(
    topic: Topic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic.fill()
    topic.journal.retry()
    assert topic.unfinished()
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", failing(errno.ENOSPC))
        with pytest.raises(StorageError, match=r"write .*/t\.journal\.000001\.dat: no space left on device"):
            topic.journal.retry()
    assert topic.journal.failed is not None
    assert topic.unfinished() == []
    topic.put(1)
    topic.journal.flush()
    assert topic.journal.failed is None
    topic.end_snapshot()
    journal = topic.after_kill(tmp_path / "killed")
    assert topic.is_whole(journal)


def test_kill_before_the_end_of_a_snapshot_loses_nothing(
    topic: Topic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic.fill()
    first = topic.put(1)
    topic.journal.flush()
    segments = topic.segments()
    rename = os.rename

    def rename_and_copy(old: str, new: str) -> None:
        rename(old, new)
        shutil.copytree(topic.directory, tmp_path / "killed")

    monkeypatch.setattr(os, "rename", rename_and_copy)
    topic.end_snapshot()
    journal = topic.open_journal(tmp_path / "killed")
    assert len(topic.segments()) == len(segments) + 1
    assert topic.is_whole(journal)
    assert journal.read(first, first + 1) == (first, [frame()], 0)


def test_exit_leaves_no_unfinished_snapshot(topic: Topic) -> None:
    topic.fill()
    assert topic.unfinished()
    topic.journal.close()
    assert topic.unfinished() == []


def test_failed_fsync_does_not_wait_for_the_snapshot(
    tmp_path: Path, syncer: Syncer, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = Topic(tmp_path / "data", syncer, durable=True)
    topic.journal.commit()
    topic.fill()
    first = topic.put(1)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", failing(errno.EIO))
        with pytest.raises(StorageError, match="input/output error"):
            topic.journal.commit()
    topic.journal.commit()  # a new segment, and what is in it is whole
    journal = topic.after_kill(tmp_path / "killed")
    assert topic.is_whole(journal)
    assert journal.read(first, first + 1) == (first, [frame()], 0)
    topic.close()
