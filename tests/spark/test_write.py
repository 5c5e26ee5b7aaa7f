"""`write` and `writeStream` of `format("nsq")`, to gnsqd and to the real nsqd."""

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from conftest import DaemonFactory
from kit.certificates import write_identities
from kit.daemons import Daemon, eventually, fixed_ports, free_port
from spark.topics import name, take

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = pytest.mark.spark


def addresses(*daemons: Daemon) -> dict[str, str]:
    return {"nsq.nsqd.tcp.addresses": ",".join(map(name, daemons))}


def write(frame: "DataFrame", *daemons: Daemon, mode: str = "append", **options: str) -> None:
    frame.write.format("nsq").options(**{**addresses(*daemons), **options}).mode(mode).save()


def counts(nsqd: Daemon) -> dict[str, int]:
    """Messages by topic, over the life of the daemon."""
    return {topic["topic_name"]: topic["message_count"] for topic in nsqd.stats()["topics"]}


def test_each_row_is_a_message_of_its_topic(spark: "SparkSession", nsqd: Daemon) -> None:
    frame = spark.range(3000).selectExpr(
        "cast(id as string) AS value", "if(id % 3 = 0, 'threes', 'others') AS topic", "id AS another"
    )
    write(frame, nsqd)
    assert sorted(take(nsqd, "threes", 1000), key=int) == [b"%d" % number for number in range(0, 3000, 3)]
    assert len(take(nsqd, "others", 2000)) == 2000


def test_bytes_arrive_as_they_are(spark: "SparkSession", nsqd: Daemon) -> None:
    bodies = [bytes([number, 255 - number, 0]) for number in range(256)]
    frame = spark.createDataFrame([(bytearray(body),) for body in bodies], "value BINARY")
    write(frame, nsqd, topic="raw", batchSize="7", batchBytes="100")
    assert sorted(take(nsqd, "raw", 256)) == sorted(bodies)


def test_what_has_a_delay_is_deferred(spark: "SparkSession", nsqd: Daemon) -> None:
    for path in ("/topic/create?topic=later", "/channel/create?topic=later&channel=check"):
        assert nsqd.http("POST", path)[0] == 200
    frame = spark.range(10).selectExpr("cast(id as string) AS value", "if(id < 4, 3600000, null) AS defer_ms")
    write(frame, nsqd, topic="later")
    eventually(lambda: nsqd.channel_stats("later", "check")["deferred_count"] == 4)
    assert sorted(take(nsqd, "later", 6)) == [b"%d" % number for number in range(4, 10)]


def test_tasks_share_the_nsqds_and_pass_over_one_that_is_dead(
    spark: "SparkSession", nsqd_factory: DaemonFactory
) -> None:
    daemons = [nsqd_factory(*fixed_ports()) for _ in range(3)]
    frame = spark.range(6000).repartition(6).selectExpr("cast(id as string) AS value")
    write(frame, *daemons, topic="first")
    assert [counts(daemon).get("first", 0) > 0 for daemon in daemons] == [True] * 3
    assert sum(counts(daemon)["first"] for daemon in daemons) == 6000

    options = addresses(*daemons)
    daemons.pop().kill()
    frame.write.format("nsq").options(**options, topic="second").mode("append").save()
    taken = [body for daemon in daemons for body in take(daemon, "second", counts(daemon)["second"])]
    assert sorted(taken, key=int) == [b"%d" % number for number in range(6000)]


def test_options_of_tls_reach_the_tasks(spark: "SparkSession", nsqd_factory: DaemonFactory, tmp_path: Path) -> None:
    identities = write_identities(tmp_path)
    cert, key = identities["server"]
    nsqd = nsqd_factory(f"--tls-cert={cert}", f"--tls-key={key}", "--tls-required=tcp-https")
    ca = str(identities["authority"][0])
    write(spark.range(100).selectExpr("cast(id as string) AS value"), nsqd, topic="t", **{"nsq.tls.ca": ca})
    assert counts(nsqd) == {"t": 100}


@pytest.mark.parametrize(
    "columns, options, reported",
    [
        ("id", {"topic": "t"}, "the frame has no column value"),
        ("id AS value", {"topic": "t"}, "the column value of the frame is BIGINT: expected BINARY or STRING"),
        ("'x' AS value", {}, "no topic: give the option 'topic', or the frame a column topic"),
        ("'x' AS value", {"topic": "t", "batchSizes": "1"}, "did you mean 'batchSize'?"),
        ("'x' AS value", {"topic": "t", "mode": "overwrite"}, "what is in a topic cannot be replaced"),
    ],
)
def test_what_cannot_be_written_is_reported_before_the_job(
    spark: "SparkSession", gnsqd: Daemon, columns: str, options: dict[str, Any], reported: str
) -> None:
    ran = spark.sparkContext.accumulator(0)

    def noted(number: int) -> tuple[int]:
        ran.add(1)
        return (number,)

    frame = spark.sparkContext.parallelize([1]).map(noted).toDF("id LONG")
    with pytest.raises(Exception, match=reported):  # of pyspark, with the text of ours
        write(frame.selectExpr(columns), gnsqd, **options)
    assert ran.value == 0
    assert counts(gnsqd) == {}


def test_a_row_without_a_body_fails_the_job(spark: "SparkSession", gnsqd: Daemon) -> None:
    frame = spark.sql("SELECT * FROM VALUES ('x'), (NULL) AS (value)")
    with pytest.raises(Exception, match="the column value is NULL in a row"):
        write(frame, gnsqd, topic="t")


def test_a_row_without_a_body_can_be_skipped(spark: "SparkSession", gnsqd: Daemon) -> None:
    write(spark.sql("SELECT * FROM VALUES ('x'), (NULL) AS (value)"), gnsqd, topic="t", invalidRows="skip")
    assert take(gnsqd, "t", 1) == [b"x"]


def test_invalid_rows_are_published_to_a_topic_for_them(spark: "SparkSession", gnsqd: Daemon) -> None:
    frame = spark.sql("SELECT * FROM VALUES ('x'), (NULL) AS (value)")
    write(frame, gnsqd, topic="t", invalidRows="topic:invalid")
    assert take(gnsqd, "t", 1) == [b"x"]
    [letter] = [json.loads(body) for body in take(gnsqd, "invalid", 1)]
    assert letter["reason"].startswith("the column value is NULL in a row")
    assert (letter["topic"], letter["value"]) == ("t", None)


def test_a_job_fails_when_no_nsqd_is_there_in_time(spark: "SparkSession") -> None:
    options = {"nsq.nsqd.tcp.addresses": f"127.0.0.1:{free_port()}", "topic": "t", "retryTimeoutMs": "100"}
    frame = spark.sql("SELECT 'x' AS value")
    with pytest.raises(Exception, match="no nsqd can be reached: cannot connect to nsqd"):
        frame.write.format("nsq").options(**options).mode("append").save()


# Streams


def start(spark: "SparkSession", source: Path, checkpoint: Path, **options: str) -> "StreamingQuery":
    """A stream of the lines of the files in a directory, one file a batch, to the end of what is there."""
    lines = spark.readStream.format("text").option("maxFilesPerTrigger", "1").load(str(source))
    writer = lines.writeStream.format("nsq").options(**options).option("checkpointLocation", str(checkpoint))
    return writer.trigger(availableNow=True).start()


def lines_of(number: int) -> list[bytes]:
    return [b"%d line %d" % (number, line) for line in range(500)]


def test_every_row_of_a_stream_is_published_once(spark: "SparkSession", nsqd: Daemon, tmp_path: Path) -> None:
    """When nothing fails; batches that are done are not written again."""
    source = tmp_path / "lines"
    source.mkdir()
    options = {**addresses(nsqd), "topic": "t"}
    expected = []
    for number in range(4):
        (source / f"{number}.txt").write_bytes(b"\n".join(lines_of(number)))
        expected += lines_of(number)
        if number % 2:
            start(spark, source, tmp_path / "checkpoint", **options).awaitTermination()
    assert sorted(take(nsqd, "t", 2000)) == sorted(expected)


def test_a_batch_that_failed_is_published_when_the_stream_starts_again(
    spark: "SparkSession", nsqd: Daemon, tmp_path: Path
) -> None:
    source = tmp_path / "lines"
    source.mkdir()
    for number in range(3):
        (source / f"{number}.txt").write_bytes(b"\n".join(lines_of(number)))
    dead = {"nsq.nsqd.tcp.addresses": f"127.0.0.1:{free_port()}", "topic": "t", "retryTimeoutMs": "1"}
    query = start(spark, source, tmp_path / "checkpoint", **dead)
    with pytest.raises(Exception, match="no nsqd takes"):
        query.awaitTermination()
    alive = {**addresses(nsqd), "topic": "t"}
    start(spark, source, tmp_path / "checkpoint", **alive).awaitTermination()
    assert Counter(take(nsqd, "t", 1500)) == Counter(line for number in range(3) for line in lines_of(number))


@pytest.mark.parametrize(
    "options, reported",
    [({"topic": "t", "batchsizes": "1"}, "did you mean 'batchSize'?"), ({}, "no topic: give the option 'topic'")],
)
def test_a_stream_that_cannot_be_written_is_reported(
    spark: "SparkSession", gnsqd: Daemon, tmp_path: Path, options: dict[str, str], reported: str
) -> None:
    (tmp_path / "lines.txt").write_text("line")
    with pytest.raises(Exception, match=reported):
        start(spark, tmp_path / "*.txt", tmp_path / "checkpoint", **addresses(gnsqd), **options).awaitTermination()
    assert counts(gnsqd) == {}
