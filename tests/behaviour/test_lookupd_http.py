"""The HTTP API of nsqlookupd: ours and the real one answer the same in the same run (NSQD-COMPAT 6.3).

A row is one request; status, reason, headers and body are compared, and what nsqlookupd holds afterwards.
"""

import json
import re
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from kit.daemons import address_of, eventually
from kit.http_api import Answer, head, message, read_all, split_responses, whole_answer
from kit.lookupds import IDENTITY, LookupdPair, Registrant, RunningLookupd, lists_sorted, normal, own_lookupd_command

pytestmark = pytest.mark.peer


def ask(lookupd: RunningLookupd, request: bytes) -> Answer:
    found = whole_answer(address_of(lookupd.http_address), request, normal)
    return found._replace(body=in_order(found.body))


def in_order(body: str) -> str:
    return json.dumps(lists_sorted(json.loads(body)), separators=(",", ":")) if body.startswith("{") else body


QUERIES = ["GET /topics", "GET /nodes", "GET /debug", "GET /channels?topic=*", "GET /lookup?topic=t"]

# Before the first of them an nsqd has registered the topic t with the channel c, and another one t and u.
REQUESTS = [
    "GET /ping", "GET /info", "GET /topics", "GET /channels", "GET /channels?topic=t", "GET /channels?topic=x",
    "GET /channels?topic=", "GET /channels?topic=*", "GET /channels?topic=%zz", "GET /channels?topic=t;x",
    "GET /lookup", "GET /lookup?topic=t", "GET /lookup?topic=u", "GET /lookup?topic=x", "GET /lookup?topic=",
    "GET /lookup?topic=*", "GET /lookup?topic=x&topic=t", "GET /lookup?topic=%zz", "GET /nodes", "GET /debug",
    "POST /topic/create", "POST /topic/create?topic=", "POST /topic/create?topic=$", "POST /topic/create?topic=%zz",
    "POST /topic/create?topic=v", "POST /topic/create?topic=v", "POST /topic/create?topic=w%23ephemeral",
    "GET /lookup?topic=v", "POST /channel/create", "POST /channel/create?topic=v", "POST /channel/create?channel=d",
    "POST /channel/create?topic=$&channel=$", "POST /channel/create?topic=v&channel=$",
    "POST /channel/create?topic=v&channel=%zz", "POST /channel/create?topic=v&channel=d",
    "POST /channel/create?topic=y&channel=e%23ephemeral", "GET /channels?topic=y", "GET /channels?topic=*",
    "POST /channel/delete", "POST /channel/delete?topic=v", "POST /channel/delete?topic=$&channel=d",
    "POST /channel/delete?topic=v&channel=*", "POST /channel/delete?topic=v&channel=x",
    "POST /channel/delete?topic=x&channel=d", "POST /channel/delete?topic=v&channel=d",
    "POST /channel/delete?topic=t&channel=c", "POST /topic/tombstone", "POST /topic/tombstone?topic=t",
    "POST /topic/tombstone?node=b:2", "POST /topic/tombstone?topic=t&node=b:3",
    "POST /topic/tombstone?topic=x&node=b:2", "POST /topic/tombstone?topic=t&node=%zz",
    "POST /topic/tombstone?topic=t&node=b:2", "POST /topic/delete", "POST /topic/delete?topic=%zz",
    "POST /topic/delete?topic=x", "POST /topic/delete?topic=u", "POST /topic/delete?topic=t",
    "POST /channel/create?topic=t&channel=c", "POST /topic/delete?topic=*", "GET /lookup?topic=*", "GET /nothing",
    "GET /", "GET /topic", "GET /topic/create", "GET /topic/create?topic=x", "GET /topic/tombstone", "POST /ping",
    "POST /lookup?topic=t", "PUT /topics", "DELETE /topic/delete?topic=t", "HEAD /ping", "HEAD /nodes",
    "OPTIONS /topics", "OPTIONS /topic/create", "OPTIONS *", "FOO /topics", "get /ping", "FOO /nothing",
    "GET /ping/", "GET /TOPICS", "GET //lookup?topic=t", "GET /debug/", "GET /debug/pprof/",
    "GET /debug/pprof/mutex", "GET /debug/vars", "POST /topic/create/?topic=x", "POST /Topic/Create?topic=x",
    "GET /stats", "POST /pub?topic=t", "POST /create_topic?topic=t",
]  # fmt: skip


def test_every_endpoint_and_error_is_that_of_nsqlookupd(lookupd_pair: LookupdPair) -> None:
    with ExitStack() as stack:
        for lookupd in lookupd_pair:
            first = stack.enter_context(Registrant(lookupd))
            first.register("t c")
            second = stack.enter_context(
                Registrant(lookupd, {**IDENTITY, "broadcast_address": "<&>\u2028\u00e9", "http_port": 3})
            )
            second.register("t", "u")
        for request in REQUESTS:
            for line in [request, *QUERIES] if request.startswith("POST") else [request]:
                ours, real = (ask(lookupd, head(line)) for lookupd in lookupd_pair)
                assert ours == real, f"{line} after {request}"


def logged(lookupd: RunningLookupd) -> list[str]:
    """Returns the lines about requests and names, without what differs, those of one deletion in order."""
    lines = [re.sub(r"^\S+ \S+ \S+ ", "", line) for line in normal(lookupd.log()).splitlines()]
    lines = [re.sub(r" [\d.]+(ns|\u00b5s|ms|s)$", " D", line) for line in lines]
    return sorted(line for line in lines if "listening" not in line and "nsqlookupd v" not in line)


def test_every_request_is_logged_as_by_nsqlookupd(lookupd_pair: LookupdPair) -> None:
    for request in [*REQUESTS, "GET /debug/pprof", "GET /debug/pprof/cmdline"]:
        for lookupd in lookupd_pair:
            ask(lookupd, head(request))
    for lookupd in lookupd_pair:
        eventually(lambda one=lookupd: "/create_topic" in one.log())  # type: ignore[misc]
    assert logged(lookupd_pair[0]) == logged(lookupd_pair[1])


def test_every_page_of_pprof_is_there(lookupd_pair: LookupdPair) -> None:
    for page in ("", "/cmdline", "/symbol", "/profile?seconds=1", "/heap", "/goroutine", "/block", "/threadcreate"):
        for lookupd in lookupd_pair:
            assert ask(lookupd, head(f"GET /debug/pprof{page}")).status == 200, page


def test_text_of_an_nsqd_is_escaped_as_by_nsqlookupd(lookupd_pair: LookupdPair) -> None:
    text = '<&>\u2028\u00e9"\\\x00\x7f\n\U0001f600'
    identity = {**IDENTITY, "hostname": text, "broadcast_address": text, "version": text}
    with ExitStack() as stack:
        for lookupd in lookupd_pair:
            stack.enter_context(Registrant(lookupd, identity)).register("t")
        for path in ("/lookup?topic=t", "/nodes", "/debug"):
            pages = []
            for lookupd in lookupd_pair:
                with lookupd.connect("http") as sock:
                    sock.sendall(head(f"GET {path}", "Connection: close"))
                    pages.append(normal(read_all(sock).partition(b"\r\n\r\n")[2].decode()))
            assert pages[0] == pages[1]
            assert "\\u003c\\u0026" in pages[0]


def test_body_is_ignored_and_a_broken_one_is_an_invalid_request(lookupd_pair: LookupdPair) -> None:
    for body in (b"x", b"x" * 100_000):
        request = head("POST /topic/create?topic=t", f"Content-Length: {len(body)}") + body
        ours, real = (ask(lookupd, request) for lookupd in lookupd_pair)
        assert ours == real
        assert ours.status == 200
    ours, real = (
        ask(lookupd, head("POST /topic/create?topic=u", "Content-Length: 9") + b"x") for lookupd in lookupd_pair
    )
    assert (ours.status, ours.body) == (real.status, real.body) == (400, message("INVALID_REQUEST"))
    assert [lookupd.ask("/topics")["topics"] for lookupd in lookupd_pair] == [["t"], ["t"]]


# Timers


@pytest.fixture(params=["gnsqlookupd", "nsqlookupd"])
def command(request: pytest.FixtureRequest, peer_binary: Callable[[str], Path]) -> list[str]:
    return own_lookupd_command() if request.param == "gnsqlookupd" else [str(peer_binary("nsqlookupd"))]


def test_producer_that_is_not_heard_of_is_hidden_until_it_pings(command: list[str], tmp_path: Path) -> None:
    lookupd = RunningLookupd(command, tmp_path / "lookupd", "--inactive-producer-timeout=500ms")
    with lookupd, Registrant(lookupd) as nsqd:
        for _ in range(2):
            nsqd.register("t c")  # which does not count as a sign of life
            assert nsqd.command(b"PING\n") == b"OK"
            before = lookupd.ask("/debug")
            eventually(lambda: lookupd.found("t") == set())
            assert lookupd.producers() == []
            assert lookupd.ask("/lookup?topic=t") == {"channels": ["c"], "producers": []}
            assert lookupd.ask("/debug") == before
        eventually(lambda: nsqd.command(b"PING\n") == b"OK" and lookupd.found("t") == {1})


def test_tombstone_hides_a_producer_of_a_topic_for_its_lifetime(command: list[str], tmp_path: Path) -> None:
    lookupd = RunningLookupd(command, tmp_path / "lookupd", "--tombstone-lifetime=2s")
    with (
        lookupd,
        Registrant(lookupd) as nsqd,
        Registrant(lookupd, {**IDENTITY, "tcp_port": 3, "http_port": 4}) as other,
    ):
        for one in (nsqd, other):
            one.register("t", "u")
        lookupd.ask("/topic/tombstone?topic=t&node=b:2", "POST")
        assert (lookupd.found("t"), lookupd.found("u")) == ({3}, {1, 3})
        rows = {
            row["tcp_port"]: dict(zip(row["topics"], row["tombstones"], strict=True)) for row in lookupd.producers()
        }
        assert rows == {1: {"t": True, "u": False}, 3: {"t": False, "u": False}}
        nsqd.register("t")  # changes nothing
        assert lookupd.found("t") == {3}
        eventually(lambda: lookupd.found("t") == {1, 3})
        assert not any(any(row["tombstones"]) for row in lookupd.producers())
        assert {row["tombstoned"] for row in lookupd.ask("/debug")["topic:t:"]} == {True, False}
        lookupd.ask("/topic/tombstone?topic=t&node=b:2", "POST")
        assert lookupd.found("t") == {3}
        assert nsqd.command(b"UNREGISTER t\n") == b"OK"
        nsqd.register("t")
        assert lookupd.found("t") == {1, 3}


# What only ours does


def test_names_beyond_the_limit_are_refused(tmp_path: Path) -> None:
    with RunningLookupd(own_lookupd_command(), tmp_path / "lookupd", "--max-registrations=2") as lookupd:
        assert ask(lookupd, head("POST /channel/create?topic=t&channel=c")).status == 200
        for path in ("topic/create?topic=u", "channel/create?topic=t&channel=d"):
            assert ask(lookupd, head(f"POST /{path}"))[::3] == (503, message("TOO_MANY_REGISTRATIONS"))
        assert ask(lookupd, head("POST /topic/create?topic=t")).status == 200
        assert ask(lookupd, head("POST /topic/delete?topic=t")).status == 200
        assert ask(lookupd, head("POST /channel/create?topic=u&channel=d")).status == 200


def test_large_body_ends_the_connection(lookupd: RunningLookupd) -> None:
    with lookupd.connect("http") as sock:
        sock.sendall(head("POST /topic/create?topic=t", f"Content-Length: {1 << 30}") + b"x" * 100_000)
        (answer,) = split_responses(read_all(sock))
    assert answer == (200, "")


def test_http_connections_beyond_the_limit_are_closed(tmp_path: Path) -> None:
    flags = ["--max-http-connections=1", "--http-idle-timeout=1s"]
    with RunningLookupd(own_lookupd_command(), tmp_path / "lookupd", *flags) as lookupd:
        with lookupd.connect("http") as first:
            first.sendall(head("GET /ping"))
            assert first.recv(4096).startswith(b"HTTP/1.1 200")
            with lookupd.connect("http") as second:
                assert read_all(second) == b""
            assert read_all(first) == b""  # idle
        eventually(lambda: _answers(lookupd))


def _answers(lookupd: RunningLookupd) -> bool:
    try:
        return ask(lookupd, head("GET /ping")).status == 200
    except (OSError, ValueError):
        return False
