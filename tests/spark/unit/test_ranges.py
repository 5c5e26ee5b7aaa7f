"""Ranges without a JVM: what is planned and read from real daemons, whatever becomes of them."""

import json
import pickle
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable

from gnsqd.shared.log_store import LogStore, Stored, dead_segments, read_log
from gnsqd.shared.stored_topic import StoredRange
from kit.certificates import write_identities
from kit.daemons import Instance, eventually, fixed_ports, free_port
from kit.lookupds import own_lookupd_command
from kit.nsq_client import NSQClient
from kit.peer_program import start_nsqlookupd
from kit.spark_topics import bodies, daemon_options, name
from kit.traffic import DaemonFactory, create, post, publish, take, wait_for
from pyspark_nsq import nodes
from pyspark_nsq.columns import ARROW_SCHEMA
from pyspark_nsq.discovery import depths, find_nsqds
from pyspark_nsq.errors import DiscoveryError, NsqSourceError, OptionError
from pyspark_nsq.options import parse
from pyspark_nsq.ranges import range_stream
from pyspark_nsq.ranges.node import LogNode, NoRanges, RangeUnreadable
from pyspark_nsq.ranges.planning import Planner, plan_batch
from pyspark_nsq.ranges.positions import from_json
from pyspark_nsq.ranges.reading import RangePartition
from pyspark_nsq.stream_reader import NsqStreamReader

Row = dict[str, Any]
Factory = Callable[..., Instance]


@pytest.fixture
def durable(gnsqd_factory: DaemonFactory) -> Factory:
    """Starts a gnsqd with the channel c of the topic t, on ports that it keeps."""

    def start(*flags: str) -> Instance:
        nsqd = gnsqd_factory("--durability=process", *fixed_ports(), *flags)
        create(nsqd, "t", "c")
        return nsqd

    return start


def options(*nsqds: Instance, **more: str) -> dict[str, str]:
    given = daemon_options(*nsqds) | {"channel": "c", "mode": "ranges"} | more
    if "subscribePattern" not in given:
        given.setdefault("subscribe", "t")
    return given


def read(*tasks: RangePartition | InputPartition) -> list[Row]:
    """Returns what executors would yield: partitions come to them pickled."""
    rows: list[Row] = []
    for task in tasks:
        task = pickle.loads(pickle.dumps(task.value if isinstance(task, InputPartition) else task))
        for batch in task.read():
            assert isinstance(batch, pa.RecordBatch)
            assert batch.schema.equals(ARROW_SCHEMA)
            rows += batch.to_pylist()
    return rows


def batch(*nsqds: Instance, **more: str) -> list[Row]:
    return read(*plan_batch(parse(options(*nsqds, **more), "read")))


def numbers(rows: list[Row]) -> list[int]:
    return [row["offset"] for row in rows]


class Query:
    """A query, which can be started again from its checkpoint."""

    def __init__(self, *nsqds: Instance, **more: str) -> None:
        self.given = options(*nsqds, **more)
        self.restart()
        self.checkpoint = self.json(self.reader.initialOffset())

    def restart(self, *nsqds: Instance) -> None:
        if nsqds:
            self.given |= options(*nsqds)
        self.reader = NsqStreamReader(parse(self.given, "readStream"))

    @staticmethod
    def json(offset: dict[str, Any]) -> dict[str, Any]:
        copy: dict[str, Any] = json.loads(json.dumps(offset))
        return copy

    def next(self, commits: bool = True) -> list[Row]:
        """Returns the rows of the next batch; none if there is nothing new."""
        start = self.checkpoint
        end = self.json(self.reader.latestOffset(start, ReadAllAvailable()))
        if end == start:
            return []
        rows = read(*self.reader.partitions(start, end))
        assert read(*NsqStreamReader(parse(self.given, "readStream")).partitions(start, end)) == rows, "replayed"
        if commits:
            self.checkpoint = end
            self.reader.commit(end)
        return rows


def test_batch_has_what_the_options_name_as_often_as_one_likes(durable: Factory) -> None:
    nsqd = durable()
    publish(nsqd, "t", *bodies(1000))
    rows = batch(nsqd)
    assert [row["value"] for row in rows] == bodies(1000)
    assert numbers(rows) == [*range(1, 1001)]
    assert {(row["topic"], row["channel"], row["nsqd"], row["attempts"]) for row in rows} == {("t", "c", name(nsqd), 1)}
    assert {row["timestamp_ns"] // 1000 for row in rows} == {int(row["timestamp"].timestamp() * 10**6) for row in rows}
    taken = take(nsqd, "t", "c", 1000)
    assert sorted(each.id.decode() for each in taken) == sorted(row["message_id"] for row in rows), (
        "nothing is consumed"
    )
    sizes = b"last", b"l", b"longest"  # on average, that of the first
    publish(nsqd, "t", *sizes)
    begin = json.dumps({"t": {name(nsqd): 1001}})
    assert [row["value"] for row in batch(nsqd, startingOffsets=begin)] == [*sizes]
    other = durable()
    publish(other, "t", b"of a node that the options do not name")
    assert len(batch(nsqd, other, startingOffsets=begin, endingOffsets=begin)) == 1


@pytest.mark.parametrize(
    "more, begin, end",
    [
        ({"startingOffsets": "earliest"}, 1, 101),
        ({"startingOffsets": "latest"}, 101, 101),
        ({"startingOffsets": 40}, 40, 101),
        ({"startingOffsets": 0, "endingOffsets": 3}, 1, 3),
        ({"startingOffsets": -2, "endingOffsets": 40}, 1, 40),
        ({"startingOffsets": -1}, 101, 101),
        ({"startingOffsets": 60, "endingOffsets": 60}, 60, 60),
        ({"startingTimestamp": "-1h"}, 1, 101),
        ({"endingTimestamp": "-1h"}, 1, 1),
        ({"startingTimestamp": "4102444800000"}, 101, 101),
    ],
)
def test_batch_begins_and_ends_at_the_options(
    durable: Factory, more: dict[str, str | int], begin: int, end: int
) -> None:
    nsqd = durable()
    publish(nsqd, "t", *bodies(100))
    given = {
        key: value if isinstance(value, str) else json.dumps({"t": {name(nsqd): value}}) for key, value in more.items()
    }
    assert numbers(batch(nsqd, minPartitions="4", **given)) == [*range(begin, end)]


def test_batch_that_cannot_be_read_is_an_error(durable: Factory, gnsqd_factory: DaemonFactory) -> None:
    nsqd = durable()
    with pytest.raises(DiscoveryError, match="no nsqd has one of the topics x"):
        batch(nsqd, subscribe="x")
    with pytest.raises(OptionError, match=r"'startingOffsets' names topic 't' at nsqd h:1: there is t at 127.0.0.1"):
        batch(nsqd, startingOffsets='{"t": {"h:1": 1}}')
    with pytest.raises(OptionError, match="ends at message 1, but the options name message 2"):
        batch(nsqd, startingOffsets=json.dumps({"t": {name(nsqd): 2}}))
    publish(nsqd, "t", b"1")
    for more in ({"startingOffsets": json.dumps({"t": {name(nsqd): 2}})}, {"startingTimestamp": "4102444800000"}):
        with pytest.raises(OptionError, match=r"end topic 't' at .* before message 1, and begin there with message 2"):
            batch(nsqd, **more, endingTimestamp="-1h")
    other = gnsqd_factory()
    create(other, "t", "c")
    with pytest.raises(NoRanges, match="NO_JOURNAL at HTTP address .*: ranges need gnsqd with --durability"):
        batch(nsqd, other)
    nsqd.terminate()
    with pytest.raises(DiscoveryError, match="connection refused"):
        batch(nsqd)


def test_token_opens_a_node_also_over_https(gnsqd_factory: DaemonFactory, tmp_path: Path) -> None:
    identities, https = write_identities(tmp_path), f"127.0.0.1:{free_port()}"
    cert, key = identities["server"]
    flags = [f"--tls-cert={cert}", f"--tls-key={key}", f"--https-address={https}"]
    for role in ("full", "read"):
        (tmp_path / role).write_text(f"{role}-of-the-test")
        flags.append(f"--http-auth-token-file={role}:{tmp_path / role}")
    nsqd = gnsqd_factory("--durability=process", "--retention-bytes=1000000", *fixed_ports(), *flags)
    publish(nsqd, "t", *bodies(10))
    by_https = {"nsq.nsqd.http.addresses": https, "nsq.nsqd.http.tls": "true", "nsq.tls.ca": identities["authority"][0]}
    for more in ({}, by_https):
        stream = Query(nsqd, **more, **{"nsq.nsqd.http.token": "full-of-the-test"}, startingOffsets="earliest")
        assert numbers(stream.next()) == [*range(1, 11)]
        with pytest.raises(NsqSourceError, match="401 UNAUTHORIZED .*'nsq.nsqd.http.token' must have one of its tok"):
            batch(nsqd, **more)
        with pytest.raises(NsqSourceError, match="403 FORBIDDEN.* 'nsq.nsqd.http.token' must have the role full"):
            batch(nsqd, **more, **{"nsq.nsqd.http.token": "read-of-the-test"})
    stream.given["nsq.nsqd.http.token"] = "revoked"
    stream.restart()
    with pytest.raises(NsqSourceError, match="401 UNAUTHORIZED"):
        stream.next()
    settings = parse(options(nsqd, **{"nsq.nsqd.http.token": "read-of-the-test"}), "read")
    (node,) = find_nsqds(settings)
    assert depths(settings, node)["t"].topic_exists
    with pytest.raises(NsqSourceError, match="401 to /stats .*'nsq.nsqd.http.token' must have one of its tokens"):
        depths(replace(settings, nsqd_http_token=None), node)


def test_stream_advances_its_channel_and_goes_on_after_a_kill(durable: Factory) -> None:
    nsqd = durable()
    publish(nsqd, "t", *bodies(10))
    stream = Query(nsqd)
    assert numbers(stream.next(commits=False)) == [*range(1, 11)]
    wait_for(nsqd, "t", "c", depth=10)
    nsqd.kill()
    nsqd.start()
    assert numbers(stream.next()) == [*range(1, 11)]
    wait_for(nsqd, "t", "c", depth=0)
    assert stream.next() == []
    assert stream.reader.reportLatestOffset() == {"unread": {"t": {name(nsqd): 0}}}
    publish(nsqd, "t", b"11")
    stream.restart()
    assert numbers(stream.next()) == [11]
    nsqd.restart()
    stream.restart()
    assert stream.next() == [], "a log that is empty is the same one"


def test_stream_begins_where_its_channel_is(durable: Factory) -> None:
    nsqd = durable("--retention-bytes=1000000")
    publish(nsqd, "t", *bodies(10))
    take(nsqd, "t", "c", 10)
    publish(nsqd, "t", b"11")
    assert numbers(Query(nsqd).next()) == [11]
    assert Query(nsqd, channel="new").next() == []
    wait_for(nsqd, "t", "new", depth=0)
    publish(nsqd, "t", b"12")
    wait_for(nsqd, "t", "new", depth=1)
    assert numbers(Query(nsqd, startingOffsets="earliest").next()) == [*range(1, 13)]
    assert Query(nsqd, startingOffsets="latest").next() == []


@pytest.mark.parametrize(
    "more, sizes",
    [
        ({"minPartitions": "3"}, [33, 33, 34]),
        ({"minPartitions": "200"}, [1] * 100),
        ({"maxRecordsPerPartition": "30"}, [25] * 4),
    ],
)
def test_tasks_are_parts_of_the_range(durable: Factory, more: dict[str, str], sizes: list[int]) -> None:
    nsqd = durable()
    publish(nsqd, "t", *bodies(100))
    tasks = plan_batch(parse(options(nsqd, **more), "read"))
    assert [task.end - task.start for task in tasks] == sizes
    assert numbers(read(*tasks)) == [*range(1, 101)]


@pytest.mark.parametrize(
    "waiting, limit, expected",
    [
        ({"a": 5, "b": 7}, None, {"a": 5, "b": 7}),
        ({"a": 5, "b": 7}, 12, {"a": 5, "b": 7}),
        ({"a": 5, "b": 7}, 8, {"a": 4, "b": 4}),
        ({"a": 1, "b": 100}, 10, {"a": 1, "b": 9}),
        ({"a": 100, "b": 0, "c": 100}, 5, {"a": 2, "b": 0, "c": 3}),
        ({"a": 9, "b": 9, "c": 9}, 1, {"a": 0, "b": 0, "c": 1}),
        ({}, 5, {}),
    ],
)
def test_a_limit_is_shared_evenly(waiting: dict[str, int], limit: int | None, expected: dict[str, int]) -> None:
    assert nodes.share(waiting, limit) == expected


def test_limits_of_a_trigger_are_shared(durable: Factory) -> None:
    first, second = durable("--retention-bytes=1000000"), durable("--retention-bytes=1000000")
    publish(first, "t", *bodies(300))
    publish(second, "t", *bodies(100))
    stream = Query(first, second, maxMessagesPerTrigger="100", minPartitions="6")
    rows = stream.next()
    assert [sum(row["nsqd"] == name(nsqd) for row in rows) for nsqd in (first, second)] == [50, 50]
    assert len({(row["nsqd"], row["offset"]) for _ in range(3) for row in stream.next()} | set()) == 300
    assert stream.next() == []
    stream = Query(first, second, startingOffsets="earliest", maxBytesPerTrigger="1k")
    assert 0 < len(stream.next()) < 50
    least = {"minMessagesPerTrigger": "200", "maxTriggerDelay": "1h"}
    stream = Query(first, second, startingOffsets="earliest", maxBytesPerTrigger="1k", **least)
    assert [0 < len(stream.next()) < 50 for _ in range(2)] == [True, True], "200 wait, though a batch has fewer"


def test_node_that_is_away_is_read_later_under_whatever_address(durable: Factory) -> None:
    here, away = durable(), durable()
    for nsqd in (here, away):
        publish(nsqd, "t", b"1")
    stream = Query(here, away)
    assert len(stream.next()) == 2
    publish(away, "t", b"2")
    away.terminate()
    publish(here, "t", b"3")
    stream.restart()
    assert [row["value"] for row in stream.next()] == [b"3"]
    moved = durable(f"--data-path={away.data_path}")
    stream.restart(here, moved)
    assert [row["value"] for row in stream.next()] == [b"2"], "it is the same log"


def test_available_now_fails_if_a_node_does_not_answer(durable: Factory, caplog: pytest.LogCaptureFixture) -> None:
    here, away = durable(), durable()
    stream = Query(here, away, maxMessagesPerTrigger="2")

    def restart(*nsqds: Instance) -> None:
        stream.restart(*nsqds)
        stream.reader.prepareForTriggerAvailableNow()

    for nsqd in (here, away):
        publish(nsqd, "t", b"1", b"2")
    restart()
    assert len(stream.next()) == 2
    away.terminate()
    assert [row["nsqd"] for row in stream.next()] == [name(here)]
    silent = (
        rf"nsqd {name(away)} does not answer .*refused \('failOnDataLoss' = 'false' reads only the nsqds that answer"
    )
    for _ in range(2):
        with pytest.raises(DiscoveryError, match=silent):
            stream.next()
        restart()
    stream.given["failOnDataLoss"] = "false"
    restart()
    assert stream.next() == []
    del stream.given["failOnDataLoss"]
    restart(here)
    assert stream.next() == []
    assert f"topic 't', which nsqd {name(away)} had: it is not read" in caplog.text
    away.start()
    restart(here, away)
    assert [row["value"] for row in stream.next()] == [b"2"]


def test_available_now_fails_if_a_node_is_gone_that_had_messages(
    durable: Factory, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, away = durable(), durable()
    listed = [name(here), name(away)]
    monkeypatch.setattr(nodes, "_LIST_INTERVAL", 0)
    monkeypatch.setattr(nodes, "find_nsqds", lambda *given: [one for one in find_nsqds(*given) if one.name in listed])
    stream = Query(here, away, maxMessagesPerTrigger="2")
    for nsqd in (here, away):
        publish(nsqd, "t", b"1", b"2")
    stream.restart()
    stream.reader.prepareForTriggerAvailableNow()
    assert len(stream.next()) == 2
    away.terminate()
    listed.remove(name(away))
    assert [row["nsqd"] for row in stream.next()] == [name(here)]
    with pytest.raises(DiscoveryError, match=f"topic 't' is not read up to message 3, as nsqd {name(away)} is gone"):
        stream.next()


def test_answer_that_a_proxy_cuts_is_asked_for_again(durable: Factory, monkeypatch: pytest.MonkeyPatch) -> None:
    nsqd = durable()
    publish(nsqd, "t", *bodies(1000))
    asked: list[int] = []
    ask = LogNode.messages

    @contextmanager
    def cut(node: LogNode, topic: str, epoch: str, start: int, end: int, **more: str) -> Iterator[Any]:
        asked.append(start)
        with ask(node, topic, epoch, start, end, **more) as response:
            pieces = iter([response.read1(5000)])
            yield SimpleNamespace(read1=lambda _: next(pieces, b""))

    stream = Query(nsqd, startingOffsets="earliest")
    start, end = stream.checkpoint, stream.json(stream.reader.latestOffset(stream.checkpoint))
    tasks = stream.reader.partitions(start, end)
    monkeypatch.setattr(LogNode, "messages", cut)
    assert numbers(read(*tasks)) == [*range(1, 1001)]
    assert len(asked) > 2


def test_node_that_dies_while_a_batch_is_planned_does_not_end_the_stream(
    durable: Factory, monkeypatch: pytest.MonkeyPatch
) -> None:
    nsqd = durable()
    publish(nsqd, "t", *bodies(4))
    stream = Query(nsqd, startingOffsets="earliest", maxMessagesPerTrigger="2")
    assert numbers(stream.next()) == [1, 2]
    monkeypatch.setattr(LogNode, "published", Mock(side_effect=DiscoveryError("it has died")))
    assert numbers(stream.next()) == [3, 4]


def test_log_that_comes_later_is_read_from_its_beginning(durable: Factory, gnsqd_factory: DaemonFactory) -> None:
    first = durable()
    stream = Query(first)
    assert stream.next() == []
    second = gnsqd_factory("--durability=process", *fixed_ports())
    create(second, "t", "other")
    publish(second, "t", b"1", b"2")
    stream.restart(first, second)
    assert [row["value"] for row in stream.next(commits=False)] == [b"1", b"2"]
    publish(second, "t", b"3")
    wait_for(second, "t", "c", depth=1)  # the stream's channel keeps it
    assert [row["value"] for row in stream.next()] == [b"1", b"2", b"3"]
    wait_for(second, "t", "c", depth=0)
    assert stream.next() == []


def test_topics_that_match_a_pattern_are_read_from_their_beginning(
    gnsqd_factory: DaemonFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes, "_LIST_INTERVAL", 0.0)
    monkeypatch.setattr(nodes, "_PAUSES", (0.0, 0.0))
    monkeypatch.setattr(nodes, "_PATIENCE", 60.0)
    flags = "--durability=process", "--retention-bytes=1000000"
    here, away = (gnsqd_factory(*flags, *fixed_ports()) for _ in range(2))
    create(here, "x#ephemeral", "c")  # which has no log
    pattern = {"subscribePattern": "x.*|y"}
    with pytest.raises(DiscoveryError, match=r"no nsqd has a topic that matches 'x\.\*\|y'"):
        batch(here, away, **pattern)
    stream = Query(here, away, **pattern)
    assert stream.next() == []
    for number, nsqd in enumerate((here, away)):
        create(nsqd, f"x{number}", "other")
        publish(nsqd, f"x{number}", *bodies(2))
    create(here, "z")
    read = {(row["topic"], row["offset"]) for row in stream.next()}
    assert read == {("x0", 1), ("x0", 2), ("x1", 1), ("x1", 2)}
    wait_for(away, "x1", "c", depth=0)
    publish(away, "x1", *bodies(2))
    away.terminate()
    publish(here, "y", b"1")
    assert [(row["topic"], row["offset"]) for row in stream.next()] == [("y", 1)]
    with pytest.raises(DiscoveryError, match="connection refused"):
        batch(here, away, **pattern)
    away.start()
    assert [(row["topic"], row["offset"]) for row in stream.next()] == [("x1", 3), ("x1", 4)]
    assert len(batch(here, away, **pattern)) == 7


def test_channel_is_advanced_later_if_its_nsqd_was_away(durable: Factory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(range_stream, "_COMMIT_INTERVAL", 0.0)
    nsqd = durable()
    publish(nsqd, "t", b"1")
    stream = Query(nsqd)
    stream.next(commits=False)
    end = stream.reader.latestOffset(stream.checkpoint)
    nsqd.terminate()
    stream.reader.commit(end)
    nsqd.start()
    wait_for(nsqd, "t", "c", depth=1)
    assert stream.reader.latestOffset(end) == end
    wait_for(nsqd, "t", "c", depth=0)


def loses(stream: Query, error: str) -> Query:
    """Judges that the stream fails; returns one that goes on from the same checkpoint."""
    with pytest.raises(NsqSourceError, match=error):
        stream.next()
    stream.given["failOnDataLoss"] = "false"
    stream.restart()
    return stream


def test_topic_made_again_is_another_log(durable: Factory) -> None:
    nsqd = durable()
    publish(nsqd, "t", b"1")
    stream = Query(nsqd)
    assert len(stream.next()) == 1
    publish(nsqd, "t", b"planned")
    end = stream.reader.latestOffset(stream.checkpoint)
    post(nsqd, "/topic/delete?topic=t")
    create(nsqd, "t", "c")
    publish(nsqd, "t", b"2")
    stream.restart()
    with pytest.raises(NsqSourceError, match="has another log of topic 't': messages from number 2 on may be lost"):
        stream.reader.partitions(stream.checkpoint, end)
    stream.restart()
    stream = loses(stream, "has another log of topic 't': messages from number 2 on may be lost")
    assert stream.reader.partitions(stream.checkpoint, end) == []
    assert [row["value"] for row in stream.next()] == [b"2"]


def test_deleted_topic_with_unread_messages_is_an_error(durable: Factory) -> None:
    nsqd = durable()
    publish(nsqd, "t", b"1")
    stream = Query(nsqd)
    assert len(stream.next()) == 1
    publish(nsqd, "t", b"2")
    post(nsqd, "/topic/delete?topic=t")
    stream.restart()
    stream = loses(stream, rf"nsqd {name(nsqd)} has no topic 't': messages from number 2 on may be lost")
    assert stream.next() == []
    assert stream.checkpoint["positions"] == []


def test_checkpoint_forgets_deleted_topics(gnsqd_factory: DaemonFactory, caplog: pytest.LogCaptureFixture) -> None:
    nsqd = gnsqd_factory("--durability=process")
    stream = Query(nsqd, subscribePattern=r"job\d", failOnDataLoss="false")
    for topic in ("job1", "job2", "job3"):
        create(nsqd, topic, "c")
        publish(nsqd, topic, b"1")
        assert [row["topic"] for row in stream.next()] == [topic]
        post(nsqd, f"/topic/delete?topic={topic}")
    stream.reader.prepareForTriggerAvailableNow()
    assert stream.next() == stream.next() == []
    assert stream.checkpoint["positions"] == []
    assert caplog.text.count("messages from number 2 on may be lost") == 3
    publish(nsqd, "job1", b"1")
    stream.given["failOnDataLoss"] = "true"
    stream.restart()
    assert len(stream.next()) == 1
    post(nsqd, "/topic/delete?topic=job1")
    loses(stream, "has no topic 'job1': messages from number 2 on may be lost")


def test_planned_batch_names_a_topic_that_the_options_do_not_name_any_more(durable: Factory) -> None:
    nsqd = durable()
    create(nsqd, "u", "c")
    stream = Query(nsqd, subscribe="t,u")
    publish(nsqd, "t", b"1")
    publish(nsqd, "u", b"1", b"2")
    end = stream.json(stream.reader.latestOffset(stream.checkpoint, ReadAllAvailable()))
    stream.given["subscribe"] = "t"
    stream.restart()
    with pytest.raises(NsqSourceError, match="has messages 1 to 2 of topic 'u', which the options do not name any mor"):
        stream.reader.partitions(stream.checkpoint, end)


def test_topic_is_deleted_that_nsqlookupd_lists_nowhere_any_more(gnsqd_factory: DaemonFactory, tmp_path: Path) -> None:
    with start_nsqlookupd(own_lookupd_command(), tmp_path / "nsqlookupd.log") as lookupd:
        flags = f"--lookupd-tcp-address={lookupd.address['TCP']}", "--broadcast-address=127.0.0.1"
        nsqd = gnsqd_factory("--durability=process", *flags)
        create(nsqd, "t", "c")
        given = options(nsqd) | {"nsq.lookupd.http.addresses": lookupd.address["HTTP"]}
        del given["nsq.nsqd.tcp.addresses"], given["nsq.nsqd.http.addresses"]
        listed = parse(given, "readStream")
        eventually(lambda: find_nsqds(listed, "t"))
        publish(nsqd, "t", b"1")
        start = Query.json(NsqStreamReader(listed).initialOffset())
        end = Query.json(NsqStreamReader(listed).latestOffset(start, ReadAllAvailable()))
        post(nsqd, "/topic/delete?topic=t")
        eventually(lambda: not find_nsqds(listed, "t"))
        lost = "has no topic 't': messages from number {} on may be lost"
        pattern = {"subscribePattern": "t"}
        for by in (dict[str, str](), pattern):
            settings = parse({key: given[key] for key in given if key != "subscribe" or not by} | by, "readStream")
            with pytest.raises(NsqSourceError, match=lost.format(2)):
                NsqStreamReader(settings).latestOffset(end, ReadAllAvailable())
            with pytest.raises(NsqSourceError, match=lost.format(1)):
                NsqStreamReader(settings).partitions(start, end)


def test_node_that_dies_when_its_log_is_new_does_not_end_the_stream(
    durable: Factory, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = durable(), durable()
    stream = Query(first)
    for nsqd in (first, second):
        publish(nsqd, "t", b"1")
    stream.restart(first, second)
    with monkeypatch.context() as dead:
        dead.setattr(Planner, "_floor", Mock(side_effect=DiscoveryError("it has died")))
        end = stream.json(stream.reader.latestOffset(stream.checkpoint, ReadAllAvailable()))
    assert f"it has died; topic 't' at nsqd {name(second)} is read when it answers" in caplog.text
    assert len(read(*stream.reader.partitions(stream.checkpoint, end))) == 1
    stream.checkpoint = end
    assert [row["nsqd"] for row in stream.next()] == [name(second)]


def test_two_nodes_with_copies_of_one_log_are_an_error(durable: Factory, tmp_path: Path) -> None:
    nsqd = durable()
    publish(nsqd, "t", b"1")
    stream = Query(nsqd)
    nsqd.terminate()
    shutil.copytree(nsqd.data_path, tmp_path / "copy")
    nsqd.start()
    copy = durable(f"--data-path={tmp_path / 'copy'}")
    both = rf"nsqd {name(nsqd)} and nsqd {name(copy)} both have the log \w+ of topic 't'"
    swapped = rf"nsqd {name(copy)} and nsqd {name(nsqd)} both"
    for more in ({}, {"failOnDataLoss": "false"}):
        with pytest.raises(NsqSourceError, match=f"{both}|{swapped}"):
            batch(nsqd, copy, **more)
    stream.restart(nsqd, copy)
    with pytest.raises(NsqSourceError, match=f"{both}|{swapped}"):
        stream.next()
    copy.terminate()
    stream.given["nsq.nsqd.tcp.addresses"] = f"{name(nsqd)},{name(nsqd).replace('127.0.0.1', 'localhost')}"
    stream.restart()
    assert numbers(stream.next()) == [1], "two names of one node"


def test_node_that_is_gone_before_its_planned_batch_is_read(durable: Factory, caplog: pytest.LogCaptureFixture) -> None:
    here, away = durable(), durable()
    for nsqd in (here, away):
        publish(nsqd, "t", b"1")
    stream = Query(here, away)
    end = stream.json(stream.reader.latestOffset(stream.checkpoint, ReadAllAvailable()))
    with ThreadPoolExecutor() as pool:

        def is_away(text: str, call: Callable[..., Any], *arguments: Any) -> Any:
            away.terminate()
            result = pool.submit(call, *arguments)
            eventually(lambda: text in caplog.text)
            away.start()
            return result.result()

        stream.restart()
        text = "what it has is read when it is back"
        assert len(is_away(text, stream.reader.partitions, stream.checkpoint, end)) == 2
        stream.restart()
        stream.reader.latestOffset(stream.checkpoint, ReadAllAvailable())
        tasks = is_away("it is asked again", stream.reader.partitions, stream.checkpoint, end)
        assert len(is_away("messages from number 1 on are asked for again", read, *tasks)) == 2
    stream.given["retryTimeoutMs"] = "0"
    stream.restart()
    tasks = stream.reader.partitions(stream.checkpoint, end)
    away.terminate()
    with pytest.raises(DiscoveryError, match="refused"):
        read(*tasks)
    stream.restart()
    text = rf"no nsqd answers that has the log \w+, with messages 1 to 1 of topic 't'; nsqd {name(away)} had it"
    with pytest.raises(NsqSourceError, match=text):
        stream.reader.partitions(stream.checkpoint, end)
    stream.given["failOnDataLoss"] = "false"
    for nsqds in ((here, away), (here,)):
        stream.restart(*nsqds)
        assert [row["nsqd"] for row in read(*stream.reader.partitions(stream.checkpoint, end))] == [name(here)]


def test_older_copy_is_noticed(durable: Factory, tmp_path: Path) -> None:
    def restore(*published: bytes) -> None:
        nsqd.terminate()
        shutil.rmtree(nsqd.data_path)
        shutil.copytree(tmp_path / "copy", nsqd.data_path)
        nsqd.start()
        if published:
            publish(nsqd, "t", *published)
        stream.restart()

    nsqd = durable()
    publish(nsqd, "t", b"1")
    stream = Query(nsqd)
    nsqd.terminate()
    shutil.copytree(nsqd.data_path, tmp_path / "copy")
    nsqd.start()
    publish(nsqd, "t", b"2", b"3")
    assert len(stream.next()) == 3
    restore(b"other", b"messages")
    with pytest.raises(NsqSourceError, match="message 3 is not the one that was read: an older copy was restored"):
        stream.next()
    restore()
    stream = loses(stream, "it ends at message 2, but 4 was reached: an older copy was restored")
    assert stream.next() == []
    publish(nsqd, "t", b"4")
    assert [row["value"] for row in stream.next()] == [b"4"]
    stream.given["failOnDataLoss"] = "true"
    restore(b"5", b"6", b"7")
    stream = loses(stream, "message 2 is not the one that was read: an older copy was restored")
    assert [row["value"] for row in stream.next()] == [b"6", b"7"]
    stream.given |= {"failOnDataLoss": "true", "maxMessagesPerTrigger": "1"}
    stream.restart()
    publish(nsqd, "t", b"8", b"not read")
    assert [row["value"] for row in stream.next()] == [b"8"]
    restore(*bodies(6))
    stream = loses(stream, "message 5 is not the one that was read: an older copy was restored")
    assert [row["value"] for row in stream.next()] == [b"4"]


def test_messages_past_the_retention_are_an_error(durable: Factory) -> None:
    nsqd = durable("--retention-bytes=20000", "--max-bytes-per-file=5000")
    publish(nsqd, "t", b"1")
    stream = Query(nsqd)
    post(nsqd, "/channel/empty?topic=t&channel=c")
    for number in range(50):
        post(nsqd, "/pub?topic=t", b"%-1000d" % number)
    post(nsqd, "/channel/empty?topic=t&channel=c")
    eventually(lambda: json.loads(nsqd.http("GET", "/topic/range?topic=t")[2])["first"] > 1)
    stream.restart()  # nobody knows who has advanced the channel meanwhile
    stream = loses(stream, "410 MESSAGES_GONE.*'failOnDataLoss' = 'false' leaves out what is missing")
    first = json.loads(nsqd.http("GET", "/topic/range?topic=t")[2])["first"]
    assert numbers(stream.next()) == [*range(first, 52)]


def test_stream_skips_what_others_finish_in_its_channel(durable: Factory, caplog: pytest.LogCaptureFixture) -> None:
    def finish(first: int, last: int) -> None:
        """Publishes 100 messages more, and finishes these of them."""
        for _ in range(100):
            post(nsqd, "/pub?topic=t", bytes(1000))
        with NSQClient(nsqd.tcp_address) as client:
            client.subscribe("t", "c", 100)
            messages = [client.message() for _ in range(100)]
            client.send(b"".join(b"FIN %b\n" % each.id for each in messages[first:last]))
            number = json.loads(nsqd.http("GET", "/topic/range?topic=t")[2])["next"] - 100 + first
            path = f"/topic/messages?topic=t&from={number + 10}&to={number + 11}"
            eventually(lambda: nsqd.http("GET", path)[0] == 410)

    nsqd = durable("--max-bytes-per-file=5000")
    late = Query(durable())
    finish(20, 40)
    stream = Query(nsqd)
    assert Query(nsqd, startingOffsets="earliest").checkpoint == stream.checkpoint, "1 is unread"
    late.restart(nsqd)
    assert numbers(late.next(commits=False))[0] == 1
    assert {*range(1, 101)} - {*numbers(stream.next())} <= {*range(21, 41)}
    assert "messages of 't' at" in caplog.text
    assert "which others finished" in caplog.text
    finish(0, 20)
    start, end = stream.checkpoint, stream.json(stream.reader.latestOffset(stream.checkpoint))
    rows = read(*stream.reader.partitions(start, end))
    assert {*range(101, 201)} - {*numbers(rows)} <= {*range(101, 121)}
    assert len(rows) < 100
    stream.restart()  # with a checkpoint that the channel has been advanced past, by whomever
    loses(stream, "410 MESSAGES_GONE")


def test_stream_has_a_channel_again_when_it_is_started_again(durable: Factory) -> None:
    nsqd = durable()
    stream = Query(nsqd)
    post(nsqd, "/channel/delete?topic=t&channel=c")
    publish(nsqd, "t", b"1")
    stream.restart()
    assert len(stream.next()) == 1
    wait_for(nsqd, "t", "c", depth=0)


def test_damage_is_an_error(durable: Factory) -> None:
    nsqd = durable()
    publish(nsqd, "t", *bodies(100, "body"))
    stream = Query(nsqd)
    nsqd.terminate()
    (path,) = nsqd.data_path.glob("t.journal.*")
    path.write_bytes(path.read_bytes().replace(b"body50", b"bodyxx"))
    nsqd.start()
    with pytest.raises(RangeUnreadable, match="500 MESSAGES_DAMAGED"):
        batch(nsqd)
    expected = [*range(1, 33), *range(65, 101)]  # a record has 32 messages
    assert numbers(batch(nsqd, failOnDataLoss="false")) == expected
    stream = loses(stream, "500 MESSAGES_DAMAGED")
    assert numbers(stream.next()) == expected


def test_automatic_stream_reads_ranges_where_all_have_them(durable: Factory, gnsqd_factory: DaemonFactory) -> None:
    nsqd, plain = durable(), gnsqd_factory()
    create(plain, "t", "c")

    def reader(*nsqds: Instance, **more: str) -> NsqStreamReader:
        return NsqStreamReader(parse(options(*nsqds, **more) | {"mode": "auto"}, "readStream"))

    ranges = reader(nsqd).initialOffset()
    assert "positions" in ranges
    deliveries = reader(nsqd, plain).initialOffset()
    assert "positions" not in deliveries
    assert reader(nsqd).partitions(deliveries, deliveries) == [], "as the checkpoint has it"
    with pytest.raises(NsqSourceError, match="by a query that reads deliveries"):
        NsqStreamReader(parse(options(nsqd), "readStream")).partitions(deliveries, deliveries)
    with pytest.raises(OptionError, match="option 'channel' is 'x', but the checkpoint belongs to .* channel 'c'"):
        NsqStreamReader(parse(options(nsqd, channel="x"), "readStream")).partitions(ranges, ranges)


def test_stream_waits_for_a_topic(
    gnsqd_factory: DaemonFactory, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    nsqd, plain = gnsqd_factory("--durability=process"), gnsqd_factory()
    for more in ({}, {"subscribePattern": "t"}):
        stream = Query(nsqd, mode="auto", **more)
        assert stream.next() == []
        with pytest.raises(NoRanges, match="NO_JOURNAL"):
            Query(plain, **more)
        deliveries = options(plain, mode="auto", **more)
        assert "positions" not in NsqStreamReader(parse(deliveries, "readStream")).initialOffset()
    assert "no nsqd has one of the topics t yet: the stream waits" in caplog.text
    assert "no nsqd has a topic that matches 't' yet: the stream waits" in caplog.text
    create(nsqd, "t", "c")
    publish(nsqd, "t", b"1")
    assert numbers(stream.next()) == [1]
    monkeypatch.setattr(nodes, "find_nsqds", lambda *_: [])
    with pytest.raises(DiscoveryError, match=r"no nsqd has one of the topics t yet, .* with 'mode' = 'ranges' or 'del"):
        Query(nsqd, mode="auto")


def test_damaged_checkpoint_is_one_line() -> None:
    position = {"topic": "t", "node": "h:1", "epoch": "e", "number": 5, "begin": 1, "published": 0}
    assert from_json({"version": 1, "positions": [position]})
    for damage in ({"number": "5"}, {"node": None}, {"more": 1}, {"epoch": 7}):
        with pytest.raises(NsqSourceError, match="the checkpoint has positions that make no sense"):
            from_json({"version": 1, "positions": [position | damage]})


def test_each_topic_may_begin_at_a_time_of_its_own(durable: Factory) -> None:
    nsqd = durable()
    create(nsqd, "u", "c")
    for topic in "tu":
        publish(nsqd, topic, topic.encode())
    later = "4102444800000"
    for moments, found in (
        ({"t": later, "u": "-1h"}, [b"u"]),
        ({"t": "-1h"}, [b"t", b"u"]),
        ({"u": later}, [b"t"]),
    ):
        rows = batch(nsqd, subscribe="t,u", startingTimestamp=json.dumps(moments))
        assert sorted(row["value"] for row in rows) == found
    given = {"startingTimestamp": json.dumps({"u": later}), "startingOffsetsByTimestampStrategy": "error"}
    with pytest.raises(
        OptionError, match="'startingTimestamp': topic 'u' at .* has no message that was published then"
    ):
        batch(nsqd, subscribe="t,u", **given)
    assert len(batch(nsqd, **given | {"startingTimestamp": "-1h"})) == 1


def test_batch_waits_for_enough_messages(durable: Factory) -> None:
    nsqd = durable()
    stream = Query(nsqd, minMessagesPerTrigger="5")
    sizes = []
    for published in (1, 4, 1, 1):  # the first batch does not wait
        publish(nsqd, "t", *bodies(published))
        sizes.append(len(stream.next()))
    assert sizes == [1, 0, 5, 0]


# Log stores


class Machine:
    """A gnsqd whose log is in a store, which keeps what the gnsqd has deleted; a segment has a few messages."""

    def __init__(self, start: DaemonFactory, directory: Path) -> None:
        self._start, self._directory = start, directory
        self.published: list[bytes] = []
        self.url = (directory / "store").as_uri()
        self.nsqd = self.start()
        create(self.nsqd, "t", "c", "d")

    def start(self, *flags: str, url: str = "") -> Instance:
        """Starts a gnsqd with an empty data path, which goes on with the log in the store."""
        data_path = self._directory / f"data{len(list(self._directory.iterdir()))}"
        data_path.mkdir()
        store = "--durability=store", f"--log-store={url or self.url}", "--log-store-retention=1h"
        self.nsqd = self._start(*store, "--max-bytes-per-file=5000", *fixed_ports(), f"--data-path={data_path}", *flags)
        return self.nsqd

    def lose(self) -> None:
        self.nsqd.kill()
        shutil.rmtree(self.nsqd.data_path)

    def publish(self, count: int) -> None:
        for _ in range(count):
            self.published.append(b"%-500d" % len(self.published))
            post(self.nsqd, "/pub?topic=t", self.published[-1])

    def forget(self) -> None:
        """Has the gnsqd delete all messages but a new one."""
        for channel in "cd":
            post(self.nsqd, f"/channel/empty?topic=t&channel={channel}")
        self.publish(1)
        path = f"/topic/messages?topic=t&from={len(self.published) - 10}"
        eventually(lambda: self.nsqd.http("GET", path)[0] == 410)

    def figure(self, name: str) -> float:
        text = self.nsqd.http("GET", "/metrics")[2].decode()
        return float(next(line for line in text.splitlines() if line.startswith(f"gnsqd_{name} ")).split()[1])

    @property
    def option(self) -> dict[str, str]:
        return {"nsq.log.store": f"{name(self.nsqd)}={self.url}"}


@pytest.fixture
def machine(gnsqd_factory: DaemonFactory, tmp_path: Path) -> Machine:
    return Machine(gnsqd_factory, tmp_path)


def test_batch_begins_with_the_first_message_of_a_store(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    nsqd, option = machine.nsqd, machine.option
    machine.publish(40)
    rows = batch(nsqd)
    machine.forget()
    rows += batch(nsqd)
    assert len(rows) == 41, "the gnsqd has only the last"

    def judge() -> None:
        assert batch(nsqd, **option) == rows
        assert numbers(batch(nsqd, minPartitions="100", **option)) == [*range(1, 42)]
        begin = json.dumps({"t": {name(nsqd): 5}})
        end = json.dumps({"t": {name(nsqd): 30}})
        assert numbers(batch(nsqd, startingOffsets=begin, endingOffsets=end, **option)) == [*range(5, 30)]
        for row in (rows[0], rows[19], rows[32], rows[40]):
            moment = datetime.fromtimestamp(row["timestamp_ns"] // 1000 / 1e6, UTC).isoformat(timespec="microseconds")
            assert numbers(batch(nsqd, startingTimestamp=moment, **option)) == [*range(row["offset"], 42)]
            assert numbers(batch(nsqd, endingTimestamp=moment, **option)) == [*range(1, row["offset"])]

    judge()
    machine.lose()
    judge()
    assert Counter(row["value"] for row in rows) == Counter(machine.published)
    tasks = plan_batch(parse(options(nsqd, **option), "read"))
    with monkeypatch.context() as counted:
        fetch = Mock(side_effect=StoredRange.fetch)
        counted.setattr(StoredRange, "fetch", lambda *given: fetch(*given))
        assert len(read(*tasks)) == 41
    assert len(tasks) > 4
    assert len(tasks) <= fetch.call_count <= len(tasks) + 1, "each fetches its segment"


def test_stream_goes_on_from_the_store_and_then_from_a_gnsqd_that_was_restored(machine: Machine) -> None:
    stream = Query(machine.nsqd, **machine.option)
    first = machine.nsqd
    rows = []
    machine.publish(20)
    rows += stream.next()
    machine.publish(15)
    machine.lose()
    rows += stream.next()
    assert len(rows) == 35
    assert stream.next() == []
    assert {row["nsqd"] for row in rows} == {name(first)}
    machine.start()
    wait_for(machine.nsqd, "t", "c", depth=15)
    stream.restart(machine.nsqd)
    assert stream.next() == []
    wait_for(machine.nsqd, "t", "c", depth=0)
    machine.publish(5)
    rows += stream.next()
    assert numbers(rows) == [*range(1, 41)]
    assert [row["value"] for row in rows] == machine.published
    assert len({row["message_id"] for row in rows}) == 40


def test_stream_that_is_ahead_of_the_store_waits_for_its_gnsqd(machine: Machine, tmp_path: Path) -> None:
    stream = Query(machine.nsqd, **machine.option)
    machine.publish(10)
    assert len(stream.next()) == 10
    eventually(lambda: machine.figure("log_store_lag_seconds") == 0)
    shutil.copytree(tmp_path / "store", tmp_path / "behind")
    machine.publish(10)
    assert len(stream.next()) == 10
    machine.lose()
    stream.given["nsq.log.store"] = machine.option["nsq.log.store"].replace("/store", "/behind")
    stream.restart()
    assert stream.next() == []
    stream.restart(machine.start(url=(tmp_path / "behind").as_uri()))
    loses(stream, "it ends at message 11, but 21 was reached: an older copy was restored")


def test_gnsqd_that_dies_before_its_planned_batch_is_read(machine: Machine) -> None:
    stream = Query(machine.nsqd, **machine.option, retryTimeoutMs="0", minPartitions="3")
    machine.publish(30)
    end = stream.json(stream.reader.latestOffset(stream.checkpoint, ReadAllAvailable()))
    tasks = stream.reader.partitions(stream.checkpoint, end)
    machine.lose()
    assert [row["value"] for row in read(*tasks)] == machine.published
    stream.restart()
    assert [row["value"] for row in read(*stream.reader.partitions(stream.checkpoint, end))] == machine.published
    del stream.given["nsq.log.store"]
    stream.restart()
    with pytest.raises(NsqSourceError, match="no nsqd answers that has the log"):
        stream.reader.partitions(stream.checkpoint, end)


def test_task_finds_what_other_objects_have_by_now(machine: Machine) -> None:
    machine.publish(30)
    batch(machine.nsqd)
    machine.lose()
    tasks = plan_batch(parse(options(machine.nsqd, **machine.option), "read"))
    gone = Stored("segments/gone", "", 100, 1, 31)
    for task in tasks:
        (part,) = task.stored
        files = tuple(replace(file, stored=gone, parts=[]) for file in part.files)
        task = replace(task, stored=(part._replace(files=files),), is_away=True)
        assert read(task) == batch(machine.nsqd, **machine.option)[task.start - 1 : task.end - 1]


def test_new_stream_reads_the_store_of_a_gnsqd_that_is_away(machine: Machine) -> None:
    machine.publish(20)
    take(machine.nsqd, "t", "c", 15)
    batch(machine.nsqd)  # from then on the log has an epoch
    machine.lose()
    assert numbers(batch(machine.nsqd, subscribePattern="t|x", **machine.option)) == [*range(1, 21)]
    assert numbers(Query(machine.nsqd, **machine.option).next()) == [*range(16, 21)]
    assert Query(machine.nsqd, channel="new", **machine.option).next() == []
    stream = Query(machine.nsqd, channel="new", startingOffsets="earliest", **machine.option)
    assert numbers(stream.next()) == [*range(1, 21)]
    stream.given |= daemon_options(machine.start())
    stream.restart()
    machine.publish(5)
    assert numbers(stream.next()) == [*range(21, 26)]
    wait_for(machine.nsqd, "t", "new", depth=0)


def test_what_a_store_lacks_is_an_error(machine: Machine, tmp_path: Path) -> None:
    machine.publish(30)
    first = json.dumps({"t": {name(machine.nsqd): 1}})
    given = {"startingOffsets": first, "retryTimeoutMs": "0", **machine.option}
    batch(machine.nsqd)
    machine.forget()
    lost, damaged = sorted((tmp_path / "store" / "segments").glob("t.journal.*"))[1:3]
    lost.unlink()
    damaged.write_bytes(damaged.read_bytes().replace(b"%-500d" % 20, b"%-500d" % 99))
    for text in ("410 MESSAGES_GONE", "lacks 8 of the messages 9 to 16 of topic 't'"):
        with pytest.raises(RangeUnreadable, match=text):
            batch(machine.nsqd, **given)
        assert numbers(batch(machine.nsqd, failOnDataLoss="false", **given)) == [
            *range(1, 9),
            *range(17, 21),
            *range(22, 32),
        ]
        if text.startswith("410"):
            machine.lose()
    shutil.rmtree(tmp_path / "store")
    with pytest.raises(DiscoveryError, match=f"{machine.url} has no log.*|refused"):
        batch(machine.nsqd, **given)


def test_store_has_holes_where_others_have_finished_messages(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    machine.publish(1)
    stream = Query(machine.nsqd, channel="d", **machine.option)
    assert numbers(stream.next()) == [1]
    machine.publish(39)
    with NSQClient(machine.nsqd.tcp_address) as client:
        client.subscribe("t", "d", 39)
        messages = [client.message() for _ in range(39)]
        client.send(b"".join(b"FIN %b\n" % each.id for each in messages if int(each.body) % 8 != 6))
        post(machine.nsqd, "/channel/empty?topic=t&channel=c")
        path = "/topic/messages?topic=t&from=4&to=5"
        eventually(lambda: machine.nsqd.http("GET", path)[0] == 410)  # copies have what is unread
    machine.publish(1)
    assert numbers(batch(machine.nsqd, **machine.option)) == [*range(1, 42)]
    machine.lose()
    assert numbers(batch(machine.nsqd, **machine.option)) == [*range(1, 42)]
    store = LogStore(machine.url)
    store.delete([dead.object for dead in dead_segments(store, read_log(store))])
    first = numbers(batch(machine.nsqd, **machine.option))[0]
    assert first > 30, "from there on, all are there"
    start, end = stream.checkpoint, stream.json(stream.reader.latestOffset(stream.checkpoint))
    tasks = stream.reader.partitions(start, end)
    read_numbers = numbers(read(*tasks))
    assert {*range(2, 42)} - {*read_numbers} <= {number for number in range(2, 42) if number % 8 != 7}
    assert len(read_numbers) < 30
    assert "which others finished" in caplog.text
    stream.restart()  # with a checkpoint that the channel has been advanced past, by whomever
    loses(stream, r"lacks \d of the messages 2 to \d of topic 't'")
    machine.start()
    machine.forget()  # the copies
    assert numbers(batch(machine.nsqd, **machine.option)) == [*range(first, 43)]


def test_store_of_a_topic_that_was_made_again(machine: Machine) -> None:
    stream = Query(machine.nsqd, **machine.option)
    machine.publish(30)
    assert len(stream.next()) == 30
    machine.forget()
    post(machine.nsqd, "/topic/delete?topic=t")
    create(machine.nsqd, "t", "c", "d")
    batch(machine.nsqd)
    machine.publish(20)
    expected = machine.published[-20:]
    begin = json.dumps({"t": {name(machine.nsqd): 1}})
    for _ in range(2):
        assert [row["value"] for row in batch(machine.nsqd, startingOffsets=begin, **machine.option)] == expected
        machine.nsqd.kill()
