"""Compaction of journals: what it costs, when it comes, and what it keeps until the disk has the copy."""

import errno
import io
import os
import shutil
import stat
from itertools import count
from pathlib import Path
from random import Random

import gevent
import pytest

from gnsqd.hub import cooperative
from gnsqd.queues.journal import compactor, journals
from gnsqd.queues.journal.compactor import PIECE
from gnsqd.shared.disk_format import Gap
from gnsqd.shared.journal.records import MAX_MESSAGES, PUT, decode_put, parse_first_line, read_records
from gnsqd.shared.journal.spans import Spans
from kit.observers import opened
from unit.queues.journal.topics import BODY, SEGMENT
from unit.storage.conftest import OpenTopic
from unit.storage.greenlets import eventually


def test_copy_has_small_records_and_its_sources_are_open_one_by_one(
    open_topic: OpenTopic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = open_topic()
    topic.put(12_000)
    topic.finish(*((start, start + 700) for start in range(1, 12_000, 1000)))
    topic.journal.flush()
    counts = []
    pwritev = os.pwritev

    def write(descriptor: int, parts: list[bytes], offset: int) -> int:
        counts.append(opened(tmp_path))
        return pwritev(descriptor, parts, offset)

    monkeypatch.setattr(os, "pwritev", write)
    topic.journal.compactor.compact()
    assert max(counts) == 3  # a source, the copy, and the segment that is written
    for path in tmp_path.iterdir():
        data = path.read_bytes()
        for record in read_records("", data, parse_first_line(data)):
            assert not isinstance(record, Gap)
            assert record.type != PUT or decode_put(data[record.start : record.end])[1] <= MAX_MESSAGES


def test_flushes_that_wait_for_an_fsync_are_remembered_by_segment(open_topic: OpenTopic) -> None:
    topic = open_topic(durable=True)
    for _ in range(4):
        topic.put(SEGMENT // BODY)
        topic.journal.commit()
    for number in range(1, 1001):
        topic.finish((number, number + 1))
        topic.journal.flush()
    assert len(topic.journal.compactor._floors) <= len(topic.journal.log.segments.all)


@pytest.mark.parametrize("durable", [False, True], ids=["process", "disk"])
def test_full_disk_gets_room_by_what_is_finished_and_goes_on(
    open_topic: OpenTopic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durable: bool
) -> None:
    topic = open_topic(1, durable=durable)
    topic.put(5000)
    topic.journal.commit()
    topic.finish((1, 3000))
    before = topic.size()
    pwritev = os.pwritev

    def write(descriptor: int, parts: list[bytes], offset: int) -> int:
        if topic.size() >= before:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return pwritev(descriptor, parts, offset)

    monkeypatch.setattr(os, "pwritev", write)
    topic.journal.flush()
    assert topic.size() < before - SEGMENT
    again = open_topic(1, directory=shutil.copytree(tmp_path, tmp_path / "killed"))
    assert not again.journal.replay.lost
    assert again.has(3000)


@pytest.mark.parametrize(("channels", "messages"), [(2, 20_000), (30, 9_000)])
def test_scattered_messages_are_compacted_in_small_steps_and_at_a_cost_in_proportion(
    channels: int, messages: int, open_topic: OpenTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = open_topic(channels)
    numbers = topic.put(messages)
    needed = set()
    for seed, channel in enumerate(topic.channels):
        held = set(Random(seed).sample(numbers, messages // (5 * channels)))
        needed |= held
        for number in set(numbers) - held:
            channel.note_finished_span(number, number + 1)
    topic.journal.flush()
    steps = [0]  # changes of spans, and reads, in each turn
    read = 0
    add, pread = Spans.add, os.pread

    def counting_add(spans: Spans, start: int, end: int) -> None:
        steps[-1] += 1
        add(spans, start, end)

    def counting_pread(descriptor: int, size: int, offset: int) -> bytes:
        nonlocal read
        data = pread(descriptor, size, offset)
        steps[-1] += 1
        read += len(data)
        return data

    seconds = count()
    monkeypatch.setattr(cooperative, "perf_counter", lambda: next(seconds))  # so each chance to give a turn is taken
    monkeypatch.setattr(cooperative, "yield_turn", lambda: steps.append(0))
    monkeypatch.setattr(Spans, "add", counting_add)
    monkeypatch.setattr(os, "pread", counting_pread)
    size = topic.size()
    assert topic.journal.compactor.compact()
    monkeypatch.undo()
    assert topic.size() < 0.7 * size
    assert max(steps) < 2 * PIECE + 4 * channels
    assert sum(steps) < 20 * messages
    assert read < 1.5 * size
    assert all(topic.has(number) for number in needed)


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EROFS])
def test_old_segments_stay_until_the_directory_is_synced(
    code: int, open_topic: OpenTopic, log_stream: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = open_topic(durable=True)
    kept = topic.put_and_keep_few()
    topic.journal.commit()
    before = topic.names()
    fail_to_sync_directories(monkeypatch, code)
    monkeypatch.setattr(compactor, "RETRY_SECONDS", 0)
    assert not topic.journal.compactor.compact()
    assert before <= topic.names()
    assert f"failed to compact - sync {topic.directory}: {os.strerror(code).lower()}" in log_stream.getvalue()
    assert not topic.journal.compactor.compact()
    assert before <= topic.names()
    assert all(topic.has(number) for number in kept)
    monkeypatch.undo()
    assert topic.journal.compactor.compact()
    assert topic.size() <= 4 * SEGMENT
    assert all(topic.has(number) for number in kept)


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOTSUP, errno.ENOSYS])
def test_a_file_system_that_cannot_sync_directories_hinders_nothing(
    code: int, open_topic: OpenTopic, log_stream: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = open_topic(durable=True)
    fail_to_sync_directories(monkeypatch, code)
    topic.put_and_keep_few()
    assert topic.journal.compactor.compact()
    assert topic.size() <= 4 * SEGMENT
    assert "ERROR" not in log_stream.getvalue()


def fail_to_sync_directories(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    fsync = os.fsync

    def fail(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(code, os.strerror(code))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fail)


@pytest.mark.parametrize("durable", [False, True])
def test_journal_comes_within_its_bound_when_nothing_follows_a_burst_or_a_start(
    open_topic: OpenTopic, durable: bool
) -> None:
    topic = open_topic()
    for goes_on in (False, True, True):  # the first is killed, and the last burst comes soon after a compaction
        numbers = topic.put(10_000)
        topic.finish((2, numbers.stop))
        assert topic.size() > 6 * SEGMENT
        if not goes_on:
            topic.journal.flush()
            topic = open_topic(durable=durable)
            topic.start()
        eventually(lambda topic=topic: topic.size() <= 4 * SEGMENT)  # type: ignore[misc]
    assert topic.has(1)


def test_journal_stays_near_its_bound_during_a_burst(open_topic: OpenTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journals, "COMPACTION_SECONDS", 0.01)
    topic = open_topic()
    topic.start()
    largest = 0
    for _ in range(600):
        numbers = topic.put(500)
        topic.finish((max(2, numbers[0]), numbers.stop))
        gevent.sleep(0.001)
        largest = max(largest, topic.size())
    written = 600 * 500 * BODY
    assert written > 200 * SEGMENT
    assert largest < 40 * SEGMENT
    assert topic.has(1)


def test_what_nobody_needs_goes_though_a_full_disk_has_no_room_for_copies(
    open_topic: OpenTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = open_topic()
    kept = topic.put(5_000)[::50]
    dead = topic.put(6_000)
    topic.finish(*((number + 1, number + 50) for number in kept), (dead.start, dead.stop))
    topic.put(1_000)
    open_file = os.open

    def open_without_room(path: str, flags: int, mode: int = 0o777) -> int:
        if path.endswith(".tmp"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return open_file(path, flags, mode)

    monkeypatch.setattr(os, "open", open_without_room)
    before = topic.size()
    assert not topic.journal.compactor.compact()
    assert before - topic.size() > 4 * SEGMENT
    assert all(topic.has(number) for number in kept)
