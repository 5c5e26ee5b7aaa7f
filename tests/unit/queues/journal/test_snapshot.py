"""Snapshots of a journal whose queues hold many messages back: made in steps, and nothing in them is out of date."""

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest

from gnsqd.queues.journal.journal import Journal
from gnsqd.queues.journal.segments import OpenFiles
from gnsqd.queues.journal.states import STEP, Held, QueueNotes, Snapshot
from gnsqd.queues.message import Message
from gnsqd.shared.disk_format import parse_segment_name
from gnsqd.shared.errors import StorageError
from gnsqd.shared.journal import records
from gnsqd.shared.journal.records import Encoder
from gnsqd.shared.journal.spans import Spans
from unit.queues.journal.topics import JournaledTopic, failing, frame, notes
from unit.storage.conftest import OpenTopic

HELD = 50_000  # messages
PIECES = STEP // (1000 * 18) + 1  # of 1,000 messages each, which a step makes
FAR = 1 << 62  # a due time
FRAME = frame(0, 100)


class Notes(QueueNotes):
    """Those of a channel; it counts the pieces that snapshots have taken of it."""

    pieces = 0

    def held(self) -> Iterator[Held]:
        for piece in super().held():
            self.pieces += 1
            yield piece


class Holding(JournaledTopic):
    """A topic with one channel, which holds back the messages from 1 to HELD, each delivered twice."""

    kind = Notes

    @property
    def channel(self) -> Notes:
        return cast(Notes, self.channels[0])

    def hold(self) -> None:
        for start in range(1, HELD, 1000):
            self.publish(1000)
            for number in range(start, start + 1000):
                self.channel.deferred.push(10**18, number)
                self.channel.attempts[number] = 2
        self.journal.flush()
        self.channel.pieces = 0

    @property
    def pieces(self) -> int:
        return self.channel.pieces

    def publish(self, count: int) -> int:
        """Returns the number of the first."""
        first = self.journal.log.append([FRAME] * count)
        self.topic.note_finished_span(first, first + count)
        return first

    def fill(self) -> None:
        """Publishes until the next segment is due, and its snapshot begun."""
        self.channel.pieces = 0
        segments = len(self.segments())
        while not self.pieces:
            self.publish(100)
            self.journal.flush()
        assert len(self.segments()) == segments

    def end_snapshot(self) -> None:
        """Ends it as the loop of all journals does."""
        segments = len(self.segments())
        for _ in range(HELD // (PIECES * 1000) + 2):
            if len(self.segments()) > segments:
                return
            before = self.pieces
            self.journals.flush_dirty()
            assert self.pieces - before <= PIECES
        raise AssertionError("the snapshot does not end")

    def segments(self) -> list[str]:
        return sorted(name for name in self.names() if parse_segment_name(name))

    def unfinished(self) -> list[str]:
        return [name for name in self.names() if name.endswith(".tmp")]


def delivered(number: int, attempts: int) -> Message:
    message = Message(FRAME, attempts, 0)
    message.number = number
    return message


@pytest.fixture
def topic(open_topic: OpenTopic) -> Holding:
    topic = cast(Holding, open_topic(kind=Holding))
    topic.hold()
    return topic


Replay = Callable[[Holding], Journal]


@pytest.fixture
def after_kill(open_topic: OpenTopic, tmp_path: Path) -> Replay:
    """Returns the journal of a daemon that starts on a copy of the files."""
    return lambda topic: open_topic(directory=shutil.copytree(topic.directory, tmp_path / "killed")).journal


def is_whole(journal: Journal) -> bool:
    """Returns True if nothing was lost of what the channel held back when this began."""
    state = journal.replay.queues[1]
    assert not journal.replay.damaged
    assert not journal.replay.lost
    assert min(state.due.values()) > 10**18
    assert state.due.keys() == state.attempts.keys()
    return state.attempts == dict.fromkeys(range(1, HELD + 1), 2)


def test_snapshot_is_made_in_steps_while_the_old_segment_grows(topic: Holding) -> None:
    topic.fill()
    assert topic.pieces <= PIECES
    path = topic.directory / topic.segments()[-1]
    size = path.stat().st_size
    before = topic.pieces
    first = topic.publish(1)
    topic.journal.flush()
    assert path.stat().st_size > size  # a publisher does not do the work of the loop
    assert topic.pieces == before
    topic.end_snapshot()
    assert topic.pieces >= HELD // 1000
    assert topic.journal.log.read(first, first + 1) == (first, [FRAME], 0)


@pytest.mark.parametrize("ends", [False, True])
def test_what_happens_during_a_snapshot_is_there_after_a_kill(topic: Holding, after_kill: Replay, ends: bool) -> None:
    first_of_all = topic.publish(3)
    topic.fill()
    channel = topic.channel
    first = topic.publish(4)
    channel.note_taken([delivered(first, 0), delivered(first + 1, 0), delivered(first_of_all, 0)])
    topic.journal.flush()
    channel.note_taken([delivered(1, 2)])
    channel.note_held(delivered(first + 1, 1), FAR)
    channel.note_held(delivered(2, 3), FAR + 1)
    topic.journal.flush()
    channel.note_finished_span(3, 5)
    channel.note_finished_span(first_of_all, first_of_all + 1)
    late = notes("t:late", topic.journal, topic.topic.queue.log)
    late.finished = topic.topic.finished.copy()
    topic.journal.states.add(late)
    last = topic.publish(1)
    late.note_taken([delivered(last, 0)])
    if ends:
        topic.end_snapshot()
    else:
        topic.journal.flush()
    journal = after_kill(topic)
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
    assert journal.log.next_number == last + 1


def test_a_start_decodes_the_last_snapshot_and_no_other(
    topic: Holding, after_kill: Replay, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        topic.fill()
        topic.end_snapshot()
    decoded = []

    def decode_held(payload: bytes) -> tuple[int, list[tuple[int, int, int]]]:
        decoded.append(payload)
        return original(payload)

    original = records.decode_held
    monkeypatch.setattr(records, "decode_held", decode_held)
    journal = after_kill(topic)
    assert len(decoded) == HELD // 1000
    assert is_whole(journal)


def test_channel_that_is_deleted_during_a_snapshot_stays_deleted(topic: Holding, after_kill: Replay) -> None:
    topic.fill()
    topic.journal.states.remove(topic.channel)
    topic.journal.flush()
    for _ in range(5):
        topic.publish(100)
        topic.journal.retry()
    journal = after_kill(topic)
    assert list(journal.replay.queues) == [0]
    assert journal.replay.whole  # older segments may be deleted
    assert topic.unfinished() == []


def test_exit_during_a_snapshot_is_known_after_a_kill(topic: Holding, after_kill: Replay) -> None:
    topic.fill()
    topic.journal.mark_converting()
    for _ in range(5):
        topic.journal.retry()
    journal = after_kill(topic)
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
    snapshot.file.discard()


def test_what_follows_a_snapshot_is_written_in_steps(tmp_path: Path) -> None:
    snapshot = Snapshot(os.fspath(tmp_path / "segment"), [], Encoder(0), OpenFiles())
    notes = [b"%01000d" % number for number in range(1000)]
    snapshot.notes += notes[:-1]
    assert not snapshot.advance()
    snapshot.notes += notes[-1:]
    while not snapshot.advance():
        pass
    file, rest = snapshot.finish(1, 1)
    assert len(rest) < STEP
    written = (tmp_path / "segment").read_bytes() + rest
    assert b"".join(notes) in written
    assert os.listdir(tmp_path) == ["segment"]
    file.close()


def test_full_disk_ends_a_snapshot_and_another_is_made(
    topic: Holding, after_kill: Replay, monkeypatch: pytest.MonkeyPatch
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
    topic.publish(1)
    topic.journal.flush()
    assert topic.journal.failed is None
    topic.end_snapshot()
    journal = after_kill(topic)
    assert is_whole(journal)


def test_kill_before_the_end_of_a_snapshot_loses_nothing(
    topic: Holding, open_topic: OpenTopic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic.fill()
    first = topic.publish(1)
    topic.journal.flush()
    segments = topic.segments()
    rename = os.rename

    def rename_and_copy(old: str, new: str) -> None:
        rename(old, new)
        shutil.copytree(topic.directory, tmp_path / "killed")

    monkeypatch.setattr(os, "rename", rename_and_copy)
    topic.end_snapshot()
    journal = open_topic(directory=tmp_path / "killed").journal
    assert len(topic.segments()) == len(segments) + 1
    assert is_whole(journal)
    assert journal.log.read(first, first + 1) == (first, [FRAME], 0)


def test_exit_leaves_no_unfinished_snapshot(topic: Holding) -> None:
    topic.fill()
    assert topic.unfinished()
    topic.journal.close()
    assert topic.unfinished() == []


def test_failed_fsync_does_not_wait_for_the_snapshot(
    open_topic: OpenTopic, after_kill: Replay, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = cast(Holding, open_topic(durable=True, kind=Holding))
    topic.hold()
    topic.journal.commit()
    topic.fill()
    first = topic.publish(1)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", failing(errno.EIO))
        with pytest.raises(StorageError, match="input/output error"):
            topic.journal.commit()
    topic.journal.commit()  # a new segment, and what is in it is whole
    journal = after_kill(topic)
    assert is_whole(journal)
    assert journal.log.read(first, first + 1) == (first, [FRAME], 0)
