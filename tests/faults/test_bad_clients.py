"""More than a hundred clients that send half of something, and hang: nobody else notices, and nothing stays.

They come by every door: TCP with and without TLS, deflate and snappy, HTTP, HTTPS. A daemon must bear them for a while,
or for ever: with the real one nobody has to hurry with the magic or anything over HTTP (NSQD-COMPAT 2.1), with ours
there is a minute for what test_limits.py has.
"""

import re
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import pytest

from kit.certificates import issue
from kit.daemons import DEADLINE, Address, Daemon, eventually, open_socket, own_command
from kit.http_api import head
from kit.nsq_client import Client, sized
from kit.observers import GoodClients, resident_bytes, sockets
from kit.traffic import DaemonFactory, create, post, publish
from kit.upgraded_client import Deflate, Snappy, UpgradedClient, tls_client_context

LISTENERS = 3
COUNT = 120
ROUND_TRIPS = 100  # of the good clients while the others hang
SLOWEST = 5.0  # seconds for one of them: what a hang would exceed, and a noisy machine does not
MB = 1 << 20
HANGING_MEMORY = 120 * MB  # for a crowd that hangs: 40 MB of bodies, 50 KB of buffers for each TLS connection, twice
GROWTH = 1 * MB  # from the second crowd to the third, without what the allocator keeps: it does so in steps of 4 MB
KEPT = 8 * MB  # when all are gone and the allocator has given back what nobody uses

HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"  # the beginning of a ClientHello
BODY = b"x" * 900_000
BIG = struct.pack(">i", MB)  # a size that max-msg-size allows
POST = head("POST /pub?topic=t", "Content-Length: 1000000")
CHUNKED = head("POST /mpub?topic=t", "Transfer-Encoding: chunked")


class Doors:
    """Where one daemon can be entered. Every method returns a new connection."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon
        self._context = tls_client_context("tls1.3")
        found = eventually(lambda: re.search(r" HTTPS: listening on (\S+):(\d+)\n", daemon.log()))
        self._https: Address = (found[1], int(found[2]))

    def tcp(self, data: bytes) -> socket.socket:
        return self._open(self.daemon.tcp_address, data)

    def http(self, data: bytes) -> socket.socket:
        return self._open(self.daemon.http_address, data)

    def raw_https(self, data: bytes) -> socket.socket:
        return self._open(self._https, data)

    def https(self, data: bytes) -> socket.socket:
        sock = self._context.wrap_socket(open_socket(self._https, DEADLINE))
        sock.sendall(data)
        return sock

    def _open(self, address: Address, data: bytes) -> socket.socket:
        sock = open_socket(address, DEADLINE)
        sock.sendall(data)
        return sock

    def before_tls(self, data: bytes, **fields: Any) -> socket.socket:
        """`data` where the handshake should be."""
        client = Client(self.daemon.tcp_address)
        client.identify(feature_negotiation=True, tls_v1=True, **fields)
        client.send(data)
        return client.sock

    def upgraded(self, data: bytes, **fields: Any) -> socket.socket:
        """`data` goes through the upgrades."""
        client = UpgradedClient(self.daemon.tcp_address, self._context, **fields)
        client.send(data)
        return client.sock

    def under(self, data: bytes, **fields: Any) -> socket.socket:
        """`data` goes below the compression."""
        client = UpgradedClient(self.daemon.tcp_address, self._context, **fields)
        client.sock.sendall(data)
        return client.sock

    def deaf(self, address: Address, data: bytes) -> socket.socket:
        """Never reads, and has room for little."""
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.settimeout(DEADLINE)
        sock.connect(address)
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
        """Some get on by a byte."""
        for sock in self._dripping:
            sock.sendall(b"x")

    def leave(self) -> None:
        """Half of them with a reset."""
        for number, sock in enumerate(self.hanging):
            if number % 2:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.close()


@contextmanager
def crowd(doors: Doors, count: int) -> Iterator[Crowd]:
    found = Crowd(doors, count)
    try:
        yield found
    finally:
        found.leave()


def goroutines(daemon: Daemon) -> int:
    """Of the real daemon; the greenlets of ours."""
    text = daemon.http("GET", "/debug/pprof/goroutine?debug=1")[2]
    match = re.match(rb"goroutine profile: total (\d+)\n", text)
    assert match, text[:100]
    return int(match[1])


@pytest.fixture
def tls_flags(tmp_path: Path) -> list[str]:
    cert, key = issue("server").write(tmp_path / "server")
    return [f"--tls-cert={cert}", f"--tls-key={key}", "--https-address=127.0.0.1:0"]


@pytest.fixture
def doors(nsqd_factory: DaemonFactory, tls_flags: list[str]) -> Doors:
    """Those of a new daemon."""
    return Doors(nsqd_factory(*tls_flags))


def publish_more_than_fits(daemon: Daemon) -> None:
    """A channel with more to read than buffers take."""
    for _ in range(10):
        publish(daemon, "big", *[b"x" * 100_000] * 5)
    create(daemon, "big", "c")


def memory_while_a_crowd_hangs(doors: Doors, good: GoodClients) -> int:
    """How much the daemon has, after the good clients were served for a while with the crowd about."""
    with crowd(doors, COUNT) as found:
        served = LISTENERS + 2
        expected = range(served + found.lasting, served + len(found.hanging) + 1)
        eventually(lambda: sockets(doors.daemon) in expected)
        target = len(good.received) + ROUND_TRIPS

        def reached() -> bool:
            found.drip()
            good.check()
            return len(good.received) >= target

        eventually(reached)
        assert sockets(doors.daemon) in expected
        return resident_bytes(doors.daemon)


def test_crowd_of_hanging_clients_harms_nobody_and_leaves_nothing(doors: Doors) -> None:
    daemon = doors.daemon
    is_ours = daemon.command == own_command()  # the real one collects its garbage when it likes
    publish_more_than_fits(daemon)
    # What is made once is there when counting begins.
    good = GoodClients(daemon)
    with crowd(doors, len(HANGING)):
        pass
    good.stop()
    eventually(lambda: sockets(daemon) == LISTENERS)
    running_before = goroutines(daemon)
    memory_before = resident_bytes(daemon)

    good = GoodClients(daemon)
    memory_hanging, memory_after = [], []
    try:
        for _ in range(3):
            memory_hanging.append(memory_while_a_crowd_hangs(doors, good))
            eventually(lambda: sockets(daemon) == LISTENERS + 2)
            if is_ours:
                post(daemon, "/debug/freememory")
            memory_after.append(resident_bytes(daemon))
    finally:
        good.stop()
    assert good.slowest < SLOWEST
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


def test_hanging_clients_do_not_hold_up_the_exit(gnsqd_factory: DaemonFactory, tls_flags: list[str]) -> None:
    """The real daemon waits for clients that have not sent their magic."""
    doors = Doors(gnsqd_factory(*tls_flags))
    publish_more_than_fits(doors.daemon)
    with crowd(doors, COUNT):
        assert doors.daemon.terminate() == 0
    assert doors.daemon.log().endswith(" INFO: NSQ: bye\n")
