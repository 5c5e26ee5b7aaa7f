"""Procedures about what a daemon takes without doing much: resident memory, and CPU time at rest."""

import time

from benchmarks.lanes import cpu_seconds, resident
from benchmarks.programs import holding, on_channel
from benchmarks.queues import create_channel, fill
from benchmarks.row import Load, Measurement
from kit.daemons import Daemon

CONNECTIONS = 1000


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
    with holding(daemon, on_channel(), f"-consumers={CONNECTIONS}", "-rdy=1"):
        return Measurement((resident(daemon) - before) / 1e3 / CONNECTIONS)


def heartbeats(daemon: Daemon, load: Load) -> Measurement:
    """CPU time, in % of one CPU, for consumers that nothing comes for and that are sent a heartbeat each second."""
    create_channel(daemon)
    with holding(daemon, on_channel(), f"-consumers={CONNECTIONS}", "-rdy=1", "-heartbeat=1s"):
        return Measurement(100 * cpu_share(daemon, load.seconds))


def cpu_share(daemon: Daemon, seconds: float) -> float:
    """How much of one CPU the daemon uses in the next `seconds`."""
    before, began = cpu_seconds(daemon), time.monotonic()
    time.sleep(seconds)
    return (cpu_seconds(daemon) - before) / (time.monotonic() - began)
