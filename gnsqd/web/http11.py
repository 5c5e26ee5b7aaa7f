"""HTTP/1.0 and 1.1 seen from the server, without any I/O: requests out of bytes, responses into bytes.

`RequestReader` is fed with what arrives, in whatever pieces, and returns complete requests. httptools finds their
parts. As with Go's server, each route limits its body: a longer one is dropped while it arrives, and the request is
answered as `too_big` when it has ended; one that is longer by more than DISCARD_LIMIT is answered at once and is the
connection's last. Trailers, headers that follow a chunked body, are dropped.

A client that keeps its connection mostly sends the same head again. So the connection's last head is compared first,
then whole heads are looked up among heads that were read before, `heads`, and only new ones go through the parser.
Heads with credentials are never kept.

Anything else is answered with Go's text, as `refusal`, and ends the connection. httptools is stricter than Go where two
servers could read a request differently (two lengths for one body, lines without a carriage return) and does not know
methods that no standard names.
"""

from collections.abc import Callable
from functools import lru_cache
from re import compile as regex
from time import gmtime, strftime, time
from typing import Any
from urllib.parse import unquote

from httptools import HttpParserCallbackError, HttpParserError, HttpParserUpgrade, HttpRequestParser

MAX_HEADER_LINES = 1000
MAX_HEAD = 65536  # bytes of a target, header names and values; white space around them is bounded by MAX_SILENCE
MAX_SILENCE = 65536  # bytes that bring neither a request nor a body any further: part of a head, chunk sizes, trailers
DISCARD_LIMIT = 256 * 1024
MAX_HEADS = 1024  # that are known at a time, and
MAX_KNOWN_HEAD = 1024  # how many bytes one of them may have
MAX_REPEATED = 64  # bytes of a response body: such responses, mostly OK, are kept for a second
MAX_MEASURED = 2048  # bytes: a longer response body is sent chunked, as by Go's server
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

REASONS = {
    200: "OK",
    301: "Moved Permanently",
    307: "Temporary Redirect",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    413: "Request Entity Too Large",
    417: "Expectation Failed",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    501: "Not Implemented",
    503: "Service Unavailable",
    505: "HTTP Version Not Supported",
}

_BAD_ESCAPE = regex("%(?![0-9a-fA-F]{2})")
# Heads with one of these are not kept: what they ask for is more than `Request.again` does, or they hold a token.
_SPECIAL = {b"authorization", b"expect", b"transfer-encoding", b"upgrade"}


class Request:
    """One request. `headers` has lower-case names, the values of repeated ones joined by commas.

    announced   the body's length was in the head
    too_big     the body is longer than its route allows; `body` is its beginning
    broken      the body ended or went wrong too early
    """

    __slots__ = (
        "announced", "body", "broken", "buffer", "expects", "headers", "http10", "keep_alive", "limit", "method",
        "path", "query", "received", "target", "too_big",
    )  # fmt: skip

    def __init__(self) -> None:
        self.method = ""
        self.target = ""  # path and query as they came
        self.path = ""  # decoded
        self.query = ""
        self.headers: dict[bytes, bytes] = {}
        self.http10 = False
        self.keep_alive = True
        self.expects = False  # the client sends the body after "100 Continue"
        self.limit = 0
        self.body = b""
        self.buffer: bytearray | None = None  # collects a body that comes in more than one piece
        self.received = 0
        self.announced = False
        self.too_big = False
        self.broken = False

    def again(self, body: bytes) -> "Request":
        """The same request with another body of the same length."""
        request = Request.__new__(Request)
        request.method = self.method
        request.target = self.target
        request.path = self.path
        request.query = self.query
        request.headers = self.headers
        request.http10 = self.http10
        request.keep_alive = True
        request.expects = False
        request.limit = self.limit
        request.body = body
        request.buffer = None
        request.received = self.received
        request.announced = self.announced
        request.too_big = False
        request.broken = False
        return request


class _Stop(Exception):
    """Raised from a callback of the parser: nothing that follows counts."""


class RequestReader:
    """One connection's requests. `body_limit(request)` is asked when a head is in: the maximum size of the body.
    `heads` is shared by the connections for which that is the same: requests by the bytes of their heads.
    Requests are valid until the next call of `feed`.

    After `done` nothing more is to be read: the connection closes once everything given so far is answered, with
    `refusal` as the last thing sent.
    """

    def __init__(self, body_limit: Callable[[Request], int], heads: dict[bytes, Request]) -> None:
        self.done = False
        self.refusal = b""
        self._body_limit = body_limit
        self._heads = heads
        self._head = b""  # of the request that comes first in what the parser gets
        self._last: Request | None = None  # from `heads`, and its head
        self._last_head = b""
        self._parser: Any = HttpRequestParser(self)
        self._request: Request | None = None
        self._ready: list[Request] = []
        self._silence = 0
        self._lines = 0  # of the head at hand, and of its trailers
        self._size = 0  # bytes of the head at hand, or of its trailers
        self._progress = False

    def feed(self, data: bytes) -> list[Request]:
        """The requests that `data` completes, in order."""
        last = self._last
        if last is not None and len(data) == len(self._last_head) + last.received and data.startswith(self._last_head):
            last.body = data[len(self._last_head) :]
            return [last]
        self._progress = False
        if self._request is None:
            data = self._take_known(data)
        while data:
            try:
                self._parser.feed_data(data)
                break
            except HttpParserUpgrade as upgrade:
                if self.done:  # CONNECT
                    break
                data = self._decline_upgrade() + data[upgrade.args[0] :]
            except HttpParserCallbackError as error:
                if isinstance(error.__context__, _Stop):
                    break
                raise
            except HttpParserError:
                self._malformed()
                break
        self._silence = 0 if self._progress else self._silence + len(data)
        if self._silence > MAX_SILENCE and not self.done:
            self._refuse(431)
        return self._take_ready()

    def _take_known(self, data: bytes) -> bytes:
        """Take the complete requests off the beginning of `data` whose heads are known, and return the rest."""
        start = 0
        while start < len(data):
            end = data.find(b"\r\n\r\n", start, start + MAX_KNOWN_HEAD) + 4
            # Empty lines before a request are not part of it.
            self._head = data[start:end] if end > start + 4 and data[start] > 32 else b""
            known = self._heads.get(self._head)
            if known is None:
                break
            body_end = end + known.received
            if body_end > len(data):
                break
            self._last, self._last_head = known.again(data[end:body_end]), self._head
            self._ready.append(self._last)
            self._progress = True
            start = body_end
        if start < len(data):
            self._last = None
        return data[start:]

    def feed_eof(self) -> list[Request]:
        """The client has closed its side: returns the request that was truncated in its body, if any."""
        if self._request is not None and not self.done:
            self._malformed()
        self.done = True
        return self._take_ready()

    def _take_ready(self) -> list[Request]:
        ready, self._ready = self._ready, []
        return ready

    def close(self) -> None:
        """Let go of the parser, which refers back here: otherwise a body that was cut off would stay until the garbage
        collector comes by."""
        self._request = None
        self._parser = None

    @property
    def idle(self) -> bool:
        """Nothing of a next request has arrived."""
        return self._request is None

    @property
    def in_body(self) -> bool:
        """A head is complete, its body not."""
        return self._request is not None and bool(self._request.method)

    @property
    def body_size(self) -> int:
        """The number of received bytes of an incomplete body."""
        return self._request.received if self._request is not None else 0

    def take_interim(self) -> bytes:
        """What to send before the rest of the request can be expected."""
        request = self._request
        if request is None or not request.expects or request.received:
            return b""
        request.expects = False
        return CONTINUE

    def _decline_upgrade(self) -> bytes:
        # Go's server ignores an offer to switch protocols, which Java's client makes with every first request; llhttp
        # stops there, body or not. So it gets the same head again, without the offer.
        request = self._ready.pop()
        self._parser = HttpRequestParser(self)
        lines = [b"%s: %s\r\n" % header for header in request.headers.items() if header[0] != b"upgrade"]
        version = b"1.0" if request.http10 else b"1.1"
        return b"%s %s HTTP/%s\r\n%s\r\n" % (request.method.encode(), request.target.encode(), version, b"".join(lines))

    def _malformed(self) -> None:
        if self.done:
            return
        request = self._request
        if request is None or not request.method:
            self._refuse(400)
        else:
            request.broken = True
            self._answer_now(request)

    def _refuse(self, status: int, why: str = "", text: str = "") -> None:
        """End the connection with one of Go's built-in answers."""
        line = f"{status} {REASONS[status]}{why}"
        self.refusal = (
            f"HTTP/1.1 {line}\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n{text or line}"
        ).encode()
        self.done = True

    def _answer_now(self, request: Request) -> None:
        request.keep_alive = False
        self._finish(request)

    def _finish(self, request: Request) -> None:
        self._request = None
        if request.buffer is not None:
            request.body = bytes(request.buffer)
        self._ready.append(request)
        self.done = not request.keep_alive

    # Called by the parser

    def on_message_begin(self) -> None:
        self._request = Request()
        self._lines = 0
        self._size = 0

    def on_url(self, part: bytes) -> None:
        assert self._request is not None
        self._measure(len(part))
        self._request.target += part.decode("ascii")

    def on_header(self, name: bytes, value: bytes) -> None:
        request = self._request
        assert request is not None
        self._lines += 1
        self._measure(len(name) + len(value) + 4)  # with what separates them
        if request.method:  # the head is complete: this is a trailer
            return
        headers = request.headers
        name = name.lower()
        headers[name] = headers[name] + b", " + value if name in headers else value

    def _measure(self, size: int) -> None:
        self._size += size
        if self._size > MAX_HEAD or self._lines > MAX_HEADER_LINES:
            self._stop(431)

    def on_headers_complete(self) -> None:
        request = self._request
        assert request is not None
        parser = self._parser
        self._progress = True
        self._size = 0
        request.method = parser.get_method().decode()
        headers = request.headers
        version = parser.get_http_version()
        request.http10 = version == "1.0"
        if version == "1.1":
            self._check_host(headers.get(b"host"))
        elif version == "2.0":
            self._stop(505, ": unsupported protocol version")
        elif not request.http10:
            self._stop(400)
        if parser.should_upgrade() and request.method != "CONNECT":
            return
        request.keep_alive = parser.should_keep_alive() and request.method != "CONNECT"
        self._locate(request)
        if b"expect" in headers:
            if headers[b"expect"].lower() != b"100-continue":
                self._stop(417)
            request.expects = not request.http10
        if b"transfer-encoding" in headers:
            if request.http10:  # knows none: others might see where the body ends differently
                self._stop(400)
            if headers[b"transfer-encoding"].lower() != b"chunked":
                self._stop(501, text="Unsupported transfer encoding")
            request.limit = self._body_limit(request)
        elif b"content-length" in headers:
            length = int(headers[b"content-length"])
            request.announced = True
            request.limit = self._body_limit(request)
            request.too_big = length > request.limit
            if request.too_big and (length > DISCARD_LIMIT or request.expects):
                self._answer_now(request)
                raise _Stop

    def _check_host(self, host: bytes | None) -> None:
        if host is None:
            self._stop(400, ": missing required Host header")
        elif b"," in host:
            self._stop(400)
        elif b" " in host:
            self._stop(400, ": malformed Host header")

    def _locate(self, request: Request) -> None:
        """Split the target into path and query; a proxy's absolute form loses its host."""
        path, _, request.query = request.target.partition("?")
        if not path.startswith("/") and "://" in path:
            path = "/" + path.partition("://")[2].partition("/")[2]
        if "%" in path:
            if _BAD_ESCAPE.search(path):
                self._stop(400)
            path = unquote(path)
        request.path = path

    def _stop(self, status: int, why: str = "", text: str = "") -> None:
        self._refuse(status, why, text)
        raise _Stop

    def on_body(self, data: bytes) -> None:
        request = self._request
        assert request is not None
        self._progress = True
        room = request.limit - request.received
        request.received += len(data)
        if len(data) > room:
            request.too_big = True
            if request.received > request.limit + DISCARD_LIMIT:
                self._answer_now(request)
                raise _Stop
            data = data[: max(room, 0)]
        if not request.body:
            request.body = data
        else:
            if request.buffer is None:
                request.buffer = bytearray(request.body)
            request.buffer += data

    def on_message_complete(self) -> None:
        request = self._request
        assert request is not None
        self._progress = True
        self._finish(request)
        if self._head:
            self._learn(request)

    def _learn(self, request: Request) -> None:
        """Know the head of the request that just ended again, if nothing in it needs more than `Request.again` does."""
        if request.keep_alive and not request.too_big and _SPECIAL.isdisjoint(request.headers):
            if len(self._heads) >= MAX_HEADS:
                self._heads.clear()
            self._heads[self._head] = request.again(b"")
        self._head = b""


# By whether the request was HTTP/1.0
_STATUS_LINES = [
    {status: f"HTTP/{version} {status} {reason}\r\n".encode() for status, reason in REASONS.items()}
    for version in ("1.1", "1.0")
]
# and by whether the connection is kept; this ends a head.
_CONNECTION = [[b"Connection: close\r\n\r\n", b"\r\n"], [b"\r\n", b"Connection: keep-alive\r\n\r\n"]]


def render(request: Request, status: int, body: bytes, headers: bytes = b"") -> bytes:
    """A response: `headers` are whole lines; Date, Connection and the header with the length are added. HEAD gets no
    body."""
    make = _render if len(body) > MAX_REPEATED else _render_again
    return make(int(time()), request.http10, request.keep_alive, request.method == "HEAD", status, headers, body)


def _render(
    second: int, http10: bool, keep_alive: bool, is_head: bool, status: int, headers: bytes, body: bytes
) -> bytes:
    chunked = len(body) > MAX_MEASURED and not http10 and not is_head
    head = (
        _STATUS_LINES[http10][status],
        headers,
        strftime("Date: %a, %d %b %Y %H:%M:%S GMT\r\n", gmtime(second)).encode(),
        b"Transfer-Encoding: chunked\r\n" if chunked else b"Content-Length: %d\r\n" % len(body),
        _CONNECTION[http10][keep_alive],
    )
    if chunked:
        return b"%s%x\r\n%s\r\n0\r\n\r\n" % (b"".join(head), len(body), body)
    return b"".join(head if is_head else (*head, body))


_render_again = lru_cache(64)(_render)
