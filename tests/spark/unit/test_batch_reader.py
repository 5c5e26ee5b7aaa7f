"""spark.read.format("nsq") without a JVM: what a query plans, what its tasks yield, and what is refused before it."""

import os
import pickle
import socket
from collections import Counter
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import CaseInsensitiveDict, DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable

from kit.daemons import Instance, free_port
from kit.nsq_client import NSQClient as Consumer
from kit.spark_topics import bodies, daemon_options, name
from kit.traffic import DaemonFactory, create, publish, wait_for
from pyspark_nsq.catalog_table import schema_of
from pyspark_nsq.columns import ARROW_SCHEMA
from pyspark_nsq.data_source import NsqDataSource
from pyspark_nsq.deliveries import batch
from pyspark_nsq.errors import ConnectionLost, DiscoveryError, OptionError
from pyspark_nsq.partitions import mute_broken_sockets
from pyspark_nsq.ranges.node import NoRanges
from pyspark_nsq.stream_reader import NsqStreamReader

Row = dict[str, Any]


def options(*nsqds: Instance, **more: str) -> dict[str, str]:
    return daemon_options(*nsqds) | {"subscribe": "t", "channel": "c", "nsq.http.timeout": "30s"} | more


def load(given: dict[str, str]) -> Callable[[], DataSourceReader]:
    """Makes a frame, as Spark does; returns what makes the reader of a scan."""
    source = NsqDataSource(CaseInsensitiveDict(given))
    schema = schema_of(str(source.schema()))
    kept = pickle.dumps(source)
    return lambda: pickle.loads(kept).reader(schema)


def rows(reader: DataSourceReader) -> list[Row]:
    """Returns what executors would yield: reader and partitions come to them pickled."""
    found: list[Row] = []
    for partition in reader.partitions() or [InputPartition(None)]:  # as Spark does
        for part in pickle.loads(pickle.dumps(reader)).read(pickle.loads(pickle.dumps(partition))):
            assert isinstance(part, pa.RecordBatch)
            assert part.schema.equals(ARROW_SCHEMA)
            found += part.to_pylist()
    return found


def peek(*nsqds: Instance, **more: str) -> list[Row]:
    given = {key: value for key, value in options(*nsqds, peek="true", **more).items() if value}
    return rows(load(given)())


def values(found: list[Row]) -> list[bytes]:
    return sorted(row["value"] for row in found)


# Ranges


def test_all_scans_of_a_frame_have_the_rows_that_were_there_at_load(gnsqd_factory: DaemonFactory) -> None:
    nsqd = gnsqd_factory("--durability=process")
    publish(nsqd, "t", *bodies(100))
    given = options(nsqd)
    del given["channel"]
    frame = load(given)
    publish(nsqd, "t", b"later")
    assert values(rows(frame())) == values(rows(frame())) == sorted(bodies(100))
    assert len(rows(load(given)())) == 101
    assert nsqd.stats("t")["topics"][0]["channels"] == []


def test_an_nsqd_without_ranges_is_reported_with_what_reads_it(nsqd: Instance) -> None:
    create(nsqd, "t")
    expected = "; 'peek' = 'true' looks at queued messages, and format\\('nsq_diskqueue'\\) reads data directories$"
    frame = load(options(nsqd))  # which may be of a stream
    with pytest.raises(NoRanges, match=expected):
        frame()


# Looks at queued messages


def test_peek_leaves_everything_where_it_is(nsqd: Instance, caplog: pytest.LogCaptureFixture) -> None:
    publish(nsqd, "t", *bodies(5000))  # more than fit into the window of a connection
    for attempts in (1, 2):
        found = peek(nsqd, minPartitions="4")
        assert values(found) == sorted(bodies(5000))
        assert {(row["topic"], row["channel"], row["nsqd"], row["attempts"], row["offset"]) for row in found} == {
            ("t", "c", name(nsqd), attempts, None)
        }
        assert len({row["message_id"] for row in found}) == 5000
        wait_for(nsqd, "t", "c", depth=5000, in_flight_count=0)
    assert not caplog.messages


def test_a_look_that_does_not_see_everything_warns(
    nsqd: Instance, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(nsqd, "t", *bodies(50))
    assert len(peek(nsqd, maxInFlight="7")) == 7
    assert "'peek' shows 7 of 50 messages" in caplog.text
    caplog.clear()
    monkeypatch.setattr(batch, "_BYTES", 20)
    assert 2 <= (count := len(peek(nsqd))) < 50
    assert f"'peek' shows {count} of 50 messages" in caplog.text
    wait_for(nsqd, "t", "c", depth=50, in_flight_count=0)


def test_a_look_leaves_to_others_what_they_have_in_flight(nsqd: Instance) -> None:
    publish(nsqd, "t", *bodies(10))
    with Consumer(nsqd.tcp_address) as other:
        other.subscribe("t", "c", rdy=4)
        held = {other.message().body for _ in range(4)}
        assert set(values(peek(nsqd))) == set(bodies(10)) - held
        wait_for(nsqd, "t", "c", depth=6, in_flight_count=4)


def test_a_look_makes_the_channel_for_the_next_one(nsqd: Instance) -> None:
    create(nsqd, "t", "another")
    publish(nsqd, "t", b"before")
    wait_for(nsqd, "t", "another", depth=1)
    assert peek(nsqd) == []
    publish(nsqd, "t", b"after")
    wait_for(nsqd, "t", "c", depth=1)
    assert values(peek(nsqd)) == [b"after"]


def test_a_look_has_the_topics_of_all_nsqds(nsqd_factory: DaemonFactory) -> None:
    one, two = nsqd_factory(), nsqd_factory()
    publish(one, "t", *bodies(3))
    publish(two, "t", *bodies(4))
    publish(two, "u", *bodies(5))

    def seen(**more: str) -> Counter[tuple[str, str]]:
        return Counter((row["nsqd"], row["topic"]) for row in peek(one, two, **more))

    assert seen(subscribe="t,u") == {(name(one), "t"): 3, (name(two), "t"): 4, (name(two), "u"): 5}
    assert seen(subscribe="t,u", maxInFlight="6") == {(name(one), "t"): 2, (name(two), "t"): 2, (name(two), "u"): 2}
    assert seen(subscribe="", subscribePattern="[u-z]+") == {(name(two), "u"): 5}


def test_a_look_at_nothing_is_reported(nsqd_factory: DaemonFactory) -> None:
    one, two = nsqd_factory(), nsqd_factory()
    publish(one, "t", b"x")
    names = ", ".join(sorted(map(name, (one, two))))
    with pytest.raises(DiscoveryError, match=f"no nsqd has the topic 'v': asked {names}"):
        peek(one, two, subscribe="t,v")
    with pytest.raises(DiscoveryError, match=f"no nsqd has a topic that matches 'v.': asked {names}"):
        peek(one, two, subscribe="", subscribePattern="v.")
    nobody = f"127.0.0.1:{free_port()}"
    with pytest.raises(DiscoveryError, match=f"does not answer at HTTP address {nobody}"):
        peek(one, **{"nsq.nsqd.http.addresses": nobody})
    with pytest.raises(ConnectionLost, match=f"cannot connect to nsqd {nobody}"):
        peek(one, **{"nsq.nsqd.tcp.addresses": nobody})


# What Spark asks first

GIVEN = {"subscribe": "t", "channel": "c", "nsq.nsqd.tcp.addresses": "127.0.0.1:1"}
SCHEMA = schema_of(
    "value BINARY, topic STRING, channel STRING, nsqd STRING, message_id STRING, "
    "timestamp TIMESTAMP, timestamp_ns LONG, attempts INT, offset LONG"
)


def source(**changes: str) -> DataSource:
    return NsqDataSource(CaseInsensitiveDict({**changes, **GIVEN}))


def test_the_schema_is_the_documented_one() -> None:
    assert schema_of(str(source().schema())) == SCHEMA
    assert to_arrow_schema(SCHEMA, timezone="UTC").equals(ARROW_SCHEMA)


def test_another_schema_is_refused() -> None:
    other = schema_of("value STRING")
    refused = r"the schema of messages is value BINARY, .*; it was value string$"
    source(peek="true").reader(SCHEMA)
    for use in ({"peek": "true"}, {}):
        with pytest.raises(OptionError, match=refused):
            source(**use).reader(other)
    stream = source(mode="deliveries")
    assert isinstance(stream.streamReader(SCHEMA), NsqStreamReader)
    with pytest.raises(OptionError, match=refused):
        stream.streamReader(other).getDefaultReadLimit()


def test_what_is_in_a_topic_cannot_be_replaced() -> None:
    sink = NsqDataSource({"topic": "t", "nsq.nsqd.tcp.addresses": "127.0.0.1:1"})
    with pytest.raises(OptionError, match="mode 'overwrite' is not possible: what is in a topic cannot be replaced"):
        sink.writer(schema_of("value STRING"), overwrite=True)


def test_a_stream_with_wrong_options_is_reported_whatever_it_is_asked_first() -> None:
    stream = source(spoolLocation="/s").streamReader(SCHEMA)
    for ask, *arguments in (
        (stream.getDefaultReadLimit,),
        (stream.initialOffset,),
        (stream.latestOffset, {}, ReadAllAvailable()),
        (stream.partitions, {}, {}),
    ):
        with pytest.raises(OptionError, match="unknown option 'spoollocation', which earlier versions had"):
            ask(*arguments)


def test_sockets_are_muted_when_their_other_end_is_closed() -> None:
    broken, closed = socket.socketpair()
    alive, other = socket.socketpair()
    closed.close()
    with broken, alive, other:
        mute_broken_sockets()
        os.write(broken.fileno(), b"nowhere")
        os.write(alive.fileno(), b"there")
        assert other.recv(10) == b"there"
