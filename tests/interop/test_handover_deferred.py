"""Deferred messages in a data path that whole daemons hand over.

The real nsqd keeps no due times on disk and delivers at once; gnsqd holds back what the real one did not deliver in
between.
"""

import time

import pytest

from kit.daemons import Instance, eventually
from kit.handover import (
    HOUR,
    Shape,
    again,
    hand_over,
    nothing_left,
    queued_and_in_flight,
    start_other,
    started_with,
    stored,
    varied,
)
from kit.nsq_client import NSQClient, ReceivedMessage
from kit.traffic import DaemonFactory, all_done, create, publish, take, wait_for

pytestmark = pytest.mark.peer

gnsqd_first = pytest.mark.parametrize("daemon_command", ["gnsqd"], indirect=True)


def defer(nsqd: Instance, milliseconds: bytes = HOUR) -> None:
    """Publishes an ordinary message and two deferred ones on `t:c` and on `lonely`, and requeues two on `t:c`."""
    create(nsqd, "t", "c")
    create(nsqd, "lonely")
    with NSQClient(nsqd.tcp_address) as client:
        client.publish("t", b"requeued-0", b"requeued-1")
        client.subscribe("t", "c", rdy=2)
        ids = [client.message().id for _ in range(2)]
        client.send(b"RDY 0\n")
        for id in ids:
            client.send(b"REQ %b %b\n" % (id, milliseconds))
        all_done(client)
    for topic in ("t", "lonely"):
        publish_deferred(nsqd, topic, milliseconds, b"deferred-0", b"deferred-1")
        publish(nsqd, topic, b"ordinary")
    wait_for(nsqd, "t", "c", depth=1, in_flight_count=0, deferred_count=4)


IN_CHANNEL = {b"requeued-0": 2, b"requeued-1": 2, b"deferred-0": 1, b"deferred-1": 1, b"ordinary": 1}
IN_TOPIC = {b"deferred-0": 1, b"deferred-1": 1, b"ordinary": 1}
ALL_STORED: Shape = {"t": (False, 0, {"c": (False, 5)}), "lonely": (False, 3, {})}


def attempts_of(messages: list[ReceivedMessage]) -> dict[bytes, int]:
    """Returns attempts of the next delivery by body, of which there are no two of a kind."""
    assert len({message.body for message in messages}) == len({message.id for message in messages}) == len(messages)
    return {message.body: message.attempts for message in messages}


def publish_deferred(nsqd: Instance, topic: str, milliseconds: bytes, *bodies: bytes) -> None:
    with NSQClient(nsqd.tcp_address) as client:
        for body in bodies:
            client.command(b"DPUB %b %b" % (topic.encode(), milliseconds), body)
            assert client.response() == b"OK"


def due_times_files(nsqd: Instance) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in nsqd.data_path.glob("*.diskqueue.due_times.dat")}


# With one message in memory, some reach the topic's file by overflow and some at the exit.
defer_flags = pytest.mark.parametrize("flags", [(), ("--mem-queue-size=1",)], ids=["memory", "overflow"])


@defer_flags
def test_what_was_deferred_is_delivered_at_once_after_a_hand_over(
    start_first: DaemonFactory, flags: tuple[str, ...]
) -> None:
    nsqd = start_first(*flags)
    defer(nsqd)
    hand_over(nsqd)
    started_with(nsqd, ALL_STORED)
    in_channel, in_topic = stored(nsqd, "t:c"), stored(nsqd, "lonely")
    assert attempts_of(in_channel) == IN_CHANNEL
    assert attempts_of(in_topic) == IN_TOPIC
    assert sorted(take(nsqd, "t", "c", 5)) == sorted(in_channel)
    assert sorted(take(nsqd, "lonely", "new", 3)) == sorted(in_topic)
    nothing_left(nsqd)

    hand_over(nsqd)
    nothing_left(nsqd)
    for topic, channel in (("t", "c"), ("lonely", "new")):
        publish(nsqd, topic, b"later")
        assert [message.body for message in take(nsqd, topic, channel, 1)] == [b"later"]
    nothing_left(nsqd)


@gnsqd_first
def test_what_the_real_nsqd_delivered_in_between_is_not_held_back(start_first: DaemonFactory) -> None:
    nsqd = start_first()
    create(nsqd, "t", "c")
    publish_deferred(nsqd, "t", HOUR, *varied(9))
    wait_for(nsqd, "t", "c", depth=0, in_flight_count=0, deferred_count=9)
    hand_over(nsqd)
    in_channel = {message.id: message for message in stored(nsqd, "t:c")}
    with NSQClient(nsqd.tcp_address) as client:
        client.subscribe("t", "c", rdy=7)
        received = [client.message() for _ in range(7)]
        assert sorted(received) == sorted(in_channel.pop(message.id) for message in received)
        client.send(b"RDY 0\n")
        finished, requeued, requeued_later, in_flight = received[:2], received[2:4], received[4:5], received[5:]
        client.send(b"".join(b"FIN %b\n" % message.id for message in finished))
        client.send(b"".join(b"REQ %b 0\n" % message.id for message in requeued))
        client.send(b"".join(b"REQ %b %b\n" % (message.id, HOUR) for message in requeued_later))
        wait_for(nsqd, "t", "c", depth=4, in_flight_count=2, deferred_count=1)
        hand_over(nsqd)

    started_with(nsqd, {"t": (False, 0, {"c": (False, 7)})})
    expected = again(requeued + requeued_later + in_flight)
    assert sorted(take(nsqd, "t", "c", 5)) == sorted(expected)
    wait_for(nsqd, "t", "c", depth=0, in_flight_count=0, deferred_count=2)
    hand_over(nsqd)
    assert sorted(take(nsqd, "t", "c", 2)) == sorted(in_channel.values())
    nothing_left(nsqd)


@gnsqd_first
@defer_flags
def test_due_times_outlive_real_nsqd_that_delivers_nothing(start_first: DaemonFactory, flags: tuple[str, ...]) -> None:
    nsqd = start_first(*flags)
    defer(nsqd)
    short = b"2000"
    deferred_at = time.time_ns()
    publish_deferred(nsqd, "t", short, b"short")
    publish_deferred(nsqd, "lonely", short, b"short")
    eventually(lambda: queued_and_in_flight(nsqd, "t", "c") == (6, 0))
    hand_over(nsqd)
    started_with(nsqd, {"t": (False, 0, {"c": (False, 6)}), "lonely": (False, 4, {})})
    files = due_times_files(nsqd)
    assert sorted(files) == ["lonely.diskqueue.due_times.dat", "t:c.diskqueue.due_times.dat"]
    in_queues = {"t:c": stored(nsqd, "t:c"), "lonely": stored(nsqd, "lonely")}
    assert nsqd.terminate() == 0
    assert due_times_files(nsqd) == files
    start_other(nsqd)

    create(nsqd, "lonely", "c")
    left = {}
    for topic, queue, deferred in (("t", "t:c", 4), ("lonely", "lonely", 2)):
        received = take(nsqd, topic, "c", 2)
        assert sorted(message.body for message in received) == [b"ordinary", b"short"]
        assert time.time_ns() - deferred_at >= int(short) * 10**6
        assert set(received) < set(in_queues[queue])
        left[topic] = sorted(set(in_queues[queue]) - set(received))
        wait_for(nsqd, topic, "c", depth=0, in_flight_count=0, deferred_count=deferred)

    hand_over(nsqd)
    for topic, messages in left.items():
        assert sorted(take(nsqd, topic, "c", len(messages))) == messages
    nothing_left(nsqd)
