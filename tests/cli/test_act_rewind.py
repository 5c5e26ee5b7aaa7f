"""`gnsqadmin channel rewind`: the plan, the confirmation, and nodes that cannot do it."""

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.gnsqadmin import gnsqadmin
from cli.nodes import address, at, create, publish
from conftest import DaemonFactory
from kit.daemons import Daemon
from kit.http_api import ask

RETAINING = ("--durability=process", "--retention-bytes=1000000")
REWIND = ("channel", "rewind", "t", "c", "--to")


@pytest.fixture
def node(gnsqd_factory: DaemonFactory) -> Daemon:
    """With three messages that are finished."""
    return finished(gnsqd_factory(*RETAINING))


def finished(node: Daemon) -> Daemon:
    create(node, "t", "c")
    publish(node, "t", 3)
    assert ask(node, "POST /channel/empty?topic=t&channel=c")[0] == 200
    return node


def depth(node: Daemon) -> int:
    return int(node.channel_stats("t", "c")["depth"])


def test_dry_run_shows_the_plan_and_yes_does_it(node: Daemon) -> None:
    before = time.time()
    plan = gnsqadmin(*REWIND, "-1h", "--dry-run", "--json", *at(node))
    assert (plan.code, plan.err, depth(node)) == (0, "", 0)
    document = json.loads(plan.out)
    (row,) = document.pop("nodes")
    assert document == {"topic": "t", "channel": "c", "dry_run": True, "messages": 3}
    assert before - 60 < row.pop("first") <= row.pop("last") < before
    counts = {"messages": 3, "in_flight": 0, "depth": 0, "deferred": 0}
    assert row == {"address": address(node), "error": None} | counts
    done = gnsqadmin(*REWIND, "-1h", "--yes", *at(node))
    assert (done.code, done.err, depth(node)) == (0, "", 3)
    assert done.out.split()[-1] == "rewound"


def test_nothing_is_done_without_confirmation(node: Daemon) -> None:
    result = gnsqadmin(*REWIND, "first", *at(node))
    assert (result.code, result.out, depth(node)) == (5, "", 0)
    assert result.err.startswith("Error: 3 messages will be delivered again to the channel c in the topic t. Nothing")


def test_until_ends_it(node: Daemon) -> None:
    assert gnsqadmin(*REWIND, "first", "--until=-1h", "--yes", *at(node)).code == 0
    assert depth(node) == 0


def test_a_message_is_on_one_node_only(node: Daemon, gnsqd_factory: DaemonFactory) -> None:
    other = finished(gnsqd_factory(*RETAINING))
    assert ask(node, "POST /channel/rewind?topic=t&channel=c&to=first")[0] == 200
    status, peeked = ask(node, "GET /channel/peek?topic=t&channel=c")
    assert status == 200
    last = json.loads(peeked)["messages"][-1]["id"]
    assert ask(node, "POST /channel/empty?topic=t&channel=c")[0] == 200
    result = gnsqadmin(*REWIND, last, "--yes", *at(other, node))
    assert (result.code, result.err) == (0, "")
    assert (depth(node), depth(other)) == (1, 0)
    assert address(other) not in result.out


@pytest.mark.parametrize(
    "arguments, code, error",
    [
        (("t", "nosuch", "--to=first"), 4, "no node has the channel nosuch in the topic t"),
        (("nosuch", "c", "--to=first"), 4, "no node has the channel c in the topic nosuch"),
        (("t", "c", "--to=0000000000000000"), 4, "no node has the message 0000000000000000"),
        (("t", "c", "--to=soon"), 2, "--to: 'soon' is not a time ago (-15m)"),
        (("t", "c", "--to=first", "--until=5"), 2, "--until: '5' is not a time ago (-15m)"),
        (("t", "c", "--to=-1d", "--until=-2d"), 2, "--until: -2d is before --to."),
    ],
)
def test_errors(node: Daemon, arguments: tuple[str, ...], code: int, error: str) -> None:
    result = gnsqadmin("channel", "rewind", *arguments, "--yes", *at(node))
    assert (result.code, result.out, depth(node)) == (code, "", 0)
    assert error in result.err


def test_nodes_that_keep_nothing_are_reported(node: Daemon, gnsqd_factory: DaemonFactory) -> None:
    others = [finished(gnsqd_factory(*flags)) for flags in ((), ("--durability=process",))]
    result = gnsqadmin(*REWIND, "first", "--yes", *at(node, *others))
    assert (result.code, depth(node)) == (1, 3)
    assert [line.partition(": ")[2].partition(": ")[2] for line in result.err.splitlines()] == [
        "keeps no finished messages: that needs --durability and --retention-bytes",
        "keeps no finished messages: that needs --retention-bytes",
    ]


@pytest.mark.peer
def test_nsqd_cannot_do_it(node: Daemon, peer_binary: Callable[[str], Path], tmp_path: Path) -> None:
    with Daemon([str(peer_binary("nsqd"))], tmp_path / "nsqd") as nsqd:
        result = gnsqadmin(*REWIND, "first", "--yes", *at(node, finished(nsqd)))
        assert (result.code, depth(node)) == (1, 3)
        assert result.err.endswith(": cannot rewind channels: it is not gnsqd, or an older one\n")
