"""A listener serves the metrics of a session's queries."""

import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kit.daemons import DEADLINE, Instance, eventually
from kit.exposition import series
from kit.nsq_client import NSQClient
from kit.spark_topics import bodies, daemon_options, name
from kit.traffic import create, publish, wait_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from pyspark_nsq.listener import NsqMetrics

pytestmark = pytest.mark.spark

IDLE = "spark.sql.streaming.noDataProgressEventInterval"
PLACE = ("pipeline", "topic", "nsqd")  # labels
Series = tuple[str, ...]


@pytest.fixture
def listener(spark: "SparkSession") -> Iterator["NsqMetrics"]:
    from pyspark_nsq.listener import NsqMetrics

    listener = NsqMetrics("127.0.0.1", 0)
    spark.streams.addListener(listener)
    spark.conf.set(IDLE, "500ms")
    yield listener
    spark.conf.unset(IDLE)
    spark.streams.removeListener(listener)
    listener.close()


def scrape(listener: "NsqMetrics") -> dict[Series, float]:
    """Returns the value of each series, by its name and the values of the labels pipeline, topic and nsqd."""
    with urllib.request.urlopen(f"http://127.0.0.1:{listener.port}/metrics", timeout=DEADLINE) as answer:
        found = series(answer.read())
    return {
        (name.removeprefix("gnsq_pipeline_"), *(dict(labels)[key] for key in PLACE if key in dict(labels))): value
        for (name, labels), value in found.items()
    }


def start(spark: "SparkSession", nsqd: Instance, directory: Path, channel: str, query: str | None) -> "StreamingQuery":
    options = {"subscribe": "orders", "channel": channel}
    frame = spark.readStream.format("nsq").options(**daemon_options(nsqd), **options).load()
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(directory / channel))
    return (writer.queryName(query) if query else writer).start()


def test_queries_of_nsq_have_series_until_they_end(
    spark: "SparkSession", listener: "NsqMetrics", gnsqd: Instance, tmp_path: Path
) -> None:
    create(gnsqd, "orders", "second")
    consumer = NSQClient(gnsqd.tcp_address)
    consumer.subscribe("orders", "first", rdy=5)
    publish(gnsqd, "orders", *bodies(30))
    for _ in range(5):
        consumer.message()
    wait_for(gnsqd, "orders", "first", depth=25)
    first = start(spark, gnsqd, tmp_path, "first", "copies")
    second = start(spark, gnsqd, tmp_path, "second", None)
    other = spark.readStream.format("rate").load().writeStream.format("noop").queryName("other").start()
    try:
        place = "orders", name(gnsqd)
        expected = {
            ("rows_total", "copies"): 25,
            ("in_flight_messages", "copies", *place): 5,
            ("lag_messages", "copies", *place): 0,
            ("rows_total", second.id): 30,
            ("in_flight_messages", second.id, *place): 0,
        }
        eventually(lambda: expected.items() <= scrape(listener).items(), "the series", timeout=60)
        found = scrape(listener)
        when = "last_progress_timestamp_seconds", "copies"
        eventually(lambda: scrape(listener)[when] > found[when] + 1, "an idle query is alive")
        eventually(lambda: other.lastProgress and other.lastProgress.numInputRows, "the other query runs")
        assert {series[1] for series in scrape(listener)} == {"copies", second.id}
        first.stop()
        eventually(lambda: {series[1] for series in scrape(listener)} == {second.id}, "its series are gone")
    finally:
        for query in (first, second, other):
            query.stop()
        consumer.sock.close()
    eventually(lambda: scrape(listener) == {}, "all are gone", timeout=10)
