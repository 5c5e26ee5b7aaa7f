"""All topics: found by name, created once, deleted, loaded from and written to nsqd.dat; the daemon's health."""

import dataclasses
import os
import threading
from collections.abc import Callable
from itertools import count
from time import monotonic
from typing import Any

import pytest
from gevent import joinall, sleep, spawn
from gevent.event import Event

from gnsqd.broker.registry import PRECREATION_PATIENCE, TopicNotFound
from gnsqd.errors import BrokerError, StorageError
from gnsqd.log import Logger
from gnsqd.queues.queue import Left
from gnsqd.storage.disk import opening
from gnsqd.storage.disk.opening import QueueFiles
from gnsqd.storage.metadata import ChannelMetadata, TopicMetadata
from unit.broker.fakes import FakeConsumer, Fakes, settle

Build = Callable[..., Fakes]


def test_same_name_is_the_same_topic(fakes: Build) -> None:
    registry = fakes().registry
    topic = registry.get_topic("t")
    assert registry.get_topic("t") is registry.get_existing_topic("t") is topic
    assert registry.get_topic("u") is not topic
    assert set(registry.topics) == {"t", "u"}
    with pytest.raises(TopicNotFound):
        registry.get_existing_topic("other")
    with pytest.raises(TopicNotFound):
        registry.delete_existing_topic("other")


def test_topic_asked_for_twice_while_it_is_being_made_is_made_once(fakes: Build) -> None:
    around = fakes()
    around.precreate = ["known"]
    greenlets = [spawn(around.registry.get_topic, "t") for _ in range(3)]
    joinall(greenlets, raise_error=True)
    assert len({id(greenlet.value) for greenlet in greenlets}) == 1
    assert around.log.getvalue().count("TOPIC(t): created") == 1


def test_new_topic_has_the_channels_nsqlookupd_knows_before_anything_moves(fakes: Build) -> None:
    around = fakes()
    around.precreate = ["one", "two", "three#ephemeral"]
    making = spawn(around.registry.get_topic, "t")
    publishing = spawn(lambda: publish(around, "t"))
    joinall([making, publishing], raise_error=True)
    settle()
    topic = around.registry.topics["t"]
    assert {name: channel.depth for name, channel in topic.channels.items()} == {"one": 1, "two": 1}


def test_new_topic_whose_channels_cannot_be_made_still_moves_messages(
    fakes: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    around = fakes()
    around.precreate = ["known"]

    with monkeypatch.context() as patched:
        patched.setattr("gnsqd.storage.disk.diskqueue.open_queue", no_descriptor_for("t:known"))
        around.registry.get_topic("t")
        settle()
    assert "ERROR: TOPIC(t): creating channel known - too many open files\n" in around.log.getvalue()
    publish(around, "t")
    channel = around.registry.get_topic("t").get_channel("later")
    settle()
    assert channel.depth == 1


def test_slow_nsqlookupd_keeps_messages_waiting_but_no_publisher(fakes: Build) -> None:
    around = fakes()
    answered = Event()

    def channels(topic_name: str) -> list[str]:
        answered.wait()
        return ["known"]

    around.registry.attach(dataclasses.replace(around.environment, channels_to_precreate=channels))
    names = [f"t{number}" for number in range(20)]
    started = monotonic()
    for name in names:
        publish(around, name)
        around.registry.topics[name].get_channel("own")
    assert monotonic() - started < len(names) * PRECREATION_PATIENCE / 2  # it was waited for once, not for each
    around.registry.delete_existing_topic("t0")
    settle()
    topics = around.registry.topics
    assert [topic.depth for topic in topics.values()] == [1] * 19
    answered.set()
    settle()
    for topic in topics.values():
        assert {name: channel.depth for name, channel in topic.channels.items()} == {"own": 1, "known": 1}
    # From now on it's waited for again.
    assert list(around.registry.get_topic("u").channels) == ["known"]


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


def no_descriptor_for(queue: str) -> Callable[..., Any]:
    def open_queue(files: QueueFiles, log: Logger) -> Any:
        if files.name == queue:
            raise StorageError("too many open files")
        return opening.open_queue(files, log)

    return open_queue


def publish(around: Fakes, name: str) -> None:
    topic = around.registry.get_topic(name)
    topic.put_messages(topic.new_messages([b"x"]))


def test_deleted_topic_can_be_made_again_empty(fakes: Build) -> None:
    around = fakes(mem_queue_size=0)
    publish(around, "t")
    old = around.registry.topics["t"]
    old.get_channel("c")
    around.registry.delete_existing_topic("t")
    assert around.registry.topics == {}
    assert not list(around.data_path.iterdir())
    new = around.registry.get_topic("t")
    assert (new is not old, new.depth, new.channels) == (True, 0, {})
    with pytest.raises(BrokerError, match="^exiting$"):
        old.put_messages([])


def test_ephemeral_topic_goes_with_the_last_client_of_its_last_channel(
    fakes: Build, consumers: list[FakeConsumer]
) -> None:
    registry = fakes().registry
    topic = registry.get_topic("t#ephemeral")
    settle()
    assert registry.topics == {"t#ephemeral": topic}
    channel = topic.get_channel("c#ephemeral")
    channel.add_client(consumers[0])
    channel.remove_client(consumers[0])
    settle()
    assert registry.topics == {}


def test_health_is_that_of_the_last_disk_write(fakes: Build) -> None:
    registry = fakes().registry
    assert (registry.healthy, registry.health) == (True, "OK")
    registry.set_health(StorageError("write x: no space left on device"))
    assert (registry.healthy, registry.health) == (False, "NOK - write x: no space left on device")
    registry.set_health(None)
    assert (registry.healthy, registry.health) == (True, "OK")


METADATA = [
    TopicMetadata("a", True, [ChannelMetadata("one", False), ChannelMetadata("two", True)]),
    TopicMetadata("b", False, []),
]


def test_metadata_is_loaded_and_written_again(fakes: Build) -> None:
    around = fakes()
    registry = around.registry
    registry.load(METADATA)
    assert [registry.metadata(topic.name) for topic in METADATA] == METADATA
    assert not registry.loading
    assert (registry.topics["a"].paused, registry.topics["a"].channels["two"].paused) == (True, True)
    publish(around, "b")
    registry.topics["b"].get_channel("c")
    settle()
    assert registry.topics["b"].depth == 0  # it has been started


def test_loading_asks_no_nsqlookupd_and_is_known_as_loading(fakes: Build) -> None:
    around = fakes()
    around.precreate = ["known"]
    around.registry.load(METADATA)
    assert "known" not in around.registry.topics["b"].channels


def test_duplicates_merge_and_invalid_names_are_skipped(fakes: Build) -> None:
    around = fakes()
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


def test_metadata_has_nothing_ephemeral_and_nothing_that_is_going(fakes: Build) -> None:
    registry = fakes().registry
    registry.get_topic("t#ephemeral").get_channel("c")
    topic = registry.get_topic("t")
    for name in ("c", "d#ephemeral", "going"):
        topic.get_channel(name)
    topic.channels["going"].exiting = True
    registry.get_topic("going").exiting = True
    assert registry.metadata("t") == TopicMetadata("t", False, [ChannelMetadata("c", False)])
    assert [registry.metadata(name) for name in ("t#ephemeral", "going", "other")] == [None] * 3
    registry.topics["going"].exiting = False


def test_everything_survives_close_and_load(fakes: Build) -> None:
    around = fakes(mem_queue_size=1)
    for _ in range(3):
        publish(around, "t")
    registry = around.registry
    registry.get_topic("t").get_channel("c")
    settle()
    publish(around, "lonely")
    metadata = [registry.metadata(name) for name in ("t", "lonely")]
    registry.close()
    again = fakes().registry
    again.load([each for each in metadata if each is not None])
    assert [again.metadata(name) for name in again.topics] == metadata
    assert [again.topics["t"].depth, again.topics["t"].channels["c"].depth, again.topics["lonely"].depth] == [0, 3, 1]


@pytest.mark.parametrize("durability", ["none", "process", "disk"])
def test_new_topics_and_channels_list_no_directory(fakes: Build, listings: list[str], durability: str) -> None:
    around = fakes(durability=durability, mem_queue_size=0)
    listings.clear()
    for number in range(20):
        publish(around, f"t{number}")
        around.registry.topics[f"t{number}"].get_channel("c")
    settle()
    for topic in around.registry.topics.values():
        topic.delete_existing_channel("c")
        topic.get_channel("c")
    assert not listings


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
