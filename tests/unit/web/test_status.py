"""The text form of /stats, against the lines of NSQD-COMPAT 5.3; behaviour/test_http holds it against the real one."""

import time
from collections.abc import Iterator

import pytest

from gnsqd.observe.stats import Row, Snapshot
from gnsqd.web.status import stats_page

START = 1_795_227_806  # 2026-11-21T02:23:26Z
NOW = START + 1000.5


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "UTC")
        patch.setattr(time, "time", lambda: NOW)
        time.tzset()
        yield
    time.tzset()


def latency(*values: int) -> Row:
    return {"count": len(values), "percentiles": [{"quantile": 1, "value": value} for value in values] or None}


def topic(name: str, *channels: Row, paused: bool = False, values: tuple[int, ...] = ()) -> Row:
    return {
        "topic_name": name,
        "channels": list(channels),
        "depth": 0,
        "backend_depth": 0,
        "message_count": 5,
        "message_bytes": 9,
        "paused": paused,
        "e2e_processing_latency": latency(*values),
    }


def channel(name: str, *clients: Row, paused: bool = False, values: tuple[int, ...] = ()) -> Row:
    return {
        "channel_name": name,
        "depth": 0,
        "backend_depth": 0,
        "in_flight_count": 1,
        "deferred_count": 2,
        "message_count": 5,
        "requeue_count": 1,
        "timeout_count": 0,
        "client_count": len(clients),
        "clients": list(clients),
        "paused": paused,
        "e2e_processing_latency": latency(*values),
    }


def client(**more: object) -> Row:
    return {
        "client_id": "c",
        "hostname": "host.example",
        "version": "V2",
        "remote_address": "127.0.0.1:46662",
        "state": 3,
        "ready_count": 5,
        "in_flight_count": 1,
        "message_count": 4,
        "finish_count": 2,
        "requeue_count": 1,
        "connect_ts": int(time.time()),
        "user_agent": "ua/1.0",
        **more,
    }


def page(stats: Snapshot, memory: Row | None = None, health: str = "OK") -> list[str]:
    return list(stats_page(stats, memory, health, START, 638_686_980))[1:]


def test_page_without_topics_and_producers() -> None:
    assert page(Snapshot(None, None), {"heap_objects": 5063}) == [
        "start_time 2026-11-21T02:23:26Z",
        "uptime 638.68698ms",
        "",
        "Health: OK",
        "",
        "Memory:",
        "   heap_objects             \t5063",
        "",
        "Topics: None",
        "",
        "Producers: None",
    ]


def test_page_with_everything() -> None:
    consumer = client()
    publishing_consumer = client(pub_counts=[{"topic": "b", "count": 1}])
    publisher = client(
        hostname="127.0.0.1", remote_address="127.0.0.1:46672", user_agent="", pub_counts=[{"topic": "b", "count": 1}]
    )
    values = (300_501_030, 300_501_030, 300_501_030)
    stats = Snapshot(
        [
            topic(
                "a",
                channel("c1", consumer, publishing_consumer, values=values[:1]),
                channel("c2", paused=True),
                values=values,
            ),
            topic("zz", paused=True),
        ],
        [publisher],
    )
    assert page(stats, health="NOK - disk")[3:] == [
        "Health: NOK - disk",
        "",
        "Topics:",
        "   [a              ] depth: 0     be-depth: 0     msgs: 5        e2e%: 300.5ms, 300.5ms, 300.5ms",
        "      [c1                       ] depth: 0     be-depth: 0     inflt: 1    def: 2    re-q: 1     "
        "timeout: 0     msgs: 5        e2e%: 300.5ms",
        "        [V2 host.example:46662 ua/1.0] state: 3 inflt: 1    rdy: 5    fin: 2        re-q: 1        "
        "msgs: 4        connected: 0s",
        "        [V2 host.example:46662 ua/1.0] msgs: 1        topics: b=1 connected: 0s",
        "   *P [c2                       ] depth: 0     be-depth: 0     inflt: 1    def: 2    re-q: 1     "
        "timeout: 0     msgs: 5        e2e%: ",
        "",
        "*P [zz             ] depth: 0     be-depth: 0     msgs: 5        e2e%: ",
        "",
        "Producers:",
        "   [V2 127.0.0.1:46672      ] msgs: 1        topics: b=1 connected: 0s",
    ]


def test_client_on_a_unix_socket_has_no_port_and_time_shows_as_a_duration() -> None:
    row = client(remote_address="@", hostname="", connect_ts=int(time.time()) - 3665)
    (line,) = [line for line in page(Snapshot([topic("t", channel("c", row))], None)) if "V2" in line]
    assert line.startswith("        [V2 : ua/1.0             ] state: 3")
    assert line.partition("connected: ")[2] in ("1h1m5s", "1h1m6s")


@pytest.mark.parametrize(
    "value, text",
    [
        (1_000_000_001, "1.0s"),
        (1_000_000_000, "1000.0ms"),
        (1_500_000, "1.5ms"),
        (1_500, "1.5us"),
        (1_000, "1000.0ns"),
        (0, "0.0ns"),
    ],
)
def test_latency_has_one_decimal_of_a_fitting_unit(value: int, text: str) -> None:
    assert f"e2e%: {text}" in "\n".join(page(Snapshot([topic("t", values=(value,))], None)))


def test_start_time_is_local_with_its_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    assert page(Snapshot(None, None))[0] == "start_time 2026-11-21T07:53:26+05:30"
