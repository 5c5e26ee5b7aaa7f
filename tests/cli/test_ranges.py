"""`gnsqadmin topic range`, and `tail`, `save` and `copy` with --from: logs of nodes are read, and nothing changes."""

import json
import re
import socket
import time
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from cli import fake_nsqd
from cli.gnsqadmin import FakeNode, ctrl_c, document, gnsqadmin, http_answer, start
from cli.nodes import address, at, channels, fill
from kit.daemons import Instance, fixed_ports
from kit.traffic import DaemonFactory, post

DURABLE = ("--durability=process", "--retention-bytes=1000000")


@pytest.fixture
def nodes(gnsqd_factory: DaemonFactory) -> list[Instance]:
    """Starts two nodes that have the messages "0", "1", "2" of the topic t, which the channel c of the first has
    finished."""
    both = [gnsqd_factory(*DURABLE, *fixed_ports()) for _ in range(2)]
    for node in both:
        fill(node, "t", "c", count=3)
    post(both[0], "/channel/empty?topic=t&channel=c")
    return both


def test_a_range_has_numbers_times_and_the_lag_of_a_channel(
    nodes: list[Instance], gnsqd_factory: DaemonFactory
) -> None:
    found = document("topic", "range", "t", "--at=-1h", "--channel=c", *at(*nodes))
    rows = found.pop("nodes")
    assert found == {"topic": "t", "channel": "c", "at": "-1h"}
    for node, row, position in zip(nodes, rows, (4, 1), strict=True):
        assert re.fullmatch("[0-9a-f]{16}", row.pop("epoch"))
        assert time.time() - 60 < row.pop("first_published") <= row.pop("last_published") < time.time()
        assert row.pop("bytes") > 100
        numbers = {"first": 1, "next": 4, "at": 1, "position": position, "lag": 4 - position}
        assert row == {"address": address(node), "error": None} | numbers
    other = gnsqd_factory()
    fill(other, "t", count=1)
    result = gnsqadmin("topic", "range", "t", *at(nodes[0], other))
    reason = "has no log of the topic: that needs --durability, and a topic that is not ephemeral"
    assert (result.code, result.err) == (1, f"Error: nsqd at {address(other)}: {reason}\n")
    assert result.out.splitlines()[2].split()[2:4] == ["1", "4"]


def test_tail_shows_the_past_and_follows_all_nodes_without_a_channel_also_after_a_restart(
    nodes: list[Instance],
) -> None:
    with start("tail", "t", "--from", "2", "--json", *at(*nodes)) as process:
        lines = iter(process.stdout or ())
        past = [(row["node"], row["body"]) for row in map(json.loads, islice(lines, 4))]
        assert sorted(past) == sorted((address(node), body) for node in nodes for body in "12")
        nodes[0].restart()
        for node, body in zip(nodes, "ab", strict=True):
            post(node, "/pub?topic=t", body.encode())
            row = json.loads(next(lines))
            assert (row["node"], row["body"], row["topic"], row["attempts"]) == (address(node), body, "t", 1)
        assert ctrl_c(process).code == 130
    assert [channels(node, "t") for node in nodes] == [["c"], ["c"]]


def test_save_and_copy_take_a_range_and_name_the_number_to_continue_from(nodes: list[Instance], tmp_path: Path) -> None:
    file = tmp_path / "saved"
    result = gnsqadmin("save", "t", str(file), "--from=2", "--to=3", *at(*nodes))
    continued = "".join(f"t at {address(node)}: continue with --from 3\n" for node in nodes)
    assert (result.code, result.err) == (0, continued)
    assert [json.loads(line)["body"] for line in file.read_text().splitlines()] == ["1", "1"]
    result = gnsqadmin("save", "t", str(file), "--from=3", "--append", "--json", *at(nodes[0]))
    assert (json.loads(result.out)["channel"], json.loads(result.out)["messages"]) == (None, 1)
    result = gnsqadmin("save", "t", "-", "--from=first", "-n2", *at(nodes[0]))
    assert [json.loads(line)["body"] for line in result.out.splitlines()] == ["0", "1"]
    assert result.err.startswith(f"t at {address(nodes[0])}: continue with --from 3\n")
    assert gnsqadmin("copy", "t", "u", "--from=-1h", "--to=next", *at(nodes[0])).code == 0
    assert nodes[0].stats("u")["topics"][0]["message_count"] == 3
    assert [channels(node, "t") for node in nodes] == [["c"], ["c"]]
    assert nodes[1].channel_stats("t", "c")["depth"] == 3


# Nodes that fail in the middle


def record(number: int, *bodies: bytes) -> bytes:
    """Returns a record of `/topic/messages` with these messages."""
    messages = [b"\0\0\0\x02" + bytes(8) + b"\0\x01" + b"0" * 16 + body for body in bodies]
    frames = b"".join(len(message).to_bytes(4, "big") + message for message in messages)
    payload = number.to_bytes(8, "big") + len(bodies).to_bytes(4, "big") + bytes(8) + frames
    return len(payload).to_bytes(4, "big") + payload


def chunks(*parts: bytes, is_whole: bool = True) -> bytes:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    data = [b"%x\r\n%s\r\n" % (len(part), part) for part in parts]
    return head + b"".join(data) + b"0\r\n\r\n" * is_whole


def refusal(status: str, code: str, **details: Any) -> bytes:
    return http_answer(json.dumps({"message": code} | details).encode(), status)


STATS = fake_nsqd.node(fake_nsqd.topic("t"))
EXTENT = {"epoch": "0e", "first": 1, "next": 6, "first_published": None, "last_published": None, "bytes": 0}


def node_with(*answers: bytes, **extent: Any) -> FakeNode:
    """Starts a node whose log of t has the messages 1 to 5, with these answers to requests for messages, in turn."""
    left = list(answers)

    def talk(connection: socket.socket) -> None:
        request = node.requests[-1]
        place = EXTENT | {"at": 1 if b"at=1" in request else 6} | extent
        known = {b"GET /stats?": STATS, b"GET /topic/range?": place}
        document = next((known[path] for path in known if request.startswith(path)), None)
        answer = left.pop(0) if left and document is None else b""
        connection.sendall(answer if document is None else http_answer(json.dumps(document).encode()))

    node = FakeNode(talk)
    return node


def test_what_came_before_a_failure_is_kept_and_the_rest_asked_for_again() -> None:
    broken = chunks(record(1, b"a", b"b"), record(3, b"c")[:20], is_whole=False)
    answers = (broken, b"", refusal("503 Service Unavailable", "EXITING"), chunks(record(3, b"c", b"d", b"e")))
    with node_with(*answers) as node:
        code, out, err = gnsqadmin("save", "t", "-", "--from=1", *at(node))
    assert (code, [json.loads(line)["body"] for line in out.splitlines()]) == (0, [*"abcde"])
    assert err.count("; trying again") == 1
    asked = [request for request in node.requests if request.startswith(b"GET /topic/messages?")]
    assert [re.findall(rb"epoch=(\w+)|from=(\w+)|&to=(\w+)", one) for one in asked] == [
        [(b"0e", b"", b""), (b"", b"", b"6"), (b"", number, b"")] for number in (b"1", b"3", b"3", b"3")
    ]


LOST = {
    "MESSAGES_GONE": "messages of t from 3 on are not kept any more; continue with --from 5",
    "MESSAGES_DAMAGED": "messages of t from 3 on are damaged; continue with --from 5",
    "LOG_CHANGED": "its log of t is another one, or does not reach 3: the topic was deleted, or data replaced",
    "FORBIDDEN": "answered HTTP 410 (FORBIDDEN); continue with --from 3",
}


def test_missing_messages_are_an_error_after_those_before() -> None:
    for code, reason in LOST.items():
        more = {} if code in ("LOG_CHANGED", "FORBIDDEN") else {"readable": 5}
        for command in (["tail", "t"], ["save", "t", "-"]):
            with node_with(chunks(record(1, b"a", b"b")), refusal("410 Gone", code, **more)) as node:
                result = gnsqadmin(*command, "--from=1", *at(node))
            assert (result.code, len(result.out.splitlines())) == (1, 2)
            assert result.err.endswith(f"Error: nsqd at {address(node)}: {reason}\n")


def test_other_messages_than_the_next_ones_are_asked_for_again() -> None:
    for said in (record(2, b"x"), record(1, b"x")[:-1], b"\0\0\0\x01x", b""):
        with node_with(chunks(*[said] * bool(said)), chunks(record(1, *b"a b c d e".split()))) as node:
            code, out, err = gnsqadmin("save", "t", "-", "--from=1", *at(node))
        assert (code, len(out.splitlines())) == (0, 5)
        assert f"nsqd at {address(node)}: did not answer messages from 1 on: " in err
