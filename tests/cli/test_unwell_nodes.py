"""Commands that act on nodes or compute rates, beside nodes that hang, recover or are dead.

All nodes are fakes of this process, and all commands of a test run at once: each waits for its hanging node.
"""

import json
import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from cli import fake_nsqd as fake
from cli.gnsqadmin import FakeNode, gnsqadmin, ok
from cli.nodes import DOWN, at, at_lookupd
from cli.test_messages_peek import DEAD, letter
from kit.daemons import DEADLINE, Instance, eventually
from kit.traffic import publish
from nsqadmin_cli.api import NodeStats
from nsqadmin_cli.cluster import Cluster
from nsqadmin_cli.commands.top import Watcher
from nsqadmin_cli.http_client import Address, NodeClient, NodeError

ID = "0123456789abcdef"
DRAIN = {"draining": True, "remaining": 10**10, "messages": 0, "holding": []}
DEFERRED = {
    "deferred": 1,
    "due": [{"within": seconds * 10**9, "messages": 1} for seconds in (60, 3600, 86400, 604800)],
    "messages": [{"id": ID, "timestamp": 1, "due": 10**18, "attempts": 1, "size": 1, "body": "x", "body_base64": None}],
}
ANSWERS = {
    "/stats": fake.node(fake.topic("t", fake.channel("c", depth=1))),
    "/channel/rewind": {"messages": 1},
    "/channel/rules": {"rate": 5, "burst": 1, "ordered": False},
    "/channel/deferred": DEFERRED,
    "/drain": DRAIN,
    "/channel/peek": fake.peeked(),
    "/topic/empty": "",
    "/topic/retention": {"bytes": 0, "time": 0, "messages": 0, "since": None},
    "/config/drain_timeout": 10**10,
    "/config/log_level": 1,
    "/nodes": {"producers": [fake.producer(4151, t=False)]},
    "/topics": {"topics": ["t"]},
}

# What each node that answers is asked for.
ACTIONS = {
    "stats": "GET /stats",
    "nodes": "GET /stats",
    "tree": "GET /stats",
    "counter": "GET /stats",
    "topic show t": "GET /stats",
    "channel show t c": "GET /stats",
    "config get log_level": "GET /config/log_level",
    "config set log_level debug": "PUT /config/log_level",
    "topic create u": "POST /topic/create",
    "topic pause t": "POST /topic/pause",
    "topic empty t --with-channels --yes": "POST /channel/empty",
    "topic delete t --yes": "POST /topic/delete",
    "channel create t d": "POST /channel/create",
    "channel pause t c": "POST /channel/pause",
    "channel empty t c --yes": "POST /channel/empty",
    "channel delete t c --yes": "POST /channel/delete",
    "peek t c": "GET /channel/peek",
    "channel deferred t c": "GET /channel/deferred",
    "channel rules t c": "GET /channel/rules",
    "drain status": "GET /drain",
    "topic tombstone t 127.0.0.1:4151": "POST /topic/tombstone",
    "topic pause t* --yes": "POST /topic/pause",
    "channel pause t/* --yes": "POST /channel/pause",
    "channel empty t/* --yes": "POST /channel/empty",
    "channel rewind t c --to first --yes": "POST /channel/rewind",
    "channel rules t c --rate 5 --yes": "POST /channel/rules",
    f"channel deferred t c --cancel {ID} --yes": "POST /channel/deferred/cancel",
    "topology import {0} --yes": "POST /channel/pause",
    "drain start --yes": "POST /drain",
    "drain cancel": "DELETE /drain",
}


def unwell(words: str, request: str) -> None:
    """Runs a command beside a node that answers late, one that hangs and one that is dead."""
    asked = threading.Event()

    def answering(document: object) -> Callable[[], object]:
        def answer() -> object:
            asked.set()
            return document

        return answer

    def recovering(document: object) -> Callable[[], object]:
        return lambda: asked.wait(DEADLINE) and document

    changes = dict.fromkeys((path for method, _, path in (one.partition(" ") for one in ACTIONS.values())), "")
    with ExitStack() as stack:
        well, late = (
            stack.enter_context(fake.FakeServer({path: [made(one)] for path, one in (changes | ANSWERS).items()}))
            for made in (answering, recovering)
        )
        hanging = stack.enter_context(FakeNode(hangs=True))
        kind = "nsqlookupd" if "tombstone" in words else "nsqd"
        places = [well.address, late.address, hanging.address, DOWN]
        flags = (at_lookupd if kind == "nsqlookupd" else at)(*places)
        code, out, err = gnsqadmin(*words.split(), "--json", "--timeout=2", *flags)
        lines = {line.removesuffix("; it may still have been done") for line in err.splitlines()}
        assert lines == {
            f"Error: {kind} at {hanging.address}: no complete answer within 2 s",
            f"Error: {kind} at {DOWN}: connection refused",
        }, (words, err)
        assert code == 1, words
        assert [request in one.requests for one in (well, late)] == [True, True], (words, late.requests)
    document = json.loads(out)
    operations = document.get("operations", [document])
    nodes = operations[0].get("lookupds" if kind == "nsqlookupd" else "nodes", [])
    failed = {one["address"]: bool(one["error"]) for one in nodes}
    assert nodes == [] or failed == dict(zip(places, (False, False, True, True), strict=True)), (words, nodes)


def test_actions_are_done_on_the_nodes_that_answer(tmp_path: Path) -> None:
    file = tmp_path / "topology.ndjson"
    file.write_text('{"topic": "t", "channel": "c", "paused": true}\n')
    with ThreadPoolExecutor(10) as pool:
        runs = [pool.submit(unwell, words.format(file), request) for words, request in ACTIONS.items()]
    for run in runs:
        run.result()


def test_dead_letters_are_replayed_from_the_node_that_answers(gnsqd: Instance) -> None:
    publish(gnsqd, DEAD, letter(b"body"))
    with FakeNode(hangs=True) as hanging:
        result = gnsqadmin("replay-dead", "t", "c", "--limit=1", "--json", "--timeout=1", *at(gnsqd, hanging, DOWN))
    reasons = (f"nsqd at {hanging.address}: no complete answer within 1 s", f"nsqd at {DOWN}: connection refused")
    assert (result.code, [reason in result.err for reason in reasons]) == (1, [True, True])
    assert json.loads(result.out)["topics"] == [{"topic": "t", "messages": 1}]


def busy() -> dict[str, Any]:
    """Returns a channel with 180 requeues a second, and as many messages that are published and finished."""
    count = int(180 * time.monotonic())
    channel = fake.channel("c", fake.client("x", ready_count=1), message_count=count, requeue_count=count)
    return fake.node(fake.topic("t", channel, message_count=count))


def recovering(seconds: float) -> Callable[[], dict[str, Any]]:
    """Answers as `busy`, at first `seconds` late: a rate from the times of the questions would be less than half of
    it."""
    until: list[float] = []

    def answer() -> dict[str, Any]:
        until.append(time.monotonic() + seconds)
        eventually(lambda: time.monotonic() >= until[0])
        return busy()

    return answer


RATES: dict[str, Callable[[Any], float]] = {
    "check --requeue-rate=1000 --interval=0.1": lambda last: last["metrics"]["requeue_rate"],
    "doctor --interval=0.1": lambda last: float(re.findall("([0-9]+) messages per second requeued", str(last))[0]),
    "counter --watch=0.1 --count=2": lambda last: last["ingress_rate"],
    "stats --watch=0.1 --count=2": lambda last: last["flows"][0]["ingress_rate"],
}


@pytest.mark.parametrize("command", RATES)
def test_a_node_that_recovers_has_its_rate(command: str) -> None:
    with FakeNode(hangs=True) as hanging, fake.StatsNsqd(fake.node()) as well, fake.StatsNsqd(recovering(1.3)) as late:
        _, out, err = gnsqadmin(*command.split(), "--timeout=4", "--json", *at(well, late, hanging, DOWN))
    judges = "--interval" in command  # nodes that fail are what it finds
    assert all(text in (out if judges else err) for text in ("no complete answer within", "connection refused")), err
    assert 120 < RATES[command](json.loads(out if judges else out.splitlines()[-1])) < 280


@pytest.mark.parametrize("command", ["counter", "stats"])
def test_the_look_after_one_that_took_long_is_not_at_once(command: str) -> None:
    with fake.StatsNsqd(recovering(0.8)) as late:
        out = ok(command, "--watch=0.5", "--count=3", "--json", late.flag)
    times = [json.loads(line)["time"] for line in out.splitlines()]
    assert min(after - before for before, after in pairwise(times)) > 0.2


def test_top_has_the_rate_of_a_node_that_recovers() -> None:
    dead = Address.parse(DOWN)
    with FakeNode(hangs=True) as hanging, fake.StatsNsqd(busy) as well, fake.StatsNsqd(recovering(1.25)) as late:
        addresses = [Address.parse(one.address) for one in (well, late, hanging)]
        watcher = Watcher(Cluster([*addresses, dead], [], NodeClient(DEADLINE)), 2.5)
        try:
            eventually(lambda: all(watcher.see()[1].get(address) for address in addresses[:2]), "rates")
            answers, flows = watcher.see()
        finally:
            watcher.stopped.set()
    for address in addresses[:2]:
        assert isinstance(answers[address], NodeStats)
        assert 100 < flows[address]["t", "c"].requeues < 300
        assert 100 < flows[address]["t", ""].ingress < 300
    assert not isinstance(answers.get(addresses[2]), NodeStats)
    assert isinstance(answers[dead], NodeError)
