"""What is measured: the table ROWS and the procedures behind it.

A row is one procedure on a running daemon. It gives a figure, messages per second or seconds, and the CPU time that
the daemon spent on it. The load comes from nsq's own bench_writer and bench_reader, whose log line carries the rate,
or from `clients` where all of a backlog is to be moved. What a reader needs is published beforehand and costs the
measurement nothing.
"""

import http.client
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from benchmarks.clients import drain, publish
from benchmarks.lanes import BenchmarkError, cpu_seconds
from daemons import DEADLINE, PEERS, Daemon, eventually, free_port

TOPIC = "sub_bench"
CHANNEL = "ch"
BODY_SIZE = 200
FASTEST = 2_500_000  # messages per second, more than any daemon takes

# The line all of nsq's bench programs close with; the duration is Go's (15.2s, 1m0.5s).
RESULT = re.compile(r"duration: (?:(?P<minutes>\d+)m)?(?P<seconds>[\d.]+)s - .* - (?P<rate>[\d.]+)ops/s - ")

SETTLE_SECONDS = 60.0
POLL_SECONDS = 0.001

# The consumer must not be what is measured.
MAX_BUSY = 0.5


class RanDry(BenchmarkError):
    """The consumer took everything there was, so its rate is the backlog's and not the daemon's."""


@dataclass(frozen=True)
class Load:
    """How long to load the daemon, how many messages to prepare for each second of consuming, how many are stored."""

    seconds: float
    supply: int
    stored: int = 0

    @property
    def backlog(self) -> int:
        return int(self.seconds * self.supply)


@dataclass(frozen=True)
class Measurement:
    value: float  # in the unit of the row
    messages: int  # 0 where none are moved
    cpu_seconds: float  # of the daemon, over all these messages
    on_disk: int = 0  # messages that the memory queue had no room for
    behind: int = 0  # messages that were published, but not yet in the channel

    @property
    def cpu_per_million(self) -> float | None:
        return self.cpu_seconds / self.messages * 1_000_000 if self.messages else None


@dataclass(frozen=True)
class Unit:
    name: str
    more_is_faster: bool
    form: str  # of a figure in the table


RATE = Unit("messages/s", more_is_faster=True, form=",.0f")
SECONDS = Unit("s", more_is_faster=False, form=".3f")


@dataclass(frozen=True)
class Row:
    name: str
    title: str
    measure: Callable[[Daemon, Load], Measurement]
    mem_queue_size: Callable[[Load], int] | None  # None is nsqd's default
    unit: Unit = RATE
    stored: bool = False  # the daemon starts with a backlog on disk
    in_memory: bool = True  # nothing of what is measured should be on disk

    def speedup(self, value: float, base: float) -> float:
        """How many times as fast as `base` a figure is."""
        return value / base if self.unit.more_is_faster else base / value


def writer(batch_size: int) -> Callable[[Daemon, Load], Measurement]:
    """bench_writer sends MPUBs of `batch_size`, one unanswered per connection (also with 1: it knows no PUB)."""

    def measure(daemon: Daemon, load: Load) -> Measurement:
        create_channel(daemon)
        return run_program(daemon, "bench_writer", load, f"--batch-size={batch_size}")

    return measure


def reader(rdy: int) -> Callable[[Daemon, Load], Measurement]:
    """bench_reader takes from a backlog in memory that outlasts it; RanDry if it did not."""

    def measure(daemon: Daemon, load: Load) -> Measurement:
        fill(daemon, load.backlog)
        measurement = run_program(daemon, "bench_reader", load, f"--channel={CHANNEL}", f"--rdy={rdy}")
        # More than every connection's window left: the queue never was empty.
        if load.backlog - measurement.messages <= rdy * connections():
            raise RanDry(f"bench_reader took {measurement.messages} of {load.backlog} messages")
        return measurement

    return measure


def drainer(rdy: int) -> Callable[[Daemon, Load], Measurement]:
    """All that is stored goes to as many connections as nsq's bench programs open.

    The last windows are left out of the rate: less than an output buffer's load waits up to output-buffer-timeout for
    the next tick, and that is no speed.
    """

    def measure(daemon: Daemon, load: Load) -> Measurement:
        if (depth := channel_stats(daemon)["backend_depth"]) != load.stored:
            raise BenchmarkError(f"{depth} messages on disk instead of {load.stored}")
        until = max(load.stored - 2 * rdy * connections(), 1)
        before = cpu_seconds(daemon)
        drained = drain(
            daemon.tcp_address, TOPIC, CHANNEL, load.stored, BODY_SIZE, rdy=rdy, connections=connections(), until=until
        )
        eventually(lambda: channel_stats(daemon)["in_flight_count"] == 0, "all is finished", SETTLE_SECONDS)
        spent = cpu_seconds(daemon) - before
        if drained.busy > MAX_BUSY:
            raise BenchmarkError(f"the consumer was busy {drained.busy:.0%} of the time")
        return Measurement(drained.messages / drained.seconds, load.stored, spent)

    return measure


def restart(daemon: Daemon, load: Load) -> Measurement:
    """From just before exec to the first answer to /ping, after a clean exit."""
    if (code := daemon.terminate()) != 0:
        raise BenchmarkError(f"exited with {code}")
    port = free_port()
    with ThreadPoolExecutor(1) as pool:
        began = time.monotonic()
        answered = pool.submit(first_answer, port)
        daemon.restart(*daemon.flags, f"--http-address=127.0.0.1:{port}")
        seconds = answered.result() - began
    return Measurement(seconds, 0, cpu_seconds(daemon))


def first_answer(port: int) -> float:
    """The monotonic time at which /ping is first answered with 200."""
    deadline = time.monotonic() + DEADLINE
    while time.monotonic() < deadline:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE)
        try:
            connection.request("GET", "/ping")
            if connection.getresponse().status == 200:
                return time.monotonic()
        except ConnectionError:
            pass
        finally:
            connection.close()
        time.sleep(POLL_SECONDS)
    raise BenchmarkError(f"/ping was not answered within {DEADLINE:g} s")


def clean_exit(daemon: Daemon, load: Load) -> Measurement:
    """From SIGTERM to the end of the process, with as many messages in memory as are stored elsewhere."""
    fill(daemon, load.stored)
    if (depth := channel_stats(daemon)["backend_depth"]) != 0:
        raise BenchmarkError(f"{depth} messages on disk already")
    before = cpu_seconds(daemon)
    began = time.monotonic()
    daemon.send_signal(signal.SIGTERM)
    # Not reaped yet: its CPU time stays in /proc until then.
    eventually(lambda: os.waitid(os.P_PID, daemon.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG), "exit", SETTLE_SECONDS)
    seconds = time.monotonic() - began
    spent = cpu_seconds(daemon) - before
    if (code := daemon.wait()) != 0:
        raise BenchmarkError(f"exited with {code}:\n{daemon.log()}")
    return Measurement(seconds, load.stored, spent)


def all_that_comes(load: Load) -> int:
    return int(load.seconds * FASTEST)


ROWS = (
    Row("writer-1", "bench_writer, batch 1", writer(1), all_that_comes),
    Row("writer-20", "bench_writer, batch 20", writer(20), all_that_comes),
    Row("writer-200", "bench_writer, batch 200", writer(200), all_that_comes),
    Row("reader-2500", "bench_reader, RDY 2500", reader(2500), lambda load: load.backlog),
    # Each message is written twice: the topic's disk queue and the channel's.
    Row("disk-writer-1", "bench_writer, batch 1, to disk", writer(1), lambda load: 0, in_memory=False),
    Row("disk-writer-20", "bench_writer, batch 20, to disk", writer(20), lambda load: 0, in_memory=False),
    Row("disk-writer-200", "bench_writer, batch 200, to disk", writer(200), lambda load: 0, in_memory=False),
    Row("drain", "drain the backlog from disk, RDY 2500", drainer(2500), None, stored=True, in_memory=False),
    Row("exit", "clean exit with the backlog in memory", clean_exit, lambda load: load.stored, SECONDS),
    Row("restart-empty", "restart, no backlog", restart, None, SECONDS, in_memory=False),
    Row("restart", "restart with the backlog on disk", restart, None, SECONDS, stored=True, in_memory=False),
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
    behind = topic_stats(daemon)["depth"]
    # What the topic has not handed to its channel yet is work on these messages too.
    eventually(lambda: topic_stats(daemon)["depth"] == 0, "topic is empty", SETTLE_SECONDS)
    spent = cpu_seconds(daemon) - before
    rate = float(result["rate"])
    elapsed = int(result["minutes"] or 0) * 60 + float(result["seconds"])
    on_disk = channel_stats(daemon)["backend_depth"]
    return Measurement(rate, round(rate * elapsed), spent, on_disk, behind)


def connections() -> int:
    """How many connections nsq's bench programs open: GOMAXPROCS."""
    return len(os.sched_getaffinity(0))


def topic_stats(daemon: Daemon) -> dict[str, Any]:
    topic: dict[str, Any] = daemon.stats(TOPIC)["topics"][0]
    return topic


def channel_stats(daemon: Daemon) -> dict[str, Any]:
    channel: dict[str, Any] = topic_stats(daemon)["channels"][0]
    return channel


def create_channel(daemon: Daemon) -> None:
    for path in (f"/topic/create?topic={TOPIC}", f"/channel/create?topic={TOPIC}&channel={CHANNEL}"):
        status, _, body = daemon.http("POST", path)
        if status != 200:
            raise BenchmarkError(f"POST {path}: {status} {body.decode(errors='replace')}")


def fill(daemon: Daemon, count: int) -> None:
    """Publishes `count` messages and waits until all of them are in the channel."""
    create_channel(daemon)
    publish(daemon.tcp_address, TOPIC, count, BODY_SIZE)
    eventually(lambda: channel_stats(daemon)["depth"] == count, "backlog is there", SETTLE_SECONDS)
