"""Pages of other origins that use an HTTP API from a browser (CORS, https://fetch.spec.whatwg.org/#http-cors-protocol).
The real nsqd allows none."""

import http.client
import ssl
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from behaviour.test_http_auth import FULL_TOKEN, READ_TOKEN, token_flags
from behaviour.test_https import https_address
from kit.daemons import DEADLINE, Instance, address_of, own_command, run_to_end
from kit.http_api import Answer, head, whole_answer
from kit.lookupds import EMBEDDED, LookupdInside, RunningLookupd, own_lookupd_command
from kit.traffic import DaemonFactory, publish

OPS, LOCAL = "https://ops.example.com", "http://localhost:3000"
STRANGERS = [
    "https://ops.example.com.evil.example",
    "http://ops.example.com",
    "https://ops.example.com:8443",
    "null",
    "*",
]
PREFLIGHT = ["Access-Control-Request-Method: POST", "Access-Control-Request-Headers: authorization,content-type"]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    directory = tmp_path_factory.mktemp("origins")
    flags = [*token_flags(directory), f"--http-allow-origin={OPS}", f"--http-allow-origin={LOCAL}"]
    with Instance(own_command(), directory / "data", *flags, "--durability=process") as daemon:
        publish(daemon, "t", b"x")
        yield daemon


def ask(nsqd: Instance, line: str, *headers: str, body: bytes = b"") -> Answer:
    request = head(line, *headers, f"Content-Length: {len(body)}") + body
    return whole_answer(nsqd.http_address, request, str)


def allowed_origin(answer: Answer) -> str | None:
    assert "Access-Control-Allow-Credentials" not in answer.headers
    assert answer.headers["Vary"] == "Origin"
    return answer.headers.get("Access-Control-Allow-Origin")


@pytest.mark.parametrize(
    ("line", "token", "code"),
    [
        ("GET /ping", "", 200),
        ("GET /stats", READ_TOKEN, 200),  # is longer than what is kept of responses
        ("POST /pub?topic=t", FULL_TOKEN, 200),
        ("GET /topic/messages?topic=t", FULL_TOKEN, 200),  # in parts
        ("GET /stats", "", 401),
        ("POST /pub?topic=t", READ_TOKEN, 403),
        ("GET /nope", READ_TOKEN, 404),
        ("GET /pub", READ_TOKEN, 405),
        ("POST /topic/create?topic=$", FULL_TOKEN, 400),
    ],
)
def test_pages_of_allowed_origins_may_read_responses(shared: Instance, line: str, token: str, code: int) -> None:
    authorization = [f"Authorization: Bearer {token}"] if token else []
    for origin in (OPS, LOCAL):
        answer = ask(shared, line, f"Origin: {origin}", *authorization, body=b"x")
        assert (answer.status, allowed_origin(answer)) == (code, origin)
    others = [[f"Origin: {stranger}"] for stranger in STRANGERS]
    for headers in ([], *others):
        answer = ask(shared, line, *headers, *authorization, body=b"x")
        assert (answer.status, allowed_origin(answer)) == (code, None)


def test_preflight_needs_no_token(shared: Instance) -> None:
    for path, methods in (("/pub?topic=t", "OPTIONS, POST"), ("/config/log_level", "GET, OPTIONS, PUT")):
        answer = ask(shared, f"OPTIONS {path}", f"Origin: {OPS}", *PREFLIGHT)
        assert (answer.status, allowed_origin(answer), answer.body) == (200, OPS, "")
        assert answer.headers["Access-Control-Allow-Methods"] == methods
        allowed = answer.headers["Access-Control-Allow-Headers"].lower().split(", ")
        assert {"authorization", "content-type", "content-encoding"} <= set(allowed)


def test_other_options_requests_need_a_token(shared: Instance) -> None:
    for line, headers in (
        ("OPTIONS /pub", [f"Origin: {OPS}"]),
        ("OPTIONS /pub", [f"Origin: {STRANGERS[0]}", *PREFLIGHT]),
        ("OPTIONS /pub", PREFLIGHT),
        ("OPTIONS /nope", [f"Origin: {OPS}", *PREFLIGHT]),
        ("POST /pub?topic=t", [f"Origin: {OPS}", *PREFLIGHT]),
    ):
        answer = ask(shared, line, *headers)
        assert answer.status == 401
        assert "Access-Control-Allow-Methods" not in answer.headers


def test_star_allows_every_page(gnsqd_factory: DaemonFactory) -> None:
    gnsqd = gnsqd_factory("--http-allow-origin=*")
    for headers in ([f"Origin: {OPS}"], ["Origin: null"], []):
        assert allowed_origin(ask(gnsqd, "POST /pub?topic=t", *headers, body=b"x")) == "*"
    assert ask(gnsqd, "OPTIONS /pub", f"Origin: {OPS}", *PREFLIGHT).headers["Access-Control-Allow-Methods"]


def test_without_the_option_responses_are_those_of_nsqd(gnsqd: Instance) -> None:
    for answer in (ask(gnsqd, "GET /ping", f"Origin: {OPS}"), ask(gnsqd, "OPTIONS /pub", f"Origin: {OPS}", *PREFLIGHT)):
        assert not [name for name in answer.headers if name.startswith("Access-Control") or name == "Vary"]


def test_nsqlookupd_has_the_option(tmp_path: Path, gnsqd_factory: DaemonFactory) -> None:
    with RunningLookupd(own_lookupd_command(), tmp_path / "lookupd", f"--http-allow-origin={OPS}") as lookupd:
        alone = address_of(lookupd.http_address)
        answer = whole_answer(alone, head("GET /nodes", f"Origin: {OPS}"), str)
        assert (answer.status, allowed_origin(answer)) == (200, OPS)
        answer = whole_answer(alone, head("OPTIONS /topic/create", f"Origin: {OPS}", *PREFLIGHT), str)
        assert answer.headers["Access-Control-Allow-Methods"] == "OPTIONS, POST"
    embedded = LookupdInside(gnsqd_factory(*EMBEDDED, f"--http-allow-origin={OPS}"))
    answer = whole_answer(address_of(embedded.http_address), head("GET /nodes", f"Origin: {OPS}"), str)
    assert (answer.status, allowed_origin(answer)) == (200, OPS)


def test_https_has_the_option(gnsqd_factory: DaemonFactory, tls_flags: list[str], tmp_path: Path) -> None:
    gnsqd = gnsqd_factory(*token_flags(tmp_path), *tls_flags, "--tls-required=true", f"--http-allow-origin={OPS}")
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with closing(http.client.HTTPSConnection(*https_address(gnsqd), timeout=DEADLINE, context=context)) as connection:
        for token, code in ((READ_TOKEN, 200), (READ_TOKEN[1:], 401)):
            connection.request("GET", "/stats", headers={"Origin": OPS, "Authorization": f"Bearer {token}"})
            response = connection.getresponse()
            assert (response.status, response.headers["Access-Control-Allow-Origin"]) == (code, OPS)
            response.read()
    answer = ask(gnsqd, "GET /stats", f"Origin: {OPS}")
    assert (answer.status, allowed_origin(answer)) == (403, OPS)  # TLS_REQUIRED


@pytest.mark.parametrize("command", [own_command(), own_lookupd_command()], ids=["gnsqd", "gnsqlookupd"])
@pytest.mark.parametrize(
    "origin",
    [
        "ops.example.com",
        "https://ops.example.com/",
        "https://Ops.example.com",
        "https://ops.example.com:443",
        "null",
        "",
    ],
)
def test_value_that_is_not_an_origin_is_refused(tmp_path: Path, command: list[str], origin: str) -> None:
    flags = ["--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0", f"--http-allow-origin={origin}"]
    result = run_to_end(command, *flags, cwd=tmp_path)
    assert result.returncode == 1
    form = "* or an origin as browsers send it, such as https://ops.example.com or http://localhost:3000"
    assert f' - --http-allow-origin must be {form}, not "{origin}"' in result.stderr.splitlines()[-1]
