"""Procedures about what a daemon takes: resident memory, CPU time at rest, and time and memory to create topics and
channels."""

import http.client
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from statistics import median
from time import perf_counter

from benchmarks.clients import drain, publish
from benchmarks.lanes import cpu_seconds, resident
from benchmarks.programs import ON_CHANNEL, holding
from benchmarks.queues import CHANNEL, TOPIC, connections, create_channel, fill, wait_for_channel
from benchmarks.row import KILOBYTES, MEGABYTES, MILLISECONDS, Load, Measurement
from kit.daemons import Daemon
from kit.nsq_client import Client
from kit.traffic import post

CONNECTIONS = 1000
PING_SECONDS = 0.01

PEAKS = dict.fromkeys(("started", "filled", "drained"), MEGABYTES)
BACKLOG_BYTES = 2000  # for each of the messages that a backlog has; its bodies may be larger
RDY = 100

CREATED = {"each": MILLISECONDS, "last 100": MILLISECONDS, "longest ping": MILLISECONDS, "memory": KILOBYTES}


def idle_memory(daemon: Daemon, load: Load) -> Measurement:
    """MB of a daemon that has just started."""
    return Measurement(resident(daemon) / 1e6)


def message_memory(daemon: Daemon, load: Load) -> Measurement:
    """MB for 100,000 messages waiting in memory, of as many as a stored backlog has."""
    create_channel(daemon)
    before = resident(daemon)
    fill(daemon, load.stored)
    return Measurement((resident(daemon) - before) / 1e6 / load.stored * 100_000)


def connection_memory(daemon: Daemon, load: Load) -> Measurement:
    """kB for a consumer that nothing comes for."""
    create_channel(daemon)
    before = resident(daemon)
    with holding(daemon, ON_CHANNEL, f"-consumers={CONNECTIONS}", "-rdy=1"):
        return Measurement((resident(daemon) - before) / 1e3 / CONNECTIONS)


def heartbeats(daemon: Daemon, load: Load) -> Measurement:
    """CPU time, in % of one CPU, for consumers that nothing comes for and that are sent a heartbeat each second."""
    create_channel(daemon)
    with holding(daemon, ON_CHANNEL, f"-consumers={CONNECTIONS}", "-rdy=1", "-heartbeat=1s"):
        return Measurement(100 * cpu_share(daemon, load.seconds))


def cpu_share(daemon: Daemon, seconds: float) -> float:
    """How much of one CPU the daemon uses in the next `seconds`."""
    before, began = cpu_seconds(daemon), time.monotonic()
    time.sleep(seconds)
    return (cpu_seconds(daemon) - before) / (time.monotonic() - began)


def peaks(body_size: int) -> Callable[[Daemon, Load], Measurement]:
    """The most that is resident while a backlog of 2 kB for each stored message is published with bodies of this size
    and consumed. The second half is published while the topic is paused, so that its memory queue fills too."""

    def measure(daemon: Daemon, load: Load) -> Measurement:
        count = load.stored * BACKLOG_BYTES // body_size
        create_channel(daemon)
        found = [resident(daemon, "VmHWM")]
        fill(daemon, count // 2, body_size)
        post(daemon, f"/topic/pause?topic={TOPIC}")
        publish(daemon.tcp_address, TOPIC, count - count // 2, body_size)
        found.append(resident(daemon, "VmHWM"))
        post(daemon, f"/topic/unpause?topic={TOPIC}")
        wait_for_channel(daemon, depth=count)
        opened = connections()
        drain(daemon.tcp_address, TOPIC, CHANNEL, count, body_size, rdy=RDY, connections=opened, until=count)
        wait_for_channel(daemon, in_flight_count=0)
        found.append(resident(daemon, "VmHWM"))
        return Measurement(parts=dict(zip(PEAKS, (each / 1e6 for each in found), strict=True)))

    return measure


def creation(what: str) -> Callable[[Daemon, Load], Measurement]:
    """`topics`, one channel of each topic (`channels`), or `ephemeral` channels of one topic, each with a consumer: one
    after the other, while a ping every 10 ms shows for how long the daemon answers nobody."""

    def measure(daemon: Daemon, load: Load) -> Measurement:
        connection = http.client.HTTPConnection(*daemon.http_address)
        with ExitStack() as clients:

            def create(kind: str, number: int) -> None:
                if kind == "ephemeral":
                    client = clients.enter_context(Client(daemon.tcp_address))
                    client.subscribe(TOPIC, f"c{number}#ephemeral", rdy=1)
                    return
                channel = "&channel=c" * (kind == "channels")
                connection.request("POST", f"/{kind[:-1]}/create?topic=topic{number}{channel}")
                answer = connection.getresponse()
                assert (answer.read(), answer.status) == (b"", 200)

            count = max(load.stored // (200 if what == "ephemeral" else 100), 1)
            if what == "channels":
                for number in range(count):
                    create("topics", number)
            return timed(daemon, count, lambda number: create(what, number))

    return measure


def timed(daemon: Daemon, count: int, create: Callable[[int], None]) -> Measurement:
    times = []
    spent, memory = cpu_seconds(daemon), resident(daemon)
    with pinging(daemon) as pings:
        for number in range(count):
            begin = perf_counter()
            create(number)
            times.append(1000 * (perf_counter() - begin))
    spent, memory = cpu_seconds(daemon) - spent, resident(daemon) - memory
    figures = (median(times), median(times[-100:]), 1000 * max(pings), memory / 1e3 / count)
    return Measurement(messages=count, cpu_seconds=spent, parts=dict(zip(CREATED, figures, strict=True)))


@contextmanager
def pinging(daemon: Daemon) -> Iterator[list[float]]:
    """How long each ping took, in seconds."""
    pings: list[float] = []
    stop = threading.Event()

    def ping() -> None:
        connection = http.client.HTTPConnection(*daemon.http_address)
        while not stop.wait(PING_SECONDS if pings else 0):
            begin = perf_counter()
            connection.request("GET", "/ping")
            connection.getresponse().read()
            pings.append(perf_counter() - begin)
        connection.close()

    thread = threading.Thread(target=ping)
    thread.start()
    try:
        yield pings
    finally:
        stop.set()
        thread.join()
