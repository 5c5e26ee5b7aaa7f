"""The limits of contrib/docs/security.md, each brought about: what is too much is refused, and others are served.

What comes without end, in halves or as garbage is in test_bad_clients.py, and in behaviour/ where it needs no crowd.
"""

import resource
import socket
import threading
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from behaviour.test_https import https_address
from kit.certificates import issue
from kit.daemons import DEADLINE, Instance, eventually, open_socket
from kit.http_api import exchange, head, read_all, split_responses
from kit.nsq_client import NSQClient, sized
from kit.observers import resident_bytes, served, sockets
from kit.traffic import DaemonFactory, create, post, publish, take

MB = 1 << 20
CROWD = 5000
PER_CONNECTION = 32 * 1024  # bytes; 13 KB is what they take


# Connections


_limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)  # of this process, and of the daemon it starts


@pytest.mark.skipif(_limit < 2 * CROWD, reason=f"no more than {_limit} files may be open")
def test_thousands_of_connections_come_at_once_and_cost_little(gnsqd: Instance) -> None:
    with served(gnsqd) as good, ExitStack() as stack:
        before = 4  # the listeners, and the good clients
        eventually(lambda: sockets(gnsqd) == before)
        memory = resident_bytes(gnsqd)
        for number in range(CROWD):
            http = number % 5 == 0
            sock = stack.enter_context(open_socket(gnsqd.http_address if http else gnsqd.tcp_address, DEADLINE))
            sock.sendall(b"GET /pi" if http else b"  V2")
        eventually(lambda: sockets(gnsqd) == before + CROWD)
        good.go_on(20)
        grown = resident_bytes(gnsqd) - memory
    assert grown < CROWD * PER_CONNECTION
    eventually(lambda: sockets(gnsqd) == 2)


@pytest.mark.parametrize("kind", ["TCP", "HTTP", "HTTPS"])
def test_one_connection_too_many_is_closed(gnsqd_factory: DaemonFactory, tmp_path: Path, kind: str) -> None:
    cert, key = issue("server").write(tmp_path / "server")
    flags = ["--max-tcp-connections=3", "--max-http-connections=3"]
    gnsqd = gnsqd_factory(*flags, f"--tls-cert={cert}", f"--tls-key={key}")
    addresses = {"TCP": gnsqd.tcp_address, "HTTP": gnsqd.http_address, "HTTPS": https_address(gnsqd)}

    def connect() -> socket.socket:
        return open_socket(addresses[kind], DEADLINE)

    listeners = 3
    eventually(lambda: sockets(gnsqd) == listeners)
    inside = [connect() for _ in range(3)]
    for _ in range(5):
        with connect() as outside:
            assert read_all(outside) == b""
    # The others of the daemon's doors are open, and those inside are served.
    for other in {"TCP", "HTTP"} - {kind}:
        open_socket(addresses[other], DEADLINE).close()
    if kind == "TCP":
        inside[0].sendall(b"  V2PUB t\n" + sized(b"x"))
        assert inside[0].recv(100).endswith(b"OK")
    inside.pop().close()
    eventually(lambda: sockets(gnsqd) == listeners + 2)
    inside.append(connect())
    eventually(lambda: sockets(gnsqd) == listeners + 3)
    assert gnsqd.log().count(f"WARNING: {kind}: closing new connections, there are as many as may be\n") == 1
    for sock in inside:
        sock.close()


# Time


def test_magic_has_to_come_in_time(gnsqd_factory: DaemonFactory) -> None:
    gnsqd = gnsqd_factory("--magic-timeout=300ms")
    with NSQClient(gnsqd.tcp_address) as prompt:
        for beginning in (b"", b"  V"):
            with open_socket(gnsqd.tcp_address, DEADLINE) as sock:
                sock.sendall(beginning)
                assert read_all(sock) == b""
        prompt.publish("t", b"x")
    assert gnsqd.log().count(" ERROR: failed to read protocol version - read tcp ") == 2
    gnsqd.restart("--magic-timeout=0")  # no limit
    with NSQClient(gnsqd.tcp_address, magic=b"") as slow:
        assert slow.nothing_arrives(0.2)
        slow.send(b"  V2")
        slow.publish("t", b"x")


def test_idle_http_connections_are_closed_where_that_is_asked_for(gnsqd_factory: DaemonFactory) -> None:
    gnsqd = gnsqd_factory("--http-idle-timeout=400ms")
    with (
        open_socket(gnsqd.http_address, DEADLINE) as silent,
        open_socket(gnsqd.http_address, DEADLINE) as idle,
        open_socket(gnsqd.http_address, DEADLINE) as busy,
    ):
        idle.sendall(head("GET /ping"))
        busy.sendall(head("GET /debug/pprof/profile?seconds=1"))  # takes longer to answer
        assert [split_responses(read_all(sock)) for sock in (silent, idle)] == [[], [(200, "OK")]]
        assert read_all(busy).startswith(b"HTTP/1.1 200 OK\r\n")
    with open_socket(gnsqd.http_address, DEADLINE) as begun:
        begun.sendall(b"GET /ping HTTP/1.1\r\nHost: x\r\n")  # a request has begun, and has a minute
        begun.settimeout(0.8)
        with pytest.raises(TimeoutError):
            begun.recv(1)
        begun.sendall(b"\r\n")
        assert begun.recv(1000).endswith(b"OK")


# Names


def test_topics_and_channels_have_an_end_where_that_is_asked_for(gnsqd_factory: DaemonFactory) -> None:
    gnsqd = gnsqd_factory("--max-topics=2", "--max-channels=1")

    def refusal(line: bytes, body: bytes | None = None) -> bytes:
        with NSQClient(gnsqd.tcp_address) as client:
            client.command(line, body)
            return client.error()

    for name in ("a", "b"):
        create(gnsqd, name, "c")
    assert refusal(b"PUB new", b"x") == b"E_PUB_FAILED PUB failed too many topics"
    assert refusal(b"DPUB new 0", b"x") == b"E_DPUB_FAILED DPUB failed too many topics"
    assert refusal(b"MPUB new", b"\0\0\0\1" + sized(b"x")) == b"E_MPUB_FAILED MPUB failed too many topics"
    assert refusal(b"SUB new c") == b"E_SUB_FAILED SUB failed too many topics"
    assert refusal(b"SUB a new") == b"E_SUB_FAILED SUB failed too many channels"
    assert {topic["topic_name"]: len(topic["channels"]) for topic in gnsqd.stats()["topics"]} == {"a": 1, "b": 1}
    # What is there is used, also after a restart; and what goes makes room.
    for _ in range(2):
        publish(gnsqd, "a", b"x")
        assert take(gnsqd, "a", "c", 1)[0].body == b"x"
        gnsqd.restart()
    post(gnsqd, "/topic/delete?topic=b")
    post(gnsqd, "/channel/delete?topic=a&channel=c")
    create(gnsqd, "new")
    create(gnsqd, "a", "new")


# Floods

ID = b"0123456789abcdef"
CONSUMER = b"  V2SUB t c\n"
# What comes first, and what comes again and again.
FLOODS = {
    "TCP": [
        (b"  V2", b"NOP\n"),
        (b"  V2", b"IDENTIFY\n" + sized(b"{}")),
        (b"  V2", b"IDENTIFY\n" + sized(b'{"x":[' + b"{}," * 10_900 + b"1]}")),
        (b"  V2", b"PUB t#ephemeral\n" + sized(b"x")),
        (CONSUMER, b"RDY 1\nRDY 0\n"),
        (CONSUMER, b"FIN " + ID + b"\n"),
        (CONSUMER, b"TOUCH " + ID + b"\n"),
        (CONSUMER, b"REQ " + ID + b" 0\n"),
    ],
    "HTTP": [
        (b"", head("GET /ping")),
        (b"", head("GET /nope")),
        (b"", head("GET /stats")),
        (b"", head("GET /ping", *["a:"] * 900)),
        (b"", head("GET /stats?" + "&".join(["topic=%41"] * 6000))),
        (b"", head("POST /pub?topic=t", "Transfer-Encoding: chunked") + b"1\r\nx\r\n" * 5000 + b"0\r\n\r\n"),
    ],
}


class Flood:
    """Sends the same again and again from a thread, and reads what comes, until `stop`."""

    def __init__(self, sock: socket.socket, data: bytes) -> None:
        self._sock = sock
        self._threads = [threading.Thread(target=self._send, args=(data * (1 + MB // len(data)),))]
        self._threads.append(threading.Thread(target=self._receive))
        for thread in self._threads:
            thread.start()

    def _send(self, data: bytes) -> None:
        with suppress(OSError):
            while True:
                self._sock.sendall(data)

    def _receive(self) -> None:
        with suppress(OSError):
            while self._sock.recv(MB):
                pass

    def stop(self) -> None:
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._sock.close()


@pytest.mark.parametrize("kind", ["TCP", "HTTP"])
def test_who_floods_does_not_drown_the_others(gnsqd_factory: DaemonFactory, kind: str) -> None:
    gnsqd = gnsqd_factory("--mem-queue-size=1000")
    memory = resident_bytes(gnsqd)
    floods = []
    for before, data in FLOODS[kind]:
        sock = open_socket(gnsqd.tcp_address if kind == "TCP" else gnsqd.http_address, DEADLINE)
        sock.sendall(before)
        floods.append(Flood(sock, data))
    try:
        with served(gnsqd) as good:
            good.go_on(10)
        assert resident_bytes(gnsqd) < memory + 100 * MB
    finally:
        for flood in floods:
            flood.stop()
    eventually(lambda: sockets(gnsqd) == 2)


def test_header_lines_have_an_end(gnsqd: Instance) -> None:
    few, many = (head("GET /ping", *[f"a{number}: b" for number in range(count)]) for count in (900, 1001))
    assert exchange(gnsqd, few + many) == [(200, "OK"), (431, "431 Request Header Fields Too Large")]
