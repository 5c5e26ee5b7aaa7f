"""Retention and rewinding: what comes again is what was published since, whatever kills and segments come between."""

import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from time import time_ns

import pytest
from gevent import sleep, spawn
from hypothesis import example, given
from hypothesis import strategies as st

from gnsqd.broker.rules import Rules
from gnsqd.hub import cooperative
from gnsqd.queues.journal import segments, states
from gnsqd.queues.journal.backend import deferred_of
from gnsqd.queues.journal.history import TopicHistory
from gnsqd.queues.journal.segments import AppendedFile
from gnsqd.queues.message import Message
from gnsqd.queues.queue import Queue
from gnsqd.shared.errors import BrokerError, StorageError
from gnsqd.shared.journal.spans import Spans
from gnsqd.storage.syncer import Syncer
from unit.broker.fakes import MINUTE, SECOND, FakeConsumer, bodies_of, publish, settle
from unit.queues.journal.test_backend import FAR, Journaled, channel, daemons_of
from unit.queues.journal.test_lost_messages import journal_of

OPTIONS = {"retention_bytes": 1 << 20}
EVERYTHING = 1 << 62


def history(daemon: Journaled) -> TopicHistory:
    assert daemon.topic.write_ahead is not None
    return daemon.topic.write_ahead.history


def rewind(daemon: Journaled, name: str = "c", begin: int = 0, end: int = EVERYTHING) -> int:
    return history(daemon).rewind(channel(daemon, name).queue, begin, end)


def consume(daemon: Journaled, name: str = "c") -> list[Message]:
    """Takes all messages and finishes them."""
    found: list[Message] = []
    while batch := daemon.take(name):
        found += batch
        for message in batch:
            channel(daemon, name).finish(daemon.consumer(name), message.id)
    return found


@pytest.fixture
def daemon(tmp_path: Path, syncer: Syncer) -> Journaled:
    """Yields a daemon with the channel c of the topic t."""
    daemon = Journaled(tmp_path / "a", syncer, OPTIONS)
    channel(daemon)
    return daemon


@pytest.fixture
def finished(daemon: Journaled) -> Journaled:
    """Returns a daemon whose channel has finished the messages 0, 1 and 2, all written."""
    publish(daemon.topic, b"0", b"1", b"2")
    consume(daemon)
    daemon.flush()
    return daemon


def test_messages_that_are_not_due_are_listed_and_cancelled_after_a_rewind(tmp_path: Path, syncer: Syncer) -> None:
    daemon = Journaled(tmp_path / "a", syncer, OPTIONS | {"max_bytes_per_file": 1000})
    channel(daemon)
    for number in range(20):  # in several segments
        publish(daemon.topic, b"%d" % number * 50, deferred=MINUTE if number % 2 else 0)
    channel(daemon).empty()
    daemon.flush()
    assert len(journal_of(daemon).log.segments.all) > 3
    for each in (daemon, daemon.after_kill()):
        each.topic.create_channel("new", 0)
        assert rewind(each) == 20
        for name in ("c", "new"):
            queue = channel(each, name)
            assert (queue.depth, queue.deferred_count) == (10, 10)
            found = queue.deferred.look(0, 100, EVERYTHING)
            assert [int(message.body[:2]) % 2 for _, message in found] == [1] * 10
            for due, message in found:
                queue.cancel(due, message)
            assert len(consume(each, name)) == 10
            assert queue.deferred_count == 0


def test_rewind_while_a_snapshot_is_made(tmp_path: Path, syncer: Syncer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(states, "STEP", 1)
    daemon = Journaled(tmp_path / "a", syncer, OPTIONS | {"max_bytes_per_file": 1000})
    for name in ("c", "d"):
        channel(daemon, name)
    kills = 0
    for number in range(30):
        publish(daemon.topic, b"%02d" % number * 100)
        for name in ("c", "d"):
            consume(daemon, name)
        if journal_of(daemon).states.snapshot is not None:
            for name in ("c", "d"):
                rewind(daemon, name)
                (message,) = daemon.take(name, 1)
                channel(daemon, name).finish(daemon.consumer(name), message.id)
            while journal_of(daemon).states.snapshot is not None:
                daemon.flush()
            kills += 1
            again = daemon.after_kill()
            for name in ("c", "d"):
                assert len(consume(again, name)) == number
    assert kills > 3


def test_what_damage_took_is_not_promised(daemon: Journaled, tmp_path: Path, syncer: Syncer) -> None:
    for number in range(10):
        publish(daemon.topic, b"%d" % number * 100)
    consume(daemon)
    daemon.kill()
    (segment,) = (tmp_path / "a").glob("*.journal.*")
    segment.write_bytes(segment.read_bytes().replace(b"555", b"x55", 1))
    again = Journaled(tmp_path / "a", syncer, OPTIONS, daemon.listed)
    consume(again)  # after damage there may be more than was left
    assert history(again).count == 9
    assert rewind(again) == 9
    assert len(consume(again)) == 9
    assert again.topic.create_channel("new", 0)
    assert len(consume(again, "new")) == 9
    journal = journal_of(again)
    for queue in journal.states.queues.values():
        assert not queue.finished.gaps(0, journal.log.next_number), "its segments would stay"


def test_bytes_are_bounded_and_the_newest_messages_stay(tmp_path: Path, syncer: Syncer) -> None:
    bound = 60_000
    daemon = Journaled(tmp_path / "a", syncer, {"retention_bytes": bound})
    channel(daemon)
    for number in range(300):
        publish(daemon.topic, b"%d" % number + b"x" * 1000)
        consume(daemon)
        assert sum(path.stat().st_size for path in (tmp_path / "a").glob("*.journal.*")) <= bound
    daemon.flush()
    count = history(daemon).count
    assert count > 0.75 * bound / 1040
    for each in (daemon, daemon.after_kill()):
        assert history(each).count == count
        assert rewind(each) == count
        again = consume(each)
        assert {int(message.body.rstrip(b"x")) for message in again} == set(range(300 - count, 300))


def test_time_finds_the_first_message_published_then_or_later(tmp_path: Path, syncer: Syncer) -> None:
    daemon = Journaled(tmp_path / "a", syncer, OPTIONS | {"max_bytes_per_file": 1000})
    channel(daemon)
    for number in range(40):
        publish(daemon.topic, b"%d" % number * 20)
    messages = sorted(consume(daemon), key=lambda message: message.number)
    times = [message.timestamp for message in messages]
    assert times == sorted(times)
    for message, time in zip(messages, times, strict=True):
        assert history(daemon)._number_at(time, 1) == message.number
        assert history(daemon)._number_at(time + 1, 1) == message.number + 1
        assert history(daemon).position(message.id.decode()) == message.number
    assert history(daemon).position("first") <= messages[0].number
    assert history(daemon).position("-1h") <= messages[0].number
    assert history(daemon).position("2999-01-01T00:00:00Z") == messages[-1].number + 1


def test_messages_are_found_by_id_though_the_clock_was_set_back(daemon: Journaled) -> None:
    publish(daemon.topic, *(b"%d" % number for number in range(20)))
    daemon.topic.put_messages(daemon.around.messages(*(b"%d" % number for number in range(20, 40)), age=3600 * SECOND))
    daemon.topic.commit()
    for message in consume(daemon):
        assert history(daemon).position(message.id.decode()) == message.number


def test_ready_messages_come_beside_many_that_are_not_due(tmp_path: Path, syncer: Syncer) -> None:
    daemon = Journaled(tmp_path / "a", syncer, OPTIONS | {"mem_queue_size": 2})
    channel(daemon)
    publish(daemon.topic, *(b"later",) * 50, deferred=MINUTE)
    publish(daemon.topic, b"ready")
    consumer = FakeConsumer(7)
    assert rewind(daemon, "new") == 51
    found: list[Message] = []
    for _ in range(100):
        consumer.woken = 0
        found += channel(daemon, "new").take(consumer, 10, MINUTE, 0)
        if found:
            break
        assert consumer.woken, "it waits, and nobody will wake it"
    assert bodies_of(found) == [b"ready"]


def test_scattered_messages_are_rewound(daemon: Journaled) -> None:
    count = 5000
    publish(daemon.topic, *(b"%d" % number for number in range(count)))
    while batch := daemon.take("c", 256):
        for message in batch[::2]:
            channel(daemon).finish(daemon.consumer("c"), message.id)
    left = len(channel(daemon).in_flight)
    assert rewind(daemon) == count - left
    assert channel(daemon.after_kill()).depth == count


class Steps:
    """Calls `call` at a turn that a long work gives, the `nth`; each chance to give a turn is taken."""

    def __init__(self, patch: pytest.MonkeyPatch, nth: int, call: Callable[[], object]) -> None:
        self.given = 0
        self._nth = nth
        self._call = call
        seconds = count()
        patch.setattr(cooperative, "perf_counter", lambda: next(seconds))
        patch.setattr(cooperative, "yield_turn", self._give)

    def _give(self) -> None:
        self.given += 1
        if self.given == self._nth:
            self._call()


@pytest.fixture
def scattered(tmp_path: Path, syncer: Syncer, monkeypatch: pytest.MonkeyPatch) -> tuple[Journaled, list[Message]]:
    """Publishes 20 messages and finishes each second of them, after 10 deferred ones, all cancelled; returns the
    messages in flight. A step looks at two."""
    monkeypatch.setattr(segments, "PIECE", 2)
    daemon = Journaled(tmp_path / "a", syncer, OPTIONS | {"mem_queue_size": 5})
    channel(daemon)
    publish(daemon.topic, *(b"later%d" % number for number in range(10)), deferred=MINUTE)
    channel(daemon).empty()
    publish(daemon.topic, *(b"%d" % number for number in range(20)))
    messages: list[Message] = []
    while batch := daemon.take("c"):
        messages += batch
    for message in messages[::2]:
        channel(daemon).finish(daemon.consumer("c"), message.id)
    return daemon, messages[1::2]


LATER = {b"later%d" % number for number in range(10)}
NOW = {b"%d" % number for number in range(20)}


@pytest.mark.parametrize("nth", range(1, 15, 3))
@pytest.mark.parametrize("action", ["nothing", "finish", "publish", "release", "kill", "empty"])
def test_others_go_on_while_a_rewind_looks_for_messages(
    scattered: tuple[Journaled, list[Message]], monkeypatch: pytest.MonkeyPatch, action: str, nth: int
) -> None:
    daemon, in_flight = scattered
    queue = channel(daemon)
    killed = daemon.directory.with_name("killed")
    gone, new = set[bytes](), set[bytes]()
    early: list[bytes] = []

    def act() -> None:
        if action == "finish":
            for message in in_flight[3:7]:
                queue.finish(daemon.consumer("c"), message.id)
                gone.add(message.body)
        elif action == "publish":
            daemon.topic.publish([b"new"])
            new.add(b"new")
        elif action == "release":
            queue.queue.release(FAR, 1000, 0)
            early.extend(message.body for message in queue.take(FakeConsumer(9), 1000, MINUTE, 0))
        elif action == "kill":
            daemon.around.stores.journals.flush_dirty()
            shutil.copytree(daemon.directory, killed)
        elif action == "empty":
            queue.empty()

    before = queue.message_count
    with monkeypatch.context() as patch:
        steps = Steps(patch, nth, act)
        rewound = rewind(daemon)
    assert steps.given >= nth
    settle()
    unfinished = {message.body for message in in_flight}
    if action == "empty":
        assert (rewound, queue.depth, queue.deferred_count) == (0, 0, 0)
        assert daemon.after_kill().take_all("c") == Counter()
        return
    assert rewound == 20
    assert queue.message_count == before + 20 + len(new)
    assert queue.depth + queue.deferred_count == 20 + len(new) - len(early)
    again = daemon.after_kill()
    assert again.take_all("c") == Counter(LATER | NOW - gone | new)
    assert early or channel(daemon).deferred_count == 10
    comes = daemon.take_all("c")
    assert comes + Counter(early) == Counter(LATER | NOW - unfinished | new)
    if action == "kill":
        assert Journaled(killed, daemon.syncer, OPTIONS, {"t": ["c"]}).take_all("c") == Counter(unfinished)


@pytest.mark.parametrize("nth", [1, 5, 9])
def test_new_channel_in_the_past_gets_what_its_topic_hands_over_meanwhile(
    scattered: tuple[Journaled, list[Message]], monkeypatch: pytest.MonkeyPatch, nth: int
) -> None:
    daemon, _ = scattered

    def act() -> None:
        monkeypatch.undo()
        publish(daemon.topic, b"new0", b"new1")
        publish(daemon.topic, b"new2", deferred=MINUTE)

    with monkeypatch.context() as patch:
        steps = Steps(patch, nth, act)
        assert daemon.topic.create_channel("new", 0)
    assert steps.given >= nth
    publish(daemon.topic, b"new3")
    new = {b"new%d" % number for number in range(4)}
    assert channel(daemon, "new").deferred_count == 11
    assert channel(daemon, "new").message_count == 34
    assert daemon.after_kill().take_all("new") == Counter(LATER | NOW | new)
    assert daemon.take_all("new") == Counter(LATER | NOW | new)


def test_new_channel_in_the_past_may_be_there_by_now(
    scattered: tuple[Journaled, list[Message]], monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon, _ = scattered
    with monkeypatch.context() as patch:
        Steps(patch, 3, lambda: channel(daemon, "new"))
        assert not daemon.topic.create_channel("new", 0)
    assert daemon.take_all("new") == Counter()


@pytest.mark.parametrize("how", ["delete", "close"])
def test_channel_that_ends_while_a_rewind_looks_for_messages(
    scattered: tuple[Journaled, list[Message]], monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    daemon, in_flight = scattered
    queue = channel(daemon)
    with monkeypatch.context() as patch:
        Steps(patch, 3, queue.delete if how == "delete" else queue.close)
        with pytest.raises(BrokerError, match="exiting"):
            rewind(daemon)
    again = daemon.after_kill()
    left = {message.body for message in in_flight} if how == "close" else set()
    assert again.take_all("c") == Counter(left)


def test_rewinds_of_one_channel_follow_each_other(scattered: tuple[Journaled, list[Message]]) -> None:
    daemon, _ = scattered
    rewinds = [spawn(history(daemon).rewind, channel(daemon).queue, 0, EVERYTHING) for _ in range(3)]
    assert [greenlet.get() for greenlet in rewinds] == [20, 0, 0]
    assert channel(daemon).deferred_count == channel(daemon).depth == 10


@pytest.mark.parametrize("name", ["c", "new"])
def test_messages_are_not_lost_to_retention_while_a_rewind_looks_for_them(
    tmp_path: Path, syncer: Syncer, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    options = {"retention_bytes": 20_000, "max_bytes_per_file": 2000}
    monkeypatch.setattr(segments, "PIECE", 2)
    daemon = Journaled(tmp_path / "a", syncer, options)
    channel(daemon)
    publish(daemon.topic, *(b"%03d" % number * 20 for number in range(100)))
    consume(daemon)
    daemon.flush()

    def act() -> None:
        for _ in range(100):
            daemon.flush()
            daemon.topic.publish([bytes(3000)])

    with monkeypatch.context() as patch:
        Steps(patch, 1, act)
        if name == "new":
            assert daemon.topic.create_channel(name, 0)
        else:
            rewind(daemon)
    daemon.flush()
    assert len([message for message in consume(daemon, name) if any(message.body)]) == 100


def test_rewind_that_could_not_be_written_wakes_consumers_nevertheless(
    finished: Journaled, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = finished.consumers["c"]  # which waits for more
    consumer.woken = 0
    with monkeypatch.context() as patch:
        patch.setattr(AppendedFile, "write", lambda *_: (_ for _ in ()).throw(StorageError("full")))
        with pytest.raises(StorageError):
            rewind(finished)
    assert consumer.woken
    assert sorted(bodies_of(consume(finished.after_kill()))) == [b"0", b"1", b"2"]


def test_kill_leaves_a_channel_with_its_past_or_no_channel(
    finished: Journaled, tmp_path: Path, syncer: Syncer, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = AppendedFile.write
    writes: list[int] = []

    def killed_behind(file: AppendedFile, parts: list[bytes], position: int) -> int:
        size = write(file, parts, position)
        writes.append(len(writes))
        shutil.copytree(tmp_path / "a", tmp_path / f"b{len(writes)}")
        return size

    with monkeypatch.context() as patch:
        patch.setattr(AppendedFile, "write", killed_behind)
        finished.topic.create_channel("new", 0)
    assert writes
    for number in range(1, len(writes) + 1):
        again = Journaled(tmp_path / f"b{number}", syncer, OPTIONS, {"t": ["c"]})
        if "new" in again.topic.channels:
            assert sorted(bodies_of(consume(again, "new"))) == [b"0", b"1", b"2"]
        else:
            again.topic.create_channel("new", 0)


def test_channel_in_the_past_that_could_not_be_written_is_not_there(
    finished: Journaled, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(AppendedFile, "write", lambda *_: (_ for _ in ()).throw(StorageError("full")))
        with pytest.raises(StorageError):
            finished.topic.create_channel("new", 0)
        assert list(finished.topic.channels) == ["c"]
    assert list(finished.after_kill().topic.channels) == ["c"]
    finished.topic.create_channel("new", 0)
    for each in (finished, finished.after_kill()):
        assert sorted(bodies_of(consume(each, "new"))) == [b"0", b"1", b"2"]


def test_ordered_channel_keeps_the_order_of_publication_through_several_rewinds(daemon: Journaled) -> None:
    queue = channel(daemon)
    queue.set_rules(Rules(ordered=True))
    publish(daemon.topic, *(b"%d" % number for number in range(10)))
    ids = {message.body: message.id.decode() for message in consume(daemon)}
    middle = history(daemon).position(ids[b"5"])
    assert rewind(daemon, end=middle) == 5
    assert rewind(daemon, begin=middle) == 5
    assert [message.body for message in consume(daemon)] == [b"%d" % number for number in range(10)]


def test_restarts_do_not_prolong_the_life_of_messages(tmp_path: Path, syncer: Syncer) -> None:
    daemon = Journaled(tmp_path / "0", syncer, OPTIONS | {"retention_time": SECOND // 2})
    channel(daemon)
    publish(daemon.topic, b"old")
    consume(daemon)
    for _ in range(40):
        daemon.flush()
        journal_of(daemon).compactor.compact()
        if history(daemon).count == 0:
            return
        sleep(0.04)  # less than an eighth of the time
        daemon = daemon.after_kill()
    raise AssertionError("it is still retained")


def test_messages_too_old_when_a_rewind_begins_do_not_come_again(finished: Journaled) -> None:
    again = finished.after_kill(retention_time=1)
    assert history(again).count == 3, "the last segment is kept until another follows"
    assert rewind(again) == history(again).count == 0
    assert not consume(again)


def test_kill_of_a_daemon_that_retains_nothing_any_more_leaves_nothing_to_do(finished: Journaled) -> None:
    daemon = finished.after_kill(retention_time=1)
    journal_of(daemon).compactor.compact()
    assert history(daemon).count == 0
    again = daemon.after_kill()
    assert not journal_of(again).retention.expires, "it would be looked at once a second"
    again.registry.close()
    assert not list(again.directory.glob("*.journal.*"))


# Bytes, and ns.
RETENTIONS = [(0, 0), (1 << 30, 0), (40_000, 0), (1 << 30, MINUTE), (1 << 30, 1_000_000)]
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["publish", "defer"]), st.integers(1, 40)),
        st.tuples(st.sampled_from(["finish", "requeue", "cancel"]), st.integers(1, 60)),
        st.tuples(st.just("rewind"), st.integers(0, 100)),
        st.tuples(st.just("until"), st.integers(0, 100)),
        st.tuples(st.just("create"), st.integers(0, 100)),
        st.tuples(st.just("retain"), st.integers(0, len(RETENTIONS) - 1)),
        st.tuples(st.sampled_from(["flush", "kill", "compact"]), st.just(0)),
    ),
    max_size=25,
)


class SeenHistory(TopicHistory):
    """Notes the first message retained when a rewind looks: what it writes before may begin a segment, so that others
    go."""

    seen = 0

    def _done(self, queue: Queue, begin: int, end: int) -> Spans:
        self.seen = self.retention.begin
        return super()._done(queue, begin, end)


def run_model(daemon: Journaled, operations: list[tuple[str, int]]) -> Iterator[Journaled]:
    """Runs one daemon after the other; a body is the number of its message in the journal. What a daemon did not retain
    any more may come again after a kill: if a segment still has it, because of another message in it, the next daemon
    may have room for it. Otherwise that knows that it is absent."""
    unfinished: dict[str, set[int]] = {"c": set()}
    published = [0]  # no later than that (wall clock, ns), by number
    gone = 1  # messages from this one on were retained whenever a daemon was killed
    channel(daemon)
    for operation, amount in operations:
        end = journal_of(daemon).log.next_number
        point = end * amount // 100
        name = sorted(unfinished)[amount % len(unfinished)]
        if operation in ("publish", "defer"):
            delay = MINUTE if operation == "defer" else 0
            published += [time_ns()] * amount
            publish(daemon.topic, *(b"%0200d" % number for number in range(end, end + amount)), deferred=delay)
            for numbers in unfinished.values():
                numbers.update(range(end, end + amount))
        elif operation in ("finish", "requeue"):
            for message in daemon.take(name, amount):
                assert int(message.body) in unfinished[name]
                if operation == "finish":
                    channel(daemon, name).finish(daemon.consumer(name), message.id)
                    unfinished[name].remove(int(message.body))
                else:
                    channel(daemon, name).requeue(daemon.consumer(name), message.id, 0)
        elif operation == "cancel":
            queue, deferred = channel(daemon, name).queue, channel(daemon, name).deferred
            for due, message in deferred.look(0, amount, EVERYTHING):
                assert deferred.find(message.id) or deferred_of(queue).find_stored(message.number, 0)
                channel(daemon, name).cancel(due, message)
                unfinished[name].remove(int(message.body))
        elif operation in ("rewind", "until", "create"):
            daemon.flush()
            retention, topic, queue = journal_of(daemon).retention, daemon.topic, channel(daemon, name).queue
            absent = retention.absent.copy()
            assert absent.ceiling <= gone
            begin = seen = max(retention.begin, 1)
            start, stop = (point, end) if operation != "until" else (0, point)
            if operation == "create":
                name = f"c{len(unfinished)}"
                unfinished[name] = set()
                topic.create_channel(name, start)
                rewound = channel(daemon, name).depth + channel(daemon, name).deferred_count
            else:
                looking = SeenHistory(journal_of(daemon))
                rewound = looking.rewind(queue, start, stop)
                seen = max(looking.seen, 1)
                assert seen == begin or (retention.max_age and published[begin] < time_ns() - retention.max_age)
            since = {number for number in range(max(seen, start), stop) if number not in absent}
            assert rewound == len(since - unfinished[name])
            unfinished[name] |= since
        elif operation == "retain":
            journal = journal_of(daemon)
            least = journal.retention.begin if journal.retention.max_bytes else journal.log.next_number
            journal.retention.retain(*RETENTIONS[amount])
            assert least <= journal.retention.begin
            assert (journal.retention.max_bytes, journal.retention.max_age) == RETENTIONS[amount]
        elif operation == "flush":
            daemon.flush()
        elif operation == "compact":
            journal_of(daemon).compactor.compact()
        else:
            killed, daemon = daemon, daemon.after_kill()
            gone = max(gone, min(journal_of(killed).retention.begin, end))
            yield daemon
    for name, numbers in unfinished.items():
        assert Counter(int(body) for body in daemon.take_all(name).elements()) == Counter(numbers)


# What exceeded the bytes before a kill may be within them afterwards; what a rewind begins with may be too old by then.
ROOM = [("defer", 1), *[("publish", 40), ("finish", 60)] * 8, *[("compact", 0)] * 2, ("kill", 0), ("rewind", 0)]
TOO_OLD = [("defer", 1), ("cancel", 2), ("retain", 4), ("kill", 0), ("rewind", 0)]


@example(ROOM, 40_000, 2000, 1)
@example(TOO_OLD, 1 << 30, 2000, 1)
@given(OPERATIONS, st.sampled_from([1 << 30, 40_000]), st.sampled_from([2000, 1 << 20]), st.sampled_from([1, 10000]))
def test_nothing_is_lost_and_nothing_older_comes(
    operations: list[tuple[str, int]], bound: int, segment: int, memory: int
) -> None:
    with daemons_of({"retention_bytes": bound, "max_bytes_per_file": segment, "mem_queue_size": memory}) as daemons:
        daemons += run_model(daemons[0], operations)
