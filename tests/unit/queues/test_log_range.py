"""The log of a topic by number: what may be read while a disk is slow or fails, and of older journals."""

import shutil
from pathlib import Path

import pytest
from gevent import spawn
from gevent.event import Event

from gnsqd.hub.doorbell import Doorbell
from gnsqd.queues.log_range import LogRange, MessagesDamaged, MessagesGone
from gnsqd.queues.message import Message
from gnsqd.shared.errors import StorageError
from gnsqd.shared.journal.records import PUT_HEAD, decode_put, split_frames
from gnsqd.storage.files import sync_files
from gnsqd.storage.journal.segments import Segments
from gnsqd.storage.syncer import Syncer
from unit.broker.fakes import publish, settle
from unit.queues.test_journaled import Daemon, channel

GOLDEN = Path(__file__).parents[2] / "golden/journal"


def range_of(daemon: Daemon) -> LogRange:
    assert daemon.topic.write_ahead is not None
    return daemon.topic.write_ahead.range


def read(daemon: Daemon, number: int = 1) -> list[tuple[int, bytes]]:
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
    daemon = Daemon(tmp_path / "a", syncer, {"durability": "disk"})
    channel(daemon)
    publish(daemon.topic, b"1")
    begun, going_on = Event(), Event()
    sync, fails = syncer.run, [True]

    def slow(function: object, *arguments: object) -> object:
        if function is sync_files:
            begun.set()
            going_on.wait(10)
            if fails.pop():
                raise StorageError("sync: input/output error")
        return sync(function, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(syncer, "run", slow)
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
    daemon = Daemon(tmp_path / "a", syncer, {}, {"t": []})
    epoch = range_of(daemon).epoch
    assert range_of(daemon).epoch == epoch
    again = daemon.after_kill()
    assert range_of(again).epoch == epoch
    channel(again).delete()
    assert range_of(again.after_kill()).epoch == epoch


def test_what_segments_no_longer_have_is_gone_up_to_what_some_channel_needs(
    tmp_path: Path, syncer: Syncer, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = Daemon(tmp_path / "a", syncer, {})
    channel(daemon)
    publish(daemon.topic, *(b"%d" % number for number in range(1, 11)))
    taken = {message.number: message for message in daemon.take("c")}
    for number in (1, 2, 5, 9, 10):
        channel(daemon).finish(daemon.consumer("c"), taken[number].id)
    assert range_of(daemon).first == 11, "before it, others are finished"
    assert [number for number, _ in read(daemon)] == [*range(1, 11)], "segments still have them"
    monkeypatch.setattr(Segments, "read_records", lambda *_: [])
    for number, readable in ((1, 3), (2, 3), (5, 6), (9, 11)):
        with pytest.raises(MessagesGone) as error:
            range_of(daemon).read(number, 11, 100)
        assert error.value.readable == readable
    queue = channel(daemon).queue
    assert range_of(daemon).read(9, 11, 100, queue) == ([], 11)
    with pytest.raises(MessagesDamaged, match="messages 3 to"):
        range_of(daemon).read(1, 11, 100, queue)  # others are there, says the channel
    channel(daemon).delete()
    channel(daemon, "new")  # is done with all that was handed over
    with pytest.raises(MessagesGone):
        range_of(daemon).read(3, 11, 100, queue)


def test_damage_that_a_channel_has_met_stays_damage(tmp_path: Path, syncer: Syncer) -> None:
    daemon = Daemon(tmp_path / "a", syncer, {"mem_queue_size": 0})
    queue = channel(daemon).queue
    publish(daemon.topic, b"first")
    publish(daemon.topic, b"second")
    daemon.flush()
    (path,) = daemon.directory.glob("t.journal.*")
    path.write_bytes(path.read_bytes().replace(b"first", b"xxxxx"))
    (taken,) = daemon.take("c")
    assert taken.number == 2
    assert range_of(daemon).channel_position(queue) == 2
    with pytest.raises(MessagesDamaged, match="messages 1 to 1 can't be read"):
        range_of(daemon).read(1, 3, 100, queue)
