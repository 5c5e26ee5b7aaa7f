"""`write` and `writeStream` of `format("nsq")`, to gnsqd and to the real nsqd.

Which messages go together, and what becomes of them, is judged without a JVM in unit/test_writer.py."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kit.certificates import write_identities
from kit.daemons import Daemon, free_port
from kit.spark_topics import sink_options
from kit.traffic import DaemonFactory, take

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


def write(frame: "DataFrame", *daemons: Daemon, mode: str = "append", **options: str) -> None:
    frame.write.format("nsq").options(**sink_options(*daemons), **options).mode(mode).save()


def counts(nsqd: Daemon) -> dict[str, int]:
    """Messages by topic, over the life of the daemon."""
    return {topic["topic_name"]: topic["message_count"] for topic in nsqd.stats()["topics"]}


def taken(nsqd: Daemon, topic: str, count: int) -> list[bytes]:
    return sorted(message.body for message in take(nsqd, topic, "check", count))


def test_tasks_share_the_nsqds(spark: "SparkSession", nsqd_factory: DaemonFactory, tmp_path: Path) -> None:
    """Also where only TLS is allowed: its options reach the tasks."""
    identities = write_identities(tmp_path)
    cert, key = identities["server"]
    daemons = [nsqd_factory(f"--tls-cert={cert}", f"--tls-key={key}", "--tls-required=tcp-https") for _ in range(3)]
    frame = spark.range(6000).repartition(6).selectExpr("cast(id as string) AS value")
    write(frame, *daemons, topic="t", **{"nsq.tls.ca": str(identities["authority"][0])})
    assert [counts(daemon).get("t", 0) > 0 for daemon in daemons] == [True] * 3
    assert sum(counts(daemon)["t"] for daemon in daemons) == 6000


@pytest.mark.parametrize(
    "column, mode, reported",
    [
        ("id", "append", "the frame has no column value"),
        ("'x' AS value", "overwrite", "what is in a topic cannot be replaced"),
    ],
)
def test_what_cannot_be_written_is_reported_before_the_job(
    spark: "SparkSession", gnsqd: Daemon, column: str, mode: str, reported: str
) -> None:
    ran = spark.sparkContext.accumulator(0)

    def noted(number: int) -> tuple[int]:
        ran.add(1)
        return (number,)

    frame = spark.sparkContext.parallelize([1]).map(noted).toDF("id LONG")
    with pytest.raises(Exception, match=reported):  # of pyspark, with the text of ours
        write(frame.selectExpr(column), gnsqd, mode=mode, topic="t")
    assert ran.value == 0
    assert counts(gnsqd) == {}


def test_every_row_of_a_stream_is_published_once_and_a_batch_that_failed_again(
    spark: "SparkSession", nsqd: Daemon, tmp_path: Path
) -> None:
    """One file is a batch; a run goes to the end of what is there."""
    source = tmp_path / "lines"
    source.mkdir()

    def run(**options: str) -> None:
        lines = spark.readStream.format("text").option("maxFilesPerTrigger", "1").load(str(source))
        writer = lines.writeStream.format("nsq").options(**options, topic="t", retryTimeoutMs="1")
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()

    expected = []
    for number in range(4):
        lines = [b"%d line %d" % (number, line) for line in range(500)]
        (source / f"{number}.txt").write_bytes(b"\n".join(lines))
        expected += lines
        if number == 1:
            with pytest.raises(Exception, match="no nsqd takes"):
                run(**{"nsq.nsqd.tcp.addresses": f"127.0.0.1:{free_port()}"})
        if number % 2:
            run(**sink_options(nsqd))
    assert taken(nsqd, "t", 2000) == sorted(expected)
