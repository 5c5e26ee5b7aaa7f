"""Dead letters on their way: what failed too often leaves its channel only when it is in its topic."""

from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from gnsqd.broker import dead_letters as dead_letters_module
from gnsqd.broker.channel import Channel
from gnsqd.broker.dead_letters import MAX_BATCH, DeadLetters
from gnsqd.broker.drain import Drain
from gnsqd.broker.topic import Topic
from gnsqd.queues.backend import Left
from gnsqd.queues.journal.backend import backend_of
from gnsqd.queues.message import Message
from gnsqd.shared.errors import StorageError
from gnsqd.storage.syncer import Syncer
from unit.broker.fakes import MINUTE, Build, Fakes, disk_queue_of, eventually, replace_writes, settle, take_all
from unit.queues.journal.test_backend import Journaled


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves set aside what is."""
    monkeypatch.setattr(DeadLetters, "dead_letter_loop", lambda self: None)


def channel_with(around: Fakes, *bodies: bytes, name: str = "c") -> Channel:
    channel = around.registry.get_topic("t").get_channel(name)
    channel.put_messages(around.messages(*bodies))
    return channel


def deliver(channel: Channel) -> list[Message]:
    messages = take_all(channel)
    for message in messages:
        message.next_delivery()
    return messages


def fail(channel: Channel) -> list[Message]:
    messages = deliver(channel)
    for message in messages:
        channel.requeue(message.client_id, message.id, 0)
    return messages


def counts(channel: Channel) -> tuple[int, int, int]:
    return channel.depth, len(channel.in_flight), channel.deferred_count


def wait_for_letters(channel: Channel, count: int) -> None:
    eventually(lambda: channel.dead_messages.moved == count)


def letters(topic: Topic) -> list[bytes]:
    """Bodies of the messages queued in the topic."""
    return sorted(message.body.partition(b"\n")[2] for message, _ in topic.queue.look(1000, 1 << 30))


def test_all_of_many_are_moved_once(fakes: Build) -> None:
    around = fakes(max_attempts=1)
    bodies = [b"%d" % number for number in range(3 * MAX_BATCH + 1)]
    channels = [channel_with(around, *bodies, name=name) for name in "cd"]
    for channel in channels:
        fail(channel)
    for channel in channels:
        wait_for_letters(channel, len(bodies))
        assert letters(around.registry.topics[f"t.{channel.name}.dead"]) == sorted(bodies)
        assert counts(channel) == (0, 0, 0)


@pytest.mark.usefixtures("stopped")
def test_more_than_may_be_on_their_way_are_requeued(fakes: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gnsqd.broker.in_flight.MAX_DEAD_LETTERS", 2)
    around = fakes(max_attempts=1)
    channel = channel_with(around, b"0", b"1", b"2")
    fail(channel)
    assert counts(channel) == (1, 0, 2)


def test_what_the_disk_refuses_is_requeued_and_moved_later(fakes: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_letters_module, "RETRY_SECONDS", 0.001)
    around = fakes(max_attempts=1, mem_queue_size=0)
    dead = around.registry.get_topic("t.c.dead")
    channel = channel_with(around, b"0", b"1")
    put_many = disk_queue_of(dead).put_many

    def put_one(payloads: list[bytes]) -> None:
        if disk_queue_of(dead).depth:
            raise StorageError("no space left on device")
        put_many(payloads)

    with monkeypatch.context() as patch:
        replace_writes(patch, dead, put_one)
        fail(channel)
        eventually(lambda: channel.depth == 1)
        assert (channel.dead_messages.moved, counts(channel)) == (1, (1, 0, 0))
        for _ in range(3):
            fail(channel)
            eventually(lambda: channel.depth == 1)
    assert around.log.getvalue().count("DEADLETTER(t:c): failed to move messages") == 1
    (message,) = fail(channel)
    wait_for_letters(channel, 2)
    assert message.attempts == 5
    assert letters(dead) == [b"0", b"1"]


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


class CommittingTopic:
    """A topic that calls `commit` in place of its own."""

    def __init__(self, topic: Topic, commit: Callable[[], None]) -> None:
        self._topic = topic
        self.commit = commit

    def __getattr__(self, name: str) -> Any:
        return getattr(self._topic, name)


def watch(around: Fakes, monkeypatch: pytest.MonkeyPatch, commit: Callable[[Topic], None]) -> None:
    get_topic = around.registry.get_topic
    dead = get_topic("t.c.dead")
    watched: Any = CommittingTopic(dead, lambda: commit(dead))
    monkeypatch.setattr(around.registry, "get_topic", lambda name: watched if name == dead.name else get_topic(name))


@pytest.mark.parametrize("fails", [False, True])
def test_message_stays_with_its_channel_until_the_letter_is_committed(
    fakes: Build, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    around = fakes(max_attempts=1)
    channel = channel_with(around, b"x")
    seen: list[tuple[int, tuple[int, int, int], int]] = []

    def commit(dead: Topic) -> None:
        seen.append((dead.depth, counts(channel), channel.dead_messages.moved))
        if fails:
            raise StorageError("sync x: input/output error")

    watch(around, monkeypatch, commit)
    fail(channel)
    eventually(lambda: channel.deferred_count == 0)
    assert seen == [(1, (0, 0, 1), 0)]
    assert (counts(channel), channel.dead_messages.moved) == (((1, 0, 0), 0) if fails else ((0, 0, 0), 1))


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
    assert (counts(channel), channel.dead_messages.moved) == ((0, 0, 0), 0)


@pytest.mark.usefixtures("stopped")
def test_what_is_on_its_way_at_the_exit_is_in_its_own_queue_after_it(fakes: Build) -> None:
    around = fakes(max_attempts=1)
    channel = channel_with(around, b"0", b"1")
    fail(channel)
    channel.put_messages(around.messages(b"2"))
    around.dead_letters.stop()
    assert around.registry.close() == Left()
    payloads = around.stores.context.open_disk_queue("t:c").peek_many(10, 1000)
    assert sorted(payload[26:] for payload in payloads) == [b"0", b"1", b"2"]


@pytest.mark.usefixtures("stopped")
def test_kill_before_the_letter_leaves_the_message_in_the_journal(tmp_path: Path, syncer: Syncer) -> None:
    daemon = Journaled(tmp_path / "a", syncer, {"max_attempts": 1}, {"t": ["c"]})
    daemon.topic.publish([b"x"])
    channel = daemon.topic.get_channel("c")
    (message,) = fail(channel)
    assert (message.number, 1, 0) in list(chain(*backend_of(channel.queue).notes.held()))  # for a snapshot
    restored = daemon.after_kill().topic.get_channel("c")
    assert counts(restored) == (1, 0, 0)
    (found,) = deliver(restored)
    assert (found.id, found.attempts) == (message.id, 2)


def test_kill_after_the_letter_leaves_it_alone(tmp_path: Path, syncer: Syncer) -> None:
    daemon = Journaled(tmp_path / "a", syncer, {"max_attempts": 1}, {"t": ["c"]})
    daemon.topic.publish([b"x"])
    channel = daemon.topic.get_channel("c")
    fail(channel)
    wait_for_letters(channel, 1)
    again = daemon.after_kill()
    assert counts(again.topic.get_channel("c")) == (0, 0, 0)
    assert letters(again.registry.topics["t.c.dead"]) == [b"x"]


@pytest.mark.usefixtures("stopped")
def test_drain_sees_a_letter_that_is_put_while_it_looks(fakes: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    around = fakes(max_attempts=1)
    around.registry.get_topic("t.c.dead")  # looked at before `t` if they came in their order
    channel = channel_with(around, b"x")
    fail(channel)
    monkeypatch.setattr("gnsqd.hub.cooperative.TURN_SECONDS", 0)
    monkeypatch.setattr("gnsqd.hub.cooperative.yield_turn", lambda: around.dead_letters.move_some(channel))
    drain = Drain(around.registry, MINUTE, around.logger, around.spawn, lambda: None)
    assert drain.state()["messages"] != 0
    assert channel.dead_messages.moved == 1
