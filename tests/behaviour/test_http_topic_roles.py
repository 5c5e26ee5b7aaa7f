"""Roles for topics over HTTP, of tokens, certificates and auth servers (contrib/docs/security.md). The real nsqd has
none."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from behaviour.test_http_auth import ANYBODY, CHANNEL, FULL, FULL_TOKEN, READ, TOPIC, Certificates, status
from kit.auth_server import AuthServer, grant, query, response
from kit.daemons import DEADLINE, Instance, eventually, open_socket, own_command, run_to_end
from kit.http_api import exchange, head, message, read_all, split_responses
from kit.traffic import DaemonFactory

READER, PUBLISHER, MANAGER = "reads-the-topic-t-01", "publishes-to-t-00001", "manages-the-topic-t1"
READ_ALL, PUBLISH_ALL, MANAGE_ALL = "reads-every-topic-01", "publishes-to-all-001", "manages-every-topic1"
PATTERNS = "publishes-to-several"
ROLES = f"""
{FULL_TOKEN}
{READER} read:t
{PUBLISHER} publish:t
{MANAGER} manage:t
{READ_ALL} read:*
{PUBLISH_ALL} publish:*
{MANAGE_ALL} manage:*
{PATTERNS} publish:orders.* publish:*.log publish:a*b*c publish:xy*yz
"""
PUBLISHING = [f"POST {path}{TOPIC}" for path in ("/pub", "/mpub")]
READING = [what for what in READ if "topic=t" in what] + [f"GET /stats{TOPIC}", f"GET /stats{CHANNEL}"]
MANAGING = [what for what in FULL if "topic=t" in what and what not in PUBLISHING]
OF_THE_DAEMON = [what for what in READ + FULL if "topic=t" not in what]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    directory = tmp_path_factory.mktemp("roles")
    (directory / "tokens").write_text(ROLES)
    with Instance(own_command(), directory / "data", f"--http-auth-token-file=full:{directory}/tokens") as daemon:
        yield daemon


def permitted(nsqd: Instance, endpoints: list[str], token: str) -> list[str]:
    return [what for what in endpoints if status(nsqd, what, token) not in (401, 403)]


def scope(nsqd: Instance, what: str, token: str) -> str:
    """Returns the role that the answer asks for."""
    method, target = what.split(" ", 1)
    code, headers, body = nsqd.http(method, target, b"x", {"Authorization": f"Bearer {token}"})
    assert (code, body.decode()) == (403, message("FORBIDDEN"))
    prefix = 'Bearer realm="nsqd", error="insufficient_scope", scope="'  # RFC 6750, section 3
    assert headers["WWW-Authenticate"].startswith(prefix)
    return headers["WWW-Authenticate"].removeprefix(prefix).removesuffix('"')


@pytest.mark.parametrize(
    ("token", "endpoints"),
    [
        (READER, READING),
        (PUBLISHER, PUBLISHING),
        (MANAGER, READING + PUBLISHING + MANAGING),
    ],
)
def test_role_permits_the_requests_of_one_topic(shared: Instance, token: str, endpoints: list[str]) -> None:
    assert permitted(shared, READING + PUBLISHING + MANAGING, token) == endpoints
    others = [what.replace("topic=t", "topic=tt") for what in READING + PUBLISHING + MANAGING]
    assert permitted(shared, others, token) == []
    assert permitted(shared, [*OF_THE_DAEMON, "GET /stats?topic=", "GET /stats?channel=c"], token) == []
    assert permitted(shared, ANYBODY, token) == ANYBODY


def test_reading_all_topics_is_reading_the_daemon(shared: Instance) -> None:
    harmless = [what for what in OF_THE_DAEMON if what.startswith("GET ") and "profile" not in what]
    for token in (READ_ALL, MANAGE_ALL):
        assert permitted(shared, harmless, token) == [what for what in harmless if what in READ]
        assert status(shared, "PUT /config/log_level", token) == status(shared, "POST /drain", token) == 403
    assert permitted(shared, harmless, PUBLISH_ALL) == []
    assert permitted(shared, PUBLISHING, READ_ALL) == []
    assert permitted(shared, PUBLISHING, MANAGE_ALL) == PUBLISHING


@pytest.mark.parametrize(
    ("topic", "permits"),
    [
        ("orders.eu", True),
        ("orders.", True),
        ("orders.eu%23ephemeral", True),
        ("orders", False),
        ("my.orders.eu", False),
        (".log", True),
        ("x.log", True),
        ("x.log2", False),
        ("abc", True),
        ("a.b.b.c", True),
        ("ac", False),
        ("acb", False),
        ("ab", False),
        ("xyyz", True),
        ("xyz", False),
    ],
)
def test_star_in_a_pattern_stands_for_anything(shared: Instance, topic: str, permits: bool) -> None:
    assert status(shared, f"POST /pub?topic={topic}", PATTERNS) == (200 if permits else 403)


@pytest.mark.parametrize(
    "target",
    [
        "/pub?topic=secret&topic=t",
        "/pub?topic=&topic=t",
        "/pub?t%6fpic=secret&topic=t",
        "/pub?topic=%73ecret&topic=t",
        "/pub?topic=t%00",
        "/pub?topic=t%2a",
        "/pub?topic=*",
        "/pub?topic=T",
        "/pub?topic=+t",
        "/pub?Topic=t",
        "/pub?topic=secret;topic=t",
        "/pub?topic=t;topic=secret",
        "/pub?topic=secret#topic=t",
        "/pub?topic=%zz&topic=t",
        "/pub",
        "/pub/?topic=t",
        "//pub?topic=t",
        "/PUB?topic=t",
        "/topic/../pub?topic=t",
        "/pub%3ftopic=t",
        "/config/log_level?topic=t",
    ],
)
def test_topic_is_the_one_that_would_be_published_to(shared: Instance, target: str) -> None:
    token = f"Authorization: Bearer {PUBLISHER}"
    data = head(f"POST {target}", token, "Content-Length: 2") + b"hi"
    # In a body there is no query.
    data += (
        head("POST /pub", token, "Content-Type: application/x-www-form-urlencoded", "Content-Length: 7") + b"topic=t"
    )
    assert exchange(shared, data) == [(403, message("FORBIDDEN"))] * 2
    names = [topic["topic_name"] for topic in json.loads(full_stats(shared))["topics"]]
    assert not {"secret", "T", " t"} & set(names)


def full_stats(nsqd: Instance) -> bytes:
    return nsqd.http("GET", "/stats?format=json", None, {"Authorization": f"Bearer {FULL_TOKEN}"})[2]


@pytest.mark.parametrize(
    "target", ["/pub?topic=t&topic=secret", "/pub?t%6Fpic=%74", "/p%75b?topic=t", "http://h/pub?topic=t"]
)
def test_another_spelling_of_a_permitted_request_is_permitted(shared: Instance, target: str) -> None:
    data = head(f"POST {target}", f"Authorization: Bearer {PUBLISHER}", "Content-Length: 2") + b"hi"
    assert exchange(shared, data) == [(200, "OK")]


def test_head_needs_the_role_of_get(shared: Instance) -> None:
    data = head(f"HEAD /topic/peek{TOPIC}", f"Authorization: Bearer {READER}", "Connection: close")
    assert [code for code, _ in exchange(shared, data.replace(b"HEAD", b"GET"))] == [403]
    assert exchange(shared, data)[0][0] == 403


def test_refusal_names_the_missing_role(shared: Instance) -> None:
    assert scope(shared, "POST /pub?topic=orders%23ephemeral", READER) == "publish:orders#ephemeral"
    assert scope(shared, "GET /topic/peek?topic=t", READER) == "manage:t"
    assert scope(shared, "GET /stats?topic=t", PUBLISHER) == "read:t"
    assert scope(shared, "GET /stats", READER) == "read"
    assert scope(shared, "POST /drain?topic=t", MANAGER) == "full"
    assert scope(shared, 'POST /pub?topic="x', PUBLISHER) == "full"


def test_body_is_not_taken_for_another_topic(shared: Instance) -> None:
    data = head("POST /pub?topic=other", f"Authorization: Bearer {PUBLISHER}", "Content-Length: 1000000")
    assert exchange(shared, data) == [(403, message("FORBIDDEN"))]  # before the body has arrived


def test_line_with_a_bad_role_is_refused_with_its_number(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    flags = ["--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0", f"--http-auth-token-file=read:{file}"]
    bad_role = "has a role other than read:TOPIC, publish:TOPIC or manage:TOPIC, where TOPIC may contain *"
    for line, text in (
        (f"{READER} full:t", bad_role),
        (f"{READER} read:", bad_role),
        (f"{READER} read:t$", bad_role),
        (f"{READER} read:t {MANAGER}", bad_role),
        ("short read:t", "is not a token: 16 or more of"),
        ("cn= read:t", "is not a token: 16 or more of"),
        ("cn=name read:t", "has a common name, which needs --tls-client-auth-policy=require-verify"),
    ):
        file.write_text(f"{PUBLISHER}\n\n{line}\n")
        result = run_to_end(own_command(), *flags, cwd=tmp_path)
        assert f"{file}: line 3 {text}" in result.stderr.splitlines()[-1], line
        assert result.returncode == 1
        assert not any(token in result.stderr for token in (READER, MANAGER))


def test_roles_of_a_certificate(gnsqd_factory: DaemonFactory, tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    file = tmp_path / "tokens"
    file.write_text(f"cn=shop publish:orders.* read:orders.*\ncn=dashboard\n{PUBLISHER} publish:t\n")
    gnsqd = gnsqd_factory(*certificates.flags, f"--http-auth-token-file=read:{file}")
    requests = ("POST /pub?topic=orders.eu", "GET /stats?topic=orders.eu", "POST /pub?topic=t", "GET /stats")

    def codes(name: str, token: str = "") -> list[int]:
        return certificates.statuses(gnsqd, name, requests, token)

    assert codes("shop") == [200, 200, 403, 403]
    assert codes("dashboard") == [403, 200, 403, 200]
    assert codes("stranger") == [401] * 4
    assert codes("stranger", "cn=shop") == [401] * 4  # is not a token
    assert codes("shop", PUBLISHER) == [200, 200, 200, 403]
    file.write_text("cn=stranger publish:t")
    eventually(lambda: codes("stranger") == [403, 403, 200, 403] and codes("shop") == [401] * 4)


# Auth servers


@pytest.fixture
def server() -> Iterator[AuthServer]:
    orders = {"topic": "^orders$", "channels": [".*"], "permissions": ["publish"]}
    billing = {"topic": "^orders$", "channels": ["^billing$"], "permissions": ["subscribe"]}

    def answer(target: str) -> bytes:
        known = {"secret-of-publisher": orders, "secret-of-billing": billing}
        found = known.get(query(target)["secret"])
        return response('{"message":"NOT_AUTHORIZED"}', "403 Forbidden") if found is None else grant(found)

    with AuthServer(answer) as server:
        yield server


@pytest.fixture
def asking(gnsqd_factory: DaemonFactory, server: AuthServer, tmp_path: Path) -> Instance:
    (tmp_path / "token").write_text(f"{FULL_TOKEN}\n{PUBLISHER} publish:t\n")
    flags = (f"--auth-http-address={server.address}", f"--http-auth-token-file=full:{tmp_path}/token")
    return gnsqd_factory(*flags, "--http-auth-server")


def test_auth_server_permits_publishing_and_reading(asking: Instance, server: AuthServer) -> None:
    publish, read = "POST /pub?topic=orders", "GET /stats?topic=orders"
    of_channel = "GET /channel/rules?topic=orders&channel="
    manage = "POST /topic/empty?topic=orders"
    others = [publish + "2", read + "2", manage, "GET /stats", "GET /info", "POST /drain"]
    for _ in range(2):
        assert permitted(asking, [publish, read, *others], "secret-of-publisher") == [publish]
        reading = [read, read + "&channel=billing", of_channel + "billing"]
        refused = [read + "&channel=other", of_channel + "other", publish, *others]
        assert permitted(asking, [*reading, *refused], "secret-of-billing") == reading
        assert status(asking, manage, FULL_TOKEN) == 200
        assert status(asking, publish, PUBLISHER) == 403  # is in a file
        assert status(asking, publish) == 401
    # Each answer was kept.
    assert [query(target)["secret"] for target in server.targets] == ["secret-of-publisher", "secret-of-billing"]
    assert query(server.targets[0]) == {
        "common_name": "", "remote_ip": "127.0.0.1", "secret": "secret-of-publisher", "tls": "false",
    }  # fmt: skip
    # A token that is in no file is not called invalid: the servers may know it.
    scopes = ["publish:orders2", "read:orders2", "manage:orders", "read", "read", "full"]
    assert [scope(asking, what, "secret-of-publisher") for what in others] == scopes
    assert [query(target)["secret"] for target in server.targets[2:]] == []


def test_without_a_valid_answer_nothing_is_permitted(asking: Instance, server: AuthServer) -> None:
    publish = "POST /pub?topic=orders"
    assert status(asking, publish, "unknown") == 403
    assert " WARNING: HTTP: [127.0.0.1] AUTH failed failed to auth against" in asking.log()
    assert "unknown" not in asking.log().replace("unknown_", "")
    server.answer = response("no JSON")
    assert status(asking, publish, "secret-of-publisher") == 403
    server.answer = grant({"topic": ".*", "channels": [".*"], "permissions": ["publish"]}, ttl=1)
    assert status(asking, publish, "secret-of-publisher") == 200
    server.answer = response("", "500 Internal Server Error")
    eventually(lambda: status(asking, publish, "secret-of-publisher") == 403)  # when the ttl is over
    assert status(asking, publish, FULL_TOKEN) == 200


def test_others_are_served_while_the_auth_server_is_asked(asking: Instance, server: AuthServer) -> None:
    server.awake.clear()
    token = "Authorization: Bearer secret-of-publisher"
    with open_socket(asking.http_address, DEADLINE) as waiting:
        waiting.sendall(head("POST /pub?topic=orders", token, "Content-Length: 1", "Connection: close") + b"x")
        eventually(lambda: server.requests)
        assert status(asking, "POST /pub?topic=orders", FULL_TOKEN) == 200
        server.awake.set()
        assert split_responses(read_all(waiting)) == [(200, "OK")]
