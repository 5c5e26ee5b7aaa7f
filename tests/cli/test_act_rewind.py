"""`gnsqadmin channel rewind`: the plan, what is rewound, and nodes that keep nothing."""

import json
import time

import pytest

from cli.gnsqadmin import document, gnsqadmin, ok
from cli.nodes import address, at, fill
from kit.daemons import Daemon
from kit.http_api import ask
from kit.traffic import DaemonFactory, post

RETAINING = ("--durability=process", "--retention-bytes=1000000")
REWIND = ("channel", "rewind", "t", "c", "--to")


@pytest.fixture
def node(gnsqd_factory: DaemonFactory) -> Daemon:
    """With three messages that are finished."""
    return finished(gnsqd_factory(*RETAINING))


def finished(node: Daemon) -> Daemon:
    fill(node, "t", "c", count=3)
    post(node, "/channel/empty?topic=t&channel=c")
    return node


def depth(node: Daemon) -> int:
    return int(node.channel_stats("t", "c")["depth"])


def test_dry_run_shows_the_plan_and_yes_does_it(node: Daemon) -> None:
    before = time.time()
    plan = document(*REWIND, "-1h", "--dry-run", *at(node))
    (row,) = plan.pop("nodes")
    assert plan == {"topic": "t", "channel": "c", "dry_run": True, "messages": 3}
    assert before - 60 < row.pop("first") <= row.pop("last") < before
    counts = {"messages": 3, "in_flight": 0, "depth": 0, "deferred": 0}
    assert row == {"address": address(node), "error": None} | counts
    ok(*REWIND, "first", "--until=-1h", "--yes", *at(node))
    assert depth(node) == 0
    assert ok(*REWIND, "-1h", "--yes", *at(node)).split()[-1] == "rewound"
    assert depth(node) == 3


def test_a_message_is_on_one_node_only(node: Daemon, gnsqd_factory: DaemonFactory) -> None:
    other = finished(gnsqd_factory(*RETAINING))
    post(node, "/channel/rewind?topic=t&channel=c&to=first")
    last = json.loads(ask(node, "GET /channel/peek?topic=t&channel=c")[1])["messages"][-1]["id"]
    post(node, "/channel/empty?topic=t&channel=c")
    assert address(other) not in ok(*REWIND, last, "--yes", *at(other, node))
    assert (depth(node), depth(other)) == (1, 0)


def test_nodes_that_keep_nothing_are_reported(node: Daemon, gnsqd_factory: DaemonFactory) -> None:
    others = [finished(gnsqd_factory(*flags)) for flags in ((), ("--durability=process",))]
    result = gnsqadmin(*REWIND, "first", "--yes", *at(node, *others))
    assert (result.code, depth(node)) == (1, 3)
    assert [line.partition(": ")[2].partition(": ")[2] for line in result.err.splitlines()] == [
        "keeps no finished messages: that needs --durability and --retention-bytes",
        "keeps no finished messages: that needs --retention-bytes",
    ]
