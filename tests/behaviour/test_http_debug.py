"""`/debug`: the paths of Go's pprof, with something of ours behind them, and the two endpoints beside it."""

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from kit.daemons import Instance, eventually, own_command
from kit.http_api import TEXT, ask
from kit.nsq_client import NSQClient
from kit.pairs import Pair, running_pair
from kit.traffic import DaemonFactory, create, post, publish, wait_for

FORM = {"Content-Type": "application/x-www-form-urlencoded"}


def answer(nsqd: Instance, what: str, body: bytes = b"", **headers: str) -> tuple[int, dict[str, str], str]:
    method, target = what.split(" ", 1)
    status, found, text = nsqd.http(method, target, body, headers)
    ignored = ("Date", "Content-Length", "Transfer-Encoding", "X-Content-Type-Options")
    return status, {name: value for name, value in found.items() if name not in ignored}, text.decode()


@pytest.fixture(scope="module")
def pair(peer_binary: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with running_pair(tmp_path_factory.mktemp("pair"), peer_binary("nsqd")) as pair:
        yield pair


# Side by side


@pytest.mark.peer
def test_everything_but_the_contents_is_answered_as_by_nsqd(pair: Pair) -> None:
    pages = ["", "cmdline", "symbol", "heap", "goroutine", "block", "threadcreate", "profile"]
    targets = [f"/debug/pprof/{page}" for page in pages]
    rows = [f"GET {target}?debug=1" for target in targets if "profile" not in target]
    rows += [f"{method} {target}" for method in ("PUT", "DELETE", "HEAD", "OPTIONS") for target in targets]
    rows += [f"POST {target}" for target in targets if "symbol" not in target]
    rows += ["POST /debug/pprof/symbol", "GET /debug/pprof/symbol?0x1+0x2"]
    rows += [
        f"{method} {target}"
        for method in ("GET", "PUT", "POST", "OPTIONS")
        for target in (
            "/debug/pprof", "/debug/pprof/mutex", "/debug/pprof/trace", "/debug/pprof/allocs", "/debug/vars", "/debug",
            "/debug/", "/debug/pprof/heap/", "/Debug/pprof/goroutine/?debug=1", "/debug/pprof/heap/x",
        )
    ]  # fmt: skip
    rows += [f"{method} /debug/setblockrate" for method in ("GET", "POST", "OPTIONS", "HEAD")]
    rows += [f"{method} /debug/freememory" for method in ("GET", "PUT", "OPTIONS", "HEAD")]

    def without_contents(nsqd: Instance, what: str) -> object:
        status, headers, body = answer(nsqd, what)
        return what, status, headers, body if status != 200 else bool(body)

    assert [without_contents(pair.ours, row) for row in rows] == [without_contents(pair.real, row) for row in rows]


@pytest.mark.peer
def test_block_rate_is_checked_as_by_nsqd(pair: Pair) -> None:
    queries = ["", "?rate", "?rate=x", "?rate=1.5", "?rate=+5", "?rate=1_0", "?rate=0x1", "?rate=%zz", "?rate=1;2"]
    queries += ["?rate=9223372036854775808", "?rate=%0A%22%C3%A9", "?rate=x&rate=1", "?Rate=1"]
    bodies = [b"rate=zz", b"rate=", b"a=1&rate=%zz&rate=z", b"rate=1;2", b"x", b"rate=" + b"9" * 3000]

    def ask_all(nsqd: Instance) -> list[object]:
        found: list[object] = [(query, answer(nsqd, f"PUT /debug/setblockrate{query}")) for query in queries]
        for query in ("", "?rate=q"):
            found += [(body, answer(nsqd, f"PUT /debug/setblockrate{query}", body, **FORM)) for body in bodies]
        return found

    found = ask_all(pair.ours)
    assert found == ask_all(pair.real)
    assert found[2] == (
        "?rate=x",
        (400, {"Content-Type": TEXT}, 'invalid block rate : strconv.Atoi: parsing "x": invalid syntax'),
    )


@pytest.mark.peer
def test_what_nsqd_does_and_then_answers_with_500_is_answered_with_200(pair: Pair) -> None:
    rows = [
        ("PUT /debug/setblockrate?rate=10", b"", {}),
        ("PUT /debug/setblockrate?rate=-1&rate=x", b"", {}),
        ("PUT /debug/setblockrate?rate=%2B5", b"", {}),
        ("PUT /debug/setblockrate?rate=x", b"rate=7", FORM),
        ("PUT /debug/setblockrate?%zz&rate=7", b"", {}),
        ("PUT /debug/setblockrate", b"a=%zz&rate=7", {"Content-Type": "Application/X-www-form-urlencoded; charset=x"}),
        ("POST /debug/freememory", b"", {}),
    ]  # fmt: skip
    assert [answer(pair.real, what, body, **headers)[0] for what, body, headers in rows] == [500] * len(rows)
    assert [answer(pair.ours, what, body, **headers) for what, body, headers in rows] == [(200, {}, "")] * len(rows)


def test_pprof_is_not_logged_and_the_rest_is(nsqd: Instance) -> None:
    for page in ("", "cmdline", "symbol", "heap", "goroutine", "block", "threadcreate", "profile?seconds=1"):
        assert nsqd.http("GET", f"/debug/pprof/{page}")[0] == 200
    ask(nsqd, "GET /debug/pprof")
    ask(nsqd, "GET /debug/pprof/mutex")
    ask(nsqd, "PUT /debug/setblockrate?rate=x")
    lines = [line for line in nsqd.log().splitlines() if "/debug" in line]
    assert [re.findall(r"INFO: (.*) \(", line) for line in lines] == [
        ["404 GET /debug/pprof/mutex"],
        ["400 PUT /debug/setblockrate?rate=x"],
    ]


# What gnsqd shows


def test_greenlets_are_shown_by_name_with_their_stacks(gnsqd: Instance, topic: str) -> None:
    with NSQClient(gnsqd.tcp_address) as client, NSQClient(gnsqd.tcp_address) as other:
        for one in (client, other):
            one.subscribe(topic, "c")
        host, port = client.sock.getsockname()
        status, dump = ask(gnsqd, "GET /debug/pprof/goroutine?debug=2")
    assert status == 200
    groups = [group.splitlines() for group in dump.split("\n\n")]
    names = [line for group in groups[1:] for line in group if not line.startswith("\t")]
    assert groups[0] == [f"goroutine profile: total {len(names)}"]
    expected = {"main", "hub", "tcpServer", "httpServer", "queueScanLoop", f"messagePump:{topic}"}
    expected |= {f"IOLoop:{host}:{port}", f"messagePump:{host}:{port}"}
    assert expected <= set(names), dump
    (reading,) = [group for group in groups if f"IOLoop:{host}:{port}" in group]
    assert sum(line.startswith("IOLoop:") for line in reading) == 2  # both wait at the same place
    assert re.search(r"^\tgnsqd\.wire\.tcp\.TCPServer\._handle /.*/tcp\.py:\d+$", "\n".join(reading), re.MULTILINE)
    _, block = ask(gnsqd, "GET /debug/pprof/block")
    place = r"gnsqd\.(hub\.doorbell\.Doorbell\.wait|net\.listener\.Listener\.serve) /"  # the second if compiled
    assert re.search(rf"\n1\ttcpServer\t{place}.*\.py:\d+\n", block)


def test_index_threads_and_command_line(gnsqd_factory: DaemonFactory) -> None:
    gnsqd = gnsqd_factory("--log-prefix=a b")
    _, headers, page = answer(gnsqd, "GET /debug/pprof/")
    assert headers == {"Content-Type": "text/html; charset=utf-8"}
    links = re.findall(r"<a href='/debug/pprof/(\w+)'>", page)
    assert sorted(links) == ["block", "cmdline", "goroutine", "heap", "profile", "symbol", "threadcreate"]
    _, page = ask(gnsqd, "GET /debug/pprof/threadcreate")
    assert re.match(r"threadcreate profile: total \d+\n\nMainThread\n\tgnsqd\.web\.debug\.Debug\.threadcreate /", page)
    assert ask(gnsqd, "GET /debug/pprof/profile?seconds=301") == (400, "profile duration exceeds 300 seconds\n")
    assert ask(gnsqd, "GET /debug/pprof/cmdline")[1].split("\0")[-1] == "--log-prefix=a b"


def test_memory_page_reports_what_is_held(gnsqd_factory: DaemonFactory) -> None:
    gnsqd = gnsqd_factory("--mem-queue-size=3")
    create(gnsqd, "t", "a", "b")
    publish(gnsqd, "alone", b"x", b"y")
    with NSQClient(gnsqd.tcp_address) as consumer:
        consumer.subscribe("t", "a", rdy=1)
        publish(gnsqd, "t", *[b"x"] * 5)
        consumer.message()
        wait_for(gnsqd, "t", "a", depth=4, in_flight_count=1)
        wait_for(gnsqd, "t", "b", depth=5)
        post(gnsqd, "/pub?topic=t&defer=3600000", b"later")
        wait_for(gnsqd, "t", "b", deferred_count=1)
        in_memory = [channel["depth"] - channel["backend_depth"] for channel in gnsqd.topic_stats("t")["channels"]]
        _, page = ask(gnsqd, "GET /debug/pprof/heap")
    figures = dict(re.findall(r"^(\w+) = (.*)$", page, re.MULTILINE))
    assert int(figures["heap_in_use_bytes"]) > 1 << 20
    assert figures["VmRSS"].endswith(" kB")
    expected = {"topics": 2, "channels": 2, "messages_in_memory": 2 + sum(in_memory), "in_flight": 1, "deferred": 2}
    assert {name: int(figures[name]) for name in expected} == expected
    assert 0 < sum(in_memory) < 9


def test_cpu_profile_is_the_only_one_and_exit_ends_it_with_what_it_has(nsqd: Instance) -> None:
    found = []

    def profile() -> None:
        with suppress(OSError):  # the real daemon just exits
            found.append(answer(nsqd, "GET /debug/pprof/profile?seconds=300")[:2])

    thread = threading.Thread(target=profile)
    thread.start()
    eventually(
        lambda: re.search(r"Debug\.profile|pprof\.Profile\(", ask(nsqd, "GET /debug/pprof/goroutine?debug=2")[1])
    )
    refusal = (500, "Could not enable CPU profiling: cpu profiling already in use\n")
    assert ask(nsqd, "GET /debug/pprof/profile?seconds=1") == refusal
    assert nsqd.terminate() == 0
    thread.join()
    assert found == ([(200, {"Content-Type": TEXT})] if nsqd.command == own_command() else [])
