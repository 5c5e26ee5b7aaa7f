"""`doctor` on topics and channels in trouble."""

import re
import shlex
import threading

import pytest

from cli.fake_nsqd import FakeNsqd, channel, client, node, topic
from cli.findings import brief, commands, examined, only
from cli.gnsqadmin import gnsqadmin
from cli.nodes import Cluster, address, at, create, post, publish, wait_for_depth
from conftest import DaemonFactory
from kit.daemons import Daemon, eventually
from kit.nsq_client import Client


def test_messages_that_nobody_takes_are_found(nsqd_factory: DaemonFactory) -> None:
    a, b = nsqd_factory(), nsqd_factory()
    for daemon in (a, b):
        create(daemon, "t", "deep", "shallow")
        publish(daemon, "t", 30)
        wait_for_depth(daemon, "t", "deep", 30)
        wait_for_depth(daemon, "t", "shallow", 30)
        post(daemon, "/channel/empty?topic=t&channel=shallow")
        publish(daemon, "u", 2)
    publish(a, "t", 1)
    wait_for_depth(a, "t", "shallow", 1)
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
        found = examined(*at(nsqd), code=0)
    assert brief(found) == [("note", "orphan-channel")]
    assert found[0]["channel"] == "c"


def test_what_is_paused_is_a_warning_while_messages_wait(nsqd_factory: DaemonFactory) -> None:
    a, b = nsqd_factory(), nsqd_factory()
    for daemon in (a, b):
        create(daemon, "t", "c")
        create(daemon, "u", "d")
    post(a, "/channel/pause?topic=t&channel=c")
    post(b, "/topic/pause?topic=u")
    publish(b, "u", 3)
    publish(a, "t", 4)
    wait_for_depth(a, "t", "c", 4)
    found = examined(*at(a, b))
    paused = only(found, "paused-channel")
    assert (paused["severity"], paused["summary"]) == (
        "warning",
        f"channel t/c: paused on {address(a)}: its consumers get no messages",
    )
    assert only(found, "paused-topic")["severity"] == "warning"
    assert commands(only(found, "paused-topic")) == [shlex.join(["gnsqadmin", "topic", "unpause", "u", *at(a, b)])]
    post(b, "/topic/empty?topic=u")
    assert only(examined(*at(a, b)), "paused-topic")["severity"] == "note"


def test_consumers_that_want_nothing_are_found(nsqd_factory: DaemonFactory) -> None:
    a, b = nsqd_factory(), nsqd_factory()
    for daemon in (a, b):
        create(daemon, "t", "c")
        publish(daemon, "t", 5)
        wait_for_depth(daemon, "t", "c", 5)
    with Client(a.tcp_address) as one, Client(b.tcp_address) as two:
        one.identify(client_id="one", hostname="h")
        one.subscribe("t", "c")
        two.subscribe("t", "c")
        found = examined(*at(a, b))
        assert brief(found) == [("critical", "rdy-zero")]
        assert found[0]["evidence"][1].startswith("consumers: one (")
        two.command(b"RDY 5")
        eventually(lambda: b.channel_stats("t", "c")["in_flight_count"] == 5)
        partly = only(examined(*at(a, b)), "rdy-zero")
    assert (partly["severity"], partly["node"]) == ("warning", address(a))
    assert partly["summary"] == f"channel t/c: 5 messages at {address(a)}, and its consumer has RDY 0 there"


def test_messages_that_are_in_flight_and_never_finished_are_found(nsqd: Daemon) -> None:
    create(nsqd, "t", "c")
    publish(nsqd, "t", 9)
    with Client(nsqd.tcp_address) as consumer:
        consumer.identify(client_id="holder", hostname="h")
        consumer.subscribe("t", "c", rdy=4)
        eventually(lambda: nsqd.channel_stats("t", "c")["in_flight_count"] == 4)
        found = examined("--deep=5", *at(nsqd))
        assert brief(examined("--deep=6", *at(nsqd), code=0)) == [("note", "stuck")]
    assert brief(found) == [("warning", "stuck")]
    assert re.match(r"channel t/c: 4 messages in flight and none finished in \d\.\d s", found[0]["summary"])
    assert "holder (" in found[0]["evidence"][2]
    assert found[0]["evidence"][2].endswith(f"at {address(nsqd)} has 4 in flight, RDY 4")


def test_an_ephemeral_channel_that_drops_messages_is_found(gnsqd_factory: DaemonFactory) -> None:
    a, b = gnsqd_factory("--mem-queue-size=2"), gnsqd_factory("--mem-queue-size=2")
    publish(a, "own#ephemeral", 3)
    with Client(a.tcp_address) as one, Client(b.tcp_address) as two:
        for daemon, consumer in ((a, one), (b, two)):
            consumer.subscribe("t", "e#ephemeral", rdy=1)
            publish(daemon, "t", 4)
            eventually(lambda daemon=daemon: daemon.channel_stats("t", "e#ephemeral")["message_count"] == 4)  # type: ignore[misc]
        before = [finding for finding in examined(*at(a, b), code=None) if finding["code"] == "dropped"]
        looked = threading.Event()

        def publish_more() -> None:
            while not looked.is_set():
                publish(b, "t", 1)

        thread = threading.Thread(target=publish_more)
        thread.start()
        try:
            now = [finding for finding in examined(*at(a, b)) if finding["code"] == "dropped"]
        finally:
            looked.set()
            thread.join()
    about = [("own#ephemeral", None), ("t", "e#ephemeral")]
    assert [(finding["topic"], finding["channel"]) for finding in before] == about
    assert [finding["severity"] for finding in before] == ["note", "note"]
    assert before[1]["summary"] == "channel t/e#ephemeral: its memory was full: it dropped messages"
    assert before[1]["evidence"][0].startswith("2 since the start, 0 of them in the last ")
    assert [(finding["severity"], finding["channel"]) for finding in now] == [
        ("warning", "e#ephemeral"),
        ("note", None),
    ]
    assert now[0]["summary"] == "channel t/e#ephemeral: its memory is full: it drops messages"


def test_a_requeue_storm_is_found(nsqd: Daemon) -> None:
    create(nsqd, "t", "c")
    publish(nsqd, "t", 3)
    with Client(nsqd.tcp_address) as consumer:
        consumer.identify(client_id="thrower", hostname="h")
        consumer.subscribe("t", "c", rdy=1)
        looked = False

        def storm() -> None:
            while not looked:
                try:
                    consumer.command(b"REQ " + consumer.message(0.05).id + b" 0")
                except TimeoutError:
                    continue

        thread = threading.Thread(target=storm)
        thread.start()
        try:
            found = examined(*at(nsqd), "--interval=0.5")
        finally:
            looked = True
            thread.join()
    [storm_found] = found
    assert storm_found["code"] == "requeue-storm"
    assert storm_found["severity"] == "critical"
    assert storm_found["summary"].endswith("messages per second requeued, 0 finished")
    assert storm_found["evidence"][-1].startswith("most by thrower (")


@pytest.mark.peer
def test_a_node_that_consumers_do_not_reach_is_found(cluster: Cluster) -> None:
    for daemon in cluster.nodes:
        create(daemon, "t", "c")
        publish(daemon, "t", 3)
        wait_for_depth(daemon, "t", "c", 3)
    cluster.wait_for_topic("t", channel="c")
    served, forgotten = cluster.nodes
    assert cluster.lookupd.ask("POST", f"/topic/tombstone?topic=t&node={address(forgotten)}")[0] == 200
    assert cluster.lookupd.ask("POST", "/topic/create?topic=ghost")[0] == 200
    with Client(served.tcp_address) as consumer:
        consumer.subscribe("t", "c", rdy=10)
        eventually(lambda: served.channel_stats("t", "c")["in_flight_count"] == 3)
        found = examined(cluster.flag)
    assert sorted(brief(found)) == [("note", "ghost-topic"), ("warning", "tombstoned")]  # and not also unserved
    hidden = only(found, "tombstoned")
    assert (hidden["severity"], hidden["topic"], hidden["node"]) == ("warning", "t", address(forgotten))
    assert commands(hidden)[0].endswith(f"--nsqd-http-address={address(forgotten)}")
    assert only(found, "ghost-topic")["topic"] == "ghost"


def test_a_consumer_that_never_finished_anything_is_critical_or_singled_out() -> None:
    dead = client("dead", connected=7200, ready_count=10, in_flight_count=10, message_count=20)
    counts = {"in_flight_count": 10, "message_count": 15}
    with FakeNsqd(node(topic("t", channel("c", dead, timeout_count=10, **counts)))) as nsqd:
        found = examined(nsqd.flag)
    assert brief(found) == [("critical", "stuck")]
    assert found[0]["evidence"][1] == "1 consumer finished nothing since the first connected 2h 0m ago"
    fresh = dead | {"message_count": 10}
    with FakeNsqd(node(topic("t", channel("c", fresh, **counts)))) as nsqd:  # perhaps its first messages, and slow ones
        assert examined(nsqd.flag, code=0) == []
    young = client("young", connected=10, ready_count=10, in_flight_count=10, message_count=20)
    busy = [client("busy", connected=60, ready_count=10, in_flight_count=1, finish_count=count) for count in (10, 90)]
    looks = [
        node(topic("t", channel("c", dead, young, one, depth=5, in_flight_count=21, message_count=count)))
        for one, count in zip(busy, (36, 116), strict=True)
    ]
    with FakeNsqd(*looks) as nsqd:
        found = examined(nsqd.flag)
    assert brief(found) == [("warning", "stuck-consumer")]
    assert found[0]["summary"] == "channel t/c: consumer dead (dead:1) has 10 messages in flight and never finished one"


def test_timeouts_are_blamed_on_the_consumer_that_holds_the_messages() -> None:
    dead = client("dead", connected=7200, ready_count=10, in_flight_count=10, message_count=500)
    looks = [
        node(topic("t", channel("c", dead, busy, in_flight_count=10, message_count=1000 + count, timeout_count=count)))
        for count in (0, 400)
        for busy in [client("busy", connected=60, ready_count=10, finish_count=count)]
    ]
    with FakeNsqd(*looks) as nsqd:
        assert brief(examined(nsqd.flag)) == [("warning", "stuck-consumer")]


def test_a_requeue_storm_is_not_also_a_growing_channel() -> None:
    counts = "depth", "message_count", "requeue_count"
    looks = [
        node(topic("t", channel("c", client("x", ready_count=1), **dict.fromkeys(counts, depth))))
        for depth in (5000, 6000)
    ]
    with FakeNsqd(*looks) as nsqd:
        assert brief(examined(nsqd.flag)) == [("critical", "requeue-storm")]


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
    wait_for_depth(lacking, "t", "c", 2)
    assert brief(examined(*at(whole, lacking, unused))) == [("warning", "no-consumers")]


def test_dead_letters_are_one_finding_that_names_the_replay(nsqd: Daemon) -> None:
    create(nsqd, "orders.billing.dead", "replay")
    assert examined(*at(nsqd), code=0) == []
    publish(nsqd, "orders.billing.dead", 3)
    wait_for_depth(nsqd, "orders.billing.dead", "replay", 3)
    [found] = examined(*at(nsqd))
    assert (found["severity"], found["code"], found["topic"]) == ("warning", "dead-letters", "orders.billing.dead")
    assert found["summary"].startswith("topic orders.billing.dead has 3 dead letters: ")
    assert commands(found)[1] == shlex.join(["gnsqadmin", "replay-dead", "orders.billing.dead", *at(nsqd)])


def test_a_node_whose_channels_have_consumers_only_elsewhere_is_one_finding() -> None:
    consumer = client("x", ready_count=1, finish_count=9)
    busy = node(topic("t", channel("a", consumer), channel("b", consumer)))
    counts = {"depth": 3, "message_count": 3}
    idle = node(topic("t", channel("a", **counts), channel("b", **counts), message_count=3))
    with FakeNsqd(busy) as one, FakeNsqd(idle) as two:
        [found] = examined(one.flag, two.flag)
        assert (found["code"], found["node"], found["topic"]) == ("unserved-node", two.address, None)
        assert found["summary"] == f"6 messages of t/a, t/b at {two.address}, without a consumer there"


def test_a_topic_that_cannot_write_is_explained_by_its_node() -> None:
    full = node(
        topic("t", channel("c", client("x", ready_count=1)), depth=2000, message_count=2000), health="NOK - full"
    )
    with FakeNsqd(full) as nsqd:
        assert brief(examined(nsqd.flag)) == [("critical", "unhealthy")]


@pytest.mark.parametrize(
    "then, now, code, text",
    [
        (
            {"depth": 5000, "message_count": 10_000},
            {"depth": 6000, "message_count": 11_500},
            "growing",
            "6,000 messages",
        ),
        ({"depth": 90_000, "message_count": 90_000}, {"depth": 89_999, "message_count": 90_000}, "slow", "it needs"),
        ({"depth": 5000, "message_count": 5000}, {"depth": 4000, "message_count": 5000}, "", ""),
    ],
    ids=["growing", "slow", "quick"],
)
def test_a_deep_channel_is_judged_by_where_it_goes(
    then: dict[str, int], now: dict[str, int], code: str, text: str
) -> None:
    looks = [
        node(topic("t", channel("c", client("x", ready_count=1, finish_count=number), **counts)))
        for number, counts in enumerate((then, now))
    ]
    with FakeNsqd(*looks) as nsqd:
        found = examined(nsqd.flag, code=1 if code else 0)
    assert brief(found) == ([("warning", code)] if code else [])
    assert all(text in finding["summary"] for finding in found)


def test_messages_that_time_out_are_found() -> None:
    looks = [
        node(topic("t", channel("c", client("x", ready_count=1, finish_count=n), timeout_count=n, message_count=500)))
        for n in (0, 400)
    ]
    with FakeNsqd(*looks) as nsqd:
        found = examined(nsqd.flag)
    assert brief(found) == [("warning", "timeouts")]
    assert "messages per second timed out" in found[0]["summary"]
    with FakeNsqd(looks[1]) as nsqd:
        found = examined(nsqd.flag, code=0)
    assert [finding["summary"] for finding in found] == [
        "channel t/c: 400 times a message was timed out, of 500 received"
    ]


def test_a_topic_that_does_not_pass_its_messages_on_is_found() -> None:
    full = node(topic("t", channel("c", client("x", ready_count=1)), depth=2000, message_count=2000))
    with FakeNsqd(full) as nsqd:
        assert brief(examined(nsqd.flag)) == [("critical", "stuck-topic")]
