"""What is measured: the table ROWS and the procedures behind it.

A row is one procedure that loads a running daemon and says how many messages per second went through and what CPU time
the daemon spent on them. The load comes from nsq's own bench_writer and bench_reader, whose log line carries the rate;
the backlog that a reader needs is published beforehand and costs the measurement nothing.
"""

import os
import re
import socket
import struct
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.lanes import BenchmarkError, cpu_seconds
from daemons import PEERS, Daemon, eventually, open_socket

TOPIC = "sub_bench"
CHANNEL = "ch"
BODY_SIZE = 200
FASTEST = 2_500_000  # messages per second, more than any daemon takes

# The line all of nsq's bench programs close with; the duration is Go's (15.2s, 1m0.5s).
RESULT = re.compile(r"duration: (?:(?P<minutes>\d+)m)?(?P<seconds>[\d.]+)s - .* - (?P<rate>[\d.]+)ops/s - ")

# nsqd's default max-body-size is 5 MiB.
MPUB_BYTES = 4 << 20
SETTLE_SECONDS = 60.0


class RanDry(BenchmarkError):
    """The consumer took everything there was, so its rate is the backlog's and not the daemon's."""


@dataclass(frozen=True)
class Load:
    """How long to load the daemon, and how many messages to prepare for each second of consuming."""

    seconds: float
    supply: int

    @property
    def backlog(self) -> int:
        return int(self.seconds * self.supply)


@dataclass(frozen=True)
class Measurement:
    rate: float  # messages per second
    messages: int
    cpu_seconds: float  # of the daemon, over all these messages
    on_disk: int  # messages that the memory queue had no room for

    @property
    def cpu_per_million(self) -> float:
        return self.cpu_seconds / self.messages * 1_000_000


@dataclass(frozen=True)
class Row:
    name: str
    title: str
    measure: Callable[[Daemon, Load], Measurement]
    mem_queue_size: Callable[[Load], int]


def writer(batch_size: int) -> Callable[[Daemon, Load], Measurement]:
    """bench_writer sends MPUBs of `batch_size`, one unanswered per connection (also with 1: it knows no PUB)."""

    def measure(daemon: Daemon, load: Load) -> Measurement:
        create_channel(daemon)
        return run_program(daemon, "bench_writer", load, f"--batch-size={batch_size}")

    return measure


def reader(rdy: int) -> Callable[[Daemon, Load], Measurement]:
    """bench_reader takes from a backlog in memory that outlasts it; RanDry if it did not."""

    def measure(daemon: Daemon, load: Load) -> Measurement:
        create_channel(daemon)
        publish(daemon, load.backlog)
        measurement = run_program(daemon, "bench_reader", load, f"--channel={CHANNEL}", f"--rdy={rdy}")
        # More than every connection's window left: the queue never was empty.
        if load.backlog - measurement.messages <= rdy * connections():
            raise RanDry(f"bench_reader took {measurement.messages} of {load.backlog} messages")
        return measurement

    return measure


# There is room in memory for all that comes, so that these rows measure no disk.
ROWS = (
    Row("writer-1", "bench_writer, batch 1", writer(1), lambda load: int(load.seconds * FASTEST)),
    Row("writer-20", "bench_writer, batch 20", writer(20), lambda load: int(load.seconds * FASTEST)),
    Row("writer-200", "bench_writer, batch 200", writer(200), lambda load: int(load.seconds * FASTEST)),
    Row("reader-2500", "bench_reader, RDY 2500", reader(2500), lambda load: load.backlog),
)


def run_program(daemon: Daemon, name: str, load: Load, *flags: str) -> Measurement:
    """Runs one of nsq's bench programs against `daemon`; BenchmarkError if it fails."""
    command = [
        str(PEERS / name),
        "--nsqd-tcp-address={}:{}".format(*daemon.tcp_address),
        f"--runfor={load.seconds:g}s",
        f"--size={BODY_SIZE}",
        f"--topic={TOPIC}",
        *flags,
    ]
    before = cpu_seconds(daemon)
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=load.seconds + SETTLE_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise BenchmarkError(f"{name} still runs after {error.timeout:g} s") from error
    result = RESULT.search(run.stderr)
    if run.returncode != 0 or result is None:
        raise BenchmarkError(f"{name} exited with {run.returncode}:\n{run.stderr.strip()}")
    # What the topic has not handed to its channel yet is work on these messages too.
    eventually(lambda: topic_stats(daemon)["depth"] == 0, "topic is empty", SETTLE_SECONDS)
    spent = cpu_seconds(daemon) - before
    rate = float(result["rate"])
    elapsed = int(result["minutes"] or 0) * 60 + float(result["seconds"])
    return Measurement(rate, round(rate * elapsed), spent, topic_stats(daemon)["channels"][0]["backend_depth"])


def connections() -> int:
    """How many connections nsq's bench programs open: GOMAXPROCS."""
    return len(os.sched_getaffinity(0))


def topic_stats(daemon: Daemon) -> dict[str, Any]:
    topic: dict[str, Any] = daemon.stats(TOPIC)["topics"][0]
    return topic


def create_channel(daemon: Daemon) -> None:
    for path in (f"/topic/create?topic={TOPIC}", f"/channel/create?topic={TOPIC}&channel={CHANNEL}"):
        status, _, body = daemon.http("POST", path)
        if status != 200:
            raise BenchmarkError(f"POST {path}: {status} {body.decode(errors='replace')}")


def publish(daemon: Daemon, count: int) -> None:
    """Puts `count` messages into the channel by large MPUBs and waits until all of them are there."""
    batch = MPUB_BYTES // (4 + BODY_SIZE)
    with open_socket(daemon.tcp_address, SETTLE_SECONDS) as connection:
        connection.sendall(b"  V2")
        for start in range(0, count, batch):
            connection.sendall(mpub(min(batch, count - start)))
            answer = connection.recv(10, socket.MSG_WAITALL)
            if answer != struct.pack(">ii", 6, 0) + b"OK":
                raise BenchmarkError(f"MPUB was answered {answer!r}")
    eventually(lambda: topic_stats(daemon)["channels"][0]["depth"] == count, "backlog is there", SETTLE_SECONDS)


def mpub(count: int) -> bytes:
    messages = (struct.pack(">i", BODY_SIZE) + bytes(BODY_SIZE)) * count
    return f"MPUB {TOPIC}\n".encode() + struct.pack(">ii", len(messages) + 4, count) + messages
