"""Topics and channels come, hold, pause, empty and go; their memory and the disk behind it (NSQD-COMPAT 3).

Everything an operator does here goes through the HTTP API, everything a client does through the protocol.
"""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from kit.daemons import Instance, eventually
from kit.nsq_client import RESPONSE, Frame, NSQClient, ReceivedMessage, split_frames
from kit.traffic import DaemonFactory, create, finish, post, wait_for


@pytest.fixture(scope="module")
def nsqd(module_factory: DaemonFactory) -> Instance:
    return module_factory()


@pytest.fixture
def consumer(nsqd: Instance) -> NSQClient:
    return NSQClient(nsqd.tcp_address)


def bodies(messages: list[ReceivedMessage]) -> list[bytes]:
    return [message.body for message in messages]


# Coming


def test_sub_creates_topic_and_channel_and_http_does_too(nsqd: Instance, client: NSQClient, topic: str) -> None:
    client.subscribe(topic, "by-sub")
    create(nsqd, topic, "by-http", "by-http")
    found = nsqd.topic_stats(topic)
    assert [entry["channel_name"] for entry in found["channels"]] == ["by-http", "by-sub"]


def test_messages_wait_in_the_topic_while_it_has_no_channel(nsqd: Instance, client: NSQClient, topic: str) -> None:
    create(nsqd, topic, "deleted")
    post(nsqd, f"/channel/delete?topic={topic}&channel=deleted")
    client.publish(topic, b"0", b"1")
    assert wait_for(nsqd, topic, depth=2)["channels"] == []
    client.subscribe(topic, "first", rdy=10)
    assert [client.message().body, client.message().body] == [b"0", b"1"]
    assert nsqd.topic_stats(topic)["depth"] == 0
    create(nsqd, topic, "second")
    assert nsqd.channel_stats(topic, "second")["message_count"] == 0


# Pausing


def test_paused_topic_keeps_its_messages_until_it_is_unpaused(
    nsqd: Instance, client: NSQClient, consumer: NSQClient, topic: str
) -> None:
    consumer.subscribe(topic, "c", rdy=10)
    post(nsqd, f"/topic/pause?topic={topic}")
    assert nsqd.topic_stats(topic)["paused"] is True
    client.publish(topic, b"held")
    assert consumer.nothing_arrives(0.5)
    stats = nsqd.topic_stats(topic)
    assert (stats["depth"], stats["channels"][0]["depth"], stats["channels"][0]["message_count"]) == (1, 0, 0)
    post(nsqd, f"/topic/unpause?topic={topic}")
    assert bodies(finish(consumer, 1)) == [b"held"]
    assert nsqd.topic_stats(topic)["paused"] is False


def test_paused_channel_keeps_its_messages_while_others_get_theirs(
    nsqd: Instance, client: NSQClient, consumer: NSQClient, topic: str
) -> None:
    consumer.subscribe(topic, "paused", rdy=1)
    post(nsqd, f"/channel/pause?topic={topic}&channel=paused")
    with NSQClient(nsqd.tcp_address) as other, NSQClient(nsqd.tcp_address) as late:
        other.subscribe(topic, "other", rdy=10)
        client.publish(topic, b"x", b"y")
        finish(other, 2)
        late.subscribe(topic, "paused", rdy=1)  # which changes nothing
        wait_for(nsqd, topic, "paused", depth=2, paused=True, in_flight_count=0)
        assert consumer.nothing_arrives(0.3)
        assert late.nothing_arrives(0.1)
        post(nsqd, f"/channel/unpause?topic={topic}&channel=paused")
        assert sorted([consumer.message().body, late.message().body]) == [b"x", b"y"]


# Emptying


def test_emptied_topic_drops_what_no_channel_has(
    nsqd: Instance, client: NSQClient, consumer: NSQClient, topic: str
) -> None:
    consumer.subscribe(topic, "c")
    client.publish(topic, b"in the channel")
    wait_for(nsqd, topic, "c", depth=1)
    post(nsqd, f"/topic/pause?topic={topic}")
    client.publish(topic, b"in the topic", b"this too")
    wait_for(nsqd, topic, depth=2)
    post(nsqd, f"/topic/empty?topic={topic}")
    wait_for(nsqd, topic, depth=0)
    post(nsqd, f"/topic/unpause?topic={topic}")
    consumer.command(b"RDY 10")
    assert bodies(finish(consumer, 1)) == [b"in the channel"]
    assert consumer.nothing_arrives(0.3)


def test_emptied_channel_drops_queued_in_flight_and_deferred_messages(
    nsqd: Instance, client: NSQClient, consumer: NSQClient, topic: str
) -> None:
    consumer.subscribe(topic, "c", rdy=2)
    client.publish(topic, *[b"%d" % number for number in range(5)])
    client.command(f"DPUB {topic} 60000".encode(), b"deferred")
    assert client.response() == b"OK"
    dropped = [consumer.message().id, consumer.message().id]
    wait_for(nsqd, topic, "c", depth=3, in_flight_count=2, deferred_count=1)
    # The real nsqd forgets what is in flight first, and a consumer that is ready may get another message meanwhile.
    consumer.command(b"RDY 0")
    eventually(lambda: nsqd.channel_stats(topic, "c")["clients"][0]["ready_count"] == 0)
    post(nsqd, f"/channel/empty?topic={topic}&channel=c")
    stats = wait_for(nsqd, topic, "c", depth=0, in_flight_count=0, deferred_count=0)
    assert stats["message_count"] == 6
    assert [stats["clients"][0][key] for key in ("in_flight_count", "ready_count")] == [0, 0]
    consumer.command(b"RDY 2")
    consumer.command(b"FIN " + dropped[0])
    assert consumer.error() == b"E_FIN_FAILED FIN %b failed ID not in flight" % dropped[0]
    client.publish(topic, b"new")
    client.publish(topic, b"newer")
    assert bodies(finish(consumer, 2)) == [b"new", b"newer"]


# Going


def test_deleted_channel_closes_its_consumers_without_a_frame(
    nsqd: Instance, client: NSQClient, consumer: NSQClient, topic: str
) -> None:
    consumer.subscribe(topic, "c")
    client.publish(topic, b"x")
    wait_for(nsqd, topic, "c", depth=1)
    post(nsqd, f"/channel/delete?topic={topic}&channel=c")
    assert consumer.recv_until_closed() == b""
    assert nsqd.topic_stats(topic)["channels"] == []
    create(nsqd, topic, "c")
    assert nsqd.channel_stats(topic, "c")["depth"] == 0


def test_deleted_topic_takes_its_channels_consumers_and_files_with_it(nsqd_factory: DaemonFactory, topic: str) -> None:
    nsqd = nsqd_factory("--mem-queue-size=0")
    with NSQClient(nsqd.tcp_address) as client, NSQClient(nsqd.tcp_address) as consumer:
        client.publish(f"{topic}-kept", b"x")
        consumer.subscribe(topic, "c")
        client.publish(topic, b"0", b"1")
        wait_for(nsqd, topic, "c", depth=2, backend_depth=2)
        create(nsqd, topic, "d")
        client.publish(topic, b"2")
        wait_for(nsqd, topic, "d", depth=1, backend_depth=1)
        post(nsqd, f"/channel/delete?topic={topic}&channel=d")
        eventually(lambda: not list(nsqd.data_path.glob(f"{topic}:d.*")))
        assert list(nsqd.data_path.glob(f"{topic}:c.*"))
        post(nsqd, f"/topic/pause?topic={topic}")
        client.publish(topic, b"3")
        post(nsqd, f"/topic/delete?topic={topic}")
        assert consumer.recv_until_closed() == b""
        assert [entry["topic_name"] for entry in nsqd.stats()["topics"]] == [f"{topic}-kept"]
        eventually(lambda: not list(nsqd.data_path.glob(f"{topic}[.:]*")))
        assert list(nsqd.data_path.glob(f"{topic}-kept.*"))
        client.publish(topic, b"again")
        found = wait_for(nsqd, topic, depth=1)
        assert (found["message_count"], found["paused"], found["channels"]) == (1, False, [])


def test_ephemeral_channel_goes_with_last_client(
    nsqd: Instance, client: NSQClient, consumer: NSQClient, topic: str
) -> None:
    client.subscribe(topic, "c#ephemeral")
    consumer.subscribe(topic, "c#ephemeral")
    client.close()
    wait_for(nsqd, topic, "c#ephemeral", client_count=1)
    consumer.close()
    eventually(lambda: nsqd.topic_stats(topic)["channels"] == [])


def test_ephemeral_topic_goes_with_its_last_channel(
    nsqd: Instance, client: NSQClient, consumer: NSQClient, topic: str
) -> None:
    name, quoted = f"{topic}#ephemeral", f"{topic}%23ephemeral"
    consumer.subscribe(name, "c#ephemeral")
    create(nsqd, quoted, "ordinary")
    consumer.close()
    eventually(lambda: [entry["channel_name"] for entry in nsqd.topic_stats(name)["channels"]] == ["ordinary"])
    post(nsqd, f"/channel/delete?topic={quoted}&channel=ordinary")
    eventually(lambda: not nsqd.topic_stats(name))
    client.publish(name, b"a topic that never had a channel stays")
    assert nsqd.topic_stats(name)["depth"] == 1


def test_consumer_may_come_back_to_an_ephemeral_channel_at_once(gnsqd: Instance, topic: str) -> None:
    # For ours only: the real daemon answers some of these SUBs with `E_SUB_FAILED SUB failed exiting`.
    name = f"{topic}#ephemeral"
    with NSQClient(gnsqd.tcp_address) as publisher:
        for _ in range(50):
            with NSQClient(gnsqd.tcp_address) as consumer:
                consumer.subscribe(name, "c#ephemeral", rdy=1)
                publisher.publish(name, b"x")
                assert bodies(finish(consumer, 1)) == [b"x"]
    eventually(lambda: not gnsqd.topic_stats(name))


@pytest.mark.parametrize("kind", ["channel", "topic"])
def test_consumer_that_comes_back_during_a_deletion_receives_what_is_published_afterwards(
    gnsqd: Instance, topic: str, kind: str
) -> None:
    # For ours only: the real daemon gives most of them a channel of the old topic, where nothing arrives (26).
    with NSQClient(gnsqd.tcp_address) as publisher, ThreadPoolExecutor() as background:
        for number in range(10):
            name = f"{topic}-{number}"
            with NSQClient(gnsqd.tcp_address) as first:
                first.subscribe(name, "c", rdy=1)
                deletion = background.submit(post, gnsqd, f"/{kind}/delete?topic={name}&channel=c")
                assert first.recv_until_closed() == b""
            with NSQClient(gnsqd.tcp_address) as again:
                again.subscribe(name, "c", rdy=1)
                deletion.result()
                publisher.publish(name, b"x")
                assert bodies(finish(again, 1)) == [b"x"]


# Memory and disk


def test_what_exceeds_memory_goes_to_disk_and_all_is_delivered(nsqd_factory: DaemonFactory, topic: str) -> None:
    nsqd = nsqd_factory("--mem-queue-size=10", "--max-bytes-per-file=4000")
    expected = [b"%d" % number for number in range(1000)]
    with NSQClient(nsqd.tcp_address) as client, NSQClient(nsqd.tcp_address) as consumer:
        for first in range(0, 500, 50):
            client.publish(topic, *expected[first : first + 50])
        assert wait_for(nsqd, topic, depth=500)["backend_depth"] == 490
        for body in expected[500:]:
            client.publish(topic, body)
        assert wait_for(nsqd, topic, depth=1000)["backend_depth"] == 990
        create(nsqd, topic, "c")
        wait_for(nsqd, topic, depth=0, backend_depth=0)
        assert wait_for(nsqd, topic, "c", depth=1000)["backend_depth"] == 990
        consumer.subscribe(topic, "c", rdy=7)
        assert sorted(bodies(finish(consumer, 1000))) == sorted(expected)
        wait_for(nsqd, topic, "c", depth=0, backend_depth=0, in_flight_count=0, message_count=1000)
        assert consumer.nothing_arrives(0.2)


def test_without_a_memory_queue_everything_goes_through_the_disk(nsqd_factory: DaemonFactory, topic: str) -> None:
    nsqd = nsqd_factory("--mem-queue-size=0")
    with NSQClient(nsqd.tcp_address) as client, NSQClient(nsqd.tcp_address) as consumer:
        client.publish(topic, b"0", b"1", b"2")
        assert wait_for(nsqd, topic, depth=3)["backend_depth"] == 3
        consumer.subscribe(topic, "c")
        wait_for(nsqd, topic, "c", depth=3, backend_depth=3)
        consumer.command(b"RDY 1")
        first = consumer.message()
        assert (first.attempts, first.body) == (1, b"0")
        consumer.command(b"REQ %b 0" % first.id)  # through the disk again, with its attempts
        assert bodies(finish(consumer, 2)) == [b"1", b"2"]
        assert finish(consumer, 1) == [first._replace(attempts=2)]
        began = time.monotonic()
        client.command(f"DPUB {topic} 500".encode(), b"later")
        assert client.response() == b"OK"
        assert consumer.message(20).body == b"later"
        assert time.monotonic() - began > 0.45


def test_ephemeral_topic_and_channel_drop_what_exceeds_their_memory(nsqd_factory: DaemonFactory, topic: str) -> None:
    nsqd = nsqd_factory("--mem-queue-size=2")
    name = f"{topic}#ephemeral"
    with NSQClient(nsqd.tcp_address) as client, NSQClient(nsqd.tcp_address) as consumer:
        for body in (b"0", b"1", b"2"):
            client.publish(name, body)
        assert wait_for(nsqd, name, depth=2)["message_count"] == 3
        consumer.subscribe(name, "c#ephemeral", rdy=1)
        held = consumer.message()
        assert held.body == b"0"
        for body in (b"3", b"4", b"5"):
            client.publish(name, body)
            wait_for(nsqd, name, depth=0)
        wait_for(nsqd, name, "c#ephemeral", depth=2, backend_depth=0, message_count=5)
        consumer.command(b"FIN " + held.id)
        assert bodies(finish(consumer, 2)) == [b"1", b"3"]
        assert consumer.nothing_arrives(0.3)
    assert not list(nsqd.data_path.glob("*ephemeral*"))


def test_publisher_may_publish_to_many_topics_and_consume_on_the_same_connection(
    nsqd: Instance, client: NSQClient, topic: str
) -> None:
    client.subscribe(topic, "c", rdy=5)
    client.send(b"".join(b"PUB %b-%d\n\x00\x00\x00\x01x" % (topic.encode(), number) for number in range(20)))
    client.send(b"PUB %b\n\x00\x00\x00\x04mine" % topic.encode())
    seen = [client.frame() for _ in range(22)]
    assert seen.count(Frame(RESPONSE, b"OK")) == 21
    assert [frame.data[26:] for frame in seen if frame.type != RESPONSE] == [b"mine"]
    for number in range(20):
        assert nsqd.topic_stats(f"{topic}-{number}")["message_count"] == 1


def test_client_that_sends_commands_and_leaves_at_once_has_them_done(nsqd: Instance, topic: str) -> None:
    with NSQClient(nsqd.tcp_address) as client:
        client.send(b"".join(b"PUB %b\n\x00\x00\x00\x01x" % topic.encode() for _ in range(100)))
        client.sock.shutdown(1)
        assert split_frames(client.recv_until_closed()) == [Frame(RESPONSE, b"OK")] * 100
    assert nsqd.topic_stats(topic)["message_count"] == 100
