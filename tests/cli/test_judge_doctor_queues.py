"""`doctor` on topics and channels in trouble."""

import re
import shlex
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from threading import Event
from typing import Any

import pytest

from cli.fake_nsqd import StatsNsqd, channel, client, node, topic
from cli.findings import Finding, brief, commands, examined, only
from cli.gnsqadmin import document, gnsqadmin, rows
from cli.nodes import Registered, address, at, fill, publish
from kit.nsq_client import NSQClient
from kit.traffic import DaemonFactory, create, finish, post, wait_for


def consumer(name: str = "x", **counts: Any) -> dict[str, Any]:
    return client(name, **{"ready_count": 1} | counts)


def looks(*clients: dict[str, Any], **counts: Any) -> list[dict[str, Any]]:
    """Returns two looks at a node with the channel c of the topic t. Of a count that is a pair each look has one."""

    def seen(look: int, counts: dict[str, Any]) -> dict[str, Any]:
        return {name: value[look] if isinstance(value, tuple) else value for name, value in counts.items()}

    channels = [channel("c", *(seen(look, one) for one in clients), **seen(look, counts)) for look in (0, 1)]
    return [node(topic("t", one)) for one in channels]


def in_trouble(*flags: str) -> dict[str, str]:
    """Returns the codes of topics and channels in trouble, of which `status` and `stats --trouble` name the same."""
    with ThreadPoolExecutor() as pool:
        stats = pool.submit(rows, "stats", "--trouble", "--columns=topic,channel,trouble", *flags)
        answer = document("status", *flags)
    found = {tuple(row.values()) for row in stats.result()}
    assert found == {tuple(each.values()) for each in answer["trouble"]}
    return {f"{topic}/{channel}".rstrip("/"): code for topic, channel, code in found}


def scenes() -> dict[str, tuple[list[dict[str, Any]], list[tuple[str, str]], str]]:
    """Returns the statistics of a node at each look, and the findings with a part of the first one's summary or
    evidence. They have the times of their making."""
    dead = client("dead", connected=7200, ready_count=10, in_flight_count=10, message_count=20)
    young = client("young", connected=10, ready_count=10, in_flight_count=10, message_count=20)
    busy = client("busy", connected=60, ready_count=10)
    quick = busy | {"in_flight_count": 1, "finish_count": (10, 90)}
    held = {"in_flight_count": 10, "message_count": 15}
    some, growth, late = (0, 400), (5000, 6000), dead | {"message_count": 500}
    thrower = dict.fromkeys(("depth", "message_count", "requeue_count"), growth)
    stuck = topic("t", channel("c", consumer()), depth=2000, message_count=2000)
    return {
        "a consumer that never finished anything": (
            looks(dead, timeout_count=10, **held),
            [("critical", "stuck")],
            "1 consumer finished nothing since the first connected 2h 0m ago",
        ),
        "perhaps its first messages, and slow ones": (looks(dead | {"message_count": 10}, **held), [], ""),
        "one such consumer of several": (
            looks(dead, young, quick, depth=5, in_flight_count=21, message_count=(36, 116)),
            [("warning", "stuck-consumer")],
            "channel t/c: consumer dead (dead:1) has 10 messages in flight and never finished one",
        ),
        "time-outs of one consumer's messages": (
            looks(
                late, busy | {"finish_count": some}, in_flight_count=10, message_count=(1000, 1400), timeout_count=some
            ),
            [("warning", "stuck-consumer")],
            "",
        ),
        "a storm of requeues, and not also a channel that grows": (
            looks(consumer(), consumer("thrower", requeue_count=growth), **thrower),
            [("critical", "requeue-storm")],
            "most by thrower (thrower:1)",
        ),
        "growing": (
            looks(consumer(finish_count=(0, 1)), depth=growth, message_count=(10_000, 11_500)),
            [("warning", "growing")],
            "6,000 messages",
        ),
        "growing, though few are queued": (
            looks(consumer(finish_count=(0, 1)), depth=(900, 920), message_count=(1000, 1021)),
            [("warning", "growing")],
            "920 messages",
        ),
        "a burst": (looks(consumer(finish_count=(0, 50)), depth=(20, 90), message_count=(500, 620)), [], ""),
        "chance": (looks(consumer(finish_count=(0, 2)), depth=(900, 903), message_count=(1000, 1005)), [], ""),
        "old": (
            looks(consumer(finish_count=(0, 2)), depth=9, message_count=(1000, 1002), oldest_message_age_seconds=901),
            [("warning", "slow")],
            "channel t/c: 9 messages queued, and the oldest of them is 15m 1s old",
        ),
        "slow": (
            looks(consumer(finish_count=(0, 1)), depth=(90_000, 89_999), message_count=90_000),
            [("warning", "slow")],
            "it needs",
        ),
        "quick": (looks(consumer(finish_count=(0, 1)), depth=(90_000, 2000), message_count=90_000), [], ""),
        "time-outs now": (
            looks(consumer(finish_count=some), timeout_count=some, message_count=500),
            [("warning", "timeouts")],
            "messages per second timed out",
        ),
        "time-outs before": (
            looks(consumer(finish_count=400), timeout_count=400, message_count=500),
            [("note", "timeouts")],
            "channel t/c: 400 times a message was timed out, of 500 received",
        ),
        "a topic that does not pass its messages on": ([node(stuck)], [("critical", "stuck-topic")], ""),
        "the same, as its node cannot write": ([node(stuck, health="NOK - full")], [("critical", "unhealthy")], ""),
    }


@pytest.mark.parametrize("name", scenes())
def test_what_looks_show_is_found(name: str) -> None:
    looks, expected, text = scenes()[name]
    with StatsNsqd(*looks) as nsqd:
        findings = examined(nsqd.flag)
    assert brief(findings) == expected
    assert not findings or any(text in one for one in (findings[0]["summary"], *findings[0]["evidence"]))


def test_what_will_be_done_to_an_idle_channel_is_found_before(gnsqd_factory: DaemonFactory) -> None:
    policy = ("--channel-idle-timeout=72h", "--channel-idle-policy=delete")
    served, idle = gnsqd_factory(*policy), gnsqd_factory("--channel-rules=t:c:idle_timeout=2h")
    for nsqd in (served, idle):
        create(nsqd, "t", "c")
    with NSQClient(served.tcp_address) as consumer:
        consumer.subscribe("t", "c")
        finding = only(examined(*at(served, idle)), "idle-channel")
        assert (finding["severity"], finding["summary"][:43]) == ("note", "channel t/c: it will be paused in 1h 59m on")
        assert finding["summary"].endswith(address(idle))
        assert brief(examined(*at(served))) == []
    wait_for(served, "t", "c", client_count=0)
    assert brief(examined(*at(served))) == [("warning", "idle-channel")]
    both = only(examined(*at(served, idle)), "idle-channel")
    assert (both["severity"], both["summary"][:44]) == ("warning", "channel t/c: it will be deleted in 2d 23h on")
    assert both["summary"].endswith(address(served))
    keep = only(examined(*at(served)), "idle-channel")["remedies"][1]["command"]
    assert gnsqadmin(*shlex.split(keep)[1:], "--yes").code == 0
    assert brief(examined(*at(served))) == [("note", "orphan-channel")]


def test_a_node_whose_channels_have_consumers_only_elsewhere_is_one_finding() -> None:
    busy = node(topic("t", *(channel(name, consumer(finish_count=9)) for name in "ab")))
    idle = node(topic("t", *(channel(name, depth=3, message_count=3) for name in "ab"), message_count=3))
    with StatsNsqd(busy) as one, StatsNsqd(idle) as two:
        [finding] = examined(one.flag, two.flag)
        assert (finding["code"], finding["node"], finding["topic"]) == ("unserved-node", two.address, None)
        assert finding["summary"] == f"6 messages of t/a, t/b at {two.address}, without a consumer there"
        assert finding["channels"] == [["t", "a"], ["t", "b"]]
        assert in_trouble(one.flag, two.flag) == dict.fromkeys(["t/a", "t/b"], "unserved-node")


# Running nodes


def test_every_trouble_of_running_nodes_is_found_and_its_remedies_can_be_typed(nsqd_factory: DaemonFactory) -> None:
    a, b = nsqd_factory(), nsqd_factory()
    for nsqd in (a, b):
        fill(nsqd, "idle", "deep", "shallow", count=30)
        post(nsqd, "/channel/empty?topic=idle&channel=shallow")
        publish(nsqd, "unread", 2)
        create(nsqd, "paused", "c")
        create(nsqd, "emptied.c.dead", "replay")
        fill(nsqd, "zero", "c", count=5)
        post(nsqd, f"/{'channel' if nsqd is a else 'topic'}/pause?topic=paused&channel=c")
        publish(nsqd, "paused", 4)
    publish(a, "idle", 1)
    create(a, "lacking", "c", "e#ephemeral")
    publish(b, "lacking", 2)
    fill(a, "held", "c", count=9)
    fill(a, "t.c.dead", "replay", count=3)
    with NSQClient(a.tcp_address) as one, NSQClient(b.tcp_address) as two, NSQClient(a.tcp_address) as holder:
        for client, name, topic, rdy in (
            (one, "one", "zero", 0),
            (two, "two", "zero", 0),
            (holder, "holder", "held", 4),
        ):
            client.identify(client_id=name, hostname="h")
            client.subscribe(topic, "c", rdy=rdy)
        wait_for(a, "held", "c", in_flight_count=4)
        wait_for(a, "idle", "shallow", depth=1)
        wait_for(a, "paused", "c", depth=4)
        findings = examined("--deep=5", *at(a, b))
        two.command(b"RDY 5")
        wait_for(b, "zero", "c", in_flight_count=5)
        partly = only(examined("--topic=zero", *at(a, b)), "rdy-zero")
        assert brief(examined("--topic=held", "--deep=6", *at(a))) == [("note", "stuck")]
    assert {(one["code"], one["topic"], one["channel"], one["severity"]) for one in findings} == {
        ("no-consumers", "idle", "deep", "critical"),
        ("rdy-zero", "zero", "c", "critical"),
        ("no-consumers", "idle", "shallow", "warning"),
        ("no-channel", "unread", None, "warning"),
        ("dead-letters", "t.c.dead", None, "warning"),
        ("missing-channel", "lacking", "c", "warning"),
        ("paused-topic", "paused", None, "warning"),
        ("paused-channel", "paused", "c", "warning"),
        ("stuck", "held", "c", "warning"),
        ("orphan-channel", "lacking", "c", "note"),
    }
    deep, lacking, stuck = findings[0], only(findings, "missing-channel"), only(findings, "stuck")
    assert deep["summary"] == "channel idle/deep: 61 messages and no consumer"
    assert deep["evidence"][0] == "61 messages queued on 2 nodes"
    assert only(findings, "no-channel")["evidence"][0] == "4 messages in the topic on 2 nodes"
    assert only(findings, "rdy-zero")["evidence"][1].startswith("consumers: one (")
    assert (partly["severity"], partly["node"]) == ("warning", address(a))
    assert partly["summary"] == f"channel zero/c: 5 messages at {address(a)}, and its consumer has RDY 0 there"
    assert re.match(r"channel held/c: 4 messages in flight and none finished in \d\.\d s", stuck["summary"])
    assert re.match(rf"holder \(.* at {address(a)} has 4 in flight, RDY 4$", stuck["evidence"][2])
    assert only(findings, "dead-letters")["summary"].startswith("topic t.c.dead has 3 dead letters: ")
    assert lacking["summary"] == f"topic lacking at {address(b)} lacks 1 channel that other nodes have: c"
    assert (lacking["node"], lacking["evidence"][1]) == (address(b), "2 messages in the topic there")
    paused = f"channel paused/c: paused on {address(a)}: its consumers get no messages"
    assert only(findings, "paused-channel")["summary"] == paused
    remedies = [command for one in findings for command in commands(one)]
    for words in ("channel delete idle deep", "replay-dead t.c.dead", "topic unpause paused"):
        assert shlex.join(["gnsqadmin", *words.split(), *at(a, b)]) in remedies
    [remedy] = commands(lacking)
    assert gnsqadmin(*shlex.split(remedy)[1:]).code == 0
    wait_for(b, "lacking", "c", depth=2)
    assert brief(examined("--topic=lacking", *at(a, b))) == [("warning", "no-consumers")]
    post(b, "/topic/empty?topic=paused")
    assert only(examined(*at(a, b)), "paused-topic")["severity"] == "note"


def test_an_ephemeral_channel_that_drops_messages_is_found(gnsqd_factory: DaemonFactory) -> None:
    a, b = gnsqd_factory("--mem-queue-size=2"), gnsqd_factory("--mem-queue-size=2")

    def dropped() -> list[Finding]:
        return [finding for finding in examined(*at(a, b)) if finding["code"] == "dropped"]

    publish(a, "own#ephemeral", 3)
    with NSQClient(a.tcp_address) as one, NSQClient(b.tcp_address) as two:
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
    places = [(finding["severity"], finding["topic"], finding["channel"]) for finding in before]
    assert places == [("note", "own#ephemeral", None), ("note", "t", "e#ephemeral")]
    assert before[1]["summary"] == "channel t/e#ephemeral: its memory was full: it dropped messages"
    assert before[1]["evidence"][0].startswith("2 since the start, 0 of them in the last ")
    assert [(finding["severity"], finding["channel"]) for finding in now] == [
        ("warning", "e#ephemeral"),
        ("note", None),
    ]
    assert now[0]["summary"] == "channel t/e#ephemeral: its memory is full: it drops messages"


@pytest.mark.peer
def test_a_node_that_consumers_do_not_reach_is_found(cluster: Registered) -> None:
    for daemon in cluster.nodes:
        fill(daemon, "t", "c", count=3)
    cluster.wait_for_topic("t", channel="c")
    served, forgotten = cluster.nodes
    for path in (f"/topic/tombstone?topic=t&node={address(forgotten)}", "/topic/create?topic=ghost"):
        assert cluster.lookupd.ask("POST", path)[0] == 200
    with NSQClient(served.tcp_address) as consumer:
        consumer.subscribe("t", "c", rdy=10)
        wait_for(served, "t", "c", in_flight_count=3)
        findings = examined(cluster.flag)
    assert sorted(brief(findings)) == [("note", "ghost-topic"), ("warning", "tombstoned")]  # and not also unserved
    hidden = only(findings, "tombstoned")
    assert (hidden["topic"], hidden["node"]) == ("t", address(forgotten))
    assert commands(hidden)[0].endswith(at(forgotten)[0])
    assert only(findings, "ghost-topic")["topic"] == "ghost"


def test_status_and_stats_name_the_same_queues_in_each_kind_of_trouble(gnsqd_factory: DaemonFactory) -> None:
    gnsqd = gnsqd_factory("--msg-timeout=200ms")
    counts = {"well": 1, "left": 1, "held": 1, "zero": 1, "growing": 3000, "failing": 1, "late": 9, "stuck": 1010}
    for name, count in counts.items():
        fill(gnsqd, name, "c", count=count)
    post(gnsqd, "/channel/pause?topic=held&channel=c")
    create(gnsqd, "quiet", "c")
    for name in ("channel", "topic"):
        post(gnsqd, f"/{name}/pause?topic=quiet&channel=c")  # the topic gets messages, the channel none
    for name in ("unread", "quiet", "t.c.dead"):
        publish(gnsqd, name, 2)
    ended = Event()
    with ExitStack() as clients:
        consumers = {}
        for name, rdy in {"well": 1, "zero": 0, "growing": 1, "failing": 1, "late": 9, "stuck": 4}.items():
            consumers[name] = clients.enter_context(NSQClient(gnsqd.tcp_address))
            consumers[name].identify(**({} if name == "late" else {"msg_timeout": 60_000}))
            consumers[name].subscribe(name, "c", rdy=rdy)
        finish(consumers["well"], 1)

        def work() -> None:
            """Publishes 50 times as many messages as are finished, and requeues one again and again."""
            while not ended.is_set():
                publish(gnsqd, "growing", 50)
                finish(consumers["growing"], 1)
                consumers["failing"].command(b"REQ %b 0" % consumers["failing"].message().id)

        pool = clients.enter_context(ThreadPoolExecutor())
        clients.callback(ended.set)
        working = pool.submit(work)
        found = in_trouble(*at(gnsqd))
        ended.set()
        working.result()
    assert found == {
        "left/c": "no-consumers",
        "held/c": "paused-channel",
        "zero/c": "rdy-zero",
        "growing/c": "growing",
        "failing/c": "requeue-storm",
        "late/c": "timeouts",
        "stuck/c": "stuck",
        "unread": "no-channel",
        "quiet": "paused-topic",
        "t.c.dead": "dead-letters",
    }
