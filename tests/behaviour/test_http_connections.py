"""What both daemons make of connections and bodies, and of bytes that are hardly HTTP.

gnsqd refuses more where two servers could read a request differently; that stands in a table of its own.
"""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kit.daemons import DEADLINE, Daemon, eventually, open_socket, own_command
from kit.http_api import exchange, head, message, read_all, split_responses, topic_stats
from kit.nsq_client import Client, mpub_body

DaemonFactory = Callable[..., Daemon]


@pytest.fixture(scope="module")
def shared(module_factory: DaemonFactory) -> Daemon:
    """One daemon for all the tests that leave nothing on it another could trip over."""
    return module_factory()


@pytest.fixture(scope="module")
def gnsqd_shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """The same, but only ours."""
    with Daemon(own_command(), tmp_path_factory.mktemp("shared") / "data") as daemon:
        yield daemon


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
        (head("CONNECT /ping") + PING, [(405, message("METHOD_NOT_ALLOWED")), (200, "OK")]),
        (b"GET /ping HTTP/1.0\n\n", [(200, "OK")]),
        (b"GET /ping HTTP/1.1\nHost: x\n\n" + PING + b"GET /ping HTTP/1.2\nHost: a,b\n\n", [(200, "OK")] * 3),
        (b"POST /pub?topic=t HTTP/1.1\nHost: x\nContent-Length: 3\n\nabc" + PING, [(200, "OK")] * 2),
        (
            b"POST /pub?topic=t HTTP/1.1\nHost: x\nTransfer-Encoding: chunked\n\n"
            b"1;a=b\r\na\r\n02\t\r\nbc\r\n0\r\n\r\n" + PING, [(200, "OK")] * 2,
        ),
        (head("POST /pub?topic=t", "Content-Length: 3") + b"abc\r\n" + PING, [(200, "OK")] * 2),
        (b"GET /ping HTTP/1.0\r\nProxy-Connection: keep-alive\r\n\r\n" + PING, [(200, "OK")]),
        (
            head("POST /pub?topic=t", "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "Content-Length: 3")
            + b"abc" + PING,
            [(200, "OK")] * 2,
        ),
    ],
)  # fmt: skip
def test_requests_on_one_connection(shared: Daemon, data: bytes, expected: list[tuple[int, str]]) -> None:
    assert exchange(shared, data) == expected


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
        (b"GET /ping HTTP/0.9\r\n\r\n", 505, "505 HTTP Version Not Supported: unsupported protocol version"),
        (b"GET  /ping HTTP/1.1\r\nHost: x\r\n\r\n", 400, BAD),
        (b"GET /ping HTTP/1.1 \r\nHost: x\r\n\r\n", 400, BAD),
        (b"GET /ping HTTP/1.1\r\nHost: a@b\r\n\r\n", 400, BAD + ": malformed Host header"),
        (b"GET /ping HTTP/1.0\r\nHost: x\r\nHost: x\r\n\r\n", 400, BAD),
        (b"FOO /ping HTTP/1.1\n\n", 400, BAD + ": missing required Host header"),
        (head("GET ping"), 400, BAD),
        (head("GET *x"), 400, BAD),
        (head(" /ping"), 400, BAD),
        (head("G@T /ping"), 400, BAD),
        (head("GET /%zz"), 400, BAD),
        (head("GET /ping?\x01"), 400, BAD),
        (head("GET /ping", "no colon"), 400, BAD),
        (head("GET /ping", ": no name"), 400, BAD),
        (head("GET /ping", "a b: c"), 400, BAD + ": invalid header name"),
        (head("GET /ping", "a: \x00"), 400, BAD),
        (head("GET /ping", "a: b\rc"), 400, BAD),
        (head("GET /ping", "a: b\r"), 400, BAD),
        (head("POST /pub?topic=t", "Content-Length: abc"), 400, BAD),
        (head("POST /pub?topic=t", "Content-Length: -1"), 400, BAD),
        (head("POST /pub?topic=t", "Content-Length: 3", "Content-Length: 4") + b"abcd", 400, BAD),
        (head("POST /pub?topic=t", "Content-Length: +3") + b"abc", 400, BAD),
        (head("POST /pub?topic=t", "Content-Length: 0_3") + b"abc", 400, BAD),
        (head("POST /pub?topic=t", "Content-Length: 3, 3") + b"abc", 400, BAD),
        (head("POST /pub?topic=t", *["Transfer-Encoding: chunked"] * 2), 501, "Unsupported transfer encoding"),
        (head("POST /pub?topic=t", "Transfer-Encoding: gzip"), 501, "Unsupported transfer encoding"),
        (head("GET /ping", "A: " + "x" * 1_100_000), 431, "431 Request Header Fields Too Large"),
    ],
)  # fmt: skip
def test_what_is_no_http_is_refused_and_ends_the_connection(
    shared: Daemon, data: bytes, status: int, body: str
) -> None:
    if b"no colon" in data or b": no name" in data:  # Go says more here in some versions
        assert [answer[0] for answer in exchange(shared, PING + data)] == [200, status]
    else:
        assert exchange(shared, PING + data) == [(200, "OK"), (status, body)]


@pytest.mark.parametrize(
    "data",
    [
        b"POST /pub?topic=t HTTP/1.1\r\nHost: x\r\nA: b\nContent-Length: 3\r\n\r\nabc",
        b"POST /pub?topic=t HTTP/1.1\nHost: x\nA: b\r\nContent-Length: 3\n\nabc",
        b"GET /ping HTTP/1.1\r\nHost: x\n\n",
        b"GET /ping HTTP/1.1\nHost: x\r\n\r\n",
        b"GET /ping HTTP/1.1\r\nHost: x\r\n\n",
        b"GET /ping HTTP/1.1\nHost: x\n\r\n",
        head("GET /ping", "a: b", " c"),
        head("POST /pub?topic=t", "Content-Length:", " 3") + b"abc",
        head("POST /pub?topic=t", "Content-Length: 3", "Content-Length: 3") + b"abc",
        head("POST /pub?topic=t", "Content-Length: 3", "Transfer-Encoding: chunked") + b"3\r\nabc\r\n0\r\n\r\n",
        head("POST /pub?topic=t", "Content-Length: ") + b"abc",
        head("GET /ping?\xe9"),
    ],
)
def test_what_two_servers_could_read_differently_is_refused(gnsqd_shared: Daemon, data: bytes) -> None:
    """The real daemon reads it in its own way."""
    assert exchange(gnsqd_shared, PING + data + PING) == [(200, "OK"), (400, BAD)]


@pytest.mark.parametrize("version", ["1.0", "1.1"])
@pytest.mark.parametrize(
    "line, headers, body",
    [
        ("FOO /ping", ["Allow: GET, OPTIONS"], "METHOD_NOT_ALLOWED"),
        ("get /ping", ["Allow: GET, OPTIONS"], "METHOD_NOT_ALLOWED"),
        ("options /ping", ["Allow: GET, OPTIONS"], "METHOD_NOT_ALLOWED"),
        ("DESCRIBE /pub?topic=t", ["Allow: OPTIONS, POST"], "METHOD_NOT_ALLOWED"),
        ("!#$%&'*+-.^_`|~09 /ping", ["Allow: GET, OPTIONS"], "METHOD_NOT_ALLOWED"),
        ("X" * 5000 + " /ping", ["Allow: GET, OPTIONS"], "METHOD_NOT_ALLOWED"),
        ("FOO /nope", [], "NOT_FOUND"),
        ("FOO /ping/", [], "NOT_FOUND"),
    ],
)
def test_unknown_method_is_not_allowed(shared: Daemon, version: str, line: str, headers: list[str], body: str) -> None:
    """NSQD-COMPAT 5; its body is read, so that the next request is found."""
    with open_socket(shared.http_address, DEADLINE) as sock:
        request = f"{line} HTTP/{version}\r\nHost: x\r\nConnection: keep-alive\r\nContent-Length: 3\r\n\r\nabc"
        sock.sendall(request.encode() + head("GET /ping", "Connection: close"))
        answer, _, rest = read_all(sock).partition(b"\r\n\r\n")
    status, *found = answer.decode().splitlines()
    assert status.startswith(f"HTTP/{version} {404 if body == 'NOT_FOUND' else 405} ")
    expected = {"Content-Type: application/json; charset=utf-8", "X-Nsq-Content-Type: nsq; version=1.0", *headers}
    expected |= {"Connection: keep-alive"} if version == "1.0" else set()
    assert {line for line in found if not line.startswith(("Date", "Content-Length"))} == expected
    assert rest.startswith(message(body).encode() + b"HTTP/1.1 200 OK\r\n")


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


def test_body_far_too_big_is_refused_before_it_comes_and_ends_the_connection(shared: Daemon) -> None:
    for headers in (["Content-Length: 30000000"], ["Content-Length: 30000000", "Expect: 100-continue"]):
        with open_socket(shared.http_address, DEADLINE) as sock:
            sock.sendall(head("POST /pub?topic=t", *headers))
            data = read_all(sock)
            assert b"\r\nConnection: close\r\n" in data
            assert split_responses(data) == [(413, message("MSG_TOO_BIG"))]


def test_client_that_sends_its_big_body_all_the_same_can_read_the_refusal(shared: Daemon) -> None:
    with open_socket(shared.http_address, DEADLINE) as sock:
        sock.sendall(head("POST /pub?topic=t", "Content-Length: 30000000") + b"x" * 1_000_000)
        assert split_responses(read_all(sock)) == [(413, message("MSG_TOO_BIG"))]


def test_body_a_little_too_big_leaves_the_connection(nsqd_factory: DaemonFactory) -> None:
    nsqd = nsqd_factory("--max-msg-size=10")
    too_big = head("POST /pub?topic=t", "Content-Length: 11") + b"x" * 11
    assert exchange(nsqd, too_big + PING) == [(413, message("MSG_TOO_BIG")), (200, "OK")]


def test_client_that_expects_100_continue_gets_it(shared: Daemon) -> None:
    with open_socket(shared.http_address, DEADLINE) as sock:
        sock.sendall(head("POST /pub?topic=t", "Expect: 100-continue", "Content-Length: 3"))
        assert sock.recv(65536) == b"HTTP/1.1 100 Continue\r\n\r\n"
        sock.sendall(b"abc")
        assert split_responses(sock.recv(65536)) == [(200, "OK")]
        assert is_open(sock)


def test_unknown_expectation_fails(shared: Daemon) -> None:
    ((status, _),) = exchange(shared, head("GET /ping", "Expect: a miracle"))
    assert status == 417


def test_pipelining_client_does_not_hold_up_others(nsqd: Daemon) -> None:
    stop = threading.Event()
    requests = (head("POST /pub?topic=t%23ephemeral", "Content-Length: 1") + b"x") * 200

    def flood() -> None:
        with open_socket(nsqd.http_address, DEADLINE) as sock:
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
        eventually(lambda: nsqd.stats("t%23ephemeral")["topics"])
        with open_socket(nsqd.http_address, DEADLINE) as http, Client(nsqd.tcp_address) as tcp:
            waits = []
            for _ in range(50):
                started = time.monotonic()
                assert is_open(http)
                tcp.publish("other#ephemeral", b"x")
                waits.append(time.monotonic() - started)
    finally:
        stop.set()
        flooding.join()
    assert sorted(waits)[25] < 2.0
    assert topic_stats(nsqd, "t%23ephemeral")["message_count"] > 1000


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
    assert chunked("/mpub?topic=t", *[b"x" * 9 + b"\n"] * 2, b"y" * 30) == (413, message("BODY_TOO_BIG"))
    assert chunked("/mpub?topic=t", b"x" * 11 + b"\n", *[b"y" * 9 + b"\n"] * 4) == (413, message("MSG_TOO_BIG"))
    assert chunked("/mpub?topic=$", *[b"x" * 9 + b"\n"] * 5) == (400, message("INVALID_TOPIC"))
    assert chunked("/mpub?topic=t&binary=1", mpub_body(b"a")[:5], mpub_body(b"a")[5:]) == (200, "OK")
    stats = topic_stats(nsqd, "t")
    assert (stats["message_count"], stats["message_bytes"]) == (8, 51)


def test_long_answer_comes_in_chunks(shared: Daemon) -> None:
    for size, length in ((2048, b"Content-Length: 2048"), (2049, b"Transfer-Encoding: chunked")):
        target = "//ping?".ljust(size - 34, "q")  # a redirect, whose body has the query in it
        with open_socket(shared.http_address, DEADLINE) as sock:
            sock.sendall(head(f"GET {target}", "Connection: close"))
            headers = read_all(sock).partition(b"\r\n\r\n")[0]
        assert length in headers.split(b"\r\n")
        assert headers.count(b"Content-Length") + headers.count(b"Transfer-Encoding") == 1
        body = shared.http("GET", target)[2]
        assert (len(body), body[-9:]) == (size, b"ly</a>.\n\n")


def test_client_of_http_1_0_gets_no_chunks(shared: Daemon) -> None:
    with open_socket(shared.http_address, DEADLINE) as sock:
        sock.sendall(f"GET //ping?{'q' * 5000} HTTP/1.0\r\n\r\n".encode())
        headers, _, body = read_all(sock).partition(b"\r\n\r\n")
    assert b"Transfer-Encoding" not in headers
    assert body == b'<a href="/ping?%s">Moved Permanently</a>.\n\n' % (b"q" * 5000)


@pytest.mark.parametrize("connection", ["close", "keep-alive"])
def test_http_1_0_has_no_chunked_bodies(shared: Daemon, connection: str) -> None:
    lines = ["POST /pub?topic=old HTTP/1.0", f"Connection: {connection}", "Transfer-Encoding: chunked", "", ""]
    answers = exchange(shared, "\r\n".join(lines).encode() + b"3\r\nabc\r\n0\r\n\r\n")
    assert {status for status, _ in answers} == {400}
    assert not [topic for topic in shared.stats("old")["topics"] or [] if topic["message_count"]]


def test_trailers_are_no_headers(shared: Daemon) -> None:
    chunks = b"3\r\nabc\r\n0\r\nHost: another\r\nExpect: a miracle\r\n\r\n"
    assert (
        exchange(shared, head("POST /pub?topic=t", "Transfer-Encoding: chunked") + chunks + PING) == [(200, "OK")] * 2
    )


@pytest.mark.parametrize(
    ("line", "headers"),
    [
        ("GET /ping", lambda size: ["A: " + "x" * size]),
        ("GET /ping", lambda size: ["A: " + "x" * 123] * (size // 128) + ["B: " + "x" * (size % 128)]),
        ("GET /ping?", None),
    ],
    ids=["a long header", "many headers", "a long target"],
)
def test_head_of_more_than_64_kib_is_refused(
    gnsqd_factory: DaemonFactory, line: str, headers: Callable[[int], list[str]] | None
) -> None:
    gnsqd = gnsqd_factory()

    def filled(size: int) -> bytes:
        return head(line, *headers(size)) if headers is not None else head(line + "x" * size)

    size = 65536 - len(filled(0)) - 10
    assert 65500 < len(filled(size)) <= 65536
    assert exchange(gnsqd, filled(size) + PING) == [(200, "OK")] * 2
    for more in (100, 30_000, 130_000):
        assert exchange(gnsqd, PING + filled(size + more)) == [
            (200, "OK"),
            (431, "431 Request Header Fields Too Large"),
        ]


def test_unix_socket_has_the_same_connections(nsqd_factory: DaemonFactory, tmp_path: Path) -> None:
    nsqd = nsqd_factory(f"--http-address={tmp_path}/h.sock")
    chunks = head("POST /pub?topic=t", "Transfer-Encoding: chunked") + b"1\r\na\r\n2\r\nbc\r\n0\r\n\r\n"
    assert exchange(nsqd, PING + chunks + PING) == [(200, "OK")] * 3
    assert exchange(nsqd, b"GARBAGE\r\n\r\n") == [(400, BAD)]
    assert topic_stats(nsqd, "t")["message_bytes"] == 3


def test_empty_http_address_means_no_http(nsqd_factory: DaemonFactory) -> None:
    nsqd = nsqd_factory("--http-address=")
    with Client(nsqd.tcp_address) as client:
        client.publish("t", b"x")
    assert nsqd.terminate() == 0
    assert "HTTP: " not in nsqd.log()
