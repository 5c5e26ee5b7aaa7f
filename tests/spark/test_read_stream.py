"""`spark.readStream.format("nsq")` by deliveries, with gnsqd and with the real nsqd: what Spark's queries make of it.

What its reader plans and reads, whatever dies, is judged without a JVM in unit/test_deliveries.py."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kit.daemons import Daemon, eventually
from kit.peer_program import start_nsqlookupd
from kit.spark_sessions import ADMISSION_CONTROL
from kit.spark_topics import bodies, daemon_options
from kit.traffic import DaemonFactory, create, post, publish, wait_for
from spark.streams import Streams

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

NEEDS_LIMITS = pytest.mark.skipif(not ADMISSION_CONTROL, reason="needs Spark 4.2, which limits batches")
QUICK = {"msgTimeoutMs": "4000"}  # until messages of a query that failed, or with Spark 4.1 ended, come again


@pytest.fixture
def streams(spark: "SparkSession", tmp_path: Path) -> Streams:
    return Streams(spark, tmp_path / "stream")


def unread(daemon: Daemon) -> int:
    found = daemon.channel_stats("orders", "spark")
    return int(found["depth"] + found["in_flight_count"] + found["deferred_count"])


def test_a_backlog_is_read_in_batches_and_the_next_run_goes_on(streams: Streams, nsqd: Daemon) -> None:
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


@NEEDS_LIMITS
def test_a_batch_has_a_limit_of_bytes(streams: Streams, nsqd: Daemon) -> None:
    published = [body.rjust(1000) for body in bodies(300)]
    publish(nsqd, "orders", *published)
    streams.drain(daemon_options(nsqd) | {"maxBytesPerTrigger": "100k"})
    assert streams.values() == sorted(published)
    # A connection may have got more than it needed when it gets the last of its limits.
    assert [100 <= len(rows) <= 110 for rows in streams.batches.values()] == [True, True, False]


def test_messages_of_a_batch_whose_sink_failed_come_in_a_later_one(streams: Streams, nsqd: Daemon) -> None:
    options = daemon_options(nsqd) | QUICK
    publish(nsqd, "orders", *bodies(1000))
    streams.fails = True
    with pytest.raises(Exception, match="the sink fails"):
        streams.drain(options)
    assert unread(nsqd) == 1000
    assert len(streams.batches[0]) == 1000
    publish(nsqd, "orders", *bodies(10, "later "))
    streams.fails = False
    streams.drain(options)
    assert streams.batches[0] == []
    assert streams.tries[0] == 2
    assert streams.values() == sorted([*bodies(1000), *bodies(10, "later ")])
    if ADMISSION_CONTROL:
        assert unread(nsqd) == 0


def test_tasks_that_run_again_have_the_same_rows(streams: Streams, nsqd: Daemon) -> None:
    """Also after one of them failed."""
    publish(nsqd, "orders", *bodies(1000))
    seen = []

    def act(frame: "DataFrame") -> None:
        with contextlib.suppress(Exception):
            frame.selectExpr("raise_error('no')").collect()
        seen.append(sorted(bytes(row.value) for row in frame.select("value").collect()))

    streams.act = act
    streams.drain(daemon_options(nsqd) | QUICK | {"minPartitions": "3"})
    assert seen[0] == streams.values() == sorted(bodies(1000))


@NEEDS_LIMITS
def test_no_message_times_out_while_the_sink_is_slow(streams: Streams, nsqd: Daemon) -> None:
    create(nsqd, "clock", "ticks")
    publish(nsqd, "orders", *bodies(1000))

    def act(frame: "DataFrame") -> None:
        """Waits for as long as three timeouts, by the clock of the daemon."""
        post(nsqd, "/pub?topic=clock&defer=3000", b"tick")
        wait_for(nsqd, "clock", "ticks", depth=1)

    streams.act = act
    streams.drain(daemon_options(nsqd) | QUICK)
    assert streams.values() == sorted(bodies(1000))
    assert streams.tries == {0: 1}
    assert nsqd.channel_stats("orders", "spark")["timeout_count"] == 0
    assert unread(nsqd) == 0


def test_nsqds_and_messages_that_come_while_a_query_runs_are_read(
    streams: Streams, nsqd_factory: DaemonFactory, peer_binary: Callable[[str], Path], tmp_path: Path
) -> None:
    with start_nsqlookupd(peer_binary("nsqlookupd"), tmp_path / "nsqlookupd.log") as lookupd:
        flags = ["--broadcast-address=127.0.0.1", f"--lookupd-tcp-address={lookupd.address['TCP']}"]
        query = streams.start({"nsq.lookupd.http.addresses": lookupd.address["HTTP"], "subscribe": "orders,events"})
        published = {topic: bodies(100, f"{topic} ") for topic in ("orders", "events")}
        everything = [body for messages in published.values() for body in messages]
        try:
            for number in (1, 2):
                daemon = nsqd_factory(*flags)
                for topic, messages in published.items():
                    publish(daemon, topic, *messages)
                expected = sorted(number * everything)
                eventually(lambda expected=expected: streams.values() == expected)  # type: ignore[misc]
        finally:
            query.stop()
