"""Numbers for people, and durations from them."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from nsqadmin_cli import units
from nsqadmin_cli.units import LONGEST, printable


@pytest.mark.parametrize(
    "text, seconds",
    [("5", 5), (".5", 0.5), ("2.", 2), ("250ms", 0.25), ("1h30m", 5400), ("1.5s", 1.5), ("2d", 172800), ("7us", 7e-6)],
)
def test_durations_are_read_as_seconds_or_in_gos_form(text: str, seconds: float) -> None:
    assert units.parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "s", "5 s", "1x", "1h 30m", "-1", "1e3", "١", "5s!", "nan", "1h30"])
def test_other_texts_are_refused_as_durations(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        units.parse_duration(text)


@pytest.mark.parametrize(
    "shown, texts",
    [
        (units.exact, {0: "0", 2**64 - 1: "18446744073709551615", 1795360000.25: "1795360000.25", 1e-7: "0.0000001",
                       180.00000000000003: "180", 1e17: "100000000000000000"}),
        (units.exact, {-0.0: "0"}),
        (units.iso_time, {0: "1970-01-01T00:00:00.000Z", 1795360000125000000: "2026-11-22T15:06:40.125Z",
                          1: "1970-01-01T00:00:00.000000001Z", 1_003_750_530: "1970-01-01T00:00:01.003750530Z",
                          10**20: "5138-11-16T09:46:40.000Z", 10**30: str(10**30)}),
        (units.size, {0: "0 B", 999: "999 B", 1000: "1.0 kB", 9_949: "9.9 kB", 9_950: "10 kB", 999_499: "999 kB",
                      999_500: "1.0 MB", 34_000_000: "34 MB", 2**63: "9.2 EB"}),
        (units.rate, {0.0: "0", 0.04: "0", 0.25: "0.2", 9.94: "9.9", 9.96: "10", 1234.4: "1,234"}),
        (units.latency, {0: "0ns", 8.5e-7: "850ns", 0.0123: "12.3ms", 4.56: "4.56s", 0.9996: "1s", 75: "1m 15s"}),
    ],
)  # fmt: skip
def test_numbers_are_shown_as_people_and_programs_read(shown: Callable[[Any], str], texts: dict[float, str]) -> None:
    assert {value: shown(value) for value in texts} == texts


def test_sparklines_scale_to_their_largest_value_or_what_is_given() -> None:
    assert units.sparkline([0, 1, 2, 4, 8], 1) == "▁▂▃▅█"
    assert units.sparkline([0, 0], 1) == "▁▁"
    assert units.sparkline([], 1) == ""
    assert units.sparkline([5, 5], 1) == "██"
    assert units.sparkline([5, 0], 20) == "▃▁"


def test_text_from_elsewhere_is_bounded_and_on_one_line() -> None:
    assert printable("a\nb\x1b[2J\u202e") == r"a\nb\x1b[2J\u202e"
    long = printable("x" * 10_000)
    assert len(long) == LONGEST
    assert long.endswith("…")


def test_times_have_the_day_unless_it_is_today(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.mktime((2026, 11, 23, 13, 45, 7, 0, 0, -1))
    localtime = time.localtime
    monkeypatch.setattr(time, "localtime", lambda seconds=now: localtime(seconds))
    assert units.clock(now + 60) == "13:46:07"
    assert units.clock(now + 86400) == "2026-11-24 13:45:07"
    assert units.clock(1e18) == "1000000000000000000"
