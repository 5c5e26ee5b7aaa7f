"""Messages between a consumer and its queue: windows, time-outs, FIN, REQ, TOUCH, delays (NSQD-COMPAT 2.5, 3).

The real daemon looks for time-outs only in channels that existed at its last refresh, up to 5 s ago. So all topics
and channels are made when the module's daemon starts, and only its first test waits for that.
"""

import json
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kit.daemons import Instance, eventually
from kit.handover import queued_and_in_flight
from kit.nsq_client import MESSAGE, NSQClient, ReceivedMessage, parse_message, sized
from kit.traffic import DaemonFactory, create, finish, post, publish, wait_for

FLAGS = ["--msg-timeout=1s", "--max-msg-timeout=2s", "--max-req-timeout=2s"]
LATE = 8.0  # seconds that a scan may be late; the real daemon's first takes up to 5


@pytest.fixture(scope="module")
def nsqd_and_topics(module_factory: DaemonFactory) -> tuple[Instance, Iterator[str]]:
    nsqd = module_factory(*FLAGS)
    names = [f"prepared{number}" for number in range(40)]
    for name in names:
        create(nsqd, name, "c")
    return nsqd, iter(names)


@pytest.fixture(scope="module")
def patient(module_factory: DaemonFactory) -> Instance:
    """Starts a daemon without short time-outs, for messages that must not time out on a busy machine."""
    return module_factory()


@pytest.fixture
def nsqd(nsqd_and_topics: tuple[Instance, Iterator[str]]) -> Instance:
    return nsqd_and_topics[0]


@pytest.fixture
def topic(nsqd_and_topics: tuple[Instance, Iterator[str]]) -> str:
    return next(nsqd_and_topics[1])


@pytest.fixture
def consumer(nsqd: Instance, topic: str) -> NSQClient:
    return consume(nsqd, topic, rdy=1)


def consume(nsqd: Instance, topic: str, channel: str = "c", rdy: int = 0, **fields: object) -> NSQClient:
    client = NSQClient(nsqd.tcp_address)
    assert client.identify(**fields).data == b"OK"
    client.subscribe(topic, channel, rdy)
    return client


def next_message(client: NSQClient) -> ReceivedMessage:
    while (frame := client.frame(LATE)).type != MESSAGE:
        pass
    return parse_message(frame.data)


# Windows


def test_message_published_before_sub_is_delivered_with_its_id_and_time(nsqd: Instance, publisher: NSQClient) -> None:
    before = time.time_ns()
    publisher.publish("early", b"\x00body\n\xff")
    after = time.time_ns()
    with consume(nsqd, "early", rdy=1) as client:
        message = client.message()
        assert (message.attempts, message.body) == (1, b"\x00body\n\xff")
        assert before <= message.timestamp <= after
        assert re.fullmatch(rb"[0-9a-f]{16}", message.id)


def test_client_never_has_more_in_flight_than_its_rdy(patient: Instance, topic: str) -> None:
    publish(patient, topic, *[b"%d" % number for number in range(20)])
    with consume(patient, topic, rdy=5) as client:
        ids = [client.message().id for _ in range(5)]
        assert client.nothing_arrives(0.3)
        client.command(b"FIN " + ids[0])
        client.command(b"FIN " + ids[1])
        bodies = [client.message().body, client.message().body]
        assert client.nothing_arrives(0.3)
        client.command(b"RDY 7")
        bodies += [client.message().body, client.message().body]
        assert bodies == [b"5", b"6", b"7", b"8"]
        client.command(b"RDY 0")
        for id in ids[2:]:
            client.command(b"FIN " + id)
        wait_for(patient, topic, "c", in_flight_count=4, depth=11)
        assert client.nothing_arrives(0.3)


def test_consumers_of_a_channel_share_its_messages(patient: Instance, topic: str) -> None:
    bodies = [b"%d" % number for number in range(600)]
    received: list[list[bytes]] = [[], []]

    def work(mine: list[bytes], client: NSQClient) -> None:
        while sum(map(len, received)) < len(bodies):
            try:
                message = client.message(timeout=0.2)
            except TimeoutError:
                continue
            mine.append(message.body)
            client.command(b"FIN " + message.id)

    with ThreadPoolExecutor(2) as pool, NSQClient(patient.tcp_address) as publisher:
        clients = [consume(patient, topic, rdy=10) for _ in received]
        workers = [pool.submit(work, mine, client) for mine, client in zip(received, clients, strict=True)]
        for first in range(0, len(bodies), 20):
            publisher.publish(topic, *bodies[first : first + 20])
        for worker in workers:
            worker.result()
    assert sorted(received[0] + received[1]) == sorted(bodies)
    assert all(received)
    assert wait_for(patient, topic, "c", in_flight_count=0)["timeout_count"] == 0


def test_every_channel_gets_every_message_once(patient: Instance, topic: str) -> None:
    with consume(patient, topic, "c", rdy=100) as one, consume(patient, topic, "d", rdy=100) as two:
        publish(patient, topic, *[b"%d" % number for number in range(50)])
        seen = [sorted(message[1:] for message in finish(client, 50)) for client in (one, two)]
        assert seen[0] == seen[1]
        assert {body for _, _, body in seen[0]} == {b"%d" % number for number in range(50)}
        assert {attempts for attempts, _, _ in seen[0]} == {1}


# Time-outs


def test_unfinished_message_times_out_and_comes_again(nsqd: Instance, publisher: NSQClient, topic: str) -> None:
    with consume(nsqd, topic, rdy=1) as client:
        publisher.publish(topic, b"late")
        first = client.message()
        client.command(b"RDY 0")
        stats = wait_for(
            nsqd, topic, "c", timeout_count=1, requeue_count=0, in_flight_count=0, depth=1, message_count=1
        )
        assert stats["clients"][0]["in_flight_count"] == 0
        client.command(b"FIN " + first.id)
        assert client.error() == b"E_FIN_FAILED FIN %b failed ID not in flight" % first.id
        client.command(b"RDY 1")
        assert next_message(client) == first._replace(attempts=2)


def test_time_out_is_the_clients_own_or_the_daemons(nsqd: Instance, topic: str, publisher: NSQClient) -> None:
    for timeout, shortest in ((0, 0.9), (2000, 1.9)):  # 0: the daemon's
        with consume(nsqd, topic, rdy=1, msg_timeout=timeout) as client:
            began = time.monotonic()
            publisher.publish(topic, b"x")
            assert client.message().attempts == 1
            again = next_message(client)
            assert again.attempts == 2
            assert shortest < time.monotonic() - began < shortest + LATE
            client.command(b"FIN " + again.id)
            wait_for(nsqd, topic, "c", in_flight_count=0)


def test_time_outs_are_on_time_among_many_channels(gnsqd_factory: DaemonFactory, tmp_path: Path) -> None:
    # Corrected (NSQD-COMPAT 0.1, item 1, and 3): the real daemon scans a new channel after up to 5 s, and among
    # these each time-out is some 10 s late.
    channels = [{"name": f"c{number}", "paused": False} for number in range(2000)]
    topics = [{"name": "many", "paused": False, "channels": channels}, {"name": "t", "paused": False, "channels": []}]
    (tmp_path / "nsqd.dat").write_text(json.dumps({"version": "1.3.0", "topics": topics}))
    nsqd = gnsqd_factory("--msg-timeout=100ms", "--queue-scan-selection-count=0", data_path=tmp_path)
    with consume(nsqd, "t", rdy=1) as client:
        publish(nsqd, "t", b"x")
        assert client.message().attempts == 1
        began = time.monotonic()
        assert [client.message().attempts for _ in range(4)] == [2, 3, 4, 5]
        assert time.monotonic() - began < 3.5


def test_messages_of_a_client_that_left_stay_in_flight_until_they_time_out(
    nsqd: Instance, publisher: NSQClient, topic: str
) -> None:
    client = consume(nsqd, topic, rdy=1, msg_timeout=2000)
    began = time.monotonic()
    publisher.publish(topic, b"x")
    first = client.message()
    client.close()
    wait_for(nsqd, topic, "c", client_count=0)
    with consume(nsqd, topic, rdy=1) as other:
        assert next_message(other) == first._replace(attempts=2)
        assert time.monotonic() - began > 1.9


def test_touch_keeps_a_message_but_not_past_max_msg_timeout(nsqd: Instance, publisher: NSQClient, topic: str) -> None:
    with consume(nsqd, topic, rdy=1) as client:
        publisher.publish(topic, b"kept")
        id = client.message().id
        for _ in range(7):  # 1.4 s together; the time-out is 1 s
            assert client.nothing_arrives(0.2)
            client.command(b"TOUCH " + id)
        client.command(b"FIN " + id)
        assert wait_for(nsqd, topic, "c", in_flight_count=0)["timeout_count"] == 0

        began = time.monotonic()
        publisher.publish(topic, b"given up")
        id = client.message().id
        while client.nothing_arrives(0.3):
            client.command(b"TOUCH " + id)
            assert time.monotonic() - began < LATE
        assert time.monotonic() - began > 1.9
        assert wait_for(nsqd, topic, "c", timeout_count=1)["in_flight_count"] == 1


def stuck_and_healthy(
    nsqd: Instance, topic: str, count: int, msg_timeout: int = 0
) -> tuple[list[NSQClient], list[ReceivedMessage], list[NSQClient]]:
    """Consumers that have got one message each and do nothing, those messages, and as many consumers that wait."""
    stuck = [consume(nsqd, topic, rdy=1, msg_timeout=msg_timeout) for _ in range(count)]
    healthy = [consume(nsqd, topic) for _ in range(count)]
    publish(nsqd, topic, *[b"%d" % number for number in range(count)])
    messages = [client.message() for client in stuck]
    for client in healthy:
        client.command(b"RDY 1\nFIN 0123456789abcdef")  # the answer comes after RDY was executed
        assert client.error().startswith(b"E_FIN_FAILED")
    eventually(lambda: pumps_wait(nsqd))
    return stuck, messages, healthy


def pumps_wait(nsqd: Instance) -> bool:
    """True if each messagePump of the real nsqd waits: RDY takes effect only when it has woken the pump."""
    _, _, body = nsqd.http("GET", "/debug/pprof/goroutine?debug=2")
    pumps = [stack for stack in body.split(b"\n\n") if b".(*protocolV2).messagePump(" in stack]
    return all(b" [select" in pump.splitlines()[0] for pump in pumps)


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("how", ["time-out", "REQ"])
def test_message_that_comes_back_goes_to_a_consumer_that_waits_not_to_the_one_that_had_it(
    nsqd: Instance, patient: Instance, topic: str, how: str, count: int
) -> None:
    stuck, messages, healthy = stuck_and_healthy(
        patient if how == "REQ" else nsqd, topic, count, msg_timeout=0 if how == "REQ" else 2000
    )
    if how == "REQ":
        for client, message in zip(stuck, messages, strict=True):
            client.command(b"REQ %b 0" % message.id)
    received = sorted((message.body, message.attempts) for message in [client.message(LATE) for client in healthy])
    assert received == sorted((message.body, 2) for message in messages)
    assert all(client.nothing_arrives(0.01) for client in stuck)


# REQ and DPUB


def test_requeue_at_once_puts_a_message_behind_the_others_and_counts(patient: Instance, topic: str) -> None:
    publish(patient, topic, b"first", b"second")
    with consume(patient, topic, rdy=1) as consumer:
        first = consumer.message()
        for attempts in range(2, 5):
            consumer.command(b"REQ %b 0" % first.id)
            second = consumer.message()
            assert second.body == b"second"
            consumer.command(b"REQ %b 0" % second.id)
            assert consumer.message() == first._replace(attempts=attempts)
        consumer.command(b"FIN " + first.id)
        assert finish(consumer, 1) == [second._replace(attempts=4)]
        wait_for(patient, topic, "c", in_flight_count=0, message_count=2, requeue_count=6, depth=0, deferred_count=0)

        def client_counts() -> list[int]:
            (client,) = patient.channel_stats(topic, "c")["clients"]
            return [client[key] for key in ("message_count", "requeue_count", "finish_count", "in_flight_count")]

        eventually(lambda: client_counts() == [8, 6, 2, 0])
        assert patient.channel_stats(topic, "c")["timeout_count"] == 0


def test_requeue_with_delay_holds_the_message_back(
    nsqd: Instance, consumer: NSQClient, publisher: NSQClient, topic: str
) -> None:
    publisher.publish(topic, b"x")
    message = consumer.message()
    began = time.monotonic()
    consumer.send(b"RDY 0\nREQ %b 700\n" % message.id)
    eventually(lambda: queued_and_in_flight(nsqd, topic, "c") == (1, 0))
    wait_for(nsqd, topic, "c", requeue_count=1)
    consumer.command(b"RDY 1")
    assert next_message(consumer) == message._replace(attempts=2)
    assert time.monotonic() - began > 0.65


def test_requeue_delay_is_cut_to_max_req_timeout(
    nsqd: Instance, consumer: NSQClient, publisher: NSQClient, topic: str
) -> None:
    publisher.publish(topic, b"x")
    message = consumer.message()
    began = time.monotonic()
    consumer.command(b"REQ %b 10000000" % message.id)
    assert next_message(consumer) == message._replace(attempts=2)
    assert time.monotonic() - began > 1.9
    assert "REQ timeout 10000000000000 out of range 0-2000000000. Setting to 2000000000" in nsqd.log()


def test_deferred_message_counts_at_once_and_is_delivered_when_due(
    nsqd: Instance, consumer: NSQClient, publisher: NSQClient, topic: str
) -> None:
    began = time.monotonic()
    publisher.command(f"DPUB {topic} 800".encode(), b"later")
    assert publisher.response() == b"OK"
    publisher.publish(topic, b"now")
    now = consumer.message()
    assert now.body == b"now"
    consumer.send(b"RDY 0\nFIN %b\n" % now.id)
    eventually(lambda: queued_and_in_flight(nsqd, topic, "c") == (1, 0))
    wait_for(nsqd, topic, "c", message_count=2)
    consumer.command(b"RDY 1")
    later = next_message(consumer)
    assert (later.body, later.attempts) == (b"later", 1)
    assert time.monotonic() - began > 0.75


def test_deferred_messages_come_in_the_order_of_their_delays(
    consumer: NSQClient, publisher: NSQClient, topic: str
) -> None:
    delays = [b"1200", b"400", b"800"]
    publisher.send(b"".join(b"DPUB %b %b\n%b" % (topic.encode(), delay, sized(delay)) for delay in delays))
    assert [publisher.response() for _ in delays] == [b"OK"] * 3
    for body in (b"400", b"800", b"1200"):
        message = next_message(consumer)
        assert message.body == body
        consumer.command(b"FIN " + message.id)


def test_paused_channel_still_times_out_and_lets_deferred_messages_become_due(
    nsqd: Instance, consumer: NSQClient, publisher: NSQClient, topic: str
) -> None:
    publisher.publish(topic, b"in flight")
    consumer.message()
    post(nsqd, f"/channel/pause?topic={topic}&channel=c")
    publisher.command(f"DPUB {topic} 300".encode(), b"deferred")
    assert publisher.response() == b"OK"
    wait_for(nsqd, topic, "c", depth=2, timeout_count=1, in_flight_count=0, deferred_count=0, paused=True)
    assert consumer.nothing_arrives(0.3)
    post(nsqd, f"/channel/unpause?topic={topic}&channel=c")
    bodies = []
    for _ in range(2):
        message = next_message(consumer)
        bodies.append((message.body, message.attempts))
        consumer.command(b"FIN " + message.id)
    assert sorted(bodies) == [(b"deferred", 1), (b"in flight", 2)]


# Ids and counts


def test_ids_are_unique_across_topics(gnsqd: Instance) -> None:
    # Corrected (NSQD-COMPAT 0.1, item 12): the real daemon's topics each count for themselves.
    with NSQClient(gnsqd.tcp_address) as publisher:
        seen = []
        for _ in range(5):  # pipelined, so that both topics publish in the same tick
            for name in ("one", "two"):
                body = b"\x00\x00\x00\x02" + b"\x00\x00\x00\x01x" * 2
                publisher.send(b"MPUB %b\n\x00\x00\x00\x0e%b" % (name.encode(), body))
        for _ in range(10):
            assert publisher.response() == b"OK"
        for name in ("one", "two"):
            with consume(gnsqd, name, rdy=10) as client:
                seen += [message.id for message in finish(client, 10)]
        assert len(set(seen)) == len(seen) == 20


def test_publishers_are_counted_by_topic_with_their_messages_and_bytes(nsqd: Instance, topic: str) -> None:
    with NSQClient(nsqd.tcp_address) as publisher:
        publisher.publish(topic, b"12345")
        publisher.publish(topic, b"1", b"22", b"333")
        publisher.command(f"DPUB {topic} 1".encode(), b"4444")
        publisher.send(f"PUB {topic}\n\0\0\0\1x".encode() * 100)
        assert [publisher.response() for _ in range(101)] == [b"OK"] * 101
        found = nsqd.stats(topic)
        counts = [found["topics"][0][key] for key in ("message_count", "message_bytes")]
        assert counts == [105, 115]
        address = "{}:{}".format(*publisher.sock.getsockname())
        mine = [entry for entry in found["producers"] if entry["remote_address"] == address]
        assert [entry["pub_counts"] for entry in mine] == [[{"topic": topic, "count": 105}]]
    eventually(lambda: address not in [entry["remote_address"] for entry in nsqd.stats()["producers"] or []])
