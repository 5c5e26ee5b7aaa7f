"""AUTH: whom auth servers let do what, on both daemons, and what goes wrong with the servers (NSQD-COMPAT 2.4 and 8).

The client never learns why it was refused; that is in the log, where the real daemon shows secrets and ours does not.
"""

import json
import os
import re
import ssl
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kit.auth_server import EVERYTHING, AuthServer, grant, query, response
from kit.certificates import issue
from kit.daemons import Instance, eventually, free_port
from kit.nsq_client import ERROR, HEARTBEAT, RESPONSE, Frame, NSQClient, mpub_body, sized, split_frames
from kit.traffic import DaemonFactory
from kit.upgraded_client import UpgradedClient, tls_client_context

OK = Frame(RESPONSE, b"OK")
FAILED = Frame(ERROR, b"E_AUTH_FAILED AUTH failed")


@pytest.fixture(scope="module")
def running_server() -> Iterator[AuthServer]:
    with AuthServer() as server:
        yield server


@pytest.fixture
def server(running_server: AuthServer) -> AuthServer:
    running_server.reset(grant(EVERYTHING))
    return running_server


@pytest.fixture(scope="module")
def shared(module_factory: DaemonFactory, running_server: AuthServer) -> Instance:
    return module_factory(f"--auth-http-address={running_server.address}")


def auth(client: NSQClient, secret: bytes = b"secret") -> Frame:
    client.command(b"AUTH", secret)
    return client.frame()


def admitted(nsqd: Instance) -> NSQClient:
    client = NSQClient(nsqd.tcp_address)
    assert auth(client).type == RESPONSE
    return client


def ask(nsqd: Instance, data: bytes) -> list[Frame]:
    """Sends `data` and an empty command, which ends the connection, and returns all answers to `data`."""
    with NSQClient(nsqd.tcp_address) as client:
        client.send(data + b"\n")
        frames = split_frames(client.recv_until_closed())
    end = Frame(ERROR, b"E_INVALID invalid command ")
    return frames[:-1] if frames[-1:] == [end] else frames


def publish(topic: str) -> bytes:
    return f"PUB {topic}\n".encode() + sized(b"x")


AUTH = b"AUTH\n" + sized(b"secret")


def warnings(nsqd: Instance, secret: str = "secret") -> list[str]:
    """Returns the failures in the log; the real daemon also logs secrets."""
    text = nsqd.log().replace(f"secret={secret}", "secret=***")
    return re.findall(r" WARNING: PROTOCOL\(V2\): \[[^]]+\] AUTH failed (.*)", text)


# The question and the answer


def test_server_is_asked_with_what_is_known_of_the_client(shared: Instance, server: AuthServer) -> None:
    with NSQClient(shared.tcp_address) as client:
        assert json.loads(client.identify(feature_negotiation=True).data)["auth_required"] is True
        assert auth(client, b"a b+c&d=\xff~-_.!*'()/\0" + "\xe9".encode()).type == RESPONSE
    assert server.requests == [
        b"GET /auth?common_name=&remote_ip=127.0.0.1"
        b"&secret=a+b%2Bc%26d%3D%FF~-_.%21%2A%27%28%29%2F%00%C3%A9&tls=false HTTP/1.1\r\n"
        b"Host: " + server.address.encode() + b"\r\nUser-Agent: Go-http-client/1.1\r\n"
        b"Accept: application/vnd.nsq; version=1.0\r\nAccept-Encoding: gzip\r\n\r\n"
    ]


@pytest.mark.parametrize(
    ("redirect", "lines"),
    [
        ("", [b"POST /auth HTTP/1.1"]),
        ("302 Found", [b"POST /auth HTTP/1.1", b"GET /auth2 HTTP/1.1"]),
        ("307 Temporary Redirect", [b"POST /auth HTTP/1.1", b"POST /auth2 HTTP/1.1"]),
    ],
)
def test_server_can_be_asked_by_post(
    gnsqd_factory: DaemonFactory, server: AuthServer, redirect: str, lines: list[bytes]
) -> None:
    # What nsqd sends in nsq's development branch, which has the option; recorded at commit 3103474b.
    away, granted = response("", redirect, "Location: /auth2"), grant(EVERYTHING)
    server.reset(lambda target: away if redirect and target == "/auth" else granted)
    nsqd = gnsqd_factory(f"--auth-http-address={server.address}", "--auth-http-request-method=post")
    assert ask(nsqd, b"AUTH\n" + sized(b'a b+c&d=\xff<"\xc3\xa9'))[0].type == RESPONSE
    assert [request.partition(b"\r\n")[0] for request in server.requests] == lines
    body = (
        rb'{"common_name":[""],"remote_ip":["127.0.0.1"],"secret":["a b+c\u0026d=\ufffd\u003c\"'
        b'\xc3\xa9"],"tls":["false"]}'
    )
    assert server.requests[0] == (
        b"POST /auth HTTP/1.1\r\nHost: " + server.address.encode() + b"\r\nUser-Agent: Go-http-client/1.1\r\n"
        b"Content-Length: %d\r\nAccept: application/vnd.nsq; version=1.0\r\nContent-Type: application/json\r\n"
        b"Accept-Encoding: gzip\r\n\r\n%b" % (len(body), body)
    )
    assert all(request.endswith(body) == request.startswith(b"POST") for request in server.requests)


# Fields of the server's answer, and identity, its URL and the number of permissions as the client gets them.
IDENTITIES: list[tuple[dict[str, object], str, str, int]] = [
    ({}, "", "", 1),
    ({"identity": "<\xe9&\ud800>", "identity_url": "/?a=1"}, "\\u003c\xe9\\u0026\ufffd\\u003e", "/?a=1", 1),
    ({"identity": None, "authorizations": [EVERYTHING, {}, None]}, "", "", 3),
    ({"Identity": "me", "IDENTITY_URL": "u", "more": [1, {}]}, "me", "u", 1),
]


def test_client_gets_its_identity(shared: Instance, server: AuthServer) -> None:
    for fields, identity, url, count in IDENTITIES:
        server.reset(grant(EVERYTHING, **fields))
        answer = f'{{"identity":"{identity}","identity_url":"{url}","permission_count":{count}}}'
        assert ask(shared, AUTH) == [Frame(RESPONSE, answer.encode())]


def test_client_without_authorizations_is_refused(shared: Instance, server: AuthServer) -> None:
    for answer in (grant(), grant(authorizations=None), response('{"ttl":1}')):
        server.reset(answer)
        assert ask(shared, AUTH) == [Frame(ERROR, b"E_UNAUTHORIZED AUTH no authorizations found")]


def test_client_may_authenticate_once(shared: Instance, server: AuthServer) -> None:
    *answers, refusal = ask(shared, AUTH + AUTH)
    assert (len(answers), refusal) == (1, Frame(ERROR, b"E_INVALID AUTH already set"))
    assert len(server.requests) == 1


def test_statistics_show_who_a_client_is(shared: Instance, server: AuthServer, topic: str) -> None:
    def shown(client: dict[str, object]) -> dict[str, object]:
        return {key: value for key, value in client.items() if key.startswith("auth")}

    everything = {"authed": True, "auth_identity": "me", "auth_identity_url": "http://me"}
    server.reset(grant(EVERYTHING, identity="me", identity_url="http://me"))
    with admitted(shared) as consumer, admitted(shared) as producer:
        consumer.subscribe(topic, "c")
        producer.publish(topic, b"x")
        stats = shared.stats(topic)
        assert shown(stats["topics"][0]["channels"][0]["clients"][0]) == everything
        assert [shown(client) for client in stats["producers"] if client["pub_counts"][0]["topic"] == topic] == [
            everything
        ]
    server.reset(grant(EVERYTHING))
    with admitted(shared) as consumer:
        consumer.subscribe(topic, "d")
        assert shown(shared.channel_stats(topic, "d")["clients"][0]) == {"authed": True}


# What is guarded

TOO_BIG = b"\x7f\0\0\0"
FIRST = "E_AUTH_FIRST AUTH required before"

GUARDED = [
    (b"SUB t c\n", f"{FIRST} SUB"),
    (b"PUB t\n" + sized(b"x"), f"{FIRST} PUB"),
    (b"DPUB t 1\n" + sized(b"x"), f"{FIRST} DPUB"),
    (b"MPUB t\n" + sized(mpub_body(b"x")), f"{FIRST} MPUB"),
    # before and after what else is checked
    (b"SUB t\n", "E_INVALID SUB insufficient number of parameters"),
    (b"SUB t$ c\n", 'E_BAD_TOPIC SUB topic name "t$" is not valid'),
    (b"SUB t c$\n", 'E_BAD_CHANNEL SUB channel name "c$" is not valid'),
    (b"PUB t$\n", 'E_BAD_TOPIC PUB topic name "t$" is not valid'),
    (b"PUB t\n" + TOO_BIG, "E_BAD_MESSAGE PUB message too big 2130706432 > 1048576"),
    (b"DPUB t x\n", "E_INVALID DPUB could not parse timeout x"),
    (b"DPUB t 1\n" + TOO_BIG, "E_BAD_MESSAGE DPUB message too big 2130706432 > 1048576"),
    (b"MPUB t$\n", 'E_BAD_TOPIC E_BAD_TOPIC MPUB topic name "t$" is not valid'),
    (b"MPUB t\n", f"{FIRST} MPUB"),
    (b"MPUB t\n" + TOO_BIG, f"{FIRST} MPUB"),
]


@pytest.mark.parametrize(("data", "text"), GUARDED)
def test_command_is_refused_before_auth(shared: Instance, server: AuthServer, data: bytes, text: str) -> None:
    with NSQClient(shared.tcp_address) as client:
        client.send(data)
        assert split_frames(client.recv_until_closed()) == [Frame(ERROR, text.encode())]
    assert server.requests == []
    assert not shared.stats("t")["topics"]


def test_other_commands_and_http_need_no_auth(shared: Instance, server: AuthServer, topic: str) -> None:
    assert ask(shared, b"NOP\nIDENTIFY\n" + sized(b"{}")) == [OK]
    assert shared.http("POST", f"/pub?topic={topic}", b"x")[2] == b"OK"
    with admitted(shared) as client:
        client.subscribe(topic, "c", rdy=1)
        client.command(b"FIN " + client.message().id)
        client.command(b"CLS")
        assert client.response() == b"CLOSE_WAIT"
    assert len(server.requests) == 1


BOTH = ["subscribe", "publish"]


@pytest.mark.parametrize(
    ("authorizations", "topic_name", "may_subscribe", "may_publish"),
    [
        ([("", [""], BOTH)], "orders", True, True),
        ([("orders", [".*"], BOTH)], "orders", True, True),
        ([("rder", [".*"], BOTH)], "orders", True, True),
        ([("^rder", [".*"], BOTH)], "orders", False, False),
        ([("^orders$", [".*"], BOTH)], "orders-2", False, False),
        ([("Orders", [".*"], BOTH)], "orders", False, False),
        ([("(?i)Orders", [".*"], BOTH)], "orders", True, True),
        ([("orders", [".*"], ["subscribe"])], "orders", True, False),
        ([("orders", [".*"], ["publish"])], "orders", False, True),
        ([("orders", [".*"], [])], "orders", False, False),
        ([("orders", [".*"], None)], "orders", False, False),
        ([("orders", [], BOTH)], "orders", False, False),
        ([("orders", None, BOTH)], "orders", False, False),
        # who publishes has the channel ""
        ([("orders", ["^$"], BOTH)], "orders", False, True),
        ([("orders", ["channe"], BOTH)], "orders", True, False),
        ([("orders", ["x", "^ch", "y"], BOTH)], "orders", True, False),
        # one authorization must allow it all
        ([("orders", [".*"], []), ("x", [".*"], BOTH)], "orders", False, False),
        ([("x", [".*"], BOTH), ("orders", ["^$"], BOTH), ("orders", ["c"], BOTH)], "orders", True, True),
        # RE2's syntax
        ([(r"^[[:alpha:]]+$", [r"\A\pL*\z"], BOTH)], "orders", True, True),
        ([(r"^o(?P<name>r)(?:d)e??rs\b", [".*"], BOTH)], "orders", True, True),
        ([(r"\Qa.b\E", [".*"], BOTH)], "a.b", True, True),
        ([(r"\Qa.b\E", [".*"], BOTH)], "axb", False, False),
        ([(r"^\D{1,3}\d$", [".*"], BOTH)], "abc1", True, True),
        ([(r"(?m)^orders$\n?", [".*"], BOTH)], "orders", True, True),
    ],
)  # fmt: skip
def test_authorizations_allow_what_their_regexes_find(
    shared: Instance,
    server: AuthServer,
    authorizations: list[tuple[str, list[str], list[str]]],
    topic_name: str,
    may_subscribe: bool,
    may_publish: bool,
) -> None:
    fields = ("topic", "channels", "permissions")
    server.reset(grant(*(dict(zip(fields, each, strict=True)) for each in authorizations)))
    body, messages = sized(b"x"), sized(mpub_body(b"x"))
    for command, channel, allowed in (
        ("SUB {} channel\n", "channel", may_subscribe),
        ("PUB {}\n", "", may_publish),
        ("DPUB {} 1\n", "", may_publish),
        ("MPUB {}\n", "", may_publish),
    ):
        name = command.partition(" ")[0]
        rest = {"SUB": b"", "MPUB": messages}.get(name, body)
        _, answer = ask(shared, AUTH + command.format(topic_name).encode() + rest)
        refusal = f'E_UNAUTHORIZED AUTH failed for {name} on "{topic_name}" "{channel}"'
        assert answer == (OK if allowed else Frame(ERROR, refusal.encode())), name


# What is wrong with the server's answer


def state(authorization: str) -> bytes:
    return response(f'{{"ttl":1,"authorizations":[{authorization}]}}')


WRONG_ANSWERS = [
    (response("no", "500 Internal Server Error"), 'got response 500 Internal Server Error "no"'),
    (response("", "204 No Content"), 'got response 204 No Content ""'),
    (response("{}", "404 Not Found"), 'got response 404 Not Found "{}"'),
    (response("", "302 Found"), 'got response 302 Found ""'),
    # 403 may name an https_port
    (response("no", "403 Forbidden"), "invalid character 'o' in literal null (expecting 'u')"),
    (response("", "403 Forbidden"), "unexpected end of JSON input"),
    (
        response('{"https_port":"1"}', "403 Forbidden"),
        "json: cannot unmarshal string into Go struct field .https_port of type int",
    ),
    # TTL, permissions
    (response("null"), "invalid TTL 0 (must be >0)"),
    (response("{}"), "invalid TTL 0 (must be >0)"),
    (grant(EVERYTHING, ttl=0), "invalid TTL 0 (must be >0)"),
    (grant(EVERYTHING, ttl=-5), "invalid TTL -5 (must be >0)"),
    (grant(EVERYTHING, {"permissions": ["publish", "admin"]}, ttl=0), "unknown permission admin"),
    (grant({"permissions": ["Publish"], "topic": "("}), "unknown permission Publish"),
    # HTTP
    (b"", "EOF"),
    (b"garbage\r\n\r\n", 'net/http: HTTP/1.x transport connection broken: malformed HTTP response "garbage"'),
    (b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{", "unexpected EOF"),
    (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n50\r\n{", "unexpected EOF"),
    # JSON
    (response(""), "unexpected end of JSON input"),
    (response("ok"), "invalid character 'o' looking for beginning of value"),
    (response("{}{}"), "invalid character '{' after top-level value"),
    (response("[]"), "json: cannot unmarshal array into Go value of type auth.State"),
    *(
        (answer, f"json: cannot unmarshal {found} into Go struct field {field}")
        for answer, found, field in [
            (response('{"ttl":"1"}'), "string", "State.ttl of type int"),
            (response('{"ttl":1.5}'), "number 1.5", "State.ttl of type int"),
            (response('{"ttl":9223372036854775808}'), "number 9223372036854775808", "State.ttl of type int"),
            (response('{"authorizations":{}}'), "object", "State.authorizations of type []auth.Authorization"),
            (state('"x"'), "string", "State.authorizations of type auth.Authorization"),
            (state('{"topic":1}'), "number", "Authorization.authorizations.topic of type string"),
            (state('{"channels":"x"}'), "string", "Authorization.authorizations.channels of type []string"),
            (state('{"permissions":[true]}'), "bool", "Authorization.authorizations.permissions of type string"),
        ]
    ),
    # regexes
    (
        grant({"topic": "a", "channels": ["b", "[c\xe9"]}),
        'unable to compile channel "[c\xe9" error parsing regexp: missing closing ]: `[c\xe9`',
    ),
    (
        grant({"topic": "a(", "channels": ["["]}),
        'unable to compile topic "a(" error parsing regexp: missing closing ): `a(`',
    ),
    *(
        (grant({"topic": regex}), f"unable to compile topic {shown} error parsing regexp: {reason}")
        for regex, shown, reason in [
            ("*", '"*"', "missing argument to repetition operator: `*`"),
            ("a**", '"a**"', "invalid nested repetition operator: `**`"),
            ("a{1001}", '"a{1001}"', "invalid repeat count: `{1001}`"),
            ("[b-a]", '"[b-a]"', "invalid character class range: `b-a`"),
            ("a)", '"a)"', "unexpected ): `a)`"),
            ("(?=a)", '"(?=a)"', "invalid or unsupported Perl syntax: `(?=`"),
            ("(?P<n", '"(?P<n"', "invalid named capture: `(?P<n`"),
            (r"\1", r'"\\1"', r"invalid escape sequence: `\1`"),
            ("\\", r'"\\"', "trailing backslash at end of expression: ``"),
            (r"\p{No}\p{X}", r'"\\p{No}\\p{X}"', r"invalid character class range: `\p{X}`"),
        ]
    ),
]


@pytest.mark.parametrize(("answer", "why"), WRONG_ANSWERS)
def test_answer_that_is_wrong_is_logged_and_the_client_refused(
    shared: Instance, server: AuthServer, answer: bytes, why: str
) -> None:
    server.reset(answer)
    before = len(warnings(shared))
    assert ask(shared, AUTH) == [FAILED]
    get = f'Get "http://{server.address}/auth?common_name=&remote_ip=127.0.0.1&secret=***&tls=false": '
    where = get if why == "EOF" or why.startswith("net/http:") else ""
    expected = f"failed to auth against {server.address} - {where}{why}"
    assert warnings(shared)[before:] == [expected]


def test_server_that_cannot_be_reached_is_logged(module_factory: DaemonFactory) -> None:
    nobody = f"127.0.0.1:{free_port()}"
    for address, why in (
        (nobody, f"dial tcp {nobody}: connect: connection refused"),
        ("ftp://127.0.0.1/auth", 'unsupported protocol scheme "ftp"'),
        ("http:///auth", "http: no Host in request URL"),
    ):
        nsqd = module_factory(f"--auth-http-address={address}")
        assert ask(nsqd, AUTH) == [FAILED]
        (line,) = warnings(nsqd)
        assert line.startswith(f"failed to auth against {address} - Get ")
        assert line.endswith(f'common_name=&remote_ip=127.0.0.1&secret=***&tls=false": {why}')


def test_client_gets_nothing_that_is_logged(shared: Instance, server: AuthServer) -> None:
    server.reset(response("why", "500 Broken"))
    with NSQClient(shared.tcp_address) as client:
        peer = ":".join(map(str, client.sock.getsockname()))
        client.send(AUTH)
        assert split_frames(client.recv_until_closed()) == [FAILED]
    reason = f'failed to auth against {server.address} - got response 500 Broken "why"'
    for line in (
        f" WARNING: PROTOCOL(V2): [{peer}] AUTH failed {reason}\n",
        f" ERROR: [{peer}] - E_AUTH_FAILED AUTH failed - {reason}\n",
        f" ERROR: client({peer}) - E_AUTH_FAILED AUTH failed\n",
    ):
        eventually(lambda line=line: line in shared.log())  # type: ignore[misc]


# When the answer has expired


def publish_until_asked(client: NSQClient, server: AuthServer, topic: str) -> Frame:
    """Publishes until the daemon asks the server again, and returns the answer to that."""
    asked = len(server.requests)

    def answer() -> Frame | None:
        client.command(b"PUB " + topic.encode(), b"x")
        frame = client.frame()
        return frame if len(server.requests) > asked else None

    return eventually(answer)


def test_expired_answer_is_asked_for_again(shared: Instance, server: AuthServer, topic: str) -> None:
    server.reset(grant(EVERYTHING, ttl=1, identity="before"))
    with NSQClient(shared.tcp_address) as client:
        assert auth(client, b"a&b").type == RESPONSE
        server.answer = grant(EVERYTHING, identity="after")
        assert publish_until_asked(client, server, topic) == OK
        assert len(server.targets) == 2
        assert query(server.targets[0]) == query(server.targets[1])
        client.publish(topic, b"x")
        client.subscribe(topic, "c")
        assert len(server.requests) == 2
        assert shared.channel_stats(topic, "c")["clients"][0]["auth_identity"] == "after"


def test_what_was_granted_is_gone_when_it_is_not_granted_again(
    shared: Instance, server: AuthServer, topic: str
) -> None:
    server.reset(grant(EVERYTHING, ttl=1))
    refused = Frame(ERROR, f'E_UNAUTHORIZED AUTH failed for PUB on "{topic}-other" ""'.encode())
    with admitted(shared) as consumer, admitted(shared) as first, admitted(shared) as second:
        consumer.subscribe(topic, "c", rdy=100)
        for client, answer, end in (
            (first, response("", "500 Internal Server Error"), FAILED),
            (second, grant(), refused),
        ):
            server.answer = answer
            before = len(warnings(shared))
            assert publish_until_asked(client, server, f"{topic}-other") == end
            assert client.recv_until_closed() == b""
            assert len(warnings(shared)) == before + (end == FAILED)
        # What is subscribed stays so.
        assert shared.http("POST", f"/pub?topic={topic}", b"late")[2] == b"OK"
        message = consumer.message()
        assert message.body == b"late"
        consumer.command(b"FIN " + message.id)
        eventually(lambda: shared.channel_stats(topic, "c")["clients"][0]["finish_count"] == 1)


# Several servers, other places


def test_servers_are_tried_until_one_gives_a_valid_answer(module_factory: DaemonFactory) -> None:
    with AuthServer(response("{}")) as bad, AuthServer(grant(EVERYTHING)) as good:
        nsqd = module_factory(f"--auth-http-address={bad.address}", f"--auth-http-address={good.address}")

        def both_were_first() -> bool:
            (_,) = ask(nsqd, AUTH)
            return 0 < len(bad.requests) < len(good.requests)

        eventually(both_were_first)
        assert warnings(nsqd) == []
        good.answer = response("")
        assert ask(nsqd, AUTH) == [FAILED]
    failures = [
        f"failed to auth against {bad.address} - invalid TTL 0 (must be >0)",
        f"failed to auth against {good.address} - unexpected end of JSON input",
    ]
    assert [sorted(line.split("; ")) for line in warnings(nsqd)] == [sorted(failures)]


def test_address_may_be_a_url(module_factory: DaemonFactory, server: AuthServer) -> None:
    url = f"http://user:pass%20word@{server.address}/a/path"
    nsqd = module_factory(f"--auth-http-address={url}")
    assert [frame.type for frame in ask(nsqd, AUTH)] == [RESPONSE]
    request = server.requests[0].decode().split("\r\n")
    assert request[0] == "GET /a/path?common_name=&remote_ip=127.0.0.1&secret=secret&tls=false HTTP/1.1"
    assert request[1] == f"Host: {server.address}"
    assert "Authorization: Basic dXNlcjpwYXNzIHdvcmQ=" in request


def found(location: str, status: int = 302) -> bytes:
    return response("", f"{status} Found", f"Location: {location}")


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_are_followed(shared: Instance, server: AuthServer, status: int) -> None:
    def answer(target: str) -> bytes:
        if target.startswith("/auth"):
            return found("other?x=1", status)
        return found(f"//{server.address}/end", status) if target == "/other?x=1" else grant(EVERYTHING)

    server.reset(answer)
    assert [frame.type for frame in ask(shared, AUTH)] == [RESPONSE]
    assert server.targets[1:] == ["/other?x=1", "/end"]


def test_redirects_end(shared: Instance, server: AuthServer) -> None:
    for location, asked, why in (
        ("/loop", 10, "stopped after 10 redirects"),
        ("ftp://host/", 1, 'unsupported protocol scheme "ftp"'),
    ):
        server.reset(found(location))
        assert ask(shared, AUTH) == [FAILED]
        assert len(server.requests) == asked
        assert warnings(shared)[-1] == f'failed to auth against {server.address} - Get "{location}": {why}'


# HTTPS, and clients with TLS


@pytest.fixture(scope="module")
def root(identities: dict[str, tuple[str, str]]) -> str:
    return f"--tls-root-ca-file={identities['authority'][0]}"


@pytest.fixture(scope="module")
def https(identities: dict[str, tuple[str, str]]) -> Iterator[AuthServer]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*identities["server"])
    with AuthServer(grant(EVERYTHING), context) as server:
        yield server


def test_server_may_be_asked_over_https(module_factory: DaemonFactory, root: str, https: AuthServer) -> None:
    https.reset(grant(EVERYTHING))
    address = f"--auth-http-address=https://{https.address}/auth"
    assert [frame.type for frame in ask(module_factory(address, root), AUTH)] == [RESPONSE]
    assert query(https.targets[0])["secret"] == "secret"
    stranger = module_factory(address)
    assert ask(stranger, AUTH) == [FAILED]
    assert warnings(stranger)[0].endswith(": x509: certificate signed by unknown authority")
    assert len(https.requests) == 1


@pytest.mark.one_lane
def test_changed_authorities_verify_servers(
    gnsqd_factory: DaemonFactory, identities: dict[str, tuple[str, str]], https: AuthServer, tmp_path: Path
) -> None:
    https.reset(grant(EVERYTHING))
    roots = Path(issue("old", authority=True).write(tmp_path / "roots")[0])
    gnsqd = gnsqd_factory(f"--auth-http-address=https://{https.address}/auth", f"--tls-root-ca-file={roots}")
    assert ask(gnsqd, AUTH) == [FAILED]
    roots.write_bytes(Path(identities["authority"][0]).read_bytes())
    eventually(lambda: f"INFO: TLS: loaded changed certificates, valid: {roots} until " in gnsqd.log())
    assert [frame.type for frame in ask(gnsqd, AUTH)] == [RESPONSE]


def test_server_asks_for_https(module_factory: DaemonFactory, root: str, https: AuthServer, server: AuthServer) -> None:
    https.reset(grant(EVERYTHING))
    server.reset(response(f'{{"message":"TLS_REQUIRED","https_port":{https.port}}}', "403 Forbidden"))
    nsqd = module_factory(f"--auth-http-address={server.address}", root)
    assert [frame.type for frame in ask(nsqd, AUTH)] == [RESPONSE]
    assert server.targets == https.targets
    https.reset(response("no", "403 Forbidden"))
    assert ask(nsqd, AUTH) == [FAILED]
    assert warnings(nsqd) == [f'failed to auth against {server.address} - got response 403 Forbidden "no"']


def test_client_may_upgrade_after_auth(
    module_factory: DaemonFactory, identities: dict[str, tuple[str, str]], tls_flags: list[str], server: AuthServer
) -> None:
    # A certificate that is not asked for is not sent.
    server.reset(grant(EVERYTHING, ttl=1))
    nsqd = module_factory(*tls_flags, f"--auth-http-address={server.address}")
    with UpgradedClient(nsqd.tcp_address) as client:
        assert auth(client).type == RESPONSE
        client.upgrade(tls_client_context(None, identities["known"]), {"tls_v1": True})
        assert publish_until_asked(client, server, "t") == OK
    asked = map(query, server.targets)
    assert [(target["tls"], target["common_name"]) for target in asked] == [("false", ""), ("true", "")]


def test_unix_client_has_no_address(module_factory: DaemonFactory, server: AuthServer, tmp_path: Path) -> None:
    paths = [f"--{kind}-address={tmp_path}/{kind}" for kind in ("tcp", "http")]
    nsqd = module_factory(*paths, f"--auth-http-address={server.address}")
    assert [frame.type for frame in ask(nsqd, AUTH)] == [RESPONSE]
    assert query(server.targets[0]) == {"common_name": "", "remote_ip": "", "secret": "secret", "tls": "false"}


# Servers that hang


def test_client_has_its_heartbeats_while_the_server_hangs(module_factory: DaemonFactory, server: AuthServer) -> None:
    nsqd = module_factory(f"--auth-http-address={server.address}", "--http-client-request-timeout=1h")
    server.awake.clear()
    with NSQClient(nsqd.tcp_address) as client:
        client.send(b"IDENTIFY\n" + sized(b'{"heartbeat_interval":1000}') + AUTH + b"NOP\n" + publish("t"))
        assert client.response() == b"OK"  # at once
        assert client.response() == HEARTBEAT
        assert ask(nsqd, publish("t")) == [Frame(ERROR, b"E_AUTH_FIRST AUTH required before PUB")]
        assert nsqd.http("POST", "/pub?topic=t", b"x")[2] == b"OK"
        server.awake.set()
        frames = (frame for frame in iter(client.frame, None) if frame.data != HEARTBEAT)
        assert next(frames).data.startswith(b'{"identity":')
        assert next(frames) == OK


def test_server_is_given_up_when_the_request_takes_too_long(module_factory: DaemonFactory, server: AuthServer) -> None:
    nsqd = module_factory(f"--auth-http-address={server.address}", "--http-client-request-timeout=200ms")
    server.awake.clear()
    assert ask(nsqd, AUTH) == [FAILED]
    assert warnings(nsqd)[-1].endswith(" (Client.Timeout exceeded while awaiting headers)")


# Ours alone


def open_files(nsqd: Instance) -> int:
    return len(os.listdir(f"/proc/{nsqd.pid}/fd"))


def test_clients_whose_server_hangs_leave_nothing_behind(gnsqd_factory: DaemonFactory, server: AuthServer) -> None:
    gnsqd = gnsqd_factory(f"--auth-http-address={server.address}", "--http-client-request-timeout=500ms")
    eventually(lambda: ask(gnsqd, AUTH)[0].type == RESPONSE)
    before = open_files(gnsqd)
    server.awake.clear()
    with ExitStack() as stack:
        clients = [stack.enter_context(NSQClient(gnsqd.tcp_address)) for _ in range(50)]
        for client in clients:
            client.send(AUTH)
        assert gnsqd.http("GET", "/ping")[2] == b"OK"
        assert [client.frame() for client in clients] == [FAILED] * 50
    eventually(lambda: open_files(gnsqd) <= before)


def test_exit_does_not_wait_for_auth_servers(gnsqd_factory: DaemonFactory, server: AuthServer) -> None:
    gnsqd = gnsqd_factory(f"--auth-http-address={server.address}", "--http-client-request-timeout=1h")
    server.awake.clear()
    with ExitStack() as stack:
        clients = [stack.enter_context(NSQClient(gnsqd.tcp_address)) for _ in range(50)]
        for client in clients:
            client.send(AUTH)
        eventually(lambda: len(server.requests) == 50)
        assert gnsqd.terminate() == 0
        assert {client.recv_until_closed() for client in clients} == {b""}


def test_secrets_are_not_logged(gnsqd_factory: DaemonFactory, server: AuthServer) -> None:
    address = f"http://me:daemons-own@{server.address}/auth"
    gnsqd = gnsqd_factory(f"--auth-http-address={address}", "--log-level=debug")
    for answer in (b"", response("no", "500 Internal Server Error"), found("http://me:daemons-own@127.0.0.1:1/")):
        server.reset(answer)
        assert ask(gnsqd, b"AUTH\n" + sized(b"the-clients & more")) == [FAILED]
    shown = address.replace("daemons-own", "***")
    assert [line.partition(" - ")[0] for line in warnings(gnsqd)] == [f"failed to auth against {shown}"] * 3
    assert "daemons-own" not in gnsqd.log()
    assert "the-clients" not in gnsqd.log()
