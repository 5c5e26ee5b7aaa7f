"""`gnsqadmin drain`: nodes that refuse publishers, are emptied by consumers, and exit."""

import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cli.gnsqadmin import COMMAND, FakeNode, Terminal, environment, gnsqadmin, http_answer
from cli.nodes import address, at, create, publish, wait_for_depth
from conftest import DaemonFactory
from kit.daemons import DEADLINE, Daemon, eventually
from kit.nsq_client import Client
from nsqadmin_cli.api import Nsqd
from nsqadmin_cli.http_client import Address, HTTPClient, NodeError

LONG = "--drain-timeout=1h"


def document(*args: str) -> Any:
    """The JSON of a run that must go well."""
    result = gnsqadmin("drain", *args, "--json")
    assert (result.code, result.err) == (0, "")
    return json.loads(result.out)


def hold(nsqd: Daemon, count: int) -> None:
    """Put messages where they wait for a consumer."""
    create(nsqd, "t", "c")
    publish(nsqd, "t", count)
    wait_for_depth(nsqd, "t", "c", count)


def is_draining(nsqd: Daemon) -> bool:
    return bool(json.loads(nsqd.http("GET", "/drain")[2])["draining"])


def finish(nsqd: Daemon, count: int) -> None:
    with Client(nsqd.tcp_address) as consumer:
        consumer.subscribe("t", "c", rdy=count)
        for _ in range(count):
            consumer.command(b"FIN " + consumer.message().id)
        consumer.recv_until_closed()


def test_start_status_and_cancel_tell_how_far_it_is(gnsqd_factory: DaemonFactory) -> None:
    gnsqd = gnsqd_factory(LONG)
    hold(gnsqd, 1200)
    [before] = document("status", *at(gnsqd))["nodes"]
    holding = [{"topic": "t", "channel": "c", "messages": 1200, "remark": "no consumer"}]
    assert before == {
        "address": address(gnsqd),
        "error": None,
        "draining": False,
        "remaining": 0,
        "messages": 1200,
        "holding": holding,
        "end": None,
    }
    [started] = document("start", "--yes", *at(gnsqd))["nodes"]
    assert (started["draining"], started["messages"], started["holding"]) == (True, 1200, holding)
    assert 3000e9 < started["remaining"] <= 3600e9
    assert is_draining(gnsqd)
    code, out, err = gnsqadmin("drain", "status", *at(gnsqd))
    assert (code, err) == (0, "")
    assert out.splitlines()[2].endswith("1,200   draining   t:c 1,200 (no consumer)")
    assert document("cancel", *at(gnsqd))["nodes"][0]["draining"] is False
    assert not is_draining(gnsqd)


def test_start_says_what_it_means_and_asks_to_confirm(gnsqd_factory: DaemonFactory) -> None:
    gnsqd = gnsqd_factory("--drain-timeout=90s")
    hold(gnsqd, 3)
    code, out, err = gnsqadmin("drain", "start", *at(gnsqd))
    assert (code, out) == (5, "")
    assert err.startswith(
        "Error: Draining 1 node makes it refuse publishers, and exit when empty, after 1m 30s at the latest. Nothing"
    )
    code, out, err = gnsqadmin("drain", "start", "--dry-run", "--watch", *at(gnsqd))
    assert (code, err) == (0, "")
    assert out.splitlines()[2].endswith("3   not draining   t:c 3 (no consumer)")
    assert not is_draining(gnsqd)


def test_watch_ends_when_the_nodes_are_empty_and_have_exited(gnsqd_factory: DaemonFactory) -> None:
    a, b = gnsqd_factory(LONG), gnsqd_factory(LONG)
    hold(a, 2)
    with Terminal(120, 40, "drain", "start", "--watch", *at(a, b)) as terminal:
        terminal.wait_for("Drain them? [y/N]")
        terminal.type("y\r")
        terminal.wait_for("draining 2 nodes", "/ 2 messages")
        finish(a, 2)
        table = terminal.wait_for(f"{address(a)} ", "exited", f"{address(b)} ", "held by")
        assert "timed out" not in table
        assert terminal.end() == 0
    assert (a.wait(), b.wait()) == (0, 0)


def test_watch_fails_when_the_time_was_up(gnsqd_factory: DaemonFactory) -> None:
    gnsqd = gnsqd_factory("--drain-timeout=1s")
    hold(gnsqd, 3)
    code, out, err = gnsqadmin("drain", "start", "--yes", "--watch", "--json", *at(gnsqd))
    assert (code, err) == (
        1,
        f"Error: nsqd at {address(gnsqd)}: exited because its time was up; about 3 messages were left\n",
    )
    [node] = json.loads(out)["nodes"]
    assert (node["end"], node["messages"]) == ("timed out", 3)
    assert gnsqd.wait() == 0


def test_watch_tells_when_a_drain_is_cancelled(gnsqd_factory: DaemonFactory) -> None:
    gnsqd = gnsqd_factory(LONG)
    hold(gnsqd, 1)
    document("start", "--yes", *at(gnsqd))
    with watching(gnsqd) as process:
        assert gnsqd.http("DELETE", "/drain")[0] == 200
        out, err = process.communicate(timeout=DEADLINE)
    assert (process.returncode, err.decode()) == (
        1,
        f"Error: nsqd at {address(gnsqd)}: no longer drains: it was cancelled\n",
    )
    assert json.loads(out)["nodes"][0]["end"] == "cancelled"


def test_ctrl_c_ends_the_watching_and_not_the_drain(gnsqd_factory: DaemonFactory) -> None:
    gnsqd = gnsqd_factory(LONG)
    hold(gnsqd, 1)
    document("start", "--yes", *at(gnsqd))
    with watching(gnsqd) as process:
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=DEADLINE)
    assert (process.returncode, out) == (130, b"")
    assert err.decode().strip() == "the drain continues; gnsqadmin drain cancel cancels it"
    assert is_draining(gnsqd)


def watching(nsqd: Daemon) -> "subprocess.Popen[bytes]":
    """A run of `drain watch` that has looked more than once."""
    looks = nsqd.log().count("GET /drain")
    process = subprocess.Popen(
        [*COMMAND, "drain", "watch", "--json", *at(nsqd)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    )
    eventually(lambda: nsqd.log().count("GET /drain") > looks + 2, "looks at the drain")
    return process


def test_watch_without_a_drain_says_so(gnsqd: Daemon) -> None:
    assert gnsqadmin("drain", "watch", *at(gnsqd)) == (1, "", "Error: no node is draining\n")


@pytest.mark.peer
def test_the_real_nsqd_cannot_drain_which_is_said(
    gnsqd_factory: DaemonFactory, peer_binary: Callable[[str], Path], tmp_path: Path
) -> None:
    gnsqd = gnsqd_factory(LONG)
    hold(gnsqd, 1)
    with Daemon([str(peer_binary("nsqd"))], tmp_path / "real").start() as real:
        told = f"Error: nsqd at {address(real)}: cannot drain: only gnsqd can\n"
        for words in (["start", "--yes"], ["start", "--dry-run"]):
            assert gnsqadmin("drain", *words, *at(real)) == (1, "", f"{told}Error: no node can be drained\n")
        code, out, err = gnsqadmin("drain", "start", "--yes", "--json", *at(gnsqd, real))
        assert (code, err) == (1, told)
        assert [node["draining"] for node in json.loads(out)["nodes"]] == [True, None]


@pytest.mark.parametrize(
    "answer",
    [
        b'{"draining":true}',
        b'{"draining":true,"remaining":"1","messages":0,"holding":[]}',
        b'{"draining":true,"remaining":1,"messages":-1,"holding":[]}',
        b'{"draining":true,"remaining":1,"messages":true,"holding":[]}',
        b'{"draining":true,"remaining":1,"messages":0,"holding":null}',
        b'{"draining":true,"remaining":1,"messages":0,"holding":[1]}',
        b'{"draining":true,"remaining":1,"messages":0,"holding":[{"topic":1,"channel":"","messages":1,"remark":""}]}',
    ],
)
def test_a_state_that_is_none_is_an_error(answer: bytes) -> None:
    with FakeNode(http_answer(answer)) as node:
        there = Address.parse(node.address)
        with pytest.raises(NodeError) as error:
            Nsqd(there, HTTPClient(DEADLINE)).drain("GET")
    assert error.value.reason == "answered JSON that is not an nsqd's: it is not a state of a drain"


def test_a_node_that_hangs_in_its_drain_ends_the_watching() -> None:
    """It answers once."""
    state = b'{"draining":true,"remaining":3600000000000,"messages":7,"holding":[]}'
    answered: list[bool] = []

    def answer(connection: Any) -> None:
        if not answered:
            answered.append(True)
            connection.sendall(http_answer(state))

    with FakeNode(answer, hangs=True) as node:
        result = gnsqadmin("drain", "watch", "--timeout=2", f"--nsqd-http-address={node.address}", "--json")
    assert (result.code, result.err) == (1, f"Error: nsqd at {node.address}: no complete answer within 2 s\n")
    assert json.loads(result.out)["nodes"][0]["messages"] is None
