"""`doctor` as a whole: what it looks at, how findings are shown; and `status`, which shows the worst."""

import re

from cli.fake_nsqd import FakeNsqd, channel, client, node, topic
from cli.findings import SHORT, brief, examined
from cli.gnsqadmin import document, gnsqadmin, ok, on_terminal, plain, rows
from cli.nodes import DOWN, address, at
from kit.daemons import Daemon
from kit.nsq_client import Client
from kit.traffic import DaemonFactory, create, post


def test_well_nodes_have_no_findings(nsqd_factory: DaemonFactory) -> None:
    a, b = nsqd_factory(), nsqd_factory()
    with Client(a.tcp_address) as one, Client(b.tcp_address) as two:
        for consumer in (one, two):
            consumer.subscribe("t", "c", rdy=5)
        assert examined(*at(a, b)) == []
        out = ok("doctor", SHORT, *at(a, b))
    assert re.fullmatch(r"No problems: 2 nodes, 1 topic, 1 channel, 2 consumers, watched for \d\.\d s\.\n", out)


def test_topic_and_channel_limit_what_is_judged(nsqd: Daemon) -> None:
    create(nsqd, "t", "c", "d")
    create(nsqd, "u", "c")
    assert brief(examined("--topic=t", *at(nsqd))) == [("note", "orphan-channel")] * 2
    found = examined("--topic=t", "--channel=d", *at(nsqd))
    assert [(one["topic"], one["channel"]) for one in found] == [("t", "d")]


def test_many_alike_are_cut_short_except_for_all_and_programs() -> None:
    with FakeNsqd(node(topic("t", *(channel(f"c{number}") for number in range(12))))) as nsqd:
        short, full = (ok("doctor", SHORT, nsqd.flag, *more) for more in ([], ["--all"]))
        table = rows("doctor", SHORT, nsqd.flag)
    assert (short.count("NOTE "), full.count("NOTE "), len(table)) == (5, 12, 12)
    assert "and 7 more of kind orphan-channel: --all shows them\n" in short
    assert short.splitlines()[-1].startswith("0 critical, 0 warnings, 12 notes: 1 node, 1 topic, 12 channels")
    assert (table[0]["severity"], table[0]["code"], table[0]["channel"]) == ("note", "orphan-channel", "c0")


def test_on_a_terminal_text_is_folded_between_words_and_commands_are_not() -> None:
    with FakeNsqd(node(topic("t", channel("c", client("x" * 60), depth=3)))) as nsqd:
        lines = on_terminal(60, "doctor", SHORT, nsqd.flag, NO_COLOR="1").out.splitlines()
    first = next(index for index, line in enumerate(lines) if "They are in backoff" in line)
    assert lines[first].startswith("        → They are")
    assert lines[first + 1].startswith("          ")
    assert all(len(line) <= 60 for line in lines[first : first + 3])
    assert f"            gnsqadmin channel show t c {nsqd.flag}" in lines


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
