"""Ranges in Spark: frames that have the same rows in all scans, and streams that go on after kills, exactly.

What is planned and read, whatever becomes of the daemons, is judged without a JVM in unit/test_ranges.py."""

import shutil
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kit.daemons import Instance, fixed_ports
from kit.spark_sessions import ADMISSION_CONTROL
from kit.spark_topics import bodies, daemon_options, name
from kit.traffic import DaemonFactory, publish, wait_for
from spark.streams import Streams

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture
def durable(gnsqd_factory: DaemonFactory) -> Instance:
    """Returns a gnsqd with ranges, which keeps its ports."""
    return gnsqd_factory("--durability=process", *fixed_ports())


@pytest.fixture
def streams(spark: "SparkSession", tmp_path: Path) -> Streams:
    return Streams(spark, tmp_path / "stream")


def values(frame: "DataFrame") -> Counter[bytes]:
    return Counter(bytes(row.value) for row in frame.select("value").collect())


def test_every_action_has_the_rows_that_were_there_at_load(
    spark: "SparkSession", durable: Instance, tmp_path: Path
) -> None:
    publish(durable, "orders", *bodies(100))
    expected = Counter(bodies(100))
    options = {**daemon_options(durable), "subscribe": "orders", "mode": "ranges", "minPartitions": "2"}
    frame = spark.read.format("nsq").options(**options).load()
    publish(durable, "orders", b"later")
    assert len(frame.take(5)) == 5  # which breaks off its scan
    with pytest.raises(Exception, match="no more"):
        frame.selectExpr("raise_error('no more')").collect()
    assert frame.count() == 100
    assert values(frame.join(frame.select("message_id"), "message_id")) == expected
    assert values(frame.union(frame)) == Counter(bodies(100) * 2)
    frame.write.parquet(str(tmp_path / "table"))
    assert values(spark.read.parquet(str(tmp_path / "table"))) == expected


def test_a_table_has_each_message_once_after_runs_with_kills_between(
    spark: "SparkSession", durable: Instance, tmp_path: Path
) -> None:
    options = {**daemon_options(durable), "subscribe": "orders", "channel": "spark"}
    if ADMISSION_CONTROL:
        options["maxMessagesPerTrigger"] = "60"
    table = str(tmp_path / "table")
    for run in range(2):
        publish(durable, "orders", *bodies(100, f"{run} "))
        stream = spark.readStream.format("nsq").options(**options).load().writeStream.format("parquet")
        query = stream.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
        assert query.start(table).awaitTermination(300)
        wait_for(durable, "orders", "spark", depth=0 if ADMISSION_CONTROL else 100)  # without, the last batch remains
        durable.kill()
        durable.start()
    rows = spark.read.parquet(table).select("offset", "value").orderBy("offset").collect()
    expected = [body for run in range(2) for body in bodies(100, f"{run} ")]
    assert [(row.offset, bytes(row.value)) for row in rows] == [*enumerate(expected, start=1)]


def test_a_batch_whose_sink_failed_comes_again_with_the_same_rows(streams: Streams, durable: Instance) -> None:
    publish(durable, "orders", *bodies(100))
    streams.fails = True
    with pytest.raises(Exception, match="the sink fails"):
        streams.drain(daemon_options(durable))
    wait_for(durable, "orders", "spark", depth=100)
    publish(durable, "orders", *bodies(10, "later "))
    streams.fails = False
    streams.drain(daemon_options(durable))
    assert streams.values() == sorted([*bodies(100), *bodies(10, "later ")])
    assert streams.tries == {0: 2, 1: 1}
    wait_for(durable, "orders", "spark", depth=0 if ADMISSION_CONTROL else 10)


def test_a_table_has_each_message_once_though_a_machine_is_lost(
    spark: "SparkSession", gnsqd_factory: DaemonFactory, tmp_path: Path
) -> None:
    url, table = (tmp_path / "store").as_uri(), str(tmp_path / "table")
    flags = "--durability=store", f"--log-store={url}", "--max-bytes-per-file=5000"
    published: list[bytes] = []

    def start() -> Instance:
        nsqd = gnsqd_factory(*flags, *fixed_ports())
        options.update(daemon_options(nsqd) | {"nsq.log.store": f"{name(nsqd)}={url}"})
        return nsqd

    def publish_and_read(is_lost: bool = False) -> None:
        published.extend(bodies(100, f"{len(published)} "))
        publish(nsqd, "orders", *published[-100:])
        if is_lost:
            nsqd.kill()
            shutil.rmtree(nsqd.data_path)
        stream = spark.readStream.format("nsq").options(**options).load().writeStream.format("parquet")
        for _ in range(1 if ADMISSION_CONTROL else 2):
            query = stream.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
            assert query.start(table).awaitTermination(300)

    options = {"subscribe": "orders", "channel": "spark", "minPartitions": "2"}
    nsqd = start()
    publish_and_read()
    publish_and_read(is_lost=True)
    assert spark.read.format("nsq_diskqueue").load(url).count() >= 100
    nsqd = start()
    publish_and_read()
    rows = spark.read.parquet(table).select("offset", "value").orderBy("offset").collect()
    assert [(row.offset, bytes(row.value)) for row in rows] == [*enumerate(published, start=1)]
    wait_for(nsqd, "orders", "spark", depth=0)
