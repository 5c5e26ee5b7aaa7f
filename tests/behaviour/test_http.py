"""The HTTP API of both daemons: every row of NSQD-COMPAT 5.2 that gnsqd has, with its errors in their order."""

import json
import re
import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kit.daemons import Daemon, eventually
from kit.http_api import ask, message, topic_stats
from kit.nsq_client import Client, mpub_body

DaemonFactory = Callable[..., Daemon]
Row = tuple[str, bytes, int, str]  # method and target, body, status, body of the answer

JSON = "application/json; charset=utf-8"
TEXT = "text/plain; charset=utf-8"
V1 = "nsq; version=1.0"


def judge(nsqd: Daemon, rows: list[Row]) -> None:
    """Ask for every row in turn and compare all answers at once."""
    found = [(what, body, *ask(nsqd, what, body)) for what, body, _, _ in rows]
    assert found == rows


@pytest.fixture(scope="module")
def shared(module_factory: DaemonFactory) -> Daemon:
    """One daemon for all the tests that leave nothing on it another could trip over."""
    return module_factory()


# Publishing


def test_pub_checks_in_the_real_order(nsqd_factory: DaemonFactory) -> None:
    nsqd = nsqd_factory("--max-msg-size=10", "--max-req-timeout=1h")
    judge(
        nsqd,
        [
            ("POST /pub?topic=t", b"x" * 11, 413, message("MSG_TOO_BIG")),
            ("POST /pub?topic=%zz", b"x" * 11, 413, message("MSG_TOO_BIG")),
            ("POST /pub?topic=%zz", b"", 400, message("MSG_EMPTY")),
            ("POST /pub?topic=%zz", b"x", 400, message("INVALID_REQUEST")),
            ("POST /pub?topic=t;a=b", b"x", 400, message("INVALID_REQUEST")),
            ("POST /pub", b"x", 400, message("MISSING_ARG_TOPIC")),
            ("POST /pub?Topic=t", b"x", 400, message("MISSING_ARG_TOPIC")),
            ("POST /pub?topic&defer=x", b"x", 400, message("INVALID_TOPIC")),
            ("POST /pub?topic=a$b", b"x", 400, message("INVALID_TOPIC")),
            ("POST /pub?topic=" + "a" * 65, b"x", 400, message("INVALID_TOPIC")),
            ("POST /pub?topic=&topic=t", b"x", 400, message("INVALID_TOPIC")),
            ("POST /pub?topic=t%0A", b"x", 400, message("INVALID_TOPIC")),
        ],
    )
    assert nsqd.stats()["topics"] == []
    judge(
        nsqd,
        [
            ("POST /pub?topic=t", b"x" * 10, 200, "OK"),
            ("POST /pub?topic=t&topic=%24", b"x", 200, "OK"),
            ("POST /pub?topic=t%23ephemeral", b"x", 200, "OK"),
            ("POST /pub?topic=" + "a" * 64, b"x", 200, "OK"),
        ],
    )
    assert topic_stats(nsqd, "t")["message_bytes"] == 11


@pytest.mark.parametrize("defer, accepted", [
    ("0", True), ("1000", True), ("3600000", True), ("%2B5", True), ("+5", False), ("3600001", False), ("-1", False),
    ("abc", False), ("", False), ("1_0", False), ("1.5", False), ("0x10", False), ("9223372036854775808", False),
])  # fmt: skip
def test_defer_is_milliseconds_up_to_max_req_timeout(nsqd: Daemon, defer: str, accepted: bool) -> None:
    expected = (200, "OK") if accepted else (400, message("INVALID_DEFER"))
    assert ask(nsqd, f"POST /pub?topic=t&defer={defer}", b"x") == expected
    assert topic_stats(nsqd, "t")["message_count"] == int(accepted)


def test_deferred_message_is_held_back_in_the_channel(nsqd: Daemon) -> None:
    ask(nsqd, "POST /topic/create?topic=t")
    ask(nsqd, "POST /channel/create?topic=t&channel=c")
    ask(nsqd, "POST /pub?topic=t&defer=60000", b"x")
    eventually(lambda: nsqd.channel_stats("t", "c")["deferred_count"] == 1)
    assert nsqd.channel_stats("t", "c")["depth"] == 0


def test_published_messages_reach_consumers_as_they_are(nsqd: Daemon) -> None:
    with Client(nsqd.tcp_address) as client:
        client.subscribe("t", "c", rdy=10)
        ask(nsqd, "POST /pub?topic=t", b"a\r\nb\n\x00\xff")
        assert client.message().body == b"a\r\nb\n\x00\xff"
        ask(nsqd, "POST /mpub?topic=t", b"one\r\n\n\ntwo\x00\nthree")
        assert sorted(client.message().body for _ in range(3)) == [b"one\r", b"three", b"two\x00"]
        ask(nsqd, "POST /mpub?topic=t&binary=true", mpub_body(b"a\nb", b"\n"))
        assert sorted(client.message().body for _ in range(2)) == [b"\n", b"a\nb"]


def test_mpub_checks_in_the_real_order(nsqd_factory: DaemonFactory) -> None:
    nsqd = nsqd_factory("--max-msg-size=10", "--max-body-size=40")
    judge(
        nsqd,
        [
            ("POST /mpub?topic=%zz", b"x" * 41, 413, message("BODY_TOO_BIG")),
            ("POST /mpub?topic=%zz", b"x" * 11, 400, message("INVALID_REQUEST")),
            ("POST /mpub?binary=0;", b"x" * 11, 400, message("INVALID_REQUEST")),
            ("POST /mpub", b"x" * 11, 400, message("MISSING_ARG_TOPIC")),
            ("POST /mpub?topic=", b"x" * 11, 400, message("INVALID_TOPIC")),
        ],
    )
    assert nsqd.stats()["topics"] == []
    judge(nsqd, [("POST /mpub?topic=t", b"y\n" + b"x" * 11, 413, message("MSG_TOO_BIG"))])
    assert topic_stats(nsqd, "t")["message_count"] == 0


def count(nsqd: Daemon) -> tuple[int, int]:
    stats = topic_stats(nsqd, "t")
    return stats["message_count"], stats["message_bytes"]


def test_mpub_text_is_one_message_a_line(nsqd_factory: DaemonFactory) -> None:
    nsqd = nsqd_factory("--max-msg-size=10", "--max-body-size=40")
    for body, total in [
        (b"", (0, 0)),
        (b"\n\n", (0, 0)),
        (b"a\nb\nc", (3, 3)),
        (b"d\n\ne\r\n", (5, 6)),
        (b"x" * 10 + b"\n", (6, 16)),
        ((b"x" * 9 + b"\n") * 4, (10, 52)),
    ]:
        assert ask(nsqd, "POST /mpub?topic=t&more=nonsense", body) == (200, "OK")
        assert count(nsqd) == total


def test_mpub_text_has_lines_of_any_length(nsqd: Daemon) -> None:
    sizes = (65535, 65536, 1, 65537, 0, 0, 131072, 3, 1 << 20, 65534, 200_000)
    total, received = 0, 0
    for end in (b"", b"\n", b"\n\n"):
        for count_of_lines in (1, 3, len(sizes)):
            lines = [b"x" * size for size in sizes[:count_of_lines]]
            assert ask(nsqd, "POST /mpub?topic=t", b"\n".join(lines) + end) == (200, "OK")
            total += sum(map(bool, lines))
            received += sum(map(len, lines))
            assert count(nsqd) == (total, received)
    assert ask(nsqd, "POST /mpub?topic=t", b"y\n" + b"x" * ((1 << 20) + 1) + b"\ny") == (413, message("MSG_TOO_BIG"))
    assert count(nsqd) == (total, received)


@pytest.mark.parametrize("value, binary", [
    ("true", True), ("1", True), ("false", False), ("0", False), ("", True), ("True", True), ("no", True),
])  # fmt: skip
def test_mpub_binary_unless_it_says_false(nsqd: Daemon, value: str, binary: bool) -> None:
    assert ask(nsqd, f"POST /mpub?topic=t&binary={value}", mpub_body(b"ab", b"cd", b"e")) == (200, "OK")
    assert (count(nsqd) == (3, 5)) is binary


def test_mpub_binary_errors(nsqd_factory: DaemonFactory) -> None:
    nsqd = nsqd_factory("--max-msg-size=10", "--max-body-size=40")
    bad_body, bad_message = message("BAD_BODY"), message("BAD_MESSAGE")
    binary = "POST /mpub?topic=t&binary=true"
    judge(
        nsqd,
        [
            (binary, b"", 413, bad_body),
            (binary, b"\0\0\0", 413, bad_body),
            (binary, struct.pack(">i", 0), 413, bad_body),
            (binary, struct.pack(">i", -1), 413, bad_body),
            (binary, struct.pack(">i", 8), 413, bad_body),
            (binary, struct.pack(">i", 7), 413, bad_message),
            (binary, struct.pack(">i", 1) + b"\0\0", 413, bad_message),
            (binary, mpub_body(b""), 413, bad_message),
            (binary, struct.pack(">ii", 1, -1), 413, bad_message),
            (binary, mpub_body(b"x" * 11), 413, bad_message),
            (binary, mpub_body(b"ab")[:-1], 413, bad_message),
        ],
    )
    assert count(nsqd) == (0, 0)
    judge(nsqd, [(binary, mpub_body(b"ab", b"x" * 10) + b"trailing", 200, "OK")])
    assert count(nsqd) == (2, 12)


def test_message_that_the_disk_refuses_is_answered_as_exiting_and_shown_in_health(nsqd_factory: DaemonFactory) -> None:
    nsqd = nsqd_factory("--mem-queue-size=0", "--max-bytes-per-file=40")
    assert ask(nsqd, "POST /pub?topic=t", b"fits") == (200, "OK")
    (nsqd.data_path / "t.diskqueue.000001.dat").mkdir()
    assert ask(nsqd, "POST /pub?topic=t", b"x") == (503, message("EXITING"))
    assert ask(nsqd, "POST /mpub?topic=t", b"x\ny") == (503, message("EXITING"))
    status, headers, body = nsqd.http("GET", "/ping")
    assert (status, headers["Content-Type"], headers["X-Nsq-Content-Type"]) == (500, TEXT, None)
    assert re.fullmatch(r"NOK - open .*/t\.diskqueue\.000001\.dat: is a directory", body.decode())
    assert nsqd.stats()["health"] == body.decode()
    assert ask(nsqd, "POST /pub?topic=other", b"x") == (200, "OK")
    assert ask(nsqd, "GET /ping") == (200, "OK")


# Topics and channels


def test_topic_endpoints_check_in_the_real_order(nsqd: Daemon) -> None:
    rows: list[Row] = []
    for action in ("create", "delete", "empty", "pause", "unpause"):
        checked = action in ("create", "empty")
        invalid = (400, message("INVALID_TOPIC")) if checked else (404, message("TOPIC_NOT_FOUND"))
        rows += [
            (f"POST /topic/{action}?topic=%zz", b"", 400, message("INVALID_REQUEST")),
            (f"POST /topic/{action}?topic=t;", b"", 400, message("INVALID_REQUEST")),
            (f"POST /topic/{action}", b"topic=t", 400, message("MISSING_ARG_TOPIC")),
            (f"POST /topic/{action}?topic=a$", b"", *invalid),
            (f"POST /topic/{action}?topic=", b"", *invalid),
        ]
        if action != "create":
            rows.append((f"POST /topic/{action}?topic=t", b"", 404, message("TOPIC_NOT_FOUND")))
    judge(nsqd, rows)
    assert nsqd.stats()["topics"] == []


def test_channel_endpoints_check_in_the_real_order(nsqd: Daemon) -> None:
    ask(nsqd, "POST /topic/create?topic=t")
    rows: list[Row] = []
    for action in ("create", "delete", "empty", "pause", "unpause"):
        path = f"POST /channel/{action}"
        rows += [
            (f"{path}?channel=%zz", b"", 400, message("INVALID_REQUEST")),
            (f"{path}?channel=$", b"topic=t", 400, message("MISSING_ARG_TOPIC")),
            (f"{path}?topic=$", b"", 400, message("INVALID_ARG_TOPIC")),
            (f"{path}?topic=nope", b"", 400, message("MISSING_ARG_CHANNEL")),
            (f"{path}?topic=nope&channel=a:b", b"", 400, message("INVALID_ARG_CHANNEL")),
            (f"{path}?topic=nope&channel=c", b"", 404, message("TOPIC_NOT_FOUND")),
        ]
        if action != "create":
            rows.append((f"{path}?topic=t&channel=c", b"", 404, message("CHANNEL_NOT_FOUND")))
    judge(nsqd, rows)
    assert topic_stats(nsqd, "t")["channels"] == []


def test_creating_is_idempotent_and_answers_nothing(nsqd: Daemon) -> None:
    for target in ("/topic/create?topic=t", "/channel/create?topic=t&channel=c"):
        for _ in range(2):
            status, headers, body = nsqd.http("POST", target)
            assert (status, body, headers["X-Nsq-Content-Type"]) == (200, b"", V1)
            assert headers["Content-Type"] is None
            assert headers["Content-Length"] == "0"
    assert [channel["channel_name"] for channel in topic_stats(nsqd, "t")["channels"]] == ["c"]


def paused_in_metadata(nsqd: Daemon) -> list[bool]:
    """Of the topic and its channel, as nsqd.dat has it."""
    (topic,) = json.loads((nsqd.data_path / "nsqd.dat").read_text())["topics"]
    return [topic["paused"], topic["channels"][0]["paused"]]


def test_pausing_takes_effect_and_is_on_disk_when_it_is_answered(nsqd: Daemon) -> None:
    ask(nsqd, "POST /topic/create?topic=t")
    ask(nsqd, "POST /channel/create?topic=t&channel=c")
    for what, expected in [
        ("POST /topic/pause?topic=t", [True, False]),
        ("POST /channel/pause?topic=t&channel=c", [True, True]),
        ("POST /topic/unpause?topic=t", [False, True]),
        ("POST /topic/unpause?topic=t", [False, True]),
        ("POST /channel/unpause?topic=t&channel=c", [False, False]),
    ]:
        assert ask(nsqd, what) == (200, "")
        assert paused_in_metadata(nsqd) == expected
        assert [topic_stats(nsqd, "t")["paused"], nsqd.channel_stats("t", "c")["paused"]] == expected


def test_paused_topic_keeps_its_messages_until_it_is_unpaused(nsqd: Daemon) -> None:
    ask(nsqd, "POST /topic/create?topic=t")
    ask(nsqd, "POST /channel/create?topic=t&channel=c")
    ask(nsqd, "POST /topic/pause?topic=t")
    ask(nsqd, "POST /pub?topic=t", b"x")
    assert (topic_stats(nsqd, "t")["depth"], nsqd.channel_stats("t", "c")["depth"]) == (1, 0)
    ask(nsqd, "POST /topic/unpause?topic=t")
    eventually(lambda: nsqd.channel_stats("t", "c")["depth"] == 1)


def test_emptying_drops_what_waits_there_only(nsqd: Daemon) -> None:
    ask(nsqd, "POST /topic/create?topic=t")
    ask(nsqd, "POST /channel/create?topic=t&channel=c")
    ask(nsqd, "POST /pub?topic=t", b"x")
    eventually(lambda: nsqd.channel_stats("t", "c")["depth"] == 1)
    ask(nsqd, "POST /topic/pause?topic=t")
    ask(nsqd, "POST /pub?topic=t", b"y")
    assert ask(nsqd, "POST /topic/empty?topic=t") == (200, "")
    assert (topic_stats(nsqd, "t")["depth"], nsqd.channel_stats("t", "c")["depth"]) == (0, 1)
    assert ask(nsqd, "POST /channel/empty?topic=t&channel=c") == (200, "")
    assert nsqd.channel_stats("t", "c")["depth"] == 0
    assert topic_stats(nsqd, "t")["message_count"] == 2


def test_deleting_closes_consumers_and_forgets_the_name(nsqd: Daemon) -> None:
    with Client(nsqd.tcp_address) as first, Client(nsqd.tcp_address) as second:
        first.subscribe("t", "c")
        second.subscribe("t", "d")
        assert ask(nsqd, "POST /channel/delete?topic=t&channel=c") == (200, "")
        assert first.recv_until_closed() == b""
        assert [channel["channel_name"] for channel in topic_stats(nsqd, "t")["channels"]] == ["d"]
        assert ask(nsqd, "POST /topic/delete?topic=t") == (200, "")
        assert second.recv_until_closed() == b""
    assert nsqd.stats()["topics"] == []
    assert ask(nsqd, "POST /topic/delete?topic=t") == (404, message("TOPIC_NOT_FOUND"))


# About the daemon


def test_headers_say_what_kind_of_answer_it_is(shared: Daemon) -> None:
    found = {}
    for what in ("GET /ping", "GET /info", "GET /stats", "GET /stats?format=json", "POST /pub?topic=t", "POST /mpub"):
        method, target = what.split(" ")
        _, headers, _ = shared.http(method, target, b"x")
        found[what] = (headers["X-Nsq-Content-Type"], headers["Content-Type"])
    assert found == {
        "GET /ping": (None, TEXT),
        "GET /info": (V1, JSON),
        "GET /stats": (V1, TEXT),
        "GET /stats?format=json": (V1, JSON),
        "POST /pub?topic=t": (V1, TEXT),
        "POST /mpub": (V1, JSON),
    }


def test_info_reports_addresses_and_limits(nsqd_factory: DaemonFactory) -> None:
    nsqd = nsqd_factory("--broadcast-address=a<b", "--max-heartbeat-interval=2m", "--max-output-buffer-timeout=3s")
    status, body = ask(nsqd, "GET /info")
    assert status == 200
    start_time = int(re.findall(r'"start_time":(\d+)', body)[0])
    assert abs(start_time - time.time()) < 60
    assert body == (
        '{"version":"1.3.0","broadcast_address":"a\\u003cb",'
        f'"hostname":"{socket.gethostname()}","http_port":{nsqd.http_address[1]},"tcp_port":{nsqd.tcp_address[1]},'
        f'"start_time":{start_time},"max_heartbeat_interval":120000000000,"max_output_buffer_size":65536,'
        '"max_output_buffer_timeout":3000000000,"max_deflate_level":6}'
    )


def test_unix_sockets_serve_the_same_api_and_have_no_ports(nsqd_factory: DaemonFactory, tmp_path: Path) -> None:
    nsqd = nsqd_factory(f"--tcp-address={tmp_path}/t.sock", f"--http-address={tmp_path}/h.sock")
    info = json.loads(ask(nsqd, "GET /info")[1])
    assert (info["tcp_port"], info["http_port"]) == (-1, -1)
    assert "GET /info (@) " in nsqd.log()


def test_requests_are_logged_except_publishing(nsqd: Daemon) -> None:
    ask(nsqd, "POST /pub?topic=t", b"x")
    ask(nsqd, "POST /mpub", b"x")
    ask(nsqd, "GET /nope?a=%20b")
    ask(nsqd, "GET /ping")
    lines = re.findall(r" INFO: (\d+ (?:GET|POST) .*)", nsqd.log())
    assert [re.sub(r"\d+\)", "N)", line.rsplit(" ", 1)[0]) for line in lines if "/ping" not in line] == [
        "404 GET /nope?a=%20b (127.0.0.1:N)"
    ]
    assert re.fullmatch(r"200 GET /ping \(127\.0\.0\.1:\d+\) [\d.]+(ns|\u00b5s|ms)", lines[-1])


# Paths and methods


def test_unknown_paths_and_wrong_methods(shared: Daemon) -> None:
    found = {}
    for what in (
        "GET /", "GET /nope", "POST /put?topic=t", "POST /mput?topic=t", "GET /create_topic?topic=t", "GET /ping/x",
        "POST /ping", "HEAD /ping", "PUT /stats", "DELETE /pub", "PATCH /topic/create", "GET /channel/pause",
        "HEAD /nope", "OPTIONS /ping", "OPTIONS /pub", "OPTIONS /nope", "OPTIONS /ping/", "HEAD /ping/",
    ):  # fmt: skip
        method, target = what.split(" ")
        status, headers, body = shared.http(method, target, b"")
        found[what] = (status, headers["Allow"], headers["X-Nsq-Content-Type"], headers["Content-Type"], body.decode())
    not_found = (404, None, V1, JSON, message("NOT_FOUND"))

    def not_allowed(allow: str) -> tuple[int, str, str, str, str]:
        return 405, allow, V1, JSON, message("METHOD_NOT_ALLOWED")

    assert found == {
        "GET /": not_found,
        "GET /nope": not_found,
        "POST /put?topic=t": not_found,
        "POST /mput?topic=t": not_found,
        "GET /create_topic?topic=t": not_found,
        "GET /ping/x": not_found,
        "POST /ping": not_allowed("GET, OPTIONS"),
        "HEAD /ping": (*not_allowed("GET, OPTIONS")[:-1], ""),
        "PUT /stats": not_allowed("GET, OPTIONS"),
        "DELETE /pub": not_allowed("OPTIONS, POST"),
        "PATCH /topic/create": not_allowed("OPTIONS, POST"),
        "GET /channel/pause": not_allowed("OPTIONS, POST"),
        "HEAD /nope": (*not_found[:-1], ""),
        "OPTIONS /ping": (200, "GET, OPTIONS", None, None, ""),
        "OPTIONS /pub": (200, "OPTIONS, POST", None, None, ""),
        "OPTIONS /nope": not_found,
        "OPTIONS /ping/": not_found,
        "HEAD /ping/": (*not_found[:-1], ""),
    }


@pytest.mark.parametrize("target", [
    "/topic/create/", "/TOPIC/create", "/topic//create", "//topic/create", "/./topic/create", "/a/../topic/create",
    "/Topic/Create/", "/topic/cre%61te/",
])  # fmt: skip
def test_almost_right_paths_are_redirected(shared: Daemon, target: str) -> None:
    status, headers, body = shared.http("POST", f"{target}?topic=a%20b&c", b"body")
    assert (status, headers["Location"], body) == (307, "/topic/create?topic=a%20b&c", b"")
    assert shared.http("GET", target)[0] == 404


def test_redirect_of_get_has_a_page(shared: Daemon) -> None:
    status, headers, body = shared.http("GET", "/ping/?a=\"'<b>&c")
    assert (status, headers["Content-Type"]) == (301, "text/html; charset=utf-8")
    assert headers["Location"] == "/ping?a=\"'<b>&c"
    assert body == b'<a href="/ping?a=&#34;&#39;&lt;b&gt;&amp;c">Moved Permanently</a>.\n\n'
