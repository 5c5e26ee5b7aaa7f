"""From a request to its row of ROUTES and back to a response. What the endpoints answer is judged, against the real
daemon too, in behaviour/test_http."""

import io

import pytest

from gnsqd.broker.registry import TopicNotFound
from gnsqd.broker.topic import ChannelNotFound
from gnsqd.errors import BrokerError, StorageError
from gnsqd.log import Level, Logger
from gnsqd.options import Options
from gnsqd.web import debug, handlers, status
from gnsqd.web.http11 import Request, RequestReader
from gnsqd.web.routes import JSON, ROUTES, Content, HTTPError, Route, Router, parse_query, read_parameters

ROWS = (
    Route("GET", "/text", "text"),
    Route("GET", "/plain", "text", v1=False),
    Route("GET", "/json", "json"),
    Route("GET", "/rows", "rows"),
    Route("GET", "/empty", "empty"),
    Route("GET", "/page", "page", v1=False),
    Route("GET", "/parameters", "parameters"),
    Route("GET", "/refusal", "refusal"),
    Route("GET", "/plain/refusal", "refusal", v1=False),
    Route("GET", "/defect", "defect"),
    Route("GET", "/disk", "disk"),
    Route("GET", "/going", "going"),
    Route("GET", "/no/topic", "no_topic"),
    Route("GET", "/no/channel", "no_channel"),
    Route("POST", "/text", "text", body="max_msg_size", logged=False),
    Route("PUT", "/text", "text"),
    Route("GET", "/nothing/silent", "part.silent", v1=False),
    Route("GET", "/null", "null"),
    Route("GET", "/word/:opt", "word"),
    Route("PUT", "/word/:opt", "word", body="max_msg_size"),
)


class Part:
    def silent(self, request: Request) -> str:
        return ""


class API:
    part = Part()

    def null(self, request: Request) -> JSON:
        return JSON(None)

    def word(self, request: Request) -> JSON:
        return JSON(request.path)

    def text(self, request: Request) -> str:
        return f"caf\u00e9 {len(request.body)}"

    def json(self, request: Request) -> dict[str, str]:
        return {"b": "<", "a": "x"}

    def rows(self, request: Request) -> dict[str, object]:
        return {
            "<": [{"a": [], "b": [{"c": [1, None, "&"]}], "d": {}}, {"a": [[], [2.0]]}, {}],
            "e": {"f": [3]},
            "g": None,
        }

    def empty(self, request: Request) -> None:
        return None

    def page(self, request: Request) -> Content:
        return Content(b"<p>", "text/html")

    def parameters(self, request: Request) -> object:
        return read_parameters(request)

    def refusal(self, request: Request) -> None:
        raise HTTPError(503, "EXITING")

    def disk(self, request: Request) -> None:
        raise StorageError("disk full")

    def going(self, request: Request) -> None:
        raise BrokerError("exiting")

    def no_topic(self, request: Request) -> None:
        raise TopicNotFound("topic does not exist")

    def no_channel(self, request: Request) -> None:
        raise ChannelNotFound("channel does not exist")

    def defect(self, request: Request) -> None:
        raise RuntimeError("a defect")


class Judge:
    """A router over API, and what it logged."""

    def __init__(self) -> None:
        self.log = io.StringIO()
        self.router = Router(API(), Options(max_msg_size=7), Logger("", Level.INFO, self.log), ROWS)

    def request(self, method: str, target: str) -> Request:
        (request,) = RequestReader(lambda request: 0, {}).feed(
            f"{method} {target} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
        )
        return request

    def ask(self, method: str, target: str) -> tuple[int, dict[str, str], bytes]:
        response = self.router.respond(self.request(method, target), "1.2.3.4:5")
        head, _, body = response.partition(b"\r\n\r\n")
        status, *lines = head.decode().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines)
        assert headers.pop("Date")
        assert int(headers.pop("Content-Length")) == len(body) or method == "HEAD"
        return int(status.split()[1]), headers, body


@pytest.fixture
def judge() -> Judge:
    return Judge()


V1 = {"X-Nsq-Content-Type": "nsq; version=1.0"}
TEXT = {"Content-Type": "text/plain; charset=utf-8"}
JSON_TYPE = {"Content-Type": "application/json; charset=utf-8"}


@pytest.mark.parametrize(
    "path, status, headers, body",
    [
        ("/text", 200, V1 | TEXT, "caf\u00e9 0".encode()),
        ("/plain", 200, TEXT, "caf\u00e9 0".encode()),
        ("/json", 200, V1 | JSON_TYPE, b'{"b":"\\u003c","a":"x"}'),
        (
            "/rows",
            200,
            V1 | JSON_TYPE,
            b'{"\\u003c":[{"a":[],"b":[{"c":[1,null,"\\u0026"]}],"d":{}},{"a":[[],[2]]},{}],"e":{"f":[3]},"g":null}',
        ),
        ("/empty", 200, V1, b""),
        ("/nothing/silent", 200, {}, b""),
        ("/null", 200, V1 | JSON_TYPE, b"null"),
        ("/page", 200, {"Content-Type": "text/html"}, b"<p>"),
        ("/refusal", 503, V1 | JSON_TYPE, b'{"message":"EXITING"}'),
        ("/plain/refusal", 503, TEXT, b"EXITING"),
        ("/nothing", 404, V1 | JSON_TYPE, b'{"message":"NOT_FOUND"}'),
        ("/", 404, V1 | JSON_TYPE, b'{"message":"NOT_FOUND"}'),
    ],
)
def test_results_are_dressed_by_kind_and_style(
    judge: Judge, path: str, status: int, headers: dict[str, str], body: bytes
) -> None:
    assert judge.ask("GET", path) == (status, headers, body)


def test_others_have_turns_between_the_rows_of_a_long_answer(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    turns: list[None] = []
    monkeypatch.setattr("gnsqd.hub.cooperative.TURN_SECONDS", 0)
    monkeypatch.setattr("gnsqd.hub.cooperative.give_way", lambda: turns.append(None))
    judge.ask("GET", "/rows")
    assert len(turns) >= 3


@pytest.mark.parametrize(
    "method, target, status, shown",
    [
        ("GET", "/word/a", 200, b'"/word/a"'),
        ("PUT", "/word/A%20b", 200, b'"/word/A b"'),
        ("GET", "/word/:opt", 200, b'"/word/:opt"'),
        ("GET", "/word/", 404, b'{"message":"NOT_FOUND"}'),
        ("GET", "/word", 404, b'{"message":"NOT_FOUND"}'),
        ("GET", "/word/a/b", 404, b'{"message":"NOT_FOUND"}'),
        ("GET", "/words/a", 404, b'{"message":"NOT_FOUND"}'),
        ("POST", "/word/a", 405, b'{"message":"METHOD_NOT_ALLOWED"}'),
    ],
)
def test_path_may_end_in_any_one_word(judge: Judge, method: str, target: str, status: int, shown: bytes) -> None:
    found, headers, body = judge.ask(method, target)
    assert (found, body) == (status, shown)
    assert headers.get("Allow") == ("GET, OPTIONS, PUT" if status == 405 else None)


@pytest.mark.parametrize(
    "target, location",
    [
        ("/WORD/Any?a=B", "/word/Any?a=B"),
        ("/word//Any/", "/word/Any"),
        ("/Word/%0D%0AX-Header:%20y", "/word/%0D%0AX-Header:%20y"),
        ("/Word/:opt", "/word/:opt"),
    ],
)
def test_redirect_keeps_the_word_and_escapes_it(judge: Judge, target: str, location: str) -> None:
    status, headers, _ = judge.ask("GET", target)
    assert (status, headers["Location"]) == (301, location)


def test_body_of_a_path_that_ends_in_any_word_is_limited_by_its_option(judge: Judge) -> None:
    assert judge.router.body_limit(judge.request("PUT", "/word/a")) == 7
    assert judge.router.body_limit(judge.request("GET", "/word/a")) == 0


def test_what_the_disk_or_the_broker_refuses_is_logged_in_one_line(judge: Judge) -> None:
    assert judge.ask("GET", "/disk") == (500, V1 | JSON_TYPE, b'{"message":"INTERNAL_ERROR"}')
    assert "ERROR: failure in /disk - disk full\n" in judge.log.getvalue()
    assert judge.ask("GET", "/going") == (503, V1 | JSON_TYPE, b'{"message":"EXITING"}')
    assert "ERROR: failure in /going - exiting\n" in judge.log.getvalue()
    assert "Traceback" not in judge.log.getvalue()


@pytest.mark.parametrize("what", ["topic", "channel"])
def test_topic_or_channel_that_does_not_exist_is_not_found_and_no_error_in_the_log(judge: Judge, what: str) -> None:
    answer = f'{{"message":"{what.upper()}_NOT_FOUND"}}'.encode()
    assert judge.ask("GET", f"/no/{what}") == (404, V1 | JSON_TYPE, answer)
    assert "ERROR" not in judge.log.getvalue()


def test_a_defect_in_a_handler_is_an_internal_error_and_leaves_a_traceback_in_the_log(judge: Judge) -> None:
    assert judge.ask("GET", "/defect") == (500, V1 | JSON_TYPE, b'{"message":"INTERNAL_ERROR"}')
    assert "RuntimeError: a defect" in judge.log.getvalue()
    assert judge.ask("GET", "/empty")[0] == 200


@pytest.mark.parametrize(
    "method, path, status, allow",
    [
        ("DELETE", "/text", 405, "GET, OPTIONS, POST, PUT"),
        ("HEAD", "/text", 405, "GET, OPTIONS, POST, PUT"),
        ("POST", "/json", 405, "GET, OPTIONS"),
        ("GET", "*", 405, "GET, OPTIONS, POST, PUT"),
        ("OPTIONS", "/json", 200, "GET, OPTIONS"),
        ("OPTIONS", "/nothing", 404, None),
        ("OPTIONS", "/json/", 404, None),
    ],
)
def test_other_methods_are_told_which_are_allowed(
    judge: Judge, method: str, path: str, status: int, allow: str | None
) -> None:
    found, headers, body = judge.ask(method, path)
    assert (found, headers.get("Allow")) == (status, allow)
    if status == 405 and method != "HEAD":
        assert body == b'{"message":"METHOD_NOT_ALLOWED"}'


@pytest.mark.parametrize("path", ["/text/", "/TEXT", "//text", "/./text", "/a/../text", "/Text/", "/t%65xt/"])
@pytest.mark.parametrize("query", ["", "?a=%zz&b"])
def test_paths_that_are_almost_right_are_redirected(judge: Judge, path: str, query: str) -> None:
    status, headers, body = judge.ask("GET", path + query)
    location = headers["Location"]
    assert (status, location) == (301, "/text" + query)
    assert body.decode() == f'<a href="{location.replace("&", "&amp;")}">Moved Permanently</a>.\n\n'
    status, headers, body = judge.ask("POST", path + query)
    assert (status, headers["Location"], body) == (307, "/text" + query, b"")


def test_redirects_lead_only_to_paths_that_have_the_method(judge: Judge) -> None:
    assert judge.ask("POST", "/json/")[0] == 404


def test_body_limit_is_the_option_of_the_route(judge: Judge) -> None:
    limits = [judge.router.body_limit(judge.request(*what)) for what in (("POST", "/text"), ("GET", "/text"))]
    assert limits == [7, 0]
    assert judge.router.body_limit(judge.request("POST", "/nothing")) == 0


def test_bad_parameters_are_refused_and_logged_with_the_reason(judge: Judge) -> None:
    assert judge.ask("GET", "/parameters?topic=%zz") == (400, V1 | JSON_TYPE, b'{"message":"INVALID_REQUEST"}')
    assert 'ERROR: failed to parse request params - invalid URL escape "%zz"' in judge.log.getvalue()


def test_requests_are_logged_except_where_the_route_says_no(judge: Judge) -> None:
    judge.ask("GET", "/refusal?a=%20")
    judge.ask("DELETE", "/nothing")
    judge.ask("POST", "/text")
    lines = [line.split(" INFO: ")[1] for line in judge.log.getvalue().splitlines()]
    assert [line.rsplit(" ", 1)[0] for line in lines] == [
        "503 GET /refusal?a=%20 (1.2.3.4:5)",
        "404 DELETE /nothing (1.2.3.4:5)",
    ]


def test_every_route_has_a_handler_and_a_body_option_that_exist() -> None:
    for route in ROUTES:
        part, _, method = route.handler.rpartition(".")
        owner = {"": handlers.API, "status": status.Status, "debug": debug.Debug}[part]
        assert callable(getattr(owner, method)), route
        assert not route.body or isinstance(getattr(Options(), route.body), int), route


@pytest.mark.parametrize(
    "query, expected",
    [
        ("", {}),
        ("a=b", {"a": "b"}),
        ("a=1&a=2", {"a": "1"}),
        ("a", {"a": ""}),
        ("a=b=c&&=d", {"a": "b=c", "": "d"}),
        ("a+b=c+d%2Be", {"a b": "c d+e"}),
        ("t%23=%E2%82%AC%ff", {"t#": "\u20ac\ufffd"}),
    ],
)
def test_query_is_parsed_like_gos(query: str, expected: dict[str, str]) -> None:
    assert parse_query(query) == expected


@pytest.mark.parametrize(
    "query, text",
    [
        ("a=%zz", 'invalid URL escape "%zz"'),
        ("a=%", 'invalid URL escape "%"'),
        ("%4=1", 'invalid URL escape "%4"'),
        ("a=1&b=%e", 'invalid URL escape "%e"'),
        ("a=1;b=2", "invalid semicolon separator in query"),
    ],
)
def test_query_with_bad_escapes_or_semicolons_is_refused(query: str, text: str) -> None:
    with pytest.raises(ValueError, match="invalid") as caught:
        parse_query(query)
    assert str(caught.value) == text
