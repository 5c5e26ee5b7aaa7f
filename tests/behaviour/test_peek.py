"""Looking at queued messages without taking them: `GET /channel/peek` and `/topic/peek`, gnsqd's own."""

import base64
import json
from typing import Any

import pytest

from kit.daemons import Instance
from kit.http_api import ask, refusals
from kit.nsq_client import NSQClient
from kit.traffic import DaemonFactory, all_done, create, finish, post, publish, wait_for


def peek(nsqd: Instance, where: str = "channel/peek?topic=t&channel=c", **parameters: object) -> dict[str, Any]:
    query = "".join(f"&{name}={value}" for name, value in parameters.items())
    status, body = ask(nsqd, f"GET /{where}{query}")
    assert status == 200, body
    return dict(json.loads(body))


def bodies(answer: dict[str, Any]) -> list[str]:
    return [row["body"] for row in answer["messages"]]


def fill(nsqd: Instance, *messages: bytes) -> None:
    create(nsqd, "t", "c")
    for body in messages:
        publish(nsqd, "t", body)
    wait_for(nsqd, "t", "c", depth=len(messages))


def test_queued_messages_are_shown_with_all_their_fields(gnsqd: Instance) -> None:
    fill(gnsqd, b"first", "zweite ö <b>".encode(), b"\xff\x00")
    answer = peek(gnsqd)
    assert (answer["depth"], answer["backend_depth"]) == (3, 0)
    assert bodies(answer) == ["first", "zweite ö <b>", None]
    binary = answer["messages"][2]
    assert list(binary) == ["id", "timestamp", "attempts", "on_disk", "size", "body", "body_base64"]
    assert base64.b64decode(binary["body_base64"]) == b"\xff\x00"
    assert (binary["size"], binary["attempts"], binary["on_disk"]) == (2, 0, False)
    assert answer["messages"][0]["body_base64"] is None
    with NSQClient(gnsqd.tcp_address) as client:
        client.subscribe("t", "c", rdy=3)
        delivered = [client.message() for _ in range(3)]
    assert [(m.id.decode(), m.timestamp) for m in delivered] == [
        (row["id"], row["timestamp"]) for row in answer["messages"]
    ]


@pytest.mark.parametrize("mem_queue_size", [0, 3, 100])
def test_looking_takes_nothing_from_memory_or_disk(gnsqd_factory: DaemonFactory, mem_queue_size: int) -> None:
    nsqd = gnsqd_factory(f"--mem-queue-size={mem_queue_size}")
    expected = [b"%d" % number for number in range(10)]
    fill(nsqd, *expected)
    for _ in range(2):
        answer = peek(nsqd)
        assert bodies(answer) == [body.decode() for body in expected]
        assert [row["on_disk"] for row in answer["messages"]] == [n >= mem_queue_size for n in range(10)]
        assert (answer["depth"], answer["backend_depth"]) == (10, 10 - min(10, mem_queue_size))
    with NSQClient(nsqd.tcp_address) as client:
        client.subscribe("t", "c", rdy=4)
        got = [client.message() for _ in range(4)]
        # A look in the middle of a delivery changes nothing in what comes next.
        left = {row["body"].encode() for row in peek(nsqd)["messages"]}
        client.send(b"".join(b"FIN %b\n" % one.id for one in got))
        got += finish(client, 6)
        assert not all_done(client)
    assert sorted(one.body for one in got) == expected
    assert left == set(expected) - {one.body for one in got[:4]}
    assert {one.attempts for one in got} == {1}
    assert peek(nsqd) == {"depth": 0, "backend_depth": 0, "messages": []}


def test_all_files_of_a_queue_are_looked_at(gnsqd_factory: DaemonFactory) -> None:
    nsqd = gnsqd_factory("--mem-queue-size=0", "--max-bytes-per-file=100")
    fill(nsqd, *[b"%d" % number * 20 for number in range(9)])
    assert len(list(nsqd.data_path.glob("t:c.diskqueue.0*.dat"))) > 3
    assert bodies(peek(nsqd)) == [str(number) * 20 for number in range(9)]
    with NSQClient(nsqd.tcp_address) as client:
        client.subscribe("t", "c", rdy=1)
        for number in range(9):
            got = client.message()
            assert got.body == b"%d" % number * 20
            assert bodies(peek(nsqd, limit=2)) == [str(n) * 20 for n in range(number + 1, 9)][:2]
            client.command(b"FIN " + got.id)


def test_damage_is_left_for_consumers_to_meet(gnsqd_factory: DaemonFactory) -> None:
    nsqd = gnsqd_factory("--mem-queue-size=0", "--max-bytes-per-file=100")
    fill(nsqd, *[b"%d" % number * 20 for number in range(4)])
    (nsqd.data_path / "t:c.diskqueue.000000.dat").write_bytes(b"\xff" * 100)
    assert bodies(peek(nsqd)) == ["2" * 20, "3" * 20]
    assert not list(nsqd.data_path.glob("*.bad"))
    assert peek(nsqd)["depth"] == 4


def test_in_flight_and_deferred_messages_are_not_shown_but_what_came_back_is(gnsqd: Instance) -> None:
    fill(gnsqd, b"a", b"b")
    post(gnsqd, "/pub?topic=t&defer=60000", b"later")
    with NSQClient(gnsqd.tcp_address) as client:
        client.subscribe("t", "c", rdy=1)
        id = client.message().id
        assert bodies(peek(gnsqd)) == ["b"]
        client.send(b"RDY 0\nREQ %b 0\n" % id)
        assert not all_done(client)
    assert [(row["body"], row["attempts"]) for row in peek(gnsqd)["messages"]] == [("b", 0), ("a", 1)]


def test_a_topic_without_channels_can_be_looked_at(gnsqd_factory: DaemonFactory) -> None:
    nsqd = gnsqd_factory("--mem-queue-size=1")
    publish(nsqd, "t", b"a", b"b")
    answer = peek(nsqd, "topic/peek?topic=t")
    assert bodies(answer) == ["a", "b"]
    assert [row["on_disk"] for row in answer["messages"]] == [False, True]
    assert answer["depth"] == 2


def test_an_answer_is_bounded(gnsqd: Instance) -> None:
    fill(gnsqd, *[b"%02d" % number + b"<" * 200_000 for number in range(12)])
    answer = peek(gnsqd, limit=1000)
    assert 1 < len(answer["messages"]) < 7
    for number, row in enumerate(answer["messages"]):
        assert row["size"] == 200_002
        assert row["body"] == f"{number:02}" + "<" * (32 * 1024 - 2)
    assert len(peek(gnsqd, limit=2)["messages"]) == 2


def test_ten_messages_come_unless_more_are_asked_for(gnsqd: Instance) -> None:
    fill(gnsqd, *[b"%d" % number for number in range(12)])
    assert len(peek(gnsqd)["messages"]) == 10
    assert len(peek(gnsqd, limit=1000)["messages"]) == 12


REFUSED = {"POST /channel/peek?topic=t&channel=c": (405, "METHOD_NOT_ALLOWED")} | {
    f"GET /{where}&limit={limit}": (400, "INVALID_LIMIT")
    for where in ("channel/peek?topic=t&channel=c", "topic/peek?topic=t")
    for limit in ("0", "-1", "1001", "x", "", "1.5", "99999999999999999999")
}


def test_errors_are_those_of_the_other_endpoints(gnsqd: Instance) -> None:
    fill(gnsqd)
    assert refusals(gnsqd, REFUSED) == REFUSED
