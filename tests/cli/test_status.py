"""The state in ten lines: `gnsqadmin status`, and what `gnsqadmin` alone shows on a terminal."""

import re

from cli.fake_nsqd import FakeNsqd, channel, client, node, topic
from cli.gnsqadmin import document, gnsqadmin, on_terminal, plain
from cli.nodes import DOWN, address, at
from kit.daemons import Daemon
from kit.traffic import create, post


def test_alone_on_a_terminal_it_shows_nodes_deepest_channels_and_worst_findings() -> None:
    names = [channel(f"c{depth}", depth=depth) for depth in (7, 9, 8, 6)]
    with FakeNsqd(node(topic("t", *names, channel("d", client("x"))))) as nsqd:
        variables = {"NO_COLOR": "1", "GNSQADMIN_NSQD_HTTP_ADDRESS": nsqd.flag.partition("=")[2]}
        code, out, _ = on_terminal(100, **variables)
    shown = plain(out)[plain(out).index("nodes ") :].splitlines()
    assert code == 0
    assert shown[:4] == [
        "nodes      1 of 1 answer",
        "queues     1 topic, 5 channels, 1 consumer",
        "messages   30 queued, 0 in flight, 0/s published, 0/s finished",
        "",
    ]
    assert [line.split()[:5] for line in shown[6:9]] == [
        [f"c{depth}", "t", "0", "0", str(depth)] for depth in (9, 8, 7)
    ]
    assert [line for line in shown if line.startswith("WARNING")] == [
        f"WARNING   channel t/c{depth}: {depth} messages and no consumer" for depth in (6, 7, 8)
    ]
    assert shown[-2].startswith("→ gnsqadmin doctor shows 1 more finding and remedies, ")
    assert len(shown) < 16


def test_alone_elsewhere_it_is_the_help() -> None:
    code, out, err = gnsqadmin()
    assert (code, out) == (2, "")
    assert err.startswith("Usage: gnsqadmin ")
    assert "Diagnose:\n" in err


def test_it_fails_only_if_no_node_answers(nsqd: Daemon) -> None:
    create(nsqd, "t", "c")
    post(nsqd, "/pub?topic=t", b"hello")
    found = document("status", *at(nsqd, DOWN))
    assert (found["nodes"], found["nodes_up"], found["totals"]["depth"]) == (2, 1, 1)
    assert [one["code"] for one in found["findings"] if one["node"]] == ["unreachable"]
    code, out, _ = gnsqadmin("status", *at(DOWN))
    assert code == 1
    assert re.search(rf"^CRITICAL +.*{re.escape(address(DOWN))}", out, re.MULTILINE)
