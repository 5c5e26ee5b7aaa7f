"""`doctor` as a whole: what it looks at, how its findings are shown and how it ends."""

import csv
import io
import re
import shlex
import signal
import subprocess

from cli.fake_nsqd import FakeNsqd, channel, client, node, topic
from cli.findings import SHORT, commands, examined
from cli.gnsqadmin import COMMAND, Result, environment, gnsqadmin, on_terminal
from cli.nodes import at, create
from conftest import DaemonFactory
from kit.daemons import Daemon, eventually
from kit.nsq_client import Client


def test_well_nodes_have_no_findings(nsqd_factory: DaemonFactory) -> None:
    a, b = nsqd_factory(), nsqd_factory()
    for daemon in (a, b):
        create(daemon, "t", "c")
    with Client(a.tcp_address) as one, Client(b.tcp_address) as two:
        for consumer in (one, two):
            consumer.subscribe("t", "c", rdy=5)
        assert examined(*at(a, b), code=0) == []
        code, out, err = gnsqadmin("doctor", SHORT, *at(a, b))
    assert (code, err) == (0, "")
    assert re.fullmatch(r"No problems: 2 nodes, 1 topic, 1 channel, 2 consumers, watched for \d\.\d s\.\n", out)


def test_topic_and_channel_limit_what_is_judged(nsqd: Daemon) -> None:
    create(nsqd, "t", "c", "d")
    create(nsqd, "u", "c")
    assert [one["channel"] for one in examined("--topic=t", *at(nsqd), code=0)] == ["c", "d"]
    found = examined("--topic=t", "--channel=d", *at(nsqd), code=0)
    assert [(one["topic"], one["channel"]) for one in found] == [("t", "d")]
    for args, what in ((["--topic=x"], "topic x"), (["--topic=t", "--channel=x"], "channel x in the topic t")):
        assert gnsqadmin("doctor", SHORT, *args, *at(nsqd)) == (4, "", f"Error: no node has the {what}\n")


def test_many_alike_are_cut_short_but_for_all_and_programs() -> None:
    many = node(topic("t", *(channel(f"c{number}") for number in range(12))))
    with FakeNsqd(many) as nsqd:
        short = gnsqadmin("doctor", SHORT, nsqd.flag)
        full = gnsqadmin("doctor", SHORT, nsqd.flag, "--all")
        rows = gnsqadmin("doctor", SHORT, nsqd.flag, "-o", "csv")
    assert short.out.count("NOTE ") == 5
    assert "and 7 more of kind orphan-channel: --all shows them\n" in short.out
    assert short.out.splitlines()[-1].startswith("0 critical, 0 warnings, 12 notes: 1 node, 1 topic, 12 channels")
    assert full.out.count("NOTE ") == 12
    table = list(csv.DictReader(io.StringIO(rows.out)))
    assert len(table) == 12
    assert (table[0]["severity"], table[0]["code"], table[0]["channel"]) == ("note", "orphan-channel", "c0")


HOSTILE = "\x1b[31m日本[bold]\n$(reboot)"


def test_hostile_names_are_shown_harmlessly_and_quoted_in_commands() -> None:
    bad = node(topic(HOSTILE, channel(f"-{HOSTILE}", client(HOSTILE), depth=3), depth=0))
    with FakeNsqd(bad) as nsqd:
        found = examined(nsqd.flag)
        shown: Result = on_terminal(80, "doctor", SHORT, nsqd.flag, NO_COLOR="1")
    words = shlex.split(commands(found[0])[0])
    assert words[-3:] == ["--", HOSTILE, f"-{HOSTILE}"]
    drawn = re.sub(r"\x1b\[\??[0-9;]*[A-Za-z]", "", shown.out)  # of the countdown
    assert "\x1b" not in drawn
    assert r"\x1b[31m日本[bold]\n$(reboot)" in drawn


def test_on_a_terminal_text_is_folded_between_words_and_commands_are_not() -> None:
    with FakeNsqd(node(topic("t", channel("c", client("x" * 60), depth=3)))) as nsqd:
        out = on_terminal(60, "doctor", SHORT, nsqd.flag, NO_COLOR="1").out
    lines = out.splitlines()
    start = next(index for index, line in enumerate(lines) if "They are in backoff" in line)
    assert lines[start].startswith("        → They are")
    assert lines[start + 1].startswith("          ")
    assert all(len(line) <= 60 for line in lines[start : start + 3])
    assert f"            gnsqadmin channel show t c {nsqd.flag}" in lines


def test_ctrl_c_ends_it_without_a_word() -> None:
    with FakeNsqd(node()) as nsqd:
        process = subprocess.Popen(
            [*COMMAND, "doctor", "--interval=60", nsqd.flag],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(),
        )
        eventually(lambda: len(nsqd.queries("/drain")) == 1, "the first look")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err.strip()) == (130, b"", b"")
