"""More than a hundred clients that send half of something, and hang: nobody else notices, and nothing stays.

They come by every door: TCP with and without TLS, deflate and snappy, HTTP, HTTPS. A daemon must bear them for a while,
or for ever: with the real one nobody has to hurry with the magic or anything over HTTP (NSQD-COMPAT 2.1), with ours
there is a minute for what test_limits.py has. That they do not hold up the exit is in behaviour/test_exit.py.
"""

import re
import socket
import struct
from collections.abc import Callable
from contextlib import closing, suppress
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import pytest

from behaviour.test_https import HELLO, https_address
from kit.certificates import issue
from kit.daemons import DEADLINE, Address, Instance, eventually, open_socket, own_command
from kit.http_api import head
from kit.nsq_client import NSQClient, sized
from kit.observers import GoodClients, resident_bytes, served, sockets
from kit.traffic import DaemonFactory, create, post, publish
from kit.upgraded_client import Deflate, Snappy, UpgradedClient, tls_client_context

LISTENERS = 3
COUNT = 120
ROUND_TRIPS = 100  # of the good clients while the others hang
MB = 1 << 20
HANGING_MEMORY = 120 * MB  # for a crowd that hangs: 40 MB of bodies, 50 KB of buffers for each TLS connection, twice
GROWTH = 1 * MB  # from the second crowd to the third, without what the allocator keeps: it does so in steps of 4 MB
KEPT = 8 * MB  # when all are gone and the allocator has given back what nobody uses

BODY = b"x" * 900_000
BIG = struct.pack(">i", MB)  # a size that max-msg-size allows
POST = head("POST /pub?topic=t", "Content-Length: 1000000")
CHUNKED = head("POST /mpub?topic=t", "Transfer-Encoding: chunked")


class Doors:
    """The listeners of one daemon. Every method returns a new connection, over which `data` was sent."""

    def __init__(self, daemon: Instance) -> None:
        self.daemon = daemon
        self._context = tls_client_context("tls1.3")
        self._https = https_address(daemon)

    def tcp(self, data: bytes) -> socket.socket:
        return begun(open_socket(self.daemon.tcp_address, DEADLINE), data)

    def http(self, data: bytes) -> socket.socket:
        return begun(open_socket(self.daemon.http_address, DEADLINE), data)

    def raw_https(self, data: bytes) -> socket.socket:
        return begun(open_socket(self._https, DEADLINE), data)

    def https(self, data: bytes) -> socket.socket:
        return begun(self._context.wrap_socket(open_socket(self._https, DEADLINE)), data)

    def before_tls(self, data: bytes) -> socket.socket:
        """Sends `data` in place of the handshake."""
        client = NSQClient(self.daemon.tcp_address)
        client.identify(feature_negotiation=True, tls_v1=True)
        return begun(client.sock, data)

    def upgraded(self, data: bytes, **fields: Any) -> socket.socket:
        """Sends `data` through the upgrades."""
        client = UpgradedClient(self.daemon.tcp_address, self._context, **fields)
        client.send(data)
        return client.sock

    def under(self, data: bytes, **fields: Any) -> socket.socket:
        """Sends `data` below the compression."""
        return begun(UpgradedClient(self.daemon.tcp_address, self._context, **fields).sock, data)

    def deaf(self, address: Address, data: bytes) -> socket.socket:
        """Opens a connection that has room for little, and from which nobody reads."""
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.settimeout(DEADLINE)
        sock.connect(address)
        return begun(sock, data)


def begun(sock: socket.socket, data: bytes) -> socket.socket:
    sock.sendall(data)
    return sock


Bad = Callable[[Doors], socket.socket]

HANGING: dict[str, Bad] = {
    "silent": lambda doors: doors.tcp(b""),
    "half a magic": lambda doors: doors.tcp(b"  V"),
    "magic only": lambda doors: doors.tcp(b"  V2"),
    "half a line": lambda doors: doors.tcp(b"  V2SUB t"),
    "long line": lambda doors: doors.tcp(b"  V2PUB " + b"t" * 16_000),
    "half an IDENTIFY": lambda doors: doors.tcp(b'  V2IDENTIFY\n\0\0\x10\0{"client_id":"'),
    "half a size": lambda doors: doors.tcp(b"  V2PUB t\n\0\0"),
    "size without body": lambda doors: doors.tcp(b"  V2PUB t\n" + BIG),
    "half a body": lambda doors: doors.tcp(b"  V2PUB t\n" + BIG + BODY),
    "half an MPUB": lambda doors: doors.tcp(b"  V2MPUB t\n" + BIG + b"\0\0\0\x0a" + sized(BODY) + b"\0\0"),
    "SUB that never reads": lambda doors: doors.deaf(doors.daemon.tcp_address, b"  V2SUB big c\nRDY 100\n"),
    "nothing instead of TLS": lambda doors: doors.before_tls(b""),
    "half a ClientHello": lambda doors: doors.before_tls(HELLO),
    "nothing in TLS": lambda doors: doors.upgraded(b"", tls_v1=True),
    "half a body in TLS": lambda doors: doors.upgraded(b"PUB t\n" + BIG + BODY, tls_v1=True),
    "half a body in deflate": lambda doors: doors.upgraded(b"PUB t\n" + BIG + BODY, deflate=True),
    "half a block of deflate": lambda doors: doors.under(Deflate().encode(b"NOP\n")[:3], deflate=True),
    "half a chunk of snappy": lambda doors: doors.under(Snappy().encode(b"NOP\n")[:-2], snappy=True),
    "half a chunk in TLS": lambda doors: doors.under(Snappy().encode(b"NOP\n")[:-2], snappy=True, tls_v1=True),
    "silent HTTP": lambda doors: doors.http(b""),
    "half a request line": lambda doors: doors.http(b"GET /pi"),
    "half a head": lambda doors: doors.http(head("GET /ping", "A: " + "x" * 10_000)[:-2]),
    "half a body of HTTP": lambda doors: doors.http(POST + BODY),
    "half a chunked body": lambda doors: doors.http(CHUNKED + b"fffff\r\n" + BODY),
    "HTTP that never reads": lambda doors: doors.deaf(doors.daemon.http_address, head("GET /stats") * 1000),
    "silent HTTPS": lambda doors: doors.raw_https(b""),
    "half a ClientHello of HTTPS": lambda doors: doors.raw_https(HELLO),
    "nothing in HTTPS": lambda doors: doors.https(b""),
    "half a head in HTTPS": lambda doors: doors.https(b"GET /ping HTTP/1.1\r\nHost:"),
    "half a body in HTTPS": lambda doors: doors.https(POST + BODY),
}

# The handshake has a time limit, at least with us, and on a slow machine it may be over before the others are there.
BRIEF = {"nothing instead of TLS", "half a ClientHello", "silent HTTPS", "half a ClientHello of HTTPS"}
DRIPPING = {"half a line", "half a body", "half a request line", "half a head", "half a body of HTTP"}


class Crowd:
    """Bad clients of all kinds, in turn."""

    def __init__(self, doors: Doors, count: int) -> None:
        self.hanging: list[socket.socket] = []
        self.lasting = 0
        self._dripping: list[socket.socket] = []
        for name, bad in islice(cycle(HANGING.items()), count):
            sock = bad(doors)
            self.hanging.append(sock)
            self.lasting += name not in BRIEF
            if name in DRIPPING:
                self._dripping.append(sock)

    def drip(self) -> None:
        """Sends one more byte of some."""
        for sock in self._dripping:
            sock.sendall(b"x")

    def close(self) -> None:
        """Closes the connections, half of them by a reset."""
        for number, sock in enumerate(self.hanging):
            if number % 2:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.close()


def goroutines(daemon: Instance) -> int:
    """Returns how many goroutines the real daemon has, or greenlets ours."""
    text = daemon.http("GET", "/debug/pprof/goroutine?debug=1")[2]
    match = re.match(rb"goroutine profile: total (\d+)\n", text)
    assert match, text[:100]
    return int(match[1])


@pytest.fixture
def doors(nsqd_factory: DaemonFactory, tmp_path: Path) -> Doors:
    cert, key = issue("server").write(tmp_path / "server")
    return Doors(nsqd_factory(f"--tls-cert={cert}", f"--tls-key={key}", "--https-address=127.0.0.1:0"))


def publish_more_than_fits(daemon: Instance) -> None:
    """Gives a channel more to read than buffers take."""
    for _ in range(10):
        publish(daemon, "big", *[b"x" * 100_000] * 5)
    create(daemon, "big", "c")


def memory_while_a_crowd_hangs(doors: Doors, good: GoodClients) -> int:
    """Returns how much the daemon has, after good clients were served for a while beside the crowd."""
    with closing(Crowd(doors, COUNT)) as crowd:
        others = LISTENERS + 2
        expected = range(others + crowd.lasting, others + len(crowd.hanging) + 1)
        eventually(lambda: sockets(doors.daemon) in expected)
        good.go_on(ROUND_TRIPS, crowd.drip)
        assert sockets(doors.daemon) in expected
        return resident_bytes(doors.daemon)


def test_crowd_of_hanging_clients_harms_nobody_and_leaves_nothing(doors: Doors) -> None:
    daemon = doors.daemon
    is_ours = daemon.command == own_command()  # the real one collects its garbage when it likes
    publish_more_than_fits(daemon)
    # What is made once is there when counting begins.
    good = GoodClients(daemon)
    Crowd(doors, len(HANGING)).close()
    good.stop()
    eventually(lambda: sockets(daemon) == LISTENERS)
    running_before = goroutines(daemon)
    memory_before = resident_bytes(daemon)

    memory_hanging, memory_after = [], []
    with served(daemon) as good:
        for _ in range(3):
            memory_hanging.append(memory_while_a_crowd_hangs(doors, good))
            eventually(lambda: sockets(daemon) == LISTENERS + 2)
            if is_ours:
                post(daemon, "/debug/freememory")
            memory_after.append(resident_bytes(daemon))
    eventually(lambda: sockets(daemon) == LISTENERS)
    eventually(lambda: goroutines(daemon) <= running_before)
    if is_ours:
        assert max(memory_hanging) < memory_before + HANGING_MEMORY
        assert memory_after[-1] < memory_after[1] + GROWTH
        post(daemon, "/debug/freememory")
        assert resident_bytes(daemon) < memory_before + KEPT


# With heartbeats every second, what is over after two intervals if nothing comes.
SECOND = {"heartbeat_interval": 1000}
IDENTIFY = b"IDENTIFY\n" + sized(b'{"heartbeat_interval":1000}')

CUT: list[Bad] = [
    lambda doors: doors.tcp(b"  V2" + IDENTIFY),
    lambda doors: doors.deaf(doors.daemon.tcp_address, b"  V2" + IDENTIFY + b"SUB big c\nRDY 100\n"),
    lambda doors: doors.upgraded(b"PUB t\n" + BIG + BODY, tls_v1=True, deflate=True, **SECOND),
    lambda doors: doors.under(Snappy().encode(b"NOP\n")[:-2], snappy=True, **SECOND),
]
DRIPPING_CUT: list[Bad] = [
    lambda doors: doors.tcp(b"  V2" + IDENTIFY + b"SUB t"),
    lambda doors: doors.tcp(b"  V2" + IDENTIFY + b"PUB t\n" + BIG + BODY),
]


def test_clients_that_hang_are_cut_when_their_time_is_over(doors: Doors) -> None:
    publish_more_than_fits(doors.daemon)
    eventually(lambda: sockets(doors.daemon) == LISTENERS)
    bad = [open_one(doors) for open_one in CUT]
    dripping = [open_one(doors) for open_one in DRIPPING_CUT]

    def cut() -> bool:
        for sock in dripping:
            with suppress(ConnectionError):  # a byte now and then does not help
                sock.sendall(b"x")
        return sockets(doors.daemon) == LISTENERS

    try:
        eventually(cut)
    finally:
        for sock in (*bad, *dripping):
            sock.close()
