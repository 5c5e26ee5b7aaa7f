"""The table of endpoints, and the way from a request to its row and back to a response (NSQD-COMPAT 5.1)."""

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing
from enum import IntEnum
from functools import lru_cache, partial
from itertools import islice, zip_longest
from math import inf
from operator import attrgetter
from posixpath import normpath
from re import Pattern, escape
from re import compile as regex
from time import monotonic_ns
from traceback import format_exc
from types import MappingProxyType

from gnsqd.gotext import dumps, format_duration, quote, unescape
from gnsqd.hub.cooperative import Turns, WouldYield
from gnsqd.log import Logger
from gnsqd.shared.errors import BrokerError, NotFound, NSQError, StorageError, is_disk_full, reason_of
from gnsqd.shared.names import TooMany, is_valid_name
from gnsqd.shared.record import Record
from gnsqd.web.http11 import Request, render, render_beginning


class HTTPError(NSQError):
    """An answer other than 200; `code` is the text that clients compare, such as MISSING_ARG_TOPIC, and `details` are
    what the answer has besides."""

    def __init__(self, status: int, code: str, details: Mapping[str, object] = MappingProxyType({})) -> None:
        super().__init__(code)
        self.status = status
        self.code = code
        self.details = details


class BadQuery(ValueError):
    """The parameters of a request cannot be read."""


class Content(Record):
    """An answer with its own Content-Type; by default, JSON that is encoded already. `headers` are whole lines."""

    body: bytes
    content_type: str = "application/json; charset=utf-8"
    status: int = 200
    headers: bytes = b""


class StreamedContent(Record):
    """An answer in parts, after which the connection ends. Its status is 200: errors come before it is returned."""

    content_type: str
    parts: Generator[bytes]


class Role(IntEnum):
    """The role that an endpoint requires with a Guard: none, read, or full."""

    ANYBODY = 0
    READ = 1
    FULL = 2


class Route(Record):
    """One endpoint. `method` may be several, as in `GET, HEAD`; words of `path` that begin with a colon stand for any
    word; `handler` is a method of the API or, dotted, of one of its parts; `v1` adds X-Nsq-Content-Type and makes
    errors `{"message":"CODE"}`; `body` names the option that limits the body it reads, if it reads one, and `codings`
    are accepted as its Content-Encoding, which is ignored without any; `on_hub` is True if the handler raises
    WouldYield for a request that may not yield; a Guard requires `role` or, for the topic of the request, `topic_role`:
    read, publish or manage; `errors` are those besides GENERAL_ERRORS. Handlers return text, None for an empty answer,
    Content, StreamedContent, or a value to be encoded as JSON.
    """

    method: str
    path: str
    handler: str
    v1: bool = True
    body: str = ""
    codings: str = ""
    logged: bool = True
    on_hub: bool = False
    role: Role = Role.FULL
    topic_role: str = ""
    errors: str = ""


# Errors with their status. Any endpoint may have these.
GENERAL_ERRORS = (
    "400 INVALID_REQUEST, 401 UNAUTHORIZED, 403 FORBIDDEN, 403 TLS_REQUIRED, 404 NOT_FOUND, 405 METHOD_NOT_ALLOWED, "
    "500 INTERNAL_ERROR"
)
NAMES_ERRORS = "400 MISSING_ARG_TOPIC, 400 INVALID_ARG_TOPIC, 400 MISSING_ARG_CHANNEL, 400 INVALID_ARG_CHANNEL"
_TOPIC = "400 MISSING_ARG_TOPIC, 404 TOPIC_NOT_FOUND"
_NEW_TOPIC = "400 MISSING_ARG_TOPIC, 400 INVALID_TOPIC, 503 TOO_MANY_TOPICS"
_PUBLISH = (
    f"{_NEW_TOPIC}, 400 INVALID_DEFER, 400 INVALID_ENCODING, 415 UNSUPPORTED_ENCODING, 413 MSG_TOO_BIG, 503 DRAINING, "
    "503 FULL, 503 EXITING"
)
_PUB = f"400 MSG_EMPTY, {_PUBLISH}"
_MPUB = f"{_PUBLISH}, 413 BODY_TOO_BIG, 413 BAD_BODY, 413 BAD_MESSAGE"
_CHANNEL = f"{NAMES_ERRORS}, 404 TOPIC_NOT_FOUND, 404 CHANNEL_NOT_FOUND"
_RETAINED = "400 NO_JOURNAL, 400 NO_RETENTION, 400 CHANNEL_EPHEMERAL, 404 MESSAGE_NOT_FOUND"
_CREATE = (
    f"{NAMES_ERRORS}, 404 TOPIC_NOT_FOUND, {_RETAINED}, 400 INVALID_ARG_FROM, 400 CHANNEL_EXISTS, 503 TOO_MANY_CHANNELS"
)
_REWIND = f"{_CHANNEL}, {_RETAINED}, 400 MISSING_ARG_TO, 400 INVALID_ARG_TO, 400 INVALID_ARG_UNTIL, 400 UNTIL_BEFORE_TO"
_LOG = f"{_TOPIC}, 400 NO_JOURNAL"
_RETENTION = f"{_LOG}, 400 MISSING_ARG_BYTES, 400 INVALID_ARG_BYTES, 400 INVALID_ARG_TIME"
_RANGE = (
    f"{_TOPIC}, 400 NO_JOURNAL, 400 INVALID_ARG_AT, 400 CHANNEL_EPHEMERAL, 404 CHANNEL_NOT_FOUND, 404 MESSAGE_NOT_FOUND"
)
_MESSAGES = (
    f"{_TOPIC}, 400 NO_JOURNAL, 400 INVALID_ARG_FROM, 400 INVALID_ARG_TO, 400 INVALID_ARG_MAX_BYTES, "
    "400 INVALID_ARG_WAIT, 400 INVALID_ARG_FORMAT, 400 CHANNEL_EPHEMERAL, 404 CHANNEL_NOT_FOUND, "
    "404 MESSAGE_NOT_FOUND, 410 LOG_CHANGED, 410 MESSAGES_GONE, 500 MESSAGES_DAMAGED"
)
_ADVANCE = f"{_CHANNEL}, 400 NO_JOURNAL, 400 CHANNEL_EPHEMERAL, 400 MISSING_ARG_TO, 400 INVALID_ARG_TO, 410 LOG_CHANGED"
_DEFERRED = f"{_CHANNEL}, 400 INVALID_LIMIT, 400 INVALID_ARG_FROM, 400 INVALID_ARG_ID, 404 MESSAGE_NOT_FOUND"
_CANCEL = f"{_CHANNEL}, 400 MISSING_ARG_ID, 400 INVALID_ARG_ID, 404 MESSAGE_NOT_FOUND"
_RULES = (
    f"{_CHANNEL}, 400 MISSING_ARG_RATE, 400 INVALID_ARG_RATE, 400 INVALID_ARG_BURST, 400 INVALID_ARG_ORDERED, "
    "400 INVALID_ARG_IDLE_TIMEOUT, 400 INVALID_ARG_IDLE_POLICY"
)
_CONFIG = "400 INVALID_OPTION, 400 INVALID_VALUE, 413 INVALID_VALUE"

_publish = partial(Route, "POST", codings="gzip, deflate, zstd", logged=False, on_hub=True, topic_role="publish")

PPROF_ROUTES = (
    *(
        Route("GET", f"/debug/pprof/{name}", f"debug.{name}", v1=False, logged=False)
        for name in ("cmdline", "symbol", "profile", "heap", "goroutine", "block", "threadcreate")
    ),
    Route("POST", "/debug/pprof/symbol", "debug.symbol", v1=False, logged=False),
)

ROUTES = (
    Route("GET", "/ping", "daemon.ping", v1=False, role=Role.ANYBODY),
    Route("GET", "/healthz", "daemon.healthz", v1=False, role=Role.ANYBODY),
    Route("GET", "/readyz", "daemon.readyz", v1=False, role=Role.ANYBODY),
    Route("GET", "/drain", "daemon.drain", role=Role.READ),
    Route("POST", "/drain", "daemon.start_drain", errors="503 EXITING"),
    Route("DELETE", "/drain", "daemon.cancel_drain", errors="503 EXITING"),
    Route("GET", "/info", "daemon.info", role=Role.READ),
    Route("GET", "/stats", "daemon.stats", role=Role.READ, topic_role="read"),
    Route("GET", "/queues", "daemon.queues", v1=False, logged=False, role=Role.READ),
    Route("GET", "/metrics", "daemon.metrics", v1=False, role=Role.READ),
    _publish("/pub", "publishing.pub", body="max_msg_size", errors=_PUB),
    _publish("/mpub", "publishing.mpub", body="max_body_size", errors=_MPUB),
    Route("POST", "/topic/create", "create_topic", topic_role="manage", errors=_NEW_TOPIC),
    Route("POST", "/topic/delete", "delete_topic", topic_role="manage", errors=_TOPIC),
    Route("POST", "/topic/empty", "empty_topic", topic_role="manage", errors=f"{_TOPIC}, 400 INVALID_TOPIC"),
    Route("POST", "/topic/pause", "pause_topic", topic_role="manage", errors=_TOPIC),
    Route("POST", "/topic/unpause", "pause_topic", topic_role="manage", errors=_TOPIC),
    Route("GET", "/topic/peek", "peek_topic", topic_role="manage", errors=f"{_TOPIC}, 400 INVALID_LIMIT"),
    Route("GET", "/channel/peek", "peek_channel", topic_role="manage", errors=f"{_CHANNEL}, 400 INVALID_LIMIT"),
    Route("GET", "/topic/retention", "get_retention", role=Role.READ, topic_role="read", errors=_LOG),
    Route("POST", "/topic/retention", "set_retention", topic_role="manage", errors=_RETENTION),
    Route("GET", "/topic/range", "ranges.get_range", role=Role.READ, topic_role="read", errors=_RANGE),
    Route("GET", "/topic/messages", "ranges.get_messages", topic_role="manage", errors=_MESSAGES),
    Route("POST", "/channel/advance", "ranges.advance", topic_role="manage", errors=_ADVANCE),
    Route("GET", "/channel/rewind", "plan_rewind", role=Role.READ, topic_role="read", errors=_REWIND),
    Route("POST", "/channel/rewind", "rewind_channel", topic_role="manage", errors=_REWIND),
    Route("GET", "/channel/deferred", "list_deferred", topic_role="manage", errors=_DEFERRED),
    Route("POST", "/channel/deferred/cancel", "cancel_deferred", topic_role="manage", errors=_CANCEL),
    Route("GET", "/channel/rules", "get_rules", role=Role.READ, topic_role="read", errors=_CHANNEL),
    Route("POST", "/channel/rules", "set_rules", topic_role="manage", errors=_RULES),
    Route("POST", "/channel/create", "create_channel", topic_role="manage", errors=_CREATE),
    Route("POST", "/channel/delete", "delete_channel", topic_role="manage", errors=_CHANNEL),
    Route("POST", "/channel/empty", "empty_channel", topic_role="manage", errors=_CHANNEL),
    Route("POST", "/channel/pause", "pause_channel", topic_role="manage", errors=_CHANNEL),
    Route("POST", "/channel/unpause", "pause_channel", topic_role="manage", errors=_CHANNEL),
    Route("GET", "/config/:opt", "daemon.get_config", role=Role.READ, errors="400 INVALID_OPTION"),
    Route("PUT", "/config/:opt", "daemon.put_config", body="max_msg_size", errors=_CONFIG),
    Route("GET", "/debug/pprof/", "debug.index", v1=False, logged=False),
    *PPROF_ROUTES,
    Route("PUT", "/debug/setblockrate", "debug.set_block_rate", v1=False, body="max_msg_size"),
    Route("POST", "/debug/freememory", "debug.free_memory", v1=False),
)

Handler = Callable[[Request], object]
_WORD = regex("(?<=/):[^/]+")
_NO_ROWS: dict[str, tuple[Route, Handler]] = {}

BOOLS = {"true": True, "1": True, "false": False, "0": False}  # in queries

_V1 = b"X-Nsq-Content-Type: nsq; version=1.0\r\n"
_TEXT = b"Content-Type: text/plain; charset=utf-8\r\n"
_HTML = b"Content-Type: text/html; charset=utf-8\r\n"
_V1_TEXT = _V1 + _TEXT
_V1_JSON = _V1 + b"Content-Type: application/json; charset=utf-8\r\n"


class Router:
    """Dispatches requests to the methods of one `api`; `options` has the limits of bodies; all paths begin with `base`.
    It also answers requests that match no row: redirects for a slash too many or the wrong case, OPTIONS, 405 and
    404."""

    def __init__(
        self, api: object, options: object, log: Logger, routes: tuple[Route, ...] = ROUTES, base: str = ""
    ) -> None:
        self._options = options
        self._log = log
        self._endpoints: dict[str, dict[str, tuple[Route, Handler]]] = {}
        self._canonical: dict[str, dict[str, str]] = {}
        self._patterns: dict[str, Pattern[str]] = {}  # of paths with words that stand for any
        for route in routes:
            path, handler = base + route.path, self._bind(route, attrgetter(route.handler)(api))
            for method in route.method.split(", "):
                self._endpoints.setdefault(method, {})[path] = (route, handler)
                self._canonical.setdefault(method, {})[_fold(path)] = path
            if ":" in path:
                self._patterns[path] = regex(_WORD.sub("[^/]+", escape(path)))

    def _bind(self, route: Route, handler: Handler) -> Handler:
        """Returns what is called for requests of a row."""
        return handler

    def _find(self, request: Request) -> tuple[Route, Handler] | None:
        rows = self._endpoints.get(request.method, _NO_ROWS)
        return rows.get(request.path) or rows.get(self._generalize(request.path))

    def _generalize(self, path: str) -> str:
        """Returns `/config/:opt` for `/config/log_level`; other paths unchanged."""
        return next((found for found, pattern in self._patterns.items() if pattern.fullmatch(path)), path)

    def body_limit(self, request: Request) -> int:
        endpoint = self._find(request)
        return getattr(self._options, endpoint[0].body) if endpoint is not None and endpoint[0].body else 0

    def roles(self, request: Request) -> tuple[Role, str]:
        """Returns the role that the request's endpoint requires, read for unknown paths, and the one for its topic."""
        if request.path == "/config/auth_http_addresses":  # there may be passwords in these
            return Role.FULL, ""
        endpoint = self._find(request)
        return (Role.READ, "") if endpoint is None else (endpoint[0].role, endpoint[0].topic_role)

    def respond(self, request: Request, remote_address: str) -> bytes | Generator[list[bytes]]:
        """Returns the response, also to errors of handlers. May yield if the request does; else raises WouldYield."""
        endpoint = self._find(request)
        if not request.may_yield and (endpoint is None or not endpoint[0].on_hub):
            raise WouldYield
        if endpoint is None:
            return self._respond_unrouted(request, remote_address)
        route, handler = endpoint
        if request.encoded and route.codings:
            from gnsqd.web.content_encoding import Undecodable, decode  # few publishers compress

            try:
                decode(request, route.codings.split(", "))
            except Undecodable as error:
                headers = b"Accept-Encoding: %s\r\n" % route.codings.encode()
                return self.refuse(request, remote_address, HTTPError(error.status, error.code), headers)
        started = monotonic_ns() if route.logged else 0
        status = 200
        try:
            result = handler(request)
        except WouldYield:
            raise
        except Exception as error:
            status, code = self._refusal(request, error)
            details = error.details if isinstance(error, HTTPError) else {}
            result = Content(dumps({"message": code, **details}).encode(), status=status) if route.v1 else code
        if route.logged:
            self._log_request(request, remote_address, status, started)
        if isinstance(result, StreamedContent):
            return _render_stream(request, result)
        return render_result(request, status, result, route.v1)

    def _refusal(self, request: Request, error: Exception) -> tuple[int, str]:
        """Returns status and code of a handler's error; errors without a code are logged."""
        if isinstance(error, HTTPError):
            return error.status, error.code
        if isinstance(error, NotFound):
            return 404, f"{error.what.upper()}_NOT_FOUND"
        if isinstance(error, TooMany):
            return 503, str(error).replace(" ", "_").upper()
        if isinstance(error, BadQuery):
            self._log.error("failed to parse request params - %s", error)
            return 400, "INVALID_REQUEST"
        if isinstance(error, BrokerError | StorageError):
            self._log.error("failure in %s - %s", request.path, error)
            if isinstance(error, BrokerError):
                return 503, "EXITING"
            reason = f": {reason_of(error.__cause__)}" if error.__cause__ is not None and is_disk_full(error) else ""
            return 500, f"INTERNAL_ERROR{reason}"
        self._log.error("panic in HTTP handler", stack=format_exc())
        return 500, "INTERNAL_ERROR"

    def _log_request(self, request: Request, remote_address: str, status: int, started: int) -> None:
        elapsed = format_duration(monotonic_ns() - started)
        self._log.info("%d %s %s (%s) %s", status, request.method, request.target, remote_address, elapsed)

    def _respond_unrouted(self, request: Request, remote_address: str) -> bytes:
        canonical = self._canonical.get(request.method, {}).get(self._generalize(_fold(request.path)))
        if canonical is not None:
            words = zip_longest(canonical.split("/"), _clean(request.path).split("/"), fillvalue="")
            return _redirect(request, "/".join(word if part.startswith(":") else part for part, word in words))
        methods = self.methods(request.path)
        allowed = b"Allow: %s\r\n" % methods.encode() if methods else b""
        if request.method == "OPTIONS" and (allowed or request.path == "*"):
            return render(request, 200, b"", b"" if request.path == "*" else allowed)
        error = HTTPError(405, "METHOD_NOT_ALLOWED") if allowed else HTTPError(404, "NOT_FOUND")
        return self.refuse(request, remote_address, error, allowed)

    def refuse(self, request: Request, remote_address: str, error: HTTPError, headers: bytes) -> bytes:
        """Returns the response to a rejected request; `headers` are whole lines."""
        self._log_request(request, remote_address, error.status, monotonic_ns())
        return render(request, error.status, dumps({"message": error.code}).encode(), headers + _V1_JSON)

    def methods(self, path: str) -> str:
        """Returns the methods that a path supports, such as `GET, OPTIONS`; empty for unknown paths."""
        path = self._generalize(path)
        methods = {method for method, paths in self._endpoints.items() if path in paths or path == "*"}
        return ", ".join(sorted({*methods, "OPTIONS"})) if methods else ""


class TLSRequired:
    """Refuses every request on plain HTTP if TLS is required, and returns the HTTPS port, 0 without one."""

    def __init__(self, https_port: int) -> None:
        self._body = f'{{"message": "TLS_REQUIRED", "https_port": {https_port}}}'.encode()

    def body_limit(self, request: Request) -> int:
        return 0

    def respond(self, request: Request, remote_address: str) -> bytes:
        if request.method == "OPTIONS" and request.path == "*":  # about the server, not about what it serves
            return render(request, 200, b"")
        return render(request, 403, self._body, _V1_JSON)


def _fold(path: str) -> str:
    """Returns a common key of paths that redirect to each other."""
    return _clean(path).lower()


def _clean(path: str) -> str:
    return normpath("/" + path.lstrip("/"))


_UNQUOTED = b"$&+,/:;=@-._~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"  # in paths, by Go
_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&#34;", "'": "&#39;"})  # in HTML, by Go


def _redirect(request: Request, path: str) -> bytes:
    location = "".join(chr(byte) if byte in _UNQUOTED else f"%{byte:02X}" for byte in path.encode())
    location += f"?{request.query}" if request.query else ""
    headers = b"Location: %s\r\n" % location.encode()
    if request.method != "GET":
        return render(request, 307, b"", headers)
    link = location.translate(_ESCAPES)
    return render(request, 301, f'<a href="{link}">Moved Permanently</a>.\n\n'.encode(), headers + _HTML)


def render_result(request: Request, status: int, result: object, v1: bool) -> bytes:
    """Returns the response with what a handler has returned. May yield."""
    if not result and (result is None or isinstance(result, str)):
        return render(request, status, b"", _V1 if v1 else b"")
    if isinstance(result, str):
        # A file name may be any bytes.
        return render(request, status, result.encode("utf-8", "surrogateescape"), _V1_TEXT if v1 else _TEXT)
    if isinstance(result, Content):
        headers = b"Content-Type: %s\r\n%s" % (result.content_type.encode(), result.headers)
        return render(request, result.status, result.body, _V1 + headers if v1 else headers)
    return render(request, status, _encode(result), _V1_JSON)


def _render_stream(request: Request, stream: StreamedContent) -> Generator[list[bytes]]:
    """Yields the parts as chunks, so that a client notices if one is missing; HTTP 1.0 has none."""
    headers = _V1 + b"Content-Type: %s\r\n" % stream.content_type.encode()
    chunked = not request.http10
    yield [render_beginning(request, headers + (b"Transfer-Encoding: chunked\r\n" if chunked else b""))]
    with closing(stream.parts):
        for part in stream.parts:
            yield [b"%x\r\n" % len(part), part, b"\r\n"] if chunked else [part]
    if chunked:
        yield [b"0\r\n\r\n"]


_PIECE = 1000  # strings


def _encode(value: object) -> bytes:
    """Encodes JSON, which may have a hundred megabytes. May yield."""
    turns = Turns()
    strings = _json(value, turns)
    pieces = []
    while piece := "".join(islice(strings, _PIECE)):
        pieces.append(piece.encode())
    body = b"".join(pieces)
    turns.give()
    return body


def _json(value: object, turns: Turns) -> Iterator[str]:
    """Encodes as `dumps`, in pieces, and yields to other greenlets between items of lists: /stats can be very long."""
    if isinstance(value, list) and value:
        separator = "["
        for item in turns.over(value):
            yield separator
            yield from _json(item, turns)
            separator = ","
        yield "]"
    elif isinstance(value, dict) and any(isinstance(item, list) and item for item in value.values()):
        separator = "{"
        for key, item in value.items():
            yield f"{separator}{dumps(key)}:"
            yield from _json(item, turns)
            separator = ","
        yield "}"
    else:
        yield dumps(value)


_BAD_ESCAPE = "%(?![0-9a-fA-F]{2}).{0,2}"


@lru_cache(64)
def parse_query(query: str) -> Mapping[str, str]:
    """Returns a query's parameters by name, the first of several; raises BadQuery for bad escapes and semicolons."""
    parameters: dict[str, str] = {}
    for part in query.split("&"):
        if ";" in part:
            raise BadQuery("invalid semicolon separator in query")
        if not part:
            continue
        name, _, value = part.partition("=")
        if "%" in part or "+" in part:
            bad = regex(_BAD_ESCAPE).search(name) or regex(_BAD_ESCAPE).search(value)
            if bad is not None:
                raise BadQuery(f"invalid URL escape {quote(bad[0])}")
            name, value = unescape(name.replace("+", " ")), unescape(value.replace("+", " "))
        parameters.setdefault(name, value)
    return parameters


def read_parameters(request: Request) -> Mapping[str, str]:
    """Returns the query's parameters, for endpoints that read a body and ignore it; raises BadQuery."""
    parameters = parse_query(request.query)
    if request.broken:
        raise BadQuery("unexpected EOF")
    return parameters


def required(parameters: Mapping[str, str], name: str) -> str:
    """Returns a parameter, which may be empty; raises HTTPError if it is missing."""
    if name not in parameters:
        raise HTTPError(400, f"MISSING_ARG_{name.upper()}")
    return parameters[name]


def topic_and_channel(parameters: Mapping[str, str]) -> tuple[str, str]:
    """Returns two valid names; raises HTTPError for the first that is missing or invalid."""
    for name in ("topic", "channel"):
        if not is_valid_name(required(parameters, name)):
            raise HTTPError(400, f"INVALID_ARG_{name.upper()}")
    return parameters["topic"], parameters["channel"]


def check_complete(request: Request, code: str) -> None:
    """Raises HTTPError, with `code` for a body that is too big."""
    if request.too_big:
        raise HTTPError(413, code)
    if request.broken:
        raise HTTPError(500, "INTERNAL_ERROR")


def parsed(parse: Callable[[str], int], text: str, code: str, lowest: float = -inf, highest: float = inf) -> int:
    """Returns the value of a parameter; raises HTTPError with `code` if it is invalid or out of bounds."""
    try:
        value = parse(text)
    except ValueError as error:
        raise HTTPError(400, code) from error
    if not lowest <= value <= highest:
        raise HTTPError(400, code)
    return value
