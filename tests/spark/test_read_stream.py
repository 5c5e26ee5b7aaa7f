"""`format("nsq")` by deliveries, with gnsqd and with the real nsqd: what Spark makes of rows, and its queries of them.

What its readers plan and read, whatever dies, is judged without a JVM in unit/test_deliveries.py and test_batch_reader.
"""

import datetime
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kit.daemons import Instance, eventually
from kit.peer_program import start_nsqlookupd
from kit.spark_sessions import ADMISSION_CONTROL
from kit.spark_topics import bodies, daemon_options, name
from kit.traffic import DaemonFactory, post, publish, wait_for
from spark.streams import Streams

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

QUICK = {"msgTimeoutMs": "4000"}  # until messages of a query that failed, or with Spark 4.1 ended, come again


@pytest.fixture
def streams(spark: "SparkSession", tmp_path: Path) -> Streams:
    return Streams(spark, tmp_path / "stream")


def unread(daemon: Instance) -> int:
    found = daemon.channel_stats("orders", "spark")
    return int(found["depth"] + found["in_flight_count"] + found["deferred_count"])


def test_a_row_has_everything_of_its_message(spark: "SparkSession", nsqd: Instance) -> None:
    before = time.time_ns()
    for body in (b"\x00\xff", b"text"):
        post(nsqd, "/pub?topic=orders", body)
    given = {**daemon_options(nsqd), "subscribe": "orders", "channel": "spark", "peek": "true"}
    rows = spark.read.format("nsq").options(**given).load().collect()
    assert sorted(bytes(row.value) for row in rows) == [b"\x00\xff", b"text"]
    for row in rows:
        assert (row.topic, row.channel, row.nsqd, row.attempts, row.offset) == ("orders", "spark", name(nsqd), 1, None)
        assert len(row.message_id) == 16
        assert before < row.timestamp_ns < time.time_ns()
        assert row.timestamp == datetime.datetime.fromtimestamp(row.timestamp_ns // 1000 / 1_000_000)
    assert len({row.message_id for row in rows}) == 2
    wait_for(nsqd, "orders", "spark", depth=2, in_flight_count=0)


def test_a_backlog_is_read_in_batches_and_the_next_run_goes_on(streams: Streams, nsqd: Instance) -> None:
    from pyspark_nsq.progress import read_progress

    publish(nsqd, "orders", *bodies(2500))  # before there is a channel
    options, limit = daemon_options(nsqd) | QUICK, {"maxMessagesPerTrigger": "1000"}
    if ADMISSION_CONTROL:
        options |= limit
    else:
        with pytest.raises(Exception, match="'maxMessagesPerTrigger' needs Spark 4.2 or newer"):
            streams.drain(options | limit)
    query = streams.drain(options)
    assert streams.values() == sorted(bodies(2500))
    if ADMISSION_CONTROL:
        assert [len(rows) for rows in streams.batches.values()] == [1000, 1000, 500]
        lags = [read_progress(progress.json).lag for progress in query.recentProgress if progress.numInputRows]
        assert lags == [1500, 500, 0]
        assert unread(nsqd) == 0
    publish(nsqd, "orders", *bodies(10, "later "))
    streams.drain(options)
    assert streams.values() == sorted([*bodies(2500), *bodies(10, "later ")])
    assert set(streams.tries.values()) == {1}
    if ADMISSION_CONTROL:
        assert unread(nsqd) == 0


def test_messages_of_a_batch_whose_sink_failed_come_in_a_later_one(streams: Streams, gnsqd: Instance) -> None:
    options = daemon_options(gnsqd) | QUICK
    publish(gnsqd, "orders", *bodies(1000))
    streams.fails = True
    with pytest.raises(Exception, match="the sink fails"):
        streams.drain(options)
    assert unread(gnsqd) == 1000
    assert len(streams.batches[0]) == 1000
    # With Spark 4.1 they come back after their time-out, and the next stream may be faster than that.
    wait_for(gnsqd, "orders", "spark", depth=1000)
    publish(gnsqd, "orders", *bodies(10, "later "))
    streams.fails = False
    streams.drain(options)
    assert streams.batches[0] == []
    assert streams.tries[0] == 2
    assert streams.values() == sorted([*bodies(1000), *bodies(10, "later ")])
    if ADMISSION_CONTROL:
        assert unread(gnsqd) == 0


def test_nsqds_and_messages_that_come_while_a_query_runs_are_read(
    streams: Streams, gnsqd_factory: DaemonFactory, peer_binary: Callable[[str], Path], tmp_path: Path
) -> None:
    with start_nsqlookupd(peer_binary("nsqlookupd"), tmp_path / "nsqlookupd.log") as lookupd:
        flags = ["--broadcast-address=127.0.0.1", f"--lookupd-tcp-address={lookupd.address['TCP']}"]
        query = streams.start({"nsq.lookupd.http.addresses": lookupd.address["HTTP"], "subscribe": "orders,events"})
        published = {topic: bodies(100, f"{topic} ") for topic in ("orders", "events")}
        everything = [body for messages in published.values() for body in messages]
        try:
            for number in (1, 2):
                daemon = gnsqd_factory(*flags)
                for topic, messages in published.items():
                    publish(daemon, topic, *messages)
                expected = sorted(number * everything)
                eventually(lambda expected=expected: streams.values() == expected)  # type: ignore[misc]
        finally:
            query.stop()
