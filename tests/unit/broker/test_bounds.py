"""Bounds for queued messages: steps, turns, and what comes back; the rest is in behaviour/test_bounds."""

from collections import deque
from typing import Any

import pytest
from gevent import joinall, spawn
from gevent.event import Event

from gnsqd.broker import bounds as bounds_module
from gnsqd.broker.bounds import Bounds, OutOfBounds, bounds_loop
from gnsqd.broker.channel import MAX_TAKE, Channel
from gnsqd.broker.topic import Topic
from gnsqd.queues.queue import Queue, WeighedMemory
from unit.broker.fakes import (
    MAX_PUT_BYTES,
    MINUTE,
    SECOND,
    Build,
    FakeConsumer,
    Fakes,
    bodies_of,
    eventually,
    publish,
    settle,
    take_all,
)

DROP = {"overflow_policy": "drop-oldest"}
SIZE = 100  # bytes of BODY in a disk queue
BODY = b"x" * (SIZE - 30)
FAR = 1 << 62

# Where messages are: in memory, beyond that on disk, or all on disk; with disk queues and with a journal.
PLACES = [{"mem_queue_size": size, "durability": kind} for size in (1000, 3, 0) for kind in ("none", "process")]

everywhere = pytest.mark.parametrize("place", PLACES, ids=lambda place: "-".join(map(str, place.values())))


def topic_with(around: Fakes, *names: str) -> tuple[Topic, list[Channel]]:
    topic = around.registry.get_topic("t")
    channels = [topic.get_channel(name) for name in names]
    settle()
    return topic, channels


def in_order(channel: Channel) -> list[bytes]:
    return bodies_of(sorted(take_all(channel), key=lambda message: (message.timestamp, message.id)))


def counts(thing: Topic | Channel) -> tuple[int, int, int]:
    return thing.queue.rejected, thing.queue.dropped, thing.queue.expired


def enforce(topic: Topic) -> None:
    """Enforces bounds as the loop does."""
    assert topic.bounds is not None
    while topic.bounds.enforce():
        pass
    topic.commit()
    assert not topic.publishes_at_once([b"x"])


def test_without_bounds_nothing_is_there_to_look_after_them(fakes: Build) -> None:
    topic, _ = topic_with(fakes(**DROP), "c")
    topic.commit()
    assert (topic.bounds, topic.publishes_at_once([b"x"])) == (None, True)
    assert type(topic.queue.memory) is deque


@pytest.mark.parametrize("bound", [{"max_topic_bytes": 10 << 20}, {"max_channel_depth": 10}], ids=str)
def test_large_batches_at_once_are_not_beyond_a_bound(fakes: Build, bound: dict[str, int]) -> None:
    topic, (channel,) = topic_with(fakes(**bound), "c")
    bodies = 3 * [bytes(MAX_PUT_BYTES)]
    publishing = [spawn(topic.publish, bodies) for _ in range(5)]
    joinall(publishing)
    assert [type(each.exception) for each in publishing] == 3 * [type(None)] + 2 * [OutOfBounds]
    assert (topic.depth + channel.depth, counts(topic)[0]) == (9, 6)
    publish(topic, b"x")
    with pytest.raises(OutOfBounds):
        topic.publish(bodies)


@pytest.mark.parametrize("policy", ["reject", "drop-oldest"])
def test_what_comes_back_is_never_refused(fakes: Build, policy: str) -> None:
    topic, (channel,) = topic_with(fakes(max_channel_depth=2, overflow_policy=policy), "c")
    consumer = FakeConsumer(1)
    for number in range(3):
        publish(topic, b"%d" % number, b"%d" % number)
        taken: list[Any] = []
        while len(taken) < 2:
            taken += channel.take(consumer, 10, SECOND if number == 1 else MINUTE, 0)
        if number == 0:
            for message in taken:
                channel.requeue(1, message.id, SECOND)
        last = taken
    for message in last:
        channel.requeue(1, message.id, 0)
    channel.process_due(FAR)
    assert channel.depth == 6
    assert counts(channel) == (0, 0, 0)
    if policy == "reject":
        with pytest.raises(OutOfBounds):
            topic.publish([b"3"])
        enforce(topic)
        assert channel.depth == 6
    else:
        enforce(topic)
        assert channel.depth == 2


def test_a_smaller_bound_than_before_is_reached_step_by_step(fakes: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds_module, "MAX_STEP", 10)
    around = fakes(max_channel_depth=100, **DROP)
    topic, (channel,) = topic_with(around, "c")
    publish(topic, *[b"%03d" % number for number in range(100)])
    around.options.max_channel_depth = 1
    smaller = Bounds("t", topic.queue, topic.channels, around.options, None)
    depths = []
    while smaller.enforce():
        depths.append(channel.depth)
    assert len(depths) > 10
    assert max(before - after for before, after in zip([100, *depths], depths, strict=False)) <= 10
    assert in_order(channel) == [b"099"]


def test_weighed_queue_knows_what_its_messages_would_take_on_disk(fakes: Build) -> None:
    queue = WeighedMemory()
    one, two, three = fakes().messages(b"1", b"22", b"333")
    queue.extend([one, two, three])
    assert queue.size == sum(4 + len(message.payload()) for message in (one, two, three)) == 96
    assert (queue.popleft(), queue.pop()) == (one, three)
    assert queue.size == 32
    queue.extendleft([three, one])
    assert (list(queue), queue.size) == ([one, three, two], 96)
    queue.clear()
    assert queue.size == 0
    queue.extend(iter([one, two]))  # as the steps that put a queue in order do
    queue.extendleft(iter([three]))
    assert (list(queue), queue.size) == ([three, one, two], 96)


@everywhere
def test_room_is_made_in_the_largest_queue(fakes: Build, place: dict[str, Any]) -> None:
    options = {"max_topic_bytes": 10 * SIZE} | DROP | place
    topic, (slow, fast) = topic_with(fakes(**options), "slow", "fast")
    for number in range(12):
        publish(topic, b"%0*d" % (len(BODY), number))
        if number < 10:
            take_all(fast)
    assert counts(fast) == counts(topic) == (0, 0, 0)
    assert [int(body) for body in in_order(fast)] == [10, 11]
    assert [int(body) for body in in_order(slow)] == list(range(4, 12))


def test_a_large_message_displaces_many_small_ones(fakes: Build) -> None:
    topic, (channel,) = topic_with(fakes(max_topic_bytes=100 * SIZE, **DROP), "c")
    publish(topic, *[BODY] * 100)
    publish(topic, b"x" * (50 * SIZE - 30))
    assert (channel.depth, counts(channel)) == (51, (0, 50, 0))


def test_newest_messages_stay_in_each_of_many_channels(fakes: Build) -> None:
    around = fakes(max_topic_bytes=10 * 20 * SIZE, **DROP)
    topic, channels = topic_with(around, *map(str, range(10)))
    for first in (0, 30, 60):
        publish(topic, *(b"%0*d" % (len(BODY), number) for number in range(first, first + 30)))
        settle()
    for channel in channels:
        assert [int(body) for body in in_order(channel)] == list(range(70, 90))


def test_room_among_many_idle_channels_is_found_without_looking_at_all_of_them_for_each(
    fakes: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = 0

    def size_of(queue: Queue) -> int:
        nonlocal sizes
        sizes += 1
        return size_of_queue(queue)

    size_of_queue = bounds_module._size_of
    around = fakes(max_topic_bytes=100 * 10 * SIZE, overflow_policy="drop-idle")
    topic, channels = topic_with(around, *map(str, range(100)))
    for channel in channels:
        channel.may_refuse = False
    publish(topic, *[BODY] * 10)
    monkeypatch.setattr(bounds_module, "_size_of", size_of)
    publish(topic, *[BODY] * 5)
    enforce(topic)
    assert sum(channel.depth for channel in channels) == 1000
    assert sizes < 2000


def publish_old(around: Fakes, topic: Topic, *bodies: bytes, deferred: int = 0) -> None:
    """Publishes as an hour ago."""
    topic.put_messages(around.messages(*bodies, deferred=deferred, age=60 * MINUTE))
    topic.commit()
    settle()


def test_consumer_passes_many_old_messages_in_turns(fakes: Build) -> None:
    around = fakes(message_ttl=30 * MINUTE)
    topic, (channel,) = topic_with(around, "c")
    publish_old(around, topic, *[b"old"] * 1000)
    publish(topic, b"new")
    consumer = FakeConsumer(1)
    turns = 0
    while not (taken := channel.take(consumer, 2500, MINUTE, 0)):
        turns += 1
        assert consumer.woken == turns  # so it comes again at once
        assert channel.depth >= 1001 - turns * MAX_TAKE
    assert bodies_of(taken) == [b"new"]
    assert turns >= 3


def test_age_counts_from_publication_while_held_back_too(fakes: Build) -> None:
    around = fakes(message_ttl=30 * MINUTE)
    topic, (channel,) = topic_with(around, "c")
    publish_old(around, topic, b"old", deferred=MINUTE)
    publish(topic, b"new", deferred=MINUTE)
    assert channel.deferred_count == 2
    channel.process_due(FAR)
    assert channel.depth == 2
    assert in_order(channel) == [b"new"]
    assert counts(channel) == (0, 0, 1)


# The disk


@everywhere
def test_loop_drops_what_is_too_much_or_too_old(
    fakes: Build, monkeypatch: pytest.MonkeyPatch, place: dict[str, Any]
) -> None:
    monkeypatch.setattr(bounds_module, "LOOP_SECONDS", 0.01)
    around = fakes(message_ttl=30 * MINUTE, max_channel_depth=3, **DROP, **place)
    topic, (channel,) = topic_with(around, "c")
    other = around.registry.get_topic("other")
    publish_old(around, other, b"old")
    for number in range(3):
        publish(topic, b"%d" % number, b"%d" % number)
        while channel.depth:
            channel.take(FakeConsumer(1), 10, SECOND, 0)
    exit = Event()
    bounds = [each.bounds for each in (topic, other) if each.bounds]
    loop = around.spawn("boundsLoop", lambda: bounds_loop(lambda: bounds, None, exit))
    channel.process_due(FAR)
    eventually(lambda: channel.depth == 3 and other.depth == 0)
    assert (counts(channel), counts(other)) == ((0, 3, 0), (0, 0, 1))
    exit.set()
    loop.join(5)
    assert loop.ready()
