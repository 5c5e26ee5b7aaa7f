"""Dead letters on their way: what failed too often leaves its channel only when it is in its topic."""

import json
import shutil
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from gevent import killall

from gnsqd.broker import dead_letters as dead_letters_module
from gnsqd.broker.channel import Channel
from gnsqd.broker.dead_letters import MAX_BATCH, DeadLetters
from gnsqd.broker.drain import Drain
from gnsqd.broker.topic import Topic
from gnsqd.errors import StorageError
from gnsqd.queues.journaled import JournaledQueue
from gnsqd.queues.message import Message
from gnsqd.queues.queue import Left
from unit.broker.fakes import MINUTE, FakeConsumer, Fakes, backend_of, eventually, replace_writes, settle

Build = Callable[..., Fakes]

FAR = 1 << 62
CONSUMER = FakeConsumer(1)


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is set aside stays so."""
    monkeypatch.setattr(DeadLetters, "dead_letter_loop", lambda self: None)


def channel_with(around: Fakes, *bodies: bytes, topic: str = "t", name: str = "c") -> Channel:
    channel = around.registry.get_topic(topic).get_channel(name)
    channel.put_messages(around.registry.get_topic(topic).new_messages(list(bodies)))
    return channel


def deliver(channel: Channel, count: int = 1) -> list[Message]:
    """That many messages are on their way to a consumer."""
    messages: list[Message] = []
    while len(messages) < count:
        taken = channel.take(CONSUMER, count - len(messages), MINUTE, 0)
        assert taken
        messages += taken
    for message in messages:
        message.next_delivery()
    return messages


def fail(channel: Channel, count: int = 1) -> list[Message]:
    """That many messages are delivered and requeued."""
    messages = deliver(channel, count)
    for message in messages:
        channel.requeue(CONSUMER.id, message.id, 0)
    return messages


def counts(channel: Channel) -> tuple[int, int, int]:
    return channel.depth, channel.in_flight_count, channel.deferred_count


def wait_for_letters(channel: Channel, count: int) -> None:
    eventually(lambda: channel.dead_letter_count == count)


def letters(topic: Topic) -> list[tuple[dict[str, Any], bytes]]:
    """Header and body of the messages queued in the topic."""
    found = [message.body.partition(b"\n") for message, _ in topic.queue.look(1000, 1 << 30)]
    return [(json.loads(header), body) for header, _, body in found]


def test_all_of_many_are_moved_once(fakes: Build) -> None:
    around = fakes(max_attempts=1)
    bodies = [b"%d" % number for number in range(3 * MAX_BATCH + 1)]
    channels = [channel_with(around, *bodies, name=name) for name in "cd"]
    for channel in channels:
        fail(channel, len(bodies))
    for channel in channels:
        wait_for_letters(channel, len(bodies))
        found = letters(around.registry.topics[f"t.{channel.name}.dead"])
        assert sorted(body for _, body in found) == sorted(bodies)
        assert {header["channel"] for header, _ in found} == {channel.name}
        assert counts(channel) == (0, 0, 0)


@pytest.mark.usefixtures("stopped")
def test_more_than_may_be_on_their_way_are_requeued(fakes: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gnsqd.broker.in_flight.MAX_ASIDE", 2)
    around = fakes(max_attempts=1)
    channel = channel_with(around, b"0", b"1", b"2")
    fail(channel, 3)
    assert counts(channel) == (1, 0, 2)


# What cannot be moved


def test_what_the_disk_refuses_is_requeued_and_moved_later(fakes: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_letters_module, "RETRY_SECONDS", 0.001)
    around = fakes(max_attempts=1, mem_queue_size=0)
    dead = around.registry.get_topic("t.c.dead")
    channel = channel_with(around, b"0", b"1")
    put_many = backend_of(dead).put_many

    def put_one(payloads: list[bytes]) -> None:
        if backend_of(dead).depth:
            raise StorageError("no space left on device")
        put_many(payloads)

    with monkeypatch.context() as patch:
        replace_writes(patch, dead, put_one)
        fail(channel, 2)
        eventually(lambda: channel.depth == 1)
        assert (channel.dead_letter_count, counts(channel)) == (1, (1, 0, 0))
        for _ in range(3):
            fail(channel)
            eventually(lambda: channel.depth == 1)
    assert around.log.getvalue().count("DEADLETTER(t:c): failed to move messages") == 1
    (message,) = fail(channel)
    wait_for_letters(channel, 2)
    assert message.attempts == 5
    assert sorted(body for _, body in letters(dead)) == [b"0", b"1"]


def test_a_topic_that_is_going_away_takes_nothing(fakes: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_letters_module, "RETRY_SECONDS", 0.001)
    around = fakes(max_attempts=1)
    channel = channel_with(around, b"x")
    dead = around.registry.get_topic("t.c.dead")
    dead.exiting = True
    fail(channel)
    eventually(lambda: channel.depth == 1)
    assert "requeued - exiting\n" in around.log.getvalue()
    del around.registry.topics["t.c.dead"]
    fail(channel)
    wait_for_letters(channel, 1)
    assert around.registry.topics["t.c.dead"].depth == 1


# Nothing is forgotten too early


class Watched:
    """A topic that calls `commit` in place of its own."""

    def __init__(self, topic: Topic, commit: Callable[[], None]) -> None:
        self._topic = topic
        self.commit = commit

    def __getattr__(self, name: str) -> Any:
        return getattr(self._topic, name)


def watch(around: Fakes, monkeypatch: pytest.MonkeyPatch, commit: Callable[[Topic], None]) -> None:
    """Have the dead-letter topic committed by `commit`."""
    get_topic = around.registry.get_topic
    dead = get_topic("t.c.dead")
    watched: Any = Watched(dead, lambda: commit(dead))
    monkeypatch.setattr(around.registry, "get_topic", lambda name: watched if name == dead.name else get_topic(name))


def test_message_stays_with_its_channel_until_the_letter_is_committed(
    fakes: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    around = fakes(max_attempts=1)
    channel = channel_with(around, b"x")
    seen: list[tuple[int, tuple[int, int, int], int]] = []
    watch(
        around,
        monkeypatch,
        lambda dead: seen.append((dead.depth, counts(channel), channel.dead_letter_count)),
    )
    fail(channel)
    wait_for_letters(channel, 1)
    assert seen == [(1, (0, 0, 1), 0)]


def test_message_whose_letter_cannot_be_committed_is_requeued(fakes: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    around = fakes(max_attempts=1)
    channel = channel_with(around, b"x")

    def commit(dead: Topic) -> None:
        raise StorageError("sync x: input/output error")

    watch(around, monkeypatch, commit)
    fail(channel)
    eventually(lambda: channel.depth == 1)
    assert (counts(channel), channel.dead_letter_count) == ((1, 0, 0), 0)


def test_what_is_emptied_on_its_way_does_not_come_back(fakes: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    around = fakes(max_attempts=1)
    channel = channel_with(around, b"0", b"1")
    fail(channel)
    channel.empty()
    settle()
    assert "t.c.dead" not in around.registry.topics
    emptied = []

    def commit(dead: Topic) -> None:
        channel.empty()
        emptied.append(True)

    watch(around, monkeypatch, commit)
    channel.put_messages(around.messages(b"2"))
    fail(channel)
    eventually(lambda: bool(emptied))
    settle()
    assert (counts(channel), channel.dead_letter_count) == ((0, 0, 0), 0)


@pytest.mark.usefixtures("stopped")
def test_what_is_on_its_way_at_the_exit_is_in_its_own_queue_after_it(fakes: Build) -> None:
    around = fakes(max_attempts=1)
    channel = channel_with(around, b"0", b"1", b"2")
    fail(channel, 2)
    around.dead_letters.stop()
    assert around.registry.close() == Left()
    payloads = around.stores.context.open_disk_queue("t:c").peek_many(10, 1000)
    assert sorted(payload[26:] for payload in payloads) == [b"0", b"1", b"2"]


def after_kill(around: Fakes, directory: Path) -> Fakes:
    """What the next process makes of the files as they are now."""
    around.stores.journals.flush_dirty()
    shutil.copytree(around.data_path, directory)
    again = Fakes(directory, around.options, around.syncer)
    again.registry.load([], again.stores.journals.topics)
    settle()
    return again


@pytest.mark.usefixtures("stopped")
def test_kill_before_the_letter_leaves_the_message_in_the_journal(
    fakes: Build, tmp_path_factory: pytest.TempPathFactory
) -> None:
    around = fakes(max_attempts=1, durability="process")
    topic = around.registry.get_topic("t")
    channel = topic.get_channel("c")
    settle()
    topic.publish([b"x"])
    settle()
    (message,) = fail(channel)
    assert isinstance(channel.queue, JournaledQueue)
    assert (message.number, 1, 0) in list(chain(*channel.queue.held()))  # for a snapshot
    again = after_kill(around, tmp_path_factory.mktemp("killed") / "data")
    try:
        restored = again.registry.topics["t"].get_channel("c")
        assert counts(restored) == (1, 0, 0)
        (found,) = deliver(restored)
        assert (found.id, found.attempts) == (message.id, 2)
    finally:
        killall(again.greenlets)


# Around them


@pytest.mark.usefixtures("stopped")
def test_drain_sees_a_letter_that_is_put_while_it_looks(fakes: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    around = fakes(max_attempts=1)
    around.registry.get_topic("t.c.dead")  # looked at before `t` if they came in their order
    channel = channel_with(around, b"x")
    fail(channel)
    monkeypatch.setattr("gnsqd.hub.cooperative.TURN_SECONDS", 0)
    monkeypatch.setattr("gnsqd.hub.cooperative.give_way", lambda: around.dead_letters.move_some(channel))
    drain = Drain(around.registry, MINUTE, around.logger, around.spawn, lambda: None)
    assert drain.state()["messages"] != 0
    assert channel.dead_letter_count == 1
