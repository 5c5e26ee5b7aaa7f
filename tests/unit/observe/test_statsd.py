"""Pushes to a statsd, received on a socket of the test. Names, types and order are NSQD-COMPAT section 7's."""

import io
import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import gevent
import gevent.socket
import pytest
from gevent.event import Event
from hypothesis import given
from hypothesis import strategies as st

from gnsqd.broker.registry import Registry
from gnsqd.hub.cooperative import give_way
from gnsqd.log import Level, Logger
from gnsqd.observe import statsd as module
from gnsqd.observe.stats import MemoryStats
from gnsqd.observe.statsd import Statsd, expand_prefix, pack
from gnsqd.options import MILLISECOND, Options

# How long a push may take to come; nothing measures time with it.
DEADLINE = 30.0

Start = Callable[[Options], Statsd]


class Receiver:
    """A statsd."""

    def __init__(self) -> None:
        self._socket = gevent.socket.socket(type=gevent.socket.SOCK_DGRAM)
        self._socket.settimeout(DEADLINE)
        self._socket.bind(("127.0.0.1", 0))
        self.address = "127.0.0.1:{1}".format(*self._socket.getsockname())

    def packet(self) -> str:
        data: bytes = self._socket.recv(65536)
        return data.decode()

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.close()


@pytest.fixture
def log() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def start(registry: Registry, log: io.StringIO) -> Iterator[Start]:
    """Push by these options until the end of the test."""
    started = []

    def start(options: Options) -> Statsd:
        def spawn(name: str, body: Callable[[], None]) -> "gevent.Greenlet[[], None]":
            assert name == "statsdLoop"
            return gevent.spawn(body)

        started.append(Statsd(registry, options, MemoryStats(), Logger("", Level.INFO, log), spawn))
        started[-1].start()
        return started[-1]

    yield start
    for each in started:
        each.stop()


def options_for(address: str, **others: Any) -> Options:
    """All in one packet, and often. The daemon takes no interval as short as that; then all packets leave at once."""
    values: dict[str, Any] = {"statsd_mem_stats": False, "statsd_prefix": "", "statsd_udp_packet_size": 65000} | others
    return Options(statsd_address=address, statsd_interval=20 * MILLISECOND, **values)


def publish(registry: Registry, topic_name: str, *bodies: bytes) -> None:
    registry.get_topic(topic_name).publish(list(bodies))


def test_lines_of_topic_and_channel(registry: Registry, receiver: Receiver, start: Start) -> None:
    registry.get_topic("t").get_channel("c").pause()
    registry.get_topic("s")
    publish(registry, "t", b"abc", b"de")
    gevent.sleep(0)
    start(options_for(receiver.address, statsd_prefix="p."))
    assert receiver.packet().splitlines() == [
        "p.topic.s.message_count:0|c",
        "p.topic.s.message_bytes:0|c",
        "p.topic.s.depth:0|g",
        "p.topic.s.backend_depth:0|g",
        "p.topic.t.message_count:2|c",
        "p.topic.t.message_bytes:5|c",
        "p.topic.t.depth:0|g",
        "p.topic.t.backend_depth:0|g",
        "p.topic.t.channel.c.message_count:2|c",
        "p.topic.t.channel.c.depth:2|g",
        "p.topic.t.channel.c.backend_depth:0|g",
        "p.topic.t.channel.c.in_flight_count:0|g",
        "p.topic.t.channel.c.deferred_count:0|g",
        "p.topic.t.channel.c.requeue_count:0|c",
        "p.topic.t.channel.c.timeout_count:0|c",
        "p.topic.t.channel.c.clients:0|g",
    ]


def test_memory_comes_last(receiver: Receiver, start: Start) -> None:
    start(options_for(receiver.address, statsd_mem_stats=True))
    assert re.sub(r"-?\d+\|", "N|", receiver.packet()).splitlines() == [
        "mem.heap_objects:N|g",
        "mem.heap_idle_bytes:N|g",
        "mem.heap_in_use_bytes:N|g",
        "mem.heap_released_bytes:N|g",
        "mem.gc_pause_usec_100:N|g",
        "mem.gc_pause_usec_99:N|g",
        "mem.gc_pause_usec_95:N|g",
        "mem.next_gc_bytes:N|g",
        "mem.gc_runs:N|c",
    ]


def counts(packet: str) -> dict[str, int]:
    return {name: int(value) for name, value in re.findall(r"^(.+):(-?\d+)\|c$", packet, re.MULTILINE)}


def next_counts(receiver: Receiver, condition: Callable[[dict[str, int]], bool]) -> dict[str, int]:
    """Those of the next push that satisfies `condition`."""
    with gevent.Timeout(DEADLINE):
        while not condition(found := counts(receiver.packet())):
            pass
    return found


def test_counters_are_differences_to_the_previous_push(registry: Registry, receiver: Receiver, start: Start) -> None:
    publish(registry, "t", b"abc", b"de")
    start(options_for(receiver.address))
    assert counts(receiver.packet()) == {"topic.t.message_count": 2, "topic.t.message_bytes": 5}
    assert counts(receiver.packet()) == {"topic.t.message_count": 0, "topic.t.message_bytes": 0}
    publish(registry, "t", b"f")
    assert next_counts(receiver, lambda found: any(found.values())) == {
        "topic.t.message_count": 1,
        "topic.t.message_bytes": 1,
    }


def test_counters_of_a_topic_created_again_are_negative(registry: Registry, receiver: Receiver, start: Start) -> None:
    publish(registry, "t", b"abc", b"de")
    start(options_for(receiver.address))
    assert counts(receiver.packet())["topic.t.message_count"] == 2
    del registry.topics["t"]  # without a yield before there is another, so that no push sees that it is gone
    publish(registry, "t", b"f")
    sums: Counter[str] = Counter()
    with gevent.Timeout(DEADLINE):
        while sums != {"topic.t.message_count": -1, "topic.t.message_bytes": -4}:
            sums.update(counts(receiver.packet()))


def test_counters_of_a_topic_that_a_push_missed_start_at_zero(
    registry: Registry, receiver: Receiver, start: Start
) -> None:
    publish(registry, "t", b"abc", b"de")
    publish(registry, "other", b"")
    start(options_for(receiver.address))
    receiver.packet()
    registry.delete_existing_topic("t")
    next_counts(receiver, lambda found: "topic.t.message_count" not in found)
    publish(registry, "t", b"f")
    assert next_counts(receiver, lambda found: any(found.values()))["topic.t.message_count"] == 1


def test_names_with_dots_do_not_share_their_counters(registry: Registry, receiver: Receiver, start: Start) -> None:
    registry.get_topic("t").get_channel("c")
    publish(registry, "t", b"", b"")
    publish(registry, "t.channel.c", b"")
    gevent.sleep(0)
    start(options_for(receiver.address))
    count = re.compile(r"^topic\.t\.channel\.c\.message_count:(-?\d+)\|c$", re.MULTILINE)
    assert count.findall(receiver.packet()) == ["2", "1"]
    assert count.findall(receiver.packet()) == ["0", "0"]


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "127.0.0.1:65536", "127.0.0.1:no-such-service", "a..b:1", "no-such-host.invalid:1", ":x"]
)
def test_bad_address_is_logged_and_loses_no_counts(
    address: str, registry: Registry, receiver: Receiver, start: Start, log: io.StringIO
) -> None:
    publish(registry, "t", b"abc")
    options = options_for(address)
    start(options)
    with gevent.Timeout(DEADLINE):
        while f"ERROR: failed to create UDP socket to statsd({address})\n" not in log.getvalue():
            give_way()
    assert "pushing" not in log.getvalue()
    options.statsd_address = receiver.address
    assert counts(receiver.packet()) == {"topic.t.message_count": 1, "topic.t.message_bytes": 3}
    assert f"INFO: STATSD: pushing stats to {receiver.address}\n" in log.getvalue()


@pytest.mark.parametrize("host", ["localhost", ""])
def test_host_may_be_a_name_or_left_out(host: str, receiver: Receiver, start: Start) -> None:
    start(options_for(f"{host}:{receiver.address.rpartition(':')[2]}", statsd_mem_stats=True))
    assert receiver.packet().startswith("mem.heap_objects:")


@pytest.fixture
def hanging_look_ups(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names that were looked up; none is ever found."""
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
    with gevent.Timeout(DEADLINE):
        while log.getvalue().count("failed to create UDP socket to statsd(slow.example:8125)") < 3:
            give_way()
    assert hanging_look_ups == ["slow.example"]


def test_exit_waits_for_no_look_up(
    start: Start, log: io.StringIO, hanging_look_ups: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOOK_UP_SECONDS", DEADLINE)
    statsd = start(options_for("slow.example:8125"))
    with gevent.Timeout(DEADLINE / 2):
        while not hanging_look_ups:
            give_way()
        statsd.stop()
    assert log.getvalue().endswith("INFO: STATSD: closing\n")


def test_slow_look_up_serves_the_next_push(
    receiver: Receiver, start: Start, log: io.StringIO, monkeypatch: pytest.MonkeyPatch
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
    with gevent.Timeout(DEADLINE):
        while "failed" not in log.getvalue():
            give_way()
    answered.set()
    assert "mem.gc_runs" in receiver.packet()


def test_reading_many_topics_lets_others_have_their_turns(
    registry: Registry, receiver: Receiver, start: Start, log: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gnsqd.hub.cooperative.TURN_SECONDS", 0)
    for number in range(10):
        registry.topics[f"t{number}"] = registry.get_topic("t")
    start(options_for(receiver.address, statsd_udp_packet_size=1000))
    with gevent.Timeout(DEADLINE):
        while "pushing" not in log.getvalue():
            give_way()
        turns = 0
        packet = gevent.spawn(receiver.packet)
        while not packet.ready():
            give_way()
            turns += 1
    assert turns >= 10


@pytest.mark.parametrize(
    "prefix, host, port, expanded",
    [
        ("nsq.%s", "127.0.0.1", 4151, "nsq.127_0_0_1_4151."),
        ("nsq.%s.", "node-1.example", 80, "nsq.node-1_example_80."),
        ("nsq.%s", "::1", 4151, "nsq.[__1]_4151."),
        ("%s/%s", "a", 0, "a_0/a_0."),
        ("", "a", 1, ""),
        ("plain", "a", 1, "plain."),
        ("plain.", "a", 1, "plain."),
        ("100%", "a", 1, "100%."),
        ("%%s", "a", 1, "%a_1."),
    ],
)
def test_prefix_names_the_daemon(prefix: str, host: str, port: int, expanded: str) -> None:
    assert expand_prefix(prefix, host, port) == expanded


@pytest.mark.parametrize(
    "sizes, limit, packets",
    [
        ([], 10, []),
        ([5, 5], 10, [10]),
        ([5, 6], 10, [5, 6]),
        ([5, 4, 1, 1], 10, [10, 1]),
        ([3, 11, 3], 10, [3, 11, 3]),
        ([11, 11], 10, [11, 11]),
        ([3, 3], 1, [3, 3]),
        ([2000, 2000, 96, 1], 0, [4096, 1]),
        ([4000, 97], -1, [4000, 97]),
    ],
)
def test_packets_are_filled_with_whole_lines(sizes: list[int], limit: int, packets: list[int]) -> None:
    assert [len(packet) for packet in pack([b"x" * size for size in sizes], limit)] == packets


@given(st.lists(st.binary(min_size=1, max_size=40)), st.integers(1, 60))
def test_packets_hold_all_lines_in_order(lines: list[bytes], limit: int) -> None:
    packets = pack(lines, limit)
    assert b"".join(packets) == b"".join(lines)
    assert all(packet and (len(packet) <= limit or packet in lines) for packet in packets)
