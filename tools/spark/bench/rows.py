"""What is measured, a row of ROWS each: a frame or a stream to run, and what daemons hold before.

Everything is read and written once, from the call of the action to its end, by a local session of two cores; that
includes planning, and with a stream its start. What is read goes nowhere (`noop`), unless the row names Parquet.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
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
    """One run: a fresh directory, running daemons with fresh data, and how many messages there are in all."""

    spark: "SparkSession"
    daemons: Sequence[Daemon]
    directory: Path
    messages: int

    def subscription(self) -> dict[str, str]:
        return {**daemon_options(*self.daemons), "subscribe": TOPIC, "channel": "spark"}

    def fill(self) -> None:
        """The messages, on all daemons alike."""
        count = 1000
        batch = [b"%0*d" % (SIZE, number) for number in range(count)]
        for daemon in self.daemons:
            client = Client(daemon.tcp_address)
            client.identify(heartbeat_interval=-1)
            for _ in range(self.messages // len(self.daemons) // count):
                client.publish(TOPIC, *batch)
            client.sock.close()


def _timed(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def stream(**options: str) -> Callable[[Bench], float]:
    def run(bench: Bench) -> float:
        bench.fill()
        frame = (
            bench.spark.readStream.format("nsq")
            .options(**bench.subscription(), spoolLocation=str(bench.directory / "spool"), **options)
            .load()
        )
        sink = (
            frame.writeStream.format("noop")
            .option("checkpointLocation", str(bench.directory / "checkpoint"))
            .trigger(availableNow=True)
        )
        query = None

        def read() -> None:
            nonlocal query
            query = sink.start()
            query.awaitTermination()

        seconds = _timed(read)
        assert query is not None
        rows = sum(progress.numInputRows for progress in query.recentProgress)
        assert rows == bench.messages, rows
        return seconds

    return run


def batch(**options: str) -> Callable[[Bench], float]:
    def run(bench: Bench) -> float:
        bench.fill()
        all_options = {**bench.subscription(), **options}
        if "spool" not in all_options:
            all_options["spoolLocation"] = str(bench.directory / "spool")
        frame = bench.spark.read.format("nsq").options(**all_options).load()
        return _timed(lambda: frame.write.format("noop").mode("append").save())

    return run


def write(bench: Bench) -> float:
    values = f"CAST(lpad(CAST(id AS STRING), {SIZE}, '0') AS BINARY) AS value"
    frame = bench.spark.range(0, bench.messages, 1, 2).selectExpr(values)
    writer = frame.write.format("nsq").options(**sink_options(*bench.daemons), topic=TOPIC).mode("append")
    seconds = _timed(writer.save)
    taken = sum(topic["message_count"] for daemon in bench.daemons for topic in daemon.stats(TOPIC)["topics"])
    assert taken == bench.messages, taken
    return seconds


def diskqueue(parquet: bool) -> Callable[[Bench], float]:
    def run(bench: Bench) -> float:
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

    return run


def ceiling_stream(bench: Bench, nsqds: int) -> float:
    source = bench.spark.readStream.format("nsq_ceiling").options(rows=bench.messages, size=SIZE, tasks=nsqds).load()
    sink = source.writeStream.format("noop").option("checkpointLocation", str(bench.directory / "ceiling"))
    return _timed(lambda: sink.trigger(availableNow=True).start().awaitTermination())


def ceiling_read(bench: Bench, nsqds: int) -> float:
    frame = bench.spark.read.format("nsq_ceiling").options(rows=bench.messages, size=SIZE, tasks=nsqds).load()
    return _timed(lambda: frame.write.format("noop").mode("append").save())


def ceiling_write(bench: Bench, nsqds: int) -> float:
    values = f"CAST(lpad(CAST(id AS STRING), {SIZE}, '0') AS BINARY) AS value"
    frame = bench.spark.range(0, bench.messages, 1, 2).selectExpr(values)
    return _timed(lambda: frame.write.format("nsq_ceiling").mode("append").save())


@dataclass(frozen=True)
class BenchRow:
    """`run` gives seconds, and so does `ceiling` with a source or sink that does nothing, for that many nsqds."""

    key: str
    name: str
    run: Callable[[Bench], float]
    ceiling: Callable[[Bench, int], float]
    nsqds: int = 1
    flags: tuple[str, ...] = ("--mem-queue-size=10000000",)


ON_DISK = ("--mem-queue-size=0", "--sync-every=100000")

ROWS = (
    BenchRow("stream", "stream", stream(), ceiling_stream),
    BenchRow("stream-tasks", "the same by 2 tasks (minPartitions)", stream(minPartitions="2"), ceiling_stream),
    BenchRow("stream-2", "the same from 2 nsqd", stream(), ceiling_stream, 2),
    BenchRow("stream-4", "the same from 4 nsqd", stream(), ceiling_stream, 4),
    BenchRow("read", "batch read with a spool", batch(), ceiling_read),
    BenchRow("read-no-spool", "batch read without a spool", batch(spool="off"), ceiling_read),
    BenchRow("read-no-spool-2", "the same from 2 nsqd", batch(spool="off"), ceiling_read, 2),
    BenchRow("write", "write", write, ceiling_write),
    BenchRow("write-2", "the same to 2 nsqd", write, ceiling_write, 2),
    BenchRow("diskqueue", "data directory, sum of lengths", diskqueue(parquet=False), ceiling_read, flags=ON_DISK),
    BenchRow("diskqueue-parquet", "data directory to Parquet", diskqueue(parquet=True), ceiling_read, flags=ON_DISK),
)


def run_once(row: BenchRow, spark: "SparkSession", command: Sequence[str], directory: Path, messages: int) -> float:
    """Rows per second of one run with fresh daemons."""
    with ExitStack() as stack:
        daemons = [
            stack.enter_context(Daemon(command, directory / f"nsqd-{number}", *row.flags))
            for number in range(row.nsqds)
        ]
        return messages / row.run(Bench(spark, daemons, directory, messages))


def run_ceiling(row: BenchRow, spark: "SparkSession", directory: Path, messages: int) -> float:
    """Rows per second of one run without NSQ."""
    return messages / row.ceiling(Bench(spark, (), directory, messages), row.nsqds)
