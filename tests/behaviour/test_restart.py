"""A clean exit: what is kept and what is forgotten (NSQD-COMPAT 3, exit order, and 4.1)."""

import json
import signal
from collections import Counter
from collections.abc import Callable

import pytest

from kit.daemons import Instance, eventually
from kit.handover import queued_and_in_flight, shape
from kit.nsq_client import NSQClient
from kit.traffic import DaemonFactory, create, post, publish, take, wait_for


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_topics_channels_and_pause_flags_survive_and_nothing_ephemeral_does(
    nsqd_factory: DaemonFactory, number: signal.Signals
) -> None:
    nsqd = nsqd_factory()
    create(nsqd, "a", "one", "two")
    create(nsqd, "b")
    create(nsqd, "c", "one")
    post(nsqd, "/channel/pause?topic=a&channel=two")
    post(nsqd, "/topic/pause?topic=c")
    for topic in ("a", "c"):
        publish(nsqd, topic, b"held")
    for channel in ("one", "two"):
        wait_for(nsqd, "a", channel, depth=1)
    with NSQClient(nsqd.tcp_address) as client, NSQClient(nsqd.tcp_address) as other:
        client.subscribe("a", "x#ephemeral")
        other.subscribe("y#ephemeral", "one")
        nsqd.send_signal(number)
        assert nsqd.wait() == 0
        assert client.recv_until_closed() == other.recv_until_closed() == b""
    metadata = json.loads((nsqd.data_path / "nsqd.dat").read_bytes())
    assert list(metadata) == ["topics", "version"]
    assert metadata["version"] == "1.3.0"
    assert {topic["name"] for topic in metadata["topics"]} == {"a", "b", "c"}
    assert shape(nsqd.start(), "depth") == {
        "a": (False, 0, {"one": (False, 1), "two": (True, 1)}),
        "b": (False, 0, {}),
        "c": (True, 1, {"one": (False, 0)}),
    }
    post(nsqd, "/channel/unpause?topic=a&channel=two")
    post(nsqd, "/topic/unpause?topic=c")
    for topic, channel in (("a", "two"), ("c", "one")):
        assert take(nsqd, topic, channel, 1)[0].body == b"held"
    nsqd.restart()
    assert shape(nsqd, "depth") == {
        "a": (False, 0, {"one": (False, 1), "two": (False, 0)}),
        "b": (False, 0, {}),
        "c": (False, 0, {"one": (False, 0)}),
    }


def test_messages_survive_wherever_they_were(nsqd_factory: DaemonFactory) -> None:
    nsqd = nsqd_factory("--mem-queue-size=4")
    with NSQClient(nsqd.tcp_address) as client, NSQClient(nsqd.tcp_address) as consumer:
        consumer.subscribe("t", "c", rdy=3)
        client.publish("t", *[b"%d" % number for number in range(10)])
        finished, requeued, in_flight = consumer.message(), consumer.message(), consumer.message()
        consumer.command(b"RDY 0")
        consumer.command(b"FIN " + finished.id)
        consumer.command(b"REQ %b 1500" % requeued.id)
        client.command(b"DPUB t 1500", b"deferred")
        assert client.response() == b"OK"
        client.publish("lonely", b"no channel", b"on disk", *[b"x"] * 8)
        eventually(lambda: queued_and_in_flight(nsqd, "t", "c") == (9, 1))
        assert nsqd.terminate() == 0
    nsqd.start()
    lonely = [entry for entry in nsqd.stats()["topics"] if entry["topic_name"] == "lonely"]
    assert (lonely[0]["depth"], lonely[0]["message_count"]) == (10, 0)
    seen = take(nsqd, "t", "c", 10)
    expected = {b"%d" % number: 1 for number in range(10)} | {in_flight.body: 2, requeued.body: 2, b"deferred": 1}
    del expected[finished.body]
    assert {message.body: message.attempts for message in seen} == expected
    assert {requeued._replace(attempts=2), in_flight._replace(attempts=2)} <= set(seen)
    bodies = [message.body for message in take(nsqd, "lonely", "late", 10)]
    assert Counter(bodies) == Counter([b"no channel", b"on disk", *[b"x"] * 8])


def test_half_read_queue_goes_on_where_it_was(nsqd_factory: DaemonFactory) -> None:
    # The sizes are those of nsqd's own test of a restart.
    nsqd = nsqd_factory("--mem-queue-size=100", "--max-bytes-per-file=10240")
    bodies = [b"%d" % number * 10 for number in range(300)]
    create(nsqd, "t", "c")
    publish(nsqd, "t", *bodies)
    wait_for(nsqd, "t", "c", depth=300)
    read: list[bytes] = []
    for left in (150, 0):
        for message in take(nsqd, "t", "c", 150):
            assert message.attempts == 1
            read.append(message.body)
        assert nsqd.channel_stats("t", "c")["depth"] == left
        nsqd.restart()
        assert shape(nsqd, "depth") == {"t": (False, 0, {"c": (False, left)})}
    assert Counter(read) == Counter(bodies)


def test_what_was_deleted_and_emptied_stays_so(nsqd_factory: DaemonFactory) -> None:
    nsqd = nsqd_factory("--mem-queue-size=1")
    for topic in ("gone", "kept", "emptied"):
        create(nsqd, topic, "c", "d")
        publish(nsqd, topic, b"0", b"1", b"2")
    both = {"c": (False, 3), "d": (False, 3)}
    eventually(lambda: shape(nsqd, "depth") == dict.fromkeys(("gone", "kept", "emptied"), (False, 0, both)))
    post(nsqd, "/topic/delete?topic=gone")
    post(nsqd, "/channel/delete?topic=kept&channel=c")
    post(nsqd, "/channel/empty?topic=emptied&channel=c")
    nsqd.restart()
    assert shape(nsqd, "depth") == {
        "kept": (False, 0, {"d": (False, 3)}),
        "emptied": (False, 0, {"c": (False, 0), "d": (False, 3)}),
    }
    create(nsqd, "gone")
    assert shape(nsqd, "depth")["gone"] == (False, 0, {})


def test_counters_start_again_at_zero_and_publishing_goes_on(nsqd_factory: DaemonFactory) -> None:
    nsqd = nsqd_factory()
    create(nsqd, "t", "c")
    ids = []
    for run in range(3):
        publish(nsqd, "t", b"x")
        ids.append(take(nsqd, "t", "c", 1)[0].id)
        assert nsqd.channel_stats("t", "c")["message_count"] == 1, run
        nsqd.restart()
    assert len(set(ids)) == 3


def test_clients_that_come_at_the_moment_of_the_exit_do_not_hold_it_up(gnsqd_factory: DaemonFactory) -> None:
    # For ours only: the real daemon waits for such clients until they leave.
    for magic in (b"", b"  V2"):
        gnsqd = gnsqd_factory()
        gnsqd.send_signal(signal.SIGSTOP)  # so that the connections and the signal are there at once
        clients = [NSQClient(gnsqd.tcp_address, magic=magic) for _ in range(20)]
        gnsqd.send_signal(signal.SIGTERM)
        gnsqd.send_signal(signal.SIGCONT)
        assert gnsqd.wait() == 0
        for client in clients:
            assert client.recv_until_closed() == b""


@pytest.mark.parametrize(
    "flag, end",
    [
        ("--mem-queue-size=0", Instance.terminate),
        ("--durability=process", Instance.terminate),
        ("--durability=process", Instance.kill),
    ],
)
def test_messages_accepted_while_they_could_be_larger_are_delivered(
    gnsqd_factory: DaemonFactory, flag: str, end: Callable[[Instance], object]
) -> None:
    # Corrected: the real nsqd takes them for damage, and does not write the ones in flight.
    nsqd = gnsqd_factory(flag)
    bodies = [b"%d" % number * size for number, size in enumerate([10, 3000, 20, 100_000, 4000, 30])]
    publish(nsqd, "t", *bodies)
    create(nsqd, "t", "c")
    end(nsqd)
    for _ in range(2):
        nsqd.restart(flag, "--max-msg-size=1000")
        with NSQClient(nsqd.tcp_address) as client:
            client.subscribe("t", "c", rdy=len(bodies))
            assert sorted(client.message().body for _ in bodies) == sorted(bodies)
            assert nsqd.terminate() == 0
    assert not list(nsqd.data_path.glob("*.bad"))
