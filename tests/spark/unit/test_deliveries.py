"""A stream of deliveries: what a batch has, what is in flight and finished when, and what comes again after a crash."""

import json
import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from threading import Event
from typing import Any, NoReturn

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from kit.daemons import Instance, eventually
from kit.spark_topics import bodies as numbered
from kit.traffic import DaemonFactory, create, post, publish, wait_for
from pyspark_nsq import nodes
from pyspark_nsq.client import name_of
from pyspark_nsq.deliveries import backlog, batch
from pyspark_nsq.discovery import Depth
from pyspark_nsq.errors import DiscoveryError, NsqSourceError
from pyspark_nsq.options import Settings
from pyspark_nsq.stream_reader import NsqStreamReader
from spark.unit.fake_nsqd import CHANNEL, TOPIC, FakeDaemon, bodies, patch
from spark.unit.micro_batches import MicroBatches, rows_of

ALL = ReadAllAvailable()
Offset = dict[str, Any]


@pytest.fixture
def settings() -> Settings:
    return Settings(topics=(TOPIC,), channel=CHANNEL, mode="deliveries")


def counts(reader: NsqStreamReader, start: Offset | None = None, limit: object = ALL) -> dict[str, int]:
    """Counts the rows of the next batch by nsqd; gives them back."""
    start = reader.initialOffset() if start is None else start
    end = reader.latestOffset(start, limit)
    rows = rows_of(reader, start, end)
    release(reader)
    return dict(Counter(row["nsqd"] for row in rows))


def release(reader: NsqStreamReader) -> None:
    stream = reader._chosen
    held = stream._held  # type: ignore[union-attr]
    if held is not None:
        held[1].release()
        stream._held = None  # type: ignore[union-attr]


def close(reader: NsqStreamReader) -> None:
    """Does what the end of its process does."""
    reader._chosen._held[1].close()  # type: ignore[union-attr,index]


def first(reader: NsqStreamReader) -> Offset:
    """Finishes the messages of the first batch; returns its offset."""
    end = reader.latestOffset(reader.initialOffset(), ALL)
    reader.commit(end)
    return end


def values(rows: list[dict[str, Any]]) -> list[bytes]:
    return sorted(row["value"] for row in rows)


def addressed(settings: Settings, *nsqds: Instance) -> Settings:
    tcp: Any = tuple(nsqd.tcp_address for nsqd in nsqds)
    http: Any = tuple(nsqd.http_address for nsqd in nsqds)
    return replace(settings, nsqd_tcp_addresses=tcp, nsqd_http_addresses=http)


# What a batch has


def test_a_batch_has_queued_messages_up_to_the_limit_of_the_trigger(
    settings: Settings, nsqds: list[FakeDaemon]
) -> None:
    nsqds[0].publish(50)
    nsqds[1].publish(3)
    assert NsqStreamReader(settings).getDefaultReadLimit() == ALL
    assert counts(NsqStreamReader(settings)) == {"node:4150": 50, "node:4250": 3}
    reader = NsqStreamReader(replace(settings, max_messages_per_trigger=10))
    assert reader.getDefaultReadLimit() == ReadMaxRows(10)
    assert counts(reader, limit=ReadMaxRows(10)) == {"node:4150": 7, "node:4250": 3}


def test_no_more_is_in_flight_than_allowed_over_as_many_connections_as_that_needs(
    settings: Settings, nsqds: list[FakeDaemon]
) -> None:
    nsqds[0].max_rdy_count = 4
    nsqds[0].publish(50)
    reader = NsqStreamReader(replace(settings, max_in_flight=10))
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    assert (len(nsqds[0].in_flight), nsqds[0].most_in_flight, nsqds[0].connections) == (10, 10, 3)
    reader.commit(end)
    assert (len(nsqds[0].finished), len(nsqds[0].in_flight), nsqds[0].connections) == (10, 0, 0)


def test_a_limit_to_the_consumers_of_a_channel_makes_the_batch_smaller(
    settings: Settings, nsqds: list[FakeDaemon]
) -> None:
    nsqds[0].max_rdy_count, nsqds[0].max_consumers = 4, 2
    nsqds[0].publish(50)
    assert counts(NsqStreamReader(settings)) == {"node:4150": 8}


def test_a_batch_ends_at_its_limit_of_bytes(
    settings: Settings, nsqds: list[FakeDaemon], monkeypatch: pytest.MonkeyPatch
) -> None:
    nsqds[0].publish(1000)
    reader = NsqStreamReader(replace(settings, max_bytes_per_trigger=2000))
    start = reader.initialOffset()
    rows = rows_of(reader, start, reader.latestOffset(start, ALL))
    assert 2000 <= sum(len(row["value"]) for row in rows) < 2100
    assert nsqds[0].most_in_flight < 120, "of 1000"
    release(reader)
    monkeypatch.setattr(batch, "_MOST_BYTES", 1000)
    assert len(rows_of(reader, start, reader.latestOffset(start, ALL))) <= len(rows) // 2 + 1, "whatever the option"


def test_rows_are_in_as_many_tasks_as_the_options_name(
    settings: Settings, nsqds: list[FakeDaemon], monkeypatch: pytest.MonkeyPatch
) -> None:
    nsqds[0].publish(60)
    for least, largest, sizes in ((None, None, [60]), (4, None, [15] * 4), (99, None, [1] * 60), (None, 25, [20] * 3)):
        reader = NsqStreamReader(replace(settings, min_partitions=least, max_records_per_partition=largest))
        start = reader.initialOffset()
        end = reader.latestOffset(start, ALL)
        tasks = reader.partitions(start, end)
        assert [sum(batch.num_rows for batch in reader.read(task)) for task in tasks] == sizes
        assert values(rows_of(reader, start, end)) == sorted(bodies(nsqds))
        release(reader)
    monkeypatch.setattr(batch, "_TASK_BYTES", 2000)  # of which a row takes 117 or 118
    reader = NsqStreamReader(settings)
    start = reader.initialOffset()
    assert len(reader.partitions(start, reader.latestOffset(start, ALL))) == 4


def test_batch_waits_for_enough_messages_but_not_for_ever(
    settings: Settings, nsqds: list[FakeDaemon], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr("pyspark_nsq.nodes.time.monotonic", lambda: now)
    reader = NsqStreamReader(replace(settings, min_messages_per_trigger=5, max_trigger_delay=9.0))
    start = reader.initialOffset()
    found = []
    for when, published in ((0, 1), (1, 1), (2, 4), (3, 1), (11, 0)):  # the first batch does not wait
        now = when
        nsqds[0].publish(published)
        end = reader.latestOffset(start, ALL)
        found.append(len(rows_of(reader, start, end)))
        start = end
    assert found == [1, 0, 5, 0, 1]


def test_enough_are_the_messages_that_wait_though_a_batch_may_have_fewer(
    settings: Settings, nsqds: list[FakeDaemon]
) -> None:
    reader = NsqStreamReader(replace(settings, min_messages_per_trigger=20, max_in_flight=10))
    end, found = reader.initialOffset(), []
    nsqds[0].publish(40)
    for _ in range(4):
        start, end = end, reader.latestOffset(end, ALL)
        found.append(len(rows_of(reader, start, end)))
    assert found == [10, 10, 10, 0], "10 are not enough"


def test_batch_follows_one_whose_rows_nobody_asked_for(settings: Settings, nsqds: list[FakeDaemon]) -> None:
    """Asks as Spark 4.1, which passes no start, and needs no tasks if the plan drops all rows."""
    reader = NsqStreamReader(settings)
    for number in (1, 2):
        nsqds[0].publish(1)
        assert reader.latestOffset()["batch"] == number
        assert len(nsqds[0].finished) == number - 1


def test_an_nsqd_that_lets_nothing_be_in_flight_is_reported(settings: Settings, nsqds: list[FakeDaemon]) -> None:
    nsqds[0].max_rdy_count = 0
    nsqds[0].publish(1)
    with pytest.raises(NsqSourceError, match="nsqd node:4150 has --max-rdy-count=0: it sends messages to no consumer"):
        first(NsqStreamReader(settings))
    assert nsqds[0].connections == 0


def test_no_messages_make_no_batch(settings: Settings, nsqds: list[FakeDaemon]) -> None:
    """Compares the JSON of the offsets, as Spark does."""
    reader = NsqStreamReader(settings)
    start = reader.initialOffset()
    assert reader.initialOffset() == NsqStreamReader(settings).initialOffset() == start
    for published in (0, 1):
        nsqds[0].publish(published)
        end = reader.latestOffset(start, ALL)
        assert (end == start) == (published == 0)
        assert json.dumps(reader.latestOffset(json.loads(json.dumps(end)), ALL)) == json.dumps(end)
        assert reader.partitions(end, end) == []
        reader.commit(end)


def test_a_topic_without_the_channel_is_read_from_its_beginning(settings: Settings, nsqds: list[FakeDaemon]) -> None:
    for fake in nsqds:
        fake.channel_exists = False
    nsqds[0].publish(4)
    assert counts(NsqStreamReader(settings)) == {"node:4150": 4}
    assert all(fake.channel_exists for fake in nsqds), "what comes from now on must get into it, also where nothing is"


def test_a_paused_channel_is_not_waited_for(
    settings: Settings, nsqds: list[FakeDaemon], monkeypatch: pytest.MonkeyPatch
) -> None:
    in_truth = nsqds[0].depth
    monkeypatch.setattr(nsqds[0], "depth", lambda: in_truth()._replace(paused=True))
    for fake in nsqds:
        fake.publish(2)
    assert counts(NsqStreamReader(settings)) == {"node:4250": 2}


def test_topics_that_match_a_pattern_are_read_when_they_are_there(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    views, visits = (FakeDaemon(topic=topic) for topic in ("views", "visits"))
    nsqds = [FakeDaemon()]
    monkeypatch.setattr(nodes, "_LIST_INTERVAL", 0.0)
    patch(monkeypatch, nsqds)
    reader = NsqStreamReader(replace(settings, topics=(), topic_pattern="vi.*"))
    start = reader.initialOffset()
    nsqds[0].publish(1)
    assert reader.latestOffset(start, ALL) == start
    for topics in ([views], [views, visits]):
        topics[-1].channel_exists = False
        topics[-1].publish(5)
        patch(monkeypatch, [*nsqds, *topics])
        found = rows_of(reader, start, reader.latestOffset(start, ALL))
        assert Counter(row["topic"] for row in found) == {each.topic: 5 for each in topics}
        assert topics[-1].channel_exists
        release(reader)


# What is in flight


def test_messages_are_finished_when_spark_has_committed_their_batch(
    settings: Settings, nsqds: list[FakeDaemon]
) -> None:
    nsqds[0].publish(5)
    reader = NsqStreamReader(settings)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    assert values(rows_of(reader, start, end)) == sorted(bodies(nsqds))
    reader.commit(start)
    assert (len(nsqds[0].in_flight), nsqds[0].finished) == (5, [])
    nsqds[0].publish(1)
    assert reader.latestOffset(start, ALL) == end, "it is asked for again"
    assert len(rows_of(reader, start, end)) == 5
    later = reader.latestOffset(end, ALL)  # Spark has committed `end` when it asks for what follows
    assert len(nsqds[0].finished) == 5
    assert rows_of(reader, start, end) == []
    reader.commit(end)
    assert [row["value"] for row in rows_of(reader, end, later)] == list(bodies(nsqds))[5:]


def test_messages_are_touched_before_they_time_out(
    settings: Settings, nsqds: list[FakeDaemon], monkeypatch: pytest.MonkeyPatch
) -> None:
    nsqds[0].msg_timeout, nsqds[0].sending = 0.2, 10_000
    nsqds[0].publish(5)
    reader = NsqStreamReader(settings)
    end = reader.latestOffset(reader.initialOffset(), ALL)
    eventually(lambda: min(nsqds[0].touched.values(), default=0) >= 2)
    assert nsqds[0].touched.keys() == nsqds[0].in_flight.keys()
    reader.commit(end)
    assert len(nsqds[0].finished) == 5


def test_no_message_times_out_while_its_batch_takes_longer(gnsqd: Instance, settings: Settings) -> None:
    create(gnsqd, "clock", "ticks")
    publish(gnsqd, TOPIC, *numbered(1000))
    reader = NsqStreamReader(replace(addressed(settings, gnsqd), msg_timeout_ms=2000))
    end = reader.latestOffset(reader.initialOffset(), ALL)
    post(gnsqd, "/pub?topic=clock&defer=4500", b"tick")
    wait_for(gnsqd, "clock", "ticks", depth=1)  # two timeouts later, by the clock of the daemon
    reader.commit(end)
    stats = gnsqd.channel_stats(TOPIC, CHANNEL)
    assert [stats[name] for name in ("depth", "in_flight_count", "timeout_count")] == [0, 0, 0]


def test_messages_are_touched_while_a_large_batch_is_cut_into_tasks(
    settings: Settings, nsqds: list[FakeDaemon], monkeypatch: pytest.MonkeyPatch
) -> None:
    take = batch.DeliveryBatch._take

    def take_slowly(self: batch.DeliveryBatch, held: Any) -> Any:
        eventually(lambda: len(nsqds[0].touched) == 5)
        return take(self, held)

    monkeypatch.setattr(batch.DeliveryBatch, "_take", take_slowly)
    nsqds[0].msg_timeout = 0.2
    nsqds[0].publish(5)
    reader = NsqStreamReader(settings)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    assert values(rows_of(reader, start, end)) == sorted(bodies(nsqds))
    reader.commit(end)
    assert len(nsqds[0].finished) == 5


@pytest.mark.parametrize(
    "lose, reported",
    [
        (FakeDaemon.restart, "nsqd closed the connection: what was in flight to this stream comes again"),
        (FakeDaemon.time_out, "5 messages timed out before Spark had committed their batch: they come again"),
    ],
)
def test_what_an_nsqd_does_not_count_as_in_flight_any_more_comes_again(
    settings: Settings,
    nsqds: list[FakeDaemon],
    caplog: pytest.LogCaptureFixture,
    lose: Callable[[FakeDaemon], None],
    reported: str,
) -> None:
    for fake in nsqds:
        fake.publish(5)
    query = MicroBatches(settings)
    query.plan()
    lose(nsqds[0])
    query.drain()
    query.restart()
    query.drain()
    assert Counter(values(query.sink)) == {body: 2 if b"4150" in body else 1 for body in bodies(nsqds)}, (
        "the other nsqd has finished its messages"
    )
    assert reported in caplog.text


def test_an_nsqd_that_hangs_is_waited_for_once(
    settings: Settings, nsqd_factory: DaemonFactory, caplog: pytest.LogCaptureFixture
) -> None:
    nsqds = nsqd_factory("--max-rdy-count=1"), nsqd_factory("--max-rdy-count=1")
    settings = addressed(replace(settings, read_timeout=1.0), *nsqds)
    for nsqd in nsqds:
        publish(nsqd, TOPIC, *numbered(4))
    reader = NsqStreamReader(settings)
    end = reader.latestOffset(reader.initialOffset(), ALL)
    nsqds[0].send_signal(signal.SIGSTOP)
    reader.commit(end)
    assert caplog.messages == [
        f"nsqd {name_of(settings.nsqd_tcp_addresses[0])} does not answer: what was in flight to this stream comes again"
    ], "it had 4 connections"
    assert nsqds[1].channel_stats(TOPIC, CHANNEL)["in_flight_count"] == 0


@pytest.mark.parametrize("step", ["planned", "read", "committed"])
def test_what_a_driver_that_died_had_in_hand_comes_again(
    settings: Settings, nsqds: list[FakeDaemon], step: str
) -> None:
    nsqds[0].publish(5)
    query = MicroBatches(settings)
    query.plan()
    if step != "planned":
        query.rows()
    if step == "committed":
        query.execute()
    query.restart()
    nsqds[0].publish(3)
    if step != "committed":
        assert query.rows() == [], "nobody has them but nsqd"
    nsqds[0].time_out()
    query.drain()
    again = 2 if step == "committed" else 1
    assert sorted(Counter(values(query.sink)).values()) == [1, 1, 1, *[again] * 5]
    assert (len(nsqds[0].finished), len(nsqds[0].in_flight), len(nsqds[0].queue)) == (8, 0, 0)


def test_offsets_of_another_kind_of_stream_are_refused(settings: Settings, nsqds: list[FakeDaemon]) -> None:
    with_spool = {"version": 2, "stream": "5f0c", "batch": 7, "channel": CHANNEL, "chains": [], "addresses": {}}
    ranges = {"version": 1, "channel": CHANNEL, "positions": []}
    for offset, text in (
        (with_spool, "written by a release with a spool.*let that release finish its batch"),
        (ranges, "it was written by a query that reads ranges"),
        ({**NsqStreamReader(settings).initialOffset(), "batch": "1"}, "no number of a batch"),
    ):
        with pytest.raises(NsqSourceError, match=text):
            NsqStreamReader(settings).latestOffset(offset, ALL)


# Which nsqds are read


def test_an_nsqd_that_left_discovery_is_read_while_it_answers(
    settings: Settings, nsqds: list[FakeDaemon], monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = NsqStreamReader(settings)
    nsqds[0].publish(1)
    end = first(reader)
    monkeypatch.setattr(nodes, "find_nsqds", lambda settings, topic=None: [nsqds[1].nsqd])
    monkeypatch.setattr(nodes, "_LIST_INTERVAL", 0.0)
    nsqds[0].publish(1)
    assert counts(reader, end) == {"node:4150": 1}
    nsqds[0].up = False
    nsqds[1].publish(1)
    monkeypatch.setattr(nodes, "_REMEMBER", 0.0)
    assert counts(reader, end) == {"node:4250": 1}


def test_an_nsqlookupd_that_hangs_is_not_asked_at_every_look(
    settings: Settings, nsqds: list[FakeDaemon], monkeypatch: pytest.MonkeyPatch
) -> None:
    now, asked = 0.0, 0

    def hang(settings: Settings, topic: str | None = None) -> NoReturn:
        nonlocal now, asked
        now, asked = now + 6, asked + 1
        raise DiscoveryError("no answer")

    monkeypatch.setattr("pyspark_nsq.nodes.time.monotonic", lambda: now)
    reader = NsqStreamReader(settings)
    nsqds[0].publish(1)
    assert counts(reader) == {"node:4150": 1}
    now += 6
    monkeypatch.setattr(nodes, "find_nsqds", hang)
    for _ in range(3):
        assert counts(reader) == {"node:4150": 1}
    assert asked == len(settings.topics)


def test_an_nsqd_that_is_away_is_asked_again_after_pauses_that_grow(
    settings: Settings, nsqds: list[FakeDaemon], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = 0.0
    asked: list[float] = []
    answer = Event()
    in_truth = nsqds[0].depth

    def depth() -> Depth:
        asked.append(now)
        if asked[3:]:
            assert answer.wait(60)  # from the fourth time on, it does not even refuse
        return in_truth()

    monkeypatch.setattr(nsqds[0], "depth", depth)
    monkeypatch.setattr("pyspark_nsq.nodes.time.monotonic", lambda: now)
    monkeypatch.setattr(nodes, "_PATIENCE", 60.0)
    monkeypatch.setattr(nodes, "_PAUSES", (1.0, 3.0))
    nsqds[0].up = False
    nsqds[1].publish(2)
    reader = NsqStreamReader(settings)
    for now in (0.0, 0.9, 1.0, 2.9, 3.0, 5.9, 6.0, 7.0, 99.0):
        if now == 6:
            monkeypatch.setattr(nodes, "_PATIENCE", 0.0)
        assert counts(reader) == {"node:4250": 2}
    assert asked == [0, 1, 3, 6]
    nsqds[0].up = True
    nsqds[0].publish(1)
    answer.set()
    monkeypatch.setattr(nodes, "_PATIENCE", 60.0)
    assert counts(reader) == {"node:4150": 1, "node:4250": 2}
    assert [record.getMessage() for record in caplog.records] == [
        "nsqd node:4150 does not answer; what it has is read when it is back",
        "nsqd node:4150 answers again",
    ]


def test_an_nsqd_is_asked_once_for_all_topics(
    settings: Settings, nsqds: list[FakeDaemon], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0
    in_truth = nsqds[0].depth

    def depth() -> Depth:
        nonlocal asked
        asked += 1
        return in_truth()

    monkeypatch.setattr(nsqds[0], "depth", depth)
    first(NsqStreamReader(replace(settings, topics=(TOPIC, "views", "orders"))))
    assert asked == 1


def test_a_new_stream_of_nsqds_that_are_all_away_is_reported(settings: Settings, nsqds: list[FakeDaemon]) -> None:
    for fake in nsqds:
        fake.up = False
    with pytest.raises(
        DiscoveryError, match="no nsqd answers: nsqd node:4150 does not answer; nsqd node:4250 does not answer"
    ):
        first(NsqStreamReader(settings))


def test_other_consumers_of_the_channel_are_warned_of_once(
    settings: Settings, nsqds: list[FakeDaemon], caplog: pytest.LogCaptureFixture
) -> None:
    reader = NsqStreamReader(settings)
    start = reader.initialOffset()
    for consumers in (1, 1, 0, 1, 1):  # tasks that are leaving
        nsqds[0].consumers = consumers
        reader.latestOffset(start, ALL)
    assert not caplog.messages
    for _ in range(3):
        reader.latestOffset(start, ALL)
    (reported,) = caplog.messages
    assert reported.startswith(f"channel {CHANNEL} of topic {TOPIC} at nsqd node:4150 has 1 other consumers")


def test_available_now_ends_although_more_is_published(settings: Settings, nsqds: list[FakeDaemon]) -> None:
    nsqds[0].publish(20)
    batches = MicroBatches(replace(settings, max_messages_per_trigger=7))
    while batches.plan():
        nsqds[0].publish(7)
        batches.execute()
        assert batches.committed < 10
    assert len(batches.sink) == 20
    # Without that trigger there is no such end.
    batches.reader = NsqStreamReader(settings)
    while batches.plan():
        batches.execute()
    assert sorted(row["value"] for row in batches.sink) == sorted(bodies(nsqds))


def test_available_now_waits_for_what_is_in_flight(
    settings: Settings, nsqds: list[FakeDaemon], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backlog, "_SCAN", 30.0)
    looks = iter([Depth(in_flight=2, channel_exists=True)] * 5)
    in_truth = nsqds[0].depth
    monkeypatch.setattr(nsqds[0], "depth", lambda: next(looks, None) or in_truth())
    nsqds[0].publish(2)
    batches = MicroBatches(settings)
    batches.drain()
    assert len(batches.sink) == 2


def test_available_now_gives_up_what_never_comes(
    settings: Settings, nsqds: list[FakeDaemon], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nsqds[0], "depth", lambda: Depth(channel=5, channel_exists=True))
    nsqds[1].publish(3)
    batches = MicroBatches(settings)
    batches.drain()
    assert len(batches.sink) == 3
    assert batches.committed <= 4


def test_a_connection_that_breaks_in_sub_does_not_end_the_stream(
    settings: Settings, nsqds: list[FakeDaemon], caplog: pytest.LogCaptureFixture
) -> None:
    for fake in nsqds:
        fake.publish(2)
    nsqds[0].is_cutting = True
    assert counts(NsqStreamReader(settings)) == {"node:4250": 2}
    assert "closed the connection; its messages are read when it is back" in caplog.text


def test_available_now_fails_if_messages_of_an_nsqd_cannot_be_had(settings: Settings, nsqds: list[FakeDaemon]) -> None:
    for fake in nsqds:
        fake.publish(4)
    nsqds[0].is_cutting = True
    batches = MicroBatches(settings)
    with pytest.raises(DiscoveryError, match="nsqd closed the connection .'failOnDataLoss' = 'false' reads only"):
        batches.drain()
    assert len(batches.sink) == 4, "the other one is read first"
    batches.drain_again(replace(settings, fail_on_data_loss=False))
    nsqds[0].is_cutting = False
    batches.drain_again(settings)
    assert values(batches.sink) == sorted(bodies(nsqds))


def test_available_now_fails_if_an_nsqd_does_not_answer(settings: Settings, nsqds: list[FakeDaemon]) -> None:
    away = "nsqd node:4250 does not answer .'failOnDataLoss' = 'false' reads only the nsqds that answer"
    for fake in nsqds:
        fake.publish(4)
    batches = MicroBatches(replace(settings, max_messages_per_trigger=4))
    batches.plan()
    batches.execute()
    nsqds[1].up = False
    with pytest.raises(DiscoveryError, match=away):
        batches.drain()
    assert len(batches.sink) == 6, "the other one is read first"
    batches.restart()
    with pytest.raises(DiscoveryError, match=away):
        batches.drain()
    batches.drain_again(replace(settings, fail_on_data_loss=False))
    nsqds[1].up = True
    batches.drain_again(settings)
    assert sorted(row["value"] for row in batches.sink) == sorted(bodies(nsqds))


def test_messages_that_come_in_many_parts_are_one_batch(nsqd: Instance, settings: Settings) -> None:
    settings = addressed(settings, nsqd)
    large = [bytes([number]) * 1_000_000 for number in range(3)]
    for body in large:
        publish(nsqd, TOPIC, body)
    reader = NsqStreamReader(settings)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    assert values(rows_of(reader, start, end)) == large
    reader.commit(end)


def test_a_daemon_is_read_to_the_last_message_wherever_a_driver_dies(nsqd: Instance, settings: Settings) -> None:
    settings = replace(addressed(settings, nsqd), max_in_flight=40, msg_timeout_ms=3000, topics=("t",))
    publish(nsqd, "t", *numbered(100))
    query = MicroBatches(settings)
    query.plan()
    query.execute()
    query.plan()  # finishes the first batch
    held = values(query.rows())
    close(query.reader)  # the driver dies: nobody finishes the second one
    query.restart()
    query.drain()
    assert Counter(values(query.sink)) == dict.fromkeys(numbered(100), 1)
    assert len(held) == 40
    stats = nsqd.channel_stats("t", CHANNEL)
    assert [stats[name] for name in ("depth", "in_flight_count", "deferred_count")] == [0, 0, 0]
    assert stats["timeout_count"] == 40
