"""`gnsqadmin drain`: nodes that refuse publishers, are emptied by consumers, and exit."""

import json
import subprocess
from typing import Any

import pytest

from cli.gnsqadmin import FakeNode, Terminal, ctrl_c, document, end, failure, gnsqadmin, http_answer, start, words
from cli.nodes import address, at, fill
from kit.daemons import Instance, eventually
from kit.http_api import ask
from kit.nsq_client import NSQClient
from kit.traffic import DaemonFactory

LONG = "--drain-timeout=1h"


@pytest.fixture
def holding(gnsqd_factory: DaemonFactory) -> Instance:
    """Starts a node that drains for up to an hour, with two messages for a channel without a consumer."""
    node = gnsqd_factory(LONG)
    fill(node, "t", "c", count=2)
    return node


def is_draining(nsqd: Instance) -> bool:
    return bool(json.loads(ask(nsqd, "GET /drain")[1])["draining"])


def test_start_status_and_cancel_show_how_far_it_is(gnsqd_factory: DaemonFactory) -> None:
    gnsqd = gnsqd_factory(LONG)
    fill(gnsqd, "t", "c", count=1200)
    [before] = document("drain", "status", *at(gnsqd))["nodes"]
    holding = {"messages": 1200, "holding": [{"topic": "t", "channel": "c", "messages": 1200, "remark": "no consumer"}]}
    where = {"address": address(gnsqd), "error": None, "end": None}
    assert before == where | holding | {"draining": False, "remaining": 0}
    [started] = document("drain", "start", "--yes", *at(gnsqd))["nodes"]
    assert 3000e9 < started.pop("remaining") <= 3600e9
    assert started == where | holding | {"draining": True}
    assert is_draining(gnsqd)
    assert words("drain", "status", *at(gnsqd))[2][-6:] == ["1,200", "draining", "t:c", "1,200", "(no", "consumer)"]
    assert document("drain", "cancel", *at(gnsqd))["nodes"][0]["draining"] is False
    assert not is_draining(gnsqd)
    assert failure("drain", "watch", *at(gnsqd)) == "no node is draining"


def test_watch_ends_when_the_nodes_are_empty_and_have_exited(holding: Instance, gnsqd_factory: DaemonFactory) -> None:
    empty = gnsqd_factory(LONG)
    with Terminal(120, 40, "drain", "start", "--watch", *at(holding, empty)) as terminal:
        terminal.wait_for("Drain them? [y/N]")
        terminal.type("y\r")
        terminal.wait_for("draining 2 nodes", "/ 2 messages")
        with NSQClient(holding.tcp_address) as consumer:
            consumer.subscribe("t", "c", rdy=2)
            for _ in range(2):
                consumer.command(b"FIN " + consumer.message().id)
            consumer.recv_until_closed()
        table = terminal.wait_for(f"{address(holding)} ", "exited", f"{address(empty)} ", "held by")
        assert "timed out" not in table
        assert terminal.end() == 0
    assert (holding.wait(), empty.wait()) == (0, 0)


def test_watch_fails_when_the_time_was_up(gnsqd_factory: DaemonFactory) -> None:
    gnsqd = gnsqd_factory("--drain-timeout=1s")
    fill(gnsqd, "t", "c", count=3)
    code, out, err = gnsqadmin("drain", "start", "--yes", "--watch", "--json", *at(gnsqd))
    left = "exited because its time was up; about 3 messages were left"
    assert (code, err) == (1, f"Error: nsqd at {address(gnsqd)}: {left}\n")
    [node] = json.loads(out)["nodes"]
    assert (node["end"], node["messages"]) == ("timed out", 3)
    assert gnsqd.wait() == 0


def watching(nsqd: Instance) -> "subprocess.Popen[bytes]":
    """Starts a run of `drain watch`, and waits until it has looked more than once."""
    document("drain", "start", "--yes", *at(nsqd))
    looks = nsqd.log().count("GET /drain")
    process = start("drain", "watch", "--json", *at(nsqd))
    eventually(lambda: nsqd.log().count("GET /drain") > looks + 2, "looks at the drain")
    return process


def test_ctrl_c_ends_the_watching_and_not_the_drain_whose_cancellation_is_reported(holding: Instance) -> None:
    with watching(holding) as process:
        code, out, err = ctrl_c(process)
    assert (code, out, err.strip()) == (130, "", "the drain continues; gnsqadmin drain cancel cancels it")
    assert is_draining(holding)
    with watching(holding) as process:
        assert ask(holding, "DELETE /drain")[0] == 200
        code, out, err = end(process)
    assert (code, err) == (1, f"Error: nsqd at {address(holding)}: no longer drains: it was cancelled\n")
    assert json.loads(out)["nodes"][0]["end"] == "cancelled"


def test_a_node_that_hangs_in_its_drain_ends_the_watching() -> None:
    answers = [http_answer(b'{"draining":true,"remaining":3600000000000,"messages":7,"holding":[]}')]

    def answer(connection: Any) -> None:
        connection.sendall(answers.pop() if answers else b"")

    with FakeNode(answer, hangs=True) as node:
        code, out, err = gnsqadmin("drain", "watch", "--timeout=2", *at(node), "--json")
    assert (code, err) == (1, f"Error: nsqd at {node.address}: no complete answer within 2 s\n")
    assert json.loads(out)["nodes"][0]["messages"] is None
