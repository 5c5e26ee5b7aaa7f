"""A task may be stopped at any point and be run again, even while its first run goes on: every message that was
published becomes exactly one row."""

import errno
import itertools
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NoReturn
from unittest.mock import Mock

import pytest

from pyspark_nsq import known_ids, read_task
from pyspark_nsq.errors import ConnectionLost, SpoolError
from pyspark_nsq.options import Settings
from pyspark_nsq.read_task import ReadPartition
from pyspark_nsq.segment import Entry
from pyspark_nsq.spool import Spool
from pyspark_nsq.stream_reader import NsqStreamReader
from pyspark_nsq.subscription import Subscription
from spark.unit.fake_nsqd import CHANNEL, TOPIC, FakeNsqd, bodies, patch
from spark.unit.interruption import BOTH_PLACES, PLACES_AND_STEPS, STEPS, Interruption
from spark.unit.micro_batches import Died, MicroBatches, Rows, run_task

pytestmark = pytest.mark.usefixtures("fast_disk")
SEEDS = 40


@pytest.fixture
def settings(location: str) -> Settings:
    """Of a stream with small windows, so that a task has several segments."""
    return Settings(
        topics=(TOPIC, "views"),
        channel=CHANNEL,
        spool_location=location,
        max_messages_per_trigger=9,
        max_in_flight=6,
        idle_timeout=0.0,
        spool_retention=0.0,
    )


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each segment is delivered by itself."""
    monkeypatch.setattr(read_task, "_BATCH_ROWS", 1)


@pytest.fixture
def nsqd(nsqds: list[FakeNsqd]) -> FakeNsqd:
    return nsqds[0]


@pytest.fixture
def batches(settings: Settings, nsqd: FakeNsqd) -> MicroBatches:
    """A query that has planned a batch of one task: nine messages, in segments of three."""
    nsqd.publish(9)
    batches = MicroBatches(settings)
    batches.plan()
    return batches


@pytest.fixture
def planned(batches: MicroBatches) -> ReadPartition:
    """The task of that batch."""
    (partition,) = batches.partitions()
    return partition


def die() -> NoReturn:
    raise Died


def judge(batches: MicroBatches, nsqds: list[FakeNsqd]) -> None:
    """Published == rows == distinct ids, and nothing is left in NSQ."""
    values = Counter(row["value"] for row in batches.sink)
    published = set(bodies(nsqds))
    assert values.keys() == published, f"lost: {published - values.keys()}"
    doubled = {value: count for value, count in values.items() if count > 1}
    assert not doubled
    ids = {(row["nsqd"], row["topic"], row["message_id"]) for row in batches.sink}
    assert len(ids) == len(batches.sink)
    for fake in nsqds:
        assert not fake.queue
        assert not fake.in_flight


def drain_everything(batches: MicroBatches, nsqds: list[FakeNsqd]) -> None:
    """Drain, and again with what was held by tasks that died."""
    batches.drain()
    for fake in nsqds:
        fake.time_out()
    batches.restart()
    batches.drain()


@pytest.mark.parametrize("consumers, most", [(9, 6), (2, 4), (1, 2)])
def test_a_task_has_as_many_connections_as_what_may_be_in_flight_needs(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, consumers: int, most: int
) -> None:
    fake = FakeNsqd(max_rdy_count=2)
    patch(monkeypatch, [fake])
    fake.max_consumers = consumers
    fake.publish(30)
    Spool.create(settings, "s", "readStream")
    assert len(run_task(ReadPartition(settings, "s", 1, 0, fake.nsqd, 0, {TOPIC: 17}))) == 17
    assert fake.most_in_flight == most
    assert [message.attempts for message in fake.queue] == [0] * 13  # no connection takes more than its share
    assert not fake.subscribed


def test_nothing_is_in_flight_once_a_sink_is_slow(
    planned: ReadPartition, nsqd: FakeNsqd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_task, "_SLOW", -1.0)
    rows = planned.read()
    next(rows)
    assert next(rows).num_rows == 3
    assert not nsqd.queue
    assert not nsqd.in_flight
    assert next(rows).num_rows == 3


def test_a_segment_is_sealed_before_its_bodies_fill_the_memory(
    settings: Settings, nsqd: FakeNsqd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_task, "_SEGMENT_BYTES", 1)
    nsqd.piece = 1
    nsqd.publish(4)
    batches = MicroBatches(replace(settings, max_in_flight=2500))
    batches.plan()
    (partition,) = batches.partitions()
    assert len(segments(partition)) == 4


@BOTH_PLACES
def test_a_replay_delivers_the_same_without_the_nsqd(planned: ReadPartition, nsqd: FakeNsqd) -> None:
    rows = run_task(planned)
    nsqd.up = False
    assert run_task(planned) == rows
    assert len(rows) == 9


def test_a_replay_takes_no_more_although_there_is_more(
    batches: MicroBatches, planned: ReadPartition, nsqd: FakeNsqd
) -> None:
    """The first run found less than planned, since others had it in flight; its rows may be in the sink."""
    held = [nsqd.queue.pop() for _ in range(4)]
    rows = run_task(planned)
    assert len(rows) == 5
    nsqd.queue.extend(held)
    assert run_task(planned) == rows
    batches.drain()
    judge(batches, [nsqd])


def test_an_nsqd_that_is_away_ends_the_task(settings: Settings, nsqds: list[FakeNsqd]) -> None:
    for fake in nsqds:
        fake.publish(4)
    batches = MicroBatches(settings)
    batches.plan()
    nsqds[0].up = False
    batches.execute()
    assert [row["nsqd"] for row in batches.sink] == ["node:4250"] * 4
    nsqds[0].up = True
    batches.restart()
    batches.drain()
    judge(batches, nsqds)


def test_a_connection_that_is_lost_at_the_end_is_not_waited_for_again(
    planned: ReadPartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    released: list[Subscription] = []
    monkeypatch.setattr(read_task._Task, "confirm", Mock(side_effect=ConnectionLost("no answer to CLS")))
    monkeypatch.setattr(Subscription, "release", released.append)
    run_task(planned)
    assert released == []


def occurrences(run: Callable[[int], bool]) -> None:
    """Call `run` with 1, 2, ... until it says that there is no such occurrence; there must be one."""
    for number in itertools.count(1):
        if not run(number):
            assert number > 1
            return


WORLDS = ["task dies", "driver dies", "timed out", "nsqd is killed", "nsqd restarts"]


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("location, step", PLACES_AND_STEPS, indirect=["location"])
def test_a_death_at_any_step_loses_and_doubles_nothing(
    settings: Settings, location: str, step: str, when: str, world: str
) -> None:
    def run(number: int) -> bool:
        with pytest.MonkeyPatch.context() as monkeypatch:
            nsqds = [FakeNsqd(4150), FakeNsqd(4150, topic="views"), FakeNsqd(4250)]  # the first two in one task
            patch(monkeypatch, nsqds)
            for fake in nsqds:
                fake.publish(4)
            batches = MicroBatches(replace(settings, spool_location=f"{location}/{number}"))
            batches.failures = 2 if world == "task dies" else 1

            def action() -> None:
                for fake in nsqds:
                    if world == "nsqd is killed":
                        fake.restart(forgetting=3)
                    elif world == "timed out":
                        fake.time_out()
                    elif world == "nsqd restarts":
                        fake.restart()
                die()

            interruption = Interruption(monkeypatch, step, when, number, action)
            try:
                batches.drain()
            except Died:
                batches.restart()
            drain_everything(batches, nsqds)
            judge(batches, nsqds)
            return interruption.happened

    occurrences(run)


@pytest.mark.parametrize("held", ["in flight", "timed out"])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("location, step", PLACES_AND_STEPS, indirect=["location"])
def test_a_zombie_at_any_step_loses_and_doubles_nothing(
    settings: Settings, location: str, step: str, when: str, held: str
) -> None:
    """While a task pauses at a step, another run of it goes ahead, and the next batches too; then it goes on."""

    def run(number: int, ahead: str) -> bool:
        with pytest.MonkeyPatch.context() as monkeypatch:
            nsqd = FakeNsqd()
            patch(monkeypatch, [nsqd])
            nsqd.publish(20)
            batches = MicroBatches(replace(settings, spool_location=f"{location}/{ahead} {number}"))
            batches.plan()
            (partition,) = batches.partitions()
            rows: list[Rows] = []

            def meanwhile() -> None:
                if held == "timed out":
                    nsqd.time_out()
                rows.append(run_task(partition))
                if ahead == "batches":
                    batches.commit(rows[0])
                    batches.drain()

            with pytest.MonkeyPatch.context() as first_run:
                interruption = Interruption(first_run, step, when, number, meanwhile)
                try:
                    rows.append(run_task(partition))
                except SpoolError:
                    assert ahead == "batches"  # it received that its batch is over
            if not batches.committed:
                batches.commit(rows[-1])
            assert all(one == rows[0] for one in rows)
            drain_everything(batches, [nsqd])
            judge(batches, [nsqd])
            return interruption.happened

    for ahead in ("task", "batches"):
        occurrences(lambda number, ahead=ahead: run(number, ahead))  # type: ignore[misc]


@pytest.mark.parametrize("committed", [True, False])
def test_a_task_that_never_ran_cannot_start_when_its_batch_is_over(
    settings: Settings, nsqds: list[FakeNsqd], monkeypatch: pytest.MonkeyPatch, committed: bool
) -> None:
    """A query that looks only at some rows runs only some tasks."""
    for fake in nsqds:
        fake.publish(10)
    batches = MicroBatches(settings)
    if not committed:
        monkeypatch.setattr(NsqStreamReader, "commit", lambda reader, end: None)
    batches.plan()
    one, other = batches.partitions()
    batches.commit(run_task(one))
    batches.plan()
    batches.partitions()
    if committed:
        with pytest.raises(SpoolError, match="batch 1 is committed"):
            run_task(other)
    else:
        assert run_task(other) == []
    batches.execute()
    drain_everything(batches, nsqds)
    judge(batches, nsqds)


@BOTH_PLACES
def test_a_committed_batch_is_not_read_again(settings: Settings, nsqd: FakeNsqd) -> None:
    nsqd.publish(20)
    batches = MicroBatches(settings)
    batches.plan()
    (partition,) = batches.partitions()
    batches.drain()
    with pytest.raises(SpoolError, match="no longer in the spool, since batch 3 is committed"):
        run_task(partition)
    assert run_task(replace(partition, settings=replace(settings, fail_on_data_loss=False))) == []


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("step", ["write", "link", "sync"])
def test_a_spool_that_cannot_be_written_finishes_nothing(
    batches: MicroBatches,
    planned: ReadPartition,
    nsqd: FakeNsqd,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    error: int,
) -> None:
    def fail(*arguments: object) -> NoReturn:
        raise OSError(error, "No space left on device" if error == errno.ENOSPC else "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(*STEPS[step], fail)
        with pytest.raises(SpoolError) as caught:
            run_task(planned)
    assert str(caught.value).startswith("cannot ")
    assert ("messages stay in NSQ" in str(caught.value)) == (error == errno.ENOSPC)
    assert not nsqd.finished
    assert len(nsqd.queue) == 9
    batches.drain()
    judge(batches, [nsqd])


def segments(partition: ReadPartition) -> list[Entry]:
    """What the spool has of a task that was run to its end."""
    run_task(partition)
    chain = Spool.of(partition.settings, partition.stream).chain(partition.batch, partition.chain, partition.nsqd.name)
    chain.refresh()
    return chain.segments(partition.part)


@pytest.mark.parametrize("at", [0, 20, 100, -1, None])
def test_a_segment_that_is_damaged_or_missing_is_reported(planned: ReadPartition, at: int | None) -> None:
    entry = segments(planned)[0]
    assert entry.messages == 3
    path = Path(entry.path)
    if at is None:
        path.unlink()
    else:
        data = bytearray(path.read_bytes())
        data[at] ^= 1
        path.write_bytes(data)
    with pytest.raises(SpoolError, match="000000 is missing" if at is None else "000000 is"):
        run_task(planned)
    tolerant = replace(planned, settings=replace(planned.settings, fail_on_data_loss=False))
    assert len(run_task(tolerant)) == 6


def test_a_spool_that_an_executor_cannot_see_is_reported_before_anything_is_read(
    settings: Settings, nsqd: FakeNsqd, tmp_path: Path
) -> None:
    nsqd.publish(1)
    elsewhere = replace(settings, spool_location=str(tmp_path / "elsewhere"))
    with pytest.raises(SpoolError, match="must be a directory that the driver and all executors share"):
        run_task(ReadPartition(elsewhere, "s", 1, 0, nsqd.nsqd, 0, {TOPIC: 1}))
    assert nsqd.queue[0].attempts == 0


@BOTH_PLACES
@pytest.mark.parametrize("seed", range(SEEDS))
def test_whatever_happens_every_message_becomes_one_row(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Deaths, zombies, timeouts and restarts of nsqds at random steps, over many batches, while more is published."""
    chance = random.Random(seed)
    nsqds = [FakeNsqd(4150, piece=chance.randint(1, 5)), FakeNsqd(4250, max_rdy_count=chance.randint(1, 9))]
    nsqds += [FakeNsqd(4150, topic="views", piece=chance.randint(1, 5)) for _ in range(chance.randint(0, 1))]
    patch(monkeypatch, nsqds)
    monkeypatch.setattr(known_ids, "_IDS_OF_A_FILE", chance.choice([2, 500_000]))
    batches = MicroBatches(
        replace(
            settings,
            max_in_flight=chance.randint(1, 9),
            max_messages_per_trigger=chance.choice([None, 5, 20]),
            min_partitions=chance.choice([None, 5]),
        )
    )
    batches.failures = chance.randint(1, 2)
    depth = 0

    def trouble() -> None:
        nonlocal depth
        fake = chance.choice(nsqds)
        what = chance.choice(["die", "die", "time out", "kill nsqd", "publish", "zombie"])
        if what == "die":
            die()
        elif what == "time out":
            fake.time_out()
        elif what == "kill nsqd":
            for topic in nsqds:
                if topic.nsqd == fake.nsqd:
                    topic.restart(forgetting=chance.randint(0, 3))
        elif what == "publish":
            fake.publish(chance.randint(1, 5))
        elif depth < 2 and len(batches.offsets) > batches.committed:
            depth += 1
            try:
                run_task(chance.choice(batches.partitions()))
            finally:
                depth -= 1

    for owner, name in STEPS.values():
        original = getattr(owner, name)

        def troubled(*arguments: object, original: Callable[..., object] = original, **named: object) -> object:
            if chance.random() < 0.03:
                trouble()
            result = original(*arguments, **named)
            if chance.random() < 0.03:
                trouble()
            return result

        monkeypatch.setattr(owner, name, troubled)
    for fake in nsqds:
        fake.publish(chance.randint(1, 40))
    for _ in range(100):
        if len(batches.sink) >= sum(fake.published for fake in nsqds):
            break
        try:
            batches.drain()
        except (Died, SpoolError):
            pass
        for fake in nsqds:
            fake.time_out()
        batches.restart()
    monkeypatch.undo()
    with pytest.MonkeyPatch.context() as calm:
        patch(calm, nsqds)
        drain_everything(batches, nsqds)
    judge(batches, nsqds)
