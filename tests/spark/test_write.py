"""`write` and `writeStream` of `format("nsq")`, to gnsqd and to the real nsqd.

Which messages go together, and what becomes of them, is judged without a JVM in unit/test_writer.py."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kit.certificates import write_identities
from kit.daemons import Instance, free_port
from kit.spark_topics import sink_options
from kit.traffic import DaemonFactory, take

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_tasks_share_the_nsqds(spark: "SparkSession", gnsqd_factory: DaemonFactory, tmp_path: Path) -> None:
    """Passes the options of TLS to the tasks."""
    identities = write_identities(tmp_path)
    cert, key = identities["server"]
    daemons = [gnsqd_factory(f"--tls-cert={cert}", f"--tls-key={key}", "--tls-required=tcp-https") for _ in range(3)]
    frame = spark.range(6000).repartition(6).selectExpr("cast(id as string) AS value")
    options = sink_options(*daemons) | {"topic": "t", "nsq.tls.ca": str(identities["authority"][0])}
    frame.write.format("nsq").options(**options).mode("append").save()
    counts = [topic["message_count"] for daemon in daemons for topic in daemon.stats()["topics"]]
    assert len(counts) == 3
    assert all(counts)
    assert sum(counts) == 6000


def test_every_row_of_a_stream_is_published_once_and_a_batch_that_failed_again(
    spark: "SparkSession", nsqd: Instance, tmp_path: Path
) -> None:
    """Writes one file in each batch; a run goes to the end of what is there."""
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
    assert sorted(message.body for message in take(nsqd, "t", "check", 2000)) == sorted(expected)
