"""What is measured, a row of ROWS each: a frame or a stream to run, and what daemons hold before.

Everything is read and written once, from the call of the action to its end, by a local session of two cores; that
includes planning, and with a stream its start. What is read goes nowhere (`noop`), unless the row names Parquet.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from kit.daemons import Daemon
from kit.nsq_client import Client
from kit.spark_topics import daemon_options, sink_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SIZE = 200  # bytes of a body
TOPIC = "bench"


@dataclass(frozen=True)
class Bench:
    """One run: a fresh directory, and how many messages there are in all, in running daemons with fresh data; or none
    of both, for the source and sink `nsq_ceiling`."""

    spark: "SparkSession"
    source: str
    options: dict[str, str]
    daemons: Sequence[Daemon]
    directory: Path
    messages: int

    def fill(self) -> None:
        """The messages, on all daemons alike."""
        count = 1000
        batch = [b"%0*d" % (SIZE, number) for number in range(count)]
        for daemon in self.daemons:
            with Client(daemon.tcp_address) as client:
                client.identify(heartbeat_interval=-1)
                for _ in range(self.messages // len(self.daemons) // count):
                    client.publish(TOPIC, *batch)


def _timed(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def stream(bench: Bench, **options: str) -> float:
    bench.fill()
    frame = bench.spark.readStream.format(bench.source).options(**{**bench.options, **options}).load()
    sink = frame.writeStream.format("noop").option("checkpointLocation", str(bench.directory / "checkpoint"))
    rows = 0

    def read() -> None:
        nonlocal rows
        query = sink.trigger(availableNow=True).start()
        query.awaitTermination()
        rows = sum(progress.numInputRows for progress in query.recentProgress)

    seconds = _timed(read)
    assert rows == bench.messages, rows
    return seconds


def batch(bench: Bench, **options: str) -> float:
    bench.fill()
    given = {name: value for name, value in bench.options.items() if "spool" not in options or name != "spoolLocation"}
    frame = bench.spark.read.format(bench.source).options(**{**given, **options}).load()
    return _timed(lambda: frame.write.format("noop").mode("append").save())


def write(bench: Bench) -> float:
    values = f"CAST(lpad(CAST(id AS STRING), {SIZE}, '0') AS BINARY) AS value"
    frame = bench.spark.range(0, bench.messages, 1, 2).selectExpr(values)
    writer = frame.write.format(bench.source).options(**sink_options(*bench.daemons), topic=TOPIC).mode("append")
    seconds = _timed(writer.save)
    taken = sum(topic["message_count"] for daemon in bench.daemons for topic in daemon.stats(TOPIC)["topics"])
    assert not bench.daemons or taken == bench.messages, taken
    return seconds


def diskqueue(bench: Bench, *, parquet: bool = False) -> float:
    if not bench.daemons:
        return batch(bench)
    bench.fill()
    for daemon in bench.daemons:
        daemon.terminate()
    frame = bench.spark.read.format("nsq_diskqueue").load([str(daemon.data_path) for daemon in bench.daemons])
    if parquet:
        return _timed(lambda: frame.write.parquet(str(bench.directory / "parquet")))
    sums: list[int] = []
    seconds = _timed(lambda: sums.append(frame.selectExpr("sum(length(value)) AS bytes").collect()[0].bytes))
    assert sums == [bench.messages * SIZE]
    return seconds


@dataclass(frozen=True)
class BenchRow:
    """`run` gives seconds."""

    key: str
    name: str
    run: Callable[[Bench], float]
    nsqds: int = 1
    flags: tuple[str, ...] = ("--mem-queue-size=10000000",)


ON_DISK = ("--mem-queue-size=0", "--sync-every=100000")

ROWS = (
    BenchRow("stream", "stream", stream),
    BenchRow("stream-tasks", "the same by 2 tasks (minPartitions)", partial(stream, minPartitions="2")),
    BenchRow("stream-2", "the same from 2 nsqd", stream, 2),
    BenchRow("stream-4", "the same from 4 nsqd", stream, 4),
    BenchRow("read", "batch read with a spool", batch),
    BenchRow("read-no-spool", "batch read without a spool", partial(batch, spool="off")),
    BenchRow("read-no-spool-2", "the same from 2 nsqd", partial(batch, spool="off"), 2),
    BenchRow("write", "write", write),
    BenchRow("write-2", "the same to 2 nsqd", write, 2),
    BenchRow("diskqueue", "data directory, sum of lengths", diskqueue, flags=ON_DISK),
    BenchRow("diskqueue-parquet", "data directory to Parquet", partial(diskqueue, parquet=True), flags=ON_DISK),
)


def run_once(row: BenchRow, spark: "SparkSession", command: Sequence[str], directory: Path, messages: int) -> float:
    """Rows per second of one run with fresh daemons; without NSQ if there is no command."""
    if not command:
        options = {"rows": str(messages), "size": str(SIZE), "tasks": str(row.nsqds)}
        return messages / row.run(Bench(spark, "nsq_ceiling", options, (), directory, messages))
    with ExitStack() as stack:
        daemons = [
            stack.enter_context(Daemon(command, directory / f"nsqd-{number}", *row.flags))
            for number in range(row.nsqds)
        ]
        options = {"subscribe": TOPIC, "channel": "spark", "spoolLocation": str(directory / "spool")}
        return messages / row.run(Bench(spark, "nsq", daemon_options(*daemons) | options, daemons, directory, messages))
