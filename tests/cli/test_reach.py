"""The ways to a node: unix sockets, TLS and its files, nodes that move to TLS, nsqlookupds, and peers that drip."""

import json
import os
import socket
import ssl
import time
from pathlib import Path

import pytest

from cli import fake_nsqd
from cli.fake_nsqd import producer
from cli.gnsqadmin import FakeNode, document, failure, gnsqadmin, http_answer, ok
from cli.nodes import DOWN, Registered, address, at, at_lookupd, fill
from kit.certificates import Identity, issue
from kit.daemons import DEADLINE, free_port
from kit.traffic import DaemonFactory, create
from nsqadmin_cli.http_client import Address, NodeClient, NodeError


def topics(*args: str, **variables: str) -> list[str]:
    """Returns the topics in a document that is printed without trouble."""
    return [topic["topic_name"] for topic in json.loads(ok(*args, **variables))["totals"]["topics"]]


def error(*args: str, **variables: str) -> str:
    """Returns the one line of a run that fails, without the address."""
    code, _, err = gnsqadmin(*args, **variables)
    assert (code, err.count("\n")) == (1, 1), err
    return err.strip().partition(": ")[2].partition(": ")[2]


@pytest.fixture
def authority(tmp_path: Path) -> Identity:
    """Returns an authority whose certificate is in the file ca.pem."""
    identity = issue("Test Authority", authority=True)
    (tmp_path / "ca.pem").write_bytes(identity.cert_pem)
    return identity


def test_a_node_is_asked_over_tls(
    nsqd_factory: DaemonFactory, authority: Identity, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replaces the authorities of the system by one of one's own. A node that requires TLS says where it speaks it."""
    cert, key = issue("127.0.0.1", authority).write(tmp_path / "server")
    place, other = (f"127.0.0.1:{free_port()}" for _ in range(2))
    node = nsqd_factory(f"--tls-cert={cert}", f"--tls-key={key}", f"--https-address={place}")
    strict = nsqd_factory(f"--tls-cert={cert}", f"--tls-key={key}", f"--https-address={other}", "--tls-required")
    create(node, "t")
    ca, untrusted = str(tmp_path / "ca.pem"), "its certificate is not trusted: "
    stats = ("stats", "--json", *at(f"https://{place}"))
    assert topics(*stats, f"--tls-ca={ca}") == topics(*stats, "--tls-insecure") == ["t"]
    assert error(*stats).startswith(untrusted)
    assert error("stats", *at(f"https://{address(node)}")) == "does not speak TLS; is this an http address?"
    assert error("stats", *at(place)) == "answered HTTP 400 (Client sent an HTTP request to an HTTPS server.)"
    (tmp_path / "other.pem").write_bytes(issue("Other Authority", authority=True).cert_pem)
    assert error(*stats, f"--tls-ca={tmp_path / 'other.pem'}").startswith(untrusted)
    assert topics("stats", "--json", *at(strict), f"--tls-ca={ca}") == []
    assert error("stats", *at(strict)).startswith(untrusted)
    monkeypatch.setenv("SSL_CERT_FILE", ca)
    assert topics(*stats) == ["t"]
    with FakeNode(hangs=True) as silent:
        assert error("stats", "--timeout=0.4", *at(f"https://{silent.address}")) == "no complete answer within 0.4 s"


def test_a_client_certificate_is_shown(authority: Identity, tmp_path: Path) -> None:
    cert, key = issue("client", authority).write(tmp_path / "client")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*issue("127.0.0.1", authority).write(tmp_path / "server"))
    context.load_verify_locations(tmp_path / "ca.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    with FakeNode(http_answer(json.dumps(fake_nsqd.node()).encode()), tls=context) as node:
        stats = ("stats", "--json", *at(f"https://{node.address}"), f"--tls-ca={tmp_path / 'ca.pem'}")
        assert topics(*stats, f"--tls-cert={cert}", f"--tls-key={key}") == []
        assert "TLS failed" in error(*stats)


def test_a_unix_socket_is_asked_and_no_proxy_of_the_environment(nsqd_factory: DaemonFactory, tmp_path: Path) -> None:
    path = tmp_path / "http.sock"
    create(nsqd_factory(f"--http-address={path}"), "t")
    ok("stats", *at(nsqd_factory()), **dict.fromkeys(("http_proxy", "HTTP_PROXY", "ALL_PROXY"), f"http://{DOWN}"))
    for form in (f"unix:{path}", str(path)):
        assert topics("stats", "--json", *at(form)) == ["t"]
    assert failure("stats", *at(f"unix:{path}x")) == f"nsqd at unix:{path}x: no such file or directory"


@pytest.mark.peer
def test_nodes_are_found_by_nsqlookupd(cluster: Registered) -> None:
    """Finds them also while another nsqlookupd is down, and by commands that consume and publish."""
    for node in cluster.nodes:
        fill(node, "t", "c", count=20)
    cluster.wait_for_topic("t", channel="c")
    answer = document("stats", cluster.flag)
    assert [node["address"] for node in answer["nodes"]] == sorted(map(address, cluster.nodes))
    assert answer["totals"]["channel_count"] == 1
    code, out, err = gnsqadmin("stats", "--json", cluster.flag, *at_lookupd(DOWN))
    assert (code, err) == (1, f"Error: nsqlookupd at {DOWN}: connection refused\n")
    assert len(json.loads(out)["nodes"]) == 2
    assert gnsqadmin("stats", *at_lookupd(DOWN)) == (1, "", err)
    ok("copy", "t", "u", "--channel=c", cluster.flag.replace("--lookupd", "--to-lookupd"), cluster.flag)
    stats = [node.stats("u")["topics"] for node in cluster.nodes]
    assert sum(topic["message_count"] for topics in stats for topic in topics) == 40
    cluster.wait_for_topic("u", *(node for node, topics in zip(cluster.nodes, stats, strict=True) if topics))
    tailed = ok("tail", "u", "--yes", "-n40", cluster.flag).split()
    assert sorted(map(int, tailed)) == sorted([*range(20), *range(20)])


@pytest.mark.peer
def test_an_nsqlookupd_that_is_named_as_an_nsqd_is_recognised_and_the_other_way_round(cluster: Registered) -> None:
    lookupd, nsqd = cluster.lookupd.address["HTTP"], cluster.nodes[0]
    for words in ("stats", "pub t x", "topic pause t", "config get log_level", "drain status"):
        code, _, err = gnsqadmin(*words.split(), *at(lookupd))
        reason = f"Error: nsqd at {lookupd}: it is an nsqlookupd; name it with --lookupd-http-address"
        assert code == 1
        assert err.startswith(reason)
    for words in ("stats", "lookup", "topic create t"):
        code, _, err = gnsqadmin(*words.split(), *at_lookupd(nsqd))
        reason = f"nsqlookupd at {address(nsqd)}: it is an nsqd; name it with --nsqd-http-address\n"
        assert code == 1
        assert reason in err


def test_a_node_that_hangs_delays_what_is_read_from_others_by_less() -> None:
    """Gives the whole time to an answer that has begun, and to everything that changes something."""

    def drip(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\na")
        time.sleep(1.2)
        connection.sendall(b"b")

    with FakeNode(hangs=True) as silent, FakeNode(drip) as slow, fake_nsqd.StatsNsqd(fake_nsqd.node()) as fine:
        client = NodeClient(2.0, patience=1.0)
        assert client.answer(Address.parse(slow.address), "GET", "/stats")[1] == b"ab"
        for method, limit in (("GET", "1 s"), ("POST", "2 s")):
            with pytest.raises(NodeError, match=f"no complete answer within {limit}"):
                client.answer(Address.parse(silent.address), method, "/topic/create")
        assert error("stats", *at(fine, silent), GNSQADMIN_TIMEOUT="") == "no complete answer within 1.5 s"
        assert error("stats", "--timeout=2.5", *at(fine, silent)) == "no complete answer within 2.5 s"
        # Nobody else waits.
        assert error("stats", *at(silent), GNSQADMIN_TIMEOUT="") == "no complete answer within 5 s"


def test_connections_are_kept_for_the_next_request() -> None:
    with fake_nsqd.StatsNsqd(fake_nsqd.node()) as nsqd:
        client = NodeClient(DEADLINE)
        for _ in range(3):
            assert client.answer(Address.parse(nsqd.address), "GET", "/ping")[1] == b'"OK"'
    assert (len(nsqd.asked), len(nsqd.peers)) == (3, 1)


def test_nodes_that_require_a_token_get_the_one_of_the_file(gnsqd_factory: DaemonFactory, tmp_path: Path) -> None:
    read, full, of_topics = (tmp_path / name for name in ("read", "full", "topics"))
    read.write_text("reads-figures-0001\n")
    full.write_text("does-everything-0001\n")
    of_topics.write_text("manages-a-topic-0001 manage:v* read:*\n")
    files = (f"read:{read}", f"full:{full}", f"read:{of_topics}")
    node = at(gnsqd_factory(*(f"--http-auth-token-file={file}" for file in files)))
    ok("topic", "create", "t", *node, f"--token-file={full}")
    assert topics("stats", "--json", *node, GNSQADMIN_TOKEN_FILE=str(read)) == ["t"]
    needed = "it requires the token of a --token-file, or the certificate of a --tls-cert"
    assert error("stats", *node) == f"answered HTTP 401 (UNAUTHORIZED): {needed}"
    refused = "the token of --token-file, or the certificate of --tls-cert, does not permit it"
    line = error("topic", "create", "u", *node, f"--token-file={read}")
    assert line == f"answered HTTP 403 (FORBIDDEN): {refused}"
    ok("topic", "create", "v2", *node, f"--token-file={of_topics}")
    ok("topic", "delete", "v2", "--yes", *node, f"--token-file={of_topics}")
    assert refused in error("topic", "create", "u", *node, f"--token-file={of_topics}")
    home = {"GNSQADMIN_CONFIG": str(tmp_path / "config.toml")}
    context = ("context", "set", "prod", *node, f"--token-file={os.path.relpath(full)}")
    assert gnsqadmin(*context, **home).code == 0
    [saved] = json.loads(ok("context", "list", "--json", **home))["contexts"]
    assert saved["token_file"] == str(full)
    assert topics("stats", "--json", **home) == ["t"]


def test_only_nodes_that_are_named_get_the_token(tmp_path: Path) -> None:
    """Sends it neither to an nsqlookupd nor to what it lists, nor where a node redirects to."""
    file = tmp_path / "token"
    file.write_text("does-everything-0001\n")
    refusal = http_answer(b'{"message":"UNAUTHORIZED"}', "401 Unauthorized")
    with FakeNode(refusal) as node, FakeNode(refusal) as listed, FakeNode() as other:
        redirect = b"HTTP/1.1 307 Temporary Redirect\r\nContent-Length: 0\r\nLocation: http://%s/stats\r\n\r\n"
        redirecting = FakeNode(redirect % other.address.encode())
        producers = [producer(int(one.address.split(":")[1])) for one in (node, listed)]
        with redirecting, FakeNode(http_answer(json.dumps({"producers": producers}).encode())) as lookupd:
            flags = [*at_lookupd(lookupd), *at(node, redirecting), f"--token-file={file}"]
            _, _, err = gnsqadmin("stats", *flags)
            gnsqadmin("topic", "pause", "t", *flags)
            gnsqadmin("pub", "t", "x", *flags)
    unsent = f"it was not sent the token, as an nsqlookupd listed it; name it with {at(listed)[0]}"
    assert f"Error: nsqd at {listed.address}: answered HTTP 401 (UNAUTHORIZED): {unsent}\n" in err
    assert f"Error: nsqd at {node.address}: answered HTTP 401 (UNAUTHORIZED): it requires the token" in err
    assert all(one.requests for one in (lookupd, listed, node, redirecting))
    assert not any(b"does-everything" in request for one in (lookupd, listed) for request in one.requests)
    assert all(b"Authorization: Bearer does-everything-0001\r\n" in request for request in node.requests)
    assert not other.requests


@pytest.mark.parametrize(
    "option, missing, bad, contents",
    [
        ("--token-file", "cannot read the token in {}", "the first line of {} is not a token",
         (b"", b"\n", b"two words", b"a\0b", b"\xff" * 20, b"x: y")),
        *((option, "cannot use {} for TLS", "cannot use {} for TLS: ", (b"x", b"\0" * 10))
          for option in ("--tls-ca", "--tls-cert")),
    ],
)  # fmt: skip
def test_a_bad_file_of_a_token_or_for_tls_is_one_line_of_error(
    tmp_path: Path, option: str, missing: str, bad: str, contents: tuple[bytes, ...]
) -> None:
    file = tmp_path / "file"
    use = ("stats", *at("https://127.0.0.1:1"), f"{option}={file}")
    assert failure(*use) == f"{missing.format(file)}: no such file or directory"
    for content in contents:
        file.write_bytes(content)
        assert failure(*use).startswith(bad.format(file))
