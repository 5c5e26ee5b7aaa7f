"""The HTTP API of both daemons: every row of NSQD-COMPAT 5.2 that gnsqd has, with its errors in their order, and what
becomes of requests that are hardly HTTP."""

import json
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from daemons import Daemon, eventually, open_socket
from nsq_client import Client, mpub_body

DaemonFactory = Callable[..., Daemon]
Row = tuple[str, bytes, int, str]  # method and target, body, status, body of the answer

JSON = "application/json; charset=utf-8"
TEXT = "text/plain; charset=utf-8"
V1 = "nsq; version=1.0"


def message(code: str) -> str:
    return f'{{"message":"{code}"}}'


def ask(nsqd: Daemon, what: str, body: bytes = b"") -> tuple[int, str]:
    method, target = what.split(" ", 1)
    status, _, answer = nsqd.http(method, target, body)
    return status, answer.decode()


def judge(nsqd: Daemon, rows: list[Row]) -> None:
    """Ask for every row in turn and compare all answers at once."""
    found = [(what, body, *ask(nsqd, what, body)) for what, body, _, _ in rows]
    assert found == rows


def topic_stats(nsqd: Daemon, name: str) -> dict[str, Any]:
    (topic,) = nsqd.stats(name)["topics"]
    return dict(topic)


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
        assert ask(nsqd, "POST /mpub?topic=t&defer=nonsense", body) == (200, "OK")
        assert count(nsqd) == total


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


def test_chunked_bodies_have_the_same_limits(nsqd_factory: DaemonFactory) -> None:
    nsqd = nsqd_factory("--max-msg-size=10", "--max-body-size=40")

    def chunked(target: str, *chunks: bytes) -> tuple[int, str]:
        encoded = b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in (*chunks, b""))
        (answer,) = exchange(nsqd, head(f"POST {target}", "Transfer-Encoding: chunked") + encoded)
        return answer

    assert chunked("/pub?topic=t", b"x" * 4, b"y" * 6) == (200, "OK")
    assert chunked("/pub?topic=t", b"x" * 4, b"y" * 7) == (413, message("MSG_TOO_BIG"))
    assert chunked("/pub?topic=t") == (400, message("MSG_EMPTY"))
    assert chunked("/mpub?topic=t", b"ab\nc", b"d\n") == (200, "OK")
    assert chunked("/mpub?topic=t", *[b"x" * 9 + b"\n"] * 4) == (200, "OK")
    assert chunked("/mpub?topic=t", *[b"x" * 9 + b"\n"] * 5) == (413, message("BODY_TOO_BIG"))
    assert chunked("/mpub?topic=t", b"x" * 11 + b"\n", *[b"y" * 9 + b"\n"] * 4) == (413, message("MSG_TOO_BIG"))
    assert chunked("/mpub?topic=$", *[b"x" * 9 + b"\n"] * 5) == (400, message("INVALID_TOPIC"))
    assert chunked("/mpub?topic=t&binary=1", mpub_body(b"a")[:5], mpub_body(b"a")[5:]) == (200, "OK")
    assert count(nsqd) == (8, 51)


def test_message_that_the_disk_refuses_is_answered_as_exiting_and_shown_in_health(nsqd_factory: DaemonFactory) -> None:
    nsqd = nsqd_factory("--mem-queue-size=0")
    (nsqd.data_path / "t.diskqueue.000000.dat").mkdir()
    assert ask(nsqd, "POST /pub?topic=t", b"x") == (503, message("EXITING"))
    assert ask(nsqd, "POST /mpub?topic=t", b"x\ny") == (503, message("EXITING"))
    status, headers, body = nsqd.http("GET", "/ping")
    assert (status, headers["Content-Type"], headers["X-Nsq-Content-Type"]) == (500, TEXT, None)
    assert re.fullmatch(r"NOK - open .*/t\.diskqueue\.000000\.dat: is a directory", body.decode())
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


def test_headers_say_what_kind_of_answer_it_is(nsqd: Daemon) -> None:
    found = {}
    for what in ("GET /ping", "GET /info", "GET /stats", "GET /stats?format=json", "POST /pub?topic=t", "POST /mpub"):
        _, headers, _ = nsqd.http(*what.split(" "), body=b"x")
        found[what] = (headers["X-Nsq-Content-Type"], headers["Content-Type"])
    assert found == {
        "GET /ping": (None, TEXT),
        "GET /info": (V1, JSON),
        "GET /stats": (V1, TEXT),
        "GET /stats?format=json": (V1, JSON),
        "POST /pub?topic=t": (V1, TEXT),
        "POST /mpub": (V1, JSON),
    }


def test_info_tells_addresses_and_limits(nsqd_factory: DaemonFactory) -> None:
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


NORMAL = [
    (r'"memory":{[^}]*}', '"memory":{}'),
    (r'"start_time":\d+', '"start_time":1'),
    (r'"connect_ts":\d+', '"connect_ts":1'),
    (r"127\.0\.0\.1:\d+", "127.0.0.1:1"),
    (r"nsqd v1\.3\.0 \(built w/.*\)", "nsqd v1.3.0"),
    (r"start_time \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(Z|[+-]\d\d:\d\d)", "start_time T"),
    (r"uptime (\d+m)?[\d.]+(ns|\u00b5s|ms|s)", "uptime D"),
    (r"connected: \d+s", "connected: 0s"),
    (r"\t\d+", "\tN"),
    (r"V2 host:\d+", "V2 host:1"),
]


def normal(text: str) -> str:
    for pattern, replacement in NORMAL:
        text = re.sub(pattern, replacement, text)
    return text


LATENCY = '"e2e_processing_latency":{"count":0,"percentiles":null}'
MEMORY = (
    "heap_objects", "heap_idle_bytes", "heap_in_use_bytes", "heap_released_bytes", "gc_pause_usec_100",
    "gc_pause_usec_99", "gc_pause_usec_95", "next_gc_bytes", "gc_total_runs",
)  # fmt: skip


def test_stats_of_an_empty_daemon(nsqd: Daemon) -> None:
    status, body = ask(nsqd, "GET /stats?format=json")
    assert (status, normal(body)) == (
        200,
        '{"version":"1.3.0","health":"OK","start_time":1,"topics":[],"memory":{},"producers":null}',
    )
    assert tuple(json.loads(body)["memory"]) == MEMORY
    memory = "".join(f"   {name:<25}\tN\n" for name in MEMORY)
    assert normal(ask(nsqd, "GET /stats")[1]) == (
        "nsqd v1.3.0\nstart_time T\nuptime D\n\nHealth: OK\n\n"
        f"Memory:\n{memory}\nTopics: None\n\nProducers: None\n"
    )


@pytest.fixture
def busy(nsqd: Daemon) -> Iterator[Daemon]:
    """Two topics, one paused with a channel that is; a consumer with a message in flight, and a producer."""
    for topic, channel in (("a", "c1"), ("a", "c2"), ("b", "x")):
        ask(nsqd, f"POST /topic/create?topic={topic}")
        ask(nsqd, f"POST /channel/create?topic={topic}&channel={channel}")
    ask(nsqd, "POST /channel/pause?topic=a&channel=c2")
    ask(nsqd, "POST /topic/pause?topic=b")
    with Client(nsqd.tcp_address) as consumer, Client(nsqd.tcp_address) as producer:
        consumer.identify(client_id="me", hostname="host", user_agent="ua/1.0")
        consumer.subscribe("a", "c1", rdy=5)
        producer.identify(client_id="you", hostname="host", user_agent="<ua>")
        producer.publish("a", b"hello", b"you")
        finished, _ = consumer.message(), consumer.message()
        consumer.command(b"FIN " + finished.id)
        producer.publish("b", b"waits")
        eventually(lambda: nsqd.channel_stats("a", "c1")["in_flight_count"] == 1)
        eventually(lambda: nsqd.channel_stats("a", "c2")["depth"] == 2)
        yield nsqd


def client_json(client_id: str, state: int, counts: str, user_agent: str, publishes: str = "") -> str:
    return (
        f'{{"client_id":"{client_id}","hostname":"host","version":"V2","remote_address":"127.0.0.1:1",'
        f'"state":{state},{counts},"connect_ts":1,"sample_rate":0,"deflate":false,"snappy":false,'
        f'"user_agent":"{user_agent}",{publishes}"tls":false,"tls_cipher_suite":"","tls_version":"",'
        '"tls_negotiated_protocol":"","tls_negotiated_protocol_is_mutual":false}'
    )


CONSUMER = client_json(
    "me", 3, '"ready_count":5,"in_flight_count":1,"message_count":2,"finish_count":1,"requeue_count":0', "ua/1.0"
)
IDLE = '"ready_count":0,"in_flight_count":0,"message_count":0,"finish_count":0,"requeue_count":0'


def channel_json(name: str, depth: int, in_flight: int, clients: str, paused: str) -> str:
    return (
        f'{{"channel_name":"{name}","depth":{depth},"backend_depth":0,"in_flight_count":{in_flight},'
        f'"deferred_count":0,"message_count":2,"requeue_count":0,"timeout_count":0,'
        f'"client_count":{in_flight},"clients":{clients},"paused":{paused},{LATENCY}}}'
    )


def topic_json(channels: str) -> str:
    return (
        f'{{"topic_name":"a","channels":[{channels}],"depth":0,"backend_depth":0,'
        f'"message_count":2,"message_bytes":8,"paused":false,{LATENCY}}}'
    )


def test_stats_json_to_the_byte(busy: Daemon) -> None:
    def stats(query: str) -> str:
        return normal(ask(busy, f"GET /stats?format=json&{query}")[1])

    channels = channel_json("c1", 0, 1, f"[{CONSUMER}]", "false"), channel_json("c2", 2, 0, "[]", "true")
    producer = client_json("you", 0, IDLE, "\\u003cua\\u003e", '"pub_counts":[{"topic":"a","count":2}],')
    start = '{"version":"1.3.0","health":"OK","start_time":1,'
    assert stats("topic=a") == (
        f'{start}"topics":[{topic_json(",".join(channels))}],"memory":{{}},"producers":[{producer}]}}'
    )
    bare = channel_json("c1", 0, 1, "null", "false")
    assert stats("topic=a&channel=c1&include_clients=false&include_mem=0") == (
        f'{start}"topics":[{topic_json(bare)}],"producers":null}}'
    )
    assert stats("topic=nope&include_mem=false") == f'{start}"topics":null,"producers":null}}'
    assert stats("channel=nope&include_mem=false&include_clients=0") == f'{start}"topics":[],"producers":null}}'


def test_stats_text_to_the_byte(busy: Daemon) -> None:
    page = normal(ask(busy, "GET /stats?include_mem=false&format=text&topic=a")[1])
    assert page == (
        "nsqd v1.3.0\nstart_time T\nuptime D\n\nHealth: OK\n\nTopics:\n"
        "   [a              ] depth: 0     be-depth: 0     msgs: 2        e2e%: \n"
        "      [c1                       ] depth: 0     be-depth: 0     inflt: 1    def: 0    re-q: 0     "
        "timeout: 0     msgs: 2        e2e%: \n"
        "        [V2 host:1 ua/1.0     ] state: 3 inflt: 1    rdy: 5    fin: 1        re-q: 0        "
        "msgs: 2        connected: 0s\n"
        "   *P [c2                       ] depth: 2     be-depth: 0     inflt: 0    def: 0    re-q: 0     "
        "timeout: 0     msgs: 2        e2e%: \n"
        "\nProducers:\n"
        "   [V2 host:1 <ua>       ] msgs: 2        topics: a=2 connected: 0s\n"
    )
    page = normal(ask(busy, "GET /stats?include_mem=false&include_clients=false")[1])
    assert page.endswith(
        "timeout: 0     msgs: 2        e2e%: \n"
        "\n*P [b              ] depth: 1     be-depth: 0     msgs: 1        e2e%: \n"
        "      [x                        ] depth: 0     be-depth: 0     inflt: 0    def: 0    re-q: 0     "
        "timeout: 0     msgs: 0        e2e%: \n"
        "\nProducers: None\n"
    )


def test_stats_filters_and_switches(busy: Daemon) -> None:
    def names(query: str) -> Any:
        topics = json.loads(ask(busy, f"GET /stats?format=json&{query}")[1])["topics"]
        return topics and [
            (topic["topic_name"], [channel["channel_name"] for channel in topic["channels"]]) for topic in topics
        ]

    assert names("") == [("a", ["c1", "c2"]), ("b", ["x"])]
    assert names("topic=b") == [("b", ["x"])]
    assert names("channel=c2") == [("a", ["c2"])]
    assert names("topic=b&channel=c2") == []
    for value, shown in [("true", True), ("1", True), ("false", False), ("0", False), ("no", True), ("", True)]:
        stats = json.loads(ask(busy, f"GET /stats?format=json&include_clients={value}&include_mem={value}")[1])
        assert (stats["producers"] is not None, "memory" in stats) == (shown, shown)
    for query in ("format=JSON", "format=json2", ""):
        assert ask(busy, f"GET /stats?{query}")[1].startswith("nsqd v1.3.0 (built w/")
    judge(busy, [("GET /stats?format=json&a=%zz", b"", 400, message("INVALID_REQUEST"))])


# Paths and methods


def test_unknown_paths_and_wrong_methods(nsqd: Daemon) -> None:
    found = {}
    for what in (
        "GET /", "GET /nope", "POST /put?topic=t", "POST /mput?topic=t", "GET /create_topic?topic=t", "GET /ping/x",
        "POST /ping", "HEAD /ping", "PUT /stats", "DELETE /pub", "PATCH /topic/create", "GET /channel/pause",
        "HEAD /nope", "OPTIONS /ping", "OPTIONS /pub", "OPTIONS /nope", "OPTIONS /ping/", "HEAD /ping/",
    ):  # fmt: skip
        status, headers, body = nsqd.http(*what.split(" "), body=b"")
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
def test_almost_right_paths_are_redirected(nsqd: Daemon, target: str) -> None:
    status, headers, body = nsqd.http("POST", f"{target}?topic=a%20b&c", b"body")
    assert (status, headers["Location"], body) == (307, "/topic/create?topic=a%20b&c", b"")
    assert nsqd.http("GET", target)[0] == 404


def test_redirect_of_get_has_a_page(nsqd: Daemon) -> None:
    status, headers, body = nsqd.http("GET", "/ping/?a=\"'<b>&c")
    assert (status, headers["Content-Type"]) == (301, "text/html; charset=utf-8")
    assert headers["Location"] == "/ping?a=\"'<b>&c"
    assert body == b'<a href="/ping?a=&#34;&#39;&lt;b&gt;&amp;c">Moved Permanently</a>.\n\n'


# Connections


def head(line: str, *headers: str) -> bytes:
    return "\r\n".join([f"{line} HTTP/1.1", "Host: x", *headers, "", ""]).encode()


RESPONSE = re.compile(rb"HTTP/1\.[01] (\d{3})[^\r]*\r\n((?:[^\r]+\r\n)*)\r\n")


def split_responses(data: bytes) -> list[tuple[int, str]]:
    """Status and body of each response; one without a length goes to the end. 100 has no body."""
    found = []
    while data:
        match = RESPONSE.match(data)
        assert match, data
        length = re.search(rb"Content-Length: (\d+)", match[2])
        if match[1] == b"100":
            end = match.end()
        else:
            end = match.end() + int(length[1]) if length else len(data)
        found.append((int(match[1]), data[match.end() : end].decode()))
        data = data[end:]
    return found


def exchange(nsqd: Daemon, data: bytes) -> list[tuple[int, str]]:
    """The answers to `data`, after which this side of the connection ends."""
    with open_socket(nsqd.http_address, 30.0) as sock:
        sock.sendall(data)
        sock.shutdown(socket.SHUT_WR)
        return split_responses(read_all(sock))


def read_all(sock: socket.socket) -> bytes:
    data = b""
    while more := sock.recv(65536):
        data += more
    return data


def is_open(sock: socket.socket) -> bool:
    """Whether one more request is answered."""
    try:
        sock.sendall(head("GET /ping"))
        return sock.recv(65536).endswith(b"OK")
    except OSError:
        return False


PING = head("GET /ping")


@pytest.mark.parametrize(
    "data, expected",
    [
        (PING * 3, [(200, "OK")] * 3),
        (head("POST /pub?topic=t", "Content-Length: 3") + b"abc" + PING, [(200, "OK")] * 2),
        (head("POST /nope", "Content-Length: 3") + b"abc" + PING, [(404, message("NOT_FOUND")), (200, "OK")]),
        (head("GET /ping", "Connection: close") + PING, [(200, "OK")]),
        (b"GET /ping HTTP/1.0\r\n\r\n" + PING, [(200, "OK")]),
        (b"GET /ping HTTP/1.0\r\nConnection: keep-alive\r\n\r\n" + PING, [(200, "OK")] * 2),
        (head("GET http://host/ping"), [(200, "OK")]),
        (head("GET /%70ing"), [(200, "OK")]),
        (head("OPTIONS *"), [(200, "")]),
        (
            head("POST /pub?topic=t", "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "Content-Length: 3")
            + b"abc" + PING,
            [(200, "OK")] * 2,
        ),
    ],
)  # fmt: skip
def test_requests_on_one_connection(nsqd: Daemon, data: bytes, expected: list[tuple[int, str]]) -> None:
    assert exchange(nsqd, data) == expected


BAD = "400 Bad Request"


@pytest.mark.parametrize(
    "data, status, body",
    [
        (b"GARBAGE\r\n\r\n", 400, BAD),
        (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", 400, BAD),
        (b"  V2SUB t c\n\r\n", 400, BAD),
        (b"GET /ping\r\n\r\n", 400, BAD),
        (b"GET /pi", 400, BAD),
        (b"GET /ping HTTP/1.1\r\nHos", 400, BAD),
        (b"GET /ping HTTP/1.1\r\n\r\n", 400, BAD + ": missing required Host header"),
        (b"GET /ping HTTP/1.1\r\nHost: x\r\nHost: x\r\n\r\n", 400, BAD),
        (b"GET /ping HTTP/1.1\r\nHost: a b\r\n\r\n", 400, BAD + ": malformed Host header"),
        (b"GET /ping HTTP/2.0\r\n\r\n", 505, "505 HTTP Version Not Supported: unsupported protocol version"),
        (head("GET ping"), 400, BAD),
        (head("G@T /ping"), 400, BAD),
        (head("GET /%zz"), 400, BAD),
        (head("GET /ping?\x01"), 400, BAD),
        (head("GET /ping", "no colon"), 400, BAD),
        (head("GET /ping", ": no name"), 400, BAD),
        (head("GET /ping", "a: \x00"), 400, BAD),
        (head("POST /pub?topic=t", "Content-Length: abc"), 400, BAD),
        (head("POST /pub?topic=t", "Content-Length: -1"), 400, BAD),
        (head("POST /pub?topic=t", "Content-Length: 3", "Content-Length: 4") + b"abcd", 400, BAD),
        (head("POST /pub?topic=t", "Transfer-Encoding: gzip"), 501, "Unsupported transfer encoding"),
        (head("GET /ping", "A: " + "x" * 1_100_000), 431, "431 Request Header Fields Too Large"),
    ],
)  # fmt: skip
def test_what_is_no_http_is_refused_and_ends_the_connection(nsqd: Daemon, data: bytes, status: int, body: str) -> None:
    if b"no colon" in data or b": no name" in data:  # Go says more here in some versions
        assert [answer[0] for answer in exchange(nsqd, PING + data)] == [200, status]
    else:
        assert exchange(nsqd, PING + data) == [(200, "OK"), (status, body)]


@pytest.mark.parametrize(
    "line, status, body",
    [
        ("POST /pub?topic=t", 500, message("INTERNAL_ERROR")),
        ("POST /mpub?topic=t", 500, message("INTERNAL_ERROR")),
        ("POST /mpub?topic=t&binary=1", 413, message("BAD_BODY")),
        ("POST /topic/delete?topic=t", 400, message("INVALID_REQUEST")),
        ("POST /topic/create?topic=t", 200, ""),
    ],
)
def test_body_that_ends_too_early_or_is_badly_chunked(nsqd: Daemon, line: str, status: int, body: str) -> None:
    assert exchange(nsqd, head(line, "Content-Length: 10") + b"\0\0\0") == [(status, body)]
    assert exchange(nsqd, head(line, "Transfer-Encoding: chunked") + b"1\r\n\0\r\nzz\r\n") == [(status, body)]
    assert not [topic for topic in nsqd.stats()["topics"] if topic["message_count"]]


def test_body_far_too_big_is_refused_before_it_comes_and_ends_the_connection(nsqd: Daemon) -> None:
    for headers in (["Content-Length: 30000000"], ["Content-Length: 30000000", "Expect: 100-continue"]):
        with open_socket(nsqd.http_address, 30.0) as sock:
            sock.sendall(head("POST /pub?topic=t", *headers))
            data = read_all(sock)
            assert b"\r\nConnection: close\r\n" in data
            assert split_responses(data) == [(413, message("MSG_TOO_BIG"))]


def test_client_that_sends_its_big_body_all_the_same_can_read_the_refusal(nsqd: Daemon) -> None:
    with open_socket(nsqd.http_address, 30.0) as sock:
        sock.sendall(head("POST /pub?topic=t", "Content-Length: 30000000") + b"x" * 1_000_000)
        assert split_responses(read_all(sock)) == [(413, message("MSG_TOO_BIG"))]


def test_body_a_little_too_big_leaves_the_connection(nsqd_factory: DaemonFactory) -> None:
    nsqd = nsqd_factory("--max-msg-size=10")
    too_big = head("POST /pub?topic=t", "Content-Length: 11") + b"x" * 11
    assert exchange(nsqd, too_big + PING) == [(413, message("MSG_TOO_BIG")), (200, "OK")]


def test_client_that_expects_it_is_told_to_continue(nsqd: Daemon) -> None:
    with open_socket(nsqd.http_address, 30.0) as sock:
        sock.sendall(head("POST /pub?topic=t", "Expect: 100-continue", "Content-Length: 3"))
        assert sock.recv(65536) == b"HTTP/1.1 100 Continue\r\n\r\n"
        sock.sendall(b"abc")
        assert split_responses(sock.recv(65536)) == [(200, "OK")]
        assert is_open(sock)


def test_unknown_expectation_fails(nsqd: Daemon) -> None:
    ((status, _),) = exchange(nsqd, head("GET /ping", "Expect: a miracle"))
    assert status == 417


def test_pipelining_client_does_not_hold_up_others(nsqd: Daemon) -> None:
    stop = threading.Event()
    requests = (head("POST /pub?topic=t%23ephemeral", "Content-Length: 1") + b"x") * 200

    def flood() -> None:
        with open_socket(nsqd.http_address, 30.0) as sock:
            sender = threading.Thread(target=send, args=(sock,))
            sender.start()
            while sock.recv(1 << 20):
                pass
            sender.join()

    def send(sock: socket.socket) -> None:
        while not stop.is_set():
            sock.sendall(requests)
        sock.shutdown(socket.SHUT_WR)

    flooding = threading.Thread(target=flood)
    flooding.start()
    try:
        eventually(lambda: nsqd.stats("t#ephemeral", "c")["topics"] is not None)
        with open_socket(nsqd.http_address, 30.0) as http, Client(nsqd.tcp_address) as tcp:
            waits = []
            for _ in range(50):
                started = time.monotonic()
                assert is_open(http)
                tcp.publish("other#ephemeral", b"x")
                waits.append(time.monotonic() - started)
    finally:
        stop.set()
        flooding.join()
    assert max(waits) < 2.0
    assert topic_stats(nsqd, "t#ephemeral")["message_count"] > 1000


# Only ours


def test_metrics_count_what_happens(gnsqd: Daemon) -> None:
    for body in (b"abc", b"de"):
        ask(gnsqd, "POST /pub?topic=t", body)
    ask(gnsqd, "POST /channel/create?topic=t&channel=c")
    eventually(lambda: gnsqd.channel_stats("t", "c")["depth"] == 2)
    status, headers, body = gnsqd.http("GET", "/metrics")
    assert (status, headers["Content-Type"].split(";")[0]) == (200, "text/plain")
    found = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in parse_text(body.decode())
        for sample in family.samples
    }
    assert found["gnsqd_topic_messages_total", ("topic", "t")] == 2
    assert found["gnsqd_topic_message_bytes_total", ("topic", "t")] == 5
    assert found["gnsqd_channel_depth", ("channel", "c"), ("topic", "t")] == 2
    assert found["process_resident_memory_bytes",] > 1 << 20


def test_metrics_come_as_openmetrics_when_asked_for(gnsqd: Daemon) -> None:
    ask(gnsqd, "POST /pub?topic=t", b"x")
    accept = {"Accept": "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"}
    _, headers, body = gnsqd.http("GET", "/metrics", headers=accept)
    assert headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")
    assert "gnsqd_topic_messages" in {family.name for family in parse_openmetrics(body.decode())}
