"""`spark.read.format("nsq_diskqueue")`: data directories of gnsqd and of the real nsqd, as a frame."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from conftest import DaemonFactory
from kit.daemons import eventually
from kit.nsq_client import Client
from spark.topics import bodies, publish

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

GOLDEN = Path(__file__).parents[1] / "golden"
COLUMNS = {
    "value": "binary",
    "topic": "string",
    "channel": "string",
    "nsqd": "string",
    "message_id": "string",
    "timestamp": "timestamp",
    "timestamp_ns": "bigint",
    "attempts": "int",
    "queue": "string",
    "file": "string",
    "position": "bigint",
    "due": "timestamp",
    "corruption": "string",
}


def load(spark: "SparkSession", path: "Path | str | list[str]", **options: str) -> "DataFrame":
    paths = path if isinstance(path, list) else str(path)
    return spark.read.format("nsq_diskqueue").options(**options).load(paths)


def values(frame: "DataFrame") -> list[bytes]:
    return sorted(bytes(row.value) for row in frame.select("value").collect())


def test_what_a_daemon_left_is_read(spark: "SparkSession", nsqd_factory: DaemonFactory, tmp_path: Path) -> None:
    """In many files, of a topic that has a channel and of one that has none."""
    nsqd = nsqd_factory("--mem-queue-size=0", "--max-bytes-per-file=20000", data_path=tmp_path / "data")
    assert nsqd.http("POST", "/topic/create?topic=orders")[0] == 200
    assert nsqd.http("POST", "/channel/create?topic=orders&channel=billing")[0] == 200
    publish(nsqd, "orders", bodies(3000))
    publish(nsqd, "clicks", bodies(1000, "click "))
    eventually(lambda: nsqd.channel_stats("orders", "billing")["depth"] == 3000)  # not in the topic any more
    with Client(nsqd.tcp_address) as client:
        client.subscribe("orders", "billing", rdy=1)
        read = []
        for _ in range(1000):
            message = client.message()
            client.command(b"FIN " + message.id)
            read.append(message.body)
    assert nsqd.terminate() == 0

    frame = load(spark, nsqd.data_path).cache()
    assert {field.name: field.dataType.simpleString() for field in frame.schema.fields} == COLUMNS
    orders = frame.where("topic = 'orders' AND channel = 'billing'")
    left = values(orders)
    # what was in flight at the end comes again
    assert set(left) | set(read) == set(bodies(3000))
    assert len(left) <= 2001
    assert values(frame.where("topic = 'clicks' AND channel IS NULL")) == sorted(bodies(1000, "click "))
    assert frame.rdd.getNumPartitions() == frame.select("queue", "file").distinct().count() > 4
    (row,) = (
        frame.where("corruption IS NULL").selectExpr("count(*) AS n", "count(DISTINCT message_id) AS ids").collect()
    )
    assert row.n == len(left) + 1000 == frame.count()
    assert row.ids == row.n
    frame.unpersist()


def test_a_running_daemon_may_be_read(spark: "SparkSession", nsqd_factory: DaemonFactory) -> None:
    nsqd = nsqd_factory("--mem-queue-size=0", "--sync-every=1")
    publish(nsqd, "t", bodies(500))
    assert values(load(spark, nsqd.data_path)) == sorted(bodies(500))
    publish(nsqd, "t", bodies(500, "more "))
    assert load(spark, nsqd.data_path).count() == 1000
    assert nsqd.stats("t")["topics"][0]["depth"] == 1000


def test_deferred_messages_have_their_due_time(spark: "SparkSession", gnsqd_factory: DaemonFactory) -> None:
    nsqd = gnsqd_factory()
    for path in ("/topic/create?topic=t", "/channel/create?topic=t&channel=c"):
        assert nsqd.http("POST", path)[0] == 200
    assert nsqd.http("POST", "/pub?topic=t&defer=3600000", b"later")[0] == 200
    assert nsqd.http("POST", "/pub?topic=t", b"now")[0] == 200
    assert nsqd.terminate() == 0
    rows = (
        load(spark, nsqd.data_path).selectExpr("value", "unix_micros(due) - timestamp_ns div 1000 AS delay").collect()
    )
    delays = {bytes(row.value): row.delay for row in rows}
    assert delays.keys() == {b"now", b"later"}
    assert delays[b"now"] is None
    assert 3_590_000_000 < delays[b"later"] < 3_620_000_000


def test_damage_fails_the_job_or_is_in_a_column(spark: "SparkSession") -> None:
    path = GOLDEN / "corrupt_size" / "data"
    with pytest.raises(Exception, match=r"roll:c.diskqueue.000001.dat at 689: invalid message read size \(0\)"):
        load(spark, path).collect()
    assert load(spark, path, corruption="skip").count() == 24
    rows = load(spark, path, corruption="column").where("corruption IS NOT NULL").collect()
    assert [(row.file, row.position, row.corruption, row.value) for row in rows] == [
        ("roll:c.diskqueue.000001.dat", 689, "invalid message read size (0): 231 bytes not read", None)
    ]


def test_several_directories_are_one_frame(spark: "SparkSession") -> None:
    paths = [str(GOLDEN / case / "data") for case in ("rolled", "unclean")]
    counts = {row.nsqd: row["count"] for row in load(spark, paths).groupBy("nsqd").count().collect()}
    assert counts == dict(zip(paths, (27, 14), strict=True))
    pattern = GOLDEN / "{}*" / "data"
    assert load(spark, str(pattern).format("unc")).count() == 14


def test_a_directory_without_messages_has_no_rows(spark: "SparkSession") -> None:
    assert load(spark, GOLDEN / "metadata" / "empty_object" / "data").collect() == []


def test_columns_that_a_schema_leaves_out_are_not_made(spark: "SparkSession") -> None:
    reader = spark.read.format("nsq_diskqueue").schema("position LONG, value BINARY")
    rows = reader.load(str(GOLDEN / "unclean" / "data")).collect()
    assert [(row.position, bytes(row.value)) for row in rows][:2] == [(0, b"u-00"), (34, b"u-01")]


@pytest.mark.parametrize(
    "path, options, reported",
    [
        (None, {}, "option 'path' is required"),
        ("missing", {}, "there is no such directory"),
        (".", {}, "is not a data directory"),
        (".", {"corrupted": "skip"}, "unknown option 'corrupted': did you mean 'corruption'?"),
        (".", {"schema": "body BINARY"}, "there is no column body binary"),
    ],
)
def test_what_cannot_be_read_is_reported_before_the_job(
    spark: "SparkSession", tmp_path: Path, path: str | None, options: dict[str, Any], reported: str
) -> None:
    reader = spark.read.format("nsq_diskqueue")
    if schema := options.pop("schema", None):
        reader = reader.schema(schema)
    with pytest.raises(Exception, match=reported):  # of pyspark, with the text of ours
        reader.options(**options).load(path and str(tmp_path / path)).collect()
