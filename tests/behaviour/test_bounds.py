"""Bounds for backlogs (contrib/docs/survive.md), by TCP and HTTP, with disk queues and with a journal."""

import pytest

from kit.daemons import Instance, eventually
from kit.exposition import labels, series
from kit.http_api import ask, message
from kit.nsq_client import NSQClient, mpub_body, sized
from kit.traffic import DaemonFactory, create, post, publish, take, wait_for

DROP = "--overflow-policy=drop-oldest"
BODY = b"x" * 70  # 100 bytes in a disk queue

durability = pytest.mark.parametrize("durability", ["--durability=none", "--durability=process"])
memory = pytest.mark.parametrize("memory", ["--mem-queue-size=10000", "--mem-queue-size=2"])


def assert_refused(nsqd: Instance, reason: str, topic: str = "t") -> None:
    """Checks that every way to publish is refused in nsqd's words for a message that could not be put."""
    before = nsqd.topic_stats(topic)["message_count"]
    for name, line, body in (
        ("PUB", f"PUB {topic}", BODY),
        ("DPUB", f"DPUB {topic} 60000", BODY),
        ("MPUB", f"MPUB {topic}", mpub_body(BODY, BODY)),
    ):
        with NSQClient(nsqd.tcp_address) as client:
            client.command(line.encode(), body)
            assert client.error() == f"E_{name}_FAILED {name} failed {reason}".encode()
            assert client.recv_until_closed() == b""
    for command in ("pub?", "pub?defer=1000&", "mpub?", "mpub?binary=true&"):
        body = mpub_body(BODY) if "binary" in command else BODY
        assert ask(nsqd, f"POST /{command}topic={topic}", body) == (503, message(f"FULL: {reason}"))
    assert nsqd.topic_stats(topic)["message_count"] == before
    assert ask(nsqd, "GET /ping") == (200, "OK")
    assert ask(nsqd, "GET /readyz") == (200, "OK")


REFUSED = 8  # messages that assert_refused tries to publish


def figures(nsqd: Instance, what: str, topic: str = "t") -> list[float]:
    """Returns a figure of messages, such as `dropped`, of the topic and of its channel `c`."""
    found = series(nsqd.http("GET", "/metrics")[2])
    of_channel = found.get((f"gnsqd_channel_{what}_messages_total", labels(topic=topic, channel="c")), -1)
    return [found[f"gnsqd_topic_{what}_messages_total", labels(topic=topic)], of_channel]


def consume(nsqd: Instance, count: int) -> list[bytes]:
    """Finishes messages of `t:c`, and returns them in order of publication."""
    return [found.body for found in sorted(take(nsqd, "t", "c", count), key=lambda found: (found.timestamp, found.id))]


def die(nsqd: Instance, durability: str, *flags: str) -> None:
    """Restarts with these flags, after SIGKILL where that may cost nothing."""
    if durability != "--durability=none":
        nsqd.kill()
    nsqd.restart(*flags)


@durability
@memory
def test_full_channel_refuses_publishers_until_there_is_room(
    gnsqd_factory: DaemonFactory, durability: str, memory: str
) -> None:
    nsqd = gnsqd_factory("--max-channel-depth=5", durability, memory)
    create(nsqd, "t", "c", "other")
    create(nsqd, "nobody")
    publish(nsqd, "t", b"0")
    take(nsqd, "t", "other", 1)
    publish(nsqd, "t", b"1", b"2", b"3", b"4")
    publish(nsqd, "nobody", b"0", b"1", b"2", b"3", b"4")
    reason = "would hold more than 5 messages (--max-channel-depth)"
    for _ in range(2):
        wait_for(nsqd, "t", "c", depth=5)
        assert_refused(nsqd, f"channel t:c {reason}")
        assert_refused(nsqd, f"topic nobody {reason}", "nobody")
        assert figures(nsqd, "rejected") == [REFUSED, REFUSED]
        assert figures(nsqd, "rejected", "nobody") == [REFUSED, -1]
        assert (
            series(nsqd.http("GET", "/metrics")[2])[
                "gnsqd_channel_rejected_messages_total", labels(topic="t", channel="other")
            ]
            == 0
        )
        die(nsqd, durability)
    take(nsqd, "t", "other", 4)
    assert consume(nsqd, 5) == [b"0", b"1", b"2", b"3", b"4"]
    post(nsqd, "/topic/pause?topic=t")
    publish(nsqd, "t", b"5", b"6", b"7", b"8", b"9")
    assert_refused(nsqd, f"channel t:c {reason}")
    post(nsqd, "/topic/unpause?topic=t")
    assert consume(nsqd, 5) == [b"5", b"6", b"7", b"8", b"9"]


@durability
@memory
def test_of_pubs_in_a_row_those_are_taken_that_have_room(
    gnsqd_factory: DaemonFactory, durability: str, memory: str
) -> None:
    nsqd = gnsqd_factory("--max-channel-depth=105", durability, memory)
    create(nsqd, "t", "c")
    with NSQClient(nsqd.tcp_address) as client:
        client.send(b"PUB t\n\0\0\0\1x" * 150)
        assert [client.response() for _ in range(105)] == [b"OK"] * 105
        assert client.error().startswith(b"E_PUB_FAILED PUB failed channel t:c would hold more than 105 messages")
        assert client.recv_until_closed() == b""
    assert nsqd.topic_stats("t")["message_count"] == 105


@durability
def test_every_pub_in_a_row_that_was_answered_is_kept(gnsqd_factory: DaemonFactory, durability: str) -> None:
    nsqd = gnsqd_factory(durability)
    create(nsqd, "t", "c")
    bodies = [b"%d" % number for number in range(300)]
    with NSQClient(nsqd.tcp_address) as client:
        client.send(b"".join(b"PUB t\n" + sized(body) for body in bodies))
        assert [client.response() for _ in bodies] == [b"OK"] * 300
    die(nsqd, durability)
    assert consume(nsqd, 300) == bodies


def test_ephemeral_channel_refuses_nobody(gnsqd_factory: DaemonFactory) -> None:
    nsqd = gnsqd_factory("--max-channel-depth=3")
    create(nsqd, "t", "c%23ephemeral")
    for depth in range(5):
        publish(nsqd, "t", b"x")
        assert nsqd.topic_stats("t")["channels"][0]["depth"] == depth + 1


@durability
@memory
def test_full_channel_drops_the_oldest(gnsqd_factory: DaemonFactory, durability: str, memory: str) -> None:
    nsqd = gnsqd_factory("--max-channel-depth=5", DROP, durability, memory)
    create(nsqd, "t", "c")
    create(nsqd, "nobody")
    for number in range(10):
        publish(nsqd, "t", b"%d" % number)
        publish(nsqd, "nobody", b"%d" % number)
    assert ask(nsqd, "POST /mpub?topic=t", b"10\n11\n12\n") == (200, "OK")
    assert figures(nsqd, "dropped") == [0, 8]
    assert figures(nsqd, "dropped", "nobody") == [5, -1]
    die(nsqd, durability)
    wait_for(nsqd, "t", "c", depth=5)
    assert nsqd.topic_stats("nobody")["depth"] == 5
    publish(nsqd, "t", b"13", b"14", b"15")
    assert figures(nsqd, "dropped") == [0, 3]
    found = consume(nsqd, 5)
    assert set(found[:2]) < {b"8", b"9", b"10", b"11", b"12"}
    assert found[2:] == [b"13", b"14", b"15"]
    assert nsqd.channel_stats("t", "c")["depth"] == 0


@durability
def test_full_topic_refuses_publishers_until_there_is_room(gnsqd_factory: DaemonFactory, durability: str) -> None:
    nsqd = gnsqd_factory("--max-topic-bytes=1000", durability)
    create(nsqd, "t", "c", "d")
    publish(nsqd, "t", *[BODY] * 5)
    reason = "topic t would hold more than 1000 bytes (--max-topic-bytes)"
    for _ in range(2):
        assert_refused(nsqd, reason)
        die(nsqd, durability)
    assert len(consume(nsqd, 4)) == 4
    wait_for(nsqd, "t", "c", depth=1)
    assert ask(nsqd, "POST /mpub?topic=t", b"x\n" * 8) == (503, message(f"FULL: {reason}")), "30 bytes more for each"
    publish(nsqd, "t", *[BODY] * 2)
    assert_refused(nsqd, reason)
    for action in ("topic/pause?topic=t", "channel/empty?topic=t&channel=c", "channel/empty?topic=t&channel=d"):
        post(nsqd, f"/{action}")
    publish(nsqd, "t", *[BODY] * 5)  # each channel will have them
    assert_refused(nsqd, reason)


@durability
def test_full_topic_drops_the_oldest(gnsqd_factory: DaemonFactory, durability: str) -> None:
    nsqd = gnsqd_factory("--max-topic-bytes=1000", DROP, durability)
    create(nsqd, "t", "c")
    for number in range(15):
        publish(nsqd, "t", b"%070d" % number)
    assert figures(nsqd, "dropped") == [0, 5]
    die(nsqd, durability)
    assert [int(body) for body in consume(nsqd, 10)] == list(range(5, 15))


@durability
@memory
def test_messages_that_are_too_old_are_dropped(gnsqd_factory: DaemonFactory, durability: str, memory: str) -> None:
    nsqd = gnsqd_factory("--message-ttl=1h", durability, memory)
    create(nsqd, "t", "c")
    publish(nsqd, "t", b"1", b"2")
    assert len(consume(nsqd, 2)) == 2
    publish(nsqd, "t", b"3", b"4", b"5")  # with them the journal has the FINs
    publish(nsqd, "nobody", b"1", b"2", b"3", b"4", b"5")
    assert figures(nsqd, "expired") == [0, 0]
    die(nsqd, durability, "--message-ttl=1ms", durability, memory)
    with NSQClient(nsqd.tcp_address) as client:
        client.subscribe("t", "c", rdy=10)
        eventually(lambda: figures(nsqd, "expired") == [0, 3])
        eventually(lambda: figures(nsqd, "expired", "nobody") == [5, -1])
        assert client.nothing_arrives(0.1)
        for topic in ("t", "nobody"):  # with these the journals have what expired
            post(nsqd, f"/pub?topic={topic}&defer=3600000", b"later")
    die(nsqd, durability, "--message-ttl=1h", durability, memory)
    assert nsqd.topic_stats("nobody")["depth"] == 1  # the later one
    assert sum(nsqd.channel_stats("t", "c")[key] for key in ("depth", "deferred_count")) == 1
    publish(nsqd, "t", b"6")
    assert consume(nsqd, 1) == [b"6"]


@durability
def test_nobody_publishes_to_a_disk_that_is_nearly_full(gnsqd_factory: DaemonFactory, durability: str) -> None:
    nsqd = gnsqd_factory("--min-free-disk=1", durability)
    create(nsqd, "t", "c")
    publish(nsqd, "t", b"0")
    assert series(nsqd.http("GET", "/metrics")[2])["gnsqd_low_on_disk", ()] == 0
    least = 1 << 62
    nsqd.restart(f"--min-free-disk={least}", DROP, durability)
    assert_refused(nsqd, f"less than {least} bytes of disk are free (--min-free-disk)")
    assert series(nsqd.http("GET", "/metrics")[2])["gnsqd_low_on_disk", ()] == 1
    assert nsqd.log().count(f"bytes of disk are free, publishers are refused below {least}") == 1
    assert consume(nsqd, 1) == [b"0"]
