"""Creating, pausing, emptying and deleting topics and channels: on all nodes that have them, and at nsqlookupd."""

import csv
import io
import json
import re
import time
from typing import Any

import pytest

from cli import fake_nsqd
from cli.gnsqadmin import FakeNode, Result, gnsqadmin, http_answer
from cli.nodes import Cluster, address, at, create, post, publish, wait_for_depth
from conftest import DaemonFactory
from kit.daemons import Daemon, eventually, free_port
from kit.nsq_client import Client


def document(*args: str) -> Any:
    """The JSON of a run that must go well."""
    result = gnsqadmin(*args, "--json")
    assert (result.code, result.err) == (0, "")
    return json.loads(result.out)


def lines(result: Result) -> list[list[str]]:
    assert (result.code, result.err) == (0, "")
    return [line.split() for line in result.out.splitlines()]


def topics(nsqd: Daemon) -> dict[str, dict[str, Any]]:
    """The topics that a node has, by name."""
    return {topic["topic_name"]: topic for topic in nsqd.stats()["topics"]}


def channels(nsqd: Daemon, topic: str) -> list[str]:
    return [channel["channel_name"] for channel in topics(nsqd)[topic]["channels"]]


def fill(nsqd: Daemon, topic: str, channel: str, count: int) -> None:
    create(nsqd, topic, channel)
    publish(nsqd, topic, count)
    wait_for_depth(nsqd, topic, channel, count)


def test_create_makes_a_topic_on_all_nodes_and_says_where_it_was(nsqd_factory: DaemonFactory) -> None:
    a, b = nsqd_factory(), nsqd_factory()
    create(b, "t")
    assert lines(gnsqadmin("topic", "create", "t", *at(a, b))) == [
        [address(a), "created"],
        [address(b), "already", "existed"],
    ]
    assert list(topics(a)) == list(topics(b)) == ["t"]


def test_create_makes_a_channel_only_where_the_topic_is(nsqd_factory: DaemonFactory) -> None:
    a, b = nsqd_factory(), nsqd_factory()
    assert gnsqadmin("channel", "create", "t", "c", *at(a, b)) == (4, "", "Error: no node has the topic t\n")
    create(a, "t")
    assert lines(gnsqadmin("channel", "create", "t", "c", *at(a, b))) == [
        [address(a), "created"],
        ["1", "other", "node", "does", "not", "have", "the", "topic", "t"],
    ]
    assert channels(a, "t") == ["c"]
    assert topics(b) == {}


def test_pause_and_unpause_reach_every_node_once(nsqd_factory: DaemonFactory) -> None:
    a, b = nsqd_factory(), nsqd_factory()
    for node in (a, b):
        create(node, "t", "c")
    post(b, "/topic/pause?topic=t")
    found = document("topic", "pause", "t", *at(a, b))
    assert {key: found[key] for key in ("action", "topic", "channel", "dry_run", "lookupds", "lost")} == {
        "action": "pause",
        "topic": "t",
        "channel": None,
        "dry_run": False,
        "lookupds": [],
        "lost": None,
    }
    assert found["nodes"] == [
        {"address": address(a), "result": "done", "error": None, "lost": None},
        {"address": address(b), "result": "already", "error": None, "lost": None},
    ]
    assert [topics(node)["t"]["paused"] for node in (a, b)] == [True, True]
    assert lines(gnsqadmin("topic", "unpause", "t", *at(a, b)))[1] == [address(b), "unpaused"]
    assert lines(gnsqadmin("channel", "pause", "t", "c", *at(b))) == [[address(b), "paused"]]
    assert [topics(node)["t"]["paused"] for node in (a, b)] == [False, False]
    assert [node.channel_stats("t", "c")["paused"] for node in (a, b)] == [False, True]
    assert lines(gnsqadmin("channel", "unpause", "t", "c", *at(a, b))) == [
        [address(a), "was", "not", "paused"],
        [address(b), "unpaused"],
    ]


def test_empty_of_a_topic_leaves_its_channels_alone_unless_told(nsqd: Daemon) -> None:
    fill(nsqd, "t", "c", 3)
    post(nsqd, "/topic/pause?topic=t")
    publish(nsqd, "t", 4)
    assert document("topic", "empty", "t", "--yes", *at(nsqd))["lost"] == {"depth": 4}
    assert (topics(nsqd)["t"]["depth"], nsqd.channel_stats("t", "c")["depth"]) == (0, 3)
    publish(nsqd, "t", 1)
    lost = document("topic", "empty", "t", "--with-channels", "--yes", *at(nsqd))["lost"]
    assert lost == {"depth": 4, "in_flight_count": 0, "deferred_count": 0}
    assert (topics(nsqd)["t"]["depth"], nsqd.channel_stats("t", "c")["depth"]) == (0, 0)


def test_empty_of_a_channel_loses_all_its_messages_and_keeps_its_clients(nsqd: Daemon) -> None:
    fill(nsqd, "t", "c", 5)
    create(nsqd, "t", "other")
    with Client(nsqd.tcp_address) as client:
        client.subscribe("t", "c", rdy=2)
        eventually(lambda: nsqd.channel_stats("t", "c")["in_flight_count"] == 2)
        table = lines(gnsqadmin("channel", "empty", "t", "c", "--yes", *at(nsqd)))
        assert table[0] == ["node", "depth", "in", "flight", "deferred", "result"]
        assert table[2:] == [[address(nsqd), "3", "2", "0", "emptied"]]
        found = nsqd.channel_stats("t", "c")
        assert (found["depth"], found["in_flight_count"], found["client_count"]) == (0, 0, 1)


def test_delete_of_a_topic_tells_what_was_lost_on_each_node(nsqd_factory: DaemonFactory) -> None:
    a, b, c = nsqd_factory(), nsqd_factory(), nsqd_factory()
    fill(a, "t", "c", 5)
    fill(b, "t", "c", 1)
    create(a, "t", "d")
    create(c, "other")
    with Client(b.tcp_address) as client:
        client.subscribe("t", "c", rdy=1)
        client.message()
        eventually(lambda: b.channel_stats("t", "c")["in_flight_count"] == 1)
        found = document("topic", "delete", "t", "--yes", *at(a, b, c))
        assert client.recv_until_closed() == b""
    counts = ("channel_count", "depth", "in_flight_count", "deferred_count", "client_count")
    assert [node["result"] for node in found["nodes"]] == ["done", "done", "absent"]
    assert found["nodes"][0]["lost"] == dict(zip(counts, (2, 5, 0, 0, 0), strict=True))
    assert found["nodes"][1]["lost"] == dict(zip(counts, (1, 0, 1, 0, 1), strict=True))
    assert found["nodes"][2]["lost"] is None
    assert found["lost"] == dict(zip(counts, (3, 5, 1, 0, 1), strict=True))
    assert (topics(a), topics(b), list(topics(c))) == ({}, {}, ["other"])


def test_delete_of_a_channel_disconnects_its_consumers(nsqd: Daemon) -> None:
    fill(nsqd, "t", "c", 2)
    create(nsqd, "t", "d")
    with Client(nsqd.tcp_address) as client:
        client.subscribe("t", "c")
        assert document("channel", "delete", "t", "c", "-y", *at(nsqd))["lost"] == {
            "depth": 2,
            "in_flight_count": 0,
            "deferred_count": 0,
            "client_count": 1,
        }
        assert client.recv_until_closed() == b""
    assert channels(nsqd, "t") == ["d"]


def test_csv_has_a_row_for_every_node(nsqd_factory: DaemonFactory) -> None:
    a, b = nsqd_factory(), nsqd_factory()
    fill(a, "t", "c", 2)
    result = gnsqadmin("channel", "empty", "t", "c", "--yes", "-o", "csv", *at(a, b))
    assert (result.code, result.err) == (0, "")
    assert list(csv.reader(io.StringIO(result.out))) == [
        ["node", "program", "depth", "in_flight_count", "deferred_count", "result"],
        [address(a), "nsqd", "2", "0", "0", "emptied"],
        [address(b), "nsqd", "", "", "", "not there"],
    ]


def test_a_topic_or_channel_that_is_nowhere_is_not_found(nsqd: Daemon) -> None:
    create(nsqd, "t", "other")
    for words in ("pause u", "unpause u", "empty u -y", "delete u -y"):
        assert gnsqadmin("topic", *words.split(), *at(nsqd)) == (4, "", "Error: no node has the topic u\n")
    for words in ("pause t c", "unpause t c", "empty t c -y", "delete t c -y"):
        result = gnsqadmin("channel", *words.split(), *at(nsqd))
        assert result == (4, "", "Error: no node has the channel c in the topic t\n")


def test_the_other_nodes_are_served_when_one_is_down(nsqd: Daemon) -> None:
    down = f"127.0.0.1:{free_port()}"
    create(nsqd, "t")
    result = gnsqadmin("topic", "pause", "t", *at(nsqd), f"--nsqd-http-address={down}")
    assert (result.code, result.err) == (1, f"Error: nsqd at {down}: connection refused\n")
    assert result.out.splitlines()[1].split() == [down, "failed:", "connection", "refused"]
    assert topics(nsqd)["t"]["paused"] is True
    unknown = gnsqadmin("topic", "pause", "nope", *at(nsqd), f"--nsqd-http-address={down}")
    told = f"Error: nsqd at {down}: connection refused\nError: no node that answered has the topic nope\n"
    assert unknown == (1, "", told)


def test_an_nsqlookupd_that_is_down_is_told_of_once(gnsqd: Daemon) -> None:
    down = f"127.0.0.1:{free_port()}"
    code, out, err = gnsqadmin("topic", "create", "t", *at(gnsqd), f"--lookupd-http-address={down}")
    assert (code, err) == (1, f"Error: nsqlookupd at {down}: connection refused\n")
    assert [line.split() for line in out.splitlines()] == [
        [address(gnsqd), "created"],
        [down, "nsqlookupd", "failed:", "connection", "refused"],
    ]


def test_what_somebody_else_has_just_deleted_is_not_there(gnsqd: Daemon) -> None:
    create(gnsqd, "t")
    answers = [http_answer(json.dumps(gnsqd.stats()).encode()), http_answer(b'{"message":"TOPIC_NOT_FOUND"}', "404 X")]
    closing = [answer.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n") for answer in answers]
    with FakeNode(lambda connection: connection.sendall(closing.pop(0))) as node:
        found = document("topic", "pause", "t", f"--nsqd-http-address={node.address}")
    assert [(said["result"], said["error"]) for said in found["nodes"]] == [("absent", None)]


def test_a_channel_that_no_node_can_have_is_an_error() -> None:
    """The text of its name has half a character."""
    lie = fake_nsqd.node(fake_nsqd.topic("t", fake_nsqd.channel("c\ud800", depth=1)))
    answers = [http_answer(json.dumps(lie).encode()), http_answer(b"")]
    closing = [answer.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n") for answer in answers]
    with FakeNode(lambda connection: connection.sendall(closing.pop(0))) as liar:
        flag = f"--nsqd-http-address={liar.address}"
        code, _, err = gnsqadmin("topic", "empty", "t", "--with-channels", "--yes", flag)
    reason = "answered JSON that is not an nsqd's: no channel can have such a name"
    assert (code, err) == (1, f"Error: nsqd at {liar.address}: {reason}\n")


def test_an_order_that_is_not_answered_in_time_may_be_done(gnsqd: Daemon) -> None:
    """A node that lists its topics and then hangs."""
    create(gnsqd, "t")
    stats = json.dumps(gnsqd.stats()).encode()
    looked: list[bool] = []

    def answer(connection: Any) -> None:
        if not looked:
            looked.append(True)
            connection.sendall(http_answer(stats))

    with FakeNode(answer, hangs=True) as node:
        started = time.monotonic()
        result = gnsqadmin("topic", "delete", "t", "-y", "--timeout=2", f"--nsqd-http-address={node.address}", "--json")
        assert time.monotonic() - started < 10
    reason = "no complete answer within 2 s; it may still have been done"
    assert (result.code, result.err) == (1, f"Error: nsqd at {node.address}: {reason}\n")
    [said] = json.loads(result.out)["nodes"]
    assert (said["result"], said["error"]) == ("failed", reason)
    assert json.loads(result.out)["lost"] is None


@pytest.mark.peer
def test_create_and_delete_reach_nsqlookupd_and_all_its_nodes(cluster: Cluster) -> None:
    a, b = cluster.nodes
    lookupd = cluster.lookupd
    made = document("topic", "create", "t", cluster.flag)
    assert [node["result"] for node in made["nodes"]] == ["done", "done"]
    assert made["lookupds"] == [{"address": lookupd.address["HTTP"], "result": "done", "error": None}]
    cluster.wait_for_topic("t")
    made = document("channel", "create", "t", "c", cluster.flag)
    assert [channels(node, "t") for node in (a, b)] == [["c"], ["c"]]
    assert lookupd.ask("GET", "/channels?topic=t") == (200, {"channels": ["c"]})
    cluster.wait_for_topic("t", channel="c")
    gone = lines(gnsqadmin("channel", "delete", "t", "c", "--yes", cluster.flag))
    assert gone[-1] == [lookupd.address["HTTP"], "nsqlookupd", "deleted"]
    assert lookupd.ask("GET", "/channels?topic=t") == (200, {"channels": []})
    found = document("topic", "delete", "t", "--yes", cluster.flag)
    assert [node["result"] for node in (*found["nodes"], *found["lookupds"])] == ["done"] * 3
    assert (topics(a), topics(b)) == ({}, {})
    eventually(lambda: lookupd.ask("GET", "/topics") == (200, {"topics": []}), "topic gone from nsqlookupd")


@pytest.mark.peer
def test_what_nsqlookupd_alone_knows_can_be_made_and_deleted(cluster: Cluster) -> None:
    """Nodes that get the topic later have the channel from the beginning."""
    made = document("channel", "create", "t", "c", "--lookupd-only", cluster.flag)
    assert (made["nodes"], made["lookupds"][0]["result"]) == ([], "done")
    first, _ = cluster.nodes
    assert topics(first) == {}
    create(first, "t")
    eventually(lambda: channels(first, "t") == ["c"], "channel of nsqlookupd")
    assert document("topic", "create", "u", "--lookupd-only", cluster.flag)["lookupds"][0]["result"] == "done"
    assert document("channel", "create", "u", "c", cluster.flag)["lookupds"][0]["result"] == "done"
    assert gnsqadmin("channel", "create", "v", "c", cluster.flag) == (4, "", "Error: no node has the topic v\n")
    refused = gnsqadmin("topic", "delete", "u", cluster.flag)
    assert refused.code == 5
    assert refused.err.startswith("Error: Deleting the topic u at nsqlookupd loses no messages. Nothing was done:")
    gone = document("topic", "delete", "u", "--yes", cluster.flag)
    assert ([node["result"] for node in gone["nodes"]], gone["lookupds"][0]["result"]) == (["absent"] * 2, "done")
    assert cluster.lookupd.ask("GET", "/topics") == (200, {"topics": ["t"]})


def test_lookupd_only_needs_one(gnsqd: Daemon) -> None:
    result = gnsqadmin("topic", "create", "t", "--lookupd-only", *at(gnsqd))
    assert (result.code, result.out) == (2, "")
    assert result.err.endswith("Error: --lookupd-only requires an nsqlookupd: give it by --lookupd-http-address.\n")
    assert topics(gnsqd) == {}


def test_bad_names_are_told_before_anything_is_asked() -> None:
    result = gnsqadmin("channel", "delete", "t", "c\x1b[2J", "--yes")
    assert (result.code, result.out) == (2, "")
    assert "is not a valid channel name: expected 1 to 64 of" in result.err
    assert "\x1b" not in result.err


@pytest.mark.peer
def test_tombstone_hides_a_node_from_consumers_of_one_topic(cluster: Cluster) -> None:
    a, b = cluster.nodes
    for node in (a, b):
        create(node, "t")
    cluster.wait_for_topic("t")
    assert lines(gnsqadmin("topic", "tombstone", "t", address(a), cluster.flag)) == [
        [cluster.lookupd.address["HTTP"], "nsqlookupd", "hidden"]
    ]
    table = gnsqadmin("topic", "tombstone", "t", address(a), "-o", "csv", cluster.flag).out
    assert table == f"node,program,result\n{cluster.lookupd.address['HTTP']},nsqlookupd,hidden\n"
    _, said = cluster.lookupd.ask("GET", "/lookup?topic=t")
    assert [producer["http_port"] for producer in said["producers"]] == [b.http_address[1]]
    assert list(topics(a)) == ["t"]
    code, out, err = gnsqadmin("topic", "tombstone", "u", address(a), cluster.flag)
    assert (code, out) == (4, "")
    assert err == f"Error: the node {address(a)} has not registered the topic u at nsqlookupd\n"
    code, out, err = gnsqadmin("topic", "tombstone", "t", "nowhere:1", cluster.flag)
    known = ", ".join(sorted((address(a), address(b)), key=lambda text: int(text.rpartition(":")[2])))
    assert (code, out, err) == (4, "", f"Error: nsqlookupd does not list the node nowhere:1; it lists: {known}\n")


@pytest.mark.peer
def test_tombstone_with_delete_takes_the_topic_from_that_node(cluster: Cluster) -> None:
    a, b = cluster.nodes
    for node in (a, b):
        fill(node, "t", "c", 3)
    cluster.wait_for_topic("t", channel="c")
    words = ("topic", "tombstone", "t", f"http://{address(a)}", "--delete", cluster.flag)
    refused = gnsqadmin(*words)
    assert (refused.code, refused.out) == (5, "")
    assert refused.err.startswith("Error: Deleting the topic t on 1 node loses 3 messages. Nothing was done:")
    planned = document(*words, "--dry-run")
    assert (planned["nodes"][0]["result"], planned["lookupds"][0]["result"]) == ("planned", "planned")
    assert len(cluster.lookupd.ask("GET", "/lookup?topic=t")[1]["producers"]) == 2
    found = document(*words, "--yes")
    assert (found["action"], found["lost"]["depth"]) == ("tombstone", 3)
    assert (topics(a), list(topics(b))) == ({}, ["t"])


def test_tombstone_needs_nsqlookupd(gnsqd: Daemon) -> None:
    result = gnsqadmin("topic", "tombstone", "t", "x:1", *at(gnsqd))
    assert (result.code, result.out) == (2, "")
    assert result.err.endswith("Error: tombstones are kept by nsqlookupd: give it by --lookupd-http-address.\n")


def paused(nsqd: Daemon) -> set[str]:
    return {
        f"{topic}/{channel['channel_name']}"
        for topic, found in topics(nsqd).items()
        for channel in found["channels"]
        if channel["paused"]
    }


def test_a_pattern_pauses_every_match_on_all_nodes_once_confirmed(nsqd_factory: DaemonFactory) -> None:
    a, b = nsqd_factory(), nsqd_factory()
    create(a, "orders", "billing", "archive")
    create(b, "orders", "billing")
    create(b, "orders_eu", "billing")
    create(b, "clicks", "billing")
    plan = lines(gnsqadmin("channel", "pause", "orders*/b*", "--dry-run", *at(a, b)))
    assert [line for line in plan[2:] if line] == [
        ["orders", "billing", "2", "to", "be", "paused"],
        ["orders_eu", "billing", "1", "to", "be", "paused"],
        ["Nothing", "was", "done."],
    ]
    refused = gnsqadmin("channel", "pause", "orders*/b*", *at(a, b))
    assert (refused.code, refused.out) == (5, "")
    assert refused.err.startswith("Error: Pausing 2 channels. Nothing was done: use --yes")
    assert (paused(a), paused(b)) == (set(), set())
    found = document("channel", "pause", "orders*", "b*", "--yes", *at(a, b))
    assert [(one["topic"], one["channel"]) for one in found["operations"]] == [
        ("orders", "billing"),
        ("orders_eu", "billing"),
    ]
    assert [node["result"] for node in found["operations"][1]["nodes"]] == ["absent", "done"]
    assert paused(a) == {"orders/billing"}
    assert paused(b) == {"orders/billing", "orders_eu/billing"}


def test_a_pattern_empties_and_deletes_with_the_losses_shown(nsqd: Daemon) -> None:
    fill(nsqd, "orders", "billing", 3)
    fill(nsqd, "orders_eu", "archive", 4)
    fill(nsqd, "clicks", "billing", 5)
    result = gnsqadmin("channel", "empty", "orders*/*", "--yes", *at(nsqd))
    assert [line[:4] for line in lines(result)[2:]] == [
        ["orders", "billing", "1", "3"],
        ["orders_eu", "archive", "1", "4"],
    ]
    assert nsqd.channel_stats("orders", "billing")["depth"] == 0
    assert nsqd.channel_stats("clicks", "billing")["depth"] == 5
    assert document("topic", "delete", "orders*", "--yes", *at(nsqd))["dry_run"] is False
    assert list(topics(nsqd)) == ["clicks"]


def test_a_pattern_counts_only_nodes_that_did_it(nsqd_factory: DaemonFactory) -> None:
    daemons = nsqd_factory(), nsqd_factory()
    for daemon in daemons:
        create(daemon, "orders", "a")
    down = f"--nsqd-http-address=127.0.0.1:{free_port()}"
    for pause, done in (("--dry-run", "to be paused"), ("--yes", "paused")):
        code, out, err = gnsqadmin("channel", "pause", "orders/*", pause, down, *at(*daemons))
        assert (code, err.count("\n")) == (1, 1)
        assert re.split("  +", out.splitlines()[2]) == ["orders", "a", "2", f"{done}, 1 node failed"]


def test_a_pattern_without_a_match_is_not_found(nsqd: Daemon) -> None:
    create(nsqd, "t", "c")
    for words, what in (
        ("topic pause x*", "topic that matches x*"),
        ("channel pause t/x*", "channel that matches t/x*"),
    ):
        result = gnsqadmin(*words.split(), "--yes", *at(nsqd))
        assert result == (4, "", f"Error: no node has a {what}\n")


@pytest.mark.parametrize(
    "arguments, reason",
    [
        (["t"], "give TOPIC and CHANNEL, or TOPIC/CHANNEL."),
        (["t/c", "c"], "give TOPIC and CHANNEL, or TOPIC/CHANNEL."),
        (["t/c d"], "'c d' is not a valid channel name"),
        (["a b*", "c"], "'a b*' is not a valid topic name"),
    ],
)
def test_a_wrong_pattern_is_wrong_usage(arguments: list[str], reason: str) -> None:
    code, out, err = gnsqadmin("channel", "pause", *arguments)
    assert (code, out) == (2, "")
    assert reason in err


def test_names_may_be_one_argument(nsqd: Daemon) -> None:
    create(nsqd, "t", "c")
    assert document("channel", "pause", "t/c", *at(nsqd))["channel"] == "c"
    assert paused(nsqd) == {"t/c"}
