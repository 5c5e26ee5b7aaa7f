"""The log of a topic, read by number over HTTP (contrib/docs/logs.md). Only ours has this."""

import json
import re
import struct
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http.client import IncompleteRead, RemoteDisconnected
from pathlib import Path
from typing import Any

import pytest

from kit.daemons import DEADLINE, Instance, eventually, open_socket
from kit.http_api import ask, message, refusals
from kit.nsq_client import NSQClient
from kit.traffic import DaemonFactory, all_done, create, post, publish, take, wait_for

DURABLE = ("--durability=process",)
MESSAGES = "GET /topic/messages?topic=t"


@pytest.fixture
def nsqd(gnsqd_factory: DaemonFactory) -> Instance:
    nsqd = gnsqd_factory(*DURABLE)
    create(nsqd, "t", "c")
    return nsqd


def extent(nsqd: Instance, query: str = "") -> dict[str, Any]:
    status, answer = ask(nsqd, f"GET /topic/range?topic=t{query}")
    assert status == 200, answer
    row: dict[str, Any] = json.loads(answer)
    return row


def rows(nsqd: Instance, query: str = "") -> list[dict[str, Any]]:
    status, answer = ask(nsqd, MESSAGES + query)
    assert status == 200, answer
    return [json.loads(line) for line in answer.splitlines()]


def bodies(nsqd: Instance, query: str = "") -> list[str]:
    return [row["body"] for row in rows(nsqd, query)]


def advance(nsqd: Instance, to: int) -> dict[str, int]:
    answer: dict[str, int] = json.loads(post(nsqd, f"/channel/advance?topic=t&channel=c&to={to}"))
    return answer


def test_messages_of_a_range_are_read_again_and_nothing_is_consumed(nsqd: Instance) -> None:
    publish(nsqd, "t", b"a", b"<\xff>")
    post(nsqd, "/pub?topic=t&defer=60000", "ü".encode())
    lines = rows(nsqd)
    assert rows(nsqd) == lines
    ids, times = [line.pop("id") for line in lines], [line.pop("timestamp") for line in lines]
    due = lines[2].pop("due")
    assert lines == [
        {"number": 1, "body": "a"},
        {"number": 2, "body_base64": "PP8+"},
        {"number": 3, "body": "ü"},
    ]
    assert times[2] + 59 * 10**9 < due < times[2] + 61 * 10**9
    wait_for(nsqd, "t", "c", depth=2, deferred_count=1)
    assert [each.id.decode() for each in take(nsqd, "t", "c", 2)] == ids[:2]
    row = extent(nsqd, "&channel=c")
    assert row.pop("bytes") > 0
    assert len(row.pop("epoch")) == len(row.pop("process")) == 16
    assert row == {"first": 3, "next": 4, "first_published": times[2], "last_published": times[2], "position": 3}


def test_range_begins_and_ends_at_any_point(nsqd: Instance) -> None:
    publish(nsqd, "t", b"1")
    time.sleep(0.01)  # so that a time lies between them
    publish(nsqd, "t", *(b"%d" % number for number in range(2, 101)))
    all_of_them = [str(number) for number in range(1, 101)]
    id = rows(nsqd, "&from=50&to=51")[0]["id"]
    for query, begin, end in (
        ("", 1, 101),
        ("&from=first&to=next", 1, 101),
        ("&from=0&to=5", 1, 5),
        ("&from=0&to=0", 1, 1),
        ("&from=40", 40, 101),
        ("&from=40&to=64", 40, 64),
        ("&from=40&to=40", 40, 40),
        ("&from=101", 101, 101),
        ("&from=97&to=1000", 97, 101),
        (f"&from={id}", 50, 101),
        ("&from=-1h&to=-1ms", 1, 101),
        ("&from=40&max_bytes=1", 40, 65),  # 32 messages are in a record
    ):
        got = bodies(nsqd, query)
        assert got == all_of_them[begin - 1 : begin - 1 + len(got)], query
        assert len(got) == end - begin or (query.endswith("=1") and 0 < len(got) <= 32), query
    assert extent(nsqd, f"&at={id}")["at"] == 50
    assert extent(nsqd, "&at=-1h")["at"] == 1
    assert extent(nsqd, "&at=2100-01-01T00:00:00Z")["at"] == 101


def test_records_have_the_frames_of_consumers(nsqd: Instance) -> None:
    publish(nsqd, "t", *(b"%d" % number for number in range(100)))
    post(nsqd, "/pub?topic=t&defer=60000", b"late")
    status, headers, data = nsqd.http("GET", "/topic/messages?topic=t&from=10&format=records")
    assert (status, headers["Content-Type"]) == (200, "application/octet-stream")
    found = []
    while data:
        size, number, count, due = struct.unpack_from(">IqIq", data)
        frames, data = data[24 : 4 + size], data[4 + size :]
        for at in range(number, number + count):
            (frame_size, type) = struct.unpack_from(">II", frames)
            frame, frames = frames[8 : 4 + frame_size], frames[4 + frame_size :]
            assert type == 2
            found.append((at, frame[10:26].decode(), frame[26:].decode(), due > 0))
        assert not frames
    expected = [(row["number"], row["id"], row["body"], "due" in row) for row in rows(nsqd, "&from=10")]
    assert found == expected
    assert len(found) == 92


@pytest.mark.parametrize("durability", ["process", "disk"])
def test_kill_and_restart_keep_numbers_and_epoch(gnsqd_factory: DaemonFactory, durability: str) -> None:
    nsqd = gnsqd_factory(f"--durability={durability}")
    create(nsqd, "t", "c")
    publish(nsqd, "t", b"1", b"2", b"3")
    before, epoch, process = rows(nsqd), extent(nsqd)["epoch"], extent(nsqd)["process"]
    assert extent(nsqd)["process"] == process
    assert advance(nsqd, 2) == {"messages": 1, "position": 2}
    nsqd.kill()
    nsqd.start()
    assert rows(nsqd) == before[1:]
    wait_for(nsqd, "t", "c", depth=2)
    assert advance(nsqd, 4) == {"messages": 2, "position": 4}
    nsqd.restart()
    row = extent(nsqd, "&channel=c")
    assert (row["epoch"], row["first"], row["next"], row["position"]) == (epoch, 4, 4, 4), "though it is empty"
    assert row["process"] != process
    publish(nsqd, "t", b"4")
    assert [row["number"] for row in rows(nsqd)] == [4]
    post(nsqd, "/topic/delete?topic=t")
    create(nsqd, "t", "c")
    assert extent(nsqd)["epoch"] != epoch


def test_reader_at_the_end_waits(nsqd: Instance) -> None:
    began = time.monotonic()
    assert rows(nsqd, "&from=1&wait=100ms") == []
    assert time.monotonic() - began >= 0.1
    with ThreadPoolExecutor() as pool:
        readers = [pool.submit(bodies, nsqd, "&from=1&wait=20s") for _ in range(3)]
        eventually(lambda: nsqd.http("GET", "/debug/pprof/goroutine")[2].count(b"LogRange.wait") >= 1)
        publish(nsqd, "t", b"1")
        assert [reader.result() for reader in readers] == [["1"]] * 3
        reader = pool.submit(ask, nsqd, f"{MESSAGES}&from=2&wait=20s")
        eventually(lambda: b"LogRange.wait" in nsqd.http("GET", "/debug/pprof/goroutine")[2])
        post(nsqd, "/topic/delete?topic=t")
        assert reader.result() == (404, message("TOPIC_NOT_FOUND"))
        create(nsqd, "t")
        reader = pool.submit(ask, nsqd, f"{MESSAGES}&from=1&wait=20s")
        eventually(lambda: b"LogRange.wait" in nsqd.http("GET", "/debug/pprof/goroutine")[2])
        began = time.monotonic()
        nsqd.terminate()
        assert isinstance(reader.exception(), RemoteDisconnected)
        assert time.monotonic() - began < 10


def test_channel_follows_a_reader_wherever_its_messages_are(gnsqd_factory: DaemonFactory) -> None:
    nsqd = gnsqd_factory(*DURABLE, "--mem-queue-size=3")
    create(nsqd, "t", "c", "other")
    post(nsqd, "/topic/pause?topic=t")
    publish(nsqd, "t", *(b"%d" % number for number in range(1, 11)))
    for _ in range(5):
        post(nsqd, "/pub?topic=t&defer=60000", b"deferred")
    assert advance(nsqd, 16) == {"messages": 0, "position": 1}, "the topic has not handed them over"
    post(nsqd, "/topic/unpause?topic=t")
    wait_for(nsqd, "t", "c", depth=10, deferred_count=5)
    with NSQClient(nsqd.tcp_address) as client:
        client.subscribe("t", "c", 2)
        held = client.message()
        client.message()
        assert advance(nsqd, 6) == {"messages": 3, "position": 6}
        wait_for(nsqd, "t", "c", depth=5, in_flight_count=2, deferred_count=5)
        client.send(b"RDY 0\nREQ %b 0\n" % held.id)
        assert not all_done(client)
        wait_for(nsqd, "t", "c", depth=6, in_flight_count=1)
    assert advance(nsqd, 14)["position"] == 14
    wait_for(nsqd, "t", "c", depth=0, deferred_count=2)
    wait_for(nsqd, "t", "other", depth=10, deferred_count=5)
    nsqd.kill()
    nsqd.start()
    wait_for(nsqd, "t", "c", depth=0, deferred_count=2)
    wait_for(nsqd, "t", "other", depth=10, deferred_count=5)
    assert advance(nsqd, 3) == {"messages": 0, "position": 14}, "it never goes back"
    assert len(rows(nsqd, "&from=1")) == 15, "the other channel keeps them"


def test_message_that_comes_back_after_the_reader_is_not_reported_as_lost(gnsqd_factory: DaemonFactory) -> None:
    nsqd = gnsqd_factory(*DURABLE, "--mem-queue-size=0", "--max-bytes-per-file=5000")
    create(nsqd, "t", "c")
    publish(nsqd, "t", *(b"%-1000d" % number for number in range(1, 101)))
    with NSQClient(nsqd.tcp_address) as client:
        client.subscribe("t", "c", 100)
        messages = [client.message() for _ in range(100)]
        client.send(b"".join(b"FIN %b\n" % each.id for each in messages[1:]))
        wait_for(nsqd, "t", "c", in_flight_count=1)
        first = segments(nsqd)[0]
        assert advance(nsqd, 2)["position"] == 101
        publish(nsqd, "t", *[bytes(1000)] * 10)
        eventually(lambda: not first.exists())
        client.send(b"REQ %b 0\n" % messages[0].id)
        publish(nsqd, "t", b"last")
        assert all_done(client)
    assert "can't be read" not in nsqd.log()


def test_last_message_of_a_range_is_that_of_its_time(gnsqd_factory: DaemonFactory) -> None:
    nsqd = gnsqd_factory("--durability=disk")
    stopped = threading.Event()

    def publish_on() -> None:
        with NSQClient(nsqd.tcp_address) as client:
            while not stopped.is_set():
                client.publish("t", b"1", b"2")

    publish(nsqd, "t", b"0")
    with ThreadPoolExecutor() as pool:
        for _ in range(3):
            pool.submit(publish_on)
        try:
            for _ in range(5):
                found = extent(nsqd)  # the first gives the log its epoch
                last = f"&from={found['next'] - 1}&to={found['next']}"
                assert [row["timestamp"] for row in rows(nsqd, last)] == [found["last_published"]]
        finally:
            stopped.set()


def test_another_log_is_noticed(nsqd: Instance) -> None:
    publish(nsqd, "t", b"1")
    row = extent(nsqd)
    there = {name: row[name] for name in ("epoch", "first", "next")}
    expected = (410, json.dumps({"message": "LOG_CHANGED", **there}, separators=(",", ":")))
    assert ask(nsqd, f"{MESSAGES}&epoch=0123456789abcdef") == expected
    assert ask(nsqd, f"{MESSAGES}&from=3&epoch={row['epoch']}") == expected
    assert ask(nsqd, "POST /channel/advance?topic=t&channel=c&to=3") == expected
    assert ask(nsqd, "POST /channel/advance?topic=t&channel=c&to=1&epoch=") == expected
    assert bodies(nsqd, f"&epoch={row['epoch']}") == ["1"]


def segments(nsqd: Instance) -> list[Path]:
    return sorted(nsqd.data_path.glob("t.journal.*"))


@pytest.fixture
def retaining(gnsqd_factory: DaemonFactory) -> Instance:
    """Keeps about the last third of 100 messages of 1,000 bytes."""
    nsqd = gnsqd_factory(*DURABLE, "--retention-bytes=40000", "--max-bytes-per-file=5000")
    create(nsqd, "t", "c")
    for number in range(1, 101):
        post(nsqd, "/pub?topic=t", b"<%d>%1000s" % (number, b""))
    return nsqd


def test_messages_beyond_the_retention_are_gone(retaining: Instance) -> None:
    nsqd = retaining
    assert extent(nsqd)["first"] == 1, "the channel keeps them"
    take(nsqd, "t", "c", 100)
    eventually(lambda: extent(nsqd)["first"] > 50)
    row = extent(nsqd)
    assert row["next"] == 101
    assert [line["number"] for line in rows(nsqd, "&from=first")] == [*range(row["first"], 101)]
    eventually(lambda: ask(nsqd, f"{MESSAGES}&from=1&to=2")[0] == 410)  # once the segment is deleted
    status, answer = ask(nsqd, f"{MESSAGES}&from=1")
    error = json.loads(answer)
    assert (status, error.pop("message")) == (410, "MESSAGES_GONE")
    assert error == {**{name: row[name] for name in ("epoch", "first", "next")}, "readable": row["first"]}


def test_messages_finished_out_of_order_are_read_while_segments_have_them(nsqd: Instance) -> None:
    publish(nsqd, "t", *(b"%d" % number for number in range(1, 101)))
    with NSQClient(nsqd.tcp_address) as client:
        client.subscribe("t", "c", 100)
        messages = [client.message() for _ in range(100)]
        client.send(b"".join(b"FIN %b\n" % each.id for each in messages[49:60]))
        wait_for(nsqd, "t", "c", in_flight_count=89)
        assert bodies(nsqd, "&from=55") == [str(number) for number in range(55, 101)]


def test_reader_with_a_channel_skips_what_consumers_have_finished(gnsqd_factory: DaemonFactory) -> None:
    nsqd = gnsqd_factory(*DURABLE, "--max-bytes-per-file=5000")
    create(nsqd, "t", "c")
    for number in range(1, 101):
        post(nsqd, "/pub?topic=t", b"%-1000d" % number)
    with NSQClient(nsqd.tcp_address) as client:
        client.subscribe("t", "c", 100)
        messages = [client.message() for _ in range(100)]
        client.send(b"".join(b"FIN %b\n" % each.id for number, each in enumerate(messages, 1) if number % 10))
        wait_for(nsqd, "t", "c", in_flight_count=10)
        # Some are gone with their segments, others from between messages that were copied to another segment.
        eventually(lambda: {ask(nsqd, f"{MESSAGES}&from={number}&to={number + 1}")[0] for number in (2, 39)} == {410})
        with pytest.raises(IncompleteRead):
            nsqd.http("GET", "/topic/messages?topic=t&from=10")
        for query, begin, end in (("", 1, 101), ("&wait=20s", 39, 101), ("&max_bytes=1", 39, 41), ("&to=39", 2, 39)):
            numbers = [row["number"] for row in rows(nsqd, f"&from={begin}{query}&channel=c")]
            assert numbers == sorted(set(numbers) & {*range(begin, end)})
            assert {*range(10, 101, 10)} & {*range(begin, end)} <= {*numbers}, query
            assert not {2, 39} & {*numbers}
        assert rows(nsqd, "&from=2&to=3&channel=c") == []


def test_damage_ends_a_range_and_is_an_error(retaining: Instance) -> None:
    nsqd = retaining
    nsqd.restart()
    path = segments(nsqd)[len(segments(nsqd)) // 2]
    data = path.read_bytes()
    first = re.search(rb"<(\d+)> ", data)
    assert first
    damaged = int(first[1])
    path.write_bytes(data.replace(first[0], b"x" * len(first[0])))
    with pytest.raises(IncompleteRead) as error:
        nsqd.http("GET", "/topic/messages?topic=t")
    read = [json.loads(line) for line in error.value.partial.splitlines()]
    assert [row["number"] for row in read] == [*range(1, damaged)]
    with open_socket(nsqd.http_address, DEADLINE) as client:
        client.sendall(f"{MESSAGES} HTTP/1.0\r\n\r\n".encode())
        with pytest.raises(ConnectionResetError):
            b"".join(iter(lambda: client.recv(65536), b""))
    status, answer = ask(nsqd, f"{MESSAGES}&from={damaged}")
    row = json.loads(answer)
    assert (status, row["message"], row["readable"]) == (500, "MESSAGES_DAMAGED", damaged + 1)
    assert [row["number"] for row in rows(nsqd, f"&from={damaged + 1}")] == [*range(damaged + 1, 101)]
    assert f"messages {damaged} to {damaged} can't be read" in nsqd.log()


def test_one_request_answers_for_many_topics(nsqd: Instance) -> None:
    publish(nsqd, "t", b"a", b"b")
    create(nsqd, "u", "d")

    def ranges(query: str) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = json.loads(ask(nsqd, f"GET /topic/range?topics={query}")[1])["topics"]
        return found

    assert ranges("t,new,u") == {topic: json.loads(ask(nsqd, f"GET /topic/range?topic={topic}")[1]) for topic in "tu"}
    assert ranges("t,u&channel=c&at=next") == {"t": {**extent(nsqd), "position": 1, "at": 3}}
    assert ranges("") == {}


REFUSED: dict[str, tuple[int, str]] = {
    **{f"GET /topic/{what}?topic=x": (404, "TOPIC_NOT_FOUND") for what in ("range", "messages")},
    **{f"GET /topic/{what}": (400, "MISSING_ARG_TOPIC") for what in ("range", "messages")},
    "GET /topic/range?topic=t&channel=x": (404, "CHANNEL_NOT_FOUND"),
    "GET /topic/range?topic=t&channel=e%23ephemeral": (400, "CHANNEL_EPHEMERAL"),
    **{f"GET /topic/range?topic=t&at={text}": (400, "INVALID_ARG_AT") for text in ("", "soon", "-1", "1h")},
    **{f"{MESSAGES}&from={text}": (400, "INVALID_ARG_FROM") for text in ("", "-1", "1.5", "last", "9" * 20)},
    **{f"{MESSAGES}&to={text}": (400, "INVALID_ARG_TO") for text in ("", "-1", "end")},
    **{f"{MESSAGES}&max_bytes={text}": (400, "INVALID_ARG_MAX_BYTES") for text in ("", "0", "-1", "1MB")},
    **{f"{MESSAGES}&wait={text}": (400, "INVALID_ARG_WAIT") for text in ("", "1", "-1s", "61s")},
    "GET /topic/range?topics=t&at=soon": (400, "INVALID_ARG_AT"),
    "GET /topic/range?topic=x%23ephemeral": (400, "NO_JOURNAL"),
    f"{MESSAGES}&channel=x": (404, "CHANNEL_NOT_FOUND"),
    f"{MESSAGES}&channel=e%23ephemeral": (400, "CHANNEL_EPHEMERAL"),
    **{f"{MESSAGES}&format={text}": (400, "INVALID_ARG_FORMAT") for text in ("", "JSON", "text")},
    f"{MESSAGES}&from=1111111111111111": (404, "MESSAGE_NOT_FOUND"),
    "POST /channel/advance?topic=t&channel=x&to=1": (404, "CHANNEL_NOT_FOUND"),
    "POST /channel/advance?topic=t&channel=c": (400, "MISSING_ARG_TO"),
    "POST /channel/advance?topic=t&channel=e%23ephemeral&to=1": (400, "CHANNEL_EPHEMERAL"),
    **{f"POST /channel/advance?topic=t&channel=c&to={text}": (400, "INVALID_ARG_TO") for text in ("", "-1", "first")},
}


def test_what_is_wrong_is_refused(nsqd: Instance, nsqd_without_journal: Instance) -> None:
    with NSQClient(nsqd.tcp_address) as client:
        client.subscribe("t", "e#ephemeral", 0)
        assert refusals(nsqd, REFUSED) == REFUSED
    # whether the topic, or the channel, is there or not: it would have no log
    requests = [
        f"{endpoint}?topic={topic}&channel={channel}&to=1"
        for endpoint in ("GET /topic/range", "GET /topic/messages", "POST /channel/advance")
        for topic, channel in (("t", "c"), ("t", "new"), ("new", "c"))
    ]
    requests += ["GET /topic/range?topics=", "GET /topic/range?topics=t"]
    assert refusals(nsqd_without_journal, requests) == dict.fromkeys(requests, (400, "NO_JOURNAL"))


@pytest.fixture
def nsqd_without_journal(gnsqd_factory: Callable[..., Instance]) -> Instance:
    nsqd = gnsqd_factory()
    create(nsqd, "t", "c")
    return nsqd
