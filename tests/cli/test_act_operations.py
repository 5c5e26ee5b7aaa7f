"""Creating, pausing, emptying and deleting topics and channels: on all nodes that have them, and at nsqlookupd."""

import json
import re
import time
from typing import Any

import pytest

from cli import fake_nsqd
from cli.gnsqadmin import FakeNode, document, failure, gnsqadmin, http_answer, rows, words
from cli.nodes import DOWN, Registered, address, at, at_lookupd, channels, fill, publish, topics
from kit.daemons import Instance, eventually
from kit.nsq_client import NSQClient
from kit.traffic import DaemonFactory, create, post, wait_for


def paused(nsqd: Instance) -> set[str]:
    """Returns the topics and channels that are."""
    states = {}
    for topic in nsqd.stats()["topics"]:
        states[topic["topic_name"]] = topic["paused"]
        states |= {f"{topic['topic_name']}/{one['channel_name']}": one["paused"] for one in topic["channels"]}
    return {name for name in states if states[name]}


def results(answer: Any, of: str = "nodes") -> list[str]:
    return [node["result"] for node in answer[of]]


def test_create_makes_a_topic_on_all_nodes_and_a_channel_where_the_topic_is(nsqd_factory: DaemonFactory) -> None:
    a, b = nsqd_factory(), nsqd_factory()
    create(b, "t")
    table = words("topic", "create", "t", *at(a, b))
    assert table == [[address(a), "created"], [address(b), "already", "existed"]]
    assert topics(a) == topics(b) == ["t"]
    create(a, "u")
    *table, last = words("channel", "create", "u", "c", *at(a, b))
    assert (table, " ".join(last)) == ([[address(a), "created"]], "1 other node does not have the topic u")
    assert (channels(a, "u"), topics(b)) == (["c"], ["t"])


def test_pause_and_unpause_reach_every_node_once(nsqd_factory: DaemonFactory) -> None:
    a, b = nsqd_factory(), nsqd_factory()
    for node in (a, b):
        create(node, "t", "c")
    post(b, "/topic/pause?topic=t")
    answer = document("topic", "pause", "t", *at(a, b))
    done = [{"address": address(a), "result": "done"}, {"address": address(b), "result": "already"}]
    assert answer.pop("nodes") == [row | {"error": None, "lost": None} for row in done]
    assert answer == {"action": "pause", "topic": "t", "channel": None, "dry_run": False, "lookupds": [], "lost": None}
    assert [paused(node) for node in (a, b)] == [{"t"}, {"t"}]
    assert words("topic", "unpause", "t", *at(a, b))[1] == [address(b), "unpaused"]
    assert words("channel", "pause", "t/c", *at(b)) == [[address(b), "paused"]]
    assert [paused(node) for node in (a, b)] == [set(), {"t/c"}]
    table = words("channel", "unpause", "t", "c", *at(a, b))
    assert table == [[address(a), "was", "not", "paused"], [address(b), "unpaused"]]
    assert paused(b) == set()


def test_empty_of_a_topic_leaves_its_channels_alone_without_an_option(nsqd: Instance) -> None:
    fill(nsqd, "t", "c", count=3)
    post(nsqd, "/topic/pause?topic=t")
    publish(nsqd, "t", 4)
    of_channels = {"in_flight_count": 0, "deferred_count": 0}
    for option, lost, left in (([], {"depth": 4}, 3), (["--with-channels"], {"depth": 3} | of_channels, 0)):
        assert document("topic", "empty", "t", "--yes", *option, *at(nsqd))["lost"] == lost
        assert (nsqd.topic_stats("t")["depth"], nsqd.channel_stats("t", "c")["depth"]) == (0, left)


def test_empty_of_a_channel_loses_all_its_messages_and_keeps_its_clients(nsqd_factory: DaemonFactory) -> None:
    nsqd, other = nsqd_factory(), nsqd_factory()
    fill(nsqd, "t", "c", count=5)
    create(nsqd, "t", "other")
    with NSQClient(nsqd.tcp_address) as client:
        client.subscribe("t", "c", rdy=2)
        wait_for(nsqd, "t", "c", in_flight_count=2)
        table = words("channel", "empty", "t", "c", "--yes", *at(nsqd))
        assert table[0] == ["node", "depth", "in", "flight", "deferred", "result"]
        assert table[2:] == [[address(nsqd), "3", "2", "0", "emptied"]]
        wait_for(nsqd, "t", "c", depth=0, in_flight_count=0, client_count=1)
    csv = rows("channel", "empty", "t", "c", "--yes", *at(nsqd, other))
    assert list(csv[0]) == ["node", "program", "depth", "in_flight_count", "deferred_count", "result"]
    here, there = (list(row.values()) for row in csv)
    assert here == [address(nsqd), "nsqd", "0", "0", "0", "emptied"]
    assert there == [address(other), "nsqd", "", "", "", "not there"]


def test_delete_reports_what_was_lost_on_each_node_and_ends_consumers(nsqd_factory: DaemonFactory) -> None:
    a, b, c = nsqd_factory(), nsqd_factory(), nsqd_factory()
    fill(a, "t", "c", count=5)
    fill(b, "t", "c", count=1)
    create(a, "t", "d")
    create(c, "other")
    with NSQClient(b.tcp_address) as client:
        client.subscribe("t", "c", rdy=1)
        client.message()
        wait_for(b, "t", "c", in_flight_count=1)
        answer = document("topic", "delete", "t", "--yes", *at(a, b, c))
        assert client.recv_until_closed() == b""
    counts = ("channel_count", "depth", "in_flight_count", "deferred_count", "client_count")
    assert results(answer) == ["done", "done", "absent"]
    lost = [dict(zip(counts, numbers, strict=True)) for numbers in ((2, 5, 0, 0, 0), (1, 0, 1, 0, 1), (3, 5, 1, 0, 1))]
    assert [*(node["lost"] for node in answer["nodes"]), answer["lost"]] == [*lost[:2], None, lost[2]]
    assert (topics(a), topics(b), topics(c)) == ([], [], ["other"])


def test_what_fails_has_a_row_and_unknown_names_may_be_at_a_node_that_is_down(nsqd: Instance) -> None:
    create(nsqd, "t")
    code, out, err = gnsqadmin("topic", "pause", "t", *at(nsqd, DOWN))
    assert (code, err) == (1, f"Error: nsqd at {DOWN}: connection refused\n")
    assert out.splitlines()[1].split() == [DOWN, "failed:", "connection", "refused"]
    unknown = gnsqadmin("topic", "pause", "u", *at(nsqd, DOWN)).err
    assert unknown == f"{err}Error: no node that answered has the topic u\n"
    code, out, err = gnsqadmin("topic", "create", "u", *at(nsqd), *at_lookupd(DOWN))
    assert (code, err) == (1, f"Error: nsqlookupd at {DOWN}: connection refused\n")
    assert out.splitlines()[1].split() == [DOWN, "nsqlookupd", "failed:", "connection", "refused"]


def answering(*answers: bytes) -> FakeNode:
    """Starts a node with these answers, one after the other, that hangs after the last one."""
    left = list(answers)
    return FakeNode(lambda connection: connection.sendall(left.pop(0) if left else b""), hangs=True)


def stats(*channels: dict[str, Any]) -> bytes:
    return http_answer(json.dumps(fake_nsqd.node(fake_nsqd.topic("t", *channels))).encode())


def test_what_is_gone_is_absent_and_what_is_not_answered_in_time_may_be_done() -> None:
    with answering(stats(), http_answer(b'{"message":"TOPIC_NOT_FOUND"}', "404 X")) as node:
        answer = document("topic", "pause", "t", *at(node))
    assert [(one["result"], one["error"]) for one in answer["nodes"]] == [("absent", None)]
    started = time.monotonic()
    with answering(stats()) as node:
        code, out, err = gnsqadmin("topic", "delete", "t", "-y", "--timeout=2", *at(node), "--json")
    assert time.monotonic() - started < 10
    reason = "no complete answer within 2 s; it may still have been done"
    assert (code, err) == (1, f"Error: nsqd at {node.address}: {reason}\n")
    answer = json.loads(out)
    assert [(one["result"], one["error"]) for one in answer["nodes"]] == [("failed", reason)]
    assert answer["lost"] is None


def test_channels_are_emptied_though_the_topic_can_not_be() -> None:
    """Empties them as they may hold the space that a full disk lacks."""
    reason = "INTERNAL_ERROR: no space left on device"
    full, emptied = http_answer(json.dumps({"message": reason}).encode(), "500 X"), http_answer(b"")
    queues = [fake_nsqd.channel(name, depth=1) for name in "cd"]
    with answering(stats(*queues), full, emptied, emptied) as node:
        code, _, err = gnsqadmin("topic", "empty", "t", "--with-channels", "--yes", *at(node))
    assert (code, err) == (1, f"Error: nsqd at {node.address}: answered HTTP 500 ({reason})\n")
    paths = [b"/topic/empty?topic=t", *(b"/channel/empty?topic=t&channel=" + name for name in (b"c", b"d"))]
    assert [request.split()[1] for request in node.requests[1:]] == paths


@pytest.mark.peer
def test_create_and_delete_reach_nsqlookupd_and_all_its_nodes(cluster: Registered) -> None:
    a, b = cluster.nodes
    lookupd = cluster.lookupd
    made = document("topic", "create", "t", cluster.flag)
    assert results(made) == ["done", "done"]
    assert made["lookupds"] == [{"address": lookupd.address["HTTP"], "result": "done", "error": None}]
    cluster.wait_for_topic("t")
    document("channel", "create", "t", "c", cluster.flag)
    assert [channels(node, "t") for node in (a, b)] == [["c"], ["c"]]
    assert lookupd.ask("GET", "/channels?topic=t") == (200, {"channels": ["c"]})
    cluster.wait_for_topic("t", channel="c")
    gone = words("channel", "delete", "t", "c", "--yes", cluster.flag)
    assert gone[-1] == [lookupd.address["HTTP"], "nsqlookupd", "deleted"]
    assert lookupd.ask("GET", "/channels?topic=t") == (200, {"channels": []})
    answer = document("topic", "delete", "t", "--yes", cluster.flag)
    assert results(answer) + results(answer, "lookupds") == ["done"] * 3
    assert (topics(a), topics(b)) == ([], [])
    eventually(lambda: lookupd.ask("GET", "/topics") == (200, {"topics": []}), "topic gone from nsqlookupd")


@pytest.mark.peer
def test_what_nsqlookupd_alone_knows_can_be_made_and_deleted(cluster: Registered) -> None:
    """Nodes that get the topic later have the channel from the beginning."""
    made = document("channel", "create", "t", "c", "--lookupd-only", cluster.flag)
    assert (made["nodes"], results(made, "lookupds")) == ([], ["done"])
    first, _ = cluster.nodes
    assert topics(first) == []
    create(first, "t")
    eventually(lambda: channels(first, "t") == ["c"], "channel of nsqlookupd")
    for create_words in (("topic", "create", "u", "--lookupd-only"), ("channel", "create", "u", "c")):
        assert results(document(*create_words, cluster.flag), "lookupds") == ["done"]
    assert failure("channel", "create", "v", "c", cluster.flag, code=4) == "no node has the topic v"
    refused = failure("topic", "delete", "u", cluster.flag, code=5)
    assert refused.startswith("Deleting the topic u at nsqlookupd loses no messages. Nothing was done:")
    gone = document("topic", "delete", "u", "--yes", cluster.flag)
    assert (results(gone), results(gone, "lookupds")) == (["absent"] * 2, ["done"])
    assert cluster.lookupd.ask("GET", "/topics") == (200, {"topics": ["t"]})


@pytest.mark.peer
def test_tombstone_hides_a_node_from_consumers_of_one_topic_and_deletes_it_there(cluster: Registered) -> None:
    a, b = cluster.nodes
    lookupd = cluster.lookupd.address["HTTP"]
    for node in (a, b):
        fill(node, "t", "c", count=3)
    cluster.wait_for_topic("t", channel="c")
    tombstone = ("topic", "tombstone", "t", f"http://{address(a)}", cluster.flag)
    assert words(*tombstone) == [[lookupd, "nsqlookupd", "hidden"]]
    assert rows(*tombstone) == [{"node": lookupd, "program": "nsqlookupd", "result": "hidden"}]
    _, answer = cluster.lookupd.ask("GET", "/lookup?topic=t")
    assert [producer["http_port"] for producer in answer["producers"]] == [b.http_address[1]]
    refused = failure(*tombstone, "--delete", code=5)
    assert refused.startswith("Deleting the topic t on 1 node loses 3 messages. Nothing was done:")
    planned = document(*tombstone, "--delete", "--dry-run")
    assert (results(planned), results(planned, "lookupds")) == (["planned"], ["planned"])
    assert (topics(a), topics(b)) == (["t"], ["t"])
    answer = document(*tombstone, "--delete", "--yes")
    assert (answer["action"], answer["lost"]["depth"]) == ("tombstone", 3)
    assert (topics(a), topics(b)) == ([], ["t"])
    error = failure("topic", "tombstone", "u", address(a), cluster.flag, code=4)
    assert error == f"the node {address(a)} has not registered the topic u at nsqlookupd"
    known = ", ".join(sorted((address(a), address(b)), key=lambda text: int(text.rpartition(":")[2])))
    error = failure("topic", "tombstone", "t", "nowhere:1", cluster.flag, code=4)
    assert error == f"nsqlookupd does not list the node nowhere:1; it lists: {known}"


def test_a_pattern_pauses_every_match_on_all_nodes(nsqd_factory: DaemonFactory) -> None:
    a, b = nsqd_factory(), nsqd_factory()
    create(a, "orders", "billing", "archive")
    for topic in ("orders", "orders_eu", "clicks"):
        create(b, topic, "billing")
    plan = words("channel", "pause", "orders*/b*", "--dry-run", *at(a, b))
    lines = ["orders billing 2 to be paused", "orders_eu billing 1 to be paused", "Nothing was done."]
    assert [" ".join(line) for line in plan[2:] if line] == lines
    for pause, done in (("--dry-run", "to be paused"), ("--yes", "paused")):
        code, out, err = gnsqadmin("channel", "pause", "orders/b*", pause, *at(DOWN, a, b))
        assert (code, err.count("\n")) == (1, 1)
        assert re.split("  +", out.splitlines()[2]) == ["orders", "billing", "2", f"{done}, 1 node failed"]
    answer = document("channel", "pause", "orders*", "b*", "--yes", *at(a, b))["operations"]
    assert [(one["topic"], one["channel"]) for one in answer] == [("orders", "billing"), ("orders_eu", "billing")]
    assert results(answer[1]) == ["absent", "done"]
    assert (paused(a), paused(b)) == ({"orders/billing"}, {"orders/billing", "orders_eu/billing"})


def test_a_pattern_empties_and_deletes_with_the_losses_shown(nsqd: Instance) -> None:
    fill(nsqd, "orders", "billing", count=3)
    fill(nsqd, "orders_eu", "archive", count=4)
    fill(nsqd, "clicks", "billing", count=5)
    table = words("channel", "empty", "orders*/*", "--yes", *at(nsqd))[2:]
    assert [line[:4] for line in table] == [["orders", "billing", "1", "3"], ["orders_eu", "archive", "1", "4"]]
    assert nsqd.channel_stats("orders", "billing")["depth"] == 0
    assert nsqd.channel_stats("clicks", "billing")["depth"] == 5
    assert document("topic", "delete", "orders*", "--yes", *at(nsqd))["dry_run"] is False
    assert topics(nsqd) == ["clicks"]
