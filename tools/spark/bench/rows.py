"""Rows of the benchmark, in ROWS: a frame or a stream to run, and what daemons hold before.

Everything is read and written once, from the call of the action to its end, by a local session of two cores; that
includes planning, and with a stream its start. What is read goes nowhere (`noop`), unless the row names Parquet. CPU
time comes from /proc, so the benchmark needs Linux.
"""

import os
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.lanes import cpu_seconds
from kit.daemons import Daemon
from kit.nsq_client import Client
from kit.spark_topics import daemon_options, sink_options
from kit.traffic import create, wait_for

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SIZE = 200  # bytes of a body
TOPIC, CHANNEL = "bench", "spark"


class Cost(NamedTuple):
    """Seconds of one run: its time, and the CPU time of Spark, of its Python processes alone, and of the daemons."""

    seconds: float
    spark: float
    python: float
    daemons: float


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
    """One run: a fresh directory, and how many messages there are in all, in running daemons with fresh data; or no
    daemons, for the source and sink `nsq_ceiling`, and for Spark's source of text files."""

    spark: "SparkSession"
    source: str
    options: dict[str, str]
    daemons: Sequence[Daemon]
    directory: Path
    messages: int

    def fill(self, *channels: str) -> None:
        """Publishes the messages, to all daemons alike, or writes them to files. When this returns, these channels have
        them all."""
        if self.source == "text":
            bodies(self).write.text(self.options["path"])
        count = 1000
        batch = [b"%0*d" % (SIZE, number) for number in range(count)]
        for daemon in self.daemons:
            share = self.messages // len(self.daemons)
            create(daemon, TOPIC, *channels)
            with Client(daemon.tcp_address) as client:
                client.identify(heartbeat_interval=-1)
                for _ in range(share // count):
                    client.publish(TOPIC, *batch)
            for channel in channels:
                wait_for(daemon, TOPIC, channel, depth=share)

    def cost(self, action: Callable[[], object]) -> Cost:
        before = self._spent()
        action()
        return Cost(*(now - then for now, then in zip(self._spent(), before, strict=True)))

    def _spent(self) -> Cost:
        jvm = self.spark.sparkContext._gateway.proc.pid  # type: ignore[union-attr]
        daemons = sum(cpu_seconds(daemon) for daemon in self.daemons if daemon.running)
        return Cost(time.perf_counter(), *spark_cpu(jvm), daemons)


def stream(bench: Bench, **options: str) -> Cost:
    bench.fill(CHANNEL)
    frame = bench.spark.readStream.format(bench.source).options(**{**bench.options, **options}).load()
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
    frame = bench.spark.read.format(bench.source).options(**{**bench.options, **options}).load()
    return bench.cost(lambda: frame.write.format("noop").mode("append").save())


def bodies(bench: Bench) -> "DataFrame":
    return bench.spark.range(0, bench.messages, 1, 2).selectExpr(f"lpad(CAST(id AS STRING), {SIZE}, '0') AS value")


def write(bench: Bench) -> Cost:
    frame = bodies(bench).selectExpr("CAST(value AS BINARY)")
    writer = frame.write.format(bench.source).options(**sink_options(*bench.daemons), topic=TOPIC).mode("append")
    cost = bench.cost(writer.save)
    taken = sum(topic["message_count"] for daemon in bench.daemons for topic in daemon.stats(TOPIC)["topics"])
    assert not bench.daemons or taken == bench.messages, taken
    return cost


def diskqueue(bench: Bench, *, parquet: bool = False) -> Cost:
    if not bench.daemons:
        return batch(bench)
    bench.fill()
    for daemon in bench.daemons:
        daemon.terminate()
    frame = bench.spark.read.format("nsq_diskqueue").load([str(daemon.data_path) for daemon in bench.daemons])
    if parquet:
        return bench.cost(lambda: frame.write.parquet(str(bench.directory / "parquet")))
    sums: list[int] = []
    cost = bench.cost(lambda: sums.append(frame.selectExpr("sum(length(value)) AS bytes").collect()[0].bytes))
    assert sums == [bench.messages * SIZE]
    return cost


@dataclass(frozen=True)
class BenchRow:
    """`of` names what is measured: keys of the commands of run_once()."""

    key: str
    name: str
    run: Callable[[Bench], Cost]
    nsqds: int = 1
    flags: tuple[str, ...] = ("--mem-queue-size=10000000",)
    of: tuple[str, ...] = ("ceiling", "gnsqd", "nsqd")


def by_ranges(key: str, name: str, run: Callable[..., Cost], nsqds: int = 1) -> BenchRow:
    run = partial(run, mode="ranges", startingOffsets="earliest")
    return BenchRow(key, name, run, nsqds, ("--durability=process",), ("ceiling", "gnsqd"))


ON_DISK = ("--mem-queue-size=0", "--sync-every=100000")

ROWS = (
    BenchRow("stream", "stream of deliveries", stream, of=("ceiling", "text files", "gnsqd", "nsqd")),
    BenchRow("stream-2", "the same from 2 nsqd", stream, 2),
    by_ranges("stream-ranges", "stream by ranges", stream),
    by_ranges("stream-ranges-2", "the same from 2 gnsqd", stream, 2),
    by_ranges("stream-ranges-4", "the same from 4 gnsqd", stream, 4),
    by_ranges("read-ranges", "batch read by ranges", batch),
    by_ranges("read-ranges-4", "the same from 4 gnsqd", batch, 4),
    BenchRow("write", "write", write),
    BenchRow("write-2", "the same to 2 nsqd", write, 2),
    BenchRow("diskqueue", "data directory, sum of lengths", diskqueue, flags=ON_DISK),
    BenchRow("diskqueue-parquet", "data directory to Parquet", partial(diskqueue, parquet=True), flags=ON_DISK),
)


def run_once(
    row: BenchRow, spark: "SparkSession", source: str, command: Sequence[str], directory: Path, messages: int
) -> Cost:
    """Returns the cost of a message in one run with fresh daemons; without NSQ if there is no command."""
    with ExitStack() as stack:
        daemons = [
            stack.enter_context(Daemon(command, directory / f"nsqd-{number}", *row.flags))
            for number in range(row.nsqds if command else 0)
        ]
        if command:
            options = daemon_options(*daemons) | {"subscribe": TOPIC, "channel": CHANNEL}
        else:
            options = {"rows": str(messages), "size": str(SIZE), "tasks": str(row.nsqds)}
            options["path"] = str(directory / "files")
        cost = row.run(Bench(spark, source, options, daemons, directory, messages))
        return Cost(*(figure / messages for figure in cost))
