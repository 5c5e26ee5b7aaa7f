"""Deferred messages (contrib/docs/schedule.md): far ahead, listed, counted and cancelled. Only ours has this."""

import json
import time
from datetime import UTC, datetime
from typing import Any

import pytest

from kit.daemons import Instance, eventually
from kit.http_api import ask, message, refusals
from kit.nsq_client import NSQClient
from kit.traffic import DaemonFactory, create, post, take

MINUTE, DAY = 60_000, 86_400_000  # ms
SLACK = 5 * 10**9  # ns, which a busy machine may take between two readings of its clocks
STORES = {
    "in memory": (),
    "on disk": ("--mem-queue-size=0",),
    "in the journal": ("--durability=process", "--mem-queue-size=2"),
}


@pytest.fixture(params=STORES.values(), ids=list(STORES))
def nsqd(gnsqd_factory: DaemonFactory, request: pytest.FixtureRequest) -> Instance:
    nsqd = gnsqd_factory("--max-defer-time=8760h", *request.param)
    create(nsqd, "t", "c")
    return nsqd


def defer(nsqd: Instance, *delays: int) -> None:
    """Publishes messages whose bodies are their delays, in ms."""
    for delay in delays:
        post(nsqd, f"/pub?topic=t&defer={delay}", b"%d" % delay)
    eventually(lambda: scheduled(nsqd)["deferred"] + nsqd.channel_stats("t", "c")["depth"] >= len(delays))
    with NSQClient(nsqd.tcp_address) as client:  # what is on disk is held back once somebody asks for it
        client.subscribe("t", "c", 1)
        eventually(lambda: nsqd.channel_stats("t", "c")["depth"] == 0)


def scheduled(nsqd: Instance, parameters: str = "") -> dict[str, Any]:
    status, answer = ask(nsqd, f"GET /channel/deferred?topic=t&channel=c{parameters}")
    assert status == 200, answer
    found: dict[str, Any] = json.loads(answer)
    return found


def bodies(nsqd: Instance, parameters: str = "") -> list[int]:
    return [int(row["body"]) for row in scheduled(nsqd, parameters)["messages"]]


def test_list_has_the_messages_in_the_order_in_which_they_are_due(nsqd: Instance) -> None:
    before = time.time_ns()
    defer(nsqd, 40 * DAY, 2 * MINUTE, 364 * DAY, 3 * DAY, MINUTE, 5 * 60 * MINUTE)
    after = time.time_ns()
    found = scheduled(nsqd)
    assert found["deferred"] == 6
    assert [row["messages"] for row in found["due"]] == [1, 2, 3, 4]
    assert [row["within"] // 10**6 for row in found["due"]] == [MINUTE, 60 * MINUTE, DAY, 7 * DAY]
    assert bodies(nsqd) == [MINUTE, 2 * MINUTE, 5 * 60 * MINUTE, 3 * DAY, 40 * DAY, 364 * DAY]
    for row in found["messages"]:
        delay = int(row["body"]) * 10**6
        assert before + delay - SLACK <= row["due"] <= after + delay + SLACK
        assert (row["attempts"], row["size"]) == (0, len(row["body"]))
    assert bodies(nsqd, "&limit=2") == [MINUTE, 2 * MINUTE]
    tomorrow = datetime.fromtimestamp(time.time() + 86400, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    assert bodies(nsqd, f"&limit=2&from={tomorrow}") == [3 * DAY, 40 * DAY]
    assert bodies(nsqd, "&limit=1&from=0001-01-01T00:00:00Z") == [MINUTE]
    assert bodies(nsqd, "&from=2300-01-01T00:00:00Z") == []


def test_cancelled_message_is_gone(nsqd: Instance) -> None:
    defer(nsqd, MINUTE, 2 * MINUTE, DAY, 2 * DAY)
    ids = {int(row["body"]): row["id"] for row in scheduled(nsqd)["messages"]}
    assert bodies(nsqd, f"&id={ids[DAY]}") == [DAY]
    for delay in (MINUTE, DAY):
        cancel = f"POST /channel/deferred/cancel?topic=t&channel=c&id={ids[delay]}"
        assert ask(nsqd, cancel) == (200, "")
        assert ask(nsqd, cancel) == (404, message("MESSAGE_NOT_FOUND"))
        assert ask(nsqd, cancel.replace("/cancel", "").replace("POST", "GET"))[0] == 404
    assert bodies(nsqd) == [2 * MINUTE, 2 * DAY]
    assert nsqd.channel_stats("t", "c")["deferred_count"] == 2
    post(nsqd, "/pub?topic=t&defer=1", b"soon")
    assert take(nsqd, "t", "c", 1)[0].body == b"soon"
    nsqd.restart()
    defer(nsqd)
    assert bodies(nsqd) == [2 * MINUTE, 2 * DAY]


def test_answer_is_bounded_however_large_the_messages_are(nsqd: Instance) -> None:
    for _ in range(5):
        post(nsqd, f"/pub?topic=t&defer={DAY}", b"x" * 400_000)
    defer(nsqd)
    found = scheduled(nsqd)
    assert found["deferred"] == 5
    assert [row["size"] for row in found["messages"]] == [400_000] * 2, "together at most 1 MiB"


def test_requeued_message_is_listed_and_cancelled_too(nsqd: Instance) -> None:
    with NSQClient(nsqd.tcp_address) as client:
        client.publish("t", b"1", b"2", b"3", b"4")
        client.subscribe("t", "c", 4)
        received = [client.message() for _ in range(4)]
        for each in received:
            client.command(b"REQ %b 60000" % each.id)
        eventually(lambda: len(bodies(nsqd)) == 4)
        assert [row["attempts"] for row in scheduled(nsqd)["messages"]] == [1] * 4
        for each in received:
            post(nsqd, f"/channel/deferred/cancel?topic=t&channel=c&id={each.id.decode()}")
    assert nsqd.channel_stats("t", "c")["deferred_count"] == nsqd.channel_stats("t", "c")["depth"] == 0


def test_mpub_defers_all_its_messages(nsqd: Instance) -> None:
    post(nsqd, f"/mpub?topic=t&defer={DAY}", b"1\n2\n3\n4")
    defer(nsqd)
    eventually(lambda: sorted(bodies(nsqd)) == [1, 2, 3, 4])


def test_schedule_survives_kills_and_restarts(gnsqd_factory: DaemonFactory) -> None:
    nsqd = gnsqd_factory("--max-defer-time=8760h", "--durability=process", "--mem-queue-size=1")
    create(nsqd, "t", "c")
    defer(nsqd, 300 * DAY, 2 * DAY, 40 * DAY, MINUTE)
    expected = [MINUTE, 2 * DAY, 40 * DAY, 300 * DAY]
    before = [row["due"] for row in scheduled(nsqd)["messages"]]
    gone = next(row["id"] for row in scheduled(nsqd)["messages"] if row["body"] == str(40 * DAY))
    post(nsqd, f"/channel/deferred/cancel?topic=t&channel=c&id={gone}")
    expected.remove(40 * DAY)
    del before[2]
    for kill in (True, False):
        if kill:
            nsqd.kill()
            nsqd.start()
        else:
            nsqd.restart()
        assert bodies(nsqd) == expected
        for row, due in zip(scheduled(nsqd)["messages"], before, strict=True):
            assert abs(row["due"] - due) < SLACK


REFUSED = {
    "GET /channel/deferred?topic=t&channel=c&limit=1001": (400, "INVALID_LIMIT"),
    "POST /mpub?topic=t&defer=-1": (400, "INVALID_DEFER"),
    "POST /mpub?topic=t&defer=31536000001": (400, "INVALID_DEFER"),
}


def test_bad_request_gets_one_clear_answer(nsqd: Instance) -> None:
    assert refusals(nsqd, REFUSED) == REFUSED
    by_journal = "--durability=process" in nsqd.flags  # only a journal has to know where the message would be
    expected = (400, message("INVALID_ARG_ID")) if by_journal else (404, message("MESSAGE_NOT_FOUND"))
    assert ask(nsqd, "POST /channel/deferred/cancel?topic=t&channel=c&id=x") == expected


def test_longest_time_is_that_of_nsqd_unless_set(gnsqd_factory: DaemonFactory) -> None:
    for flags, longest in (
        ((), 60 * MINUTE),
        (("--max-req-timeout=2h",), 120 * MINUTE),
        (("--max-defer-time=8760h",), 365 * DAY),
        (("--max-defer-time=1m",), MINUTE),
    ):
        nsqd = gnsqd_factory(*flags)
        for delay, status in ((longest, 200), (longest + 1, 400)):
            assert nsqd.http("POST", f"/pub?topic=t&defer={delay}", b"x")[0] == status, (flags, delay)
        with NSQClient(nsqd.tcp_address) as client:
            client.command(b"DPUB t %d" % longest, b"x")
            assert client.response() == b"OK"
            client.command(b"DPUB t %d" % (longest + 1), b"x")
            assert client.error() == b"E_INVALID DPUB timeout %d out of range 0-%d" % (longest + 1, longest)
