"""Latencies that a channel notes at FIN, and what a topic makes of its channels' (NSQD-COMPAT 3)."""

from collections.abc import Callable

import pytest

from gnsqd.broker.channel import Channel
from gnsqd.broker.topic import Topic
from gnsqd.errors import BrokerError
from gnsqd.quantile import Result
from gnsqd.queues.message import Message
from unit.broker.fakes import MINUTE, SECOND, FakeConsumer, Fakes

Build = Callable[..., Fakes]

HOUR = 60 * MINUTE
PERCENTILES = [1.0, 0.5]


@pytest.fixture
def around(fakes: Build) -> Fakes:
    return fakes(e2e_processing_latency_percentiles=PERCENTILES)


def put(around: Fakes, channel: Channel, age: int) -> Message:
    """Queue a message that was published `age` ns ago."""
    (message,) = around.messages(b"x", age=age)
    channel.put_messages([message])
    return message


def finish(around: Fakes, channel: Channel, *ages: int) -> None:
    consumer = FakeConsumer(1)
    for age in ages:
        message = put(around, channel, age)
        assert channel.take(consumer, 1, MINUTE, 0) == [message]
        channel.finish(consumer.id, message.id)


def in_hours(latency: Result | None) -> tuple[int, list[tuple[float, float]]]:
    assert latency is not None
    return latency.count, [(quantile, round(value / HOUR, 1)) for quantile, value in latency.percentiles]


def test_nothing_is_noted_when_no_percentiles_are_configured(fakes: Build) -> None:
    around = fakes()
    topic = Topic("t", around.environment, lambda topic: None)
    finish(around, topic.get_channel("c"), HOUR)
    assert topic.get_channel("c").e2e_latency() is None
    assert topic.e2e_latency() is None


def test_fin_notes_the_time_since_the_message_was_published(around: Fakes) -> None:
    channel = around.channel()
    assert in_hours(channel.e2e_latency()) == (0, [(1.0, 0.0), (0.5, 0.0)])
    finish(around, channel, HOUR, 3 * HOUR, 2 * HOUR)
    assert in_hours(channel.e2e_latency()) == (3, [(1.0, 3.0), (0.5, 2.0)])


def test_a_message_that_came_from_disk_keeps_its_age(fakes: Build) -> None:
    around = fakes(mem_queue_size=0, e2e_processing_latency_percentiles=PERCENTILES)
    channel = around.channel()
    put(around, channel, 2 * HOUR)
    (message,) = channel.take(FakeConsumer(1), 1, MINUTE, 0)
    channel.finish(1, message.id)
    assert in_hours(channel.e2e_latency()) == (1, [(1.0, 2.0), (0.5, 2.0)])


def test_only_a_fin_that_succeeds_counts(around: Fakes) -> None:
    channel = around.channel()
    consumer = FakeConsumer(1)
    message = put(around, channel, HOUR)
    channel.take(consumer, 1, MINUTE, 0)
    channel.touch(1, message.id, MINUTE)
    channel.requeue(1, message.id, 0)
    channel.take(consumer, 1, -SECOND, 0)
    channel.process_in_flight(2**62)
    channel.take(consumer, 1, MINUTE, 0)
    for client_id, id in ((2, message.id), (1, b"0" * 16)):
        with pytest.raises(BrokerError):
            channel.finish(client_id, id)
    assert in_hours(channel.e2e_latency()) == (0, [(1.0, 0.0), (0.5, 0.0)])
    channel.finish(1, message.id)
    assert in_hours(channel.e2e_latency()) == (1, [(1.0, 1.0), (0.5, 1.0)])


def test_emptying_a_channel_keeps_its_figures(around: Fakes) -> None:
    channel = around.channel()
    finish(around, channel, HOUR)
    channel.empty()
    assert in_hours(channel.e2e_latency()) == (1, [(1.0, 1.0), (0.5, 1.0)])


def test_a_topic_merges_what_its_channels_have(around: Fakes) -> None:
    topic = Topic("t", around.environment, lambda topic: None)
    assert topic.e2e_latency() is None
    finish(around, topic.get_channel("a"), HOUR, HOUR, HOUR)
    assert in_hours(topic.e2e_latency()) == (3, [(1.0, 1.0), (0.5, 1.0)])
    finish(around, topic.get_channel("b"), 5 * HOUR, 6 * HOUR, 5 * HOUR, 5 * HOUR)
    assert in_hours(topic.e2e_latency()) == (7, [(1.0, 6.0), (0.5, 5.0)])
    assert in_hours(topic.get_channel("a").e2e_latency()) == (3, [(1.0, 1.0), (0.5, 1.0)])
    topic.delete_existing_channel("b")
    assert in_hours(topic.e2e_latency()) == (3, [(1.0, 1.0), (0.5, 1.0)])


def test_others_have_turns_while_a_topic_merges_and_may_go_on_meanwhile(
    around: Fakes, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = Topic("t", around.environment, lambda topic: None)
    for name in "abc":
        finish(around, topic.get_channel(name), HOUR)
    turns: list[None] = []

    def change() -> None:
        turns.append(None)
        finish(around, topic.get_channel("a"), HOUR)
        topic.get_channel(f"new{len(turns)}")
        if "c" in topic.channels:
            topic.delete_existing_channel("c")

    monkeypatch.setattr("gnsqd.hub.cooperative.TURN_SECONDS", 0)
    monkeypatch.setattr("gnsqd.hub.cooperative.give_way", change)
    assert in_hours(topic.e2e_latency()) == (3, [(1.0, 1.0), (0.5, 1.0)])
    assert len(turns) == 3
