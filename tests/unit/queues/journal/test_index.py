"""The index at the end of a segment replaces reading it at a start: what a start finds is the same."""

import io
import os
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from gnsqd.log import Level, Logger
from gnsqd.shared.journal.records import CONTINUED, Encoder, JournalRecord, parse_first_line, read_records
from gnsqd.shared.journal.replay import Replay
from gnsqd.shared.journal.segment import Segment, read_index
from gnsqd.storage.syncer import Syncer
from unit.broker.fakes import MINUTE
from unit.queues.journal.test_backend import Journaled, channel
from unit.queues.journal.test_lost_messages import errors, journal_of
from unit.queues.journal.test_rewind import rewind

SMALL = {"max_bytes_per_file": 2000, "mem_queue_size": 3}


def lay_out(directory: Path, syncer: Syncer) -> list[Path]:
    """Segments with gaps and deferred messages, of which some were compacted."""
    daemon = Journaled(directory, syncer, SMALL)
    channel(daemon)
    for first in range(0, 200, 5):
        bodies = [b"message %d" % number for number in range(first, first + 5)]
        daemon.topic.publish(bodies, deferred=(first % 4) * MINUTE)
        daemon.topic.commit()
    for message in daemon.take("c")[::2]:
        channel(daemon).finish(daemon.consumer("c"), message.id)
    daemon.flush()
    journal = journal_of(daemon)
    while not journal.compactor.compact():
        pass
    daemon.kill()
    return sorted(directory.glob("t.journal.*"))


def found(paths: list[Path], *, checks: bool) -> dict[str, Any]:
    log = io.StringIO()
    replay = Replay("t", Logger("", Level.DEBUG, log), checks=checks)
    replay.read([str(path) for path in paths])
    return {
        "segments": [state_of(segment) for segment in replay.segments],
        "present": list(replay.present),
        "due": list(zip(replay.due_numbers, replay.due_times, strict=True)),
        "next": (replay.next_number, replay.next_queue),
        "queues": {index: (state.name, list(state.finished)) for index, state in replay.queues.items()},
        "lost": list(replay.lost),
    }


def state_of(segment: Segment) -> tuple[object, ...]:
    return (segment.path, segment.salt, segment.first, segment.end, segment.size, segment.count, segment.body_size)


def without_index(path: Path) -> None:
    """Leaves the index out, as gnsqd wrote files before there was one."""
    data = path.read_bytes()
    salt = parse_first_line(data)
    assert salt is not None
    *_, last = read_records("", data, salt)
    assert isinstance(last, JournalRecord)
    assert (last.type, last.end) == (CONTINUED, len(data))
    path.write_bytes(data[: last.begin] + Encoder(salt).record(CONTINUED))


def test_messages_of_a_copy_whose_sources_a_kill_left_count_once(tmp_path: Path, syncer: Syncer) -> None:
    daemon = Journaled(tmp_path / "a", syncer, SMALL)
    channel(daemon)
    for number in range(200):
        daemon.topic.publish([b"message %d" % number], deferred=0 if number % 8 else MINUTE)
        daemon.topic.commit()
    while batch := daemon.take("c"):
        for message in batch:
            channel(daemon).finish(daemon.consumer("c"), message.id)
    daemon.flush()
    shutil.copytree(daemon.directory, tmp_path / "b")
    journal = journal_of(daemon)
    before = {Path(segment.path).name for segment in journal.log.segments.all}
    while not journal.compactor.compact():
        pass
    daemon.kill()
    copies = {Path(segment.path).name for segment in journal.log.segments.all}
    assert copies < before
    for name in before - copies:
        shutil.copy(tmp_path / "b" / name, daemon.directory)
    paths = sorted(daemon.directory.glob("t.journal.*"))
    assert found(paths, checks=False) == found(paths, checks=True)
    again = Journaled(daemon.directory, syncer, SMALL)
    assert channel(again).deferred_count == 25
    assert again.take_all("c") == Counter(b"message %d" % number for number in range(0, 200, 8))


def test_what_is_also_in_a_later_segment_counts_there() -> None:
    segment = Segment("", 1, 1)
    segment.note_put(1, 200, 25, 0)
    segment.body_size = 20_000
    segment.cut(151)
    assert (segment.count, segment.body_size) == (150, 15_000)


@pytest.mark.parametrize("end", [250, 200, 150])
def test_gap_at_the_end_of_a_segment_has_no_messages(end: int) -> None:
    segment = Segment("", 1, 1)
    segment.note_put(1, 100, 25, 0)
    segment.note_put(200, 100, 5000, 0)
    segment.cut(end)
    _, present = Segment.indexed("", 0, 1, segment.index())
    assert list(present) == [(1, 101), (200, 250)][: 2 if end > 200 else 1]


@pytest.mark.parametrize("old", [(), (0,), (1, 3), (0, 1, 2)])
def test_start_finds_what_reading_everything_finds(tmp_path: Path, syncer: Syncer, old: tuple[int, ...]) -> None:
    paths = lay_out(tmp_path, syncer)
    assert len(paths) > 4
    whole = found(paths, checks=True)
    assert whole["due"]
    for position in old:
        without_index(paths[position])
    quick = found(paths, checks=False)
    if old:
        for result in (whole, quick):
            result["segments"] = [state[:4] + state[5:] for state in result["segments"]]
    assert quick == whole


def test_start_reads_the_last_segment_and_the_ends_of_others(tmp_path: Path, syncer: Syncer) -> None:
    paths = lay_out(tmp_path, syncer)
    expected = Journaled(shutil.copytree(tmp_path, tmp_path / "whole"), syncer, SMALL).take_all("c")
    damaged = bytearray(paths[1].read_bytes())
    middle = len(damaged) // 4
    damaged[middle : middle + 10] = bytes(10)
    paths[1].write_bytes(damaged)
    daemon = Journaled(tmp_path, syncer, SMALL)
    assert not errors(daemon)
    missing = expected - daemon.take_all("c")
    assert sum(missing.values()) > 0
    assert any("can't be read" in line and "lost" in line for line in errors(daemon)), "when they are needed"
    assert sum((Counter(missing)).values()) <= 32


@pytest.mark.parametrize("durability", ["process", "disk"])
@pytest.mark.parametrize("has_old", [False, True], ids=["none", "old"])
def test_missing_index_is_written(tmp_path: Path, syncer: Syncer, durability: str, has_old: bool) -> None:
    # A kill may come before it. Until it is there, a rewind nevertheless finds which messages are not due.
    options = SMALL | {"retention_bytes": 1 << 30, "durability": durability}
    daemon = Journaled(tmp_path / "a", syncer, options)
    channel(daemon)
    for _ in range(40):
        daemon.topic.publish([bytes(200)], deferred=MINUTE)
        daemon.topic.commit()
    daemon.kill()
    paths = sorted((tmp_path / "a").glob("t.journal.*"))
    whole = found(paths, checks=False)
    for path in paths[1:4]:
        without_index(path)
        if not has_old:
            os.truncate(path, path.stat().st_size - len(Encoder(0).record(CONTINUED)))
    again = Journaled(tmp_path / "a", syncer, options)
    channel(again).empty()
    assert rewind(again, begin=1) == 40
    assert channel(again).deferred_count == 40
    again.registry.close()
    assert all(read_index(str(path)) for path in paths[1:4])
    assert found(paths, checks=False)["due"] == whole["due"]
