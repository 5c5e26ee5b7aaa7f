"""Ranges in Spark: frames that have the same rows in all scans, and streams that go on after kills, exactly.

What is planned and read, whatever becomes of the daemons, is judged without a JVM in unit/test_ranges.py."""

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kit.daemons import Daemon, eventually, fixed_ports, own_command
from kit.nsq_client import Client
from kit.spark_sessions import ADMISSION_CONTROL
from kit.spark_topics import bodies, daemon_options
from kit.traffic import DaemonFactory, create, publish, wait_for
from spark.lazy_actions import ACTIONS, MORE_ACTIONS
from spark.streams import Streams

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

COUNT = 100
ALL_ACTIONS = ACTIONS | MORE_ACTIONS


@pytest.fixture(scope="module")
def frame(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> Iterator["DataFrame"]:
    """A frame of COUNT messages of a topic to which somebody goes on publishing."""
    stopped = threading.Event()
    with Daemon(own_command(), tmp_path_factory.mktemp("data"), "--durability=process").start() as nsqd:
        publish(nsqd, "orders", *bodies(COUNT))
        options = {**daemon_options(nsqd), "subscribe": "orders", "mode": "ranges", "minPartitions": "2"}
        loaded = spark.read.format("nsq").options(**options).load()

        def go_on() -> None:
            with Client(nsqd.tcp_address) as client:
                client.identify(heartbeat_interval=-1)
                while not stopped.wait(0.01):
                    client.publish("orders", b"later")

        publisher = threading.Thread(target=go_on)
        publisher.start()
        try:
            yield loaded
        finally:
            stopped.set()
            publisher.join()


@pytest.mark.parametrize("action", ALL_ACTIONS)
def test_every_action_has_the_rows_that_were_there_at_load(frame: "DataFrame", tmp_path: Path, action: str) -> None:
    act, times = ALL_ACTIONS[action]
    assert act(frame, tmp_path / "table") == Counter(bodies(COUNT) * times)


@pytest.fixture
def durable(gnsqd_factory: DaemonFactory) -> Daemon:
    """A gnsqd with ranges, which keeps its ports."""
    return gnsqd_factory("--durability=process", *fixed_ports())


@pytest.fixture
def streams(spark: "SparkSession", tmp_path: Path) -> Streams:
    return Streams(spark, tmp_path / "stream")


def test_a_table_has_each_message_once_after_runs_with_kills_between(
    spark: "SparkSession", durable: Daemon, tmp_path: Path
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


def test_a_batch_whose_sink_failed_comes_again_with_the_same_rows(streams: Streams, durable: Daemon) -> None:
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


def test_a_running_query_outlives_its_nsqd(streams: Streams, durable: Daemon) -> None:
    query = streams.start(daemon_options(durable), processingTime="100 milliseconds")
    try:
        for run in range(2):
            publish(durable, "orders", *bodies(100, f"{run} "))
            expected = sorted(body for each in range(run + 1) for body in bodies(100, f"{each} "))
            eventually(lambda expected=expected: streams.values() == expected, timeout=100)  # type: ignore[misc]
            wait_for(durable, "orders", "spark", depth=0)  # also if no other batch comes
            durable.kill()
            durable.start()
    finally:
        query.stop()
    assert set(streams.tries.values()) == {1}


def test_a_table_of_sql_reads_ranges_again_and_again(spark: "SparkSession", durable: Daemon) -> None:
    create(durable, "orders", "other")
    publish(durable, "orders", *bodies(100))
    options = {**daemon_options(durable), "subscribe": "orders", "startingOffsets": "earliest"}
    given = ", ".join(f"`{key}` '{value}'" for key, value in options.items())
    spark.sql(f"CREATE TABLE logged USING nsq OPTIONS ({given})")
    try:
        count = "SELECT count(*), max(offset) FROM logged"
        for number in (100, 110):
            assert [tuple(row) for row in spark.sql(count).collect()] == [(number, number)]
            publish(durable, "orders", *bodies(10))
        wait_for(durable, "orders", "other", depth=120)
    finally:
        spark.sql("DROP TABLE logged")
