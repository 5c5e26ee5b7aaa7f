"""Lines and packets for a statsd, from gnsqd and from the real nsqd, and when they come (NSQD-COMPAT section 7)."""

import re
import socket
import struct
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import monotonic
from typing import NamedTuple
from urllib.parse import quote

import pytest

from kit.daemons import DEADLINE, Instance, eventually, free_port, own_command
from kit.http_api import ask
from kit.nsq_client import NSQClient
from kit.traffic import DaemonFactory, create, post

SHORT = "--statsd-interval=1100ms"  # it must be more than 1s
LONG = "--statsd-interval=2s"
NO_MEMORY = "--statsd-mem-stats=false"
MEMORY_END = "mem.gc_runs"

SO_TIMESTAMPNS = 35  # socket(7) on Linux; the module socket has no name for it

FIGURES = re.compile(r"^(.*):(-?\d+)\|([cg])\n", re.MULTILINE)


class Packet(NamedTuple):
    text: str
    arrived: float  # seconds, by the kernel's clock


class Push(list[Packet]):
    """The packets of one push."""

    @property
    def lines(self) -> list[str]:
        return "".join(packet.text for packet in self).splitlines()

    @property
    def names(self) -> list[str]:
        return [line.rpartition(":")[0] for line in self.lines]

    def figures(self, kind: str) -> dict[str, int]:
        """Values by name of the lines of type `kind`: c or g."""
        found = FIGURES.findall("".join(packet.text for packet in self))
        return {name: int(value) for name, value, line_kind in found if line_kind == kind}


class Pushes:
    """A statsd. A push is over when the packet with the line `last` has come."""

    def __init__(self, port: int = 0, address: str = "127.0.0.1") -> None:
        self._socket = socket.socket(type=socket.SOCK_DGRAM)
        self._socket.settimeout(DEADLINE)
        self._socket.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        self._socket.bind((address, port))
        self.port: int = self._socket.getsockname()[1]
        self.flag = f"--statsd-address={address}:{self.port}"

    def packet(self) -> Packet:
        data, ancillary, _, _ = self._socket.recvmsg(65536, 64)
        ((_, _, stamp),) = ancillary
        seconds, nanoseconds = struct.unpack("qq", stamp)
        return Packet(data.decode(), seconds + nanoseconds / 1e9)

    def push(self, last: str) -> Push:
        push = Push()
        end = re.compile(rf"^{re.escape(last)}:.*\n\Z", re.MULTILINE)
        while not (push and end.search(push[-1].text)):
            push.append(self.packet())
        return push

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def receiver() -> Iterator[Pushes]:
    with closing(Pushes()) as receiver:
        yield receiver


def publish(nsqd: Instance, topic: str, *bodies: bytes) -> None:
    for body in bodies:
        post(nsqd, f"/pub?topic={quote(topic)}", body)


@contextmanager
def busy(nsqd: Instance) -> Iterator[None]:
    """Makes every figure other than zero somewhere, or soon; mem-queue-size must be 5."""
    create(nsqd, "orders", "all", "some.more")
    create(nsqd, "late", "c")
    create(nsqd, "empty")
    create(nsqd, "brief%23ephemeral", "c", "d%23ephemeral")
    with (
        NSQClient(nsqd.tcp_address) as consumer,
        NSQClient(nsqd.tcp_address) as slow,
        NSQClient(nsqd.tcp_address) as idle,
    ):
        consumer.subscribe("orders", "all", rdy=10)
        idle.subscribe("orders", "all")
        publish(nsqd, "orders", *[b"abc"] * 7)
        messages = [consumer.message() for _ in range(7)]
        consumer.command(b"FIN " + messages[0].id)
        consumer.command(b"REQ " + messages[1].id + b" 3600000")
        slow.identify(msg_timeout=3000)
        slow.subscribe("late", "c", rdy=1)
        publish(nsqd, "late", b"12345")
        slow.message()
        slow.command(b"RDY 0")
        publish(nsqd, "backlog", *[b"x"] * 9)
        publish(nsqd, "brief#ephemeral", b"x")
        yield


BUSY = {
    "topic.backlog.message_count": 9,
    "topic.backlog.message_bytes": 9,
    "topic.backlog.depth": 9,
    "topic.backlog.backend_depth": 4,
    "topic.late.channel.c.timeout_count": 1,
    "topic.late.channel.c.depth": 1,
    "topic.orders.message_count": 7,
    "topic.orders.message_bytes": 21,
    "topic.orders.channel.all.message_count": 7,
    "topic.orders.channel.all.in_flight_count": 5,
    "topic.orders.channel.all.deferred_count": 1,
    "topic.orders.channel.all.requeue_count": 1,
    "topic.orders.channel.all.clients": 2,
    "topic.orders.channel.some.more.depth": 7,
    "topic.orders.channel.some.more.backend_depth": 2,
}


def until_calm(receiver: Pushes, prefix: str, last: str) -> tuple[dict[str, int], Push]:
    """Returns the sums of all counters, and a push that has all of BUSY and in which no counter moves any more."""
    sums: dict[str, int] = {}
    end = monotonic() + DEADLINE
    while True:
        push = receiver.push(last)
        assert monotonic() < end, push.lines
        moves = {name.removeprefix(prefix): value for name, value in push.figures("c").items()}
        moves.pop(MEMORY_END, None)
        for name, value in moves.items():
            sums[name] = sums.get(name, 0) + value
        figures = sums | {name.removeprefix(prefix): value for name, value in push.figures("g").items()}
        if not any(moves.values()) and all(figures.get(name) == value for name, value in BUSY.items()):
            return sums, push


MEMORY = [f"heap_{name}:N|g" for name in ("objects", "idle_bytes", "in_use_bytes", "released_bytes")]
MEMORY += ["gc_pause_usec_100:N|g", "gc_pause_usec_99:N|g", "gc_pause_usec_95:N|g", "next_gc_bytes:N|g", "gc_runs:N|c"]


def test_last_lines_are_about_memory(nsqd_factory: DaemonFactory, receiver: Pushes) -> None:
    create(nsqd_factory(receiver.flag, SHORT, "--statsd-prefix="), "t")
    while "topic.t.depth" not in (push := receiver.push(MEMORY_END)).names:
        pass
    lines = [re.sub(r":-?\d+\|", ":N|", line) for line in push.lines]
    assert lines[4:] == [f"mem.{line}" for line in MEMORY]


@pytest.mark.peer
def test_packets_are_those_of_nsqd(peer_binary: Callable[[str], Path], tmp_path: Path) -> None:
    def sums_and_packets(of: tuple[str, str]) -> tuple[dict[str, int], list[str]]:
        kind, size = of
        command = own_command() if kind == "gnsqd" else [str(peer_binary("nsqd"))]
        flags = [SHORT, NO_MEMORY, "--statsd-prefix=p", "--mem-queue-size=5", f"--statsd-udp-packet-size={size}"]
        with (
            closing(Pushes()) as receiver,
            Instance(command, tmp_path / f"{kind}-{size}", receiver.flag, *flags) as nsqd,
            busy(nsqd),
        ):
            sums, push = until_calm(receiver, "p.", "p.topic.orders.channel.some.more.clients")
        return sums, [packet.text for packet in push]

    daemons = [(kind, size) for size in ("508", "100", "0") for kind in ("gnsqd", "nsqd")]
    with ThreadPoolExecutor() as threads:  # the real nsqd takes seconds to look for messages that time out
        found = list(threads.map(sums_and_packets, daemons))
    assert found[::2] == found[1::2]
    assert len({len(packets) for _, packets in found}) == 3


PERCENTILES = "--e2e-processing-latency-percentile=1.0,0.999,0.5,0.125"


def test_latencies_are_those_of_stats(nsqd_factory: DaemonFactory, receiver: Pushes) -> None:
    nsqd = nsqd_factory(receiver.flag, SHORT, NO_MEMORY, "--statsd-prefix=", PERCENTILES)
    create(nsqd, "t", "c")
    with NSQClient(nsqd.tcp_address) as consumer:
        consumer.subscribe("t", "c", rdy=1)
        publish(nsqd, "t", b"x")
        consumer.command(b"FIN " + consumer.message().id)
        eventually(lambda: nsqd.topic_stats("t")["e2e_processing_latency"]["count"] == 1)
        receiver.push("topic.t.channel.c.e2e_processing_latency_12")  # this one may have begun before
        push = receiver.push("topic.t.channel.c.e2e_processing_latency_12")
        row = nsqd.topic_stats("t")
    expected = []
    for name, thing in (("topic.t", row), ("topic.t.channel.c", row["channels"][0])):
        values = [int(each["value"]) for each in thing["e2e_processing_latency"]["percentiles"]]
        assert all(values)
        for percent, value in zip(("100", "100", "50", "12"), values, strict=True):
            expected.append(f"{name}.e2e_processing_latency_{percent}:{value}|g")
    assert [line for line in push.lines if "latency" in line] == expected
    assert push.names.index("topic.t.e2e_processing_latency_100") == push.names.index("topic.t.backend_depth") + 1


def test_counters_start_at_the_start_and_turn_negative_with_a_new_topic(
    nsqd_factory: DaemonFactory, receiver: Pushes
) -> None:
    nsqd = nsqd_factory(receiver.flag, LONG, NO_MEMORY, "--statsd-prefix=")
    publish(nsqd, "t", b"abc", b"d", b"e")
    last = "topic.t.backend_depth"
    sums = receiver.push(last).figures("c")
    while sums["topic.t.message_count"] < 3:
        sums = {name: sums[name] + value for name, value in receiver.push(last).figures("c").items()}
    assert sums == {"topic.t.message_count": 3, "topic.t.message_bytes": 5}
    post(nsqd, "/topic/delete?topic=t")
    publish(nsqd, "t", b"f")
    assert receiver.push(last).figures("c") == {"topic.t.message_count": -2, "topic.t.message_bytes": -4}


PREFIXES = {
    "nsq.127_0_0_1_{port}.": ["--broadcast-address=127.0.0.1"],
    "a_b_80-a_b_80.": ["--broadcast-address=a.b", "--broadcast-http-port=80", "--statsd-prefix=%s-%s."],
    "nsq.[__1]_0.": ["--broadcast-address=::1", "--http-address={path}"],
    "nsq.a_0.": ["--broadcast-address=a", "--http-address="],
    "plain.": ["--statsd-prefix=plain"],
    "": ["--statsd-prefix="],
}


def test_prefix_names_the_daemon(nsqd_factory: DaemonFactory, tmp_path: Path) -> None:
    with ExitStack() as stack:
        found = []
        for prefix, flags in PREFIXES.items():
            receiver = stack.enter_context(closing(Pushes()))
            nsqd = nsqd_factory(receiver.flag, SHORT, *[flag.format(path=tmp_path / "http") for flag in flags])
            found.append((receiver, prefix.format(port=nsqd.http_address[1])))
        for receiver, prefix in found:
            names = receiver.push(f"{prefix}{MEMORY_END}").names
            assert [name for name in names if not name.startswith(f"{prefix}mem.")] == []


def test_ephemeral_topics_and_channels_can_be_left_out(nsqd_factory: DaemonFactory, receiver: Pushes) -> None:
    nsqd = nsqd_factory(receiver.flag, SHORT, "--statsd-prefix=", "--statsd-exclude-ephemeral")
    create(nsqd, "brief%23ephemeral", "c")
    create(nsqd, "kept", "c%23ephemeral", "d")
    while "topic.kept.channel.d.clients" not in (names := receiver.push(MEMORY_END).names):
        pass
    things = {name.rpartition(".")[0] for name in names}
    assert things == {"topic.kept", "topic.kept.channel.d", "mem"}


def test_packets_are_spread_over_interval_but_its_last_second(nsqd_factory: DaemonFactory, receiver: Pushes) -> None:
    nsqd = nsqd_factory(receiver.flag, LONG, "--statsd-prefix=", "--statsd-udp-packet-size=1")
    create(nsqd, "t", "c")
    while len(push := receiver.push(MEMORY_END)) != 21:
        pass
    gaps = [later.arrived - earlier.arrived for earlier, later in pairwise(push)]
    assert 1 / 42 < median(gaps) < 2 / 21, push  # on a busy machine some are late


def test_exit_sends_the_rest_of_a_push_at_once(nsqd_factory: DaemonFactory, receiver: Pushes) -> None:
    nsqd = nsqd_factory(receiver.flag, "--statsd-interval=3s", "--statsd-prefix=", "--statsd-udp-packet-size=1")
    create(nsqd, "t", *[f"c{number}" for number in range(10)])
    push = Push([receiver.packet()])
    assert nsqd.terminate() == 0
    push += receiver.push(MEMORY_END)
    assert len(push) == 4 + 10 * 8 + 9
    # They would have taken a second, one after another.
    assert push[-1].arrived - push[-47].arrived < 0.8
    stopping, closing, bye = (nsqd.log().index(line) for line in ("NSQ: stopping", "STATSD: closing", "NSQ: bye"))
    assert stopping < closing < bye


def test_address_that_is_none_is_logged_at_every_push(nsqd_factory: DaemonFactory) -> None:
    addresses = ("no-such-host.invalid:8125", "127.0.0.1", "127.0.0.1:65536")
    daemons = {address: nsqd_factory(f"--statsd-address={address}", SHORT) for address in addresses}
    for address, nsqd in daemons.items():
        line = f" ERROR: failed to create UDP socket to statsd({address})\n"
        eventually(lambda nsqd=nsqd, line=line: nsqd.log().count(line) >= 2)  # type: ignore[misc]
        assert "STATSD: pushing" not in nsqd.log()
        assert ask(nsqd, "GET /ping") == (200, "OK")


def test_pushes_go_on_where_nobody_listens(nsqd_factory: DaemonFactory) -> None:
    port = free_port()
    nsqd = nsqd_factory(f"--statsd-address=127.0.0.1:{port}", SHORT, "--statsd-prefix=", "--statsd-udp-packet-size=1")
    eventually(lambda: nsqd.log().count(f" INFO: STATSD: pushing stats to 127.0.0.1:{port}\n") >= 2)
    with closing(Pushes(port)) as receiver:
        assert "mem.gc_runs" in receiver.push(MEMORY_END).names


def test_address_may_be_of_a_broadcast(nsqd_factory: DaemonFactory) -> None:
    with closing(Pushes(address="127.255.255.255")) as receiver:
        nsqd_factory(receiver.flag, SHORT, "--statsd-prefix=")
        assert MEMORY_END in receiver.push(MEMORY_END).names
