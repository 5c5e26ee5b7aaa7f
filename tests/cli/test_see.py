"""`nodes`, `tree`, `topic show`, `channel show`, `lookup` and `counter` against running nodes, and nsqlookupd."""

import json
import time
from datetime import datetime
from typing import Any

import pytest

from cli.fake_nsqd import node as fake_node
from cli.fake_nsqd import topic as fake_topic
from cli.gnsqadmin import FakeNode, ageless, document, failure, gnsqadmin, http_answer, ok, rows, words
from cli.nodes import DOWN, Registered, address, at, at_lookupd, fill, publish
from gnsqd.shared.version import VERSION
from kit.daemons import DEADLINE, own_command
from kit.nsq_client import NSQClient
from kit.traffic import DaemonFactory, create, post, wait_for


def subscribe(client: NSQClient, name: str, topic: str, channel: str, rdy: int) -> None:
    client.identify(client_id=name, hostname=name and f"{name}.example", user_agent="tests/1.0")
    client.subscribe(topic, channel, rdy=rdy)


def test_nodes_and_counter_show_what_each_holds(nsqd_factory: DaemonFactory, daemon_command: list[str]) -> None:
    a, b = nsqd_factory(), nsqd_factory()
    fill(a, "t", "c", "d", count=7)
    kind = f"gnsqd {VERSION}" if daemon_command == own_command() else "nsqd"
    counts = ("topic_count", "channel_count", "depth", "message_count")
    answers = document("nodes", *at(a, b))["nodes"]
    for node, daemon, numbers in zip(answers, (a, b), ((1, 2, 14, 7), (0,) * 4), strict=True):
        own = {"address": address(daemon), "health": "OK", "version": "1.3.0", "error": None, "daemon": kind}
        expected = own | {"draining": False, "lookupds": []} | dict(zip(counts, numbers, strict=True))
        assert {key: node[key] for key in expected} == expected
    assert [(row["status"], row["daemon"]) for row in rows("nodes", *at(a, b))] == [("healthy", kind)] * 2
    assert words("nodes", *at(a, b))[-1][:5] == ["2", "nodes", "1", "2", "14"]
    counts = document("counter", *at(a, b))
    assert (counts["published"], counts["delivered"], counts["ingress_rate"]) == (7, 14, None)
    assert words("counter", *at(a, b))[2][1:] == ["7", "14"]
    [row] = rows("counter", *at(a, b))
    assert abs(datetime.fromisoformat(row["time"]).timestamp() - counts["time"]) < DEADLINE
    out = gnsqadmin("nodes", *at(a, DOWN)).out
    assert [DOWN, "failed:", "connection", "refused"] in [line.split() for line in out.splitlines()]
    if kind != "nsqd":
        publish(b, "t", 1)  # or it would exit at once
        post(b, "/drain")
        assert [node["draining"] for node in document("nodes", *at(a, b))["nodes"]] == [False, True]
        assert [row["status"] for row in rows("nodes", *at(a, b))] == ["healthy", "draining"]


@pytest.mark.peer
def test_what_nsqlookupd_lists_and_hides_is_shown(cluster: Registered) -> None:
    for node in cluster.nodes:
        create(node, "t")
    cluster.wait_for_topic("t")
    shown, hidden = map(address, cluster.nodes)
    lookupd = cluster.lookupd.address["HTTP"]
    for path in (f"/topic/tombstone?topic=t&node={hidden}", "/channel/create?topic=ghost&channel=c"):
        assert cluster.lookupd.ask("POST", path)[0] == 200
    answers = document("nodes", cluster.flag)["nodes"]
    tombstones = {node["address"]: (node["tombstoned_topics"], node["lookupds"]) for node in answers}
    assert tombstones == {shown: ([], [lookupd]), hidden: (["t"], [lookupd])}
    [row] = [row for row in rows("nodes", cluster.flag) if row["node"] == hidden]
    assert (row["listed"], row["tombstoned"]) == ("1/1", "1")
    is_found = {node["address"]: node["found"] for node in document("topic", "show", "t", cluster.flag)["nodes"]}
    assert is_found == {shown: True, hidden: False}
    assert f"nsqlookupd does not send consumers to {hidden}" in ok("topic", "show", "t", cluster.flag)
    error = failure("topic", "show", "ghost", cluster.flag, code=4)
    assert error.startswith("no node has the topic ghost, but nsqlookupd still lists it")

    ghost = {"topic_name": "ghost", "nodes": [], "tombstoned": [], "channels": ["c"]}
    topic = {"topic_name": "t", "nodes": [shown], "tombstoned": [hidden], "channels": None}
    assert document("lookup", cluster.flag) == {"topics": [ghost, topic]}
    assert document("lookup", "--orphans", cluster.flag) == {"topics": [ghost]}
    table = words("lookup", cluster.flag)[2:]
    assert table == [["ghost", "0", "0", "no", "node,", "channels", "c"], ["t", "1", "1"]]
    error = f"Error: nsqlookupd at {DOWN}: connection refused\n"
    code, out, err = gnsqadmin("lookup", "--json", cluster.flag, *at_lookupd(DOWN))
    assert (code, err, json.loads(out)) == (1, error, {"topics": [ghost, topic]})
    assert gnsqadmin("lookup", *at_lookupd(DOWN)) == (1, "", error)


def test_consumers_and_the_share_of_each_node_are_shown(nsqd_factory: DaemonFactory) -> None:
    a, b = nsqd_factory(), nsqd_factory()
    create(a, "orders", "billing")
    fill(b, "orders", "archive", "billing", count=5)
    post(b, "/topic/pause?topic=orders")
    with NSQClient(a.tcp_address) as one, NSQClient(b.tcp_address) as two, NSQClient(a.tcp_address) as nameless:
        subscribe(nameless, "", "other", "c", 0)
        name = "{}:{}".format(*nameless.sock.getsockname())
        assert words("tree", *at(a))[-1][:3] == ["└─", name, address(a)]
        assert [row["client"] for row in rows("channel", "show", "other", "c", *at(a))] == [name]
        post(a, "/topic/delete?topic=other")
        subscribe(one, "one", "orders", "billing", 10)
        subscribe(two, "two", "orders", "billing", 3)
        wait_for(b, "orders", "billing", in_flight_count=3)
        tree = words("tree", *at(a, b))
        [topic] = document("tree", *at(a, b))["topics"]
        table = rows("tree", *at(a, b))
        channel = document("channel", "show", "orders", "billing", *at(a, b))
        channel_table = ageless("channel", "show", "orders", "billing", *at(a, b))
        clients = rows("channel", "show", "orders", "billing", *at(a, b))
    assert tree[2][0] == "orders"
    assert tree[3][:6] == ["├─", "archive", "(no", "consumers)", address(b), "5"]
    assert tree[4][:6] == ["└─", "billing", "2", "nodes", "2", "3"]
    assert tree[5][:5] == ["├─", "one", address(a), "0", "10"]
    assert tree[6][:5] == ["└─", "two", address(b), "3", "3"]
    assert tree[6][-1] == "tests/1.0"
    assert topic["nodes"] == [address(a), address(b)]
    for shown in (topic["channels"][1], channel):
        places = [(client["node"], client["client_id"]) for client in shown["clients"]]
        assert places == [(address(a), "one"), (address(b), "two")]
    for csv in (table, clients):
        ready = [(row["client"], row["topic"], row["channel"], row["ready_count"]) for row in csv]
        assert ready == [("one", "orders", "billing", "10"), ("two", "orders", "billing", "3")]
    assert (channel["topic_name"], channel["channel_name"], channel["depth"]) == ("orders", "billing", 2)
    assert [node["channel"]["in_flight_count"] for node in channel["nodes"]] == [0, 3]
    assert [address(b), "2", "2", "0", "3", "0", "0", "0", "5", "1"] in channel_table
    assert ["2", "consumers"] in channel_table
    assert any(row[:2] == ["two", address(b)] and row[3:6] == ["3", "3", "0"] for row in channel_table)

    answer = document("topic", "show", "orders", *at(a, b))
    assert (answer["topic_name"], answer["message_count"], answer["paused"]) == ("orders", 5, True)
    assert [node["topic"]["message_count"] for node in answer["nodes"]] == [0, 5]
    assert [channel["depth"] for channel in answer["channels"]] == [5, 2]
    shown = ageless("topic", "show", "orders", *at(a, b))
    assert ["paused", "on", address(b)] in shown
    assert [address(b), "0", "0", "0", "5", "paused"] in shown
    assert ["archive", "5", "5", "0", "0", "0", "0", "0", "5", "0"] in shown
    shares = [(row["node"], row["message_count"]) for row in rows("topic", "show", "orders", *at(a, b))]
    assert shares == [(address(a), "0"), (address(b), "5")]


def test_topic_show_has_what_is_kept_for_a_rewind(gnsqd_factory: DaemonFactory) -> None:
    limits = ("--retention-bytes=1000000", "--retention-time=1h")
    before = time.time()
    a, b, c = gnsqd_factory("--durability=process", *limits), gnsqd_factory("--durability=process"), gnsqd_factory()
    for node in (a, b, c):
        fill(node, "t", "c", count=3)
        post(node, "/channel/empty?topic=t&channel=c")
    assert document("topic", "show", "t", *at(c))["kept"] == []
    assert "rewind" not in ok("topic", "show", "t", *at(c))
    [kept] = document("topic", "show", "t", *at(a, b, c))["kept"]
    assert before <= kept.pop("since") <= time.time()
    used = sum(path.stat().st_size for path in a.data_path.glob("t.journal.*"))
    assert kept == {"address": address(a), "bytes": 1000000, "time": 3600, "messages": 3, "used": used}
    last = words("topic", "show", "t", *at(a, b, c))[-1]
    assert last[:-1] == [address(a), "1.0", "MB", "1h", "0m", "3", f"{used}", "B"]
    post(b, "/topic/retention?topic=t&bytes=2000000")
    [_, second] = document("topic", "show", "t", *at(a, b))["kept"]
    assert second == {"address": address(b), "bytes": 2000000, "time": None, "messages": 0, "used": 0, "since": None}
    assert words("topic", "show", "t", *at(a, b))[-1] == ["all", "3.0", "MB", "3", f"{used}", "B"]


def test_latencies_are_shown_and_summed_up_as_the_worst() -> None:
    def node(value: int) -> bytes:
        latency = {"count": 10, "percentiles": [{"quantile": 0.5, "value": 1000}, {"quantile": 0.99, "value": value}]}
        retention: dict[str, Any] = {"bytes": 0, "time": 0, "messages": 0, "since": None}  # for another question
        return http_answer(json.dumps(fake_node(fake_topic("t", e2e_processing_latency=latency)) | retention).encode())

    with FakeNode(node(12_300_000)) as slow, FakeNode(node(5)) as fast:
        table = words("topic", "show", "t", *at(slow, fast))
        answer = document("topic", "show", "t", *at(slow, fast))
    assert ["latency", "50%", "1µs", "99%", "12.3ms", "(of", "20", "messages)"] in table
    assert answer["e2e_processing_latency"]["percentiles"][1] == {"quantile": 0.99, "value": 12_300_000}
