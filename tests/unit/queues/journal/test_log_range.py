"""The log of a topic by number: what may be read while a disk is slow or fails, and of older journals."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gevent import spawn
from gevent.event import Event
from hypothesis import example, given
from hypothesis import strategies as st

from gnsqd.hub.doorbell import Doorbell
from gnsqd.queues.journal.history import LogRange, TopicHistory, UnreadableRange
from gnsqd.queues.journal.segments import Segments
from gnsqd.queues.message import Message
from gnsqd.shared.errors import StorageError
from gnsqd.shared.journal import records
from gnsqd.shared.journal.records import PUT_HEAD, decode_put, split_frames
from gnsqd.shared.journal.replay import Replay
from gnsqd.shared.journal.spans import Spans
from gnsqd.storage.files import sync_files
from gnsqd.storage.syncer import Callback, Syncer
from unit.broker.fakes import MINUTE, publish, settle
from unit.queues.journal.test_backend import FAR, Journaled, channel, daemons_of
from unit.queues.journal.test_lost_messages import journal_of

GOLDEN = Path(__file__).parents[3] / "golden/journal"


def range_of(daemon: Journaled) -> LogRange:
    assert daemon.topic.write_ahead is not None
    return daemon.topic.write_ahead.range


def read(daemon: Journaled, number: int = 1) -> list[tuple[int, bytes]]:
    """Returns number and body of all messages from `number` on."""
    there, messages = range_of(daemon), []
    while number < there.next:
        payloads, number = there.read(number, there.next, 100)
        for payload in payloads:
            first, count, _ = decode_put(payload)
            frames = split_frames(payload, PUT_HEAD, 0)
            assert len(frames) == count
            messages += [(first + at, Message(frame, 0, 0).body) for at, frame in enumerate(frames)]
    return messages


def test_what_no_fsync_has_confirmed_is_not_in_the_range(
    tmp_path: Path, syncer: Syncer, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = Journaled(tmp_path / "a", syncer, {"durability": "disk"})
    channel(daemon)
    publish(daemon.topic, b"1")
    begun, going_on = Event(), Event()
    start, fails = syncer.start, [True]

    def go_on(report: Callback, *call: Any) -> None:
        going_on.wait(10)
        if fails.pop():
            report((None, StorageError("sync: input/output error")))
        else:
            start(report, *call)

    def slow(report: Callback, *call: Any) -> None:
        if call[0] is sync_files:
            begun.set()
            spawn(go_on, report, *call)
        else:
            start(report, *call)

    monkeypatch.setattr(syncer, "start", slow)
    commit = spawn(publish, daemon.topic, b"2")
    begun.wait(10)
    assert read(daemon) == [(1, b"1")]
    assert range_of(daemon).position("2100-01-01T00:00:00Z") == range_of(daemon).next == 2
    fails.insert(0, False)
    waiting = spawn(range_of(daemon).wait, Doorbell(), 60.0)
    settle()
    going_on.set()
    with pytest.raises(StorageError):
        commit.get(timeout=10)
    assert read(daemon) == [(1, b"1")]
    assert not waiting.ready()
    daemon.topic.commit()
    waiting.get(timeout=10)
    assert read(daemon) == [(1, b"1"), (2, b"2")]


def test_journal_of_an_older_version_gets_its_epoch_for_good(tmp_path: Path, syncer: Syncer) -> None:
    shutil.copytree(GOLDEN, tmp_path / "a", ignore=shutil.ignore_patterns("*.json"))
    daemon = Journaled(tmp_path / "a", syncer, {}, {"t": []})
    epoch = range_of(daemon).epoch
    assert range_of(daemon).epoch == epoch
    again = daemon.after_kill()
    assert range_of(again).epoch == epoch
    channel(again).delete()
    assert range_of(again.after_kill()).epoch == epoch


def test_what_segments_no_longer_have_is_gone_up_to_what_some_channel_needs(
    tmp_path: Path, syncer: Syncer, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = Journaled(tmp_path / "a", syncer, {})
    channel(daemon)
    publish(daemon.topic, *(b"%d" % number for number in range(1, 11)))
    taken = {message.number: message for message in daemon.take("c")}
    for number in (1, 2, 5, 9, 10):
        channel(daemon).finish(daemon.consumer("c"), taken[number].id)
    assert range_of(daemon).first == 11, "before it, others are finished"
    assert [number for number, _ in read(daemon)] == [*range(1, 11)], "segments still have them"
    monkeypatch.setattr(Segments, "read_records", lambda *_: [])
    for number, readable in ((1, 3), (2, 3), (5, 6), (9, 11)):
        with pytest.raises(UnreadableRange, match="not kept any more") as error:
            range_of(daemon).read(number, 11, 100)
        assert error.value.readable == readable
    queue = channel(daemon).queue
    assert range_of(daemon).read(9, 11, 100, queue) == ([], 11)
    with pytest.raises(UnreadableRange, match="messages 3 to .* can't be read"):
        range_of(daemon).read(1, 11, 100, queue)  # others are there, says the channel
    channel(daemon).delete()
    channel(daemon, "new")  # is done with all that was handed over
    with pytest.raises(UnreadableRange, match="not kept any more"):
        range_of(daemon).read(3, 11, 100, queue)


def test_damage_that_a_channel_has_met_stays_damage(tmp_path: Path, syncer: Syncer) -> None:
    daemon = Journaled(tmp_path / "a", syncer, {"mem_queue_size": 0})
    queue = channel(daemon).queue
    publish(daemon.topic, b"first")
    publish(daemon.topic, b"second")
    daemon.flush()
    (path,) = daemon.directory.glob("t.journal.*")
    path.write_bytes(path.read_bytes().replace(b"first", b"xxxxx"))
    (taken,) = daemon.take("c")
    assert taken.number == 2
    assert range_of(daemon).channel_position(queue) == 2
    with pytest.raises(UnreadableRange, match="messages 1 to 1 can't be read"):
        range_of(daemon).read(1, 3, 100, queue)


Step = tuple[str, int, int]
KINDS = ["publish", "publish", "defer", "take", "finish", "finish", "requeue", "time out"]
KINDS += ["advance", "rewind", "empty", "empty topic", "add", "delete", "pause", "retain", "epoch", "snapshot", "kill"]
steps = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 30), st.integers(0, 30)), max_size=25)


@given(steps, st.sampled_from([0, 3, 1000]), st.sampled_from([300, 2000]))
@example([("publish", 9, 0), ("advance", 0, 0), ("take", 3, 0), ("finish", 0, 0), ("advance", 0, 0)], 1000, 2000)
def test_every_record_of_whatever_is_done_is_read(steps: list[Step], memory: int, size: int) -> None:
    with daemons_of({"mem_queue_size": memory, "max_bytes_per_file": size, "retention_bytes": 5000}) as daemons:
        for step in steps:
            do(daemons, *step)
            check_records(daemons[-1])


def do(daemons: list[Journaled], what: str, number: int, end: int) -> None:
    daemon = daemons[-1]
    topic, there = daemon.topic, range_of(daemon)
    queue = channel(daemon, f"{number % 2}")
    ids = [message.id for message in queue.in_flight][end:][:1]
    steps: dict[str, Callable[[], object]] = {
        "publish": lambda: publish(topic, *[b"%d" % number] * (end + 1)),
        "defer": lambda: publish(topic, b"later", deferred=MINUTE),
        "take": lambda: daemon.take(queue.name, end + 1),
        "finish": lambda: ids and queue.finish_run(daemon.consumer(queue.name), b"FIN %b\n" % ids[0]),
        "requeue": lambda: queue.requeue(daemon.consumer(queue.name), ids[0], number) if ids else None,
        "time out": lambda: queue.process_due(FAR),
        "advance": lambda: there.advance(queue.queue, min(end, there.channel_position(topic.queue))),
        "rewind": lambda: TopicHistory(journal_of(daemon)).rewind(queue.queue, number, end),
        "empty": queue.empty,
        "empty topic": topic.queue.empty,
        "add": lambda: channel(daemon, f"{number}"),
        "delete": lambda: topic.delete_existing_channel(queue.name),
        "pause": lambda: topic.pause(number % 2 > 0),
        "retain": lambda: journal_of(daemon).retention.retain(end * 100, number),
        "epoch": lambda: there.epoch,
        "snapshot": lambda: journal_of(daemon)._roll_now(),
        "kill": lambda: daemons.append(daemon.after_kill()),
    }
    steps[what]()


def check_records(daemon: Journaled) -> None:
    """Reads all files of its journal to the last byte, in the way of a start."""
    daemon.flush()
    for path in daemon.directory.glob("t.journal.*.dat"):
        data = path.read_bytes()
        for record in records.read_records("", data, records.parse_first_line(data)):
            assert isinstance(record, records.JournalRecord)
            if record.type in (records.FINISHED, records.TAKEN, records.REWOUND):
                queue, spans = records.decode_spans(data[record.start : record.end])
                assert spans, (record.type, queue)
    replay = Replay("t", checks=True)
    replay.read([str(path) for path in sorted(daemon.directory.glob("t.journal.*.dat"))])
    assert (replay.damages, replay.torn, list(replay.lost)) == ([], None, [])


@given(st.lists(st.tuples(st.integers(-2, 9), st.integers(-2, 9)), max_size=3), st.integers(-1, 2), st.integers(0, 2))
def test_no_record_is_written_that_could_not_be_read(spans: list[tuple[int, int]], first: int, count: int) -> None:
    encoder = records.Encoder(7)
    if all(0 <= start < end for start, end in spans):
        data = bytes(records.FIRST_LINE_SIZE) + encoder.spans(records.FINISHED, 1, spans)
        (record,) = records.read_records("", data, 7)
        expected = Spans()
        for span in spans:
            expected.add(*span)
        data = encoder.spans(records.FINISHED, 1, spans)[records.HEADER.size :]
        assert record[0] == records.FINISHED
        assert (list(records.decode_spans(data)[1])) == list(expected)
    else:
        with pytest.raises(StorageError, match="invalid span"):
            encoder.spans(records.FINISHED, 1, spans)
    if first <= 0 or not count:
        with pytest.raises(StorageError, match="invalid numbers"):
            encoder.put(first, [b"frame"] * count, 0)
    else:
        assert decode_put(encoder.put(first, [b"frame"] * count, 0)[1]) == (first, count, 0)
