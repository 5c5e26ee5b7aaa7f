"""Pushes the statistics to a statsd, by UDP, in the lines and packets of the real daemon (NSQD-COMPAT section 7).

Every statsd-interval all figures are read and packed at once; the packets are sent evenly over the interval except its
last second. A counter is sent as the difference to the previous push that had a socket.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from operator import attrgetter
from socket import AI_NUMERICHOST, SO_BROADCAST, SOCK_DGRAM, SOL_SOCKET, gaierror
from socket import getaddrinfo as getaddrinfo_at_once
from time import monotonic
from typing import Any

import gevent
import gevent.socket
from gevent import Greenlet
from gevent.event import Event

from gnsqd.broker.channel import Channel
from gnsqd.broker.registry import Registry
from gnsqd.broker.topic import Topic
from gnsqd.hub.cooperative import Spawn, Turns
from gnsqd.log import Logger
from gnsqd.net.addresses import HIGHEST_PORT
from gnsqd.observe.memory import MemoryStats
from gnsqd.observe.stats import STAT_FIELDS, StatField, e2e_latency
from gnsqd.options import SECOND, Options
from gnsqd.shared.statistics import StatKind

LOOK_UP_SECONDS = 1.0
SEND_SECONDS = 1.0
DEFAULT_PACKET_SIZE = 4096  # where the option is 0 or less

Name = tuple[str, ...]

# Counts of messages come first, the others follow in the order of /stats.
_FIELDS: dict[type, list[StatField]] = {
    kind: sorted(filter(attrgetter("statsd"), STAT_FIELDS[level]), key=lambda field: "message_" not in field.name)
    for kind, level in ((Topic, "topic"), (Channel, "channel"))
}


class Statsd:
    """Owns the counts of the last push, and `statsdLoop`."""

    def __init__(self, registry: Registry, options: Options, memory: MemoryStats, log: Logger, spawn: Spawn) -> None:
        self._registry = registry
        self._options = options
        self._memory = memory
        self._log = log
        self._spawn = spawn
        self._exit = Event()
        self._loop: Greenlet[..., None] | None = None
        self._look_up: Greenlet[..., list[Any]] | None = None
        self._counts: dict[Name, int] = {}

    def start(self) -> None:
        """Starts the loop; the first push comes after one interval."""
        self._loop = self._spawn("statsdLoop", self.statsdLoop)

    def stop(self) -> None:
        """Sends the rest of a push that has begun, and ends the loop. Yields."""
        self._exit.set()
        if self._loop is not None:
            self._loop.join()

    def statsdLoop(self) -> None:
        """Pushes every statsd-interval, until `stop`."""
        interval = self._options.statsd_interval / SECOND
        next_push = monotonic() + interval
        while not self._exit.wait(max(next_push - monotonic(), 0)):
            next_push = max(next_push + interval, monotonic())
            self._push(interval - 1)
        self._log.info("STATSD: closing")

    def _push(self, seconds: float) -> None:
        address = self._options.statsd_address
        try:
            sock = self._connect(address)
        except (OSError, ValueError):
            self._log.error("failed to create UDP socket to statsd(%s)", address)
            return
        with sock:
            self._log.info("STATSD: pushing stats to %s", address)
            packets = pack(self._lines(), self._options.statsd_udp_packet_size)
            start = monotonic()
            for number, packet in enumerate(packets):
                if number:
                    self._exit.wait(max(start + seconds * number / len(packets) - monotonic(), 0))
                with suppress(OSError):  # nobody may be listening just now
                    sock.send(packet)

    # The socket

    def _connect(self, address: str) -> gevent.socket.socket:
        """Returns a socket that only sends to `address`; raises OSError or ValueError."""
        host, colon, port = address.rpartition(":")
        if not colon or (port.isdecimal() and int(port) > HIGHEST_PORT):
            raise ValueError("neither host nor port, or a port that is none")
        failure = OSError("no address")
        for family, kind, protocol, _, address in self._resolve(host.removeprefix("[").removesuffix("]"), port):
            sock = gevent.socket.socket(family, kind, protocol)
            try:
                sock.setsockopt(SOL_SOCKET, SO_BROADCAST, 1)  # as Go does
                sock.settimeout(SEND_SECONDS)
                sock.connect(address)
                return sock
            except OSError as error:
                sock.close()
                failure = error
        raise failure

    def _resolve(self, host: str, port: str) -> list[Any]:
        """Resolves as getaddrinfo. A name that takes too long to look up is not looked up a second time meanwhile: it
        occupies one of the few threads that all look-ups share."""
        host = host or "localhost"
        with suppress(gaierror):
            return getaddrinfo_at_once(host, port, type=SOCK_DGRAM, flags=AI_NUMERICHOST)
        if self._look_up is None:
            self._look_up = gevent.spawn(_look_up, host, port)
            self._look_up.name = f"lookUp:{host}"
        gevent.wait([self._look_up, self._exit], LOOK_UP_SECONDS, 1)
        if not self._look_up.ready():
            return []
        look_up, self._look_up = self._look_up, None
        return list(look_up.get())

    # The lines

    def _lines(self) -> Iterator[bytes]:
        """Yields the lines of one push, and to other greenlets in between."""
        counts = {}
        for name, kind, value in self._figures():
            if kind is StatKind.COUNTER:
                counts[name] = value
                value -= self._counts.get(name, 0)
            letter = "c" if kind is StatKind.COUNTER else "g"
            line = f"{self._options.statsd_prefix}{'.'.join(name)}:{value}|{letter}\n"
            yield line.encode(errors="surrogateescape")
        self._counts = counts

    def _figures(self) -> Iterator[tuple[Name, StatKind, int]]:
        for name, thing in Turns().over(self._things()):
            for field in _FIELDS[type(thing)]:
                yield (*name, field.statsd), field.kind, field.getter(thing)
            latency = e2e_latency(thing)
            for quantile, value in latency.percentiles if latency is not None else ():
                yield (*name, f"e2e_processing_latency_{quantile * 100:.0f}"), StatKind.GAUGE, value
        if self._options.statsd_mem_stats:
            for key, value in self._memory.row().items():
                is_runs = key == "gc_total_runs"
                yield ("mem", "gc_runs" if is_runs else key), StatKind.COUNTER if is_runs else StatKind.GAUGE, value

    def _things(self) -> Iterator[tuple[Name, Topic | Channel]]:
        """Yields the topics by name, each followed by its channels by name."""
        by_name, without_ephemeral = attrgetter("name"), self._options.statsd_exclude_ephemeral
        for topic in sorted(self._registry.topics.values(), key=by_name):
            if without_ephemeral and topic.ephemeral:
                continue
            yield ("topic", topic.name), topic
            for channel in sorted(topic.channels.values(), key=by_name):
                if not (without_ephemeral and channel.ephemeral):
                    yield ("topic", topic.name, "channel", channel.name), channel


def _look_up(host: str, port: str) -> list[Any]:
    try:
        return list(gevent.socket.getaddrinfo(host, port, type=SOCK_DGRAM))
    except (OSError, ValueError):
        return []


def pack(lines: Iterable[bytes], size: int) -> list[bytes]:
    """Packs the lines into packets of at most `size` bytes; a line longer than that has one of its own."""
    limit = size if size > 0 else DEFAULT_PACKET_SIZE
    packets = [bytearray()]
    for line in lines:
        if packets[-1] and len(packets[-1]) + len(line) > limit:
            packets.append(bytearray())
        packets[-1] += line
    return [bytes(packet) for packet in packets if packet]
