"""Bounds for queued messages: who is refused, what is dropped, and that nothing else is (contrib/docs/survive.md)."""

from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gevent.event import Event

from gnsqd.broker import bounds as bounds_module
from gnsqd.broker.bounds import Bounds, OutOfBounds, bounds_loop
from gnsqd.broker.channel import MAX_TAKE, Channel
from gnsqd.broker.topic import MAX_PUT, Topic
from gnsqd.queues.queue import WeighedMemory
from gnsqd.storage.directory import FreeDisk
from gnsqd.storage.syncer import Syncer
from unit.broker.fakes import MINUTE, SECOND, FakeConsumer, Fakes, bodies_of, eventually, settle
from unit.queues.test_journaled import Daemon

Build = Callable[..., Fakes]

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


def publish(topic: Topic, *bodies: bytes, deferred: int = 0) -> None:
    """As a publisher does it, and then everybody else has a turn."""
    topic.publish(list(bodies), deferred)
    topic.commit()
    settle()


def refusal(topic: Topic, *bodies: bytes, deferred: int = 0) -> str:
    """Why they are refused."""
    before = (topic.message_count, topic.depth, [channel.depth for channel in topic.channels.values()])
    with pytest.raises(OutOfBounds) as caught:
        topic.publish(list(bodies), deferred)
    assert (topic.message_count, topic.depth, [channel.depth for channel in topic.channels.values()]) == before
    return str(caught.value)


def take_all(channel: Channel) -> list[bytes]:
    """Queued messages, in order of publication."""
    found = []
    consumer = FakeConsumer(99)
    while batch := channel.take(consumer, 100_000, MINUTE, 0):
        found += batch
    return bodies_of(sorted(found, key=lambda message: (message.timestamp, message.id)))


def counts(thing: Topic | Channel) -> tuple[int, int, int]:
    """Messages rejected, dropped and expired."""
    return thing.queue.rejected, thing.queue.dropped, thing.queue.expired


def bounds_of(topic: Topic) -> Bounds:
    assert topic.bounds is not None
    return topic.bounds


def tidy(topic: Topic) -> None:
    """What the loop does."""
    while bounds_of(topic).tidy():
        pass


def test_without_bounds_nothing_is_there_to_look_after_them(fakes: Build) -> None:
    topic, _ = topic_with(fakes(**DROP), "c")
    assert topic.bounds is None
    assert type(topic.queue.memory) is deque


# Depth


@everywhere
def test_publishers_are_refused_what_a_channel_has_no_room_for(fakes: Build, place: dict[str, Any]) -> None:
    topic, (large, small) = topic_with(fakes(max_channel_depth=5, **place), "large", "small")
    publish(topic, b"0", b"1", b"2")
    settle()
    assert take_all(small) == [b"0", b"1", b"2"]
    publish(topic, b"3", b"4")
    reason = "channel t:large would hold more than 5 messages (--max-channel-depth)"
    for bodies in ([b"no"], [b"no"] * 2, [b"no"] * 3 * MAX_PUT):
        assert refusal(topic, *bodies) == reason
    assert refusal(topic, b"no", deferred=MINUTE) == reason
    refused = 1 + 2 + 3 * MAX_PUT + 1
    assert (counts(topic), counts(large), counts(small)) == ((refused, 0, 0), (refused, 0, 0), (0, 0, 0))
    assert take_all(large) == [b"%d" % number for number in range(5)]
    publish(topic, b"5", b"6", b"7")
    assert take_all(large) == [b"5", b"6", b"7"]


@everywhere
def test_topic_whose_channels_get_nothing_yet_is_bounded_itself(fakes: Build, place: dict[str, Any]) -> None:
    topic, _ = topic_with(fakes(max_channel_depth=3, **place))
    publish(topic, b"0", b"1")
    assert refusal(topic, b"no", b"no") == "topic t would hold more than 3 messages (--max-channel-depth)"
    topic.pause()
    channel = topic.get_channel("c")
    publish(topic, b"2")
    assert refusal(topic, b"no") == "channel t:c would hold more than 3 messages (--max-channel-depth)"
    topic.unpause()
    settle()
    assert (topic.depth, channel.depth) == (0, 3)


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
    channel.process_in_flight(FAR)
    channel.process_deferred(FAR)
    assert channel.depth == 6
    assert counts(channel) == (0, 0, 0)
    if policy == "reject":
        assert refusal(topic, b"3")
        tidy(topic)
        assert channel.depth == 6
    else:
        tidy(topic)
        assert channel.depth == 2


def test_ephemeral_channels_refuse_nobody(fakes: Build) -> None:
    topic, (channel,) = topic_with(fakes(max_channel_depth=3, mem_queue_size=10), "c#ephemeral")
    for number in range(5):
        publish(topic, b"%d" % number)
    assert channel.depth == 5


@everywhere
def test_the_oldest_make_room_for_the_newest(fakes: Build, place: dict[str, Any]) -> None:
    topic, (channel, other) = topic_with(fakes(max_channel_depth=5, **DROP, **place), "c", "other")
    for number in range(20):
        publish(topic, b"%02d" % number)
        assert take_all(other) == [b"%02d" % number]
        assert topic.depth + channel.depth <= 5
    publish(topic, *[b"%02d" % number for number in range(20, 24)])
    assert counts(channel) == (0, 19, 0)
    assert counts(topic) == counts(other) == (0, 0, 0)
    assert take_all(channel) == [b"%02d" % number for number in range(19, 24)]


@everywhere
def test_the_oldest_go_from_a_topic_that_hands_nothing_over(fakes: Build, place: dict[str, Any]) -> None:
    topic, _ = topic_with(fakes(max_channel_depth=5, **DROP, **place))
    for number in range(8):
        publish(topic, b"%02d" % number)
    publish(topic, *[b"%02d" % number for number in range(8, 12)])
    assert (topic.depth, counts(topic)) == (5, (0, 7, 0))
    channel = topic.get_channel("c")
    settle()
    assert take_all(channel) == [b"%02d" % number for number in range(7, 12)]


@pytest.mark.parametrize("mem_queue_size", [1000, 3, 0])
def test_dropped_messages_stay_away_after_a_kill(tmp_path: Path, syncer: Syncer, mem_queue_size: int) -> None:
    options: dict[str, Any] = {"mem_queue_size": mem_queue_size, "max_channel_depth": 5} | DROP
    daemon = Daemon(tmp_path / "a", syncer, options, {"t": ["c"], "held": ["c"]})
    daemon.registry.topics["held"].pause()
    for number in range(12):
        for topic in daemon.registry.topics.values():
            publish(topic, b"%02d" % number)
    again = daemon.after_kill(tmp_path / "b")
    settle()
    newest = [b"%02d" % number for number in range(7, 12)]
    for topic in again.registry.topics.values():
        assert take_all(topic.channels["c"]) == newest


def test_a_smaller_bound_than_before_is_reached_step_by_step(fakes: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds_module, "MAX_STEP", 10)
    around = fakes(max_channel_depth=100, **DROP)
    topic, (channel,) = topic_with(around, "c")
    publish(topic, *[b"%03d" % number for number in range(100)])
    around.options.max_channel_depth = 1
    smaller = Bounds("t", topic.queue, topic.channels, around.options, None)
    depths = []
    while smaller.tidy():
        depths.append(channel.depth)
    assert len(depths) > 10
    assert max(before - after for before, after in zip([100, *depths], depths, strict=False)) <= 10
    assert take_all(channel) == [b"099"]


# Bytes


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
def test_publishers_are_refused_what_a_topic_has_no_room_for(fakes: Build, place: dict[str, Any]) -> None:
    options = {"max_topic_bytes": 20 * SIZE, "max_bytes_per_file": 7 * SIZE} | place
    topic, (one, two) = topic_with(fakes(**options), "one", "two")
    publish(topic, *[BODY] * 10)
    reason = f"topic t would hold more than {20 * SIZE} bytes (--max-topic-bytes)"
    assert refusal(topic, b"") == reason
    assert counts(topic) == (1, 0, 0)
    assert len(take_all(one)) == 10
    assert refusal(topic, *[BODY] * 6) == reason
    publish(topic, *[BODY] * 5)
    assert refusal(topic, b"") == reason
    topic.pause()
    one.empty()
    two.empty()
    publish(topic, *[BODY] * 10)  # each channel will have them
    assert refusal(topic, b"") == reason


@everywhere
def test_bytes_count_from_the_start(fakes: Build, place: dict[str, Any]) -> None:
    options = {"max_topic_bytes": 10 * SIZE, "max_bytes_per_file": 3 * SIZE} | place
    before = fakes(**options)
    publish(topic_with(before, "c")[0], *[BODY] * 10)
    before.registry.close()
    topic, (channel,) = topic_with(fakes(**options), "c")
    assert channel.depth == 10
    assert refusal(topic, b"")
    assert take_all(channel) == [BODY] * 10
    publish(topic, *[BODY] * 10)


@everywhere
def test_room_is_made_in_the_largest_queue(fakes: Build, place: dict[str, Any]) -> None:
    options = {"max_topic_bytes": 10 * SIZE} | DROP | place
    topic, (slow, fast) = topic_with(fakes(**options), "slow", "fast")
    for number in range(12):
        publish(topic, b"%0*d" % (len(BODY), number))
        if number < 10:
            take_all(fast)
    assert counts(fast) == counts(topic) == (0, 0, 0)
    assert [int(body) for body in take_all(fast)] == [10, 11]
    assert [int(body) for body in take_all(slow)] == list(range(4, 12))


def test_a_large_message_displaces_many_small_ones(fakes: Build) -> None:
    topic, (channel,) = topic_with(fakes(max_topic_bytes=100 * SIZE, **DROP), "c")
    publish(topic, *[BODY] * 100)
    publish(topic, b"x" * (50 * SIZE - 30))
    assert (channel.depth, counts(channel)) == (51, (0, 50, 0))


def test_bytes_in_a_journal_count_after_a_kill(tmp_path: Path, syncer: Syncer) -> None:
    options = {"max_topic_bytes": 10 * SIZE, "mem_queue_size": 3}
    daemon = Daemon(tmp_path / "a", syncer, options, {"t": ["c"]})
    publish(daemon.topic, *[BODY] * 10)
    again = daemon.after_kill(tmp_path / "b")
    assert refusal(again.topic, b"")
    assert take_all(again.topic.get_channel("c")) == [BODY] * 10
    publish(again.topic, *[BODY] * 10)


# Age


def publish_old(around: Fakes, topic: Topic, *bodies: bytes, deferred: int = 0) -> None:
    """An hour ago."""
    topic.put_messages(around.messages(*bodies, deferred=deferred, age=60 * MINUTE))
    topic.commit()
    settle()


@everywhere
def test_what_is_too_old_is_not_delivered(fakes: Build, place: dict[str, Any]) -> None:
    around = fakes(message_ttl=30 * MINUTE, **place)
    topic, (channel,) = topic_with(around, "c")
    for number in range(10):
        (publish_old if number % 3 else publish_now)(around, topic, b"%d" % number)
    found: list[bytes] = []
    consumer = FakeConsumer(1)
    while channel.depth:
        found += bodies_of(channel.take(consumer, 100, MINUTE, 0))
    assert sorted(found) == [b"0", b"3", b"6", b"9"]
    assert (counts(channel), channel.in_flight_count) == ((0, 0, 6), 4)


def publish_now(around: Fakes, topic: Topic, *bodies: bytes) -> None:
    publish(topic, *bodies)


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


@everywhere
def test_what_is_too_old_goes_where_nobody_consumes(fakes: Build, place: dict[str, Any]) -> None:
    around = fakes(message_ttl=30 * MINUTE, **place)
    topic, _ = topic_with(around)
    publish_old(around, topic, *[b"old"] * 10)
    publish(topic, b"new")
    tidy(topic)
    assert (topic.depth, counts(topic)) == (1, (0, 0, 10))
    channel = topic.get_channel("c")
    settle()
    publish_old(around, topic, *[b"old"] * 10)
    channel.take(FakeConsumer(1), 1, MINUTE, 0)  # what stands in front
    tidy(topic)
    assert (channel.depth, channel.in_flight_count, counts(channel)) == (0, 1, (0, 0, 10))


def test_expired_messages_stay_away_after_a_kill(tmp_path: Path, syncer: Syncer) -> None:
    daemon = Daemon(tmp_path / "a", syncer, {"mem_queue_size": 3, "message_ttl": 30 * MINUTE}, {"t": ["c", "d"]})
    topic = daemon.topic
    publish_old(daemon.around, topic, *[b"old"] * 10)
    publish(topic, b"new")
    consumer = FakeConsumer(1)
    while topic.get_channel("c").depth:
        topic.get_channel("c").take(consumer, 100, MINUTE, 0)
    tidy(topic)
    again = daemon.after_kill(tmp_path / "b", message_ttl=0)
    assert again.take_all("c") == again.take_all("d") == Counter([b"new"])


def test_age_counts_from_publication_while_held_back_too(fakes: Build) -> None:
    around = fakes(message_ttl=30 * MINUTE)
    topic, (channel,) = topic_with(around, "c")
    publish_old(around, topic, b"old", deferred=MINUTE)
    publish(topic, b"new", deferred=MINUTE)
    assert channel.deferred_count == 2
    channel.process_deferred(FAR)
    assert channel.depth == 2
    assert take_all(channel) == [b"new"]
    assert counts(channel) == (0, 0, 1)


# The disk


def test_publishers_are_refused_while_the_disk_is_nearly_full(fakes: Build) -> None:
    around = fakes(min_free_disk=1 << 30, **DROP)
    disk = FreeDisk(str(around.data_path), 1 << 30, around.logger)
    disk.is_low(0)
    topic = Topic("t", replace(around.environment, free_disk=disk), lambda topic: None)
    topic.start()
    disk.low = True
    assert refusal(topic, b"x", b"y") == f"less than {1 << 30} bytes of disk are free (--min-free-disk)"
    assert counts(topic) == (2, 0, 0)
    disk.low = False
    publish(topic, b"x")
    assert topic.depth == 1


# The loop


@pytest.fixture
def quick_loop(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Fakes], None]]:
    monkeypatch.setattr(bounds_module, "LOOP_SECONDS", 0.01)
    loops = []

    def start(around: Fakes) -> None:
        topics = around.registry.topics
        exit = Event()

        def run() -> None:
            bounds_loop(lambda: [topic.bounds for topic in topics.values() if topic.bounds is not None], None, exit)

        loops.append((exit, around.spawn("boundsLoop", run)))

    yield start
    for exit, greenlet in loops:
        exit.set()
        greenlet.join(5)
        assert greenlet.ready()


@everywhere
def test_loop_drops_what_is_too_much_or_too_old(
    fakes: Build, quick_loop: Callable[[Fakes], None], place: dict[str, Any]
) -> None:
    around = fakes(message_ttl=30 * MINUTE, max_channel_depth=3, **DROP, **place)
    topic, (channel,) = topic_with(around, "c")
    other = around.registry.get_topic("other")
    publish_old(around, other, b"old")
    for number in range(3):
        publish(topic, b"%d" % number, b"%d" % number)
        while channel.depth:
            channel.take(FakeConsumer(1), 10, SECOND, 0)
    quick_loop(around)
    channel.process_in_flight(FAR)
    eventually(lambda: channel.depth == 3 and other.depth == 0)
    assert (counts(channel), counts(other)) == ((0, 3, 0), (0, 0, 1))
