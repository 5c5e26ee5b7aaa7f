"""Procedures about the disk: draining a backlog, a clean exit with one, a start."""

import time

from benchmarks import queues
from benchmarks.lanes import BenchmarkError, cpu_seconds
from benchmarks.programs import drain, fill
from benchmarks.queues import CHANNEL, TOPIC
from benchmarks.row import Load, Measurement, Procedure, procedure
from benchmarks.throughput import but_last_windows, consumed
from kit.daemons import Daemon
from kit.traffic import post

RDY = 2500


def drain_all(daemon: Daemon, load: Load) -> Measurement:
    """The load generator takes a backlog from disk."""
    if (depth := queues.channel_stats(daemon)["backend_depth"]) != load.stored:
        raise BenchmarkError(f"{depth} messages on disk instead of {load.stored}")
    return consumed(drain(daemon, but_last_windows(load, RDY), RDY))


@procedure
def with_backlog(daemon: Daemon, load: Load, measure: Procedure) -> Measurement:
    """Starts the daemon again with a backlog in the channel's disk queue, and measures that one."""
    fill(daemon, load.stored)
    daemon.restart("--mem-queue-size=10000")  # nsqd's default
    return measure(daemon, load)


def drain_rewound(daemon: Daemon, load: Load) -> Measurement:
    """As `drain_all`, in a daemon with retention after all was finished, and the channel rewound."""
    fill(daemon, load.stored)
    channel = f"topic={TOPIC}&channel={CHANNEL}"
    if daemon.http("GET", f"/channel/rewind?{channel}&to=first")[0] == 200:
        post(daemon, f"/channel/empty?{channel}")
        post(daemon, f"/channel/rewind?{channel}&to=first")
    return drain_all(daemon, load)


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
    fill(daemon, load.stored)
    if (depth := queues.channel_stats(daemon)["backend_depth"]) != 0:
        raise BenchmarkError(f"{depth} messages on disk already")
    return end(daemon)


def end(daemon: Daemon) -> Measurement:
    """From SIGTERM to the end of the process."""
    began = time.monotonic()
    if (code := daemon.terminate()) != 0:
        raise BenchmarkError(f"exited with {code}:\n{daemon.log()}")
    return Measurement(time.monotonic() - began)
