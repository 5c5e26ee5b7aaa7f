"""A topic: its queue, its pump, its channels (NSQD-COMPAT 3)."""

from collections.abc import Callable
from time import monotonic_ns

import pytest
from gevent import sleep

from gnsqd.broker.channel import Channel
from gnsqd.broker.topic import ChannelNotFound, Topic
from gnsqd.errors import BrokerError, StorageError
from gnsqd.queues.queue import Left
from unit.broker.fakes import (
    MINUTE,
    SECOND,
    FakeConsumer,
    Fakes,
    backend_of,
    bodies_of,
    eventually,
    replace_writes,
    settle,
)

Build = Callable[..., Fakes]


def new_topic(around: Fakes, name: str = "t", *, started: bool = True) -> Topic:
    topic = Topic(name, around.environment, lambda topic: None)
    if started:
        topic.start()
    return topic


def publish(topic: Topic, *bodies: bytes, deferred: int = 0) -> None:
    topic.put_messages(topic.new_messages(list(bodies), deferred))
    topic.commit()


def waiting(channel: Channel) -> list[bytes]:
    """The bodies of all that waits in `channel`."""
    bodies: list[bytes] = []
    consumer = FakeConsumer(99)
    while batch := channel.take(consumer, 100_000, MINUTE, 0):
        bodies += bodies_of(batch)
    return bodies


def refuse(payloads: list[bytes]) -> None:
    """As `put_many` of a backend queue on a disk that is full."""
    raise StorageError("no space left on device")


def refuse_and_note(attempts: list[int]) -> Callable[[list[bytes]], None]:
    """The same, and the number of payloads goes to `attempts`."""

    def put_many(payloads: list[bytes]) -> None:
        attempts.append(len(payloads))
        refuse(payloads)

    return put_many


def eventually_tried_again(attempts: list[int]) -> None:
    """By the pump, all by itself."""
    before = len(attempts)
    eventually(lambda: len(attempts) > before + 2)


def test_every_channel_gets_every_message_as_its_own(fakes: Build) -> None:
    topic = new_topic(fakes())
    channels = [topic.get_channel(name) for name in ("one", "two", "three")]
    publish(topic, b"0", b"1")
    settle()
    taken = [channel.take(FakeConsumer(1), 10, MINUTE, 0) for channel in channels]
    assert [bodies_of(messages) for messages in taken] == [[b"0", b"1"]] * 3
    assert len({id(message) for messages in taken for message in messages}) == 6
    assert [message.id for message in taken[0]] == [message.id for message in taken[2]]
    taken[0][0].next_delivery()
    assert taken[1][0].attempts == 0
    assert topic.depth == 0


def test_accepted_messages_are_counted_with_their_bytes(fakes: Build) -> None:
    topic = new_topic(fakes(mem_queue_size=2))
    publish(topic, b"12345")
    publish(topic, b"1", b"22", b"333")
    assert (topic.message_count, topic.message_bytes) == (4, 11)


def test_messages_wait_for_the_first_channel(fakes: Build) -> None:
    topic = new_topic(fakes())
    publish(topic, b"0", b"1")
    settle()
    assert topic.depth == 2
    assert sorted(waiting(wait_for(topic, "c", 2))) == [b"0", b"1"]
    assert topic.depth == 0


def wait_for(topic: Topic, name: str, depth: int) -> Channel:
    """The channel of that name once it has `depth` messages."""
    channel = topic.get_channel(name)
    for _ in range(1000):
        if channel.depth + channel.deferred_count == depth:
            return channel
        sleep(0.001)
    raise AssertionError((channel.depth, channel.deferred_count, topic.depth))


def test_nothing_moves_before_the_start(fakes: Build) -> None:
    topic = new_topic(fakes(), started=False)
    channel = topic.get_channel("c")
    publish(topic, b"x")
    settle()
    assert (topic.depth, channel.depth) == (1, 0)
    topic.get_channel("late but in time")
    topic.start()
    settle()
    assert (topic.depth, channel.depth, topic.channels["late but in time"].depth) == (0, 1, 1)


def test_paused_topic_keeps_its_messages(fakes: Build) -> None:
    topic = new_topic(fakes())
    channel = topic.get_channel("c")
    topic.pause()
    publish(topic, b"x")
    settle()
    assert (topic.depth, channel.depth) == (1, 0)
    topic.unpause()
    settle()
    assert (topic.depth, channel.depth) == (0, 1)


def test_what_exceeds_the_memory_queue_waits_on_disk_and_all_of_it_arrives(fakes: Build) -> None:
    around = fakes(mem_queue_size=10, max_bytes_per_file=2000, sync_every=7)
    topic = new_topic(around)
    bodies = [b"%d" % number for number in range(1500)]
    for first in range(0, len(bodies), 100):
        publish(topic, *bodies[first : first + 100])
    assert (topic.depth, topic.backend_depth) == (1500, 1490)
    channel = wait_for(topic, "c", 1500)
    assert channel.backend_depth == 1490
    assert (topic.depth, topic.backend_depth) == (0, 0)
    assert sorted(waiting(channel)) == sorted(bodies)


def test_ephemeral_topic_drops_and_counts_what_exceeds_its_memory(fakes: Build) -> None:
    around = fakes(mem_queue_size=2)
    topic = new_topic(around, "t#ephemeral")
    publish(topic, b"0", b"1", b"2")
    assert (topic.depth, topic.backend_depth, topic.message_count) == (2, 0, 3)
    assert waiting(wait_for(topic, "c#ephemeral", 2)) == [b"0", b"1"]
    assert not list(around.data_path.iterdir())


def test_ephemeral_topic_without_memory_hands_over_what_it_can(fakes: Build) -> None:
    topic = new_topic(fakes(mem_queue_size=0), "t#ephemeral")
    publish(topic, b"dropped")
    channel = topic.get_channel("c")  # ordinary, so on disk
    publish(topic, b"kept")
    settle()
    assert waiting(channel) == [b"kept"]


def test_deferred_messages_go_straight_to_each_channels_deferred_set(fakes: Build) -> None:
    topic = new_topic(fakes())
    one, two = topic.get_channel("one"), topic.get_channel("two")
    topic.put_messages(topic.new_messages([b"later"], MINUTE) + topic.new_messages([b"now"]))
    settle()
    for channel in (one, two):
        assert (channel.deferred_count, channel.depth, channel.message_count) == (1, 1, 2)


def test_deferred_message_keeps_its_delay_without_a_memory_queue(fakes: Build) -> None:
    topic = new_topic(fakes(mem_queue_size=0))
    channel = topic.get_channel("c")
    publish(topic, b"later", deferred=MINUTE)
    settle()
    assert (channel.deferred_count, channel.depth, topic.message_count) == (1, 0, 1)


def test_deferred_message_keeps_its_delay_through_overflow_and_restart(fakes: Build) -> None:
    around = fakes(mem_queue_size=1)
    topic = new_topic(around)
    publish(topic, b"memory", b"disk", deferred=MINUTE)
    publish(topic, b"now")
    assert (topic.depth, topic.backend_depth) == (3, 2)
    assert topic.close() == Left()
    topic = new_topic(around)
    assert topic.backend_depth == 3
    channel = wait_for(topic, "c", 3)
    assert channel.deferred_count == 2
    assert waiting(channel) == [b"now"]
    assert not channel.process_deferred(monotonic_ns() + 30 * SECOND)
    assert channel.process_deferred(monotonic_ns() + MINUTE)
    assert sorted(waiting(channel)) == [b"disk", b"memory"]


def test_deferred_message_that_became_due_on_disk_is_not_held_back(fakes: Build) -> None:
    topic = new_topic(fakes(mem_queue_size=0))
    publish(topic, b"x", deferred=1)
    assert waiting(wait_for(topic, "c", 1)) == [b"x"]


def test_messages_that_no_disk_takes_at_the_end_are_counted(fakes: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = new_topic(fakes())
    channel = topic.get_channel("c")
    publish(topic, b"0", b"1")
    settle()
    topic.pause()
    publish(topic, b"2")

    for owner in (topic, channel):
        replace_writes(monkeypatch, owner, refuse)
    assert topic.close() == Left(lost=3)


def test_refused_message_leaves_no_due_time(fakes: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = new_topic(fakes(mem_queue_size=0))

    def refuse_second(payloads: list[bytes]) -> None:
        raise StorageError("no space left on device", written=1)

    replace_writes(monkeypatch, topic, refuse_second)
    with pytest.raises(StorageError):
        publish(topic, b"kept", b"refused", deferred=MINUTE)
    assert len(backend_of(topic).due_times) == 1


def test_disk_that_refuses_fails_the_publisher_and_keeps_what_came_before(
    fakes: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    around = fakes(mem_queue_size=1)
    topic = new_topic(around)
    put_many = backend_of(topic).put_many

    def one_only(payloads: list[bytes]) -> None:
        put_many(payloads[:1])
        raise StorageError("no space left on device", written=1)

    with monkeypatch.context() as patch:
        replace_writes(patch, topic, one_only)
        with pytest.raises(StorageError, match="^no space left on device$"):
            publish(topic, b"memory", b"disk", b"refused")
    assert (topic.depth, topic.message_count, topic.message_bytes) == (2, 2, 10)
    assert around.registry.health == "NOK - no space left on device"
    publish(topic, b"disk again")
    assert around.registry.health == "OK"
    assert sorted(waiting(wait_for(topic, "c", 3))) == [b"disk", b"disk again", b"memory"]


def test_channel_whose_disk_refuses_stops_the_pump_and_nothing_is_lost(
    fakes: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gnsqd.broker.topic.RETRY_SECONDS", 0.01)
    around = fakes(mem_queue_size=300)
    topic = new_topic(around)
    channel = topic.get_channel("c")
    attempts: list[int] = []

    with monkeypatch.context() as patch:
        replace_writes(patch, channel, refuse_and_note(attempts))
        bodies = [b"%d" % number for number in range(2000)]
        for first in range(0, 2000, 100):
            publish(topic, *bodies[first : first + 100])
            settle()
        eventually_tried_again(attempts)
        assert channel.queue.blocked
        assert channel.depth < 300 + 257
        assert channel.depth + topic.depth == 2000
        assert topic.backend_depth > 0
    channel = wait_for(topic, "c", 2000)
    assert sorted(waiting(channel)) == sorted(bodies)


def test_channel_of_an_idle_topic_is_retried_too(fakes: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gnsqd.broker.topic.RETRY_SECONDS", 0.01)
    topic = new_topic(fakes(mem_queue_size=0))
    channel = topic.get_channel("c")
    publish(topic, b"x")
    wait_for(topic, "c", 1)
    message = channel.take(FakeConsumer(1), 1, MINUTE, 0)[0]
    settle()
    attempts: list[int] = []

    with monkeypatch.context() as patch:
        replace_writes(patch, channel, refuse_and_note(attempts))
        channel.requeue(1, message.id, 0)
        assert channel.queue.blocked
        eventually_tried_again(attempts)
        assert channel.queue.blocked
    eventually(lambda: not channel.queue.blocked)
    assert (channel.queue.blocked, channel.backend_depth) == (False, 1)


def test_publishers_do_not_make_a_blocked_channel_try_more_often(fakes: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gnsqd.broker.topic.RETRY_SECONDS", 3600)
    topic = new_topic(fakes(mem_queue_size=0))
    channel = topic.get_channel("c")
    attempts: list[int] = []
    replace_writes(monkeypatch, channel, refuse_and_note(attempts))
    for _ in range(20):
        publish(topic, b"x")
        settle()
    assert len(attempts) == 2  # the first, and one more when the pump comes to it


def test_emptied_topic_drops_memory_and_disk_but_not_its_channels(fakes: Build) -> None:
    topic = new_topic(fakes(mem_queue_size=1))
    channel = topic.get_channel("c")
    publish(topic, b"in the channel")
    settle()
    topic.pause()
    publish(topic, b"0", b"1", b"2")
    assert (topic.depth, topic.backend_depth) == (3, 2)
    topic.empty()
    assert (topic.depth, topic.backend_depth, channel.depth) == (0, 0, 1)
    topic.unpause()
    settle()
    assert waiting(channel) == [b"in the channel"]


def test_channels_are_found_by_name(fakes: Build) -> None:
    topic = new_topic(fakes())
    channel = topic.get_channel("c")
    assert topic.get_channel("c") is topic.get_existing_channel("c") is channel
    with pytest.raises(ChannelNotFound):
        topic.get_existing_channel("other")
    with pytest.raises(ChannelNotFound):
        topic.delete_existing_channel("other")
    topic.delete_existing_channel("c")
    assert topic.channels == {}
    publish(topic, b"stays")
    settle()
    assert topic.depth == 1


@pytest.mark.parametrize("name, gone", [("t", []), ("t#ephemeral", ["t#ephemeral"])])
def test_last_channel_takes_an_ephemeral_topic_with_it(fakes: Build, name: str, gone: list[str]) -> None:
    around = fakes()
    reported: list[str] = []
    topic = Topic(name, around.environment, lambda topic: reported.append(topic.name))
    for channel in ("one", "two"):
        topic.get_channel(channel)
    topic.delete_existing_channel("one")
    assert reported == []
    topic.delete_existing_channel("two")
    assert reported == gone


def test_ephemeral_channel_goes_with_its_last_client_unless_another_comes(
    fakes: Build, consumers: list[FakeConsumer]
) -> None:
    topic = new_topic(fakes())
    channel = topic.get_channel("c#ephemeral")
    channel.add_client(consumers[0])
    channel.remove_client(consumers[0])
    channel.add_client(consumers[1])
    settle()
    assert topic.channels == {"c#ephemeral": channel}
    channel.remove_client(consumers[1])
    settle()
    assert topic.channels == {}
    assert channel.exiting


def test_closed_topic_leaves_everything_on_disk(fakes: Build) -> None:
    around = fakes(mem_queue_size=5)
    topic = new_topic(around)
    topic.get_channel("c")
    publish(topic, b"0", b"1")
    settle()
    topic.pause()
    publish(topic, *[b"%d" % number for number in range(2, 9)])
    topic.close()
    with pytest.raises(BrokerError, match="^exiting$"):
        publish(topic, b"late")
    assert "TOPIC(t): flushing 5 memory messages to backend" in around.log.getvalue()
    reopened = new_topic(around)
    assert (reopened.depth, reopened.backend_depth, reopened.message_count) == (7, 7, 0)
    assert sorted(waiting(wait_for(reopened, "c", 9))) == [b"%d" % number for number in range(9)]


def test_deleted_topic_leaves_no_files_and_its_publishers_get_exiting(
    fakes: Build, consumers: list[FakeConsumer]
) -> None:
    around = fakes(mem_queue_size=0)
    topic = new_topic(around)
    channel = topic.get_channel("c")
    channel.add_client(consumers[0])
    publish(topic, b"x")
    settle()
    topic.pause()
    publish(topic, b"y")
    assert list(around.data_path.iterdir())
    topic.delete()
    assert not list(around.data_path.iterdir())
    assert consumers[0].closed
    assert around.notified.count((topic, True)) == around.notified.count((channel, True)) == 2
    with pytest.raises(BrokerError, match="^exiting$"):
        publish(topic, b"late")


def test_pump_lets_others_run_between_its_batches(fakes: Build) -> None:
    topic = new_topic(fakes(), started=False)
    channel = topic.get_channel("c")
    publish(topic, *[b"x"] * 5000)
    seen = []
    topic.start()
    while topic.depth:
        sleep(0)
        seen.append(channel.depth)
    assert len(set(seen)) > 5
