"""Numbers for people, durations from them, and addresses."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from cli.gnsqadmin import misuse
from nsqadmin_cli import units
from nsqadmin_cli.http_client import Address


def test_durations_are_read_as_seconds_or_in_gos_form() -> None:
    texts = {"5": 5, ".5": 0.5, "2.": 2, "250ms": 0.25, "1h30m": 5400, "1.5s": 1.5, "2d": 172800, "7us": 7e-6}
    assert {text: units.parse_duration(text) for text in texts} == pytest.approx(texts)
    for text in ("", "s", "5 s", "1x", "1h 30m", "-1", "1e3", "١", "5s!", "nan", "1h30"):
        with pytest.raises(ValueError, match="is not a duration"):
            units.parse_duration(text)


NUMBERS: list[tuple[Callable[[Any], str], dict[float, str]]] = [
    (units.exact, {0: "0", 2**64 - 1: "18446744073709551615", 1795360000.25: "1795360000.25", 1e-7: "0.0000001",
                   180.00000000000003: "180", 1e17: "100000000000000000"}),
    (units.exact, {-0.0: "0"}),
    (units.iso_time, {0: "1970-01-01T00:00:00.000Z", 1795360000125000000: "2026-11-22T15:06:40.125Z",
                      1: "1970-01-01T00:00:00.000000001Z", 1_003_750_530: "1970-01-01T00:00:01.003750530Z",
                      10**20: "5138-11-16T09:46:40.000Z", 10**30: str(10**30)}),
    (units.size, {0: "0 B", 999: "999 B", 1000: "1.0 kB", 9_949: "9.9 kB", 9_950: "10 kB", 999_499: "999 kB",
                  999_500: "1.0 MB", 34_000_000: "34 MB", 2**63: "9.2 EB"}),
    (units.rate, {0.0: "0", 0.04: "0", 0.25: "0.2", 9.94: "9.9", 9.96: "10", 1234.4: "1,234"}),
    (units.duration, {-100: "0s", 65: "1m 5s", 3605: "1h 0m", 93_784: "1d 2h", 400 * 86_400: "400d 0h"}),
    (units.latency, {0: "0ns", 8.5e-7: "850ns", 0.0123: "12.3ms", 4.56: "4.56s", 0.9996: "1s", 75: "1m 15s"}),
]  # fmt: skip


def test_numbers_are_shown_as_people_and_programs_read() -> None:
    for shown, texts in NUMBERS:
        assert {value: shown(value) for value in texts} == texts


def test_times_have_the_day_unless_it_is_today(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.mktime((2026, 11, 23, 13, 45, 7, 0, 0, -1))
    localtime = time.localtime
    monkeypatch.setattr(time, "localtime", lambda seconds=now: localtime(seconds))
    assert units.clock(now + 60) == "13:46:07"
    assert units.clock(now + 86400) == "2026-11-24 13:45:07"
    assert units.clock(1e18) == "1000000000000000000"


ADDRESSES = {
    "127.0.0.1:4151": ("127.0.0.1", 4151, "127.0.0.1:4151"),
    "nsqd-1.example.com:1": ("nsqd-1.example.com", 1, "nsqd-1.example.com:1"),
    "my_host:65535": ("my_host", 65535, "my_host:65535"),
    "http://localhost:4151": ("localhost", 4151, "localhost:4151"),
    "HTTP://localhost:4151/": ("localhost", 4151, "localhost:4151"),
    "[::1]:4151": ("::1", 4151, "[::1]:4151"),
    "http://[2001:DB8:0::1]:4151": ("2001:db8::1", 4151, "[2001:db8::1]:4151"),
    "https://localhost:4152": ("localhost", 4152, "https://localhost:4152"),
    "HTTPS://[::1]:4152/": ("::1", 4152, "https://[::1]:4152"),
    "unix:/run/nsqd.sock": ("", 0, "unix:/run/nsqd.sock"),
    "unix:///run/nsqd.sock": ("", 0, "unix:/run/nsqd.sock"),
    "/run/nsqd.sock": ("", 0, "unix:/run/nsqd.sock"),
    "[fe80::1%eth0]:4151": ("fe80::1%eth0", 4151, "[fe80::1%eth0]:4151"),
    "bücher.example:4151": ("xn--bcher-kva.example", 4151, "xn--bcher-kva.example:4151"),
}
BAD_ADDRESSES = (
    "", "localhost", ":4151", "localhost:", "localhost:x", "localhost:0", "localhost:65536", "localhost:-1",
    "localhost:４１５１", "::1:4151", "[::1]", "[::g]:4151", "[127.0.0.1]:4151", "unix:nsqd.sock", "unix:",
    "http://localhost:4151/stats", "http://user@localhost:4151", "ftp://localhost:4151", "a b:4151", "a..b:4151",
    f"/{'x' * 107}", f"{'x' * 64}:4151", "a\r\nb:4151", "a\x01b:4151", "\udcff:4151", "localhost:4151/",
)  # fmt: skip


def test_addresses_are_taken_in_their_usual_forms_and_others_are_usage_errors() -> None:
    for text, parts in ADDRESSES.items():
        address = Address.parse(text)
        assert (address.host, address.port, str(address)) == parts
    for text in BAD_ADDRESSES:
        assert misuse("stats", f"--nsqd-http-address={text}").startswith("Invalid value for '--nsqd-http-address': ")
