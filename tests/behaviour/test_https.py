"""HTTPS: the API behind TLS, who may use it, and what plain HTTP still answers when TLS is required (NSQD-COMPAT 5.1).

The client is the standard library's; it takes the daemon for what its certificate says, and complains when a
connection ends without TLS's own goodbye.
"""

import http.client
import json
import re
import signal
import socket
import ssl
from typing import NamedTuple

import pytest

from gnsqd.shared.client import tls_context
from kit.certificates import issue
from kit.daemons import DEADLINE, Instance, eventually, open_socket
from kit.http_api import JSON, V1, exchange, head, message, read_all, split_responses
from kit.traffic import DaemonFactory

KeyPair = tuple[str, str]

NO_TLS = b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n"
HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"  # the beginning of a ClientHello


class TLSFiles(NamedTuple):
    """PEM files: what the daemon is started with, and key pairs of clients."""

    flags: list[str]
    authority: str
    signed: KeyPair
    unsigned: KeyPair


@pytest.fixture(scope="module")
def files(identities: dict[str, KeyPair], tls_flags: list[str], tmp_path_factory: pytest.TempPathFactory) -> TLSFiles:
    authority, _ = identities["authority"]
    flags = [*tls_flags, f"--tls-root-ca-file={authority}"]
    unsigned = issue("unsigned").write(tmp_path_factory.mktemp("unsigned") / "client")
    return TLSFiles(flags, authority, identities["known"], unsigned)


@pytest.fixture(scope="module")
def shared(module_factory: DaemonFactory, files: TLSFiles) -> Instance:
    return module_factory(*files.flags)


def https_address(nsqd: Instance) -> tuple[str, int]:
    line = re.compile(r" INFO: HTTPS: listening on (127\.0\.0\.1):(\d+)$", re.MULTILINE)
    found = eventually(lambda: line.search(nsqd.log()))
    return found[1], int(found[2])


def client_context(files: TLSFiles, identity: KeyPair | None = None) -> ssl.SSLContext:
    context = tls_context(files.authority, None, None, True)
    if identity is not None:
        context.load_cert_chain(*identity)
    return context


def connect(nsqd: Instance, context: ssl.SSLContext) -> ssl.SSLSocket:
    sock = open_socket(https_address(nsqd), DEADLINE)
    return context.wrap_socket(sock, server_hostname="127.0.0.1", suppress_ragged_eofs=False)


def ask_all(nsqd: Instance, context: ssl.SSLContext, data: bytes) -> list[tuple[int, str]]:
    """Returns the answers to `data` on one connection, without that to a last request, which ends it."""
    with connect(nsqd, context) as sock:
        sock.sendall(data + head("GET /ping", "Connection: close"))
        *answers, last = split_responses(read_all(sock))
    assert last == (200, "OK")
    return answers


def request(
    nsqd: Instance, context: ssl.SSLContext, what: str, body: bytes | None = None, headers: dict[str, str] | None = None
) -> tuple[int, http.client.HTTPMessage, bytes]:
    connection = http.client.HTTPSConnection(*https_address(nsqd), timeout=DEADLINE, context=context)
    method, target = what.split(" ", 1)
    try:
        connection.request(method, target, body, headers or {})
        response = connection.getresponse()
        return response.status, response.headers, response.read()
    finally:
        connection.close()


def post(target: str, body: bytes = b"") -> bytes:
    return head(f"POST {target}", f"Content-Length: {len(body)}") + body


# Requests


def test_one_connection_has_many_answers_and_long_bodies_come_whole(shared: Instance, files: TLSFiles) -> None:
    rows = [
        (head("GET /ping"), 200, "OK"),
        (head("OPTIONS *"), 200, ""),
        (post("/topic/create?topic=every"), 200, ""),
        (post("/pub?topic=every", b"x"), 200, "OK"),
        (post("/pub?topic=every"), 400, message("MSG_EMPTY")),
        (post("/mpub?topic=every", b"a\nb\n"), 200, "OK"),
    ]
    assert ask_all(shared, client_context(files), b"".join(row[0] for row in rows)) == [row[1:] for row in rows]
    assert shared.topic_stats("every")["message_count"] == 3
    status, _, body = request(shared, client_context(files), "POST /pub?topic=every", b"x" * 2_000_000)
    assert (status, body.decode()) == (413, message("MSG_TOO_BIG"))
    names = {f"long{number}" for number in range(400)}
    ask_all(shared, client_context(files), b"".join(post(f"/topic/create?topic={name}") for name in sorted(names)))
    status, headers, body = request(shared, client_context(files), "GET /stats?format=json")
    assert (status, headers["Transfer-Encoding"]) == (200, "chunked")
    assert len(body) > 65536
    assert names <= {topic["topic_name"] for topic in json.loads(body)["topics"]}


def test_headers_and_log_lines_are_those_of_plain_http(shared: Instance, files: TLSFiles) -> None:
    with connect(shared, client_context(files)) as sock:
        port = sock.getsockname()[1]
        sock.sendall(head("GET /ping?logged", "Connection: close"))
        read_all(sock)
    eventually(lambda: f" INFO: 200 GET /ping?logged (127.0.0.1:{port}) " in shared.log())
    for what in ("GET /ping", "GET /info", "GET /nope", "GET //ping", "POST /ping", "OPTIONS /ping", "POST /pub"):
        method, target = what.split(" ")
        status, headers, body = request(shared, client_context(files), what)
        plain_status, plain_headers, plain_body = shared.http(method, target)
        assert (status, body) == (plain_status, plain_body)
        assert {**headers, "Date": ""} == {**plain_headers, "Date": ""}, what


def test_client_that_offers_http_2_gets_http_1_1(shared: Instance, files: TLSFiles) -> None:
    context = client_context(files)
    context.set_alpn_protocols(["h2", "http/1.1"])
    with connect(shared, context) as sock:
        assert sock.selected_alpn_protocol() is None
        sock.sendall(head("GET /ping", "Connection: close"))
        assert read_all(sock).startswith(b"HTTP/1.1 200 OK\r\n")


# What is not TLS

HTTP = "client sent an HTTP request to an HTTPS server"
NO_RECORD = "tls: first record does not look like a TLS handshake"


@pytest.mark.parametrize(
    "data, reason",
    [
        (head("GET /ping"), HTTP),
        (head("HEAD /ping"), HTTP),
        (post("/pub?topic=t", b"x"), HTTP),
        (head("PUT /x"), HTTP),
        (head("OPTIONS *"), HTTP),
        (head("DELETE /ping"), NO_RECORD),
        (b"garbage\r\n", NO_RECORD),
        (b"  V2SUB t c\n", NO_RECORD),
        (b"", "EOF"),
        (b"GET", "unexpected EOF"),
    ],
)
def test_what_is_not_tls_is_logged_and_only_http_is_answered(shared: Instance, data: bytes, reason: str) -> None:
    with open_socket(https_address(shared), DEADLINE) as sock:
        port = sock.getsockname()[1]
        sock.sendall(data)
        if "EOF" in reason:
            sock.shutdown(socket.SHUT_WR)
        answer = read_all(sock)
    assert answer == NO_TLS if reason == HTTP else b"HTTP" not in answer
    eventually(lambda: f" http: TLS handshake error from 127.0.0.1:{port}: {reason}\n" in shared.log())


# Who may use it

PATHS = ["GET /ping", "GET /info", "GET /stats", "GET /nope", "GET //ping", "POST /ping", "OPTIONS /ping", "POST /pub"]


@pytest.mark.parametrize("value", ["false", "tcp-https", "true"])
def test_tls_required_closes_plain_http_only_when_true(
    nsqd_factory: DaemonFactory, files: TLSFiles, value: str
) -> None:
    nsqd = nsqd_factory(*files.flags, f"--tls-required={value}")
    assert request(nsqd, client_context(files), "GET /ping")[2] == b"OK"
    if value != "true":
        assert nsqd.http("GET", "/ping")[2] == b"OK"
        return
    refusal = f'{{"message": "TLS_REQUIRED", "https_port": {https_address(nsqd)[1]}}}'
    for what in PATHS:
        method, target = what.split(" ")
        status, headers, body = nsqd.http(method, target)
        found = status, headers["X-Nsq-Content-Type"], headers["Content-Type"], headers["Allow"], body.decode()
        assert found == (403, V1, JSON, None, refusal), what
    assert exchange(nsqd, post("/pub?topic=t", b"x") + head("OPTIONS *")) == [(403, refusal), (200, "")]
    assert json.loads(request(nsqd, client_context(files), "GET /stats?format=json")[2])["topics"] == []


def test_refusal_names_port_0_where_there_is_no_https(nsqd_factory: DaemonFactory, files: TLSFiles) -> None:
    nsqd = nsqd_factory(*files.flags, "--tls-required", "--https-address=")
    assert nsqd.http("GET", "/ping")[2] == b'{"message": "TLS_REQUIRED", "https_port": 0}'
    assert "HTTPS: " not in nsqd.log()


@pytest.mark.parametrize("policy", ["require", "require-verify"])
def test_client_needs_the_certificate_that_the_policy_asks_for(
    nsqd_factory: DaemonFactory, files: TLSFiles, policy: str
) -> None:
    nsqd = nsqd_factory(*files.flags, f"--tls-client-auth-policy={policy}")

    def refused(identity: KeyPair | None) -> str:
        # Nothing is sent, because that might meet a closed connection, and cost the client the alert.
        with pytest.raises(ssl.SSLError) as caught, connect(nsqd, client_context(files, identity)) as sock:
            sock.recv(1)
        return str(caught.value.reason)

    assert request(nsqd, client_context(files, files.signed), "GET /ping")[2] == b"OK"
    assert refused(None) == "TLSV13_ALERT_CERTIFICATE_REQUIRED"
    eventually(lambda: "tls: client didn't provide a certificate\n" in nsqd.log())
    if policy == "require":
        assert request(nsqd, client_context(files, files.unsigned), "GET /ping")[2] == b"OK"
    else:
        assert refused(files.unsigned) == "TLSV1_ALERT_UNKNOWN_CA"
    assert nsqd.http("GET", "/ping")[0] == 403  # the policy requires TLS


# The listener


def test_https_works_without_plain_http(nsqd_factory: DaemonFactory, files: TLSFiles) -> None:
    nsqd = nsqd_factory(*files.flags, "--http-address=", "--tls-required")
    info = json.loads(request(nsqd, client_context(files), "GET /info")[2])
    assert (info["http_port"], info["tcp_port"]) == (0, nsqd.tcp_address[1])
    assert " HTTP: listening" not in nsqd.log()


def test_without_a_certificate_there_is_no_https(nsqd_factory: DaemonFactory) -> None:
    assert "HTTPS: " not in nsqd_factory("--https-address=is not even looked at").log()


def test_exit_closes_the_listener_and_its_connections(nsqd_factory: DaemonFactory, files: TLSFiles) -> None:
    nsqd = nsqd_factory(*files.flags)
    with connect(nsqd, client_context(files)) as idle, open_socket(https_address(nsqd), DEADLINE) as stuck:
        idle.sendall(head("GET /ping"))
        assert idle.recv(65536).endswith(b"OK")
        stuck.sendall(HELLO)
        nsqd.send_signal(signal.SIGTERM)
        assert nsqd.wait() == 0
    host, port = https_address(nsqd)
    assert f" INFO: HTTPS: closing {host}:{port}\n" in nsqd.log()
