"""Connections, over real sockets: time limits, the end, and what is kept of them. What is answered on them is judged in
behaviour/test_http_connections and test_https."""

import gc
import io
import re
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path

import gevent
import gevent.ssl
import pytest
from gevent.socket import create_connection, socket

from gnsqd.log import Level, Logger
from gnsqd.net.listener import Listener
from gnsqd.net.tls import TLSLayer, build_context
from gnsqd.options import Options
from gnsqd.web import server
from gnsqd.web.http11 import Request, RequestReader
from gnsqd.web.routes import HTTPError, Route, Router
from gnsqd.web.server import HTTPServer
from kit.certificates import issue
from kit.daemons import DEADLINE

ROWS = (
    Route("GET", "/ping", "ping", v1=False, logged=False, on_hub=True),
    Route("GET", "/large", "large", v1=False, logged=False),
    Route("POST", "/pub", "pub", v1=False, body="max_msg_size", logged=False, on_hub=True),
    Route("POST", "/refuse", "refuse", v1=False, body="max_msg_size", logged=False),
)
PING = b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n"


class SmallAPI:
    def ping(self, request: Request) -> str:
        return "OK"

    def large(self, request: Request) -> str:
        return "x" * (1 << 20)

    def pub(self, request: Request) -> str:
        return str(len(request.body))

    def refuse(self, request: Request) -> str:
        raise HTTPError(400, "REFUSED")


class Running:
    """A server on a free port, in this very process."""

    def __init__(self, new_tls: Callable[[], TLSLayer] | None = None) -> None:
        self.log = io.StringIO()
        self.greenlets: list[gevent.Greenlet[..., None]] = []
        log = Logger("", Level.INFO, self.log)
        listener = Listener("127.0.0.1:0")
        self.address = ("127.0.0.1", listener.port)
        router = Router(SmallAPI(), Options(), log, ROWS)
        self.server = HTTPServer(listener, router, 0, 0, log, self.spawn, new_tls)
        self.accepting = gevent.spawn(self.server.serve)
        self.clients: list[socket] = []

    def spawn(self, name: str, body: Callable[[], None]) -> "gevent.Greenlet[..., None]":
        greenlet = gevent.spawn(body)
        self.greenlets.append(greenlet)
        return greenlet

    def connect(self) -> socket:
        client = create_connection(self.address, timeout=DEADLINE)
        self.clients.append(client)
        return client

    def ends(self) -> None:
        """Waits until every connection's greenlet is over."""
        gevent.joinall(self.greenlets, timeout=DEADLINE, raise_error=True)
        assert all(greenlet.dead for greenlet in self.greenlets)


def watch(it: Running) -> Iterator[Running]:
    yield it
    for client in it.clients:
        client.close()
    it.server.close()
    it.accepting.join(DEADLINE)
    assert it.accepting.successful()
    it.ends()
    assert "Traceback" not in it.log.getvalue()


@pytest.fixture
def running() -> Iterator[Running]:
    yield from watch(Running())


@pytest.fixture
def secure(tmp_path: Path) -> Iterator[Running]:
    cert, key = issue("server").write(tmp_path / "server")
    context = build_context(Options(tls_cert=cert, tls_key=key))
    assert context is not None
    yield from watch(Running(partial(TLSLayer, context)))


def read_responses(client: socket, count: int) -> list[bytes]:
    bodies: list[bytes] = []
    data = b""
    while len(bodies) < count:
        found = re.match(rb"HTTP/1\.[01] 200 OK\r\n(?:.+\r\n)*?Content-Length: (\d+)\r\n(?:.+\r\n)*?\r\n", data)
        if found and len(data) >= found.end() + int(found[1]):
            end = found.end() + int(found[1])
            bodies.append(data[found.end() : end])
            data = data[end:]
            continue
        more = client.recv(65536)
        assert more, data
        data += more
    assert not data
    return bodies


def read_all(client: socket) -> bytes:
    data = b""
    with suppress(ConnectionError):
        while more := client.recv(65536):
            data += more
    return data


@contextmanager
def dripping(client: socket) -> Iterator[None]:
    """Sends a byte now and then meanwhile."""

    def drip() -> None:
        while True:
            client.sendall(b"x")
            gevent.sleep(0.005)

    greenlet = gevent.spawn(drip)
    try:
        yield
    finally:
        greenlet.kill()


def post(size: int, *headers: bytes) -> bytes:
    return b"\r\n".join([b"POST /pub HTTP/1.1", b"Host: x", b"Content-Length: %d" % size, *headers, b"", b""])


@pytest.mark.parametrize("limit, value", [("BATCH_BYTES", 1000), ("CLIENT_TURN_SECONDS", 0.0)])
def test_others_have_turns_between_the_answers_of_a_client_that_pipelines(
    running: Running, monkeypatch: pytest.MonkeyPatch, limit: str, value: float
) -> None:
    turns: list[None] = []
    monkeypatch.setattr(server, limit, value)
    monkeypatch.setattr(server, "yield_turn", lambda: turns.append(None))
    client = running.connect()
    client.sendall(PING * 100)
    assert read_responses(client, 100) == [b"OK"] * 100
    assert len(turns) >= 5


@pytest.mark.parametrize("drips", [False, True])
@pytest.mark.parametrize("beginning", [b"GET /pi", PING + b"GET /ping HTTP/1.1\r\nA: ", post(1_000_000) + b"a"])
def test_request_that_does_not_get_on_ends_its_connection(
    running: Running, monkeypatch: pytest.MonkeyPatch, beginning: bytes, drips: bool
) -> None:
    monkeypatch.setattr(server, "REQUEST_TIMEOUT", 0.1)
    client = running.connect()
    client.sendall(beginning)
    with dripping(client) if drips else nullcontext():
        assert read_all(client).count(b"200 OK") == beginning.count(PING)
    running.ends()


def test_connection_may_idle_longer_than_a_request(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "REQUEST_TIMEOUT", 1.0)
    idle, late = running.connect(), running.connect()
    for client in (idle, late):
        client.sendall(PING + PING[:5])
        assert read_responses(client, 1) == [b"OK"]
    idle.sendall(PING[5:])
    assert read_responses(idle, 1) == [b"OK"]
    assert read_all(late) == b""
    idle.sendall(PING)
    assert read_responses(idle, 1) == [b"OK"]


def test_body_that_keeps_coming_has_time_for_all_of_it(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "REQUEST_TIMEOUT", 0.3)
    monkeypatch.setattr(server, "SLOWEST_BODY", 1)
    client = running.connect()
    client.sendall(post(2000))
    for _ in range(10):  # for longer than the timeout
        client.sendall(b"x" * 200)
        gevent.sleep(0.05)
    assert read_responses(client, 1) == [b"2000"]


def test_last_answer_is_followed_by_the_end_at_once(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "LINGER_SECONDS", 2 * DEADLINE)
    client = running.connect()
    client.sendall(b"garbage\r\n\r\n")
    assert read_all(client).endswith(b"400 Bad Request")


@pytest.mark.parametrize(
    "data",
    [
        PING,
        b"POST /refuse HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx",
        post(9) + b"x",
        b"POST /refuse HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nx",
        b"GET /ping HTTP/1.1\r\nHost",
        b"garbage\r\n\r\n",
        b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n" * 20,
    ],
    ids=["whole", "refused", "half a body", "half a body, refused", "half a head", "garbage", "not read"],
)
def test_nothing_of_an_ended_connection_waits_for_the_garbage_collector(running: Running, data: bytes) -> None:
    def alive() -> int:
        return sum(isinstance(one, Request | RequestReader) for one in gc.get_objects())

    def serve() -> None:
        client = running.connect()
        client.sendall(data)
        client.close()
        last = running.connect()  # accepted after the other
        last.sendall(PING)
        assert read_responses(last, 1) == [b"OK"]
        last.close()
        running.ends()

    serve()  # now all heads are known that may be
    gc.collect()
    gc.disable()
    try:
        before = alive()
        serve()
        assert alive() == before
    finally:
        gc.enable()


@pytest.mark.parametrize("headers", [(), (b"Authorization: Bearer secret",)], ids=["known head", "secret"])
def test_a_connection_that_waits_keeps_no_body_and_no_secret(running: Running, headers: tuple[bytes, ...]) -> None:
    client = running.connect()
    for _ in range(3):
        client.sendall(post(6, *headers) + b"unique")
        assert read_responses(client, 1) == [b"6"]
    gevent.idle()  # the connection waits again
    requests = [one for one in gc.get_objects() if isinstance(one, Request)]
    assert not [one for one in requests if one.body == b"unique" or b"authorization" in one.headers]


# TLS


def client_hello() -> bytes:
    outgoing = ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="x").do_handshake()
    return outgoing.read()


@pytest.mark.parametrize(
    "beginning, drips",
    [(b"", False), (b"GE", False), (client_hello(), False), (b"\x16\x03\x01\x40\x00\x01\x00\x3f\xfc", True)],
    ids=["nothing", "HTTP", "hello", "drop by drop"],
)
def test_client_that_stalls_in_the_handshake_is_disconnected(
    secure: Running, monkeypatch: pytest.MonkeyPatch, beginning: bytes, drips: bool
) -> None:
    monkeypatch.setattr(server, "HANDSHAKE_TIMEOUT", 0.1)
    client = secure.connect()
    client.sendall(beginning)
    with dripping(client) if drips else nullcontext():
        assert b"HTTP" not in read_all(client)
    secure.ends()
    reason = r"http: TLS handshake error from 127\.0\.0\.1:\d+: read tcp .*: i/o timeout"
    assert re.search(reason, secure.log.getvalue())


def test_connection_may_idle_longer_than_a_handshake(secure: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "HANDSHAKE_TIMEOUT", 1.0)
    context = gevent.ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    idle = context.wrap_socket(secure.connect())
    late = secure.connect()  # the handshake of `idle` was begun before
    assert read_all(late) == b""
    idle.sendall(PING)
    assert read_responses(idle, 1) == [b"OK"]
    idle.close()


def test_close_ends_connections_in_the_handshake_at_once(secure: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gnsqd.net.listener.CLOSE_SECONDS", 2 * DEADLINE)
    monkeypatch.setattr(server, "HANDSHAKE_TIMEOUT", 2 * DEADLINE)
    silent, begun, last = secure.connect(), secure.connect(), secure.connect()
    begun.sendall(client_hello()[:11])
    last.sendall(PING)
    assert b"HTTPS server" in read_all(last)  # so the others have also been accepted
    gevent.spawn(secure.server.close).get(timeout=DEADLINE)
    assert [read_all(client) for client in (silent, begun)] == [b"", b""]
    secure.ends()
    assert secure.log.getvalue().count("handshake error") == 1
