"""`spark.read.format("nsq")`, with gnsqd and with the real nsqd."""

import datetime
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from conftest import DaemonFactory
from kit.certificates import write_identities
from kit.daemons import Daemon, eventually
from kit.nsq_client import Client
from spark.patterns.actions import PATTERNS
from spark.topics import bodies, daemon_options, name, publish

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


Read = Callable[..., "DataFrame"]


@pytest.fixture
def read(spark: "SparkSession", tmp_path: Path) -> Read:
    """Makes a frame of all that waits in the channel `spark` of a topic, with a spool unless the options say not."""

    def called(*daemons: Daemon, topic: str = "orders", **options: str) -> "DataFrame":
        given = {**daemon_options(*daemons), "subscribe": topic, "channel": "spark", **options}
        if not {"spool", "peek"} & set(options):
            given["spoolLocation"] = str(tmp_path / "spool")
        return spark.read.format("nsq").options(**given).load()

    return called


def values(frame: "DataFrame") -> list[bytes]:
    return sorted(bytes(row.value) for row in frame.select("value").collect())


def test_a_row_has_everything_of_its_message(read: Read, nsqd: Daemon) -> None:
    before = time.time_ns()
    publish(nsqd, "orders", [b"\x00\xff", b"text"])
    rows = sorted(read(nsqd).collect(), key=lambda row: bytes(row.value))
    assert [bytes(row.value) for row in rows] == [b"\x00\xff", b"text"]
    for row in rows:
        assert (row.topic, row.channel, row.nsqd, row.attempts) == ("orders", "spark", name(nsqd), 1)
        assert len(row.message_id) == 16
        assert before < row.timestamp_ns < time.time_ns()
        seconds = datetime.datetime.fromtimestamp(row.timestamp_ns // 1000 / 1_000_000)
        assert row.timestamp == seconds
    assert len({row.message_id for row in rows}) == 2


def test_the_first_read_has_what_came_before_the_channel(read: Read, nsqd: Daemon) -> None:
    published = bodies(5000)
    publish(nsqd, "orders", published)
    assert values(read(nsqd)) == sorted(published)
    assert nsqd.channel_stats("orders", "spark")["depth"] == 0
    publish(nsqd, "orders", [b"later"])
    assert values(read(nsqd)) == [b"later"]
    assert values(read(nsqd)) == []


def test_nsqds_topics_and_tasks_share_the_work(read: Read, nsqd_factory: DaemonFactory) -> None:
    daemons = [nsqd_factory(), nsqd_factory()]
    for number, daemon in enumerate(daemons):
        for topic in ("orders", "events"):
            publish(daemon, topic, bodies(1000, f"{number} {topic} "))
    options = {"minPartitions": "6"}
    frame = read(*daemons, topic="orders,events", **options).cache()
    assert frame.rdd.getNumPartitions() >= 6
    counts = {(row.nsqd, row.topic): row["count"] for row in frame.groupBy("nsqd", "topic").count().collect()}
    assert counts == {(name(daemon), topic): 1000 for daemon in daemons for topic in ("orders", "events")}
    assert frame.select("value").distinct().count() == 4000
    frame.unpersist()


def test_an_aggregation_reads_each_message_once(read: Read, nsqd: Daemon) -> None:
    publish(nsqd, "orders", bodies(3000))
    (row,) = read(nsqd).selectExpr("count(*) AS number", "sum(length(value)) AS bytes").collect()
    assert (row.number, row.bytes) == (3000, sum(map(len, bodies(3000))))


def test_options_of_tls_reach_the_tasks(read: Read, nsqd_factory: DaemonFactory, tmp_path: Path) -> None:
    identities = write_identities(tmp_path)
    cert, key = identities["server"]
    daemon = nsqd_factory(f"--tls-cert={cert}", f"--tls-key={key}", "--tls-required=tcp-https")
    assert daemon.http("POST", "/pub?topic=orders", b"secret")[0] == 200
    frame = read(daemon, **{"nsq.tls.ca": identities["authority"][0]})
    assert values(frame) == [b"secret"]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_every_action_has_all_rows(read: Read, gnsqd: Daemon, tmp_path: Path, pattern: str) -> None:
    publish(gnsqd, "orders", bodies(2000))
    act, times = PATTERNS[pattern]
    assert act(read(gnsqd), tmp_path / "table") == Counter(dict.fromkeys(bodies(2000), times))


def test_a_frame_that_was_shown_still_has_all_rows(read: Read, nsqd: Daemon) -> None:
    published = bodies(50_000)
    publish(nsqd, "orders", published)
    frame = read(nsqd)
    frame.select("topic", "attempts").show(5)
    eventually(lambda: nsqd.channel_stats("orders", "spark")["in_flight_count"] == 0)
    assert values(frame) == sorted(published)


def test_a_frame_has_what_was_queued_at_its_first_action(read: Read, nsqd: Daemon) -> None:
    published = bodies(2000)
    publish(nsqd, "orders", published)
    frame = read(nsqd)
    assert frame.alias("a").join(frame.alias("b"), "message_id").count() == 2000
    publish(nsqd, "orders", [b"later"])
    assert values(frame) == sorted(published)


def test_what_a_read_without_a_spool_holds_is_released_when_spark_has_rows_enough(read: Read, nsqd: Daemon) -> None:
    publish(nsqd, "orders", bodies(50_000))
    read(nsqd, spool="off").select("topic").show(5)
    eventually(lambda: nsqd.channel_stats("orders", "spark")["in_flight_count"] == 0)


def test_peek_takes_nothing(read: Read, nsqd: Daemon) -> None:
    publish(nsqd, "orders", bodies(100))
    frame = read(nsqd, peek="true")
    frame.show(1)
    assert values(frame) == sorted(bodies(100))
    assert values(read(nsqd)) == sorted(bodies(100))


def test_a_read_without_a_spool_has_to_be_requested(read: Read, nsqd: Daemon) -> None:
    publish(nsqd, "orders", bodies(10))
    with pytest.raises(Exception) as error:
        read(nsqd, spool="on").count()
    assert "option 'spoolLocation' is required" in str(error.value)
    assert nsqd.stats("orders")["topics"][0]["depth"] == 10


def test_messages_in_flight_elsewhere_are_left_alone(read: Read, nsqd: Daemon) -> None:
    publish(nsqd, "orders", bodies(10))
    other = Client(nsqd.tcp_address)
    other.subscribe("orders", "spark", rdy=4)
    held = [other.message().body for _ in range(4)]
    assert values(read(nsqd)) == sorted(set(bodies(10)) - set(held))
    other.sock.close()


@pytest.mark.parametrize(
    "options, reported",
    [
        ({"subscirbe": "x"}, "unknown option 'subscirbe': did you mean 'subscribe'?"),
        ({"maxInFlight": "many"}, "option 'maxInFlight' has the value 'many'"),
        ({"maxMessagesPerTrigger": "1"}, "option 'maxMessagesPerTrigger' is for readStream"),
        ({"nsq.lookupd.http.addresses": "127.0.0.1:1"}, "contradict"),
    ],
)
def test_a_wrong_option_is_reported_before_any_job(
    spark: "SparkSession", options: dict[str, str], reported: str
) -> None:
    frame = spark.read.format("nsq").option("subscribe", "orders").option("channel", "spark")
    frame = frame.option("nsq.nsqd.tcp.addresses", "127.0.0.1:4150").options(**options)
    with pytest.raises(Exception) as error:
        frame.load().collect()
    assert reported in str(error.value)


def test_a_topic_that_nobody_has_is_an_error(read: Read, nsqd: Daemon) -> None:
    with pytest.raises(Exception) as error:
        read(nsqd, topic="nothing").collect()
    assert "nothing" in str(error.value)
    assert nsqd.stats()["topics"] == []
