"""Procedures about what a daemon takes: resident memory, CPU time at rest, and time and memory to create topics and
channels."""

import time
from contextlib import ExitStack
from statistics import median

from benchmarks.lanes import cpu_seconds
from benchmarks.programs import ON_CHANNEL, drain, fill, holding, publish
from benchmarks.queues import CHANNEL, TOPIC, create_channel, wait_for_channel
from benchmarks.row import KILOBYTES, MEGABYTES, MILLISECONDS, Load, Measurement, procedure
from kit.daemons import Daemon
from kit.nsq_client import Client
from kit.observers import resident_bytes
from kit.traffic import create, post

CONNECTIONS = 1000

PEAKS = dict.fromkeys(("started", "filled", "drained"), MEGABYTES)
BACKLOG_BYTES = 2000  # for each of the messages that a backlog has; its bodies may be larger
RDY = 100

CREATED = {"each": MILLISECONDS, "last 100": MILLISECONDS, "memory": KILOBYTES}


def idle_memory(daemon: Daemon, load: Load) -> Measurement:
    """MB of a daemon that has just started."""
    return Measurement(resident_bytes(daemon) / 1e6)


def message_memory(daemon: Daemon, load: Load) -> Measurement:
    """MB for 100,000 messages waiting in memory, of as many as a stored backlog has."""
    create_channel(daemon)
    before = resident_bytes(daemon)
    fill(daemon, load.stored)
    return Measurement((resident_bytes(daemon) - before) / 1e6 / load.stored * 100_000)


def connection_memory(daemon: Daemon, load: Load) -> Measurement:
    """kB for a consumer that nothing comes for."""
    create_channel(daemon)
    before = resident_bytes(daemon)
    with holding(daemon, ON_CHANNEL, f"-consumers={CONNECTIONS}", "-rdy=1"):
        return Measurement((resident_bytes(daemon) - before) / 1e3 / CONNECTIONS)


def cpu_share(daemon: Daemon, seconds: float) -> float:
    """How much of one CPU the daemon uses in the next `seconds`."""
    before, began = cpu_seconds(daemon), time.monotonic()
    time.sleep(seconds)
    return (cpu_seconds(daemon) - before) / (time.monotonic() - began)


@procedure
def peaks(daemon: Daemon, load: Load, body_size: int) -> Measurement:
    """The most that is resident while a backlog of 2 kB for each stored message is published with bodies of this size
    and consumed. The second half is published while the topic is paused, so that its memory queue fills too."""
    count = load.stored * BACKLOG_BYTES // body_size
    create_channel(daemon)
    found = [resident_bytes(daemon, "VmHWM")]
    fill(daemon, count // 2, body_size)
    post(daemon, f"/topic/pause?topic={TOPIC}")
    publish(daemon, count - count // 2, body_size)
    found.append(resident_bytes(daemon, "VmHWM"))
    post(daemon, f"/topic/unpause?topic={TOPIC}")
    wait_for_channel(daemon, depth=count)
    drain(daemon, count, RDY)
    wait_for_channel(daemon, depth=0, in_flight_count=0)
    found.append(resident_bytes(daemon, "VmHWM"))
    return Measurement(parts=dict(zip(PEAKS, (each / 1e6 for each in found), strict=True)))


@procedure
def creation(daemon: Daemon, load: Load, what: str) -> Measurement:
    """`topics`, one of the `channels` of each, or `ephemeral` channels of one topic, each with a consumer."""
    count = max(load.stored // (200 if what == "ephemeral" else 100), 1)
    names = [f"topic{number}" for number in range(count)]
    if what == "channels":
        for name in names:
            create(daemon, name)
    spent, memory = cpu_seconds(daemon), resident_bytes(daemon)
    times = []
    with ExitStack() as clients:
        for name in names:
            begin = time.perf_counter()
            if what == "ephemeral":
                clients.enter_context(Client(daemon.tcp_address)).subscribe(TOPIC, f"{name}#ephemeral", rdy=1)
            else:
                post(daemon, f"/{what[:-1]}/create?topic={name}&channel={CHANNEL}")
            times.append(1000 * (time.perf_counter() - begin))
        spent, memory = cpu_seconds(daemon) - spent, resident_bytes(daemon) - memory
    figures = (median(times), median(times[-100:]), memory / 1e3 / count)
    return Measurement(messages=count, cpu_seconds=spent, parts=dict(zip(CREATED, figures, strict=True)))
