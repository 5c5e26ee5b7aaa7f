"""A topic whose disk refuses messages, and the turns of its pump; the rest is in behaviour/test_topics_and_channels."""

from collections.abc import Callable
from itertools import pairwise

import pytest
from gevent import joinall, sleep, spawn

from gnsqd.broker.channel import Channel
from gnsqd.broker.topic import Topic
from gnsqd.hub.cooperative import yield_turn
from gnsqd.observe.stats import e2e_latency
from gnsqd.queues.backend import Left
from gnsqd.shared.errors import StorageError
from unit.broker.fakes import (
    MAX_PUT,
    MAX_PUT_BYTES,
    MINUTE,
    Build,
    FakeConsumer,
    Fakes,
    bodies_of,
    disk_queue_of,
    eventually,
    replace_writes,
    settle,
    take_all,
)


def new_topic(around: Fakes, name: str = "t", *, started: bool = True) -> Topic:
    topic = Topic(name, around.environment, lambda topic: None)
    if started:
        topic.start()
    return topic


def publish(topic: Topic, *bodies: bytes, deferred: int = 0) -> None:
    topic.put_messages(topic.new_messages(list(bodies), deferred))
    topic.commit()


def waiting(channel: Channel) -> list[bytes]:
    return sorted(bodies_of(take_all(channel)))


def refuse(payloads: list[bytes]) -> None:
    """Fails as `put_many` of a backend queue does on a disk that is full."""
    raise StorageError("no space left on device")


def refuse_and_note(attempts: list[int]) -> Callable[[list[bytes]], None]:
    """Returns a function that does the same, and notes the number of payloads in `attempts`."""

    def put_many(payloads: list[bytes]) -> None:
        attempts.append(len(payloads))
        refuse(payloads)

    return put_many


def eventually_tried_again(attempts: list[int]) -> None:
    """Waits for the pump, which tries again all by itself."""
    before = len(attempts)
    eventually(lambda: len(attempts) > before + 2)


def wait_for(topic: Topic, name: str, depth: int) -> Channel:
    channel = topic.get_channel(name)
    eventually(lambda: channel.depth == depth)
    return channel


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


def test_ephemeral_topic_without_memory_hands_over_what_it_can(fakes: Build) -> None:
    topic = new_topic(fakes(mem_queue_size=0), "t#ephemeral")
    publish(topic, b"dropped")
    channel = topic.get_channel("c")  # ordinary, so on disk
    publish(topic, b"kept")
    settle()
    assert waiting(channel) == [b"kept"]


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
    assert len(disk_queue_of(topic).due_times) == 1


def test_disk_that_refuses_fails_the_publisher_and_keeps_what_came_before(
    fakes: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    around = fakes(mem_queue_size=1)
    topic = new_topic(around)
    put_many = disk_queue_of(topic).put_many

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
    assert waiting(wait_for(topic, "c", 3)) == [b"disk", b"disk again", b"memory"]


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
        assert topic.queue.backend.count > 0
    channel = wait_for(topic, "c", 2000)
    assert waiting(channel) == sorted(bodies)


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
    assert (channel.queue.blocked, channel.queue.backend.count) == (False, 1)


def test_blocked_channel_goes_on_when_its_consumers_took_what_was_too_much(
    fakes: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gnsqd.broker.topic.RETRY_SECONDS", 0.01)
    topic = new_topic(fakes(mem_queue_size=1))
    channel = topic.get_channel("c")
    replace_writes(monkeypatch, channel, refuse_and_note([]))
    publish(topic, b"memory")
    publish(topic, b"refused")
    eventually(lambda: channel.queue.blocked)
    assert waiting(channel) == [b"memory", b"refused"]
    eventually(lambda: not channel.queue.blocked)
    publish(topic, b"new")
    assert waiting(wait_for(topic, "c", 1)) == [b"new"]


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


def test_pump_lets_others_run_between_its_batches(fakes: Build) -> None:
    topic = new_topic(fakes(), started=False)
    channel = topic.get_channel("c")
    for _ in range(2):
        publish(topic, *[b"x"] * 2500)
    seen = []
    topic.start()
    while topic.depth:
        sleep(0)
        seen.append(channel.depth)
    assert len(set(seen)) > 5


def test_message_without_others_before_it_is_in_its_channels_at_once(fakes: Build) -> None:
    topic = new_topic(fakes(mem_queue_size=2))
    channels = [topic.get_channel(name) for name in "cd"]
    for depth in (1, 2, 2):  # then it waits for the pump, which goes through the disk
        publish(topic, b"x")
        assert [channel.depth for channel in channels] == [depth] * 2
    settle()
    assert [channel.depth for channel in channels] == [3, 3]


def test_others_have_turns_while_a_topic_merges_latencies_and_may_change_it_meanwhile(
    fakes: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    around = fakes(e2e_processing_latency_percentiles=[1.0, 0.5])
    topic = new_topic(around)

    def finish_one(name: str) -> None:
        channel = topic.get_channel(name)
        channel.put_messages(around.messages(b"x", age=60 * MINUTE))
        (message,) = take_all(channel)
        channel.finish(message.client_id, message.id)

    def change() -> None:
        turns.append(None)
        finish_one("a")
        topic.get_channel(f"new{len(turns)}")
        if "c" in topic.channels:
            topic.delete_existing_channel("c")

    turns: list[None] = []
    for name in "abc":
        finish_one(name)
    monkeypatch.setattr("gnsqd.hub.cooperative.TURN_SECONDS", 0)
    monkeypatch.setattr("gnsqd.hub.cooperative.yield_turn", change)
    latency = e2e_latency(topic)
    assert latency is not None
    assert latency.count == 3
    assert len(turns) == 3


@pytest.mark.parametrize("bodies", [3 * MAX_PUT * [b"x"], 3 * [bytes(MAX_PUT_BYTES)]], ids=["many", "long"])
def test_others_run_between_the_parts_of_any_two_large_batches(fakes: Build, bodies: list[bytes]) -> None:
    topic = new_topic(fakes(mem_queue_size=20 * len(bodies)))
    counts: list[int] = []

    def look() -> None:
        while True:
            counts.append(topic.message_count)
            yield_turn()

    looking = spawn(look)
    joinall([spawn(topic.publish, bodies) for _ in range(5)], raise_error=True)
    looking.kill()
    parts = {after - before for before, after in pairwise([*counts, topic.message_count])}
    assert topic.message_count == 5 * len(bodies)
    assert parts - {0} == {len(bodies) // 3}
