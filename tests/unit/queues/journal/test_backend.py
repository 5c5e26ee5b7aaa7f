"""Topics and channels on a journal: whatever was done, a daemon that was killed goes on with what is not finished."""

import errno
import os
import shutil
import stat
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any

import pytest
from gevent import killall
from hypothesis import given
from hypothesis import strategies as st

from gnsqd.broker.channel import Channel
from gnsqd.broker.topic import Topic
from gnsqd.options import Options
from gnsqd.queues.backend import Left
from gnsqd.queues.message import Message
from gnsqd.shared.errors import StartError, StorageError
from gnsqd.storage.metadata import ChannelMetadata, TopicMetadata
from gnsqd.storage.syncer import Syncer
from unit.broker.fakes import MINUTE, SECOND, FakeConsumer, Fakes, settle

FAR = 1 << 62
CONSUMER = FakeConsumer(99)


@dataclass
class Journaled:
    """The broker of one process on a data path: topic `t` and its channels."""

    directory: Path
    syncer: Syncer
    options: dict[str, Any]
    known: dict[str, list[str]] = field(default_factory=dict)  # what nsqd.dat lists: topics and channels
    paused: bool = False

    def __post_init__(self) -> None:
        self.directory.mkdir(exist_ok=True)
        self.around = Fakes(self.directory, Options(**{"durability": "process"} | self.options), self.syncer)
        journals = self.around.stores.journals
        self.registry = self.around.registry
        metadata = [
            TopicMetadata(topic, self.paused, [ChannelMetadata(name, False) for name in names])
            for topic, names in self.known.items()
        ]
        self.registry.load(self.around.stores.end_journals(metadata), journals.topics)
        self.consumers: dict[str, FakeConsumer] = {}

    @property
    def topic(self) -> Topic:
        topic = self.registry.get_topic("t")
        settle()
        return topic

    def take(self, name: str, window: int = 1000) -> list[Message]:
        settle()
        consumer = self.consumers.setdefault(name, FakeConsumer(len(self.consumers) + 1))
        return self.topic.get_channel(name).take(consumer, window, MINUTE, 0)

    def consumer(self, name: str) -> int:
        return self.consumers[name].id

    def take_all(self, name: str) -> Counter[bytes]:
        """Bodies of all messages that are not finished, deferred ones included."""
        channel = self.topic.get_channel(name)
        found: list[Message] = []
        while batch := self.take(name):
            found += batch
        while channel.queue.release(FAR, 1000, 0):
            while batch := self.take(name):
                found += batch
        return Counter(message.body for message in found)

    def kill(self) -> None:
        self.flush()
        killall(self.around.greenlets)

    def flush(self) -> None:
        """Flushes as the loop does after some milliseconds."""
        settle()
        self.around.stores.journals.flush_dirty()

    def after_kill(self, directory: Path | None = None, **options: Any) -> "Journaled":
        """Returns a daemon on the files as they are now, in a new directory."""
        self.flush()
        directory = directory or Path(mkdtemp(dir=self.directory.parent)) / "data"
        shutil.copytree(self.directory, directory)
        paused = bool(self.registry.topics) and self.topic.paused
        return Journaled(directory, self.syncer, self.options | options, self.listed, paused)

    @property
    def listed(self) -> dict[str, list[str]]:
        """Returns the topics that nsqd.dat lists."""
        return {name: list(topic.channels) for name, topic in self.registry.topics.items()}

    def converted(self) -> "Journaled":
        """Exits cleanly, and starts without durability."""
        listed = self.listed
        self.registry.close()
        return Journaled(self.directory, self.syncer, self.options | {"durability": "none"}, listed)


def fail(*arguments: object) -> int:
    """Fails in place of a system call."""
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def full(*arguments: object) -> int:
    """Fails in place of a system call, as on a full disk."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@contextmanager
def daemons_of(options: dict[str, Any]) -> Iterator[list[Journaled]]:
    """Yields a list with one daemon, for an example of a property. All that are in the list are gone afterwards."""
    syncer = Syncer()
    with TemporaryDirectory() as directory:
        daemons = [Journaled(Path(directory) / "0", syncer, options)]
        try:
            yield daemons
        finally:
            for daemon in daemons:
                killall(daemon.around.greenlets)
            syncer.stop()


def channel(daemon: Journaled, name: str = "c") -> Channel:
    return daemon.topic.get_channel(name)


def take_both(queue: Channel) -> list[Message]:
    """Returns the only two messages of a channel, wherever they are."""
    queue.process_due(FAR)
    found: list[Message] = []
    while len(found) < 2:
        found += queue.take(CONSUMER, 2 - len(found), MINUTE, 0)
    return found


@pytest.mark.parametrize("flush_after", [1, 7, 1000])
def test_every_delivery_counts_after_a_kill(tmp_path: Path, syncer: Syncer, flush_after: int) -> None:
    daemon = Journaled(tmp_path / "a", syncer, {"mem_queue_size": 1, "max_bytes_per_file": 2000})
    channel(daemon)
    daemon.topic.publish([b"0", b"1"])
    daemon.flush()
    for kills in (1, 2):
        queue = channel(daemon)
        for count in range(1, 202):
            for message in take_both(queue):
                message.next_delivery()
                delay = MINUTE if count % 3 == 1 else 0
                queue.requeue(CONSUMER.id, message.id, delay)
            if count % flush_after == 0:
                daemon.flush()
        daemon = daemon.after_kill()
        messages = take_both(channel(daemon))
        assert [message.attempts for message in messages] == [201 * kills] * 2
        for message in messages:
            channel(daemon).requeue(CONSUMER.id, message.id, 0)


def test_topic_and_channel_that_only_the_journal_knows_are_made(tmp_path: Path, syncer: Syncer) -> None:
    daemon = Journaled(tmp_path / "a", syncer, {})
    channel(daemon)
    daemon.topic.publish([b"0"])
    daemon.kill()
    again = Journaled(tmp_path / "a", syncer, {})
    assert list(again.registry.topics) == ["t"]
    assert list(again.topic.channels) == ["c"]
    assert again.take_all("c") == Counter([b"0"])


def test_clean_exit_leaves_the_journal_and_a_start_without_durability_leaves_disk_queues(
    tmp_path: Path, syncer: Syncer
) -> None:
    daemon = Journaled(tmp_path / "a", syncer, {"mem_queue_size": 2})
    channel(daemon)
    channel(daemon, "d")
    daemon.topic.publish([b"%d" % number for number in range(9)])
    daemon.topic.publish([b"later"], deferred=MINUTE)
    finished = Counter[bytes]()
    for message in daemon.take("c", 3):
        channel(daemon).finish(daemon.consumer("c"), message.id)
        finished[message.body] += 1
    assert len(daemon.take("d", 2)) == 2
    left = Counter([b"%d" % number for number in range(9)] + [b"later"])
    assert daemon.registry.close() == Left(journaled=10)
    assert not list((tmp_path / "a").glob("*.diskqueue.*"))
    journal = {path: path.read_bytes() for path in (tmp_path / "a").glob("*.journal.*")}
    again = Journaled(tmp_path / "a", syncer, {}, daemon.listed)
    assert journal == {path: path.read_bytes() for path in (tmp_path / "a").glob("*.journal.*")}
    assert channel(again, "d").deferred_count == 1
    plain = again.converted()
    assert not list((tmp_path / "a").glob("*.journal.*"))
    ready = Counter(message.body for message in plain.take("d", 5) + plain.take("d"))
    assert ready + Counter([b"later"]) == left
    assert channel(plain, "d").deferred_count == 1
    plain.registry.close()
    again = Journaled(tmp_path / "a", syncer, {}, daemon.listed)
    assert not list((tmp_path / "a").glob("*.diskqueue.0*")), "moved to the journal"
    assert channel(again, "d").deferred_count == 1
    assert again.take_all("d") == left
    assert again.take_all("c") == left - finished


def test_clean_exit_of_a_daemon_whose_queues_are_empty_leaves_no_journal(tmp_path: Path, syncer: Syncer) -> None:
    daemon = Journaled(tmp_path / "a", syncer, {})
    channel(daemon)
    daemon.topic.publish([b"0"])
    (message,) = daemon.take("c")
    channel(daemon).finish(daemon.consumer("c"), message.id)
    assert daemon.registry.close() == Left()
    assert not list((tmp_path / "a").glob("*.journal.*"))


@pytest.mark.parametrize("durability", ["process", "disk"])
def test_clean_exit_syncs_all_segments_and_the_directory(
    tmp_path: Path, syncer: Syncer, monkeypatch: pytest.MonkeyPatch, durability: str
) -> None:
    daemon = Journaled(tmp_path / "a", syncer, {"durability": durability, "max_bytes_per_file": 1000})
    synced: set[int] = set()

    def noting(sync: Callable[[int], None]) -> Callable[[int], None]:
        def noting_sync(descriptor: int) -> None:
            sync(descriptor)
            synced.add(os.fstat(descriptor).st_ino)

        return noting_sync

    monkeypatch.setattr(os, "fsync", noting(os.fsync))
    monkeypatch.setattr(os, "fdatasync", noting(os.fdatasync))
    for number in range(30):
        daemon.topic.publish([b"%d" % number * 100])
        daemon.topic.commit()
    daemon.registry.close()
    segments = list((tmp_path / "a").glob("*.journal.*"))
    assert len(segments) > 2
    assert {path.stat().st_ino for path in [*segments, tmp_path / "a"]} <= synced


def to_convert(directory: Path, syncer: Syncer) -> Fakes:
    """Returns the surroundings of a daemon without durability that has yet to convert a journal with one message for
    channel c."""
    daemon = Journaled(directory, syncer, {})
    channel(daemon)
    daemon.topic.publish([b"0"])
    daemon.registry.close()
    return Fakes(directory, Options(), syncer)


def test_conversion_syncs_the_directory_after_the_disk_queues_and_before_the_journal_is_void(
    tmp_path: Path, syncer: Syncer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Otherwise a loss of power could leave a void journal, and no disk queues.
    plain = to_convert(tmp_path / "a", syncer)
    calls: list[str] = []
    rename, fsync, pwritev = os.rename, os.fsync, os.pwritev

    def noting_rename(source: str, target: str) -> None:
        calls.append("disk queue" if target.endswith(".diskqueue.meta.dat") else "other")
        rename(source, target)

    def noting_fsync(descriptor: int) -> None:
        fsync(descriptor)
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            calls.append("directory")

    def noting_pwritev(descriptor: int, parts: list[bytes], position: int) -> int:
        calls.append("journal")
        return pwritev(descriptor, parts, position)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", noting_rename)
        patch.setattr(os, "fsync", noting_fsync)
        patch.setattr(os, "pwritev", noting_pwritev)
        plain.stores.end_journals([])
    assert not list((tmp_path / "a").glob("*.journal.*"))
    assert calls[:3] == ["other", "directory", "journal"], "nsqd.dat, and that the disk queues are copies"
    assert "disk queue" in calls
    assert calls[-2:] == ["directory", "journal"], "that it is void"


@pytest.mark.parametrize("what", ["directory", "disk queue"])
def test_conversion_that_cannot_sync_keeps_the_journal(
    tmp_path: Path, syncer: Syncer, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    plain = to_convert(tmp_path / "a", syncer)
    fsync = os.fsync

    def fail_for_directories(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            fail()
        fsync(descriptor)

    def fail_for_disk_queues(path: str) -> None:
        if ".diskqueue." in path:
            raise StorageError("sync failed")

    with monkeypatch.context() as patch:
        if what == "directory":
            patch.setattr(os, "fsync", fail_for_directories)
        else:
            patch.setattr("gnsqd.storage.disk.diskqueue.sync_path", fail_for_disk_queues)
        with pytest.raises(StartError, match="a journal could not be turned into disk queues"):
            plain.stores.end_journals([])
    assert list((tmp_path / "a").glob("*.journal.*"))
    again = Journaled(tmp_path / "a", syncer, {}, {"t": ["c"]})
    assert again.take_all("c") == Counter([b"0"])


def test_import_that_fails_leaves_its_numbers_to_nobody(
    tmp_path: Path, syncer: Syncer, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Journaled(tmp_path / "a", syncer, {"durability": "none"}, {"t": ["c", "d", "gone"]})
    plain.topic.publish([b"old"])
    settle()
    plain.registry.close()

    with monkeypatch.context() as patch:
        patch.setattr("os.pwritev", fail)
        daemon = Journaled(tmp_path / "a", syncer, {}, {"t": ["c", "d", "gone"]})
    assert not daemon.registry.healthy
    daemon.topic.publish([b"new"])
    daemon.topic.commit()
    daemon.topic.delete_existing_channel("gone")
    assert not list((tmp_path / "a").glob("t:gone.*"))
    again = daemon.after_kill()
    for name in ("c", "d"):
        assert again.take_all(name) == Counter([b"old", b"new"])


@pytest.mark.parametrize("names", [["c", "d"], []], ids=["channels", "topic"])
def test_import_that_fails_after_its_put_keeps_no_segments_and_doubles_nothing(
    tmp_path: Path, syncer: Syncer, monkeypatch: pytest.MonkeyPatch, names: list[str]
) -> None:
    plain = Journaled(tmp_path / "a", syncer, {"durability": "none"}, {"t": names})
    plain.topic.publish([b"old"])
    plain.topic.publish([b"later"], deferred=MINUTE)
    settle()
    plain.registry.close()

    with monkeypatch.context() as patch:
        patch.setattr("os.fdatasync", fail)
        daemon = Journaled(tmp_path / "a", syncer, {"durability": "disk", "max_bytes_per_file": 100}, {"t": names})
    assert not daemon.registry.healthy
    daemon.flush()
    names = names or ["c"]
    for name in names:
        assert not daemon.take(name)
    for number in range(5):
        daemon.topic.publish([b"%d" % number * 1000])
        daemon.topic.commit()
        for name in names:
            (message,) = daemon.take(name)
            channel(daemon, name).finish(daemon.consumer(name), message.id)
    daemon.topic.commit()
    assert len(list((tmp_path / "a").glob("t.journal.*"))) <= 2
    again = daemon.after_kill()
    for name in names:
        assert channel(again, name).deferred_count == 1
        assert again.take_all(name) == Counter([b"old", b"later"])


def test_nothing_comes_back_after_failed_fsync(tmp_path: Path, syncer: Syncer, monkeypatch: pytest.MonkeyPatch) -> None:
    # Neither what was finished nor a channel that was deleted, though nothing is published any more.
    first = Journaled(tmp_path / "a", syncer, {"durability": "disk"})
    for name in ("c", "gone"):
        channel(first, name)
    first.topic.publish([b"%d" % number for number in range(9)])
    first.topic.commit()
    daemon = first.after_kill()
    while messages := daemon.take("c"):
        for message in messages:
            channel(daemon).finish(daemon.consumer("c"), message.id)
    daemon.topic.delete_existing_channel("gone")

    with monkeypatch.context() as patch:
        patch.setattr("os.fdatasync", fail)
        with pytest.raises(StorageError):
            daemon.topic.commit()
        assert not daemon.registry.healthy
        with pytest.raises(StorageError):
            daemon.topic.publish([b"refused"])
    daemon.flush()
    assert daemon.registry.healthy
    again = daemon.after_kill()
    assert list(again.topic.channels) == ["c"]
    assert not again.take_all("c")


def test_ephemeral_channel_is_deleted_on_a_full_disk(
    tmp_path: Path, syncer: Syncer, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = Journaled(tmp_path / "data", syncer, {})
    daemon.topic.get_channel("a")
    daemon.topic.get_channel("b#ephemeral")
    monkeypatch.setattr("os.pwritev", full)
    daemon.topic.delete_existing_channel("b#ephemeral")
    assert [*daemon.topic.channels] == ["a"]


Step = tuple[str, int]
OFTEN = ["publish", "publish", "publish", "publish", "defer", "refuse", "take", "take", "finish", "finish"]
SELDOM = ["requeue", "hold", "time out", "empty", "empty topic", "add", "delete", "pause", "kill", "exit"]
steps = st.lists(st.tuples(st.sampled_from([*OFTEN, *SELDOM]), st.integers(0, 99)), max_size=40)


@pytest.mark.slow
@given(steps, st.sampled_from([0, 3, 1000]), st.sampled_from([300, 2000, 1 << 20]))
def test_whatever_is_done_what_is_not_finished_comes_again(steps: list[Step], memory: int, size: int) -> None:
    with daemons_of({"mem_queue_size": memory, "max_bytes_per_file": size}) as daemons:
        run_model(daemons, steps)


def run_model(daemons: list[Journaled], steps: list[Step]) -> None:
    expected: dict[str, set[bytes]] = {"a": set(), "b": set()}  # by channel, what is not finished
    in_flight: dict[str, list[Message]] = {"a": [], "b": []}
    waiting: set[bytes] = set()  # in the topic
    count = added = 0
    for name in expected:
        channel(daemons[-1], name)
    for what, number in [*steps, ("kill", 0)]:
        daemon = daemons[-1]
        topic = daemon.topic
        name = list(expected)[number % len(expected)] if expected else ""
        if what in ("publish", "defer"):
            bodies = [b"%d" % (count + i) for i in range(1 + number % 7)]
            count += len(bodies)
            topic.publish(bodies, MINUTE if what == "defer" else 0)
            topic.commit()
            waiting.update(bodies)
        elif what == "refuse":
            refuse(topic, [b"refused"] * (1 + number % 7))
        elif what == "pause":
            topic.pause(not topic.paused)
        elif what == "add":
            added += 1
            expected[f"n{added}"], in_flight[f"n{added}"] = set(), []
            topic.get_channel(f"n{added}")
        elif what == "delete" and name:
            topic.delete_existing_channel(name)
            del expected[name], in_flight[name]
        elif what == "empty topic":
            topic.queue.empty()
            waiting.clear()
        elif what == "exit":
            topic.pause()
            settle()
            (daemon.converted() if number % 2 else daemon).registry.close()
            daemons.append(Journaled(daemon.directory, daemon.syncer, daemon.options, {"t": list(expected)}, False))
            in_flight = {name: [] for name in expected}
        elif what == "kill":
            daemons.append(daemon.after_kill())
            in_flight = {name: [] for name in expected}
            probe = daemons[-1].after_kill()
            daemons.insert(0, probe)
            assert "lost" not in probe.around.log.getvalue()
            assert sorted(probe.topic.channels) == sorted(expected)
            for name, bodies_of_channel in expected.items():
                assert probe.take_all(name) == Counter(bodies_of_channel), name
            if topic.paused or not expected:
                assert probe.topic.depth == len(waiting)
        elif name:
            use_channel(daemon, name, what, number, expected[name], in_flight[name])
        settle()
        if expected and not daemons[-1].topic.paused:  # it hands over what it has
            for unfinished in expected.values():
                unfinished |= waiting
            waiting.clear()


def refuse(topic: Topic, bodies: list[bytes]) -> None:
    """Publishes on a full disk."""

    def counts() -> list[int]:
        depths = [topic.depth, topic.message_count, topic.message_bytes]
        return depths + [count for each in topic.channels.values() for count in (each.depth, each.message_count)]

    def publish() -> None:
        topic.publish(bodies)
        topic.commit()

    before = counts()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.pwritev", full)
        with pytest.raises(StorageError, match="no space left on device"):
            publish()
    assert counts() == before


def use_channel(
    daemon: Journaled, name: str, what: str, number: int, expected: set[bytes], in_flight: list[Message]
) -> None:
    queue = channel(daemon, name)
    if what == "take":
        in_flight += daemon.take(name, 1 + number % 5)
    elif what == "empty":
        queue.empty()
        expected.clear()
        in_flight.clear()
    elif what == "time out":
        queue.process_due(FAR)
        in_flight.clear()
    elif in_flight:
        message = in_flight.pop(number % len(in_flight))
        if what == "finish":
            queue.finish(daemon.consumer(name), message.id)
            expected.discard(message.body)
        else:
            queue.requeue(daemon.consumer(name), message.id, SECOND * 1000 if what == "hold" else 0)
