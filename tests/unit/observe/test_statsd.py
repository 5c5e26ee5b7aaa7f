"""Pushes to a statsd whose name is hard to look up, and of topics that come and go between two pushes. What is pushed
is judged, with the real daemon too, in behaviour/test_statsd."""

import io
import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import gevent
import gevent.socket
import pytest
from gevent.event import Event
from hypothesis import given
from hypothesis import strategies as st

from gnsqd.broker.registry import Registry
from gnsqd.hub.cooperative import yield_turn
from gnsqd.log import Level, Logger
from gnsqd.observe import statsd as module
from gnsqd.observe.memory import MemoryStats
from gnsqd.observe.statsd import Statsd, pack
from gnsqd.options import MILLISECOND, Options, expand_prefix
from kit.daemons import DEADLINE

Start = Callable[[Options], Statsd]


class Packets:
    """A statsd."""

    def __init__(self) -> None:
        self.socket = gevent.socket.socket(type=gevent.socket.SOCK_DGRAM)
        self.socket.settimeout(DEADLINE)
        self.socket.bind(("127.0.0.1", 0))
        self.address = "127.0.0.1:{1}".format(*self.socket.getsockname())

    def packet(self) -> str:
        return str(self.socket.recv(65536).decode())


@pytest.fixture
def receiver() -> Iterator[Packets]:
    receiver = Packets()
    with receiver.socket:
        yield receiver


@pytest.fixture
def log() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def start(registry: Registry, log: io.StringIO) -> Iterator[Start]:
    """Pushes by these options until the end of the test."""
    started = []

    def start(options: Options) -> Statsd:
        logger = Logger("", Level.INFO, log)
        started.append(Statsd(registry, options, MemoryStats(), logger, lambda name, body: gevent.spawn(body)))
        started[-1].start()
        return started[-1]

    yield start
    for each in started:
        each.stop()


def options_for(address: str, **others: Any) -> Options:
    """Puts all in one packet, more often than the daemon allows."""
    values: dict[str, Any] = {"statsd_mem_stats": False, "statsd_prefix": "", "statsd_udp_packet_size": 65000} | others
    return Options(statsd_address=address, statsd_interval=20 * MILLISECOND, **values)


def logged(log: io.StringIO, line: str, count: int = 1) -> None:
    with gevent.Timeout(DEADLINE):
        while log.getvalue().count(line) < count:
            yield_turn()


def counts(packet: str) -> dict[str, int]:
    return {name: int(value) for name, value in re.findall(r"^(.+):(-?\d+)\|c$", packet, re.MULTILINE)}


def next_counts(receiver: Packets, condition: Callable[[dict[str, int]], bool]) -> dict[str, int]:
    """Returns those of the next push that satisfies `condition`."""
    with gevent.Timeout(DEADLINE):
        while not condition(found := counts(receiver.packet())):
            pass
    return found


def test_counters_of_a_topic_a_push_missed_start_at_zero(registry: Registry, receiver: Packets, start: Start) -> None:
    registry.get_topic("t").publish([b"abc", b"de"])
    registry.get_topic("other").publish([b""])
    start(options_for(receiver.address))
    receiver.packet()
    registry.delete_existing_topic("t")
    next_counts(receiver, lambda found: "topic.t.message_count" not in found)
    registry.get_topic("t").publish([b"f"])
    assert next_counts(receiver, lambda found: any(found.values()))["topic.t.message_count"] == 1


def test_names_with_dots_do_not_share_their_counters(registry: Registry, receiver: Packets, start: Start) -> None:
    registry.get_topic("t").get_channel("c")
    registry.get_topic("t").publish([b"", b""])
    registry.get_topic("t.channel.c").publish([b""])
    gevent.sleep(0)
    start(options_for(receiver.address))
    count = re.compile(r"^topic\.t\.channel\.c\.message_count:(-?\d+)\|c$", re.MULTILINE)
    assert count.findall(receiver.packet()) == ["2", "1"]
    assert count.findall(receiver.packet()) == ["0", "0"]


@pytest.mark.parametrize("address", ["127.0.0.1:no-such-service", "a..b:1", ":x"])
def test_bad_address_is_logged_and_loses_no_counts(
    address: str, registry: Registry, receiver: Packets, start: Start, log: io.StringIO
) -> None:
    registry.get_topic("t").publish([b"abc"])
    options = options_for(address)
    start(options)
    logged(log, f"ERROR: failed to create UDP socket to statsd({address})\n")
    assert "pushing" not in log.getvalue()
    options.statsd_address = receiver.address
    assert counts(receiver.packet()) == {"topic.t.message_count": 1, "topic.t.message_bytes": 3}
    assert f"INFO: STATSD: pushing stats to {receiver.address}\n" in log.getvalue()


@pytest.mark.parametrize("host", ["localhost", ""])
def test_host_may_be_a_name_or_left_out(host: str, receiver: Packets, start: Start) -> None:
    start(options_for(f"{host}:{receiver.address.rpartition(':')[2]}", statsd_mem_stats=True))
    assert receiver.packet().startswith("mem.heap_objects:")


@pytest.fixture
def hanging_look_ups(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Returns the names that were looked up; none is ever found."""
    names = []

    def getaddrinfo(host: str, *arguments: object, **options: object) -> list[object]:
        names.append(host)
        Event().wait(DEADLINE)
        return []

    monkeypatch.setattr(gevent.socket, "getaddrinfo", getaddrinfo)
    return names


def test_look_up_that_hangs_is_made_once(
    start: Start, log: io.StringIO, hanging_look_ups: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOOK_UP_SECONDS", 0.01)
    start(options_for("slow.example:8125"))
    logged(log, "failed to create UDP socket to statsd(slow.example:8125)", 3)
    assert hanging_look_ups == ["slow.example"]


def test_exit_waits_for_no_look_up(
    start: Start, log: io.StringIO, hanging_look_ups: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOOK_UP_SECONDS", DEADLINE)
    statsd = start(options_for("slow.example:8125"))
    with gevent.Timeout(DEADLINE / 2):
        while not hanging_look_ups:
            yield_turn()
        statsd.stop()
    assert log.getvalue().endswith("INFO: STATSD: closing\n")


def test_slow_look_up_serves_the_next_push(
    receiver: Packets, start: Start, log: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOOK_UP_SECONDS", 0.01)
    answered = Event()
    real = gevent.socket.getaddrinfo

    def getaddrinfo(host: str, port: str, **options: int) -> list[object]:
        answered.wait()
        found: list[object] = real("127.0.0.1", port, **options)
        return found

    monkeypatch.setattr(gevent.socket, "getaddrinfo", getaddrinfo)
    start(options_for(f"slow.example:{receiver.address.rpartition(':')[2]}", statsd_mem_stats=True))
    logged(log, "failed")
    answered.set()
    assert "mem.gc_runs" in receiver.packet()


def test_reading_many_topics_lets_others_have_their_turns(
    registry: Registry, receiver: Packets, start: Start, log: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gnsqd.hub.cooperative.TURN_SECONDS", 0)
    for number in range(10):
        registry.topics[f"t{number}"] = registry.get_topic("t")
    start(options_for(receiver.address, statsd_udp_packet_size=1000))
    logged(log, "pushing")
    with gevent.Timeout(DEADLINE):
        turns = 0
        packet = gevent.spawn(receiver.packet)
        while not packet.ready():
            yield_turn()
            turns += 1
    assert turns >= 10


def test_prefix_may_have_percent_signs() -> None:
    assert expand_prefix("100%%s%", "a.b:1") == "100%a_b_1%."


@given(
    st.lists(st.one_of(st.integers(0, 40), st.integers(1000, 3000)).map(lambda size: b"x" * size + b"\n")),
    st.one_of(st.integers(-1, 60), st.integers(1000, 6000)),
)
def test_packets_hold_all_lines_in_order_and_as_many_as_fit(lines: list[bytes], size: int) -> None:
    limit = size if size > 0 else 4096
    packets = pack(lines, size)
    assert b"".join(packets) == b"".join(lines)
    assert all(packet and (len(packet) <= limit or packet in lines) for packet in packets)
    assert all(len(packet) + following.index(b"\n") + 1 > limit for packet, following in pairwise(packets))
