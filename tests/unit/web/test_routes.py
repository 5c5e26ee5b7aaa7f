"""A router with errors of handlers, long answers and queries. behaviour/test_http_matrix judges the rest."""

import io
import json

import pytest

from gnsqd.log import Level, Logger
from gnsqd.options import Options
from gnsqd.shared.errors import BrokerError, StorageError
from gnsqd.web.http11 import Request, RequestReader
from gnsqd.web.routes import Route, Router, parse_query, read_parameters

ROWS = {"<": [{"a": [], "b": [{"c": [1, None, "&"]}], "d": {}}, {"a": [[], [2]]}, {}], "e": {"f": [3]}, "g": None}
ERRORS = {"disk": StorageError("disk full"), "broker": BrokerError("exiting"), "defect": RuntimeError("a defect")}


class RowsAPI:
    def rows(self, request: Request) -> object:
        return ROWS

    def fail(self, request: Request) -> object:
        raise ERRORS[read_parameters(request)["what"]]


class Judge:
    """A router over API, and what it logged."""

    def __init__(self) -> None:
        self.log = io.StringIO()
        routes = (
            Route("GET", "/rows", "rows"),
            Route("POST", "/fail", "fail", body="max_msg_size"),
            Route("DELETE", "/rows", "rows"),
        )
        self.router = Router(RowsAPI(), Options(), Logger("", Level.INFO, self.log), routes)

    def request(self, line: str) -> Request:
        (request,) = RequestReader(lambda request: 0, {}).feed(f"{line} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        return request

    def ask(self, line: str) -> tuple[int, str, str]:
        """Status, headers and body."""
        answer = self.router.respond(self.request(line), "1.2.3.4:5")
        assert isinstance(answer, bytes)
        head, _, body = answer.decode().partition("\r\n\r\n")
        return int(head.split()[1]), head, body


@pytest.fixture
def judge() -> Judge:
    return Judge()


def test_others_have_turns_between_the_rows_of_a_long_answer(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    turns: list[None] = []
    monkeypatch.setattr("gnsqd.hub.cooperative.TURN_SECONDS", 0)
    monkeypatch.setattr("gnsqd.hub.cooperative.yield_turn", lambda: turns.append(None))
    body = judge.ask("GET /rows")[2]
    assert body == json.dumps(ROWS, separators=(",", ":")).replace("<", "\\u003c").replace("&", "\\u0026")
    assert len(turns) >= 3


@pytest.mark.parametrize(
    "what, status, code, logged",
    [
        ("disk", 500, "INTERNAL_ERROR", "ERROR: failure in /fail - disk full\n"),
        ("broker", 503, "EXITING", "ERROR: failure in /fail - exiting\n"),
        ("defect", 500, "INTERNAL_ERROR", "RuntimeError: a defect\n"),
        ("%zz", 400, "INVALID_REQUEST", 'ERROR: failed to parse request params - invalid URL escape "%zz"\n'),
    ],
)
def test_errors_are_answered_and_logged_and_only_defects_with_a_traceback(
    judge: Judge, what: str, status: int, code: str, logged: str
) -> None:
    assert judge.ask(f"POST /fail?what={what}")[::2] == (status, f'{{"message":"{code}"}}')
    assert logged in judge.log.getvalue()
    assert ("Traceback" in judge.log.getvalue()) is (what == "defect")
    assert judge.ask("GET /rows")[0] == 200


def test_only_a_route_with_an_option_for_it_reads_a_body(judge: Judge) -> None:
    limits = [judge.router.body_limit(judge.request(line)) for line in ("POST /fail", "GET /rows", "POST /nope")]
    assert limits == [Options().max_msg_size, 0, 0]


def test_path_of_the_whole_server_allows_every_method_of_the_table(judge: Judge) -> None:
    status, head, _ = judge.ask("GET *")
    assert status == 405
    assert "\r\nAllow: DELETE, GET, OPTIONS, POST\r\n" in head


def test_query_is_parsed_as_by_go() -> None:
    assert parse_query("") == {}
    assert parse_query("&a=b=c&&=d&a+b=c+d%2Be&a=2&f") == {"a": "b=c", "": "d", "a b": "c d+e", "f": ""}
