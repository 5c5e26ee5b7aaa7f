"""Requests out of bytes, in pieces of any size, and heads that are known. What is made of each request, and which bytes
are refused, is judged with both daemons in behaviour/test_http_connections.py."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnsqd.web.http11 import CONTINUE, MAX_HEADS, MAX_KNOWN_HEAD, MAX_SILENCE, Request, RequestReader

LIMIT = 100

GET = b"GET /ping?a=b HTTP/1.1\r\nHost: x\r\n\r\n"
POST = b"POST /pub?topic=t HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = (
    b"POST /mpub HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"3\r\nabc\r\n4;x=y\r\ndefg\r\n0\r\nTrailer: t\r\n\r\n"
)


def reader(heads: dict[bytes, Request] | None = None) -> RequestReader:
    return RequestReader(lambda request: LIMIT, {} if heads is None else heads)


def head(*headers: bytes, line: bytes = b"POST /pub HTTP/1.1") -> bytes:
    return b"\r\n".join([line, b"Host: x", *headers, b"", b""])


def fed(under_test: RequestReader, data: bytes, size: int) -> list[Request]:
    requests = []
    for start in range(0, len(data), size):
        if not under_test.done:
            requests += under_test.feed(data[start : start + size])
    return requests


def test_repeated_headers_are_joined_and_names_lowered_but_trailers_are_dropped() -> None:
    chunks = b"3\r\nabc\r\n0\r\nAuthorization: Bearer x\r\nX-A: 3\r\n\r\n"
    (request,) = reader().feed(head(b"Transfer-Encoding: chunked", b"X-A: 1", b"x-a: 2") + chunks)
    assert request.headers == {b"host": b"x", b"transfer-encoding": b"chunked", b"x-a": b"1, 2"}


def test_what_begins_no_request_is_refused_before_its_line_ends_and_requests_before_it_are_given() -> None:
    under_test = reader()
    assert [request.path for request in under_test.feed(GET + b"\x16\x03")] == ["/ping"]
    assert under_test.refusal.startswith(b"HTTP/1.1 400 ")


def test_a_request_line_is_read_once_in_however_many_pieces_its_head_comes() -> None:
    class Reading(RequestReader):
        count = 0

        def _read_request_line(self, line: bytes) -> Request:
            self.count += 1
            return super()._read_request_line(line)

    under_test = Reading(lambda request: LIMIT, {})
    (request,) = fed(under_test, head(b"A: " + b"x" * 100, line=b"GET / HTTP/1.1"), 1)
    assert request.path == "/"
    assert under_test.count <= 5  # while its end is near, and when the head is complete


# Bodies


def test_chunked_body_without_end_is_answered_once_it_is_far_over_the_limit() -> None:
    under_test = reader()
    chunk = b"8000\r\n" + b"x" * 0x8000 + b"\r\n"
    (request,) = fed(under_test, head(b"Transfer-Encoding: chunked") + chunk * 16, len(chunk))
    assert (request.too_big, request.keep_alive, len(request.body)) == (True, False, LIMIT)
    assert under_test.done


def test_continue_is_sent_once_and_only_while_the_body_is_awaited() -> None:
    under_test = reader()
    assert under_test.take_reply() == b""
    under_test.feed(head(b"Expect: 100-Continue", b"Content-Length: 5"))
    assert [under_test.take_reply(), under_test.take_reply()] == [CONTINUE, b""]
    (request,) = under_test.feed(b"hello" + head(b"Expect: 100-continue", b"Content-Length: 5") + b"h")
    assert request.body == b"hello"
    assert under_test.take_reply() == b""
    under_test = reader()
    under_test.feed(head(b"Expect: 100-continue", b"Content-Length: 5", line=b"POST /pub HTTP/1.0"))
    assert under_test.take_reply() == b""


# Any bytes


@pytest.mark.parametrize("start", [
    b"GET /", b"GET / HTTP/1.1\r\nHost: x\r\nLong: ", head(b"Transfer-Encoding: chunked") + b"0\r\nTrailer: ",
    head(b"Transfer-Encoding: chunked") + b"3;",
])  # fmt: skip
def test_bytes_that_lead_nowhere_have_an_end(start: bytes) -> None:
    under_test = reader()
    under_test.feed(start)
    fed(under_test, b"x" * (MAX_SILENCE + 1000), 1000)
    assert under_test.refusal.startswith(b"HTTP/1.1 431 ")


@settings(max_examples=300, deadline=None)
@given(st.lists(st.one_of(st.sampled_from([GET, POST, CHUNKED]), st.binary(max_size=40)), max_size=6), st.data())
def test_no_bytes_whatever_make_the_reader_fail(parts: list[bytes], data: st.DataObject) -> None:
    stream = bytearray(b"".join(parts))
    for _ in range(data.draw(st.integers(0, 3))):
        if stream:
            stream[data.draw(st.integers(0, len(stream) - 1))] = data.draw(st.integers(0, 255))
    under_test = reader()
    requests = fed(under_test, bytes(stream), data.draw(st.integers(1, 64))) + under_test.feed_eof()
    assert all(len(request.body) <= LIMIT for request in requests)
    assert all(request.keep_alive for request in requests[:-1])


# Heads that are known


def test_a_body_that_looks_like_the_last_request_is_a_body() -> None:
    under_test = reader()
    for _ in range(3):
        under_test.feed(POST)
    assert under_test.feed(head(b"Content-Length: %d" % len(POST))) == []
    assert [one.body for one in under_test.feed(POST)] == [POST]


def test_known_heads_are_bounded_in_number_and_size_and_hold_no_secrets() -> None:
    heads: dict[bytes, Request] = {}
    under_test = reader(heads)
    for number in range(MAX_HEADS + 1):
        under_test.feed(head(line=b"GET /%d HTTP/1.1" % number))
    assert 0 < len(heads) <= MAX_HEADS
    heads.clear()
    for header in (b"X-A: " + MAX_KNOWN_HEAD * b"a", b"Authorization: secret", b"authorization: secret", b"Cookie: s"):
        under_test.feed(head(header))
        under_test.feed(GET)
    assert list(heads) == [GET]


def everything(request: Request) -> list[object]:
    fields = ("method", "target", "path", "query", "headers", "http10", "keep_alive", "limit", "received")
    return [getattr(request, name) for name in (*fields, "announced", "too_big", "broken")]


REPEATED = [
    GET, POST, POST.replace(b"hello", b"world"), CHUNKED, b"\r\n\r\n" + GET, b"\n\r\n\r\n" + GET,
    GET.replace(b"\r", b""), POST.replace(b"\r", b""), b"FOO /ping HTTP/1.1\r\nHost: x\r\n\r\n",
    head(b"Expect: 100-continue", b"Content-Length: 5") + b"hello",
    head(b"Connection: Upgrade", b"Upgrade: h2c", b"Content-Length: 5") + b"hello",
    head(b"Content-Length: 101") + b"x" * 101, head(b"Connection: close"), head(b"Content-Length: 0"),
    head(line=b"GET / HTTP/1.0"), head(b"Connection: keep-alive", line=b"GET /%41 HTTP/1.0"),
]  # fmt: skip


@given(st.lists(st.lists(st.sampled_from(REPEATED), max_size=5), max_size=6), st.integers(0, 400))
def test_requests_are_the_same_whether_their_heads_are_known_or_not(streams: list[list[bytes]], size: int) -> None:
    # `size` is that of what arrives at once, 0 for one request each.
    heads: dict[bytes, Request] = {}
    for parts in streams:
        data = b"".join(parts)
        pieces = [data[start : start + size] for start in range(0, len(data), size)] if size else parts
        bytewise = [data[at : at + 1] for at in range(len(data))]  # a head that comes in pieces is never looked up
        seen_by_both = []
        for under_test, arrived in ((reader(heads), pieces), (reader(), bytewise)):
            requests = []
            for piece in arrived:
                if not under_test.done:
                    found = under_test.feed(piece)
                    requests += [(everything(one), one.body) for one in found]
                    under_test.take_reply()
            seen_by_both.append((requests, under_test.done, under_test.is_idle()))
        assert seen_by_both[0] == seen_by_both[1]
