"""What the stream reader returns to Spark: plans that are the same when asked again, and when there is nothing more."""

import json
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any, NoReturn

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from kit.daemons import Daemon
from kit.spark_topics import bodies as numbered
from kit.traffic import publish
from pyspark_nsq import backlog, nodes
from pyspark_nsq.discovery import Depth
from pyspark_nsq.errors import DiscoveryError, OptionError, SpoolError
from pyspark_nsq.offsets import Offset
from pyspark_nsq.options import Settings
from pyspark_nsq.retention import inspect
from pyspark_nsq.stream_reader import NsqStreamReader
from spark.unit.fake_nsqd import CHANNEL, TOPIC, FakeNsqd, bodies, patch
from spark.unit.interruption import STEPS_AT, Interruption
from spark.unit.micro_batches import Died, MicroBatches

ALL = ReadAllAvailable()


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(topics=(TOPIC,), channel=CHANNEL, mode="deliveries", spool_location=str(tmp_path), idle_timeout=0.0)


pytestmark = pytest.mark.usefixtures("fast_disk")


def plan(reader: NsqStreamReader, limit: ReadAllAvailable | ReadMaxRows = ALL) -> Offset:
    return Offset.from_json(reader.latestOffset(reader.initialOffset(), limit))


def tasks_of(offset: Offset) -> dict[str, list[int]]:
    """The quotas of the topic for each task, by nsqd."""
    return {nsqd: [quotas[TOPIC] for quotas in tasks] for nsqd, tasks in offset.chains}


def quotas(reader: NsqStreamReader, start: dict[str, Any] | None = None) -> dict[str, list[int]]:
    """The same of the next batch."""
    return tasks_of(Offset.from_json(reader.latestOffset(reader.initialOffset() if start is None else start, ALL)))


def test_a_plan_has_queued_messages_up_to_the_limit_of_the_trigger(settings: Settings, nsqds: list[FakeNsqd]) -> None:
    nsqds[0].publish(50)
    nsqds[1].publish(3)
    assert NsqStreamReader(settings).getDefaultReadLimit() == ALL
    offset = plan(NsqStreamReader(settings))
    assert tasks_of(offset) == {"node:4150": [50], "node:4250": [3]}
    assert offset.batch == 1
    assert offset.nsqds == {fake.nsqd.name: fake.nsqd for fake in nsqds}
    reader = NsqStreamReader(replace(settings, max_messages_per_trigger=10, min_partitions=3))
    assert reader.getDefaultReadLimit() == ReadMaxRows(10)
    assert tasks_of(plan(reader, ReadMaxRows(10))) == {"node:4150": [4, 3], "node:4250": [3]}


def test_when_nothing_waits_the_offset_is_the_same_to_the_byte(settings: Settings, nsqds: list[FakeNsqd]) -> None:
    """Spark compares the JSON."""
    nsqds[0].publish(1)
    reader = NsqStreamReader(settings)
    end = reader.latestOffset(reader.initialOffset(), ALL)
    nsqds[0].queue.clear()
    text = json.dumps(end)
    assert json.dumps(reader.latestOffset(json.loads(text), ALL)) == text
    assert reader.partitions(end, end) == []


def test_no_messages_make_no_batch(settings: Settings, nsqds: list[FakeNsqd], tmp_path: Path) -> None:
    reader = NsqStreamReader(settings)
    start = reader.initialOffset()
    assert reader.latestOffset(start, ALL) == start == reader.initialOffset()
    other = NsqStreamReader(settings).initialOffset()
    assert other["stream"] != start["stream"]
    assert reader.partitions(other, start) == []
    reader.commit(start)
    assert list(tmp_path.iterdir()) == []


def test_a_replay_has_the_same_tasks_whatever_the_options_say_now(settings: Settings, nsqds: list[FakeNsqd]) -> None:
    nsqds[0].publish(10)
    reader = NsqStreamReader(replace(settings, min_partitions=4))
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    tasks = [str(one.value) for one in reader.partitions(start, end)]
    assert len(tasks) == 4
    nsqds[0].publish(10)
    nsqds[1].publish(10)
    again = NsqStreamReader(settings)
    assert [str(one.value) for one in again.partitions(again.initialOffset(), json.loads(json.dumps(end)))] == tasks


def test_a_topic_without_the_channel_is_read_from_its_beginning(settings: Settings, nsqds: list[FakeNsqd]) -> None:
    for fake in nsqds:
        fake.channel_exists = False
    nsqds[0].publish(4)
    assert quotas(NsqStreamReader(settings)) == {"node:4150": [4]}
    assert all(fake.channel_exists for fake in nsqds), "what comes from now on must get into it, also where nothing is"


def test_a_paused_channel_is_not_waited_for(
    settings: Settings, nsqds: list[FakeNsqd], monkeypatch: pytest.MonkeyPatch
) -> None:
    in_truth = nsqds[0].depth
    monkeypatch.setattr(nsqds[0], "depth", lambda: in_truth()._replace(paused=True))
    for fake in nsqds:
        fake.publish(2)
    assert quotas(NsqStreamReader(settings)) == {"node:4250": [2]}


def test_another_channel_than_the_checkpoints_is_reported(settings: Settings, nsqds: list[FakeNsqd]) -> None:
    start = NsqStreamReader(settings).initialOffset()
    with pytest.raises(OptionError, match="option 'channel' is 'other', but .* the channel 'archive'"):
        NsqStreamReader(replace(settings, channel="other")).latestOffset(start, ALL)


def no_discovery(settings: Settings, topic: str | None = None) -> NoReturn:
    raise DiscoveryError("no nsqlookupd answers")


def test_without_nsqlookupd_the_nsqds_of_the_checkpoint_are_read(
    settings: Settings, nsqds: list[FakeNsqd], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    nsqds[0].publish(1)
    end = plan(NsqStreamReader(settings)).to_json()
    monkeypatch.setattr(nodes, "find_nsqds", no_discovery)
    nsqds[1].publish(3)
    assert quotas(NsqStreamReader(settings), end) == {"node:4150": [1], "node:4250": [3]}
    assert "no nsqlookupd answers; going on" in caplog.text
    with pytest.raises(DiscoveryError, match="no nsqlookupd answers"):
        plan(NsqStreamReader(settings))


def test_an_nsqd_that_left_discovery_is_read_while_it_answers(
    settings: Settings, nsqds: list[FakeNsqd], monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = NsqStreamReader(settings)
    nsqds[0].publish(1)
    end = plan(reader).to_json()
    monkeypatch.setattr(nodes, "find_nsqds", lambda settings, topic=None: [nsqds[1].nsqd])
    monkeypatch.setattr(nodes, "_LIST_INTERVAL", 0.0)
    assert quotas(reader, end) == {"node:4150": [1]}
    nsqds[0].up = False
    nsqds[1].publish(1)
    monkeypatch.setattr(nodes, "_REMEMBER", 0.0)
    assert quotas(reader, end) == {"node:4250": [1]}


def test_an_nsqlookupd_that_hangs_is_not_asked_at_every_look(
    settings: Settings, nsqds: list[FakeNsqd], monkeypatch: pytest.MonkeyPatch
) -> None:
    now, asked = 0.0, 0

    def hang(settings: Settings, topic: str | None = None) -> NoReturn:
        nonlocal now, asked
        now, asked = now + 6, asked + 1
        raise DiscoveryError("no answer")

    nsqds[0].publish(1)
    end = plan(NsqStreamReader(settings)).to_json()
    monkeypatch.setattr("pyspark_nsq.nodes.time.monotonic", lambda: now)
    monkeypatch.setattr(nodes, "find_nsqds", hang)
    reader = NsqStreamReader(settings)
    for _ in range(3):
        assert quotas(reader, end) == {"node:4150": [1]}
    assert asked == len(settings.topics)


def test_an_nsqd_that_is_away_is_asked_again_after_pauses_that_grow(
    settings: Settings, nsqds: list[FakeNsqd], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
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
        assert quotas(reader) == {"node:4250": [2]}
    assert asked == [0, 1, 3, 6]
    nsqds[0].up = True
    nsqds[0].publish(1)
    answer.set()
    monkeypatch.setattr(nodes, "_PATIENCE", 60.0)
    assert quotas(reader) == {"node:4150": [1], "node:4250": [2]}
    assert [record.getMessage() for record in caplog.records] == [
        "nsqd node:4150 does not answer; what it has is read when it is back",
        "nsqd node:4150 answers again",
    ]


def test_topics_that_match_a_pattern_are_read_when_they_are_there(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    views, visits = (FakeNsqd(topic=topic) for topic in ("views", "visits"))
    nsqds = [FakeNsqd()]
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
        offset = Offset.from_json(reader.latestOffset(start, ALL))
        assert {topic: quota for _, tasks in offset.chains for each in tasks for topic, quota in each.items()} == {
            each.topic: 5 for each in topics
        }
        assert topics[-1].channel_exists


def test_an_nsqd_is_asked_once_for_all_topics(
    settings: Settings, nsqds: list[FakeNsqd], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0
    in_truth = nsqds[0].depth

    def depth() -> Depth:
        nonlocal asked
        asked += 1
        return in_truth()

    monkeypatch.setattr(nsqds[0], "depth", depth)
    plan(NsqStreamReader(replace(settings, topics=(TOPIC, "views", "orders"))))
    assert asked == 1


def test_a_new_stream_of_nsqds_that_are_all_away_is_reported(settings: Settings, nsqds: list[FakeNsqd]) -> None:
    for fake in nsqds:
        fake.up = False
    with pytest.raises(
        DiscoveryError, match="no nsqd answers: nsqd node:4150 does not answer; nsqd node:4250 does not answer"
    ):
        plan(NsqStreamReader(settings))


def test_a_spool_that_is_gone_is_reported(settings: Settings, nsqds: list[FakeNsqd], tmp_path: Path) -> None:
    nsqds[0].publish(2)
    reader = NsqStreamReader(settings)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    elsewhere = replace(settings, spool_location=str(tmp_path / "elsewhere"))
    with pytest.raises(SpoolError, match="is gone: messages that were read and not committed yet are lost"):
        NsqStreamReader(elsewhere).partitions(start, end)
    careless = NsqStreamReader(replace(elsewhere, fail_on_data_loss=False))
    (partition,) = careless.partitions(start, end)
    assert sum(batch.num_rows for batch in careless.read(partition)) == 2


def latest(reader: NsqStreamReader) -> dict[str, Any]:
    found = reader.reportLatestOffset()
    assert found is not None
    return found


def test_the_progress_reports_what_the_spool_has_at_the_last_commit(
    settings: Settings, nsqds: list[FakeNsqd], monkeypatch: pytest.MonkeyPatch
) -> None:
    nsqds[0].publish(50)
    nsqds[0].piece = 20  # so the whole batch is one segment
    query = MicroBatches(replace(settings, max_messages_per_trigger=20))
    assert query.reader.reportLatestOffset() is None
    query.plan()
    with monkeypatch.context() as deadly:

        def die() -> NoReturn:
            raise Died

        Interruption(deadly, "finish", "before", 1, die)
        query.execute()  # the first try of its task dies before a FIN
    assert latest(query.reader).keys() == {"version", "stream", "batch", "unread", "in_flight"}
    nsqds[0].time_out()
    query.drain()
    assert latest(query.reader)["suspects"] == 20
    files = [path for path in Path(str(settings.spool_location)).rglob("*") if path.is_file()]
    assert latest(query.reader)["spool_bytes"] == sum(
        path.stat().st_size for path in files if path.name not in ("committed", "stream")
    )


def test_what_a_rewind_repeats_after_a_restart_is_dropped_and_counted_or_delivered(
    settings: Settings, nsqds: list[FakeNsqd], caplog: pytest.LogCaptureFixture
) -> None:
    nsqds[0].publish(10)
    query = MicroBatches(settings)
    query.drain()
    assert latest(query.reader)["dropped"] == 0
    for rows, dropped, delivering in ((10, 10, False), (20, 0, True)):
        query.settings = replace(settings, deliver_rewound=delivering)
        nsqds[0].restart(forgetting=10)  # the same for a consumer: all are first attempts
        caplog.clear()
        query.restart()
        query.drain()
        assert len(query.sink) == rows
        assert latest(query.reader)["dropped"] == dropped
        assert ("10 messages were dropped, since they were read before" in caplog.text) == (not delivering)


def test_without_a_spool_its_figures_are_absent(settings: Settings, nsqds: list[FakeNsqd]) -> None:
    nsqds[0].publish(5)
    query = MicroBatches(replace(settings, spool=False, spool_location=None))
    query.drain()
    assert len(query.sink) == 5
    assert latest(query.reader).keys() == {"version", "stream", "batch", "unread", "in_flight"}


def test_a_new_stream_warns_of_what_another_one_has_not_committed(
    settings: Settings, nsqds: list[FakeNsqd], caplog: pytest.LogCaptureFixture
) -> None:
    nsqds[0].publish(50)
    lost = MicroBatches(settings)
    assert lost.plan()
    for partition in lost.partitions():
        lost.run_task(partition)
    nsqds[0].publish(1)
    MicroBatches(replace(settings, topics=("others",))).plan()
    assert not caplog.messages
    MicroBatches(settings).plan()  # the checkpoint is gone
    (reported,) = caplog.messages
    (stream,) = (report.stream for report in inspect(str(settings.spool_location)) if report.batches)
    assert f"has 50 messages of stream {stream} that are not committed" in reported
    assert f"gnsq-pipeline spool replay {settings.spool_location} {stream}" in reported


def test_other_consumers_of_the_channel_are_warned_of_once(
    settings: Settings, nsqds: list[FakeNsqd], caplog: pytest.LogCaptureFixture
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


def test_available_now_ends_although_more_is_published(settings: Settings, nsqds: list[FakeNsqd]) -> None:
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
    settings: Settings, nsqds: list[FakeNsqd], monkeypatch: pytest.MonkeyPatch
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
    settings: Settings, nsqds: list[FakeNsqd], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nsqds[0], "depth", lambda: Depth(channel=5, channel_exists=True))
    nsqds[1].publish(3)
    batches = MicroBatches(settings)
    batches.drain()
    assert len(batches.sink) == 3
    assert batches.committed <= 4


def test_available_now_fails_if_an_nsqd_does_not_answer(settings: Settings, nsqds: list[FakeNsqd]) -> None:
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
    batches.settings = replace(settings, fail_on_data_loss=False)
    batches.restart()
    batches.drain()
    nsqds[1].up = True
    batches.settings = settings
    batches.restart()
    batches.drain()
    assert sorted(row["value"] for row in batches.sink) == sorted(bodies(nsqds))


def of_daemon(nsqd: Daemon, settings: Settings) -> Settings:
    tcp, http = nsqd.tcp_address, nsqd.http_address
    assert isinstance(tcp, tuple)
    assert isinstance(http, tuple)
    return replace(
        settings, nsqd_tcp_addresses=(tcp,), nsqd_http_addresses=(http,), idle_timeout=20.0, max_in_flight=40
    )


def test_a_daemon_is_read_to_the_last_message_wherever_a_task_dies(
    nsqd: Daemon, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same as with the nsqd of test_read_task, which believes it to behave like this one."""
    monkeypatch.setattr(backlog, "_LOOK_INTERVAL", 0.02)
    settings = replace(of_daemon(nsqd, settings), max_messages_per_trigger=60, msg_timeout_ms=1000)
    streams = []
    for number, (step, when) in enumerate(
        (step, when) for step in STEPS_AT["directory"] for when in ("before", "after")
    ):
        topic = f"t{number}"
        publish(nsqd, topic, *numbered(100))
        batches = MicroBatches(replace(settings, topics=(topic,)))
        batches.plan()
        with monkeypatch.context() as deadly:

            def die() -> NoReturn:
                raise Died

            interruption = Interruption(deadly, step, when, 1, die)
            batches.execute()
        assert interruption.happened, step
        streams.append((step, when, topic, batches))
    for step, when, topic, batches in streams:
        for _ in range(2):  # what was sealed and not finished waits for its timeout, even if the drain is over
            batches.drain()
            batches.restart()
        assert sorted(int(row["value"]) for row in batches.sink) == list(range(100)), (step, when)
        assert len({row["message_id"] for row in batches.sink}) == 100
        stats = nsqd.channel_stats(topic, CHANNEL)
        assert [stats[name] for name in ("depth", "in_flight_count", "deferred_count")] == [0, 0, 0]
