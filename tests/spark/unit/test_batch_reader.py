"""spark.read.format("nsq") without a JVM: what a query plans, what its tasks yield, and what is refused before it."""

import json
import os
import pickle
import re
import socket
import uuid
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.datasource import CaseInsensitiveDict, DataSource, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable

from gnsq_pipeline.spool import publish as replay
from kit.auth_server import EVERYTHING, AuthServer, grant
from kit.certificates import write_identities
from kit.daemons import Daemon, free_port
from kit.nsq_client import Client as Consumer
from kit.spark_topics import bodies, daemon_options, name
from kit.traffic import DaemonFactory, create, post, publish, wait_for
from pyspark_nsq.batch_reader import NsqReader, check_retry
from pyspark_nsq.batch_reader import plan as plan_scan
from pyspark_nsq.catalog_table import schema_of
from pyspark_nsq.columns import ARROW_SCHEMA
from pyspark_nsq.data_source import NsqDataSource
from pyspark_nsq.errors import DiscoveryError, NsqSourceError, OptionError, SpoolError
from pyspark_nsq.options import Settings, parse
from pyspark_nsq.partitions import mute_broken_sockets
from pyspark_nsq.read_task import ReadPartition
from pyspark_nsq.retention import inspect
from pyspark_nsq.segment import EntryKind, pack_entry
from pyspark_nsq.spool import Spool
from pyspark_nsq.stream_reader import NsqStreamReader


def options(*nsqds: Daemon, **more: str) -> dict[str, str]:
    return daemon_options(*nsqds) | {"subscribe": "t", "channel": "c", "nsq.http.timeout": "30s"} | more


def rows(reader: NsqReader, partitions: Iterable[InputPartition]) -> list[dict[str, object]]:
    """What executors would yield: reader and partitions come to them pickled."""
    found: list[dict[str, object]] = []
    for partition in partitions:
        for batch in pickle.loads(pickle.dumps(reader)).read(pickle.loads(pickle.dumps(partition))):
            assert isinstance(batch, pa.RecordBatch)
            assert batch.schema.equals(ARROW_SCHEMA)
            found += batch.to_pylist()
    return found


def new_reader(*nsqds: Daemon, **more: str) -> NsqReader:
    """Of a new frame."""
    settings = parse(options(*nsqds, **more), "read")
    return NsqReader(settings, partial(plan_scan, settings, uuid.uuid4().hex))


def plan(settings: Settings) -> list[ReadPartition]:
    """The tasks of a new frame's first scan."""
    return plan_scan(settings, uuid.uuid4().hex)


def read(*nsqds: Daemon, **more: str) -> list[dict[str, object]]:
    reader = new_reader(*nsqds, **more)
    return rows(reader, reader.partitions())


@pytest.fixture(params=["with a spool", "without one"])
def spooling(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    return {"spoolLocation": str(tmp_path / "spool")} if request.param == "with a spool" else {"spool": "off"}


def test_everything_that_waits_is_read_and_gone(nsqd: Daemon, spooling: dict[str, str]) -> None:
    publish(nsqd, "t", *bodies(5000))  # more than fit into the window
    found = read(nsqd, **spooling)
    assert sorted(row["value"] for row in found) == sorted(bodies(5000))  # type: ignore[type-var]
    assert {(row["topic"], row["channel"], row["nsqd"], row["attempts"]) for row in found} == {
        ("t", "c", name(nsqd), 1)
    }
    assert len({row["message_id"] for row in found}) == 5000
    stats = nsqd.channel_stats("t", "c")
    assert (stats["depth"], stats["in_flight_count"]) == (0, 0)
    reader = new_reader(nsqd, **spooling)
    assert reader.partitions() == []
    assert rows(reader, [InputPartition(None)]) == []  # what Spark makes of that


def test_what_is_in_flight_elsewhere_is_left_alone(nsqd: Daemon) -> None:
    publish(nsqd, "t", *bodies(10))
    with Consumer(nsqd.tcp_address) as other:
        other.subscribe("t", "c", rdy=4)
        held = {other.message().body for _ in range(4)}
        (task,) = plan(parse(options(nsqd, spool="off"), "read"))
        assert task.quotas == {"t": 6}
        assert {row["value"] for row in read(nsqd, spool="off")} == set(bodies(10)) - held


def test_the_first_read_makes_the_channel_for_the_next_one(nsqd: Daemon, spooling: dict[str, str]) -> None:
    create(nsqd, "t", "another")
    publish(nsqd, "t", b"before")
    wait_for(nsqd, "t", "another", depth=1)
    assert read(nsqd, **spooling) == []
    publish(nsqd, "t", b"after")
    wait_for(nsqd, "t", "c", depth=1)
    assert [row["value"] for row in read(nsqd, **spooling)] == [b"after"]


def test_topics_with_few_messages_share_a_task_for_each_nsqd(nsqd_factory: DaemonFactory) -> None:
    one, two = nsqd_factory(), nsqd_factory()
    publish(one, "t", *bodies(3))
    publish(two, "t", *bodies(4))
    publish(two, "u", *bodies(5))
    given = options(one, two, spool="off")
    tasks = plan(parse(given | {"subscribe": "t,u"}, "read"))
    assert {task.nsqd.name: task.quotas for task in tasks} == {name(one): {"t": 3}, name(two): {"t": 4, "u": 5}}
    assert len({task.stream for task in tasks}) == 1
    del given["subscribe"]
    tasks = plan(parse(given | {"subscribePattern": "[u-z]+"}, "read"))
    assert {task.nsqd.name: task.quotas for task in tasks} == {name(two): {"u": 5}}
    names = ", ".join(sorted(map(name, (one, two))))
    with pytest.raises(DiscoveryError, match=f"no nsqd has a topic that matches 'v.': asked {names}"):
        plan(parse(given | {"subscribePattern": "v."}, "read"))


def test_more_tasks_share_an_nsqd_on_request(nsqd: Daemon, spooling: dict[str, str]) -> None:
    publish(nsqd, "t", *bodies(100))
    reader = new_reader(nsqd, minPartitions="3", **spooling)
    partitions = reader.partitions()
    assert sorted(partition.value.quotas["t"] for partition in partitions) == [33, 33, 34]
    counts = [Counter(row["value"] for row in rows(reader, [partition])) for partition in partitions]
    assert [count.total() for count in counts] == [partition.value.quotas["t"] for partition in partitions]
    assert set(sum(counts, Counter[object]()).items()) == {(body, 1) for body in bodies(100)}


def test_all_scans_of_a_frame_read_what_the_first_one_settled(nsqd: Daemon, tmp_path: Path) -> None:
    """And a task that runs again yields the same rows."""
    publish(nsqd, "t", *bodies(2000))
    source = NsqDataSource(CaseInsensitiveDict(options(nsqd, spoolLocation=str(tmp_path / "spool"))))
    frame = pickle.dumps(source)  # what Spark keeps of it
    one, two = (pickle.loads(frame).reader(SCHEMA) for _ in range(2))
    first, second = one.partitions(), two.partitions()
    assert len(rows(one, first)) == 2000
    publish(nsqd, "t", b"later")
    later = pickle.loads(frame).reader(SCHEMA)
    assert rows(two, second) == rows(later, later.partitions()) == rows(one, first)


def test_two_scans_that_are_planned_at_once_have_one_plan(tmp_path: Path) -> None:
    spool = Spool.create(Settings(topics=("t",), channel="c", spool_location=str(tmp_path)), "s", "read")
    assert spool.settle_plan({"version": 1, "batch": 1}) == {"version": 1, "batch": 1}
    assert spool.settle_plan({"version": 1, "batch": 2}) == {"version": 1, "batch": 1}
    assert spool.plan() == {"version": 1, "batch": 1}


def test_a_frame_that_was_empty_stays_empty(nsqd: Daemon, tmp_path: Path) -> None:
    create(nsqd, "t")
    reader = new_reader(nsqd, spoolLocation=str(tmp_path / "spool"))
    assert reader.partitions() == []
    publish(nsqd, "t", b"later")
    assert reader.partitions() == []


def test_a_read_that_is_aborted_has_nothing_in_flight(nsqd: Daemon, spooling: dict[str, str]) -> None:
    publish(nsqd, "t", *bodies(30_000))
    reader = new_reader(nsqd, **spooling)
    (partition,) = reader.partitions()
    batches = reader.read(partition)
    next(batches)
    batches.close()  # type: ignore[attr-defined]
    assert nsqd.channel_stats("t", "c")["in_flight_count"] == 0


def test_sockets_are_muted_when_their_other_end_is_closed() -> None:
    broken, closed = socket.socketpair()
    alive, other = socket.socketpair()
    closed.close()
    with broken, alive, other:
        mute_broken_sockets()
        os.write(broken.fileno(), b"nowhere")
        os.write(alive.fileno(), b"there")
        assert other.recv(10) == b"there"


def test_peek_leaves_everything_where_it_is(nsqd: Daemon, caplog: pytest.LogCaptureFixture) -> None:
    publish(nsqd, "t", *bodies(50))
    for attempts in (1, 2):
        found = read(nsqd, peek="true", minPartitions="4")
        assert sorted(row["value"] for row in found) == sorted(bodies(50))  # type: ignore[type-var]
        assert {row["attempts"] for row in found} == {attempts}
        wait_for(nsqd, "t", "c", depth=50, in_flight_count=0)
    assert not caplog.messages
    assert len(read(nsqd, peek="true", maxInFlight="7")) == 7
    assert "'peek' shows 7 of 50 messages" in caplog.text


@pytest.mark.parametrize(
    ("more", "warned"),
    [({"spool": "off"}, True), ({"spool": "off", "failOnDataLoss": "false"}, False), ({"peek": "true"}, False)],
)
def test_a_read_without_a_spool_warns(
    nsqd: Daemon, caplog: pytest.LogCaptureFixture, more: dict[str, str], warned: bool
) -> None:
    publish(nsqd, "t", b"one")
    plan(parse(options(nsqd, **more), "read"))
    assert any("'spool' is off: messages are finished as they are read" in text for text in caplog.messages) == warned


def test_a_task_that_runs_again_without_a_spool_fails_the_job(gnsqd: Daemon, tmp_path: Path) -> None:
    publish(gnsqd, "t", b"x")

    def retried(**more: str) -> None:
        settings = parse(options(gnsqd, **more), "read")
        check_retry(settings, plan(settings)[0])

    retried(spoolLocation=str(tmp_path / "spool"))
    retried(spool="off", failOnDataLoss="false")
    retried(peek="true")
    with pytest.raises(NsqSourceError, match=f"topic t from nsqd {name(gnsqd)} died, and rows may be lost"):
        retried(spool="off")


def test_the_spool_keeps_a_read_for_a_day(gnsqd: Daemon, tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    settings = parse(options(gnsqd, spoolLocation=str(spool), spoolRetention="0"), "read")

    def planned() -> Path:
        publish(gnsqd, "t", b"x")
        (task,) = plan(settings)
        return spool / task.stream

    first, second = planned(), planned()
    about = json.loads((first / "stream").read_text())
    about["created"] -= 2 * 86400
    (first / "stream").write_text(json.dumps(about))
    stream = Spool.create(Settings(topics=("t",), channel="c", spool_location=str(spool)), "s", "readStream")
    Path(stream.directory, "stream").write_text(json.dumps(about | {"kind": "readStream"}))
    fourth = Spool.create(Settings(topics=("t",), channel="d", spool_location=str(spool)), "u@d", "read", "another")
    chain = fourth.chain(1, 0, "n:1")
    chain.open()
    chain.append(pack_entry(EntryKind.SEGMENT, 0, 0, {"t": b"1" * 16}, b"payload"))
    Path(fourth.directory, "stream").write_text(json.dumps(about | {"session": "another", "channel": "d"}))
    third = planned()
    kept = (first, second, third, spool / "s", spool / "u@d")
    assert [path.exists() for path in kept] == [False, True, True, True, True]


# Reads with a name and without one


@pytest.fixture
def enter(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Begins another session: another application, or one of Spark Connect."""

    def begin(session: str, *, connect: bool = False) -> None:
        monkeypatch.setattr("pyspark.SparkFiles._root_directory", f"/tmp/spark-1/userFiles-2/{session}")
        monkeypatch.setenv("SPARK_JOB_ARTIFACT_UUID", session if connect else "default")

    begin("first")
    return begin


def load(nsqd: Daemon, tmp_path: Path, **more: str) -> NsqReader:
    """The reader of one scan of a new frame."""
    given = options(nsqd, spoolLocation=str(tmp_path / "spool"), **more)
    reader = pickle.loads(pickle.dumps(NsqDataSource(CaseInsensitiveDict(given)))).reader(SCHEMA)
    assert isinstance(reader, NsqReader)
    return reader


def values(reader: NsqReader) -> list[object]:
    return sorted(row["value"] for row in rows(reader, reader.partitions()))  # type: ignore[type-var]


def test_a_read_of_the_same_name_has_the_same_rows_in_a_new_session(
    nsqd: Daemon, tmp_path: Path, enter: Callable[..., None]
) -> None:
    """Also if the job died halfway through the read, which then takes the rest of its number from what is queued."""
    publish(nsqd, "t", *bodies(30_000))
    first = load(nsqd, tmp_path, readId="2026-11-27T00:00+00:00/1")
    batches = first.read(first.partitions()[0])
    next(batches)
    batches.close()  # type: ignore[attr-defined]
    publish(nsqd, "t", b"later")
    enter("second")
    found = values(load(nsqd, tmp_path, readId="2026-11-27T00:00+00:00/1"))
    assert values(load(nsqd, tmp_path, readId="2026-11-27T00:00+00:00/1")) == found
    assert len(found) == 30_000
    others = values(load(nsqd, tmp_path, readId="another"))
    assert sorted([*found, *others]) == sorted([*bodies(30_000), b"later"])  # type: ignore[type-var]


def test_the_messages_of_a_read_without_a_name_are_not_passed_over_in_a_new_session(
    nsqd: Daemon, tmp_path: Path, enter: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    create(nsqd, "t", "c", "d")
    publish(nsqd, "t", *bodies(100))
    assert values(load(nsqd, tmp_path)) == sorted(bodies(100))
    assert not caplog.messages
    assert values(load(nsqd, tmp_path)) == []
    assert "has 100 messages of channel c, which another batch read took" in caplog.text
    enter("second")
    with pytest.raises(SpoolError, match="100 messages .* `gnsq-pipeline spool replay .* publishes") as error:
        load(nsqd, tmp_path).partitions()
    assert values(load(nsqd, tmp_path, failOnDataLoss="false")) == []
    assert values(load(nsqd, tmp_path, readId="named")) == []
    assert len(values(load(nsqd, tmp_path, channel="d"))) == 100
    (name,) = re.findall("'readId' = '([0-9a-f]{32})' reads them again", str(error.value))
    assert values(load(nsqd, tmp_path, readId=name)) == sorted(bodies(100))
    assert values(load(nsqd, tmp_path)) == []


def test_messages_that_were_published_again_stop_no_read(
    gnsqd: Daemon, tmp_path: Path, enter: Callable[..., None]
) -> None:
    publish(gnsqd, "t", *bodies(10))
    values(load(gnsqd, tmp_path))
    (report,) = inspect(str(tmp_path / "spool"))
    assert isinstance(gnsqd.tcp_address, tuple)
    replay(str(tmp_path / "spool"), report, Settings(nsqd_tcp_addresses=(gnsqd.tcp_address,)), None, False)
    enter("second")
    assert values(load(gnsqd, tmp_path)) == sorted(bodies(10))


def test_a_name_belongs_to_topics_of_a_channel(nsqd: Daemon, tmp_path: Path) -> None:
    for topic in ("t", "u"):
        create(nsqd, topic)
        publish(nsqd, topic, *bodies(3, topic))
    assert len(values(load(nsqd, tmp_path, readId="r"))) == 3
    with pytest.raises(OptionError, match=r"a read of other topics: expected 'subscribe' = 't', or another name"):
        load(nsqd, tmp_path, readId="r", subscribe="t,u").partitions()
    assert len(values(load(nsqd, tmp_path, readId="r", channel="d", subscribe="u"))) == 3


def test_a_frame_that_is_analysed_again_has_the_same_rows(
    gnsqd: Daemon, tmp_path: Path, enter: Callable[..., None]
) -> None:
    """As Spark Connect does; its session has one read with the same options, as soon as there are messages."""
    enter("first", connect=True)
    create(gnsqd, "t")
    assert values(load(gnsqd, tmp_path)) == []
    publish(gnsqd, "t", *bodies(100))
    assert [values(load(gnsqd, tmp_path)) for _ in range(2)] == [sorted(bodies(100))] * 2
    assert values(load(gnsqd, tmp_path, readId="next")) == []
    enter("second", connect=True)
    with pytest.raises(SpoolError, match="has 100 messages"):
        load(gnsqd, tmp_path).partitions()


def test_a_read_goes_over_tls_with_a_secret(nsqd_factory: DaemonFactory, tmp_path: Path) -> None:
    files = write_identities(tmp_path)
    cert, key = files["server"]
    https = f"127.0.0.1:{free_port()}"
    with AuthServer(grant(EVERYTHING)) as server:
        flags = [f"--tls-cert={cert}", f"--tls-key={key}", "--tls-required=tcp-https", f"--https-address={https}"]
        nsqd = nsqd_factory(*flags, f"--auth-http-address={server.address}")
        post(nsqd, "/pub?topic=t", b"x")
        secured = {"nsq.nsqd.http.addresses": https, "nsq.nsqd.http.tls": "true"}
        secured |= {"nsq.tls.ca": files["authority"][0], "nsq.auth.secret": "secret"}
        assert [row["value"] for row in read(nsqd, spool="off", **secured)] == [b"x"]
        with pytest.raises(DiscoveryError, match="its certificate is not trusted"):
            read(nsqd, spool="off", **(secured | {"nsq.tls.ca": files["unknown"][0]}))


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
    source(spool="off").reader(SCHEMA)
    refused = r"the schema of messages is value BINARY, .*; it was value string$"
    with pytest.raises(OptionError, match=refused):
        source(spool="off").reader(other)
    stream = source(spoolLocation="/s", mode="deliveries")
    assert isinstance(stream.streamReader(SCHEMA), NsqStreamReader)
    with pytest.raises(OptionError, match=refused):
        stream.streamReader(other).getDefaultReadLimit()


def test_a_stream_with_wrong_options_says_so_whatever_it_is_asked_first() -> None:
    stream = source(mode="deliveries").streamReader(SCHEMA)
    for ask, *arguments in (
        (stream.getDefaultReadLimit,),
        (stream.initialOffset,),
        (stream.latestOffset, {}, ReadAllAvailable()),
        (stream.partitions, {}, {}),
    ):
        with pytest.raises(OptionError, match="option 'spoolLocation' is required"):
            ask(*arguments)
