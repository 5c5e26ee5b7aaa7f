"""The JSON API answers as the real nsqadmin does, which is asked about the same cluster at the same time."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from cli.nodes import address, at, at_lookupd
from interop.test_nsqadmin import CREATE, PAGES, STEPS, Admin, occupy, registrations, state
from kit.daemons import Instance, eventually
from kit.peer_program import PeerProgram, start_nsqlookupd
from kit.traffic import create, post, publish
from web.app import App

pytestmark = pytest.mark.peer

FLAGS = ("--broadcast-address=127.0.0.1", "--e2e-processing-latency-percentile=0.5,0.99")

Ask = Callable[..., tuple[int, Any]]
Start = Callable[..., tuple[list[Admin], App, Ask]]


def normal(status: int, answer: Any) -> tuple[int, Any]:
    """Removes what differs: the time between two requests, and the words of errors of other nodes."""
    document = json.loads(re.sub(r'"connected": \d+', '"connected": 0', json.dumps(answer)))
    message = document.get("message", "")
    for prefix in (*(f"UPSTREAM_ERROR: failed to query any {kind}:" for kind in ("nsqd", "nsqlookupd")), "WARNING: "):
        if message.startswith(prefix):
            document["message"] = prefix
    if message == "EOF":
        document["message"] = "INVALID_BODY"
    return status, document


@pytest.fixture(params=["nsqlookupd", "nsqd-http-address"])
def start(request: pytest.FixtureRequest, peer_binary: Callable[[str], Path], tmp_path: Path) -> Iterator[Start]:
    """Starts real nsqds; returns them, our page for all of them, and the real nsqadmin for all of them."""
    with ExitStack() as stack:

        def start(count: int, name: str = "real") -> tuple[list[Admin], App, Ask]:
            flags, lookupd = [*FLAGS], None
            if request.param == "nsqlookupd":
                lookupd = stack.enter_context(start_nsqlookupd(peer_binary("nsqlookupd"), tmp_path / f"{name}-lookupd"))
                flags.append(f"--lookupd-tcp-address={lookupd.address['TCP']}")
            nodes = [
                stack.enter_context(Instance([str(peer_binary("nsqd"))], tmp_path / f"{name}-{number}", *flags))
                for number in range(count)
            ]
            watched, ours = at(*nodes), App([address(node) for node in nodes])
            if lookupd is not None:
                known, where = lookupd, lookupd.address["HTTP"]
                eventually(lambda: len(known.ask("GET", "/nodes")[1]["producers"]) == count, "registered")
                watched, ours = at_lookupd(where), App(lookupds=[where])
            log = tmp_path / f"{name}-admin"
            admin = PeerProgram(peer_binary("nsqadmin"), log, "--http-address=127.0.0.1:0", *watched)
            stack.enter_context(admin)
            return [Admin(node, admin, lookupd) for node in nodes], ours, admin.ask

        yield start


WRONG: list[tuple[str, str, dict[str, str]]] = [
    ("POST", "/api/topics", {"topic": "$"}),
    ("POST", "/api/topics", {"topic": "x", "channel": "$"}),
    ("POST", "/api/topics/x", {"action": "nothing"}),
    ("POST", "/api/topics/x/y", {"action": ""}),
    ("DELETE", "/api/nodes/127.0.0.1:1", {"topic": "$"}),
    ("DELETE", "/api/nodes/127.0.0.1:1", {}),
    ("GET", "/api/nope", {}),
    ("PUT", "/api/topics", {}),
    ("GET", "/nope", {}),
]


def test_every_answer_is_the_same(start: Start) -> None:
    (site,), ours, real = start(1)
    empty = ("topics", "topics?inactive=true", "nodes", "nodes/NODE", "counter")
    paths = [f"/api/{path.replace('NODE', site.node)}" for path in (*empty, *PAGES)]
    for path in paths[: len(empty)]:
        assert normal(*ours.api("GET", path)) == normal(*real("GET", path)), path
    for method, path, body in WRONG:
        assert normal(*ours.api(method, path, **body)) == normal(*real(method, path, **body)), (method, path)
    with ExitStack() as clients:
        occupy(site, clients)
        for path in paths:
            theirs, mine = normal(*real("GET", path)), normal(*ours.api("GET", path))
            assert mine == theirs, path
            assert json.dumps(mine[1]) == json.dumps(theirs[1])  # also in the order of Go's fields


def test_sums_over_nodes_are_the_same(start: Start) -> None:
    sites, ours, real = start(2)
    for number, site in enumerate(sites):
        for topic in ("t", *(["alone"] if number else [])):
            create(site.nsqd, topic, "c")
            publish(site.nsqd, topic, *[b"x"] * (number + 2))
    post(sites[0].nsqd, "/channel/pause?topic=t&channel=c")
    if (lookupd := sites[0].lookupd) is not None:
        eventually(lambda: len(lookupd.ask("GET", "/lookup?topic=t")[1].get("producers", ())) == 2, "registered")
        eventually(lambda: lookupd.ask("GET", "/lookup?topic=alone")[0] == 200, "registered")
    names = [site.node for site in sites]

    def ordered(answer: tuple[int, Any]) -> Any:
        """Nodes of one host come in any order."""
        status, document = normal(*answer)
        for one in (document, *(document.get("channels") or ())):
            if isinstance(one.get("nodes"), list):
                one["nodes"].sort(key=lambda node: node.get("http_port") or node.get("node"))
        return status, document

    for path in ("topics", "topics/alone", "topics/t/c", "nodes", *(f"nodes/{name}" for name in names), "counter"):
        assert ordered(ours.api("GET", f"/api/{path}")) == ordered(real("GET", f"/api/{path}")), path
    sums, theirs = (ask("GET", "/api/topics/t")[1] for ask in (ours.api, real))
    for actual, expected in ((sums, theirs), (sums["channels"][0], theirs["channels"][0])):
        for key in ("depth", "message_count", "paused", "node", "memory_depth", "backend_depth"):
            assert actual[key] == expected[key], key


@pytest.mark.parametrize("start", ["nsqlookupd"], indirect=True)
def test_every_action_does_the_same(start: Start) -> None:
    (mine,), ours, _ = start(1, "ours")
    (theirs,), _, real = start(1, "theirs")
    for site in (mine, theirs):
        create(site.nsqd, "t", "c", "d")
        publish(site.nsqd, "t", b"x")
        eventually(lambda site=site: registrations(site).get("channel:t:d"), "registered")  # type: ignore[misc]
    steps = [("POST topics", body) for body in CREATE] + [("DELETE topics/t/e", {})]
    for what, body in [*steps, *((what, body) for what, body, _ in STEPS)]:
        method, _, path = what.partition(" ")
        answers = []
        for site, ask in ((mine, ours.api), (theirs, real)):
            if method == "nsqd":
                answers.append((site.nsqd.http("POST", path, b"x")[0], None))
            else:
                answers.append(normal(*ask(method, f"/api/{path.replace('NODE', site.node)}", **body)))
        assert answers[0] == answers[1], what
        eventually(lambda: state(mine.nsqd) == state(theirs.nsqd), f"the same after {what}")
        eventually(lambda: registrations(mine) == registrations(theirs), f"the same registered after {what}")
