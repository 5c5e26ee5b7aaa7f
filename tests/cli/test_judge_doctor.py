"""`doctor` as a whole: what it looks at, how its findings are shown and how it ends."""

import re
import shlex

from cli.fake_nsqd import FakeNsqd, channel, client, node, topic
from cli.findings import SHORT, brief, commands, examined
from cli.gnsqadmin import ctrl_c, ok, on_terminal, plain, rows, start
from cli.nodes import at
from kit.daemons import Daemon, eventually
from kit.nsq_client import Client
from kit.traffic import DaemonFactory, create


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


HOSTILE = "\x1b[31m日本[bold]\n$(reboot)"


def test_hostile_names_are_shown_harmlessly_and_quoted_in_commands() -> None:
    with FakeNsqd(node(topic(HOSTILE, channel(f"-{HOSTILE}", client(HOSTILE), depth=3)))) as nsqd:
        found = examined(nsqd.flag)
        drawn = plain(on_terminal(80, "doctor", SHORT, nsqd.flag, NO_COLOR="1").out)  # without its countdown's codes
    assert shlex.split(commands(found[0])[0])[-3:] == ["--", HOSTILE, f"-{HOSTILE}"]
    assert "\x1b" not in drawn
    assert r"\x1b[31m日本[bold]\n$(reboot)" in drawn


def test_on_a_terminal_text_is_folded_between_words_and_commands_are_not() -> None:
    with FakeNsqd(node(topic("t", channel("c", client("x" * 60), depth=3)))) as nsqd:
        lines = on_terminal(60, "doctor", SHORT, nsqd.flag, NO_COLOR="1").out.splitlines()
    first = next(index for index, line in enumerate(lines) if "They are in backoff" in line)
    assert lines[first].startswith("        → They are")
    assert lines[first + 1].startswith("          ")
    assert all(len(line) <= 60 for line in lines[first : first + 3])
    assert f"            gnsqadmin channel show t c {nsqd.flag}" in lines


def test_ctrl_c_ends_it_without_a_word() -> None:
    with FakeNsqd(node()) as nsqd, start("doctor", "--interval=60", nsqd.flag) as process:
        eventually(lambda: len(nsqd.queries("/drain")) == 1, "the first look")
        code, out, err = ctrl_c(process)
    assert (code, out, err.strip()) == (130, "", "")
