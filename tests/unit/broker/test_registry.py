"""All topics: made once, with the channels that nsqlookupd knows, and without needless work."""

import os
import threading
from collections.abc import Iterator
from itertools import count
from time import monotonic_ns
from typing import Any

import pytest
from gevent import joinall, sleep, spawn

from gnsqd.log import Logger
from gnsqd.queues.backend import Left
from gnsqd.shared.errors import BrokerError, StorageError
from gnsqd.storage.disk import opening
from gnsqd.storage.disk.opening import QueueFiles
from gnsqd.storage.metadata import ChannelMetadata, TopicMetadata
from unit.broker.fakes import Build, Consumers, Fakes, settle


def test_topic_asked_for_twice_while_it_is_being_made_is_made_once(fakes: Build) -> None:
    around = fakes()
    around.precreate = ["known"]
    greenlets = [spawn(around.registry.get_topic, "t") for _ in range(3)]
    joinall(greenlets, raise_error=True)
    assert len({id(greenlet.value) for greenlet in greenlets}) == 1
    assert around.log.getvalue().count("TOPIC(t): created") == 1


def test_new_topic_whose_channels_cannot_be_made_still_moves_messages(
    fakes: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    around = fakes()
    around.precreate = ["known"]

    def open_queue(files: QueueFiles, log: Logger) -> Any:
        if files.name == "t:known":
            raise StorageError("too many open files")
        return opening.open_queue(files, log)

    with monkeypatch.context() as patched:
        patched.setattr("gnsqd.storage.disk.diskqueue.open_queue", open_queue)
        around.registry.get_topic("t")
        settle()
    assert "ERROR: TOPIC(t): creating channel known - too many open files\n" in around.log.getvalue()
    publish(around, "t")
    channel = around.registry.get_topic("t").get_channel("later")
    settle()
    assert channel.depth == 1


def test_very_many_channels_from_nsqlookupd_stop_nobody(fakes: Build) -> None:
    around = fakes()
    around.precreate = [f"c{number}" for number in range(100)]
    turns = 0

    def others() -> None:
        nonlocal turns
        while True:
            sleep(1e-6)
            turns += 1

    greenlet = spawn(others)
    assert len(around.registry.get_topic("t").channels) == 100
    greenlet.kill()
    assert turns >= 100


def publish(around: Fakes, name: str) -> None:
    topic = around.registry.get_topic(name)
    topic.put_messages(topic.new_messages([b"x"]))


def test_duplicates_merge_invalid_names_are_skipped_and_no_nsqlookupd_is_asked_at_the_start(fakes: Build) -> None:
    around = fakes()
    around.precreate = ["known"]
    around.registry.load(
        [
            TopicMetadata("d", True, []),
            TopicMetadata("bad$", False, [ChannelMetadata("c", False)]),
            TopicMetadata("d", False, [ChannelMetadata("c", False), ChannelMetadata("bad$", True)]),
        ]
    )
    assert list(around.registry.topics) == ["d"]
    assert around.registry.metadata("d") == TopicMetadata("d", True, [ChannelMetadata("c", False)])
    assert "WARNING: skipping creation of invalid topic bad$\n" in around.log.getvalue()
    assert "WARNING: skipping creation of invalid channel bad$\n" in around.log.getvalue()


def test_what_is_ephemeral_stays_if_somebody_comes_before_it_goes(fakes: Build, consumers: Consumers) -> None:
    registry = fakes().registry
    topic = registry.get_topic("t#ephemeral")
    channel = topic.get_channel("c#ephemeral")
    channel.add_client(consumers[0])
    channel.remove_client(consumers[0])
    channel.add_client(consumers[1])
    settle()
    assert topic.channels == {"c#ephemeral": channel}
    topic.delete_existing_channel("c#ephemeral")
    topic.get_channel("other")
    settle()
    assert registry.topics == {"t#ephemeral": topic}


def test_nobody_comes_to_what_is_closed(fakes: Build, consumers: Consumers) -> None:
    registry = fakes().registry
    topic = registry.get_topic("t")
    channel = topic.get_channel("c")
    registry.close()
    for come in (
        lambda: registry.get_topic("u"),
        lambda: topic.get_channel("d"),
        lambda: channel.add_client(consumers[0]),
    ):
        with pytest.raises(BrokerError, match="^exiting$"):
            come()


def test_metadata_has_nothing_that_is_going(fakes: Build) -> None:
    registry = fakes().registry
    topic = registry.get_topic("t")
    for name in ("c", "going"):
        topic.get_channel(name)
    topic.channels["going"].exiting = True
    assert registry.metadata("t") == TopicMetadata("t", False, [ChannelMetadata("c", False)])
    topic.exiting = True
    assert registry.metadata("t") is None


@pytest.mark.parametrize("durability", ["none", "process"])
def test_channel_without_files_costs_a_journal_no_disk_queue(
    fakes: Build, monkeypatch: pytest.MonkeyPatch, durability: str
) -> None:
    around = fakes(durability=durability)
    opened = []

    def open_queue(files: QueueFiles, log: Logger) -> Any:
        opened.append(files.name)
        return opening.open_queue(files, log)

    monkeypatch.setattr("gnsqd.storage.disk.diskqueue.open_queue", open_queue)
    around.registry.get_topic("t").get_channel("c")
    assert opened == (["t", "t:c"] if durability == "none" else [])


def test_topics_are_closed_several_at_a_time(fakes: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = fakes(mem_queue_size=10).registry
    for number in range(4):
        registry.get_topic(f"t{number}").publish([b"x"])
    together = threading.Barrier(2)
    fsync = os.fsync
    calls = count()

    def meeting(descriptor: int) -> None:
        if next(calls) < 2:
            together.wait(20)  # fails if no other comes
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", meeting)
    assert registry.close() == Left()
    assert next(calls) > 2


class ReadLate(list[ChannelMetadata]):
    """Channels that know when they are loaded, in monotonic ns."""

    loaded_at = 0

    def __iter__(self) -> Iterator[ChannelMetadata]:
        self.loaded_at = monotonic_ns()
        return super().__iter__()


def test_channels_are_idle_since_the_end_of_a_load(fakes: Build) -> None:
    around = fakes()
    last = ReadLate([ChannelMetadata("c", False)])
    around.registry.load(
        [TopicMetadata("one", False, [ChannelMetadata("c", False)]), TopicMetadata("two", False, last)]
    )
    assert around.registry.topics["one"].channels["c"].idle_since >= last.loaded_at > 0
