"""Requests out of bytes. The answers that Go's server gives by itself are compared with it in behaviour/test_http."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnsqd.web.http11 import (
    CONTINUE,
    DISCARD_LIMIT,
    MAX_HEAD,
    MAX_HEADS,
    MAX_KNOWN_HEAD,
    MAX_SILENCE,
    Request,
    RequestReader,
    render,
)

LIMIT = 100

GET = b"GET /ping?a=b HTTP/1.1\r\nHost: x\r\n\r\n"
POST = b"POST /pub?topic=t HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = (
    b"POST /mpub HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"3\r\nabc\r\n4;x=y\r\ndefg\r\n0\r\nTrailer: t\r\n\r\n"
)


def reader(limit: int = LIMIT) -> RequestReader:
    return RequestReader(lambda request: limit, {})


def seen(request: Request) -> tuple[str, str, str, bytes]:
    return request.method, request.path, request.query, request.body


def head(*headers: bytes, line: bytes = b"POST /pub HTTP/1.1") -> bytes:
    return b"\r\n".join([line, b"Host: x", *headers, b"", b""])


def status(refusal: bytes) -> int:
    found = re.match(rb"HTTP/1.1 (\d+) ", refusal)
    assert found, refusal
    return int(found[1])


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_pipelined_requests_are_read_alike_in_pieces_of_any_size(size: int) -> None:
    data = GET + POST + CHUNKED + GET
    under_test = reader()
    requests = []
    for start in range(0, len(data), size):
        requests += under_test.feed(data[start : start + size])
    assert [seen(request) for request in requests] == [
        ("GET", "/ping", "a=b", b""),
        ("POST", "/pub", "topic=t", b"hello"),
        ("POST", "/mpub", "", b"abcdefg"),
        ("GET", "/ping", "a=b", b""),
    ]
    assert under_test.idle
    assert not under_test.done


def test_a_request_split_at_any_position_is_the_same_request() -> None:
    data = POST + CHUNKED
    for position in range(len(data) + 1):
        under_test = reader()
        requests = under_test.feed(data[:position]) + under_test.feed(data[position:])
        assert [request.body for request in requests] == [b"hello", b"abcdefg"]


def test_repeated_headers_are_joined_and_names_lowered() -> None:
    (request,) = reader().feed(head(b"X-A: 1", b"x-a: 2", line=b"GET / HTTP/1.1"))
    assert request.headers == {b"host": b"x", b"x-a": b"1, 2"}


@pytest.mark.parametrize(
    "target, path, query",
    [
        (b"/a%2Fb?x=%zz", "/a/b", "x=%zz"),
        (b"http://host:1/ping?a", "/ping", "a"),
        (b"http://host", "/", ""),
        (b"/pub?topic=t#ephemeral", "/pub", "topic=t#ephemeral"),
        (b"*", "*", ""),
    ],
)
def test_target_is_split_into_decoded_path_and_raw_query(target: bytes, path: str, query: str) -> None:
    (request,) = reader().feed(head(line=b"GET %s HTTP/1.1" % target))
    assert (request.path, request.query) == (path, query)


def test_trailers_are_no_headers() -> None:
    chunks = b"3\r\nabc\r\n0\r\nAuthorization: Bearer x\r\nX-A: 2\r\n\r\n"
    (request,) = reader().feed(head(b"Transfer-Encoding: chunked", b"X-A: 1") + chunks)
    assert request.headers == {b"host": b"x", b"transfer-encoding": b"chunked", b"x-a": b"1"}
    assert request.body == b"abc"


@pytest.mark.parametrize("size", [1000, 65536, 1 << 20])
def test_a_head_has_a_limit_in_pieces_of_any_size(size: int) -> None:
    for length, refused in ((MAX_HEAD - 100, False), (MAX_HEAD + 100, True)):
        data = GET + head(b"A: " + b"x" * (length // 2), b"B: " + b"x" * (length // 2), line=b"GET / HTTP/1.1")
        under_test = reader()
        requests = []
        for start in range(0, len(data), size):
            if not under_test.done:
                requests += under_test.feed(data[start : start + size])
        assert len(requests) == (1 if refused else 2)
        assert under_test.refusal[9:12] == (b"431" if refused else b"")


def test_a_request_line_is_read_once_in_however_many_pieces_its_head_comes() -> None:
    class Reading(RequestReader):
        count = 0

        def _read_request_line(self, line: bytes) -> Request:
            self.count += 1
            return super()._read_request_line(line)

    under_test = Reading(lambda request: LIMIT, {})
    for byte in head(b"A: " + b"x" * 100, line=b"GET / HTTP/1.1"):
        requests = under_test.feed(bytes([byte]))
    assert [request.path for request in requests] == ["/"]
    assert under_test.count <= 5  # while its end is near, and when the head is complete


# Bodies


def test_body_of_exactly_the_limit_is_taken() -> None:
    (request,) = reader().feed(head(b"Content-Length: 100") + b"x" * 100)
    assert request.body == b"x" * 100
    assert not request.too_big


def test_announced_body_over_the_limit_is_dropped_and_the_connection_goes_on() -> None:
    under_test = reader()
    assert under_test.feed(head(b"Content-Length: 101") + b"x" * 100) == []
    first, second = under_test.feed(b"x" + GET)
    assert (first.too_big, first.announced, first.keep_alive) == (True, True, True)
    assert seen(second) == ("GET", "/ping", "a=b", b"")


def test_announced_body_far_over_the_limit_is_answered_before_it_comes() -> None:
    under_test = reader()
    (request,) = under_test.feed(head(b"Content-Length: %d" % (DISCARD_LIMIT + 1)))
    assert (request.too_big, request.announced, request.keep_alive) == (True, True, False)
    assert under_test.done


def test_chunked_body_over_the_limit_keeps_its_beginning_and_the_connection() -> None:
    under_test = reader()
    chunks = b"3c\r\n" + b"a" * 60 + b"\r\n3c\r\n" + b"b" * 60 + b"\r\n"
    first, second = under_test.feed(head(b"Transfer-Encoding: chunked") + chunks + b"0\r\n\r\n" + GET)
    assert (first.too_big, first.announced, first.keep_alive) == (True, False, True)
    assert first.body == b"a" * 60 + b"b" * 40
    assert second.method == "GET"


def test_chunked_body_without_end_is_answered_once_it_is_far_over_the_limit() -> None:
    under_test = reader()
    requests = under_test.feed(head(b"Transfer-Encoding: chunked"))
    chunk = b"8000\r\n" + b"x" * 0x8000 + b"\r\n"
    fed = 0
    while not requests:
        assert fed < 2 * DISCARD_LIMIT
        requests = under_test.feed(chunk)
        fed += len(chunk)
    (request,) = requests
    assert (request.too_big, request.keep_alive, len(request.body)) == (True, False, LIMIT)
    assert under_test.done


@pytest.mark.parametrize(
    "headers, rest",
    [((b"Content-Length: 9",), b"abc"), ((b"Transfer-Encoding: chunked",), b"9\r\nabc")],
)
def test_end_of_stream_inside_a_body_gives_the_broken_request(headers: tuple[bytes, ...], rest: bytes) -> None:
    under_test = reader()
    assert under_test.feed(head(*headers) + rest) == []
    (request,) = under_test.feed_eof()
    assert (request.broken, request.keep_alive, request.body) == (True, False, b"abc")
    assert under_test.done
    assert not under_test.refusal


def test_end_of_stream_between_requests_gives_nothing() -> None:
    under_test = reader()
    under_test.feed(GET)
    assert under_test.feed_eof() == []
    assert under_test.done
    assert not under_test.refusal


def test_end_of_stream_inside_a_head_is_refused() -> None:
    under_test = reader()
    under_test.feed(b"GET /ping HTTP/1.1\r\nHos")
    assert under_test.feed_eof() == []
    assert status(under_test.refusal) == 400


def test_bad_chunk_size_gives_the_broken_request() -> None:
    under_test = reader()
    (request,) = under_test.feed(head(b"Transfer-Encoding: chunked") + b"3\r\nabc\r\nzz\r\n")
    assert (request.broken, request.keep_alive) == (True, False)
    assert under_test.done


# What a client asks before it sends a body


def test_continue_is_said_once_and_only_while_the_body_is_awaited() -> None:
    under_test = reader()
    assert under_test.take_interim() == b""
    assert under_test.feed(head(b"Expect: 100-Continue", b"Content-Length: 5")) == []
    assert under_test.take_interim() == CONTINUE
    assert under_test.take_interim() == b""
    (request,) = under_test.feed(b"hello")
    assert request.body == b"hello"


def test_continue_is_not_said_once_the_body_has_begun() -> None:
    under_test = reader()
    under_test.feed(head(b"Expect: 100-continue", b"Content-Length: 5") + b"h")
    assert under_test.take_interim() == b""


def test_client_that_would_wait_for_continue_is_refused_a_body_that_is_too_big() -> None:
    under_test = reader()
    (request,) = under_test.feed(head(b"Expect: 100-continue", b"Content-Length: 101"))
    assert (request.too_big, request.keep_alive) == (True, False)


# The end of a connection


@pytest.mark.parametrize(
    "line, headers, keeps",
    [
        (b"GET / HTTP/1.1", (), True),
        (b"GET / HTTP/1.1", (b"Connection: close",), False),
        (b"GET / HTTP/1.0", (), False),
        (b"GET / HTTP/1.0", (b"Connection: Keep-Alive",), True),
    ],
)
def test_connection_is_kept_as_version_and_header_say(line: bytes, headers: tuple[bytes, ...], keeps: bool) -> None:
    under_test = reader()
    requests = under_test.feed(head(*headers, line=line) + GET)
    assert len(requests) == (2 if keeps else 1)
    assert requests[0].keep_alive is keeps
    assert under_test.done is not keeps
    assert not under_test.refusal


def test_connect_is_answered_like_any_method() -> None:
    under_test = reader()
    (request, _) = under_test.feed(head(line=b"CONNECT host:1 HTTP/1.1") + GET)
    assert (request.method, request.keep_alive) == ("CONNECT", True)


def test_offer_of_another_protocol_is_ignored_and_the_body_read() -> None:
    offer = head(b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"Content-Length: 5")
    data = offer + b"hello" + offer + b"world" + GET
    for size in (1, 50, 1000):
        under_test = reader()
        requests = []
        for start in range(0, len(data), size):
            requests += under_test.feed(data[start : start + size])
        assert [request.body for request in requests] == [b"hello", b"world", b""]


# Refusals


@pytest.mark.parametrize(
    "data, expected",
    [
        (b"GARBAGE\r\n\r\n", 400),
        (b"GET /ping\r\n\r\n", 400),
        (b"GET /ping HTTP/1.1\r\n\r\n", 400),
        (b"GET /ping HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", 400),
        (b"GET /ping HTTP/1.1\r\nHost: a b\r\n\r\n", 400),
        (b"GET /ping HTTP/2.0\r\nHost: x\r\n\r\n", 505),
        (b"GET /p%zz HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (head(b"Content-Length: 3", b"Content-Length: 4"), 400),
        (head(b"Content-Length: 3", b"Transfer-Encoding: chunked"), 400),
        (head(b"Content-Length: -1"), 400),
        (head(b"Content-Length: 99999999999999999999999"), 400),
        (head(b"Transfer-Encoding: gzip"), 501),
        (head(b"Transfer-Encoding: chunked", line=b"POST /pub HTTP/1.0"), 400),
        (head(b"Expect: nothing"), 417),
    ],
)
def test_what_is_no_http_is_refused(data: bytes, expected: int) -> None:
    under_test = reader()
    (request,) = under_test.feed(GET)
    assert under_test.feed(data + GET) == []
    assert under_test.done
    assert status(under_test.refusal) == expected
    assert request.keep_alive


def test_requests_before_a_bad_one_are_still_given() -> None:
    under_test = reader()
    assert [request.path for request in under_test.feed(GET + b"\x00\x00")] == ["/ping"]
    assert status(under_test.refusal) == 400


@pytest.mark.parametrize(
    "start",
    [
        b"GET /",
        b"GET / HTTP/1.1\r\nHost: x\r\nLong: ",
        head(b"Transfer-Encoding: chunked") + b"0\r\nTrailer: ",
        head(b"Transfer-Encoding: chunked") + b"3;",
    ],
)
def test_bytes_that_lead_nowhere_have_an_end(start: bytes) -> None:
    under_test = reader()
    under_test.feed(start)
    fed = 0
    while not under_test.done:
        assert fed <= MAX_SILENCE
        under_test.feed(b"x" * 1000)
        fed += 1000
    assert status(under_test.refusal) == 431


@settings(max_examples=300, deadline=None)
@given(st.lists(st.one_of(st.sampled_from([GET, POST, CHUNKED]), st.binary(max_size=40)), max_size=6), st.data())
def test_no_bytes_whatever_make_the_reader_fail(parts: list[bytes], data: st.DataObject) -> None:
    stream = bytearray(b"".join(parts))
    for _ in range(data.draw(st.integers(0, 3))):
        if stream:
            stream[data.draw(st.integers(0, len(stream) - 1))] = data.draw(st.integers(0, 255))
    under_test = reader()
    size = data.draw(st.integers(1, 64))
    requests = []
    for start in range(0, len(stream), size):
        if under_test.done:
            break
        requests += under_test.feed(bytes(stream[start : start + size]))
    requests += under_test.feed_eof()
    assert all(len(request.body) <= LIMIT for request in requests)
    assert all(request.keep_alive for request in requests[:-1])


# Responses


def a_request(line: bytes, *headers: bytes) -> Request:
    (request,) = reader().feed(head(*headers, line=line))
    return request


def test_response_has_date_length_and_body() -> None:
    response = render(a_request(b"GET / HTTP/1.1"), 200, b"OK", b"A: b\r\n")
    assert re.fullmatch(
        rb"HTTP/1.1 200 OK\r\nA: b\r\nDate: \w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d GMT\r\nContent-Length: 2\r\n\r\nOK",
        response,
    )


def test_response_to_head_has_the_length_but_no_body() -> None:
    response = render(a_request(b"HEAD / HTTP/1.1"), 404, b"12345")
    assert b"Content-Length: 5\r\n" in response
    assert response.endswith(b"\r\n\r\n")


@pytest.mark.parametrize(
    "line, header, version, connection",
    [
        (b"GET / HTTP/1.1", b"A: b", b"HTTP/1.1", None),
        (b"GET / HTTP/1.1", b"Connection: close", b"HTTP/1.1", b"close"),
        (b"GET / HTTP/1.0", b"A: b", b"HTTP/1.0", None),
        (b"GET / HTTP/1.0", b"Connection: keep-alive", b"HTTP/1.0", b"keep-alive"),
    ],
)
def test_response_says_what_becomes_of_the_connection(
    line: bytes, header: bytes, version: bytes, connection: bytes | None
) -> None:
    response = render(a_request(line, header), 200, b"")
    assert response.startswith(version + b" 200 OK\r\n")
    found = re.search(rb"\r\nConnection: (.*)\r\n", response)
    assert (found and found[1]) == connection


def test_body_over_2048_bytes_is_one_chunk() -> None:
    assert b"\r\nContent-Length: 2048\r\n\r\n" in render(a_request(b"GET / HTTP/1.1"), 200, b"x" * 2048)
    response = render(a_request(b"GET / HTTP/1.1"), 200, b"x" * 2049)
    assert response.endswith(b"\r\nTransfer-Encoding: chunked\r\n\r\n801\r\n" + b"x" * 2049 + b"\r\n0\r\n\r\n")
    assert b"Content-Length" not in response


def test_clients_of_http_1_0_get_no_chunks() -> None:
    response = render(a_request(b"GET / HTTP/1.0"), 200, b"x" * 2049)
    assert response.endswith(b"\r\nContent-Length: 2049\r\n\r\n" + b"x" * 2049)


def test_a_head_that_was_read_before_gives_the_same_request_with_the_new_body() -> None:
    heads: dict[bytes, Request] = {}
    (first,) = RequestReader(lambda request: LIMIT, heads).feed(POST)
    (again,) = RequestReader(lambda request: LIMIT, heads).feed(POST.replace(b"hello", b"world"))
    assert list(heads) == [POST.removesuffix(b"hello")]
    assert (first.body, again.body) == (b"hello", b"world")
    assert everything(again) == everything(first)


def test_the_last_head_again_gives_a_request_for_each_body() -> None:
    under_test = reader()
    for cut in (0, 20, len(POST) - 2):
        for body in (b"hello", b"world", b"again"):
            (request,) = under_test.feed(POST.replace(b"hello", body))
            assert seen(request) == ("POST", "/pub", "topic=t", body)
        assert under_test.feed(POST[:cut]) == []
        assert [one.body for one in under_test.feed(POST[cut:] + GET)] == [b"hello", b""]


def test_a_body_that_looks_like_the_last_request_is_a_body() -> None:
    under_test = reader()
    for _ in range(3):
        under_test.feed(POST)
    assert under_test.feed(head(b"Content-Length: %d" % len(POST))) == []
    assert [one.body for one in under_test.feed(POST)] == [POST]


def test_a_body_may_come_later_than_a_head_that_is_known() -> None:
    under_test = reader()
    under_test.feed(POST)
    for cut in range(1, len(POST)):
        assert under_test.feed(POST[:cut]) == []
        (request,) = under_test.feed(POST[cut:] + GET)[:1]
        assert request.body == b"hello"


def test_heads_that_are_known_are_bounded_in_number_and_size() -> None:
    heads: dict[bytes, Request] = {}
    under_test = RequestReader(lambda request: LIMIT, heads)
    for number in range(MAX_HEADS + 1):
        under_test.feed(head(line=b"GET /%d HTTP/1.1" % number))
    assert 0 < len(heads) <= MAX_HEADS
    under_test.feed(long := head(b"X-A: " + MAX_KNOWN_HEAD * b"a"))
    assert long not in heads


def test_a_head_with_a_secret_is_not_kept() -> None:
    heads: dict[bytes, Request] = {}
    under_test = RequestReader(lambda request: LIMIT, heads)
    for name in (b"Authorization", b"authorization", b"Cookie"):
        under_test.feed(head(name + b": Bearer secret"))
        under_test.feed(GET)
    assert list(heads) == [GET]


def everything(request: Request) -> list[object]:
    fields = ("method", "target", "path", "query", "headers", "http10", "keep_alive", "limit", "received")
    return [getattr(request, name) for name in (*fields, "announced", "too_big", "broken")]


REPEATED = [
    GET,
    POST,
    POST.replace(b"hello", b"world"),
    CHUNKED,
    b"\r\n\r\n" + GET,
    b"\n\r\n\r\n" + GET,
    GET.replace(b"\r", b""),
    POST.replace(b"\r", b""),
    b"FOO /ping HTTP/1.1\r\nHost: x\r\n\r\n",
    head(b"Expect: 100-continue", b"Content-Length: 5") + b"hello",
    head(b"Connection: Upgrade", b"Upgrade: h2c", b"Content-Length: 5") + b"hello",
    head(b"Content-Length: 101") + b"x" * 101,
    head(b"Connection: close"),
    head(b"Content-Length: 0"),
    head(line=b"GET / HTTP/1.0"),
    head(b"Connection: keep-alive", line=b"GET /%41 HTTP/1.0"),
]


@given(st.lists(st.lists(st.sampled_from(REPEATED), max_size=5), max_size=6), st.integers(0, 400))
def test_requests_are_the_same_whether_their_heads_are_known_or_not(streams: list[list[bytes]], size: int) -> None:
    """`size` is that of what arrives at once, 0 for one request each."""
    heads: dict[bytes, Request] = {}
    for parts in streams:
        data = b"".join(parts)
        pieces = [data[start : start + size] for start in range(0, len(data), size)] if size else parts
        bytewise = [data[at : at + 1] for at in range(len(data))]  # a head that comes in pieces is never looked up
        seen_by_both = []
        for under_test, arrived in ((RequestReader(lambda request: LIMIT, heads), pieces), (reader(), bytewise)):
            requests = []
            for piece in arrived:
                if not under_test.done:
                    found = under_test.feed(piece)
                    requests += [(everything(one), one.body) for one in found]
                    under_test.take_interim()
            seen_by_both.append((requests, under_test.done, under_test.idle))
        assert seen_by_both[0] == seen_by_both[1]
