"""HTTP/1.0 and 1.1 seen from the server, without any I/O: parses bytes into requests, and renders responses.

As in Go's server, each route limits its body: a longer one is dropped while it arrives, and the request is answered as
`too_big` when it has ended; one that is longer by more than DISCARD_LIMIT is answered at once and is the connection's
last. Trailers are dropped.

A client that keeps its connection mostly sends the same head again. So heads are compared with the connection's last
one, then looked up among those read before, and only new ones are parsed. Heads with credentials are never kept.

Invalid input is answered with Go's text, as `refusal`, and ends the connection. If two servers could read a request
differently, more is refused than by Go's server: a repeated Content-Length, one beside a Transfer-Encoding, headers in
several lines, and a head with different line ends. Lines may end with line feeds alone if all do.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from io import BytesIO
from re import compile as regex
from time import gmtime, strftime, time_ns
from typing import NoReturn

from gnsqd.gotext import unescape

MAX_HEADER_LINES = 1000
MAX_HEAD = 65536  # bytes
MAX_SILENCE = 65536  # bytes that bring neither a request nor a body any further: part of a head, chunk sizes, trailers
DISCARD_LIMIT = 256 * 1024
MAX_HEADS = 1024  # that are known at a time, and
MAX_KNOWN_HEAD = 1024  # how many bytes one of them may have
MAX_REPEATED = 64  # bytes of a response body: such responses, mostly OK, are kept for a second
MAX_MEASURED = 2048  # bytes: a longer response body is sent chunked, as by Go's server
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

# All that gnsqd and the page of gnsqadmin send. The module `http` loads slowly, and has another phrase for 413.
_STATUSES = (
    "200 OK, 301 Moved Permanently, 303 See Other, 307 Temporary Redirect, 400 Bad Request, 401 Unauthorized, "
    "403 Forbidden, 404 Not Found, 405 Method Not Allowed, 409 Conflict, 410 Gone, 413 Request Entity Too Large, "
    "415 Unsupported Media Type, 417 Expectation Failed, 431 Request Header Fields Too Large, "
    "500 Internal Server Error, 501 Not Implemented, 502 Bad Gateway, 503 Service Unavailable, "
    "505 HTTP Version Not Supported"
)
REASONS = {int(status[:3]): status[4:] for status in _STATUSES.split(", ")}

_BAD_ESCAPE = "%(?![0-9a-fA-F]{2})"  # patterns that are strings are rarely needed: `regex` compiles and keeps them
# Heads with one of these are not kept: `Request.with_body` lacks what they ask for, or they hold a secret.
_SPECIAL = {b"authorization", b"content-encoding", b"cookie", b"expect", b"transfer-encoding"}
_ONCE = {b"host", b"content-length"}

_NAME = rb"!#$%&'*+\-.^_`|~0-9A-Za-z"  # characters of a method or a header's name
_TOKEN = b"[%b]+" % _NAME
_TEXT = rb"[^\x00-\x08\x0a-\x1f\x7f]*"
_END_OF_HEAD = regex(rb"\n\r?\n")
_REQUEST_LINE = regex(rb"(%b) ([\x21-\x7e]+) HTTP/([0-9])\.([0-9])" % _TOKEN)
_TARGET = regex(rb"/|\*\Z|[A-Za-z][A-Za-z0-9+.\-]*://")
_HEADER = regex(rb"(%b):(%b)" % (_TOKEN, _TEXT))
_SPACE_IN_NAME = rb"[%b]+ [%b ]*:" % (_NAME, _NAME)
_HOST = regex(rb"[!$%&'()*+,\-.:;=\[\]_~0-9A-Za-z]*")
_LENGTH = regex(rb"[0-9]{1,19}")
_CHUNK_SIZE = rb"([0-9a-fA-F]{1,15})(?:[ \t]*|;%b)\r\n" % _TEXT
_CHUNK_END = rb"\r\n"
_TRAILER = rb"(?:%b:%b)?\r\n" % (_TOKEN, _TEXT)


class Request:
    """One request. `headers` has lower-case names, the values of repeated ones joined by commas."""

    def __init__(self) -> None:
        self.method = self.query = ""
        self.target = ""  # path and query as they came
        self.path = ""  # decoded
        self.headers: dict[bytes, bytes] = {}
        self.http10 = False
        self.limit = self.received = 0
        self.body = b""
        self.announced = False  # the body's length was in the head
        self.keep_alive = True
        self.expects = False  # the client sends the body after "100 Continue"
        self.encoded = False  # the body has a Content-Encoding
        self.buffer: BytesIO | None = None  # collects a body that comes in more than one piece
        self.too_big = False  # the body is longer than its route allows, and `body` its beginning
        self.broken = False  # the body ended or went wrong too early
        self.may_yield = True  # its handler; False on the hub

    def with_body(self, body: bytes) -> "Request":
        """Returns the same request with another body of the same length."""
        other = Request()
        other.method, other.target, other.path, other.query = self.method, self.target, self.path, self.query
        other.headers, other.http10, other.limit = self.headers, self.http10, self.limit
        other.body, other.received, other.announced = body, self.received, self.announced
        return other


class _Stop(Exception):
    """Later bytes on the connection are ignored."""


class RequestReader:
    """One connection's requests. `body_limit(request)` is called when a head is complete: the maximum size of the body.
    `heads` is shared by the connections for which that is the same: requests by the bytes of their heads. Requests are
    valid until the next call of `feed`. `request` is the one whose body is under way. After `done` nothing more is to
    be read: the connection closes once everything given so far is answered, with `refusal` as the last thing sent.
    """

    def __init__(self, body_limit: Callable[[Request], int], heads: dict[bytes, Request]) -> None:
        self.done = False
        self.refusal = b""
        self._body_limit = body_limit
        self._heads = heads
        self._head = b""  # of the request at hand, if it may be kept
        self._last: Request | None = None  # from `heads`, and its head
        self._last_head = b""
        self._buffer = b""  # the beginning of a head, of a line between chunks, or of a trailer
        self._searched = 0  # bytes of it without the end of a head
        self.request: Request | None = None
        self._rest = 0  # bytes of its body, or of its chunk, that are still to come
        self._line: bytes | None = None  # what comes then, for a chunk
        self._ready: list[Request] = []
        self._silence = 0
        self._progress = False

    def feed(self, data: bytes) -> list[Request]:
        """Returns the requests that `data` completes, in order."""
        last = self._last
        if last is not None and len(data) == len(self._last_head) + last.received:
            body = data.removeprefix(self._last_head)
            if len(body) == last.received:
                last.body = body
                return [last]
        self._progress = False
        size = len(data)
        if self._buffer:
            data, self._buffer = self._buffer + data, b""
        elif self.request is None:
            data = self._take_known(data)
            if not data:
                self._silence = 0
                return self._take_ready()
        try:
            position, before = 0, -1
            while before < position < len(data) and not self.done:
                before = position
                position = self._read_head(data, position) if self.request is None else self._read_body(data, position)
            self._buffer = b"" if self.done else data[position:]
            self._silence = 0 if self._progress else self._silence + size
            if self._silence > MAX_SILENCE:
                self._stop(431)
        except _Stop:
            pass
        return self._take_ready()

    def _take_known(self, data: bytes) -> bytes:
        """Takes the complete requests off the beginning of `data` whose heads are known; returns the rest."""
        start = 0
        while start < len(data):
            end = data.find(b"\r\n\r\n", start, start + MAX_KNOWN_HEAD) + 4
            head = data[start:end]
            known = self._heads.get(head)
            if known is None:
                break
            body_end = end + known.received
            if body_end > len(data):
                break
            self._last, self._last_head = known.with_body(data[end:body_end]), head
            self._ready.append(self._last)
            self._progress = True
            start = body_end
        if start < len(data):
            self._last = None
        return data[start:]

    def feed_eof(self) -> list[Request]:
        """Ends the stream: returns the request that was truncated in its body, if any."""
        if not (self.is_idle() or self.done):
            with suppress(_Stop):
                self._malformed()
        self.done = True
        return self._take_ready()

    def _take_ready(self) -> list[Request]:
        ready, self._ready = self._ready, []
        return ready

    def is_idle(self) -> bool:
        """Returns True if nothing of a next request has arrived."""
        return self.request is None and not self._buffer

    def take_reply(self) -> bytes:
        """Returns what is to be sent after the answers, once: the refusal, or what lets the client send a body."""
        reply, self.refusal = self.refusal, b""
        request = self.request
        if reply or request is None or not request.expects or request.received:
            return reply
        request.expects = False
        return CONTINUE

    def _malformed(self) -> NoReturn:
        if self.request is None:
            self._stop(400)
        self.request.broken = True
        self._answer_now(self.request)

    def _stop(self, status: int, why: str = "", text: str = "") -> NoReturn:
        """Ends the connection with one of Go's built-in answers."""
        line = f"{status} {REASONS[status]}{why}"
        headers = "Content-Type: text/plain; charset=utf-8\r\nConnection: close\r\n"
        self.refusal = f"HTTP/1.1 {line}\r\n{headers}\r\n{text or line}".encode()
        self.done = True
        raise _Stop

    def _answer_now(self, request: Request) -> NoReturn:
        """Makes it the last request, whatever of it is missing."""
        request.keep_alive = False
        self._finish(request)
        raise _Stop

    def _finish(self, request: Request) -> None:
        self.request = None
        self._progress = True
        if request.buffer is not None:
            request.body = request.buffer.getvalue()  # not a copy
        self._ready.append(request)
        self.done = not request.keep_alive
        if self._head and request.keep_alive and not request.too_big and _SPECIAL.isdisjoint(request.headers):
            if len(self._heads) >= MAX_HEADS:
                self._heads.clear()
            self._heads[self._head] = request.with_body(b"")
        self._head = b""

    def _read_head(self, data: bytes, start: int) -> int:
        """Reads the head at `start`, if it is complete; returns where the rest of the data begins. Raises _Stop."""
        if data.startswith((b"\r", b"\n"), start):  # empty lines, which Go's server skips after a POST
            start = len(data) - len(data[start:].lstrip(b"\r\n"))
        searched, self._searched = start + self._searched, 0
        match = _END_OF_HEAD.search(data, searched)
        end = match.end() if match else len(data)
        if end - start > MAX_HEAD:
            self._stop(431)
        if match is None:
            line, ended, _ = data[start:].partition(b"\n")
            is_new = start + len(line) >= searched
            if (ended and is_new) or (line and not 32 < line[0] < 127):  # such as a handshake of TLS
                self._read_request_line(line.removesuffix(b"\r"))
            self._searched = max(0, end - start - 3)
            return start
        head = data[start:end]
        # Lines end as the last one does. A proxy may take a line feed alone for a part of the line, and the rest of the
        # line must not become a header here.
        if head.endswith(b"\r\n\r\n"):
            line, *lines = head[:-4].split(b"\r\n")
            self._head = head if len(head) <= MAX_KNOWN_HEAD else b""
        elif head.endswith(b"\n\n"):
            line, *lines = head[:-2].split(b"\n")
        else:
            self._stop(400)
        self._begin(self._read_request_line(line), lines)
        return end

    def _read_request_line(self, line: bytes) -> Request:
        match = _REQUEST_LINE.fullmatch(line)
        if match is None:
            self._stop(400)
        method, target, major, minor = match.groups()
        request = Request()
        request.method = method.decode()
        request.target = target.decode()
        if method != b"CONNECT" and not _TARGET.match(target):
            self._stop(400)
        if major != b"1":
            self._stop(505, ": unsupported protocol version")
        request.http10 = minor == b"0"
        return request

    def _begin(self, request: Request, lines: list[bytes]) -> None:
        """Begins a request, whose head has these header lines; raises _Stop."""
        self._progress = True
        if len(lines) > MAX_HEADER_LINES:
            self._stop(431)
        headers = request.headers
        for line in lines:
            match = _HEADER.fullmatch(line)
            if match is None:
                self._stop(400, ": invalid header name" if regex(_SPACE_IN_NAME).match(line) else "")
            name, value = match[1].lower(), match[2].strip(b" \t")
            if name not in headers:
                headers[name] = value
            elif name in _ONCE:
                self._stop(400)
            else:
                headers[name] += b", " + value
        if b"host" not in headers and not request.http10 and request.method != "CONNECT":
            self._stop(400, ": missing required Host header")
        if not _HOST.fullmatch(headers.get(b"host", b"")):
            self._stop(400, ": malformed Host header")
        options = {option.strip().lower() for option in headers.get(b"connection", b"").split(b",")}
        request.keep_alive = b"close" not in options and (not request.http10 or b"keep-alive" in options)
        path, _, request.query = request.target.partition("?")
        if not path.startswith("/") and "://" in path:  # the form that proxies take (RFC 9112, section 3.2.2)
            path = "/" + path.partition("://")[2].partition("/")[2]
        if "%" in path:
            if regex(_BAD_ESCAPE).search(path):
                self._stop(400)
            path = unescape(path)
        request.path = path
        if b"expect" in headers:
            if headers[b"expect"].lower() != b"100-continue":
                self._stop(417)
            request.expects = not request.http10
        request.encoded = b"content-encoding" in headers
        self.request = request
        self._line = None
        if b"transfer-encoding" in headers:
            # Others may see where the body ends differently: HTTP/1.0 knows no encodings.
            if request.http10 or b"content-length" in headers:
                self._stop(400)
            if headers[b"transfer-encoding"].lower() != b"chunked":
                self._stop(501, text="Unsupported transfer encoding")
            request.limit = self._body_limit(request)
            self._line = _CHUNK_SIZE
        elif b"content-length" in headers:
            length = headers[b"content-length"]
            if not _LENGTH.fullmatch(length):
                self._stop(400)
            size = int(length)
            request.announced = True
            request.limit = self._body_limit(request)
            request.too_big = size > request.limit
            if request.too_big and (size > DISCARD_LIMIT or request.expects):
                self._answer_now(request)
            self._rest = size
        if not self._rest and self._line is None:
            self._finish(request)

    def _read_body(self, data: bytes, start: int) -> int:
        """Reads a piece of the body from `start` on; returns where the rest of the data begins. Raises _Stop."""
        request = self.request
        assert request is not None
        if self._rest:
            end = min(start + self._rest, len(data))
            self._rest -= end - start
            self._take_body(request, data[start:end])
            if not self._rest and self._line is None:
                self._finish(request)
            return end
        end = start + 2 if self._line is _CHUNK_END else data.find(b"\n", start) + 1
        if not start < end <= len(data):
            return start
        assert self._line is not None
        match = regex(self._line).fullmatch(data, start, end)
        if match is None:
            self._malformed()
        if self._line is _CHUNK_END:
            self._line = _CHUNK_SIZE
        elif self._line is _CHUNK_SIZE:
            self._rest = int(match[1], 16)
            self._line = _CHUNK_END if self._rest else _TRAILER
        elif end - start == 2:
            self._finish(request)
        return end

    def _take_body(self, request: Request, data: bytes) -> None:
        self._progress = True
        room = request.limit - request.received
        request.received += len(data)
        if len(data) > room:
            request.too_big = True
            if request.received - request.limit > DISCARD_LIMIT:
                self._answer_now(request)
            data = data[: max(room, 0)]
        if not request.body:
            request.body = data
        else:
            if request.buffer is None:
                request.buffer = BytesIO()
                request.buffer.write(request.body)
            request.buffer.write(data)


# By whether the request was HTTP/1.0
_STATUS_LINES = [
    {status: f"HTTP/{version} {status} {reason}\r\n".encode() for status, reason in REASONS.items()}
    for version in ("1.1", "1.0")
]
# and by whether the connection is kept; this ends a head.
_CONNECTION = [[b"Connection: close\r\n\r\n", b"\r\n"], [b"\r\n", b"Connection: keep-alive\r\n\r\n"]]


def render(request: Request, status: int, body: bytes, headers: bytes = b"") -> bytes:
    """Returns a response, to HEAD without the body: `headers` are whole lines, to which the general ones are added."""
    make = _render if len(body) > MAX_REPEATED else _render_again
    second = time_ns() // 1_000_000_000
    return make(second, request.http10, request.keep_alive, request.method == "HEAD", status, headers, body)


def render_beginning(request: Request, headers: bytes) -> bytes:
    """Returns the head of a response whose body ends with the connection."""
    return _STATUS_LINES[request.http10][200] + headers + b"Connection: close\r\n\r\n"


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
