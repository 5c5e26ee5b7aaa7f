"""Answers that are too long, too slow, compressed or not what they seem, and whose certificate counts."""

import gzip
import ssl
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding
from gevent import Timeout, sleep
from gevent.server import StreamServer
from gevent.socket import socket

from gnsqd.cluster.http_client import GoHTTPClient
from gnsqd.options import MILLISECOND, SECOND
from gnsqd.shared.errors import HTTPClientError
from kit.auth_server import AuthServer, response
from kit.certificates import issue
from kit.daemons import DEADLINE

HTTP = Callable[[bytes], AuthServer]

LIMIT = 100_000
TOO_LONG = f"response body size is greater than limit ({LIMIT})"
GZIP = "Content-Encoding: gzip"


@pytest.fixture
def client() -> GoHTTPClient:
    return GoHTTPClient(60 * SECOND, 60 * SECOND, LIMIT)


def failure(client: GoHTTPClient, url: str) -> str:
    with Timeout(DEADLINE), pytest.raises(HTTPClientError) as caught:
        client.request(url)
    return str(caught.value)


def answers(size: int) -> list[bytes]:
    """Bodies of `size` bytes, in each form."""
    body = b"x" * size
    return [
        response(body),
        response(gzip.compress(body, mtime=0), "200 OK", GZIP),
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (size, body),
        b"HTTP/1.0 200 OK\r\n\r\n" + body,
    ]


@pytest.mark.parametrize("form", range(4))
def test_body_may_be_as_long_as_the_limit(client: GoHTTPClient, http: HTTP, form: int) -> None:
    assert client.request(f"http://{http(answers(LIMIT)[form]).address}/") == b"x" * LIMIT
    assert failure(client, f"http://{http(answers(LIMIT + 1)[form]).address}/") == TOO_LONG


def test_bomb_is_not_decompressed(client: GoHTTPClient, http: HTTP) -> None:
    bomb = gzip.compress(bytes(50_000_000))
    assert len(bomb) < LIMIT
    url = f"http://{http(response(bomb, '200 OK', GZIP)).address}/"
    tracemalloc.start()
    try:
        assert failure(client, url) == TOO_LONG
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("body", "why"), [(b"no gzip", "gzip: invalid header"), (gzip.compress(b"x" * 99, mtime=0)[:-9], "unexpected EOF")]
)
def test_body_not_compressed_as_it_says_is_refused(client: GoHTTPClient, http: HTTP, body: bytes, why: str) -> None:
    assert failure(client, f"http://{http(response(body, '200 OK', GZIP)).address}/") == why


# Time


def never(sock: socket) -> None:
    sock.recv(65536)
    sleep(DEADLINE)


def headers_only(sock: socket) -> None:
    sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n")
    sleep(DEADLINE)


def drop_by_drop(sock: socket) -> None:
    sock.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        sock.sendall(b" ")
        sleep(0.01)


def in_circles(sock: socket) -> None:
    sock.recv(65536)
    sleep(0.02)
    sock.sendall(response("", "302 Found", "Location: /"))


HEADERS, BODY = "exceeded while awaiting headers", "or context cancellation while reading body"


@pytest.mark.parametrize(
    ("scheme", "handle", "limit", "while_doing"),
    [
        ("http", never, 50 * MILLISECOND, HEADERS),
        ("https", never, 50 * MILLISECOND, HEADERS),
        ("http", headers_only, SECOND, BODY),
        ("http", drop_by_drop, SECOND, BODY),
        ("http", in_circles, 50 * MILLISECOND, HEADERS),
    ],
)
def test_request_timeout_covers_everything(
    scheme: str, handle: Callable[[socket], None], limit: int, while_doing: str
) -> None:
    server = StreamServer(("127.0.0.1", 0), lambda sock, _: handle(sock))
    server.start()
    text = failure(GoHTTPClient(60 * SECOND, limit, LIMIT), f"{scheme}://127.0.0.1:{server.server_port}/")
    server.stop()
    assert text.endswith(f"context deadline exceeded (Client.Timeout {while_doing})")


# Certificates


@pytest.mark.parametrize(
    ("host", "expired", "why"),
    [
        ("127.0.0.1", False, ""),
        ("127.0.0.2", False, "IP address mismatch"),
        ("127.0.0.1", True, "certificate has expired"),
    ],
)
@pytest.mark.parametrize("root", ["authority", "intermediate"])
def test_servers_certificate_is_verified(tmp_path: Path, root: str, host: str, expired: bool, why: str) -> None:
    authority = issue("authority", authority=True)
    intermediate = issue("intermediate", authority, authority=True)
    roots = {"authority": authority, "intermediate": intermediate}
    own = issue("server", intermediate, expired=expired).write(tmp_path / "server", intermediate)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*own)
    client = GoHTTPClient(60 * SECOND, 60 * SECOND, LIMIT, roots[root].certificate.public_bytes(Encoding.DER))
    with AuthServer(response("x"), context, host) as server:
        url = f"https://{server.address}/"
        if not why:
            assert client.request(url) == b"x"
            return
        assert failure(client, url).startswith(f'Get "{url}": tls: failed to verify certificate: x509: {why}')


def test_oldest_version_of_tls_is_the_options(tmp_path: Path) -> None:
    authority = issue("authority", authority=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*issue("server", authority).write(tmp_path / "server"))
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    roots = authority.certificate.public_bytes(Encoding.DER)
    with AuthServer(response("x"), context) as server:
        url = f"https://{server.address}/"
        for version in (ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_2):
            assert GoHTTPClient(60 * SECOND, 60 * SECOND, LIMIT, roots, version).request(url) == b"x"
        newest = GoHTTPClient(60 * SECOND, 60 * SECOND, LIMIT, roots, ssl.TLSVersion.TLSv1_3)
        assert failure(newest, url) == f'Get "{url}": tls: tlsv1 alert protocol version'
