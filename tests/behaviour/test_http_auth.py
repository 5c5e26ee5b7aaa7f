"""Tokens and client certificates for HTTP: who may do what (contrib/docs/security.md). The real nsqd has neither."""

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from behaviour.test_https import request
from gnsqd.shared.client import tls_context
from gnsqd.web.routes import ROUTES
from kit.certificates import issue
from kit.daemons import DEADLINE, Instance, eventually, open_socket, own_command, run_to_end
from kit.http_api import chunked, exchange, head, message, read_all, split_responses
from kit.traffic import DaemonFactory, publish

READ_TOKEN = "reads-figures-Aa0._~+/-=="
FULL_TOKEN = "does-everything-0001"
OTHER_TOKEN = "does-everything-0002"

TOPIC, CHANNEL = "?topic=t", "?topic=t&channel=c"
ANYBODY = ["GET /ping", "GET /healthz", "GET /readyz"]
READ = [
    "GET /info", "GET /stats", "GET /metrics", "GET /drain", "GET /queues", "GET /config/log_level",
    f"GET /topic/retention{TOPIC}", f"GET /channel/rules{CHANNEL}", f"GET /channel/rewind{CHANNEL}&to=first",
    f"GET /topic/range{TOPIC}",
    "GET /nope", "GET //ping", "POST /ping", "OPTIONS /ping",  # are not endpoints
]  # fmt: skip
FULL = [
    *(f"POST {path}{TOPIC}" for path in ("/pub", "/mpub", "/topic/create", "/topic/pause", "/topic/unpause")),
    f"POST /topic/empty{TOPIC}", f"GET /topic/peek{TOPIC}", f"POST /topic/retention{TOPIC}&bytes=0",
    *(f"POST /channel/{action}{CHANNEL}" for action in ("create", "pause", "unpause", "empty")),
    f"GET /topic/messages{TOPIC}", f"POST /channel/advance{CHANNEL}&to=1",
    f"GET /channel/peek{CHANNEL}", f"POST /channel/rules{CHANNEL}&rate=0", f"POST /channel/rewind{CHANNEL}&to=first",
    f"GET /channel/deferred{CHANNEL}", f"POST /channel/deferred/cancel{CHANNEL}&id=0123456789abcdef",
    f"POST /channel/delete{CHANNEL}", f"POST /topic/delete{TOPIC}",
    "PUT /config/log_level", "GET /config/auth_http_addresses", "POST /drain", "DELETE /drain",
    *(f"GET /debug/pprof/{page}" for page in ("", "cmdline", "symbol", "heap", "goroutine", "block", "threadcreate")),
    "POST /debug/pprof/symbol", "GET /debug/pprof/profile?seconds=1", "PUT /debug/setblockrate?rate=1",
    "POST /debug/freememory",
]  # fmt: skip
ENDING = ("POST /drain", "GET /debug/pprof/profile?seconds=1")  # end the daemon, or take their time


def token_flags(directory: Path) -> list[str]:
    """Returns the flags of a daemon that has a token for each role, and two for one of them."""
    read, full = directory / "read.token", directory / "full.tokens"
    read.write_text(f"{READ_TOKEN}\n")
    full.write_text(f"\n{FULL_TOKEN}\r\n{OTHER_TOKEN}")
    return [f"--http-auth-token-file=read:{read}", f"--http-auth-token-file=full:{full}"]


@pytest.fixture
def flags(tmp_path: Path) -> list[str]:
    return token_flags(tmp_path)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    directory = tmp_path_factory.mktemp("tokens")
    with Instance(own_command(), directory / "data", *token_flags(directory)) as daemon:
        yield daemon


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"} if token else {}


def status(nsqd: Instance, what: str, token: str = "", body: bytes = b"info") -> int:
    method, target = what.split(" ", 1)
    return nsqd.http(method, target, body, bearer(token))[0]


class Certificates:
    """An authority with the certificates of a daemon, which `flags` name, and of its clients."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._authority = issue("authority", authority=True)
        self._authority_file, _ = self._authority.write(directory / "authority")
        cert, key = issue("server", self._authority).write(directory / "server")
        self.flags = [f"--tls-cert={cert}", f"--tls-key={key}", f"--tls-root-ca-file={self._authority_file}"]
        self.flags.append("--tls-client-auth-policy=require-verify")

    def statuses(self, nsqd: Instance, name: str, requests: Iterable[str], token: str) -> list[int]:
        """Returns the status of each answer to the client of that name."""
        context = tls_context(self._authority_file, None, None, True)
        context.load_cert_chain(*issue(name, self._authority).write(self._directory / name))
        return [request(nsqd, context, what, b"x", bearer(token))[0] for what in requests]


def test_each_endpoint_asks_for_its_role(gnsqd_factory: DaemonFactory, flags: list[str]) -> None:
    gnsqd = gnsqd_factory(*flags)
    for endpoints, refusals in ((ANYBODY, (None, None)), (READ, (401, None)), (FULL, (401, 403))):
        for what in endpoints:
            for token, refusal in zip(("", READ_TOKEN), refusals, strict=True):
                found = status(gnsqd, what, token)
                assert (found if found in (401, 403) else None) == refusal, (what, token)
            if what not in ENDING:
                assert status(gnsqd, what, FULL_TOKEN) not in (401, 403), what
    assert status(gnsqd, "GET /stats", READ_TOKEN) == 200
    assert status(gnsqd, "POST /pub?topic=t", FULL_TOKEN) == status(gnsqd, "POST /pub?topic=t", OTHER_TOKEN) == 200
    assert not any(token in gnsqd.log() for token in (READ_TOKEN, FULL_TOKEN, OTHER_TOKEN))


def test_the_endpoints_here_are_all_that_there_are() -> None:
    here = {what.partition("?")[0].replace("log_level", ":opt") for what in ANYBODY + READ + FULL}
    assert {f"{route.method} {route.path}" for route in ROUTES} <= here


def test_a_refusal_says_what_was_missing(shared: Instance) -> None:
    rows = [
        ({}, 401, "UNAUTHORIZED", ""),
        ({"Authorization": "Bearer of-something-wrong"}, 401, "UNAUTHORIZED", ', error="invalid_token"'),
        (
            {"Authorization": f"Bearer {READ_TOKEN}"},
            403,
            "FORBIDDEN",
            ', error="insufficient_scope", scope="publish:t"',
        ),
    ]
    for given, code, text, reason in rows:
        found, headers, body = shared.http("POST", "/pub?topic=t", b"x", given)
        assert (found, body.decode()) == (code, message(text))
        assert headers["WWW-Authenticate"] == f'Bearer realm="nsqd"{reason}'
        assert headers["Content-Type"] == "application/json; charset=utf-8"
    assert re.search(r" INFO: 401 POST /pub\?topic=t \(127\.0\.0\.1:\d+\) ", shared.log())


@pytest.mark.parametrize(
    ("header", "code"),
    [
        (f"Bearer {FULL_TOKEN}", 200),
        (f"bearer  {FULL_TOKEN} ", 200),
        (f"Bearer {FULL_TOKEN}x", 401),
        (f"Bearer {FULL_TOKEN[:-1]}", 401),
        (f"Bearer {FULL_TOKEN}\r\nAuthorization: Bearer {FULL_TOKEN}", 401),
        (f"Bearer {FULL_TOKEN} {OTHER_TOKEN}", 401),
        (f"Basic {FULL_TOKEN}", 401),
        (FULL_TOKEN, 401),
        ("Bearer", 401),
        ("Bearer \xff", 401),
    ],
)
def test_a_token_counts_whole_and_as_a_bearer_token(shared: Instance, header: str, code: int) -> None:
    data = head("GET /debug/pprof/symbol", "Authorization: " + header) + head(f"GET /stats?token={FULL_TOKEN}")
    assert [found for found, _ in exchange(shared, data)] == [code, 401]


def test_a_body_is_not_taken_from_who_may_not_publish(shared: Instance) -> None:
    refused = (401, message("UNAUTHORIZED"))

    def post(token: str, *headers: str) -> bytes:
        return head("POST /pub?topic=body", f"Authorization: Bearer {token}", *headers)

    # Short ones are dropped, and the connection goes on; with a long one it ends.
    data = post("x" * 20, "Content-Length: 5") + b"hello" + post(FULL_TOKEN, "Content-Length: 2") + b"hi"
    data += post("x" * 20, "Transfer-Encoding: chunked") + chunked(b"hello")
    assert exchange(shared, data + post("", "Content-Length: 1000000")) == [refused, (200, "OK"), refused, refused]
    # Who asks first sends none.
    with open_socket(shared.http_address, DEADLINE) as sock:
        sock.sendall(post("", "Content-Length: 5", "Expect: 100-continue"))
        assert split_responses(read_all(sock)) == [refused]
    headers = {"Authorization": f"Bearer {READ_TOKEN}"}
    (topic,) = json.loads(shared.http("GET", "/stats?format=json&topic=body", None, headers)[2])["topics"]
    assert topic["message_bytes"] == 2


def test_a_token_behind_the_body_counts_for_nothing(shared: Instance) -> None:
    chunks = f"2\r\nhi\r\n0\r\nAuthorization: Bearer {FULL_TOKEN}\r\n\r\n".encode()
    data = b""
    for headers in ([], [f"Authorization: Bearer {READ_TOKEN}"], [f"Authorization: Bearer {FULL_TOKEN}"]):
        data += head("POST /pub?topic=t", *headers, "Transfer-Encoding: chunked") + chunks
    assert [code for code, _ in exchange(shared, data)] == [401, 403, 200]


def test_without_tokens_nobody_is_asked_for_one(gnsqd: Instance) -> None:
    for what in ("GET /stats", "POST /pub?topic=t", "PUT /config/log_level", "GET /config/auth_http_addresses"):
        assert status(gnsqd, what, "of-something-wrong") == 200, what


def test_tcp_asks_for_none(shared: Instance) -> None:
    publish(shared, "t", b"x")


def test_tokens_are_read_again_when_their_file_changes(
    gnsqd_factory: DaemonFactory, flags: list[str], tmp_path: Path
) -> None:
    gnsqd = gnsqd_factory(*flags)
    full, new = tmp_path / "full.tokens", "does-everything-new1"
    assert status(gnsqd, "GET /stats", OTHER_TOKEN) == 200
    # What cannot be read or is none changes nothing.
    for content, reason in (("", "there is no token"), ("short", "line 1 is not a token: 16 or more of A-Z")):
        full.write_text(content)
        reported = f" ERROR: HTTP: the tokens of {full} stay as they were - {reason}"
        eventually(lambda: status(gnsqd, "GET /stats", OTHER_TOKEN) == 200 and reported in gnsqd.log())  # noqa: B023
    full.unlink()
    eventually(lambda: status(gnsqd, "GET /stats", OTHER_TOKEN) == 200 and " - no such file or dir" in gnsqd.log())
    # One goes, one comes, one stays.
    replacement = tmp_path / "replacement"
    replacement.write_text(f"{FULL_TOKEN}\n{new}\n")
    replacement.rename(full)
    eventually(lambda: status(gnsqd, "GET /stats", OTHER_TOKEN) == 401)
    assert [status(gnsqd, "GET /stats", token) for token in (new, FULL_TOKEN, READ_TOKEN)] == [200] * 3
    assert f" INFO: HTTP: read 2 tokens from {full}\n" in gnsqd.log()


def test_a_token_of_two_roles_has_the_higher_one(gnsqd_factory: DaemonFactory, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(FULL_TOKEN)
    gnsqd = gnsqd_factory(f"--http-auth-token-file=full:{file}", f"--http-auth-token-file=read:{file}")
    assert status(gnsqd, "POST /pub?topic=t", FULL_TOKEN) == 200


@pytest.mark.parametrize(
    ("flag", "content", "text"),
    [
        ("token-file={file}", FULL_TOKEN, '--http-auth-token-file must begin with read: or full:, not "{file}"'),
        ("token-file=admin:{file}", FULL_TOKEN, 'must begin with read: or full:, not "admin:{file}"'),
        ("token-file=full:", FULL_TOKEN, 'must begin with read: or full:, not "full:"'),
        ("token-file=full:{file}x", FULL_TOKEN, "failed to read HTTP tokens - {file}x: no such file or directory"),
        ("token-file=full:{file}", "\n \n", "failed to read HTTP tokens - {file}: there is no token"),
        ("token-file=full:{file}", f"{FULL_TOKEN}\nsecret", "{file}: line 2 is not a token: 16 or more of A-Z a-z 0-9"),
        ("token-file=full:{file}", f"{FULL_TOKEN}\n" * 5000, "{file}: more than 65536 bytes"),
        ("common-name=operator", "", '--http-auth-common-name must begin with read: or full:, not "operator"'),
        ("common-name=full:operator", "", "--http-auth-common-name needs --tls-client-auth-policy=require-verify"),
    ],
)
def test_what_cannot_be_used_is_fatal_and_reported_without_the_token(
    tmp_path: Path, flag: str, content: str, text: str
) -> None:
    file = tmp_path / "tokens"
    file.write_text(content)
    flags = ["--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0", f"--http-auth-{flag.format(file=file)}"]
    result = run_to_end(own_command(), *flags, cwd=tmp_path)
    assert result.returncode == 1
    last = result.stderr.splitlines()[-1]
    assert " FATAL: failed to instantiate nsqd - " in last
    assert text.format(file=file) in last
    assert FULL_TOKEN not in result.stderr
    assert "secret" not in result.stderr


def test_a_certificate_is_as_good_as_a_token(gnsqd_factory: DaemonFactory, flags: list[str], tmp_path: Path) -> None:
    names = ("--http-auth-common-name=read:dashboard", "--http-auth-common-name=full:operator")
    certificates = Certificates(tmp_path)
    gnsqd = gnsqd_factory(*flags, *certificates.flags, *names)

    def codes(name: str, token: str = "") -> list[int]:
        requests = ("GET /ping", "GET /stats", "POST /topic/create?topic=t")
        return certificates.statuses(gnsqd, name, requests, token)

    assert codes("operator") == [200, 200, 200]
    assert codes("dashboard") == [200, 200, 403]
    assert codes("stranger") == [200, 401, 401]
    assert codes("stranger", READ_TOKEN) == [200, 200, 403]
    assert codes("dashboard", FULL_TOKEN) == [200, 200, 200]
    # Plain HTTP is closed by the policy, tokens or not.
    assert status(gnsqd, "GET /ping", FULL_TOKEN) == status(gnsqd, "GET /stats") == 403


def test_the_config_shows_where_the_tokens_are(shared: Instance) -> None:
    answer = shared.http("GET", "/config/http_auth_token_files", None, {"Authorization": f"Bearer {READ_TOKEN}"})[2]
    assert json.loads(answer) == [flag.partition("=")[2] for flag in shared.flags]
