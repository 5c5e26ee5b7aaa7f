"""Rows of the benchmark, in ROWS: a frame or a stream to run, and what the daemon holds before.

Everything is read and written once, from the call of the action to its end, by a local session of two cores; that
includes planning, and with a stream its start. What is read goes nowhere (`noop`). CPU time comes from /proc, so the
benchmark needs Linux.
"""

import os
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.lanes import cpu_seconds
from kit.daemons import Instance
from kit.nsq_client import NSQClient
from kit.spark_topics import daemon_options, sink_options
from kit.traffic import create, wait_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SIZE = 200  # bytes of a body
TOPIC, CHANNEL = "bench", "spark"


class Cost(NamedTuple):
    """Seconds of one run: its time, and the CPU time of Spark, of its Python processes alone, and of the daemon."""

    seconds: float
    spark: float
    python: float
    daemon: float


def spark_cpu(jvm: int) -> tuple[float, float]:
    """Returns the CPU time, in seconds, of the JVM and all processes below it, running or not, and without the JVM."""
    ticks, children = {jvm: 0}, defaultdict(list)
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):
            fields = path.read_text().rpartition(") ")[2].split()
            child = int(path.parent.name)
            children[int(fields[1])].append(child)
            ticks[child] = sum(map(int, fields[11:15]))
            if child == jvm:
                own = sum(map(int, fields[11:13]))

    def total(process: int) -> int:
        return ticks[process] + sum(map(total, children[process]))

    ticks_per_second = os.sysconf("SC_CLK_TCK")
    return total(jvm) / ticks_per_second, (total(jvm) - own) / ticks_per_second


@dataclass(frozen=True)
class Bench:
    """One run: a fresh directory, a running daemon with fresh data, and how many messages there are in all."""

    spark: "SparkSession"
    options: dict[str, str]
    daemon: Instance
    directory: Path
    messages: int

    def fill(self, *channels: str) -> None:
        """Publishes the messages. When this returns, these channels have them all."""
        count = 1000
        batch = [b"%0*d" % (SIZE, number) for number in range(count)]
        create(self.daemon, TOPIC, *channels)
        with NSQClient(self.daemon.tcp_address) as client:
            client.identify(heartbeat_interval=-1)
            for _ in range(self.messages // count):
                client.publish(TOPIC, *batch)
        for channel in channels:
            wait_for(self.daemon, TOPIC, channel, depth=self.messages)

    def cost(self, action: Callable[[], object]) -> Cost:
        before = self._spent()
        action()
        return Cost(*(now - then for now, then in zip(self._spent(), before, strict=True)))

    def _spent(self) -> Cost:
        jvm = self.spark.sparkContext._gateway.proc.pid  # type: ignore[union-attr]
        daemon = cpu_seconds(self.daemon) if self.daemon.running else 0.0
        return Cost(time.perf_counter(), *spark_cpu(jvm), daemon)


def stream(bench: Bench, **options: str) -> Cost:
    bench.fill(CHANNEL)
    frame = bench.spark.readStream.format("nsq").options(**{**bench.options, **options}).load()
    sink = frame.writeStream.format("noop").option("checkpointLocation", str(bench.directory / "checkpoint"))
    rows = 0

    def read() -> None:
        nonlocal rows
        query = sink.trigger(availableNow=True).start()
        query.awaitTermination()
        rows = sum(progress.numInputRows for progress in query.recentProgress)

    cost = bench.cost(read)
    assert rows == bench.messages, rows
    return cost


def batch(bench: Bench, **options: str) -> Cost:
    bench.fill(CHANNEL)
    frame = bench.spark.read.format("nsq").options(**{**bench.options, **options}).load()
    return bench.cost(lambda: frame.write.format("noop").mode("append").save())


def write(bench: Bench) -> Cost:
    body = f"CAST(lpad(CAST(id AS STRING), {SIZE}, '0') AS BINARY) AS value"
    frame = bench.spark.range(0, bench.messages, 1, 2).selectExpr(body)
    writer = frame.write.format("nsq").options(**sink_options(bench.daemon), topic=TOPIC).mode("append")
    cost = bench.cost(writer.save)
    (topic,) = bench.daemon.stats(TOPIC)["topics"]
    assert topic["message_count"] == bench.messages, topic
    return cost


def diskqueue(bench: Bench) -> Cost:
    bench.fill()
    bench.daemon.terminate()
    frame = bench.spark.read.format("nsq_diskqueue").load(str(bench.daemon.data_path))
    sums: list[int] = []
    cost = bench.cost(lambda: sums.append(frame.selectExpr("sum(length(value)) AS bytes").collect()[0].bytes))
    assert sums == [bench.messages * SIZE]
    return cost


@dataclass(frozen=True)
class BenchRow:
    """`of` names the daemons that are measured."""

    key: str
    name: str
    run: Callable[[Bench], Cost]
    flags: tuple[str, ...]
    of: tuple[str, ...] = ("gnsqd", "nsqd")


IN_MEMORY, ON_DISK = ("--mem-queue-size=10000000",), ("--mem-queue-size=0", "--sync-every=100000")
JOURNAL, OURS = ("--durability=process",), ("gnsqd",)

ROWS = (
    BenchRow("stream", "stream of deliveries", stream, IN_MEMORY),
    BenchRow(
        "stream-ranges", "stream by ranges", partial(stream, mode="ranges", startingOffsets="earliest"), JOURNAL, OURS
    ),
    BenchRow(
        "read-ranges", "batch read by ranges", partial(batch, mode="ranges", startingOffsets="earliest"), JOURNAL, OURS
    ),
    BenchRow("write", "write", write, IN_MEMORY),
    BenchRow("diskqueue", "data directory, sum of lengths", diskqueue, ON_DISK),
)


def run_once(row: BenchRow, spark: "SparkSession", command: Sequence[str], directory: Path, messages: int) -> Cost:
    """Returns the cost of a message in one run with a fresh daemon."""
    with Instance(command, directory / "nsqd", *row.flags) as daemon:
        options = daemon_options(daemon) | {"subscribe": TOPIC, "channel": CHANNEL}
        cost = row.run(Bench(spark, options, daemon, directory, messages))
        return Cost(*(figure / messages for figure in cost))
