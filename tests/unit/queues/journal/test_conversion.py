"""A conversion of journals to disk queues that is killed, again and again, has every message once in the end."""

import io
import shutil
from collections import Counter
from collections.abc import Container
from itertools import count
from pathlib import Path
from random import Random

import pytest

from gnsqd.log import Level, Logger
from gnsqd.queues.data_path import convert
from gnsqd.shared.directory import list_directory
from gnsqd.shared.disk_format import StoredRecord, decode_record
from gnsqd.storage.metadata import FILE_NAME, ChannelMetadata, TopicMetadata, save
from gnsqd.storage.syncer import Syncer
from nsqadmin_cli.datadir.checking import Checker
from nsqadmin_cli.datadir.records import read_queue
from unit.broker.fakes import settle
from unit.queues.journal.test_backend import Journaled
from unit.queues.journal.test_store import OLD, TOPICS, before_each_change, cheap, disk_queues

__all__ = ["cheap", "disk_queues"]


def run_convert(directory: Path) -> None:
    convert(str(directory), Logger("", Level.ERROR, io.StringIO()))


def kill(directory: Path, monkeypatch: pytest.MonkeyPatch, which: Container[int]) -> list[Path]:
    """Converts the directory; returns its states before some changes, as a kill leaves them."""
    states: list[Path] = []
    changes = count()

    def copy() -> None:
        if (change := next(changes)) in which:
            states.append(shutil.copytree(directory, Path(f"{directory}-{change}")))

    with monkeypatch.context() as patch:
        patch.setattr("gnsqd.queues.data_path.CONVERTED_AT_ONCE", 1)
        before_each_change(patch, copy)
        run_convert(directory)
    return states


def damages(directory: Path) -> list[str]:
    """Returns the findings of `data verify`."""
    checker = Checker(list_directory(str(directory)), False, 1 << 20, lambda size: None)
    found = list(checker.check_directory())
    for queue in checker._directory.queues.values():
        found += checker.check(queue).problems
    return [f"{each.file}: {each.text}" for each in found if each.is_damage]


def left_in(directory: Path) -> dict[str, Counter[bytes]]:
    """Returns the bodies in each disk queue; journals are gone."""
    found = list_directory(str(directory))
    assert not found.journals
    assert found.listed is not None
    assert not any(entry.paused for entry in found.listed.values())
    left = {}
    for queue in found.queues.values():
        assert queue.name in found.listed
        report = Checker(found, False, 1 << 20, lambda size: None).check(queue)
        records = [item for _, item in read_queue(queue, report.plan, 1 << 20) if isinstance(item, StoredRecord)]
        left[queue.name] = Counter(decode_record(record.payload)[3] for record in records)
    return left


@pytest.fixture
def moved(disk_queues: Path, syncer: Syncer) -> Path:
    """Journals, with a topic and a channel that only these know."""
    daemon = Journaled(disk_queues, syncer, {"max_bytes_per_file": 400}, TOPICS)
    settle()
    daemon.kill()
    save(str(disk_queues / FILE_NAME), [TopicMetadata("t", False, [ChannelMetadata("c")])])
    return disk_queues


@pytest.fixture
def half_moved(disk_queues: Path, tmp_path: Path, syncer: Syncer, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Journals and disk queues, with messages that are in both."""
    channels = [ChannelMetadata(name) for name in TOPICS["t"]]
    save(str(disk_queues / FILE_NAME), [TopicMetadata("t", False, channels), TopicMetadata("alone")])
    states: list[Path] = []
    with monkeypatch.context() as patch:
        before_each_change(patch, lambda: states.append(shutil.copytree(disk_queues, tmp_path / f"m{len(states)}")))
        Journaled(disk_queues, syncer, {}, TOPICS)
    writes = [state for state in states if list(state.glob("t:c.diskqueue.meta.*.tmp"))]
    return writes[1]


@pytest.mark.parametrize("start", ["moved", "half_moved"])
def test_it_is_resumed_exactly_once(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: str
) -> None:
    # In between, `data verify` finds no damage.
    expected = {"t": Counter[bytes](), "t:c": OLD, "t:d": OLD, "alone": OLD}
    source: Path = request.getfixturevalue(start)
    random = Random(1)
    for state in kill(source, monkeypatch, range(1000)):
        assert damages(state) == []
        for again in kill(state, monkeypatch, [random.randrange(20)]):
            assert damages(again) == []
            run_convert(again)
            assert left_in(again) == expected
        assert left_in(state) == expected
    assert left_in(source) == expected


def test_progress_of_moves_is_logged(disk_queues: Path, syncer: Syncer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gnsqd.queues.journal.store.PROGRESS_SECONDS", 0)
    daemon = Journaled(disk_queues, syncer, {}, TOPICS)
    settle()
    daemon.kill()
    assert "JOURNAL(t:c): 2 messages moved from the disk queue" in daemon.around.log.getvalue()
    log = io.StringIO()
    convert(str(disk_queues), Logger("", Level.INFO, log))
    assert f"JOURNAL(t:c): {OLD.total()} messages moved to the disk queue" in log.getvalue()
