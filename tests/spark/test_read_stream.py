"""`spark.readStream.format("nsq")`, with gnsqd and with the real nsqd."""

import contextlib
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from conftest import DaemonFactory
from kit.daemons import Daemon, eventually
from kit.nsq_client import Client
from kit.peer_program import start_nsqlookupd
from spark.topics import bodies, daemon_options, publish

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = pytest.mark.spark


class Sink:
    """What a query handed over, by batch: a batch that comes again replaces its first try, as in an exact sink."""

    def __init__(self) -> None:
        self.batches: dict[int, list[tuple[bytes, str]]] = {}
        self.tries: Counter[int] = Counter()
        self.fails = False

    def take(self, frame: "DataFrame", batch: int) -> None:
        rows = [(bytes(row.value), row.message_id) for row in frame.select("value", "message_id").collect()]
        self.tries[batch] += 1
        if batch in self.batches:
            assert sorted(rows) == sorted(self.batches[batch]), "a replay has other rows"
        self.batches[batch] = rows
        if self.fails:
            raise RuntimeError("the sink fails")

    def values(self) -> list[bytes]:
        return sorted(value for rows in list(self.batches.values()) for value, _ in rows)


class Streams:
    """Runs of one query: the checkpoint and the spool stay from one to the next."""

    def __init__(self, spark: "SparkSession", directory: Path) -> None:
        self.spark = spark
        self.directory = directory
        self.spool = directory / "spool"
        self.sink = Sink()

    def start(self, options: dict[str, str], **trigger: Any) -> "StreamingQuery":
        given = {"subscribe": "orders", "channel": "spark", "spoolLocation": str(self.spool), **options}
        if given.get("spool") == "off":
            del given["spoolLocation"]
        writer = self.spark.readStream.format("nsq").options(**given).load().writeStream
        writer = writer.foreachBatch(self.sink.take).option("checkpointLocation", str(self.directory / "checkpoint"))
        return (writer.trigger(**trigger) if trigger else writer).start()

    def drain(self, options: dict[str, str]) -> None:
        """What there is now, and no more."""
        self.start(options, availableNow=True).awaitTermination()

    @contextlib.contextmanager
    def running(self, options: dict[str, str]) -> Iterator["StreamingQuery"]:
        query = self.start(options)
        try:
            yield query
        finally:
            query.stop()


@pytest.fixture
def streams(spark: "SparkSession", tmp_path: Path) -> Streams:
    return Streams(spark, tmp_path / "stream")


def unread(daemon: Daemon) -> int:
    found = daemon.channel_stats("orders", "spark")
    return int(found["depth"] + found["in_flight_count"] + found["deferred_count"])


def test_a_backlog_is_read_in_batches_and_the_next_run_goes_on(streams: Streams, nsqd: Daemon) -> None:
    publish(nsqd, "orders", bodies(2500))  # before there is a channel
    options = {**daemon_options(nsqd), "maxMessagesPerTrigger": "1000"}
    streams.drain(options)
    assert streams.sink.values() == sorted(bodies(2500))
    assert max(len(rows) for rows in streams.sink.batches.values()) <= 1000
    assert unread(nsqd) == 0
    publish(nsqd, "orders", bodies(10, "later "))
    streams.drain(options)
    assert streams.sink.values() == sorted([*bodies(2500), *bodies(10, "later ")])
    assert set(streams.sink.tries.values()) == {1}


def test_what_is_published_while_a_query_runs_arrives(streams: Streams, nsqd_factory: DaemonFactory) -> None:
    daemons = [nsqd_factory(), nsqd_factory()]
    options = {**daemon_options(*daemons), "subscribe": "orders,events"}
    published = []
    with streams.running(options) as query:
        for number, daemon in enumerate(daemons):
            for topic in ("orders", "events"):
                published += (messages := bodies(100, f"{number} {topic} "))
                publish(daemon, topic, messages)
        eventually(lambda: len(streams.sink.values()) >= len(published), "all messages")
        query.processAllAvailable()
    assert streams.sink.values() == sorted(published)


def test_a_batch_whose_sink_failed_comes_again_with_the_same_rows(streams: Streams, nsqd: Daemon) -> None:
    publish(nsqd, "orders", bodies(1000))
    streams.sink.fails = True
    with pytest.raises(Exception, match="the sink fails"):
        streams.drain(daemon_options(nsqd))
    assert unread(nsqd) == 0  # it is all in the spool
    publish(nsqd, "orders", bodies(10, "later "))
    streams.sink.fails = False
    streams.drain(daemon_options(nsqd))
    assert streams.sink.values() == sorted([*bodies(1000), *bodies(10, "later ")])
    assert streams.sink.tries[0] == 2


def test_messages_in_flight_elsewhere_come_when_their_time_is_out(
    streams: Streams, nsqd_factory: DaemonFactory
) -> None:
    nsqd = nsqd_factory("--msg-timeout=3s")
    publish(nsqd, "orders", bodies(100))
    other = Client(nsqd.tcp_address)
    other.subscribe("orders", "spark", rdy=20)
    for _ in range(20):
        other.message()
    with streams.running({**daemon_options(nsqd), "idleTimeoutMs": "1000"}):  # the quota may count what is held
        eventually(lambda: len(streams.sink.values()) >= 80, "what is not held")
        other.sock.close()
        eventually(lambda: len(streams.sink.values()) >= 100, "what was held")
    assert streams.sink.values() == sorted(bodies(100))


def test_nsqds_are_found_by_nsqlookupd(
    streams: Streams, gnsqd_factory: DaemonFactory, peer_binary: Callable[[str], Path], tmp_path: Path
) -> None:
    with start_nsqlookupd(peer_binary("nsqlookupd"), tmp_path / "nsqlookupd.log") as lookupd:
        flags = ["--broadcast-address=127.0.0.1", f"--lookupd-tcp-address={lookupd.address['TCP']}"]
        options = {"nsq.lookupd.http.addresses": lookupd.address["HTTP"]}
        first = gnsqd_factory(*flags)
        publish(first, "orders", bodies(10, "first "))
        with streams.running(options):
            eventually(lambda: len(streams.sink.values()) == 10, "the first nsqd")
            second = gnsqd_factory(*flags)
            publish(second, "orders", bodies(10, "second "))
            eventually(lambda: len(streams.sink.values()) == 20, "the second nsqd")


def test_what_is_left_is_reported_with_each_batch(streams: Streams, nsqd: Daemon) -> None:
    from pyspark_nsq.progress import read_progress

    publish(nsqd, "orders", bodies(3000))
    query = streams.start({**daemon_options(nsqd), "maxMessagesPerTrigger": "1000"}, availableNow=True)
    query.awaitTermination()
    lags = [read_progress(progress.json).lag for progress in query.recentProgress if progress.numInputRows]
    assert lags == [2000, 1000, 0]


def test_a_spool_that_was_deleted_is_reported(streams: Streams, nsqd: Daemon) -> None:
    publish(nsqd, "orders", bodies(10))
    streams.drain(daemon_options(nsqd))
    shutil.rmtree(streams.spool)
    publish(nsqd, "orders", bodies(10, "later "))
    with pytest.raises(Exception, match="failOnDataLoss"):
        streams.drain(daemon_options(nsqd))
    streams.drain({**daemon_options(nsqd), "failOnDataLoss": "false"})
    assert streams.sink.values() == sorted([*bodies(10), *bodies(10, "later ")])


def test_without_a_spool_messages_are_finished_as_they_are_read(streams: Streams, nsqd: Daemon) -> None:
    publish(nsqd, "orders", bodies(1000))
    streams.drain({**daemon_options(nsqd), "spool": "off"})
    assert streams.sink.values() == sorted(bodies(1000))
    assert unread(nsqd) == 0
    assert not streams.spool.exists()


def test_a_stream_without_spool_location_is_refused_before_it_starts(spark: "SparkSession") -> None:
    options = {"nsq.nsqd.tcp.addresses": "127.0.0.1:4150", "subscribe": "orders", "channel": "spark"}
    with pytest.raises(Exception, match="option 'spoolLocation' is required"):
        spark.readStream.format("nsq").options(**options).load().writeStream.format("noop").start().awaitTermination()
