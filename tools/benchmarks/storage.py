"""Procedures about the disk: draining a backlog, a clean exit with one, a start."""

import time

from benchmarks import queues
from benchmarks.clients import drain
from benchmarks.lanes import BenchmarkError, cpu_seconds
from benchmarks.queues import BODY_SIZE, CHANNEL, TOPIC
from benchmarks.row import Load, Measurement, procedure
from kit.daemons import Daemon
from kit.traffic import post

# The consumer must not be what is measured.
MAX_BUSY = 0.5


@procedure
def drainer(daemon: Daemon, load: Load, rdy: int) -> Measurement:
    """All that is stored goes to as many connections as nsq's bench programs open.

    The last windows are left out of the rate: less than an output buffer's load waits up to output-buffer-timeout for
    the next tick, which is not a speed.
    """
    if (depth := queues.channel_stats(daemon)["backend_depth"]) != load.stored:
        raise BenchmarkError(f"{depth} messages on disk instead of {load.stored}")
    until = max(load.stored - 2 * rdy * queues.connections(), 1)
    before = cpu_seconds(daemon)
    drained = drain(
        daemon.tcp_address,
        TOPIC,
        CHANNEL,
        load.stored,
        BODY_SIZE,
        rdy=rdy,
        connections=queues.connections(),
        until=until,
    )
    queues.wait_for_channel(daemon, in_flight_count=0)
    spent = cpu_seconds(daemon) - before
    if drained.busy > MAX_BUSY:
        raise BenchmarkError(f"the consumer was busy {drained.busy:.0%} of the time")
    return Measurement(drained.messages / drained.seconds, load.stored, spent)


def drain_rewound(daemon: Daemon, load: Load) -> Measurement:
    """As `drainer`, in a daemon with retention after all was finished, and the channel rewound."""
    queues.fill(daemon, load.stored)
    channel = f"topic={TOPIC}&channel={CHANNEL}"
    if daemon.http("GET", f"/channel/rewind?{channel}&to=first")[0] == 200:
        post(daemon, f"/channel/empty?{channel}")
        post(daemon, f"/channel/rewind?{channel}&to=first")
    return drainer(2500)(daemon, load)


def restart(daemon: Daemon, load: Load) -> Measurement:
    """After a clean exit."""
    end(daemon)
    return start(daemon)


def start(daemon: Daemon) -> Measurement:
    """From just before exec to the answer to /ping that the test kit gets, which asks every 2 ms."""
    began = time.monotonic()
    daemon.start()
    return Measurement(time.monotonic() - began, cpu_seconds=cpu_seconds(daemon))


def clean_exit(daemon: Daemon, load: Load) -> Measurement:
    """With as many messages in memory as are stored elsewhere."""
    queues.fill(daemon, load.stored)
    if (depth := queues.channel_stats(daemon)["backend_depth"]) != 0:
        raise BenchmarkError(f"{depth} messages on disk already")
    return end(daemon)


def end(daemon: Daemon) -> Measurement:
    """From SIGTERM to the end of the process."""
    began = time.monotonic()
    if (code := daemon.terminate()) != 0:
        raise BenchmarkError(f"exited with {code}:\n{daemon.log()}")
    return Measurement(time.monotonic() - began)
