"""Times in the text form of /stats, against the lines of NSQD-COMPAT 5.3. behaviour/test_http_stats judges the rest."""

import time
from collections.abc import Iterator

import pytest

from gnsqd.observe.stats import Row, StatsRows, text_page

START = 1_795_227_806  # 2026-11-21T02:23:26Z


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: START + 1000.5)
        yield patch
    time.tzset()


def page(*topics: Row, producers: list[Row] | None = None) -> list[str]:
    return list(text_page(StatsRows(list(topics), producers), None, "OK", START, 638_686_980))[1:]


def topic(*values: int) -> Row:
    latency = {"percentiles": [{"quantile": 1, "value": value} for value in values]}
    zeros = dict.fromkeys(["depth", "backend_depth", "message_count"], 0)
    return {"topic_name": "t", "channels": [], "paused": False, "e2e_processing_latency": latency, **zeros}


@pytest.mark.parametrize(
    "values, text",
    [
        ([1_000_000_001], "1.0s"),
        ([1_000_000_000], "1000.0ms"),
        ([300_501_030, 1_500_000, 1_500], "300.5ms, 1.5ms, 1.5us"),
        ([1_000], "1000.0ns"),
        ([0], "0.0ns"),
        ([], ""),
    ],
)
def test_latencies_have_one_decimal_of_a_fitting_unit(values: list[int], text: str) -> None:
    assert f" e2e%: {text}" in [line[line.find(" e2e%") :] for line in page(topic(*values))]


@pytest.mark.parametrize(
    "zone, shown", [("UTC", "2026-11-21T02:23:26Z"), ("Asia/Kolkata", "2026-11-21T07:53:26+05:30")]
)
def test_start_has_its_zone_and_uptime_is_a_duration(clock: pytest.MonkeyPatch, zone: str, shown: str) -> None:
    clock.setenv("TZ", zone)
    time.tzset()
    assert page()[:2] == [f"start_time {shown}", "uptime 638.68698ms"]


@pytest.mark.parametrize("seconds, text", [(-3, "0s"), (0, "0s"), (3665, "1h1m5s")])
def test_client_is_connected_for_a_duration(seconds: int, text: str) -> None:
    client: Row = {"version": "V2", "hostname": "h", "user_agent": "ua", "remote_address": "@", "pub_counts": []}
    client["connect_ts"] = int(time.time()) - seconds
    assert page(producers=[client])[-1] == f"   [V2 h: ua                ] msgs: 0        topics:  connected: {text}"
