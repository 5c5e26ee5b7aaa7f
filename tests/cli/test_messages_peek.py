"""`gnsqadmin peek`: queued messages are shown and stay, from running nodes and from their files."""

import json
from datetime import datetime
from pathlib import Path

import pytest

from cli.gnsqadmin import FakeNode, gnsqadmin, http_answer, on_terminal
from cli.nodes import address, at
from conftest import DaemonFactory
from kit.daemons import Daemon
from kit.traffic import create, post, wait_for
from nsqadmin_cli.message import pretty_lines


def fill(nsqd: Daemon, *bodies: bytes) -> None:
    create(nsqd, "t", "c")
    for body in bodies:
        post(nsqd, "/pub?topic=t", body)
    wait_for(nsqd, "t", "c", depth=len(bodies))


def nanoseconds(iso_time: str) -> int:
    """Nanoseconds since 1970; `datetime` alone drops what is below a microsecond."""
    second, _, fraction = iso_time.removesuffix("Z").partition(".")
    return round(datetime.fromisoformat(f"{second}Z").timestamp()) * 10**9 + int(fraction.ljust(9, "0"))


def test_messages_are_shown_and_stay(gnsqd: Daemon) -> None:
    fill(gnsqd, b"first", b"\x1b[31m\xff", b"third")
    out = ok("peek", "t", "c", "-n", "2", *at(gnsqd))
    first, *rows = out.splitlines()
    assert first == f"t c at {address(gnsqd)}: 3 messages queued, 2 shown"
    assert rows[1::2] == ["  first", r"  \x1b[31m\xff"]
    assert " ago  in memory  " in rows[0]
    assert rows[0].endswith("  5 B")
    assert gnsqd.channel_stats("t", "c")["depth"] == 3


def test_json_tells_of_all_nodes(gnsqd_factory: DaemonFactory) -> None:
    nodes = [gnsqd_factory("--mem-queue-size=1"), gnsqd_factory(), gnsqd_factory()]
    fill(nodes[0], b"a", b"\xff")
    fill(nodes[1])
    result = gnsqadmin("peek", "t", "c", "--json", *at(*nodes))
    assert (result.code, result.err) == (0, "")
    document = json.loads(result.out)
    assert document["nodes"] == [
        {"address": address(nodes[0]), "error": None, "depth": 2, "backend_depth": 1},
        {"address": address(nodes[1]), "error": None, "depth": 0, "backend_depth": 0},
    ]
    shown = [(one["body"], one["body_base64"], one["on_disk"], one["size"]) for one in document["messages"]]
    assert shown == [("a", None, False, 1), (None, "/w==", True, 1)]
    csv = gnsqadmin("peek", "t", "c", "-o", "csv", *at(*nodes)).out.splitlines()
    assert [line.rpartition(",")[2] for line in csv] == ["body", "a", r"\xff"]
    times = [nanoseconds(line.partition(",")[0]) for line in csv[1:]]
    assert times == [one["timestamp"] for one in document["messages"]]


def test_a_topic_without_channels_is_shown(gnsqd: Daemon) -> None:
    post(gnsqd, "/pub?topic=t", b"waits")
    assert "waits\n" in gnsqadmin("peek", "t", *at(gnsqd)).out
    create(gnsqd, "empty")
    assert gnsqadmin("peek", "empty", *at(gnsqd)) == (0, f"empty at {address(gnsqd)}: no messages\n", "")
    assert gnsqadmin("peek", "t", "c", *at(gnsqd)) == (4, "", "Error: no node has the channel c in the topic t\n")
    assert gnsqadmin("peek", "u", *at(gnsqd)) == (4, "", "Error: no node has the topic u\n")


def test_a_long_body_says_that_it_is_only_the_beginning(gnsqd: Daemon) -> None:
    fill(gnsqd, b"x" * 100_000)
    out = gnsqadmin("peek", "t", "c", *at(gnsqd)).out
    assert "  the beginning of 100 kB  " in out
    assert len(out) < 3000


@pytest.mark.peer
def test_the_real_nsqd_says_how_it_can_be_looked_at(nsqd_factory: DaemonFactory, gnsqd: Daemon) -> None:
    other = nsqd_factory()
    for node in (other, gnsqd):
        fill(node, b"x")
    code, out, err = gnsqadmin("peek", "t", "c", *at(other, gnsqd))
    if "gnsqd" in " ".join(other.command):
        assert (code, err) == (0, "")
        return
    reason = "only gnsqd supports peek; for messages that nsqd has on disk, use gnsqadmin peek --data-path"
    assert (code, err) == (1, f"Error: nsqd at {address(other)}: {reason}\n")
    assert f"t c at {address(gnsqd)}: 1 message queued\n" in out


def test_files_are_shown_while_the_daemon_runs_and_after_it(nsqd_factory: DaemonFactory) -> None:
    nsqd = nsqd_factory("--mem-queue-size=0", "--max-bytes-per-file=100", "--sync-every=1")
    fill(nsqd, "t", "c", count=9)
    for step in ("running", "ended"):
        result = gnsqadmin("peek", "t", "c", "--data-path", str(nsqd.data_path), "--json")
        assert (result.code, result.err) == (0, ""), step
        document = json.loads(result.out)
        assert sorted(one["body"] for one in document["messages"]) == [str(number) for number in range(9)]
        assert document["nodes"][0]["depth"] == 9
        if nsqd.running:
            nsqd.terminate()
    one = gnsqadmin("peek", "t", "c", "-n1", "--hex", "--data-path", str(nsqd.data_path))
    assert "00000000  3" in one.out
    missing = gnsqadmin("peek", "t", "x", "--data-path", str(nsqd.data_path))
    assert missing == (4, "", f"Error: {nsqd.data_path} does not have the channel x of t\n")


def test_json_is_indented_and_not_changed(gnsqd: Daemon) -> None:
    create(gnsqd, "t", "c")
    post(gnsqd, "/pub?topic=t", b'{"price": 1.10, "tags": [], "of": {"a, b": [1, "\\"{"]}}')
    wait_for(gnsqd, "t", "c", depth=1)
    result = gnsqadmin("peek", "t", "c", *at(gnsqd))
    assert result.out.splitlines()[-10:] == [
        "  {",
        '    "price": 1.10,',
        '    "tags": [],',
        '    "of": {',
        '      "a, b": [',
        "        1,",
        '        "\\"{"',
        "      ]",
        "    }",
        "  }",
    ]
    for text in ("plain", "12", "{]", "[1"):
        assert pretty_lines(text) == [text]


def test_a_directory_that_is_none_is_told(tmp_path: Path) -> None:
    err = failure("peek", "t", "c", "--data-path", str(tmp_path))
    assert f"{tmp_path} is not a data directory" in err


@pytest.mark.parametrize(
    "answer",
    [
        {"depth": 1},
        {"depth": 1, "backend_depth": 0, "messages": [{"id": 1}]},
        {"depth": 1, "backend_depth": 0, "messages": [5]},
        {"depth": 1, "backend_depth": 0, "messages": [{"id": "\ud800", "timestamp": 1, "attempts": 1, "body": 5}]},
        [],
    ],
)
def test_a_lying_node_is_one_line_of_error(answer: object) -> None:
    with FakeNode(http_answer(json.dumps(answer).encode())) as node:
        code, out, err = gnsqadmin("peek", "t", "c", *at(node))
    assert (code, out) == (1, "")
    assert err == f"Error: nsqd at {node.address}: answered JSON that is not an nsqd's: it is not a list of messages\n"


def test_hostile_messages_are_shown_harmlessly() -> None:
    row = {"timestamp": 10**30, "attempts": 10**30, "on_disk": True, "size": 10**30, "id": "\x1b[31m\ud800"}
    answer = {"depth": 10**30, "backend_depth": 0, "messages": [row | {"body": "\x1b]0;x\x07宽", "body_base64": None}]}
    with FakeNode(http_answer(json.dumps(answer).encode())) as node:
        for form in ([], ["--json"], ["-o", "csv"], ["--hex"]):
            result = gnsqadmin("peek", "t", "c", *at(node), *form)
            assert (result.code, result.err) == (0, ""), form
            assert "\x1b" not in result.out
        assert "\x1b]" not in on_terminal(80, "peek", "t", "c", *at(node)).out
