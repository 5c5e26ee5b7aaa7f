"""Delivery rules of a channel: the rate limit and its timer, order across memory and store (contrib/docs/rules.md)."""

from itertools import count, islice
from time import monotonic, monotonic_ns, time_ns

import pytest
from gevent import sleep
from hypothesis import given
from hypothesis import strategies as st

from gnsqd.broker.channel import Channel
from gnsqd.broker.rules import Rules
from gnsqd.hub import cooperative
from gnsqd.queues.message import Message
from unit.broker.fakes import MINUTE, SECOND, Build, Consumers, FakeConsumer, Fakes, bodies_of, eventually
from unit.queues.journal.test_backend import daemons_of

ORDERED = Rules(ordered=True)


def take(channel: Channel, consumer: FakeConsumer, window: int = 100) -> list[Message]:
    messages = channel.take(consumer, window, MINUTE, 0)
    for message in messages:
        message.next_delivery()
    return messages


def numbered(around: Fakes, count: int, first: int = 0) -> list[Message]:
    return around.messages(*(b"%04d" % number for number in range(first, first + count)))


def drain(channel: Channel, consumer: FakeConsumer) -> list[bytes]:
    """Finishes all, as the rules allow."""
    seen = []
    while batch := take(channel, consumer):
        seen += bodies_of(batch)
        assert channel.finish_run(consumer.id, b"".join(b"FIN %b\n" % message.id for message in batch)) == len(batch)
    return seen


def test_slow_rate_keeps_its_tokens_apart(fakes: Build, consumers: Consumers) -> None:
    around = fakes()
    channel = around.channel()
    channel.set_rules(Rules(rate=0.1, burst=1))
    channel.put_messages(numbered(around, 2))
    assert [len(take(channel, consumers[0])) for _ in range(3)] == [1, 0, 0]
    channel.set_rules(Rules(rate=0.2, burst=3))  # it has used its token
    assert take(channel, consumers[0]) == []
    woken = consumers[0].woken
    channel.set_rules(Rules())
    assert consumers[0].woken == woken + 1
    assert len(take(channel, consumers[0])) == 1


STEPS = st.lists(
    st.tuples(
        st.sampled_from([*["publish", "take"] * 3, "finish", "finish", "requeue", "time out", "pause"]),
        st.integers(1, 7),
    ),
    max_size=40,
)


@given(STEPS, st.sampled_from([0, 1, 4, 1000]), st.sampled_from(["none", "process"]), st.booleans())
def test_oldest_message_comes_next_and_alone(
    steps: list[tuple[str, int]], capacity: int, durability: str, at_one_moment: bool
) -> None:
    options = {"mem_queue_size": capacity, "durability": durability}
    with daemons_of(options) as (daemon,):
        compare_with_a_list(daemon.around, steps, time_ns() if at_one_moment else 0)


def compare_with_a_list(around: Fakes, steps: list[tuple[str, int]], moment: int) -> None:
    topic = around.registry.get_topic("t")
    channel = topic.get_channel("c")
    topic.set_rules(channel, ORDERED)
    consumer = FakeConsumer(1)
    in_topic: list[bytes] = []
    queued: list[bytes] = []
    in_flight: list[Message] = []
    count = 0
    for step, amount in steps:
        if step == "publish":
            in_topic += [b"%d" % number for number in range(count, count + amount)]
            count += amount
            topic.put_messages(around.messages(*in_topic[-amount:], now=moment))
            topic.commit()
        elif step == "pause":
            topic.pause(not topic.paused)
        elif step == "take":
            taken = take(channel, consumer)
            assert bodies_of(taken) == (queued[:1] if not in_flight else [])
            in_flight += taken
        elif in_flight:
            message = in_flight.pop()
            if step == "finish":
                channel.finish(1, message.id)
                queued.pop(0)
            elif step == "requeue":
                channel.requeue(1, message.id, 0)
            else:
                before = channel.timeout_count
                channel.process_due(monotonic_ns() + 2 * MINUTE)
                assert channel.timeout_count > before
        if not topic.paused:
            eventually(lambda: topic.depth == 0)
            queued += in_topic
            in_topic.clear()
        assert (topic.depth, channel.depth) == (len(in_topic), len(queued) - len(in_flight))
    topic.pause(False)
    eventually(lambda: topic.depth == 0)
    for message in in_flight:
        channel.requeue(1, message.id, 0)
    assert drain(channel, consumer) == queued + in_topic


@pytest.mark.parametrize("durability", ["none", "process"])
def test_channel_becomes_ordered_while_it_is_used(
    fakes: Build, consumers: Consumers, monkeypatch: pytest.MonkeyPatch, durability: str
) -> None:
    around = fakes(mem_queue_size=4, durability=durability)
    topic = around.registry.get_topic("t")
    channel = topic.get_channel("c")
    channel.add_client(consumers[0])
    topic.start()
    topic.put_messages(numbered(around, 4))
    eventually(lambda: channel.depth == 4)
    in_flight = take(channel, consumers[0], 3)
    for first in (4, 7):  # into memory, then into the store
        topic.put_messages(numbered(around, 3, first))
        eventually(lambda: topic.depth == 0)
    channel.requeue(1, in_flight[2].id, 0)
    channel.requeue(1, in_flight[1].id, MINUTE)
    topic.set_rules(channel, ORDERED)
    assert take(channel, consumers[0]) == []
    channel.requeue(1, in_flight[0].id, 0)
    assert take(channel, consumers[0]) == []
    monkeypatch.setattr("gnsqd.broker.rules.monotonic_ns", lambda: monotonic_ns() + MINUTE)
    expected = [b"%04d" % number for number in range(10)]
    seen = drain(channel, consumers[0])
    if durability == "process":
        assert seen == expected
    else:  # the third was written behind the others
        assert [body for body in seen if body != b"0002"] == [body for body in expected if body != b"0002"]
    topic.set_rules(channel, Rules())
    topic.put_messages(numbered(around, 2))
    eventually(lambda: channel.depth == 2)
    assert len(take(channel, consumers[0])) == 2


@pytest.mark.parametrize("requeued", [0, 5000])
def test_long_queue_is_ordered_in_steps_while_others_go_on(fakes: Build, consumers: Consumers, requeued: int) -> None:
    around = fakes(mem_queue_size=50_000)
    topic = around.registry.get_topic("t")
    channel = topic.get_channel("c")
    channel.add_client(consumers[0])
    channel.put_messages(numbered(around, 30_000))
    ids = [message.id for message in take(channel, consumers[0], 100)]
    while len(ids) < requeued + 100:
        ids += [message.id for message in take(channel, consumers[0], 100)]
    for id in ids[100:]:
        channel.requeue(1, id, 0)
    ordering = around.spawn("ordering", lambda: topic.set_rules(channel, ORDERED))
    steps = 0
    while not ordering.ready():
        sleep(0)
        if steps < 100:  # between two steps a message comes, another comes back, and nobody gets any
            channel.put_messages(numbered(around, 1, 30_000 + steps))
            channel.requeue(1, ids[steps], 0)
            steps += 1
        if not channel.queue.ordered:
            assert take(channel, consumers[0]) == []
    assert steps > 5
    for id in ids[steps:100]:
        channel.requeue(1, id, 0)
    assert drain(channel, consumers[0]) == [b"%04d" % number for number in range(30_000 + steps)]


@pytest.mark.parametrize("change", ["ordered=false", "empty", "delete"])
def test_queue_that_is_changed_while_it_is_ordered(fakes: Build, consumers: Consumers, change: str) -> None:
    around = fakes(mem_queue_size=50_000)
    topic = around.registry.get_topic("t")
    channel = topic.get_channel("c")
    channel.put_messages(numbered(around, 30_000)[::-1])
    ordering = around.spawn("ordering", lambda: topic.set_rules(channel, ORDERED))
    eventually(lambda: channel.queue.arranging)
    if change == "ordered=false":
        topic.set_rules(channel, Rules())
    elif change == "empty":
        channel.empty()
        channel.put_messages(numbered(around, 2)[::-1])
    else:
        topic.delete_existing_channel("c")
    ordering.join()
    assert channel.queue.ordered == (change != "ordered=false")
    if change == "ordered=false":
        assert len(take(channel, consumers[0], 100)) == 100
    elif change == "empty":
        assert drain(channel, consumers[0]) == [b"0000", b"0001"]


def test_only_the_message_that_the_others_wait_for_is_looked_for_when_cancelled(
    fakes: Build, consumers: Consumers, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = count()
    monkeypatch.setattr(cooperative, "perf_counter", lambda: next(seconds))  # who looks gives a turn for each message
    around = fakes()
    channel = around.channel()
    channel.add_client(consumers[0])
    channel.put_messages(numbered(around, 3))
    taken = take(channel, consumers[0], 3)
    for message in taken[:2]:
        channel.requeue(1, message.id, MINUTE)
    channel.finish(1, taken[2].id)
    channel.put_messages([], around.messages(*[b"x"] * 50, deferred=2 * MINUTE))
    channel.set_rules(ORDERED)
    looks = 0

    def cancel(message: Message) -> None:
        nonlocal looks
        due = message.deadline
        cancelling = around.spawn("cancel", lambda: channel.cancel(due, message))
        sleep(0)
        looks += not cancelling.ready()
        cancelling.join()

    latest = channel.deferred.resume_at
    assert latest == taken[1].deadline
    cancel(taken[0])
    assert (channel.deferred.resume_at, looks) == (latest, 0)
    later, last = islice(channel.deferred, 1, 3)
    cancel(later)
    assert looks == 0
    cancel(taken[1])
    assert (channel.deferred.resume_at, looks) == (0, 1)
    cancel(last)
    assert looks == 1


def test_timer_wakes_a_consumer_when_messages_need_not_wait_any_more(fakes: Build, consumers: Consumers) -> None:
    around = fakes()
    channel = around.channel()
    channel.set_rules(ORDERED)
    channel.put_messages(numbered(around, 3))
    (message,) = take(channel, consumers[0])
    begun = monotonic()
    channel.requeue(1, message.id, SECOND // 4)
    assert [take(channel, consumer) for consumer in consumers] == [[], [], []]
    eventually(lambda: any(consumer.woken for consumer in consumers))
    assert monotonic() - begun >= 0.24
    for consumer in consumers[1:]:
        channel.stop_waiting(consumer)
    assert drain(channel, consumers[0]) == [b"0000", b"0001", b"0002"]
