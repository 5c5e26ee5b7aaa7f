"""`gnsqadmin channel rules`: what is shown, the plan, the confirmation, and nodes that cannot do it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cli.gnsqadmin import gnsqadmin
from cli.nodes import address, at, create
from conftest import DaemonFactory
from kit.daemons import Daemon
from kit.http_api import ask

RULES = ("channel", "rules", "t", "c")
NONE = {"rate": 0, "burst": 0, "ordered": False}


@pytest.fixture
def node(gnsqd: Daemon) -> Daemon:
    create(gnsqd, "t", "c")
    return gnsqd


def found(node: Daemon) -> Any:
    return json.loads(ask(node, "GET /channel/rules?topic=t&channel=c")[1])


def test_rules_are_changed_one_by_one(node: Daemon) -> None:
    changed = gnsqadmin(*RULES, "--rate=10", "--burst=3", "--yes", "--json", *at(node))
    assert (changed.code, changed.err) == (0, "")
    row = {"address": address(node), "rate": 10, "burst": 3, "ordered": False, "error": None}
    assert json.loads(changed.out) == {"topic": "t", "channel": "c", "dry_run": False, "nodes": [row]}
    assert gnsqadmin(*RULES, "--ordered", "--yes", *at(node)).out.split()[-1] == "changed"
    assert found(node) == {"rate": 10, "burst": 3, "ordered": True}
    assert json.loads(gnsqadmin(*RULES, "--json", *at(node)).out)["nodes"] == [row | {"ordered": True}]
    assert gnsqadmin(*RULES, "--rate=0", "--no-ordered", "--yes", *at(node)).code == 0
    assert found(node) == NONE


def test_nothing_is_done_without_confirmation(node: Daemon) -> None:
    result = gnsqadmin(*RULES, "--rate=10", "--ordered", *at(node))
    assert (result.code, result.out) == (5, "")
    assert result.err.startswith("Error: The channel c in the topic t gets rate 10.0, ordered true. Nothing was done")
    plan = gnsqadmin(*RULES, "--rate=10", "--dry-run", *at(node))
    assert (plan.code, plan.out.splitlines()[-1]) == (0, "Nothing was done.")
    assert found(node) == NONE


@pytest.mark.parametrize(
    "arguments, code, error",
    [
        (("t", "nosuch"), 4, "no node has the channel nosuch in the topic t"),
        (("nosuch", "c"), 4, "no node has the channel c in the topic nosuch"),
        (("t", "c", "--rate=-1"), 2, "--rate: -1.0 is not valid"),
        (("t", "c", "--burst=5"), 2, "--burst: 5 is not valid"),
        (("t", "c", "--rate=fast"), 2, "'fast' is not a valid float"),
    ],
)
def test_errors(node: Daemon, arguments: tuple[str, ...], code: int, error: str) -> None:
    result = gnsqadmin("channel", "rules", *arguments, "--yes", *at(node))
    assert (result.code, result.out) == (code, "")
    assert error in result.err


@pytest.mark.peer
def test_nsqd_cannot_do_it(node: Daemon, peer_binary: Callable[[str], Path], tmp_path: Path) -> None:
    with Daemon([str(peer_binary("nsqd"))], tmp_path / "nsqd") as nsqd:
        create(nsqd, "t", "c")
        result = gnsqadmin(*RULES, "--rate=5", "--yes", *at(node, nsqd))
        assert result.code == 1
        assert result.err.endswith(": has no delivery rules: it is not gnsqd, or older\n")
    assert found(node)["rate"] == 5


def test_nodes_without_the_channel_are_left_out(node: Daemon, gnsqd_factory: DaemonFactory) -> None:
    other = gnsqd_factory()
    result = gnsqadmin(*RULES, "--rate=5", "--yes", *at(other, node))
    assert (result.code, address(other) in result.out) == (0, False)
    assert found(node)["rate"] == 5
