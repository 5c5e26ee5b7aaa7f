"""What nodes may answer: JSON that arrives in pieces, limits of one answer and of all together, and what is kept."""

import itertools
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from cli import fake_nsqd as fake
from cli.gnsqadmin import FakeNode, http_answer
from cli.nodes import at
from cli.test_scale import measured
from kit.daemons import DEADLINE
from nsqadmin_cli import budget, cluster, json_stream
from nsqadmin_cli.api import NodeStats, Nsqd
from nsqadmin_cli.budget import Pool, TooLarge
from nsqadmin_cli.cluster import Cluster, ask_all
from nsqadmin_cli.http_client import Address, HTTPClient, NodeError
from nsqadmin_cli.json_stream import parse
from nsqadmin_cli.snapshot import ClusterSnapshot, take_snapshot

BEGIN = b'{"version":"1.3.0","health":"OK","start_time":1,"topics":['
TOPIC = json.dumps(fake.topic("t", *(fake.channel(f"c{number}") for number in range(10)))).encode() + b","

HUGE = "answered a part, such as a topic, of more than 8 MiB"
OBJECTS = "answered a part, such as a topic, with too many objects"
NOT_JSON = "answered something that is not JSON; is this the HTTP address of an nsqd?"

# How a body begins, what is repeated without end, and the reason that is reported.
ENDLESS = {
    "topics": (BEGIN, TOPIC * 20, "answered more than 1 MiB"),
    "white space": (BEGIN, b" " * 60_000, "answered more than 1 MiB"),
    "text": (b'{"version":"', b"x" * 60_000, HUGE),
    "wide text": ('{"version":"\U0001f600'.encode(), b"x" * 60_000, HUGE),
    "objects": (BEGIN + b'{"x":[', b"{}," * 20_000, OBJECTS),
    "numbers": (BEGIN + b'{"x":[', b"1234," * 12_000, OBJECTS),
    "keys": (b"{", b"".join(b'"%d":1,' % n for n in range(2000)), "answered an object of more than 1000 keys"),
    "lists": (b"", b"[" * 60_000, NOT_JSON),
    "no JSON": (b"", b"x" * 60_000, NOT_JSON),
}


def pouring(head: bytes, begin: bytes, repeated: bytes) -> Callable[[socket.socket], None]:
    def pour(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 %b\r\nContent-Type: application/json\r\n\r\n%b" % (head, begin))
        while True:
            connection.sendall(repeated)

    return pour


def look(*nodes: FakeNode, timeout: float = DEADLINE) -> ClusterSnapshot:
    return take_snapshot(Cluster([Address.parse(node.address) for node in nodes], [], HTTPClient(timeout)))


@pytest.mark.parametrize("begin, repeated, reason", ENDLESS.values(), ids=ENDLESS)
def test_an_answer_without_end_is_one_error(
    begin: bytes, repeated: bytes, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "1 MiB" in reason:
        monkeypatch.setattr(budget, "LARGEST_ANSWER", 1 << 20)
    with FakeNode(pouring(b"200 OK", begin, repeated)) as node:
        assert [error.reason for error in look(node).errors] == [reason]


def test_an_error_without_end_is_read_no_further_than_its_beginning() -> None:
    with FakeNode(pouring(b"500 Error", b'{"message":[', b"{}," * 20_000)) as node:
        assert [error.reason for error in look(node).errors] == ["answered HTTP 500 (Error)"]


def test_nodes_without_end_take_no_more_memory_than_one_budget(tmp_path: Path) -> None:
    with ExitStack() as stack:
        nodes = [stack.enter_context(FakeNode(pouring(b"200 OK", b'{"version":"', b"x" * 60_000))) for _ in range(6)]
        code, _, megabytes, err = measured(tmp_path / "out", "stats", f"--timeout={DEADLINE}", *at(*nodes))
    assert (code, err.count("\n")) == (1, 6), err
    assert megabytes < 250


def test_each_node_has_a_share_that_others_cannot_use_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "LARGEST_LOOK", 4 << 20)
    large = fake.node(*(fake.topic(f"t{number}" * 20) for number in range(2000)))
    body = json.dumps(large).encode()
    assert (1 << 18) < len(body) < 4 << 20 >> 3
    sent = threading.Barrier(3)  # until two nodes have sent more than their shares

    def late(connection: socket.socket) -> None:
        sent.wait(DEADLINE)
        connection.sendall(http_answer(body))

    def endless(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n" + BEGIN + TOPIC * ((3 << 19) // len(TOPIC)))
        sent.wait(DEADLINE)
        while True:
            connection.sendall(TOPIC)

    with FakeNode(late) as well, FakeNode(endless) as first, FakeNode(endless) as second:
        seen = look(well, first, second)
        assert [address.port for address in seen.nodes] == [int(well.address.split(":")[1])]
        reason = "answered more than is left of 4 MiB for the answers of all nodes"
        assert {error.reason for error in seen.errors} == {reason}


def test_errors_do_not_keep_what_was_read() -> None:
    with FakeNode(pouring(b"200 OK", b"", b"x" * 60_000)) as node:
        (error,) = look(node).errors
    assert (error.__traceback__, error.__context__, error.__cause__) == (None, None, None)


@pytest.mark.parametrize("head", [b"X: ", b"Transfer-Encoding: chunked\r\n\r\n1;", b"Content-Length: 100000\r\n\r\n"])
def test_a_connection_that_drips_is_closed_at_the_timeout(head: bytes) -> None:
    """So a page that is served for long does not collect them."""
    gone = threading.Event()

    def drip(connection: socket.socket) -> None:
        try:
            connection.sendall(b"HTTP/1.1 200 OK\r\n" + head)
            while True:
                connection.sendall(b" ")
                gone.wait(0.01)
        except OSError:
            gone.set()

    with FakeNode(drip) as node:
        assert [error.reason for error in look(node, timeout=0.3).errors] == ["no complete answer within 0.3 s"]
        assert gone.wait(DEADLINE)


def test_a_bounded_number_of_threads_asks_any_number_of_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "_MOST_THREADS", 5)
    nodes = [Nsqd(Address("127.0.0.1", port), HTTPClient(DEADLINE)) for port in range(1, 101)]
    started: list[threading.Thread] = []

    class Thread(threading.Thread):
        def start(self) -> None:
            started.append(self)
            super().start()

    monkeypatch.setattr(threading, "Thread", Thread)
    assert list(ask_all(nodes, lambda node: node.address.port, DEADLINE).values()) == list(range(1, 101))
    assert len(started) == 5


def test_nodes_that_are_gone_are_forgotten() -> None:
    stats = NodeStats("1.3.0", "OK", 1, ())
    gone, failed, here = (Address("127.0.0.1", port) for port in (1, 2, 3))
    before = ClusterSnapshot(dict.fromkeys((gone, failed, here), stats), [])
    seen = ClusterSnapshot({failed: NodeError("nsqd", failed, "x"), here: stats}, [], before)
    assert set(seen.latest) == {failed, here}


DOCUMENTS = [
    [], {}, 17, -1.5e-7, "x", None, True, [1, [2, {"a": []}], "b"],
    {"a": 1234567, "b": [], "c": [1.25, 2], "d": {"a": [0]}, "e": -2.5e30},
    {"topics": [{"a": 'é"\\\n\u2028\U0001f600'}, {"a": [[], {}, "]}"]}], "x": "\ud800", "topic": [{"a": 1}]},
]  # fmt: skip


def parts_of(text: bytes, size: int) -> Iterator[bytes]:
    return (text[at : at + size] for at in range(0, len(text), size))


@pytest.mark.parametrize("document", DOCUMENTS, ids=str)
def test_json_in_pieces_is_read_as_json(document: Any) -> None:
    for ascii, indent in itertools.product((True, False), (None, 1)):
        text = json.dumps(document, ensure_ascii=ascii, indent=indent).encode("utf-8", "surrogatepass")
        for size in (1, 2, 3, 7, 1000):
            assert parse(parts_of(text, size), {"topics": lambda item: item}) == document
        for end in range(len(text) - 1) if not isinstance(document, int | float) else ():
            with pytest.raises(ValueError):
                parse(parts_of(text[:end], 3), {"topics": lambda item: item})


def test_large_items_of_many_nodes_wait_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_stream, "_PATIENCE", 0)
    monkeypatch.setattr(json_stream, "_texts", Pool(0, "waited in vain"))  # others have all of it
    text = json.dumps({"topics": ["x" * 200_000, "y", "z" * 200_000]}).encode()
    first, *rest = parts_of(text, 70_000)

    def slow() -> Iterator[bytes]:
        yield first
        with pytest.raises(TooLarge, match="waited in vain"):
            parse(parts_of(text, 70_000), {"topics": str})
        yield from rest

    for parts in (slow(), parts_of(text, 70_000)):
        assert parse(parts, {"topics": str}) == json.loads(text)


@pytest.mark.parametrize(
    "text",
    [b'{"a" 1}', b'{"a": 1,}', b"{1: 2}", b'{"a": 1} x', b'{"topics": [1 2]}', b'{"topics": [1,]}', b"{,}", b"[1}"],
)
def test_what_is_not_json_is_refused(text: bytes) -> None:
    for size in (1, 100):
        with pytest.raises(ValueError):
            parse(parts_of(text, size), {"topics": lambda item: item})


def test_items_of_lists_become_rows_one_by_one() -> None:
    rows: list[int] = []
    text = b'{"a": [1, 2], "topics": [3, 4'
    with pytest.raises(ValueError):
        parse(iter([text + b", ", b"5", b", 6]"]), {"topics": lambda item: rows.append(item)})
    assert rows == [3, 4, 5, 6]
