"""`doctor` on topics and channels in trouble."""

import re
import shlex
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from cli.fake_nsqd import FakeNsqd, channel, client, node, topic
from cli.findings import Finding, brief, commands, examined, only
from cli.gnsqadmin import gnsqadmin
from cli.nodes import Cluster, address, at, fill, publish
from kit.daemons import Daemon
from kit.nsq_client import Client
from kit.traffic import DaemonFactory, create, post, wait_for

# One look after the other


def consumer(name: str = "x", **counts: Any) -> dict[str, Any]:
    return client(name, **{"ready_count": 1} | counts)


def of_channel(*clients: dict[str, Any], **counts: int) -> dict[str, Any]:
    """The statistics of a node with the topic t and its channel c."""
    return node(topic("t", channel("c", *clients, **counts)))


def scenes() -> dict[str, tuple[list[dict[str, Any]], list[tuple[str, str]], str]]:
    """The statistics of a node at each look, and the findings with a part of the first one's summary or evidence. They
    have the times of their making."""
    dead = client("dead", connected=7200, ready_count=10, in_flight_count=10, message_count=20)
    young = client("young", connected=10, ready_count=10, in_flight_count=10, message_count=20)
    held = {"in_flight_count": 10, "message_count": 15}
    timed_out = [of_channel(consumer(finish_count=n), timeout_count=n, message_count=500) for n in (0, 400)]
    stuck = topic("t", channel("c", consumer()), depth=2000, message_count=2000)
    both = "depth", "message_count", "requeue_count"
    return {
        "a consumer that never finished anything": (
            [of_channel(dead, timeout_count=10, **held)],
            [("critical", "stuck")],
            "1 consumer finished nothing since the first connected 2h 0m ago",
        ),
        "perhaps its first messages, and slow ones": ([of_channel(dead | {"message_count": 10}, **held)], [], ""),
        "one such consumer of several": (
            [
                of_channel(dead, young, busy, depth=5, in_flight_count=21, message_count=count)
                for count, finished in ((36, 10), (116, 90))
                for busy in [client("busy", connected=60, ready_count=10, in_flight_count=1, finish_count=finished)]
            ],
            [("warning", "stuck-consumer")],
            "channel t/c: consumer dead (dead:1) has 10 messages in flight and never finished one",
        ),
        "time-outs of one consumer's messages": (
            [
                of_channel(
                    dead | {"message_count": 500}, busy, in_flight_count=10, message_count=1000 + n, timeout_count=n
                )
                for n in (0, 400)
                for busy in [client("busy", connected=60, ready_count=10, finish_count=n)]
            ],
            [("warning", "stuck-consumer")],
            "",
        ),
        "a storm of requeues, and not also a channel that grows": (
            [
                of_channel(consumer(), consumer("thrower", requeue_count=depth), **dict.fromkeys(both, depth))
                for depth in (5000, 6000)
            ],
            [("critical", "requeue-storm")],
            "most by thrower (thrower:1)",
        ),
        "growing": (
            [
                of_channel(consumer(finish_count=n), depth=depth, message_count=count)
                for n, (depth, count) in enumerate(((5000, 10_000), (6000, 11_500)))
            ],
            [("warning", "growing")],
            "6,000 messages",
        ),
        "slow": (
            [
                of_channel(consumer(finish_count=n), depth=depth, message_count=90_000)
                for n, depth in enumerate((90_000, 89_999))
            ],
            [("warning", "slow")],
            "it needs",
        ),
        "quick": (
            [
                of_channel(consumer(finish_count=n), depth=depth, message_count=5000)
                for n, depth in enumerate((5000, 4000))
            ],
            [],
            "",
        ),
        "time-outs now": (timed_out, [("warning", "timeouts")], "messages per second timed out"),
        "time-outs before": (
            timed_out[1:],
            [("note", "timeouts")],
            "channel t/c: 400 times a message was timed out, of 500 received",
        ),
        "a topic that does not pass its messages on": ([node(stuck)], [("critical", "stuck-topic")], ""),
        "the same, as its node cannot write": ([node(stuck, health="NOK - full")], [("critical", "unhealthy")], ""),
    }


@pytest.mark.parametrize("name", scenes())
def test_what_looks_show_is_found(name: str) -> None:
    looks, expected, text = scenes()[name]
    with FakeNsqd(*looks) as nsqd:
        found = examined(nsqd.flag)
    assert brief(found) == expected
    assert not found or any(text in one for one in (found[0]["summary"], *found[0]["evidence"]))


def test_what_will_be_done_to_an_idle_channel_is_found_before(gnsqd_factory: DaemonFactory) -> None:
    policy = ("--channel-idle-timeout=72h", "--channel-idle-policy=delete")
    served, idle = gnsqd_factory(*policy), gnsqd_factory("--channel-rules=t:c:idle_timeout=2h")
    for nsqd in (served, idle):
        create(nsqd, "t", "c")
    with Client(served.tcp_address) as consumer:
        consumer.subscribe("t", "c")
        found = only(examined(*at(served, idle)), "idle-channel")
        assert found["severity"] == "note"
        assert re.search(
            rf"channel t/c: it will be paused in 1h 59m on .*:{address(idle).split(':')[1]}", found["summary"]
        )
        assert brief(examined(*at(served))) == []
    wait_for(served, "t", "c", client_count=0)
    assert brief(examined(*at(served))) == [("warning", "idle-channel")]
    both = only(examined(*at(served, idle)), "idle-channel")
    assert both["severity"] == "warning"
    assert re.search(
        rf"channel t/c: it will be deleted in 2d 23h on .*:{address(served).split(':')[1]}$", both["summary"]
    )
    keep = only(examined(*at(served)), "idle-channel")["remedies"][1]["command"]
    assert gnsqadmin(*shlex.split(keep)[1:], "--yes").code == 0
    assert brief(examined(*at(served))) == [("note", "orphan-channel")]


def test_a_node_whose_channels_have_consumers_only_elsewhere_is_one_finding() -> None:
    busy = node(topic("t", *(channel(name, consumer(finish_count=9)) for name in "ab")))
    idle = node(topic("t", *(channel(name, depth=3, message_count=3) for name in "ab"), message_count=3))
    with FakeNsqd(busy) as one, FakeNsqd(idle) as two:
        [found] = examined(one.flag, two.flag)
        assert (found["code"], found["node"], found["topic"]) == ("unserved-node", two.address, None)
        assert found["summary"] == f"6 messages of t/a, t/b at {two.address}, without a consumer there"


# Running nodes


def test_messages_that_nobody_takes_are_found(nsqd_factory: DaemonFactory) -> None:
    a, b = nsqd_factory(), nsqd_factory()
    for daemon in (a, b):
        fill(daemon, "t", "deep", "shallow", count=30)
        post(daemon, "/channel/empty?topic=t&channel=shallow")
        publish(daemon, "u", 2)
    publish(a, "t", 1)
    wait_for(a, "t", "shallow", depth=1)
    found = examined("--deep=50", *at(a, b))
    assert [(one["severity"], one["code"], one["topic"], one["channel"]) for one in found] == [
        ("critical", "no-consumers", "t", "deep"),
        ("warning", "no-consumers", "t", "shallow"),
        ("warning", "no-channel", "u", None),
    ]
    assert found[0]["summary"] == "channel t/deep: 61 messages and no consumer"
    assert found[0]["evidence"][0] == "61 messages queued on 2 nodes"
    assert commands(found[0])[0] == shlex.join(["gnsqadmin", "channel", "delete", "t", "deep", *at(a, b)])
    assert found[2]["evidence"][0] == "4 messages in the topic on 2 nodes"


def test_what_is_empty_or_ephemeral_is_a_note_or_nothing(nsqd: Daemon) -> None:
    create(nsqd, "t", "c")
    with Client(nsqd.tcp_address) as consumer:
        consumer.subscribe("t", "e#ephemeral")
        found = examined(*at(nsqd))
    assert [(*pair, found[0]["channel"]) for pair in brief(found)] == [("note", "orphan-channel", "c")]


def test_what_is_paused_is_a_warning_while_messages_wait(nsqd_factory: DaemonFactory) -> None:
    a, b = nsqd_factory(), nsqd_factory()
    for daemon in (a, b):
        create(daemon, "t", "c")
        create(daemon, "u", "d")
    post(a, "/channel/pause?topic=t&channel=c")
    post(b, "/topic/pause?topic=u")
    publish(b, "u", 3)
    publish(a, "t", 4)
    wait_for(a, "t", "c", depth=4)
    found = examined(*at(a, b))
    channel, topic = only(found, "paused-channel"), only(found, "paused-topic")
    assert channel["summary"] == f"channel t/c: paused on {address(a)}: its consumers get no messages"
    assert (channel["severity"], topic["severity"]) == ("warning", "warning")
    assert commands(topic) == [shlex.join(["gnsqadmin", "topic", "unpause", "u", *at(a, b)])]
    post(b, "/topic/empty?topic=u")
    assert only(examined(*at(a, b)), "paused-topic")["severity"] == "note"


def test_consumers_that_want_nothing_are_found(nsqd_factory: DaemonFactory) -> None:
    a, b = nsqd_factory(), nsqd_factory()
    for daemon in (a, b):
        fill(daemon, "t", "c", count=5)
    with Client(a.tcp_address) as one, Client(b.tcp_address) as two:
        one.identify(client_id="one", hostname="h")
        one.subscribe("t", "c")
        two.subscribe("t", "c")
        found = examined(*at(a, b))
        assert brief(found) == [("critical", "rdy-zero")]
        assert found[0]["evidence"][1].startswith("consumers: one (")
        two.command(b"RDY 5")
        wait_for(b, "t", "c", in_flight_count=5)
        partly = only(examined(*at(a, b)), "rdy-zero")
    assert (partly["severity"], partly["node"]) == ("warning", address(a))
    assert partly["summary"] == f"channel t/c: 5 messages at {address(a)}, and its consumer has RDY 0 there"


def test_messages_that_are_in_flight_and_never_finished_are_found(nsqd: Daemon) -> None:
    fill(nsqd, "t", "c", count=9)
    with Client(nsqd.tcp_address) as consumer:
        consumer.identify(client_id="holder", hostname="h")
        consumer.subscribe("t", "c", rdy=4)
        wait_for(nsqd, "t", "c", in_flight_count=4)
        found = examined("--deep=5", *at(nsqd))
        assert brief(examined("--deep=6", *at(nsqd))) == [("note", "stuck")]
    assert brief(found) == [("warning", "stuck")]
    assert re.match(r"channel t/c: 4 messages in flight and none finished in \d\.\d s", found[0]["summary"])
    assert "holder (" in found[0]["evidence"][2]
    assert found[0]["evidence"][2].endswith(f"at {address(nsqd)} has 4 in flight, RDY 4")


def test_an_ephemeral_channel_that_drops_messages_is_found(gnsqd_factory: DaemonFactory) -> None:
    a, b = gnsqd_factory("--mem-queue-size=2"), gnsqd_factory("--mem-queue-size=2")

    def dropped() -> list[Finding]:
        return [finding for finding in examined(*at(a, b)) if finding["code"] == "dropped"]

    publish(a, "own#ephemeral", 3)
    with Client(a.tcp_address) as one, Client(b.tcp_address) as two:
        for daemon, consumer in ((a, one), (b, two)):
            consumer.subscribe("t", "e#ephemeral", rdy=1)
            publish(daemon, "t", 4)
            wait_for(daemon, "t", "e#ephemeral", message_count=4)
        before = dropped()
        with ThreadPoolExecutor() as pool:
            looking = pool.submit(dropped)
            while not looking.done():
                publish(b, "t", 1)
        now = looking.result()
    assert [(finding["severity"], finding["topic"], finding["channel"]) for finding in before] == [
        ("note", "own#ephemeral", None),
        ("note", "t", "e#ephemeral"),
    ]
    assert before[1]["summary"] == "channel t/e#ephemeral: its memory was full: it dropped messages"
    assert before[1]["evidence"][0].startswith("2 since the start, 0 of them in the last ")
    found = [(finding["severity"], finding["channel"]) for finding in now]
    assert found == [("warning", "e#ephemeral"), ("note", None)]
    assert now[0]["summary"] == "channel t/e#ephemeral: its memory is full: it drops messages"


@pytest.mark.peer
def test_a_node_that_consumers_do_not_reach_is_found(cluster: Cluster) -> None:
    for daemon in cluster.nodes:
        fill(daemon, "t", "c", count=3)
    cluster.wait_for_topic("t", channel="c")
    served, forgotten = cluster.nodes
    for path in (f"/topic/tombstone?topic=t&node={address(forgotten)}", "/topic/create?topic=ghost"):
        assert cluster.lookupd.ask("POST", path)[0] == 200
    with Client(served.tcp_address) as consumer:
        consumer.subscribe("t", "c", rdy=10)
        wait_for(served, "t", "c", in_flight_count=3)
        found = examined(cluster.flag)
    assert sorted(brief(found)) == [("note", "ghost-topic"), ("warning", "tombstoned")]  # and not also unserved
    hidden = only(found, "tombstoned")
    assert (hidden["topic"], hidden["node"]) == ("t", address(forgotten))
    assert commands(hidden)[0].endswith(at(forgotten)[0])
    assert only(found, "ghost-topic")["topic"] == "ghost"


def test_a_channel_that_a_node_lacks_is_found_and_created_by_the_remedy(nsqd_factory: DaemonFactory) -> None:
    whole, lacking, unused = nsqd_factory(), nsqd_factory(), nsqd_factory()
    create(whole, "t", "c", "e#ephemeral")
    create(unused, "t")
    publish(lacking, "t", 2)
    found = examined(*at(whole, lacking, unused))
    assert brief(found) == [("warning", "missing-channel"), ("note", "orphan-channel")]
    assert found[0]["summary"] == f"topic t at {address(lacking)} lacks 1 channel that other nodes have: c"
    assert (found[0]["channel"], found[0]["node"]) == ("c", address(lacking))
    assert found[0]["evidence"][1] == "2 messages in the topic there"
    [remedy] = commands(found[0])
    assert gnsqadmin(*shlex.split(remedy)[1:]).code == 0
    wait_for(lacking, "t", "c", depth=2)
    assert brief(examined(*at(whole, lacking, unused))) == [("warning", "no-consumers")]


def test_dead_letters_are_one_finding_that_names_the_replay(nsqd: Daemon) -> None:
    create(nsqd, "orders.billing.dead", "replay")
    assert examined(*at(nsqd)) == []
    fill(nsqd, "orders.billing.dead", "replay", count=3)
    [found] = examined(*at(nsqd))
    assert (found["severity"], found["code"], found["topic"]) == ("warning", "dead-letters", "orders.billing.dead")
    assert found["summary"].startswith("topic orders.billing.dead has 3 dead letters: ")
    assert commands(found)[1] == shlex.join(["gnsqadmin", "replay-dead", "orders.billing.dead", *at(nsqd)])
