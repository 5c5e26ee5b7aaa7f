"""`nodes`, `tree`, `topic show`, `channel show` and `counter` against running nodes, and nsqlookupd."""

import csv
import io
import json
import time
from datetime import datetime
from typing import Any

import pytest

from cli.gnsqadmin import FakeNode, Result, gnsqadmin, http_answer
from cli.nodes import Cluster, address, at, fill, publish
from conftest import DaemonFactory
from gnsqd.version import VERSION
from kit.daemons import DEADLINE, Daemon, eventually, own_command
from kit.nsq_client import Client
from kit.traffic import create, post, wait_for


def document(*args: str) -> Any:
    """The JSON of a run that must go well."""
    result = gnsqadmin(*args, "--json")
    assert (result.code, result.err) == (0, "")
    return json.loads(result.out)


def words(result: Result) -> list[list[str]]:
    assert (result.code, result.err) == (0, "")
    return [line.split() for line in result.out.splitlines()]


def rows(*args: str) -> list[dict[str, str]]:
    """The CSV of a run that must go well."""
    result = gnsqadmin(*args, "-o", "csv")
    assert (result.code, result.err) == (0, "")
    return list(csv.DictReader(io.StringIO(result.out)))


def subscribe(client: Client, name: str, topic: str, channel: str, rdy: int) -> None:
    client.identify(client_id=name, hostname=f"{name}.example", user_agent="tests/1.0")
    client.subscribe(topic, channel, rdy=rdy)


def test_nodes_says_how_each_is_and_what_it_holds(nsqd_factory: DaemonFactory) -> None:
    a, b = nsqd_factory(), nsqd_factory()
    create(a, "t", "c", "d")
    publish(a, "t", 7)
    wait_for(a, "t", "d", depth=7)
    first, second = document("nodes", *at(a, b))["nodes"]
    assert (first["address"], first["health"], first["version"], first["error"]) == (address(a), "OK", "1.3.0", None)
    assert (first["topic_count"], first["channel_count"], first["depth"], first["message_count"]) == (1, 2, 14, 7)
    assert (second["address"], second["topic_count"], second["lookupds"]) == (address(b), 0, [])
    table = words(gnsqadmin("nodes", *at(a, b)))
    assert table[0][:6] == ["node", "status", "daemon", "version", "up", "topics"]
    assert table[2][:2] == [address(a), "healthy"]
    assert "1.3.0" in table[2]
    assert table[-1][:5] == ["2", "nodes", "1", "2", "14"]


def test_nodes_names_the_kind_of_daemon(nsqd: Daemon, daemon_command: list[str]) -> None:
    kind = f"gnsqd {VERSION}" if daemon_command == own_command() else "nsqd"
    [node] = document("nodes", *at(nsqd))["nodes"]
    assert (node["daemon"], node["draining"]) == (kind, False)
    assert [row["daemon"] for row in rows("nodes", *at(nsqd))] == [kind]


def test_nodes_shows_which_drain(gnsqd_factory: DaemonFactory) -> None:
    a, b = gnsqd_factory(), gnsqd_factory()
    publish(a, "t", 1)  # or it would exit at once
    post(a, "/drain")
    assert [node["draining"] for node in document("nodes", *at(a, b))["nodes"]] == [True, False]
    assert [row["status"] for row in rows("nodes", *at(a, b))] == ["draining", "healthy"]


def test_a_node_that_is_down_has_a_row_that_says_so(nsqd: Daemon) -> None:
    for command in (["nodes"], ["stats", "--by", "node"]):
        code, out, err = gnsqadmin(*command, *at(nsqd), *at(DOWN))
        assert (code, err) == (1, f"Error: nsqd at {DOWN}: connection refused\n")
        assert [DOWN, "failed:", "connection", "refused"] in [line.split() for line in out.splitlines()]
    alone = gnsqadmin("nodes", "--json", *at(DOWN))
    assert [node["error"] for node in json.loads(alone.out)["nodes"]] == ["connection refused"]


@pytest.mark.peer
def test_nodes_says_what_nsqlookupd_lists_and_hides(cluster: Cluster) -> None:
    create(cluster.nodes[0], "t")
    cluster.wait_for_topic("t", cluster.nodes[0])
    hidden = address(cluster.nodes[0])
    assert cluster.lookupd.ask("POST", f"/topic/tombstone?topic=t&node={hidden}")[0] == 200
    found = {node["address"]: node for node in document("nodes", cluster.flag)["nodes"]}
    assert found.keys() == set(map(address, cluster.nodes))
    assert found[hidden]["tombstoned_topics"] == ["t"]
    assert all(node["lookupds"] == [cluster.lookupd.address["HTTP"]] for node in found.values())
    [row] = [row for row in rows("nodes", cluster.flag) if row["node"] == hidden]
    assert (row["listed"], row["tombstoned"]) == ("1/1", "1")


def test_tree_shows_consumers_below_their_channels_on_all_nodes(nsqd_factory: DaemonFactory) -> None:
    a, b = nsqd_factory(), nsqd_factory()
    for node in (a, b):
        create(node, "orders", "billing")
    fill(b, "orders", "archive", count=5)
    with Client(a.tcp_address) as one, Client(b.tcp_address) as two:
        subscribe(one, "one", "orders", "billing", 10)
        subscribe(two, "two", "orders", "billing", 3)
        eventually(lambda: b.channel_stats("orders", "billing")["in_flight_count"] == 3)
        tree = words(gnsqadmin("tree", *at(a, b)))
        found = document("tree", *at(a, b))
        table = rows("tree", *at(a, b))
    assert tree[2] == ["orders", "2", "nodes", "0"]
    assert tree[3][:6] == ["├─", "archive", "(no", "consumers)", address(b), "5"]
    assert tree[4][:6] == ["└─", "billing", "2", "nodes", "2", "3"]
    assert tree[5][:5] == ["├─", "one", address(a), "0", "10"]
    assert tree[6][:5] == ["└─", "two", address(b), "3", "3"]
    assert tree[6][-1] == "tests/1.0"
    [topic] = found["topics"]
    assert topic["nodes"] == [address(a), address(b)]
    clients = topic["channels"][1]["clients"]
    assert [(client["node"], client["client_id"]) for client in clients] == [(address(a), "one"), (address(b), "two")]
    assert [(row["client"], row["channel"], row["ready_count"]) for row in table] == [
        ("one", "billing", "10"),
        ("two", "billing", "3"),
    ]


def test_topic_show_has_the_share_of_each_node_and_the_channels(nsqd_factory: DaemonFactory) -> None:
    a, b = nsqd_factory(), nsqd_factory()
    for node, count in ((a, 3), (b, 4)):
        fill(node, "t", "c", count=count)
    post(b, "/topic/pause?topic=t")
    found = document("topic", "show", "t", *at(a, b))
    assert (found["topic_name"], found["message_count"], found["paused"]) == ("t", 7, True)
    assert [node["topic"]["message_count"] for node in found["nodes"]] == [3, 4]
    assert [channel["depth"] for channel in found["channels"]] == [7]
    table = words(gnsqadmin("topic", "show", "t", *at(a, b)))
    assert ["paused", "on", address(b)] in table
    assert [address(a), "0", "0", "0", "3"] in table
    assert [address(b), "0", "0", "0", "4", "paused"] in table
    assert ["c", "7", "7", "0", "0", "0", "0", "0", "7", "0"] in table
    shares = rows("topic", "show", "t", *at(a, b))
    assert [(row["node"], row["message_count"]) for row in shares] == [(address(a), "3"), (address(b), "4")]


def test_topic_show_has_what_is_kept_for_a_rewind(gnsqd_factory: DaemonFactory) -> None:
    limits = ("--retention-bytes=1000000", "--retention-time=1h")
    before = time.time()
    a, b, c = gnsqd_factory("--durability=process", *limits), gnsqd_factory("--durability=process"), gnsqd_factory()
    for node in (a, b, c):
        create(node, "t", "c")
        publish(node, "t", 3)
        post(node, "/channel/empty?topic=t&channel=c")
    [kept] = document("topic", "show", "t", *at(a, b, c))["kept"]
    assert before <= kept.pop("since") <= time.time()
    used = sum(path.stat().st_size for path in a.data_path.glob("t.journal.*"))
    assert kept == {"address": address(a), "bytes": 1000000, "time": 3600, "messages": 3, "used": used}
    table = words(gnsqadmin("topic", "show", "t", *at(a, b, c)))
    assert table[-1][:-1] == [address(a), "1.0", "MB", "1h", "0m", "3", f"{used}", "B"]
    post(b, "/topic/retention?topic=t&bytes=2000000")
    [_, second] = document("topic", "show", "t", *at(a, b))["kept"]
    assert second == {"address": address(b), "bytes": 2000000, "time": None, "messages": 0, "used": 0, "since": None}
    assert words(gnsqadmin("topic", "show", "t", *at(a, b)))[-1] == ["all", "3.0", "MB", "3", f"{used}", "B"]


def test_topic_show_has_no_retention_where_nothing_is_kept(nsqd: Daemon) -> None:
    create(nsqd, "t")
    assert document("topic", "show", "t", *at(nsqd))["kept"] == []
    assert "rewind" not in gnsqadmin("topic", "show", "t", *at(nsqd)).out


@pytest.mark.peer
def test_topic_show_says_which_nodes_consumers_do_not_find(cluster: Cluster) -> None:
    for node in cluster.nodes:
        create(node, "t")
    cluster.wait_for_topic("t")
    hidden = address(cluster.nodes[1])
    assert cluster.lookupd.ask("POST", f"/topic/tombstone?topic=t&node={hidden}")[0] == 200
    found = document("topic", "show", "t", cluster.flag)
    assert {node["address"]: node["found"] for node in found["nodes"]} == {
        address(cluster.nodes[0]): True,
        hidden: False,
    }
    assert f"nsqlookupd does not send consumers to {hidden}" in gnsqadmin("topic", "show", "t", cluster.flag).out


@pytest.mark.peer
def test_a_topic_that_only_nsqlookupd_knows_is_not_found_but_told(cluster: Cluster) -> None:
    assert cluster.lookupd.ask("POST", "/topic/create?topic=ghost")[0] == 200
    code, out, err = gnsqadmin("topic", "show", "ghost", cluster.flag)
    assert (code, out) == (4, "")
    assert err.startswith("Error: no node has the topic ghost, but nsqlookupd still lists it")


@pytest.mark.peer
def test_lookup_lists_topics_their_nodes_and_those_of_no_node(cluster: Cluster) -> None:
    for node in cluster.nodes:
        create(node, "t")
    cluster.wait_for_topic("t")
    shown, hidden = map(address, cluster.nodes)
    for path in (f"/topic/tombstone?topic=t&node={hidden}", "/channel/create?topic=ghost&channel=c"):
        assert cluster.lookupd.ask("POST", path)[0] == 200
    ghost = {"topic_name": "ghost", "nodes": [], "tombstoned": [], "channels": ["c"]}
    topic = {"topic_name": "t", "nodes": [shown], "tombstoned": [hidden], "channels": None}
    assert document("lookup", cluster.flag) == {"topics": [ghost, topic]}
    assert document("lookup", "--orphans", cluster.flag) == {"topics": [ghost]}
    table = words(gnsqadmin("lookup", cluster.flag))
    assert table[2:] == [["ghost", "0", "0", "no", "node,", "channels", "c"], ["t", "1", "1"]]
    error = f"Error: nsqlookupd at {DOWN}: connection refused\n"
    both = gnsqadmin("lookup", "--json", cluster.flag, *at_lookupd(DOWN))
    assert (both.code, both.err, json.loads(both.out)) == (1, error, {"topics": [ghost, topic]})
    assert gnsqadmin("lookup", *at_lookupd(DOWN)) == (1, "", error)


def test_lookup_wants_an_nsqlookupd() -> None:
    code, out, err = gnsqadmin("lookup")
    assert (code, out) == (2, "")
    assert "--lookupd-http-address" in err


def test_channel_show_has_its_consumers_and_the_share_of_each_node(nsqd_factory: DaemonFactory) -> None:
    a, b = nsqd_factory(), nsqd_factory()
    for node in (a, b):
        create(node, "t", "c")
    publish(a, "t", 6)
    with Client(a.tcp_address) as consumer:
        subscribe(consumer, "eater", "t", "c", 2)
        eventually(lambda: a.channel_stats("t", "c")["in_flight_count"] == 2)
        found = document("channel", "show", "t", "c", *at(a, b))
        table = words(gnsqadmin("channel", "show", "t", "c", *at(a, b)))
        clients = rows("channel", "show", "t", "c", *at(a, b))
    assert (found["topic_name"], found["channel_name"], found["depth"]) == ("t", "c", 4)
    assert [(client["node"], client["client_id"]) for client in found["clients"]] == [(address(a), "eater")]
    assert [node["channel"]["in_flight_count"] for node in found["nodes"]] == [2, 0]
    assert [address(a), "4", "4", "0", "2", "0", "0", "0", "6", "1"] in table
    assert ["1", "consumer"] in table
    assert any(row[:2] == ["eater", address(a)] and row[3:6] == ["2", "2", "0"] for row in table)
    assert [(row["client"], row["topic"], row["channel"]) for row in clients] == [("eater", "t", "c")]


@pytest.mark.parametrize("command", [["topic", "show", "x"], ["channel", "show", "x", "y"]])
def test_what_no_node_has_is_not_found(nsqd: Daemon, command: list[str]) -> None:
    code, out, err = gnsqadmin(*command, *at(nsqd))
    assert (code, out, err.count("\n")) == (4, "", 1)
    assert err.startswith("Error: no node has the ")
    code, out, err = gnsqadmin(*command, *at(nsqd), *at(DOWN))
    assert (code, out, err.count("\n")) == (1, "", 2)  # the one that is down may have it
    assert "no node that answered has the " in err


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ("stats --topic=oders", "the topic oders; did you mean orders?"),
        ("stats --topic=oders --json", "the topic oders; did you mean orders?"),
        ("stats --topic=quite", "the topic quite"),
        ("stats --topic=\udcff&topic=orders", r"the topic \udcff&topic=orders; did you mean orders?"),
        ("stats --topic=oders --watch=1", "the topic oders; did you mean orders?"),
        ("stats --topic=orders --channel=biling", "the channel biling in the topic orders; did you mean billing?"),
        ("stats --channel=biling", "the channel biling; did you mean billing?"),
        ("tree --channel=bill", "the channel bill; did you mean billing?"),
        ("counter --topic=oders", "the topic oders; did you mean orders?"),
        ("doctor --topic=oders --interval=0.1", "the topic oders; did you mean orders?"),
        ("topic show oders", "the topic oders; did you mean orders?"),
        ("topic pause oders", "the topic oders; did you mean orders?"),
        ("channel create oders c", "the topic oders; did you mean orders?"),
        ("channel show orders biling", "the channel biling in the topic orders; did you mean billing?"),
        ("channel delete oders billing", "the channel billing in the topic oders; did you mean orders?"),
        ("tail oders", "the topic oders; did you mean orders?"),
        ("save orders - --channel=biling", "the channel biling of orders; --create creates it; did you mean billing?"),
    ],
)
def test_the_nearest_name_is_suggested(nsqd: Daemon, words: str, what: str) -> None:
    create(nsqd, "orders", "billing", "archive")
    assert gnsqadmin(*words.split(), *at(nsqd)) == (4, "", f"Error: no node has {what}\n")


@pytest.mark.parametrize("name", ["", "a b", "x" * 65, "t$", "#ephemeral", "t#ephemera", "é", "a\n"])
def test_a_bad_name_is_a_usage_error(name: str) -> None:
    code, out, err = gnsqadmin("topic", "show", name)
    assert (code, out) == (2, "")
    assert "is not a valid topic name" in err


def test_latencies_are_shown_and_summed_up_as_the_worst() -> None:
    def node(value: int) -> bytes:
        latency = {"count": 10, "percentiles": [{"quantile": 0.5, "value": 1000}, {"quantile": 0.99, "value": value}]}
        zeros = dict.fromkeys(("depth", "backend_depth", "message_count", "message_bytes"), 0)
        topic = {"topic_name": "t", "channels": [], "paused": False, "e2e_processing_latency": latency, **zeros}
        stats = {"version": "1.3.0", "health": "OK", "start_time": 1, "topics": [topic]}
        retention = {"bytes": 0, "time": 0, "messages": 0, "since": None}  # of the same answer to another question
        return http_answer(json.dumps(stats | retention).encode())

    with FakeNode(node(12_300_000)) as slow, FakeNode(node(5)) as fast:
        nodes = at(slow, fast)
        table = words(gnsqadmin("topic", "show", "t", *nodes))
        found = document("topic", "show", "t", *nodes)
    assert ["latency", "50%", "1µs", "99%", "12.3ms", "(of", "20", "messages)"] in table
    assert found["e2e_processing_latency"]["percentiles"][1] == {"quantile": 0.99, "value": 12_300_000}


def test_counter_counts_what_topics_and_channels_took(nsqd_factory: DaemonFactory) -> None:
    a, b = nsqd_factory(), nsqd_factory()
    for node in (a, b):
        create(node, "t", "c", "d")
        publish(node, "t", 50)
        wait_for(node, "t", "c", depth=50)
        wait_for(node, "t", "d", depth=50)
    found = document("counter", *at(a, b))
    assert (found["published"], found["delivered"], found["ingress_rate"]) == (100, 200, None)
    assert words(gnsqadmin("counter", *at(a, b)))[2][1:] == ["100", "200"]
    [row] = rows("counter", *at(a, b))
    assert abs(datetime.fromisoformat(row["time"]).timestamp() - found["time"]) < DEADLINE
