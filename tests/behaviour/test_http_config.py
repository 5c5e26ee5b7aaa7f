"""`/config/{opt}`: what both daemons show of their options, how they take new values, and that those take effect."""

import re
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kit.certificates import issue
from kit.daemons import DEADLINE, Instance, eventually
from kit.http_api import ask, chunked, exchange, head, message
from kit.pairs import Pair, running_pair
from kit.traffic import DaemonFactory, post, publish

Answer = tuple[int, dict[str, str], str]

LOOKUPD = "/config/nsqlookupd_tcp_addresses"

# Flags whose options have other names in the config file.
SPECIAL = {
    "node-id": "id",
    "lookupd-tcp-address": "nsqlookupd_tcp_addresses",
    "auth-http-address": "auth_http_addresses",
    "e2e-processing-latency-percentile": "e2e_processing_latency_percentiles",
}


def answer(nsqd: Instance, what: str, body: bytes = b"") -> Answer:
    """Status, headers and body, without what differs between two daemons with the same flags."""
    method, target = what.split(" ", 1)
    status, headers, text = nsqd.http(method, target, body)
    shown = text.decode().replace(str(nsqd.data_path), "DATA-PATH")
    for address in (nsqd.tcp_address, nsqd.http_address):
        if isinstance(address, tuple):
            shown = re.sub(rf"\b{address[1]}\b|(?<=_){address[1]}\b", "PORT", shown)
    return status, {name: value for name, value in headers.items() if name not in ("Date", "Content-Length")}, shown


def compare(pair: Pair, rows: list[tuple[str, bytes]]) -> None:
    found = {row: answer(pair.ours, *row) for row in rows}
    expected = {row: answer(pair.real, *row) for row in rows}
    assert found == expected


@pytest.fixture(scope="module")
def real(peer_binary: Callable[[str], Path]) -> Path:
    return peer_binary("nsqd")


@pytest.fixture(scope="module")
def keys(real: Path) -> list[str]:
    """Returns the names that an option might have: those of the real nsqd's flags, and of its config file."""
    usage = subprocess.run([real, "--help"], capture_output=True, text=True, timeout=DEADLINE).stderr
    flags = re.findall(r"^  -(\S+)", usage, re.MULTILINE)
    assert len(flags) > 50
    return [flag.replace("-", "_") for flag in flags] + list(SPECIAL.values())


@pytest.fixture(scope="module")
def pair(real: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with running_pair(tmp_path_factory.mktemp("pair"), real, "--max-msg-size=100") as pair:
        yield pair


# Reading


@pytest.mark.peer
def test_every_option_shows_its_default_as_in_nsqd(pair: Pair, keys: list[str]) -> None:
    compare(pair, [(f"GET /config/{key}", b"") for key in keys])


@pytest.mark.peer
def test_every_option_shows_what_it_was_given_as_in_nsqd(real: Path, keys: list[str], tmp_path: Path) -> None:
    cert, key = issue("server").write(tmp_path / "server")
    flags = [
        "--log-level=Debug", "--log-prefix=[<a>] ", "--verbose", "--worker-id", "--node-id=7",
        "--https-address=127.0.0.1:0", "--broadcast-address=a.b", "--broadcast-tcp-port=1", "--broadcast-http-port=2",
        "--lookupd-tcp-address=127.0.0.1:1", "--lookupd-tcp-address=127.0.0.1:2,<c>", "--auth-http-address=x&y",
        "--http-client-connect-timeout=1.5s", "--http-client-request-timeout=0", "--mem-queue-size=0",
        "--max-bytes-per-file=-1", "--sync-every=1", "--sync-timeout=1h2m", "--queue-scan-worker-pool-max=2",
        "--queue-scan-selection-count=3", "--msg-timeout=1ns", "--max-msg-timeout=1h", "--max-msg-size=5",
        "--max-req-timeout=-1s", "--max-body-size=6", "--max-heartbeat-interval=7us", "--max-rdy-count=8",
        "--max-output-buffer-size=9", "--max-output-buffer-timeout=10ms", "--min-output-buffer-timeout=11ms",
        "--output-buffer-timeout=12ms", "--max-channel-consumers=13", "--statsd-interval=14s",
        "--statsd-mem-stats=false", "--statsd-prefix=p.%s.q.%s", "--statsd-udp-packet-size=15",
        "--statsd-exclude-ephemeral", "--e2e-processing-latency-percentile=0.5,1.0,0.999",
        "--e2e-processing-latency-window-time=16s", f"--tls-cert={cert}", f"--tls-key={key}",
        "--tls-client-auth-policy=other", "--tls-root-ca-file=", "--tls-required=tcp-https", "--tls-min-version=TLS1.2",
        "--deflate=false", "--max-deflate-level=9", "--snappy=false",
    ]  # fmt: skip
    with running_pair(tmp_path, real, *flags) as pair:
        compare(pair, [(f"GET /config/{key}", b"") for key in keys])


@pytest.mark.peer
@pytest.mark.parametrize("flags", [
    ["--data-path=", "--statsd-prefix=", "--log-prefix="],
    ["--tcp-address=t.sock", "--statsd-prefix=.", "--broadcast-address=1.2.3.4"],
    ["--tcp-address=t.sock", "--broadcast-tcp-port=1"],
    ["--tls-client-auth-policy=", "--tls-min-version=", "--log-prefix=caf\u00e9\t"],
])  # fmt: skip
def test_odd_values_show_as_in_nsqd(real: Path, keys: list[str], tmp_path: Path, flags: list[str]) -> None:
    with running_pair(tmp_path, real, *flags) as pair:
        compare(pair, [(f"GET /config/{key}", b"") for key in keys])


def test_options_of_gnsqd_alone_are_shown(gnsqd_factory: DaemonFactory) -> None:
    nsqd = gnsqd_factory("--drain-timeout=2s", "--metrics-clients")
    expected = {"drain_timeout": "2000000000", "sigterm": "exit", "metrics_clients": "true"}
    assert {key: ask(nsqd, f"GET /config/{key}")[1] for key in expected} == expected


# Paths and methods


@pytest.mark.peer
def test_paths_and_methods_are_answered_as_by_nsqd(pair: Pair) -> None:
    targets = [
        "/config", "/config/", "/config/nosuch", "/config/ID", "/config/:opt", "/config/a/b", "/config/log_level/b",
        "/config/%20", "/config/a%2fb", "/config/log_leve%6c", "/config/log_level?a=%zz", "/config/queue_scan_interval",
        "/CONFIG/log_level", "/config/log_level/", "/config//LOG_level", "//config/Nosuch", "/config/../config/x",
        "/config/./log_level?a=b;c", "/CONFIG/", "/CONFIG/a%20b%21%3F", "/Config/%0D%0AX:%20y", "/config/%C3%A9/",
        "/configs/x",
    ]  # fmt: skip
    methods = ("GET", "PUT", "POST", "DELETE", "HEAD", "OPTIONS")
    compare(pair, [(f"{method} {target}", b"warn") for method in methods for target in targets])


# Changing


@pytest.mark.peer
def test_values_are_taken_and_refused_as_by_nsqd(pair: Pair) -> None:
    levels = [b"debug", b"INFO", b"Warn", b"error", b"fatal", b"", b" info", b"info\n", b'"info"', b"2", b"trace"]
    levels += [b"x" * 100, b"x" * 101, b"\xff", b"null"]
    addresses = [
        b'["127.0.0.1:1"]', b"[]", b"null", b' [ "127.0.0.1:1" , "a<b" ] \n', b'["a","a"]', b'[""]', b'["\\u0000"]',
        b'["\\ud800"]', b'["\xff"]', b"[]", b"", b'"a"', b"[1]", b"{}", b"[] x", b"[", b'[["a"]]', b'["a",]', b"a:1",
        b"true", b"NaN", b"[NaN]", b"\xff", b'["\xe2\x82"]', b'["a\tb"]', b"[" * 90,
        b"[" + b" " * 98 + b"]", b"[" + b" " * 99 + b"]",
    ]  # fmt: skip
    rows = [("PUT /config/log_level", body) for body in levels]
    rows += [(f"PUT {LOOKUPD}", body) for body in addresses]
    rows += [(f"PUT /config/{key}", body) for key in ("max_msg_size", "node_id", "no") for body in (b"", b"5")]
    rows += [("PUT /config/no", b"x" * 101), ("PUT /config/snappy", b"x" * 100)]
    compare(pair, [ask for row in rows for ask in (row, (f"GET {row[0].split()[1]}", b""))])


@pytest.mark.peer
def test_body_that_is_cut_off_is_answered_as_by_nsqd(pair: Pair) -> None:
    for request in (
        head("PUT /config/log_level", "Content-Length: 9") + b"debug",
        head("PUT /config/nosuch", "Content-Length: 9"),
        head("PUT /config/log_level", "Transfer-Encoding: chunked") + b"5\r\ndeb",
        head("PUT /config/log_level", "Content-Length: 200") + b"x" * 101,
        head("PUT /config/log_level", "Transfer-Encoding: chunked") + chunked(b"debug"),
    ):
        assert exchange(pair.ours, request) == exchange(pair.real, request)


def test_refused_addresses_leave_the_previous_ones(gnsqd: Instance) -> None:
    # the real nsqd overwrites them up to the bad one
    assert ask(gnsqd, f"PUT {LOOKUPD}", b'["127.0.0.1:1"]')[0] == 200
    assert ask(gnsqd, f"PUT {LOOKUPD}", b'["127.0.0.1:2",3]') == (400, message("INVALID_VALUE"))
    assert ask(gnsqd, f"GET {LOOKUPD}") == (200, '["127.0.0.1:1"]')


def test_log_level_takes_effect_at_once_for_every_part(nsqd: Instance, topic: str) -> None:
    def lines(level: str) -> list[str]:
        return [line for line in nsqd.log().splitlines() if f" {level}: " in line]

    ask(nsqd, "PUT /config/log_level", b"debug")
    publish(nsqd, topic, b"x")
    # It reports the client's end and the new topic in its own time.
    eventually(lambda: "exiting messagePump" in nsqd.log() and nsqd.log().count("NSQ: persisting ") == 2)
    assert any(f"[PUB {topic}]" in line for line in lines("DEBUG"))
    ask(nsqd, "PUT /config/log_level", b"fatal")
    before = nsqd.log()
    ask(nsqd, "GET /nope")
    post(nsqd, f"/topic/create?topic={topic}x")
    assert nsqd.log() == before
    ask(nsqd, "PUT /config/log_level", b"INFO")
    ask(nsqd, "GET /config/nope")
    assert "/config/nope" in lines("INFO")[-1]


@pytest.mark.parametrize("nothing", [b"[]", b"null", b'["127.0.0.1:1"]'])
def test_nsqlookupd_addresses_take_effect_at_once(nsqd: Instance, nothing: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as lookupd:
        lookupd.settimeout(DEADLINE)
        address = f"127.0.0.1:{lookupd.getsockname()[1]}"
        assert ask(nsqd, f"PUT {LOOKUPD}", f'["{address}"]'.encode()) == (200, f'["{address}"]')
        connection, _ = lookupd.accept()
        with connection:
            connection.settimeout(DEADLINE)
            assert connection.recv(4) == b"  V1"
            assert f"LOOKUP({address}): adding peer" in nsqd.log()
            assert ask(nsqd, f"PUT {LOOKUPD}", nothing)[0] == 200
            while connection.recv(4096):
                pass
    eventually(lambda: f"LOOKUP({address}): removing peer" in nsqd.log())
