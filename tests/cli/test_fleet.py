"""Commands for several nodes and channels at once: topologies, events, and choices of `stats`."""

import json
from pathlib import Path
from typing import Any

from cli.fake_nsqd import StatsNsqd, channel, client, node, topic
from cli.gnsqadmin import Terminal, ageless, document, failure, gnsqadmin, ok, rows, words
from cli.nodes import DOWN, address, at, fill
from kit.daemons import Instance
from kit.nsq_client import NSQClient
from kit.traffic import DaemonFactory, create, post


def differences(*args: str, code: int = 0) -> list[tuple[Any, ...]]:
    answer = document("topology", *args, code=code)["differences"]
    return [(one["topic"], one["channel"], one["node"], one["difference"]) for one in answer]


def test_a_topology_is_exported_compared_and_imported(nsqd_factory: DaemonFactory, tmp_path: Path) -> None:
    a, b = nsqd_factory(), nsqd_factory()
    create(a, "orders", "billing", "archive")
    create(a, "clicks#ephemeral")
    create(a, "quiet")
    post(a, "/channel/pause?topic=orders&channel=archive")
    post(a, "/topic/pause?topic=quiet")
    create(b, "orders", "archive", "extra")
    file = tmp_path / "topology.ndjson"
    file.write_text(ok("topology", "export", *at(a)))
    assert [tuple(json.loads(line).values()) for line in file.read_text().splitlines()] == [
        ("orders", None, False),
        ("orders", "archive", True),
        ("orders", "billing", False),
        ("quiet", None, True),
    ]
    changes = [
        ("orders", "archive", address(b), "unpaused"),
        ("orders", "billing", address(b), "missing"),
        ("quiet", None, address(b), "missing"),
    ]
    extra = ("orders", "extra", address(b), "extra")
    diff, load = ("diff", str(file)), ("import", str(file), "--yes")
    assert differences(*diff, *at(a)) == []
    assert differences(*load, "--dry-run", *at(a, b)) == changes
    assert differences(*diff, *at(a, b), code=1) == [*changes[:2], extra, changes[2]]
    assert differences(*load, *at(a, b)) == changes
    assert differences(*diff, *at(a, b), code=1) == [extra]
    assert differences(*load, *at(a, b)) == []


def test_a_difference_is_only_of_nodes_that_answered(nsqd: Instance, tmp_path: Path) -> None:
    create(nsqd, "t")
    file = tmp_path / "topology.ndjson"
    file.write_text(ok("topology", "export", *at(nsqd)))
    for command, none in (("diff", "No differences"), ("import", "Nothing to change")):
        assert ok("topology", command, str(file), *at(nsqd)) == f"{none}.\n"
        code, out, err = gnsqadmin("topology", command, str(file), *at(DOWN, nsqd))
        assert (code, out, err.count("\n")) == (1, f"{none} on the nodes that answered.\n", 1)
        assert gnsqadmin("topology", command, str(file), *at(DOWN)) == (1, "", err)


WRONG = {
    b'{"topic": "t"}\nnonsense': "line 2: 'nonsense': expected a JSON object with",
    b"[1]": "line 1: '[1]': expected a JSON object with",
    b'{"topic": "a b"}': "line 1: 'a b' is not a valid name",
    b'{"topic": "t", "channel": 7}': "line 1: 7 is not a valid name",
    b'{"topic": "t", "paused": "no"}': "line 1: \"paused\" is 'no', expected true or false",
    b"\xff": " is not UTF-8",
}


def test_a_wrong_topology_is_one_line_of_error_and_nothing_is_done(gnsqd: Instance, tmp_path: Path) -> None:
    file = tmp_path / "topology.ndjson"
    for text, reason in WRONG.items():
        file.write_bytes(text)
        for command in (["diff"], ["import", "--yes"]):
            error = failure("topology", *command, str(file), *at(gnsqd))
            assert str(file) in error
            assert reason in error
    assert gnsqd.stats()["topics"] == []


def events(*looks: Any) -> list[tuple[Any, ...]]:
    """Returns the events of a node with these statistics, one look after the other."""
    with StatsNsqd(*looks) as nsqd:
        out = ok("events", "--interval=0.01", f"--count={len(looks)}", "--json", nsqd.flag)
        lines = [json.loads(line) for line in out.splitlines()]
        assert all(one["node"] == nsqd.address for one in lines)
        return [(one["event"], one["topic"], one["channel"], one["detail"]) for one in lines]


def test_events_are_the_changes_between_two_looks() -> None:
    x, y = client("x"), client("y")
    assert events(
        node(topic("t", channel("c", x), channel("gone"))),
        node(topic("t", channel("c", x, y, paused=True)), topic("u", paused=True)),
        node(topic("t", channel("c", y)), topic("u")),
    ) == [
        ("paused", "t", "c", None),
        ("vanished", "t", "gone", None),
        ("created", "u", None, "paused"),
        ("connected", "t", "c", "y (y:1)"),
        ("unpaused", "t", "c", None),
        ("unpaused", "u", None, None),
        ("disconnected", "t", "c", "x (x:1)"),
    ]
    changes = events(node(), "garbage", node(), node(start_time=2))
    assert [(one[0], (one[3] or "")[:24]) for one in changes] == [
        ("failed", "answered JSON that is no"),
        ("answers", "nsqd 1.3.0"),
        ("restarted", "nsqd 1.3.0"),
    ]


def test_events_of_a_running_node_appear_on_a_terminal(nsqd: Instance) -> None:
    with Terminal(120, 24, "events", "--interval=0.1", *at(nsqd)) as terminal:
        terminal.wait_for("Watching 1 node.")
        with NSQClient(nsqd.tcp_address) as consumer:
            consumer.identify(client_id="worker", hostname="h")
            consumer.subscribe("orders", "billing")
            terminal.wait_for("created       orders/billing", "connected     orders/billing", "worker (127.0.0.1:")
        terminal.wait_for("disconnected  orders/billing")
        terminal.process.send_signal(2)
        assert terminal.end() == 130


def test_stats_have_the_columns_order_and_channels_that_are_asked_for(nsqd_factory: DaemonFactory) -> None:
    """Shows channels of which one is paused, one has no consumer, and one has one at RDY 0."""
    nodes = [nsqd_factory(), nsqd_factory()]
    fill(nodes[0], "orders", "billing", "archive", "well", count=3)
    create(nodes[1], "orders", "well")
    for action in ("pause", "empty"):
        post(nodes[0], f"/channel/{action}?topic=orders&channel=archive")
    with NSQClient(nodes[0].tcp_address) as consumer:
        consumer.subscribe("orders", "well")
        a, b = map(address, nodes)
        several = at(*nodes)
        compact = ageless("stats", *several)
        heading = [word for word in compact[3] if word != "oldest"]  # only of gnsqd
        assert heading == ["topic", "/", "channel", "node", "depth", "in", "flight", "messages", "clients"]
        assert ["billing", a, "3", "0", "3", "0"] in compact
        assert ["well", "2", "nodes", "3", "0", "3", "1"] in compact
        shares = [line[1:] for line in words("stats", "--nodes", *several) if line[:1] == [b]]
        assert shares[1:] == [["0", "0"], ["0", "0", "0", "0"]]
        chosen = words("stats", "--sort=depth", "--columns=topic,channel,depth", *several)
        assert [line[-2:] for line in chosen] == [
            ["channel", "depth"], chosen[1], ["billing", "3"], ["well", "3"], ["archive", "0"]
        ]  # fmt: skip
        assert ok("stats", "--columns=all", *several).count("topic / channel") == 1  # the tree
        first = rows("stats", "--by=channel", "--columns=depth,channel", *several)[0]
        assert [*first.items()] == [("depth", "0"), ("channel", "archive")]
        troubled = rows("stats", "--trouble", "--columns=channel,trouble", *several)
        assert [[*row.values()] for row in troubled] == [["billing", "no-consumers"], ["well", "rdy-zero"]]
        assert ok("stats", "--trouble", several[1]) == "No topic or channel is in trouble.\n"
