"""`spark.read.format("nsq_diskqueue")`: data directories of gnsqd and of the real nsqd, as a frame.

What is read of which directory, and what damage becomes, is judged without a JVM in unit/test_diskqueue.py."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kit.spark_topics import bodies
from kit.traffic import DaemonFactory, create, publish, take, wait_for

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

GOLDEN = Path(__file__).parents[1] / "golden"
COLUMNS = (
    "value binary, topic string, channel string, nsqd string, message_id string, timestamp timestamp, "
    "timestamp_ns bigint, attempts int, queue string, file string, position bigint, due timestamp, corruption string"
)


def load(spark: "SparkSession", *paths: Path) -> "DataFrame":
    return spark.read.format("nsq_diskqueue").load([str(path) for path in paths])


def values(frame: "DataFrame") -> list[bytes]:
    return sorted(bytes(row.value) for row in frame.select("value").collect())


def test_what_a_daemon_left_is_read(spark: "SparkSession", nsqd_factory: DaemonFactory) -> None:
    nsqd = nsqd_factory("--mem-queue-size=0", "--max-bytes-per-file=20000")
    create(nsqd, "orders", "billing")
    publish(nsqd, "orders", *bodies(3000))
    publish(nsqd, "clicks", *bodies(1000, "click "))
    wait_for(nsqd, "orders", "billing", depth=3000)  # not in the topic any more
    read = {message.body for message in take(nsqd, "orders", "billing", 1000)}
    assert nsqd.terminate() == 0

    frame = load(spark, nsqd.data_path).cache()
    assert ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in frame.schema.fields) == COLUMNS
    assert values(frame.where("topic = 'orders' AND channel = 'billing'")) == sorted(set(bodies(3000)) - read)
    assert values(frame.where("topic = 'clicks' AND channel IS NULL")) == sorted(bodies(1000, "click "))
    assert frame.rdd.getNumPartitions() == frame.select("queue", "file").distinct().count() > 4
    assert frame.select("message_id").distinct().count() == frame.count() == 3000
    frame.unpersist()


def test_several_directories_are_one_frame(spark: "SparkSession") -> None:
    paths = [GOLDEN / case / "data" for case in ("rolled", "unclean", "metadata/empty_object")]
    counts = {row.nsqd: row["count"] for row in load(spark, *paths).groupBy("nsqd").count().collect()}
    assert counts == {str(paths[0]): 27, str(paths[1]): 14}


def test_columns_that_a_schema_leaves_out_are_not_made(spark: "SparkSession") -> None:
    reader = spark.read.format("nsq_diskqueue").schema("position LONG, value BINARY")
    rows = reader.load(str(GOLDEN / "unc*" / "data")).collect()
    assert len(rows) == 14
    assert [(row.position, bytes(row.value)) for row in rows][:2] == [(0, b"u-00"), (34, b"u-01")]
