"""Dead letters (`--max-attempts`), as contrib/docs/dead-letters.md has them. Only ours has this."""

import json
import time
from typing import Any

import pytest

from kit.daemons import Instance, eventually
from kit.exposition import labels, series
from kit.nsq_client import NSQClient, ReceivedMessage
from kit.traffic import DaemonFactory, create, finish, post, publish, take

BODY = b'{"first": "line"}\n\x00\xff'


def fail(client: NSQClient, times: int = 1) -> ReceivedMessage:
    for attempt in range(times):
        message = client.message()
        assert message.attempts == attempt + 1
        client.command(b"REQ %b 0" % message.id)
    return message


def letter(nsqd: Instance, topic: str) -> tuple[dict[str, Any], bytes]:
    """Finishes the next letter, and returns its header and body."""
    (message,) = take(nsqd, topic, "look", 1)
    header, _, body = message.body.partition(b"\n")
    return json.loads(header), body


def wait_for_letters(nsqd: Instance, count: int) -> None:
    eventually(lambda: [found["depth"] for found in nsqd.stats("t.c.dead")["topics"]] == [count], f"{count} letters")


@pytest.mark.parametrize("durability", ["none", "process"])
def test_what_is_requeued_too_often_leaves_its_channel_alone(gnsqd_factory: DaemonFactory, durability: str) -> None:
    nsqd = gnsqd_factory("--max-attempts=3", f"--durability={durability}")
    create(nsqd, "t", "c", "other")
    before = time.time_ns()
    publish(nsqd, "t", BODY)
    with NSQClient(nsqd.tcp_address) as client:
        client.subscribe("t", "c", rdy=1)
        message = fail(client, times=3)
        wait_for_letters(nsqd, 1)
        stats = eventually(lambda: [one for one in [nsqd.channel_stats("t", "c")] if not one["deferred_count"]])[0]
        assert (stats["depth"], stats["in_flight_count"], stats["requeue_count"]) == (0, 0, 3)
        (of_client,) = stats["clients"]
        assert (of_client["in_flight_count"], of_client["requeue_count"]) == (0, 3)
    assert nsqd.channel_stats("t", "other")["depth"] == 1
    page = series(nsqd.http("GET", "/metrics")[2])
    assert page["gnsqd_channel_dead_letters_total", labels(topic="t", channel="c")] == 1
    assert page["gnsqd_channel_dead_letters_total", labels(topic="t", channel="other")] == 0
    header, body = letter(nsqd, "t.c.dead")
    assert before < message.timestamp < header.pop("died") < time.time_ns()
    assert (header, body) == (
        {
            "id": message.id.decode(),
            "topic": "t",
            "channel": "c",
            "timestamp": message.timestamp,
            "attempts": 3,
            "reason": "requeued",
        },
        BODY,
    )


def test_what_times_out_too_often_goes_there_whether_its_consumer_is_there_or_not(gnsqd_factory: DaemonFactory) -> None:
    nsqd = gnsqd_factory("--max-attempts=2", "--msg-timeout=100ms")
    create(nsqd, "t", "c")
    publish(nsqd, "t", BODY)
    with NSQClient(nsqd.tcp_address) as client:
        client.subscribe("t", "c", rdy=1)
        for attempt in (1, 2):
            assert client.message().attempts == attempt
    wait_for_letters(nsqd, 1)
    header, body = letter(nsqd, "t.c.dead")
    assert (header["reason"], header["attempts"], body) == ("timed out", 2, BODY)
    assert nsqd.channel_stats("t", "c")["timeout_count"] == 2


def test_failed_message_is_moved_whatever_its_delay_and_rules_but_not_from_a_dead_letter_topic(
    gnsqd_factory: DaemonFactory,
) -> None:
    nsqd = gnsqd_factory("--max-attempts=1", "--channel-rules=t:c:ordered=true")
    create(nsqd, "t", "c")
    publish(nsqd, "t", b"0", b"1")
    with NSQClient(nsqd.tcp_address) as client:
        client.subscribe("t", "c", rdy=1)
        client.command(b"REQ %b 60000" % client.message().id)
        assert finish(client, 1)[0].body == b"1", "which does not wait for the dead one"
    wait_for_letters(nsqd, 1)
    with NSQClient(nsqd.tcp_address) as client:
        client.subscribe("t.c.dead", "look", rdy=1)
        for attempts in (1, 2, 3):
            message = client.message()
            assert message.attempts == attempts
            client.command(b"REQ %b 0" % message.id)
    assert not [found for found in nsqd.stats()["topics"] if "look" in found["topic_name"]]


def test_letter_may_be_larger_than_messages_may_be(gnsqd_factory: DaemonFactory) -> None:
    # Also on disk, and after a start without the option.
    body = b"x" * 1000
    nsqd = gnsqd_factory("--max-attempts=1", "--max-msg-size=1000", "--mem-queue-size=0")
    create(nsqd, "t", "c")
    with NSQClient(nsqd.tcp_address) as client:
        client.subscribe("t", "c", rdy=1)
        for number in (1, 2):
            publish(nsqd, "t", body)
            fail(client)
            wait_for_letters(nsqd, number)
    for flags in (["--max-msg-size=1000", "--mem-queue-size=0"], ["--max-msg-size=1000", "--durability=process"]):
        nsqd.restart(*flags)
        assert letter(nsqd, "t.c.dead")[1] == body


@pytest.mark.parametrize("channel", ["c" * 64, "c#ephemeral"])
def test_topic_has_a_valid_name_whatever_the_channels_is(gnsqd_factory: DaemonFactory, channel: str) -> None:
    nsqd = gnsqd_factory("--max-attempts=1")
    publish(nsqd, "t", BODY)
    with NSQClient(nsqd.tcp_address) as client:
        client.subscribe("t", channel, rdy=1)
        fail(client)
        topics = eventually(lambda: [one["topic_name"] for one in nsqd.stats()["topics"] if one["depth"]])
    header, body = letter(nsqd, topics[0])
    assert (header["topic"], header["channel"], body) == ("t", channel, BODY)


def test_dead_letters_move_while_publishers_are_refused(gnsqd_factory: DaemonFactory) -> None:
    nsqd = gnsqd_factory("--max-attempts=1", "--drain-timeout=1h")
    create(nsqd, "t", "c")
    publish(nsqd, "t", BODY)
    with NSQClient(nsqd.tcp_address) as client:
        client.subscribe("t", "c", rdy=1)
        message = client.message()
        post(nsqd, "/drain")
        client.command(b"REQ %b 0" % message.id)
        wait_for_letters(nsqd, 1)
    with NSQClient(nsqd.tcp_address) as client:
        client.subscribe("t.c.dead", "look", rdy=1)
        client.command(b"FIN " + client.message().id)
        assert nsqd.wait() == 0
