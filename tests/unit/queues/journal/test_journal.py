"""The journal of a topic: what it holds survives kills at every byte, and goes when nobody needs it."""

import errno
import io
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from gnsqd.queues.journal import log
from gnsqd.queues.journal.journal import Journal
from gnsqd.queues.journal.segments import Segments
from gnsqd.queues.journal.states import QueueNotes
from gnsqd.queues.message import Message
from gnsqd.shared.errors import StorageError
from gnsqd.shared.journal.records import FINISHED, Encoder
from unit.queues.journal.topics import failing, frame, notes, read_all
from unit.storage.conftest import OpenTopic

Open = Callable[..., tuple[Journal, QueueNotes, QueueNotes]]


@pytest.fixture
def open_journal(open_topic: OpenTopic, tmp_path: Path) -> Open:
    """Opens a journal on the files of `directory`, its topic's queue and that of a channel, as a topic begins."""

    def open(
        directory: Path = tmp_path, size: int = 1 << 30, durable: bool = False
    ) -> tuple[Journal, QueueNotes, QueueNotes]:
        topic = open_topic(directory=directory, size=size, durable=durable)
        return topic.journal, topic.topic, topic.channels[0]

    return open


def put(journal: Journal, *numbers: int, due: int = 0, size: int = 20) -> None:
    assert journal.log.append([frame(number, size) for number in numbers], due) == numbers[0]


def segments(directory: Path) -> list[Path]:
    return sorted(directory.glob("t.journal.*.dat"))


def test_messages_are_read_back_before_and_after_a_restart(open_journal: Open) -> None:
    journal, _, _ = open_journal()
    put(journal, 1, 2, 3)
    put(journal, 4, due=99)
    put(journal, 5)
    assert read_all(journal) == {number: frame(number) for number in range(1, 6)}
    assert journal.log.read(4, 6) == (4, [frame(4)], 99)
    journal.flush()
    again, _, _ = open_journal()
    assert again.log.next_number == 6
    assert read_all(again) == read_all(journal)


def test_messages_larger_than_a_read_are_read_back(open_journal: Open) -> None:
    journal, _, _ = open_journal(size=300_000)
    for number in range(1, 8):
        put(journal, number, size=100_000)
    put(journal, 8, 9, 10, size=100_000)
    journal.flush()
    assert read_all(journal) == {number: frame(number, 100_000) for number in range(1, 11)}
    assert read_all(open_journal()[0]) == read_all(journal)


@pytest.mark.parametrize("durable", [False, True])
def test_segments_go_when_every_queue_is_done_with_them(open_journal: Open, tmp_path: Path, durable: bool) -> None:
    journal, topic, channel = open_journal(size=1000, durable=durable)
    for number in range(1, 200):
        put(journal, number)
        topic.note_finished_span(number, number + 1)
        journal.commit()
    count = len(segments(tmp_path))
    assert count > 5
    channel.note_finished_span(2, 200)
    journal.commit()
    assert len(segments(tmp_path)) == count, "the oldest message is live"
    channel.note_finished_span(1, 2)
    journal.commit()
    assert len(segments(tmp_path)) == 1


def test_large_segment_of_finished_messages_is_left_early(
    open_journal: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "MIN_ROLL", 1000)
    journal, topic, channel = open_journal()
    for number in range(1, 500):
        put(journal, number)
        topic.note_finished_span(number, number + 1)
        channel.note_finished_span(number, number + 1)
        journal.flush()
    assert sum(path.stat().st_size for path in segments(tmp_path)) < 5000


def test_every_kind_of_torn_end_is_cut_off_and_the_rest_counts(
    open_journal: Open, tmp_path: Path, log_stream: io.StringIO
) -> None:
    original = tmp_path / "original"
    original.mkdir()
    journal, topic, channel = open_journal(original)
    ends = []  # (size, messages, finished by the channel)
    for number in range(1, 5):
        put(journal, number)
        topic.note_finished_span(number, number + 1)
        journal.flush()
        ends.append((segments(original)[0].stat().st_size, number, number - 1))
        channel.note_finished_span(number, number + 1)
        journal.flush()
        ends.append((segments(original)[0].stat().st_size, number, number))
    whole = segments(original)[0].read_bytes()
    for size in range(len(whole) + 1):
        directory = tmp_path / f"{size}"
        directory.mkdir()
        (directory / "t.journal.000000.dat").write_bytes(whole[:size])
        again, _, queue = open_journal(directory)
        safe = [(messages, finished) for end, messages, finished in ends if end <= size]
        messages, finished = safe[-1] if safe else (0, 0)
        found = read_all(again)
        assert set(range(1, messages + 1)) <= set(found) <= set(range(1, messages + 2)), size
        assert finished <= queue.finished.floor - 1 <= finished + 1 or not finished, size
        number = again.log.next_number
        assert number > messages
        put(again, number)
        again.flush()
        third, _, _ = open_journal(directory)
        needed = {old: data for old, data in found.items() if old not in queue.finished} | {number: frame(number)}
        assert needed.items() <= read_all(third).items(), size
        shutil.rmtree(directory)
    assert "unfinished write, cut off" in log_stream.getvalue()


def test_body_that_looks_like_a_record_is_none(open_journal: Open, tmp_path: Path) -> None:
    # Where a damaged record is searched for the next one, what a publisher put into a body must not count.
    journal, _, _ = open_journal()
    forged = Encoder(0).spans(FINISHED, 0, [(0, 1000)])
    journal.log.append([len(forged).to_bytes(4, "big") + forged])
    journal.flush()
    (path,) = segments(tmp_path)
    data = bytearray(path.read_bytes())
    data[data.index(forged) - 20] ^= 0xFF
    path.write_bytes(data)
    assert open_journal()[0].replay.queues[0].finished.ceiling < 1000


@pytest.mark.parametrize("call", ["open", "pwritev", "rename", "second pwritev"])
def test_segment_that_can_not_be_begun_leaves_no_file(
    open_journal: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    journal, _, _ = open_journal()
    put(journal, 1)
    fail = failing(errno.ENOSPC)
    with monkeypatch.context() as patch:
        if call == "second pwritev":
            calls = iter([os.pwritev])
            patch.setattr(os, "pwritev", lambda *arguments: next(calls, fail)(*arguments))
        else:
            patch.setattr(os, call, fail)
        with pytest.raises(StorageError, match="no space left"):
            journal.commit()
    assert os.listdir(tmp_path) == []
    journal.commit()
    assert set(read_all(open_journal()[0])) == {1}


def test_commit_returns_only_after_an_fsync_that_worked(
    open_journal: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Else everything unconfirmed goes to a new segment, and attempts that keep failing leave no files.
    journal, _, _ = open_journal(durable=True)
    put(journal, 1, 2)
    with monkeypatch.context() as patch:
        synced: list[int] = []
        patch.setattr(os, "fdatasync", synced.append)
        journal.commit()
        assert synced
        count = len(synced)
        journal.commit()
        assert len(synced) == count, "nothing new, no fsync"
    put(journal, 3)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", failing(errno.EIO))
        for number in range(4, 9):
            for attempt in (journal.retry if journal.failed else journal.commit, journal.check):
                with pytest.raises(StorageError, match="input/output error"):
                    attempt()
            assert journal.failed is not None
            put(journal, number)
        assert len(segments(tmp_path)) == 2, "what is safe, and the last attempt"
    journal.retry()
    assert journal.failed is None
    journal.check()
    put(journal, 9)
    journal.commit()
    assert read_all(journal) == {number: frame(number) for number in range(1, 10)}
    journal.close()
    assert set(read_all(open_journal()[0])) == set(range(1, 10))


def test_remove_leaves_nothing_and_a_kill_in_between_leaves_nothing_that_counts(
    open_journal: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, _, _ = open_journal(size=500)
    for number in range(1, 30):
        put(journal, number)
        journal.flush()
    delete = Segments.delete
    with monkeypatch.context() as patch:
        patch.setattr(Segments, "delete", lambda self, segments: delete(self, segments[:2]))
        journal.remove()
    left = segments(tmp_path)
    assert left
    again, _, _ = open_journal()
    assert not read_all(again)
    put(again, again.log.next_number)
    again.flush()
    assert not set(left) & set(segments(tmp_path))
    again.remove()
    assert not segments(tmp_path)


def test_closed_journal_never_says_that_it_kept_a_message(open_journal: Open) -> None:
    journal, _, _ = open_journal()
    put(journal, 1)
    journal.commit()
    put(journal, 2)
    journal.close()
    with pytest.raises(StorageError, match="exiting"):
        journal.commit()


def test_snapshot_that_a_kill_cut_off_counts_for_nothing(open_journal: Open, tmp_path: Path) -> None:
    journal, topic, channel = open_journal()
    put(journal, 1, 2, 3)
    journal.flush()
    again, topic, channel = open_journal()
    topic.note_finished_span(1, 4)  # handed over to a new channel, say; the next write begins a segment
    channel.note_finished_span(1, 2)
    again.flush()
    path = segments(tmp_path)[-1]
    data = path.read_bytes()
    assert channel.finished.floor == 2
    for size in range(len(data)):
        path.write_bytes(data[:size])
        replay = open_journal()[0].replay
        assert replay.queues[0].finished.floor == 1, size
        assert replay.queues[1].finished.floor == 1, size
        for later in segments(tmp_path)[1:]:
            later.unlink()
    path.write_bytes(data)
    replay = open_journal()[0].replay
    assert (replay.queues[0].finished.floor, replay.queues[1].finished.floor) == (4, 2)


@pytest.mark.parametrize("begins_segment", [True, False])
def test_numbers_of_messages_that_a_kill_prevented_are_given_again(
    open_journal: Open, tmp_path: Path, begins_segment: bool
) -> None:
    """Readers by number see no gap, though queues were noted, in the same write, to be done with them."""
    random.seed(1)  # of a random salt, marks and checksums may look like the names that are damaged below
    journal, topic, channel = open_journal()
    put(journal, 1, 2, 3)
    topic.note_finished_span(1, 4)
    journal.flush()
    if begins_segment:
        journal, topic, channel = open_journal()
    put(journal, 4)
    put(journal, 5, due=1 << 62)
    topic.note_finished_span(4, 6)
    channel.attempts[4] = 2
    for name in ("t:1", "t:2"):
        new = notes(name, journal, journal.log.logger)
        new.finished = topic.finished.copy()
        journal.states.add(new)
    path = segments(tmp_path)[-1]
    whole = 0 if begins_segment else path.stat().st_size
    journal.flush()
    path = segments(tmp_path)[-1]
    data = path.read_bytes()
    for size in range(whole, len(data)):
        path.write_bytes(data[:size])
        again, topic, channel = open_journal()
        number = again.log.next_number
        assert list(read_all(again)) == [*range(1, number)], size
        assert list(again.replay.lost) == [], size
        put(again, number)
        again.flush()
        for notes_of in (topic, channel):
            assert number not in notes_of.finished, size
        newest = segments(tmp_path)[-1]
        for damages in (0, 3):  # what others once noted of that number must not come back
            newest.write_bytes(newest.read_bytes().replace(b"t:", b"x:", damages))
            third = open_journal()[0].replay
            assert third.next_number == number + 1
            assert [state.name for state in third.queues.values() if number in state.finished] == [], size
            assert bool(third.damages) == bool(damages)
        for later in segments(tmp_path):
            if later > path:
                later.unlink()


def test_segments_without_messages_do_not_come_back(open_journal: Open, tmp_path: Path) -> None:
    # What a replay has no use for is deleted, with what it recorded of an exit that was not finished.
    journal, _, _ = open_journal()
    put(journal, 1)
    journal.flush()
    journal.close()
    ending, _, _ = open_journal()
    ending.mark_converting()
    ending.close()
    assert open_journal()[0].replay.converting
    for _ in range(3):
        again, topic, _ = open_journal()
        topic.note_finished_span(1, 2)
        again.flush()
        again.close()
        assert not open_journal()[0].replay.converting
    assert len(segments(tmp_path)) == 3, "the messages, and two snapshots"
    last, _, _ = open_journal()
    last.remove()
    assert not segments(tmp_path)


def test_attempts_stop_where_frames_have_no_room_for_more(open_journal: Open) -> None:
    journal, _, channel = open_journal()
    put(journal, 1)
    once, often = Message(frame(1), 0, 0), Message(frame(1), 0xFFFF, 0)
    once.number = often.number = 1
    channel.attempts[1] = often.attempts
    journal.flush()
    again, _, channel = open_journal()
    for message in (once, often, once):
        channel.note_taken([message])
        again.flush()
    assert open_journal()[0].replay.queues[1].attempts == {1: 0xFFFF}


def test_damaged_first_line_keeps_the_file_for_who_may_want_it(open_journal: Open, tmp_path: Path) -> None:
    journal, _, _ = open_journal()
    put(journal, 1)
    journal.flush()
    (path,) = segments(tmp_path)
    data = b"x" + path.read_bytes()[1:]
    path.write_bytes(data)
    again, _, _ = open_journal()
    assert not read_all(again)
    assert again.replay.damaged
    assert (tmp_path / f"{path.name}.bad").read_bytes() == data


def test_messages_can_be_read_while_the_disk_is_full(open_journal: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    journal, _, _ = open_journal()
    put(journal, 1)
    journal.flush()
    put(journal, 2)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", failing(errno.ENOSPC))
        with pytest.raises(StorageError, match="no space left"):
            journal.flush()
        assert read_all(journal) == {1: frame(1), 2: frame(2)}
    journal.flush()
    assert read_all(journal) == {1: frame(1), 2: frame(2)}
