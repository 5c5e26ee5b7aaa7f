"""The costs of damage to a journal, and their report: a missing segment, a bit that flipped. Nothing is reported
falsely."""

import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from gnsqd.queues.journal.backend import backend_of
from gnsqd.queues.journal.journal import Journal
from gnsqd.queues.journal.segments import Segments
from gnsqd.queues.message import Message
from gnsqd.shared.directory import list_directory
from gnsqd.shared.journal.records import MAX_MESSAGES
from gnsqd.shared.journal.segment import Segment
from gnsqd.storage.syncer import Syncer
from nsqadmin_cli.datadir.checking import Checker
from unit.queues.journal.test_backend import Journaled, channel

GOLDEN = Path(__file__).parents[3] / "golden" / "journal"  # an older gnsqd wrote it, with a record for each publish
SMALL = {"max_bytes_per_file": 2000}


def lay_out(directory: Path, syncer: Syncer) -> list[Path]:
    """Returns the segments that a killed daemon leaves. Channel `c` is done with a third of its messages, `d` with
    none."""
    daemon = Journaled(directory, syncer, SMALL)
    channel(daemon)
    channel(daemon, "d")
    for first in range(0, 200, 5):
        daemon.topic.publish([b"message %d" % number for number in range(first, first + 5)])
        daemon.topic.commit()
    for message in [message for message in daemon.take("c") if message.number % 3 == 0]:
        channel(daemon).finish(daemon.consumer("c"), message.id)
    daemon.kill()
    return sorted(directory.glob("t.journal.*"))


def journal_of(daemon: Journaled) -> Journal:
    return backend_of(daemon.topic.queue).journal


def errors(daemon: Journaled) -> list[str]:
    return [line for line in daemon.around.log.getvalue().split("\n") if " ERROR: " in line]


def damage_found(directory: Path) -> list[str]:
    """Returns the findings of `data verify`."""
    data_dir = list_directory(str(directory))
    (journal,) = data_dir.journals.values()
    report = Checker(data_dir, False, 1 << 20, lambda size: None).check_journal(journal, "")
    return [problem.text for problem in report.problems if problem.is_damage]


def reported(texts: Sequence[str]) -> int:
    """Returns how many messages the only text about them reports as lost."""
    (found,) = [match for text in texts if (match := re.search(r"(\d+) messages? (is|are) lost, no segment", text))]
    return int(found[1])


@pytest.mark.parametrize("position", [0, 1, 2])
def test_messages_of_a_missing_segment_are_reported(tmp_path: Path, syncer: Syncer, position: int) -> None:
    paths = lay_out(tmp_path / "a", syncer)
    assert len(paths) > 4
    whole = Journaled(shutil.copytree(tmp_path / "a", tmp_path / "b"), syncer, SMALL)
    assert not errors(whole)
    assert not damage_found(tmp_path / "a")
    paths[position].unlink()
    found = damage_found(tmp_path / "a")
    daemon = Journaled(tmp_path / "a", syncer, SMALL)
    lost = whole.take_all("d") - daemon.take_all("d")
    assert lost
    assert reported(found) == reported(errors(daemon)) == lost.total()
    numbers = sorted(int(body.split()[1]) + 1 for body in lost)
    assert errors(daemon)[0].endswith(f": numbers {numbers[0]}-{numbers[-1]}")
    daemon.flush()
    again = daemon.after_kill(tmp_path / "again")
    assert not errors(again), "once"


@pytest.mark.parametrize("positions", [(0, 1), (1, 3)])
def test_messages_of_exchanged_segments_are_reported(
    tmp_path: Path, syncer: Syncer, positions: tuple[int, int]
) -> None:
    # A start counts messages where it meets them last, and none behind these in the segments before.
    paths = lay_out(tmp_path / "a", syncer)
    whole = Journaled(shutil.copytree(tmp_path / "a", tmp_path / "b"), syncer, SMALL).take_all("d")
    first, second = (paths[position] for position in positions)
    first.rename(first.with_suffix(".tmp"))
    second.rename(first)
    first.with_suffix(".tmp").rename(second)
    found = damage_found(tmp_path / "a")
    daemon = Journaled(tmp_path / "a", syncer, SMALL)
    lost = whole - daemon.take_all("d")
    assert reported(found) == reported(errors(daemon)) == lost.total() > 0


def test_missing_newest_segments_are_reported(tmp_path: Path, syncer: Syncer) -> None:
    paths = lay_out(tmp_path / "a", syncer)
    while len(paths) > 1:
        paths.pop().unlink()
        left = shutil.copytree(tmp_path / "a", tmp_path / f"{len(paths)}")
        (text,) = damage_found(left)
        daemon = Journaled(left, syncer, SMALL)
        count = daemon.take_all("d").total()
        expected = f"the segment that follows is missing, with all messages from number {count + 1} on"
        assert text.startswith(expected)
        (error,) = errors(daemon)
        assert error.endswith(expected)
        assert paths[-1].name in error


def test_missing_segment_after_a_restart_is_reported(tmp_path: Path, syncer: Syncer) -> None:
    # The segment of a daemon that was killed says that another follows once the next daemon has begun it.
    for name in (b"first", b"second"):
        daemon = Journaled(tmp_path, syncer, {})
        channel(daemon)
        daemon.topic.publish([name])
        daemon.kill()
    first, second = sorted(tmp_path.glob("t.journal.*"))
    second.unlink()
    assert "missing" in damage_found(tmp_path)[0]
    assert first.name in errors(Journaled(tmp_path, syncer, {}))[0]


@pytest.mark.parametrize("durability", ["process", "disk"])
def test_segments_that_nobody_needs_any_more_are_not_missing(
    tmp_path: Path, syncer: Syncer, durability: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Behind any deletion may come a kill, or with `disk` a loss of power, which leaves what was synced.
    source = tmp_path / "a"
    options = SMALL | {"durability": durability}
    synced: dict[int, int] = {}  # size by inode
    copies: list[Path] = []
    delete = Segments.delete

    def note_synced(descriptor: int) -> None:
        status = os.fstat(descriptor)
        synced[status.st_ino] = status.st_size

    def delete_and_copy(self: Segments, segments: Sequence[Segment], at_once: bool = False) -> None:
        delete(self, segments, at_once)
        if segments:
            copy = tmp_path / f"copy{len(copies)}"
            copies.append(Path(shutil.copytree(source, copy)))
            for path in source.iterdir() if durability == "disk" else []:
                os.truncate(copy / path.name, synced.get(path.stat().st_ino, 0))

    monkeypatch.setattr(os, "fsync", note_synced)
    monkeypatch.setattr(os, "fdatasync", note_synced)
    with monkeypatch.context() as patch:
        patch.setattr(Segments, "delete", delete_and_copy)
        daemon = Journaled(source, syncer, options)
        channel(daemon)
        late: list[Message] = []
        for first in range(0, 400, 5):
            daemon.topic.publish([b"message %d" % number for number in range(first, first + 5)])
            daemon.topic.commit()
            for message in daemon.take("c"):
                if first < 200 or message.number % 10 == 0:
                    late.append(message)
                else:
                    channel(daemon).finish(daemon.consumer("c"), message.id)
            if first < 200 or first % 50 == 0:
                # Those of this time are finished a segment later, or, from number 210 on, just before a compaction.
                count = max(len(late) - 5, 0) if first < 200 else len(late)
                for message in late[:count]:
                    if message.number != 210:  # from there on only compaction deletes
                        channel(daemon).finish(daemon.consumer("c"), message.id)
                del late[:count]
            if first < 200 or first % 50:
                journal_of(daemon).flush()
            else:
                journal_of(daemon).compactor.compact()
        daemon.kill()
    assert len(copies) > 3
    for copy in copies:
        assert not errors(Journaled(copy, syncer, options)), copy


@pytest.mark.parametrize("place", ["first", "middle", "last"])
def test_flipped_bit_costs_a_small_group_of_messages(tmp_path: Path, syncer: Syncer, place: str) -> None:
    daemon = Journaled(tmp_path / "a", syncer, {})
    channel(daemon)
    daemon.flush()
    bodies = [b"message %d." % number for number in range(2000)]
    daemon.topic.publish(bodies)
    journal_of(daemon).flush()  # nothing behind them says what their numbers were
    (path,) = (tmp_path / "a").glob("t.journal.*")
    data = bytearray(path.read_bytes())
    left = tmp_path / "left"
    left.mkdir()
    data[data.index(bodies[{"first": 0, "middle": 1000, "last": 1999}[place]])] ^= 0x10
    (left / path.name).write_bytes(data)
    found = damage_found(left)
    again = Journaled(left, syncer, {})
    lost = Counter(bodies) - again.take_all("c")
    assert 0 < lost.total() <= MAX_MESSAGES
    assert reported(found) == reported(errors(again)) == lost.total()
    daemon.kill()


def test_records_have_few_messages_or_one_that_is_large(tmp_path: Path, syncer: Syncer) -> None:
    large = b"x" * 100_000
    daemon = Journaled(tmp_path, syncer, {})
    channel(daemon)
    daemon.topic.publish([b"small"] * 100)
    daemon.topic.publish([large] * 3)
    daemon.topic.publish([b"held"] * 100, deferred=10**12)
    for _ in range(100):
        daemon.topic.publish([b"alone"])
    daemon.kill()
    (path,) = tmp_path.glob("t.journal.*")
    data = path.read_bytes()
    for body, most in (
        (b"small", MAX_MESSAGES),
        (b"x" * 100_000, 1),
        (b"held", MAX_MESSAGES),
        (b"alone", MAX_MESSAGES),
    ):
        counts = [record.count(body) for record in data.split(data[25:29]) if body in record]
        assert sum(counts) == (3 if most == 1 else 100)
        assert max(counts) <= most


def test_journal_of_an_older_gnsqd_is_read(tmp_path: Path, syncer: Syncer) -> None:
    expected = json.loads((GOLDEN / "expected.json").read_text())
    data = shutil.copytree(GOLDEN, tmp_path / "a")
    daemon = Journaled(data, syncer, {})
    assert not errors(daemon)
    for name, bodies in expected.items():
        assert sorted(body.decode() for body in daemon.take_all(name).elements()) == bodies
    again = daemon.after_kill(tmp_path / "b")
    assert not errors(again)
    assert sorted(body.decode() for body in again.take_all("d").elements()) == expected["d"]


def test_missing_segment_of_an_older_gnsqd_is_reported(tmp_path: Path, syncer: Syncer) -> None:
    data = shutil.copytree(GOLDEN, tmp_path / "a")
    assert not damage_found(data)
    (data / "t.journal.000001.dat").unlink()
    found = damage_found(data)
    assert reported(found) == reported(errors(Journaled(data, syncer, {}))) == 300
