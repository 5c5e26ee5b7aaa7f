"""The ways to a node: unix sockets, TLS and its files, nodes that move to TLS, nsqlookupds, and peers that drip."""

import contextlib
import json
import os
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.fake_nsqd import producer
from cli.gnsqadmin import FakeNode, Result, gnsqadmin, http_answer
from cli.nodes import Cluster, address
from conftest import DaemonFactory
from kit.certificates import Identity, issue
from kit.daemons import DEADLINE, Daemon, free_port
from kit.traffic import create
from nsqadmin_cli.http_client import Address, HTTPClient


def topics(result: Result) -> list[str]:
    """Names of the topics in a document that was printed without trouble."""
    assert (result.code, result.err) == (0, "")
    return [topic["topic_name"] for topic in json.loads(result.out)["totals"]["topics"]]


def error(result: Result) -> str:
    """The one line of a run that failed, without the address."""
    assert result.code == 1, result
    assert result.err.count("\n") == 1
    return result.err.strip().partition(": ")[2].partition(": ")[2]


@pytest.fixture
def authority() -> Identity:
    return issue("Test Authority", authority=True)


@pytest.fixture
def https(nsqd_factory: DaemonFactory, authority: Identity, tmp_path: Path) -> tuple[Daemon, str, str]:
    """A node with a topic that speaks HTTPS too: the daemon, its HTTPS address, and its authority's file."""
    cert, key = issue("127.0.0.1", authority).write(tmp_path / "server")
    (tmp_path / "ca.pem").write_bytes(authority.cert_pem)
    at = f"127.0.0.1:{free_port()}"
    node = nsqd_factory(f"--tls-cert={cert}", f"--tls-key={key}", f"--https-address={at}")
    create(node, "t")
    return node, at, str(tmp_path / "ca.pem")


def test_a_node_is_asked_over_tls(https: tuple[Daemon, str, str]) -> None:
    _, at, ca = https
    option = f"--nsqd-http-address=https://{at}"
    assert topics(gnsqadmin("stats", "--json", option, f"--tls-ca={ca}")) == ["t"]
    assert topics(gnsqadmin("stats", "--json", option, "--tls-insecure")) == ["t"]
    assert error(gnsqadmin("stats", option)).startswith("its certificate is not trusted: ")


def test_a_node_that_wants_tls_is_asked_where_it_says(
    nsqd_factory: DaemonFactory, authority: Identity, tmp_path: Path
) -> None:
    cert, key = issue("127.0.0.1", authority).write(tmp_path / "server")
    (tmp_path / "ca.pem").write_bytes(authority.cert_pem)
    node = nsqd_factory(
        f"--tls-cert={cert}", f"--tls-key={key}", "--tls-required", f"--https-address=127.0.0.1:{free_port()}"
    )
    option = f"--nsqd-http-address={address(node)}"
    assert topics(gnsqadmin("stats", "--json", option, f"--tls-ca={tmp_path / 'ca.pem'}")) == []
    assert error(gnsqadmin("stats", option)).startswith("its certificate is not trusted: ")


def test_a_client_certificate_is_shown(authority: Identity, tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_bytes(authority.cert_pem)
    server, client = issue("127.0.0.1", authority), issue("client", authority)
    cert, key = client.write(tmp_path / "client")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*server.write(tmp_path / "server"))
    context.load_verify_locations(tmp_path / "ca.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    document = {"version": "1.3.0", "health": "OK", "start_time": 1, "topics": []}

    def answer(connection: socket.socket) -> None:
        connection.sendall(http_answer(json.dumps(document).encode()))

    with FakeNode(answer, tls=context) as node:
        at = [f"--nsqd-http-address=https://{node.address}", f"--tls-ca={tmp_path / 'ca.pem'}", "--json"]
        assert topics(gnsqadmin("stats", *at, f"--tls-cert={cert}", f"--tls-key={key}")) == []
        assert "TLS failed" in error(gnsqadmin("stats", *at))


def test_plain_http_at_an_https_address_and_the_other_way_round(https: tuple[Daemon, str, str]) -> None:
    node, at, _ = https
    assert error(gnsqadmin("stats", f"--nsqd-http-address=https://{address(node)}")) == (
        "does not speak TLS; is this an http address?"
    )
    assert error(gnsqadmin("stats", f"--nsqd-http-address={at}")) == (
        "answered HTTP 400 (Client sent an HTTP request to an HTTPS server.)"
    )


def test_an_authority_of_ones_own_replaces_those_of_the_system(
    https: tuple[Daemon, str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, at, ca = https
    monkeypatch.setenv("SSL_CERT_FILE", ca)
    option = f"--nsqd-http-address=https://{at}"
    assert topics(gnsqadmin("stats", "--json", option)) == ["t"]
    other = tmp_path / "other.pem"
    other.write_bytes(issue("Other Authority", authority=True).cert_pem)
    distrusted = error(gnsqadmin("stats", option, f"--tls-ca={other}"))
    assert distrusted.startswith("its certificate is not trusted: ")


@pytest.mark.parametrize("option", ["--tls-ca", "--tls-cert"])
@pytest.mark.parametrize("content, reason", [(None, "no such file or directory"), (b"x", ""), (b"\0" * 10, "")])
def test_a_bad_tls_file_is_one_line_of_error(tmp_path: Path, option: str, content: bytes | None, reason: str) -> None:
    file = tmp_path / "file.pem"
    if content is not None:
        file.write_bytes(content)
    err = failure("stats", "--nsqd-http-address=https://127.0.0.1:1", f"{option}={file}")
    assert err.startswith(f"Error: cannot use {file} for TLS: {reason}")


def test_a_unix_socket_is_asked(nsqd_factory: DaemonFactory, tmp_path: Path) -> None:
    path = tmp_path / "http.sock"
    node = nsqd_factory(f"--http-address={path}")
    create(node, "t")
    for form in (f"unix:{path}", str(path)):
        assert topics(gnsqadmin("stats", "--json", "--nsqd-http-address", form)) == ["t"]
    missing = gnsqadmin("stats", "--nsqd-http-address", f"unix:{path}x")
    assert missing == (1, "", f"Error: nsqd at unix:{path}x: no such file or directory\n")


@pytest.mark.peer
def test_nodes_are_found_by_nsqlookupd(cluster: Cluster) -> None:
    create(cluster.nodes[0], "t", "c")
    document = json.loads(gnsqadmin("stats", "--json", cluster.flag).out)
    assert [node["address"] for node in document["nodes"]] == sorted(map(address, cluster.nodes))
    assert document["totals"]["channel_count"] == 1


@pytest.mark.peer
@pytest.mark.parametrize("words", ["stats", "pub t x", "topic pause t", "config get log_level", "drain status"])
def test_an_nsqlookupd_that_is_named_as_an_nsqd_is_recognised(cluster: Cluster, words: str) -> None:
    lookupd = cluster.lookupd.address["HTTP"]
    result = gnsqadmin(*words.split(), f"--nsqd-http-address={lookupd}")
    assert result.code == 1
    told = f"Error: nsqd at {lookupd}: it is an nsqlookupd; name it with --lookupd-http-address"
    assert result.err.splitlines()[0].startswith(told)


@pytest.mark.parametrize("words", ["stats", "lookup", "topic create t"])
def test_an_nsqd_that_is_named_as_an_nsqlookupd_is_recognised(nsqd: Daemon, words: str) -> None:
    result = gnsqadmin(*words.split(), f"--lookupd-http-address={address(nsqd)}")
    assert result.code == 1
    assert f"nsqlookupd at {address(nsqd)}: it is an nsqd; name it with --nsqd-http-address\n" in result.err


@pytest.mark.peer
def test_an_nsqlookupd_that_is_down_leaves_the_nodes_of_the_others_shown(cluster: Cluster) -> None:
    result = gnsqadmin("stats", "--json", cluster.flag, *at_lookupd(DOWN))
    assert (result.code, result.err) == (1, f"Error: nsqlookupd at {DOWN}: connection refused\n")
    assert len(json.loads(result.out)["nodes"]) == 2
    alone = gnsqadmin("stats", *at_lookupd(DOWN))
    assert alone == (1, "", result.err)


def test_a_lying_nsqlookupd_is_one_line_of_error() -> None:
    producer = {
        "remote_address": "x",
        "hostname": "x",
        "broadcast_address": "a\r\nX: y",
        "tcp_port": 1,
        "http_port": 2,
        "version": "1.3.0",
    }
    with FakeNode(http_answer(json.dumps({"producers": [producer]}).encode())) as lookupd:
        code, out, err = gnsqadmin("stats", f"--lookupd-http-address={lookupd.address}")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert err.startswith(rf"Error: nsqlookupd at {lookupd.address}: lists a node at '[a\r\nX: y]:2': ")


def test_tls_that_hangs_in_its_handshake_is_given_up_after_the_timeout() -> None:
    with FakeNode(hangs=True) as silent:
        at = f"https://{silent.address}"
        result = gnsqadmin("stats", "--timeout=0.4", "--nsqd-http-address", at)
        assert result == (1, "", f"Error: nsqd at {at}: no complete answer within 0.4 s\n")


@pytest.mark.parametrize("words", ["stats", "pub t x"])
def test_headers_that_drip_end_with_the_timeout(words: str) -> None:
    over = threading.Event()

    def drip(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nX: ")
        with contextlib.suppress(OSError):
            while not over.wait(0.02):
                connection.sendall(b"x")

    with FakeNode(drip) as dripping:
        result = gnsqadmin(*words.split(), "--timeout=0.3", *at(dripping))
        over.set()
    assert result.code == 1
    assert result.err.startswith(f"Error: nsqd at {dripping.address}: no complete answer within 0.3 s")


@pytest.fixture
def keeping() -> Iterator[tuple[str, list[int]]]:
    """A server that keeps its connections: its address, and for each connection the requests that it took."""
    listener = socket.create_server(("127.0.0.1", 0))
    taken: list[int] = []

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            taken.append(0)
            with connection:
                while connection.recv(65536):
                    taken[-1] += 1
                    connection.sendall(http_answer(b"OK", connection="keep-alive"))

    threading.Thread(target=serve, daemon=True).start()
    yield f"127.0.0.1:{listener.getsockname()[1]}", taken
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()


def test_connections_are_kept_for_the_next_request(keeping: tuple[str, list[int]]) -> None:
    at, taken = keeping
    client = HTTPClient(DEADLINE)
    for _ in range(3):
        assert client.answer(Address.parse(at), "GET", "/ping")[1] == b"OK"
    assert taken == [3]


def test_proxies_of_the_environment_are_not_used(nsqd: Daemon) -> None:
    proxy = f"http://127.0.0.1:{free_port()}"
    variables: dict[str, Any] = {"http_proxy": proxy, "HTTP_PROXY": proxy, "ALL_PROXY": proxy}
    assert gnsqadmin("stats", f"--nsqd-http-address={address(nsqd)}", **variables).code == 0


def test_any_number_of_nodes_is_asked_at_once() -> None:
    document = {"version": "1.3.0", "health": "OK", "start_time": 1, "topics": []}
    with contextlib.ExitStack() as stack:
        nodes = [stack.enter_context(FakeNode(http_answer(json.dumps(document).encode()))) for _ in range(40)]
        flags = at(*nodes)
        result = gnsqadmin("nodes", "--json", *flags, f"--timeout={DEADLINE}")
    assert (result.code, result.err) == (0, "")
    assert [node["address"] for node in json.loads(result.out)["nodes"]] == [node.address for node in nodes]


def test_nodes_that_want_a_token_get_the_one_of_the_file(gnsqd_factory: DaemonFactory, tmp_path: Path) -> None:
    read, full = tmp_path / "read", tmp_path / "full"
    read.write_text("reads-figures-0001\n")
    full.write_text("does-everything-0001\n")
    node = gnsqd_factory(f"--http-auth-token-file=read:{read}", f"--http-auth-token-file=full:{full}")
    at = f"--nsqd-http-address={address(node)}"
    assert gnsqadmin("topic", "create", "t", at, f"--token-file={full}").code == 0
    assert topics(gnsqadmin("stats", "--json", at, GNSQADMIN_TOKEN_FILE=str(read))) == ["t"]
    assert error(gnsqadmin("stats", at)) == (
        "answered HTTP 401 (UNAUTHORIZED): it requires the token of a --token-file, or the certificate of a --tls-cert"
    )
    refused = gnsqadmin("topic", "create", "u", at, f"--token-file={read}")
    assert error(refused) == (
        "answered HTTP 403 (FORBIDDEN): the token of --token-file, or the certificate of --tls-cert, does not permit it"
    )
    home = {"GNSQADMIN_CONFIG": str(tmp_path / "config.toml")}
    assert gnsqadmin("context", "set", "prod", at, f"--token-file={os.path.relpath(full)}", **home).code == 0
    assert json.loads(gnsqadmin("context", "list", "--json", **home).out)["contexts"][0]["token_file"] == str(full)
    assert topics(gnsqadmin("stats", "--json", **home)) == ["t"]


def test_only_nodes_that_are_named_get_the_token(tmp_path: Path) -> None:
    """Neither an nsqlookupd nor what it lists, nor where a node redirects to."""
    file = tmp_path / "token"
    file.write_text("does-everything-0001\n")
    refusal = http_answer(b'{"message":"UNAUTHORIZED"}', "401 Unauthorized")
    with FakeNode(refusal) as node, FakeNode(refusal) as listed, FakeNode() as other:
        redirect = b"HTTP/1.1 307 Temporary Redirect\r\nContent-Length: 0\r\nLocation: http://%s/stats\r\n\r\n"
        redirecting = FakeNode(redirect % other.address.encode())
        producers = [producer(int(one.address.split(":")[1])) for one in (node, listed)]
        with redirecting, FakeNode(http_answer(json.dumps({"producers": producers}).encode())) as lookupd:
            named = at(node, redirecting)
            flags = [f"--lookupd-http-address={lookupd.address}", *named, f"--token-file={file}"]
            result = gnsqadmin("stats", *flags)
            gnsqadmin("topic", "pause", "t", *flags)
            gnsqadmin("pub", "t", "x", *flags)
    assert (
        f"Error: nsqd at {listed.address}: answered HTTP 401 (UNAUTHORIZED): it was not sent the token, as an "
        f"nsqlookupd listed it; name it with --nsqd-http-address={listed.address}"
    ) in result.err.splitlines()
    assert f"Error: nsqd at {node.address}: answered HTTP 401 (UNAUTHORIZED): it requires the token" in result.err
    assert lookupd.requests
    assert listed.requests
    assert not any(b"does-everything" in request for one in (lookupd, listed) for request in one.requests)
    assert all(b"Authorization: Bearer does-everything-0001\r\n" in request for request in node.requests)
    assert node.requests
    assert redirecting.requests
    assert not other.requests


@pytest.mark.parametrize("content", [None, b"", b"\n", b"two words", b"a\0b", b"\xff" * 20, b"x: y"])
def test_a_bad_token_file_is_one_line_of_error(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_bytes(content)
    code, out, err = gnsqadmin("stats", "--nsqd-http-address=127.0.0.1:1", f"--token-file={file}")
    reason = f"cannot read the token in {file}: no such file or directory"
    assert (code, out) == (1, "")
    assert err == f"Error: {reason if content is None else f'the first line of {file} is not a token'}\n"
