"""Messages that are delivered again (contrib/docs/logs.md), by ordinary clients. Only ours has this."""

import json
import time
from datetime import UTC, datetime
from typing import Any

import pytest

from kit.daemons import Instance, eventually
from kit.exposition import labels, series
from kit.http_api import ask, message, refusals
from kit.nsq_client import NSQClient, ReceivedMessage
from kit.traffic import DaemonFactory, all_done, create, publish, take, wait_for

RETAINING = ("--durability=process", "--retention-bytes=1000000")
REWIND = "POST /channel/rewind?topic=t&channel=c"


def bodies(messages: list[ReceivedMessage]) -> list[bytes]:
    return sorted(each.body for each in messages)


def plan(nsqd: Instance, to: str) -> dict[str, Any]:
    status, answer = ask(nsqd, f"GET /channel/rewind?topic=t&channel=c&to={to}")
    assert status == 200, answer
    found: dict[str, Any] = json.loads(answer)
    return found


def moment(timestamp: int) -> str:
    """Returns a time as in RFC 3339, with a time zone other than UTC."""
    text = datetime.fromtimestamp(timestamp // 10**9 + 3600, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{text}.{timestamp % 10**9 // 1000:06}%2B01:00"


@pytest.fixture
def nsqd(gnsqd_factory: DaemonFactory) -> Instance:
    nsqd = gnsqd_factory(*RETAINING)
    create(nsqd, "t", "c")
    return nsqd


def test_messages_come_again_from_every_kind_of_point(nsqd: Instance) -> None:
    publish(nsqd, "t", b"0")
    time.sleep(0.01)  # so that a time lies between them
    publish(nsqd, "t", b"1", b"2")
    first, second, third = sorted(take(nsqd, "t", "c", 3), key=lambda each: each.id)
    for point, count in (
        ("first", 3),
        ("-1h", 3),
        ("-1d", 3),
        ("-1d12h30m", 3),
        (second.id.decode(), 2),
        (moment(second.timestamp), 2),
        (moment(second.timestamp).lower(), 2),
        ("2026-01-01t00:00:00.123456789z", 3),
        (moment(third.timestamp + 10**9), 0),
    ):
        assert plan(nsqd, point)["messages"] == count, point
        assert ask(nsqd, f"{REWIND}&to={point}") == (200, f'{{"messages":{count}}}')
        again = take(nsqd, "t", "c", count)
        assert bodies(again) == [b"0", b"1", b"2"][3 - count :]
        assert {each.attempts for each in again} <= {1}
    for point in (f"{third.id.decode()}&until={second.id.decode()}", f"{second.id.decode()}&until=first"):
        assert ask(nsqd, f"{REWIND}&to={point}") == (400, message("UNTIL_BEFORE_TO"))
    assert ask(nsqd, f"{REWIND}&to=first&until={second.id.decode()}") == (200, '{"messages":1}')
    assert bodies(take(nsqd, "t", "c", 1)) == [b"0"]
    assert first.timestamp < second.timestamp


def test_plan_shows_what_comes_again_and_a_rewind_changes_nothing_else(nsqd: Instance) -> None:
    publish(nsqd, "t", b"0", b"1", b"2")
    with NSQClient(nsqd.tcp_address) as client:
        client.subscribe("t", "c", 1)
        done = client.message()
        client.command(b"FIN " + done.id)
        held = client.message()
        assert held.id != done.id
        eventually(lambda: nsqd.channel_stats("t", "c")["depth"] == 1)
        expected = {"messages": 1, "depth": 1, "in_flight": 1, "deferred": 0}
        expected |= dict.fromkeys(["first", "last", "retained_since"], done.timestamp)
        for _ in range(2):
            assert plan(nsqd, "first") == expected
        assert ask(nsqd, f"{REWIND}&to=first") == (200, '{"messages":1}')
        wait_for(nsqd, "t", "c", depth=2, in_flight_count=1)
        client.send(b"RDY 0\nREQ %b 0\n" % held.id)
        assert not all_done(client)
    again = {each.id: each.attempts for each in take(nsqd, "t", "c", 3)}
    assert (again.pop(held.id), again.pop(done.id), *again.values()) == (2, 1, 1), "what is not finished is as before"
    page = series(nsqd.http("GET", "/metrics")[2])
    assert page["gnsqd_topic_retained_messages", labels(topic="t")] == 3


def test_consumers_that_wait_get_what_comes_again_and_a_kill_loses_nothing(nsqd: Instance) -> None:
    publish(nsqd, "t", *(b"%03d" % number for number in range(200)))
    take(nsqd, "t", "c", 200)
    with NSQClient(nsqd.tcp_address) as client:
        client.subscribe("t", "c", 10)
        assert ask(nsqd, f"{REWIND}&to=first") == (200, '{"messages":200}')
        assert client.message().attempts == 1
        nsqd.kill()
    nsqd.start()
    assert bodies(take(nsqd, "t", "c", 200)) == [b"%03d" % number for number in range(200)]
    nsqd.restart()
    assert plan(nsqd, "first")["messages"] == 200
    assert nsqd.channel_stats("t", "c")["depth"] == 0


def test_new_channel_begins_at_a_point_in_the_past(nsqd: Instance) -> None:
    publish(nsqd, "t", b"0", b"1")
    second = max(take(nsqd, "t", "c", 2), key=lambda each: each.id)
    create = "POST /channel/create?topic=t&channel=new"
    assert ask(nsqd, f"{create}&from={second.id.decode()}") == (200, "")
    publish(nsqd, "t", b"2")
    assert bodies(take(nsqd, "t", "new", 2)) == [b"1", b"2"]
    assert ask(nsqd, f"{create}&from=first") == (400, message("CHANNEL_EXISTS"))
    assert ask(nsqd, create) == (200, "")


def test_messages_are_kept_for_the_time_given(gnsqd_factory: DaemonFactory) -> None:
    nsqd = gnsqd_factory(*RETAINING, "--retention-time=500ms")
    create(nsqd, "t", "c")
    published = time.time()
    publish(nsqd, "t", b"0")
    take(nsqd, "t", "c", 1)
    key = ("gnsqd_topic_retained_messages", labels(topic="t"))
    eventually(lambda: series(nsqd.http("GET", "/metrics")[2])[key] == 0)
    assert time.time() - published > 0.5
    assert plan(nsqd, "first") == dict.fromkeys(["messages", "depth", "in_flight", "deferred"], 0) | dict.fromkeys(
        ["first", "last", "retained_since"]
    )


INVALID = (
    *("", "soon", "-5", "15m", "2026-01-01", "-", "1d", "-1d-5m", "-d", "-1d5", "zzzzzzzzzzzzzzzz"),
    *("20260101T000000Z", "2026-W01-1T00:00:00Z", "2026-01-01T00:00Z", "2026-01-01T00:00:00"),
    *("2026-01-01T00:00:00%2B0100", "2026-13-01T00:00:00Z", "2026-01-01T00:00:00,5Z"),
)
REFUSED = {
    **{f"topic=t&channel=c&to={text}": (400, "INVALID_ARG_TO") for text in INVALID},
    "topic=t&channel=c&to=-1h&until=-2h": (400, "UNTIL_BEFORE_TO"),
    "topic=t&channel=c&to=2026-01-02T00:00:00Z&until=2026-01-01T00:00:00Z": (400, "UNTIL_BEFORE_TO"),
}
REFUSED_RETENTION = {
    **{f"&bytes={text}": "INVALID_ARG_BYTES" for text in ("", "-1", "1GB", "1.5")},
    **{f"&bytes=1000&time={text}": "INVALID_ARG_TIME" for text in ("", "5", "-1h", "day")},
    "&bytes=0&time=1h": "INVALID_ARG_TIME",
}


def test_errors(nsqd: Instance) -> None:
    create(nsqd, "t", "c")
    for method in ("GET", "POST"):
        assert refusals(nsqd, REFUSED, f"{method} /channel/rewind?") == REFUSED
    expected = {query: (400, code) for query, code in REFUSED_RETENTION.items()}
    assert refusals(nsqd, REFUSED_RETENTION, "POST /topic/retention?topic=t") == expected
    assert json.loads(ask(nsqd, "GET /topic/retention?topic=t")[1])["bytes"] == 1000000


def test_retention_of_one_topic_survives_kills_and_exits(gnsqd_factory: DaemonFactory) -> None:
    nsqd = gnsqd_factory("--durability=process")
    create(nsqd, "t", "c")

    def retention(change: str = "") -> dict[str, Any]:
        method = "POST" if change else "GET"
        status, answer = ask(nsqd, f"{method} /topic/retention?topic=t{change}")
        assert status == 200, answer
        found: dict[str, Any] = json.loads(answer)
        used = sum(path.stat().st_size for path in nsqd.data_path.glob("t.journal.*"))
        assert found.pop("used") == (used if found["messages"] else 0)
        return found

    publish(nsqd, "t", b"before")
    take(nsqd, "t", "c", 1)
    assert retention() == {"bytes": 0, "time": 0, "messages": 0, "since": None}
    set_to = {"bytes": 1000000, "time": 3600 * 10**9, "messages": 0, "since": None}
    assert retention("&bytes=1000000&time=1h") == set_to
    nsqd.restart()
    assert retention() == set_to
    publish(nsqd, "t", b"0", b"1")
    first = min(take(nsqd, "t", "c", 2), key=lambda each: each.id)
    publish(nsqd, "t", b"2")  # with it the FINs before it are kept
    nsqd.kill()
    nsqd.start()
    assert retention() == set_to | {"messages": 3, "since": first.timestamp}
    assert ask(nsqd, f"{REWIND}&to=first") == (200, '{"messages":2}')
    assert bodies(take(nsqd, "t", "c", 3)) == [b"0", b"1", b"2"]
    assert retention("&bytes=0") == {"bytes": 0, "time": 0, "messages": 0, "since": None}
    nsqd.restart("--durability=process", "--retention-bytes=1000000")
    assert retention()["bytes"] == 0
    assert ask(nsqd, f"{REWIND}&to=first") == (400, message("NO_RETENTION"))


@pytest.mark.parametrize("flags, code", [((), "NO_JOURNAL"), (("--durability=process",), "NO_RETENTION")])
def test_without_retention_it_is_refused(gnsqd_factory: DaemonFactory, flags: tuple[str, ...], code: str) -> None:
    nsqd = gnsqd_factory(*flags)
    create(nsqd, "t", "c")
    assert ask(nsqd, f"{REWIND}&to=first") == (400, message(code))
    assert ask(nsqd, "POST /channel/create?topic=t&channel=n&from=first") == (400, message(code))
    assert ("gnsqd_topic_retained_messages" in nsqd.http("GET", "/metrics")[2].decode()) == (code == "NO_RETENTION")
