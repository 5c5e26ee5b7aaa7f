"""Journals together have a bounded number of files open, whatever is written and read."""

import errno
import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gnsqd.log import Level, Logger
from gnsqd.queues.journal import segments
from gnsqd.queues.journal.journal import Journal
from gnsqd.queues.journal.journals import Journals
from gnsqd.storage.syncer import Callback, Syncer
from kit.observers import opened
from unit.queues.journal.topics import frame, journal_options, notes, read_all

LIMIT = 3
COUNT = 12
Make = Callable[..., list[Journal]]


@pytest.fixture
def journals(
    tmp_path: Path, syncer: Syncer, log_stream: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Make]:
    """Yields COUNT journals of topics that share files to open."""
    made: list[Journal] = []
    monkeypatch.setattr(segments, "MOST", LIMIT)

    def make(durable: bool = False) -> list[Journal]:
        options, log = journal_options(tmp_path, 1 << 20, durable), Logger("", Level.DEBUG, log_stream)
        together = Journals(options, os.listdir(tmp_path), log, syncer, lambda error: None)
        new = [together.open(f"t{number}") for number in range(COUNT)]
        for journal in new:
            queue = notes(journal.topic, journal, log)
            queue.finished = journal.replay.queues[0].finished
            journal.states.add(queue, 0)
        made.extend(new)
        return new

    yield make
    for journal in made:
        journal.close()


@pytest.mark.parametrize("durable", [False, True], ids=["process", "disk"])
def test_idle_journals_have_no_file_open_and_go_on_where_they_stopped(
    journals: Make, tmp_path: Path, durable: bool
) -> None:
    made = journals(durable)
    for number in range(3):
        for journal in made:
            journal.log.append([frame(number + 1)])
            journal.commit()
            assert opened(tmp_path) <= LIMIT
    for journal in made:
        assert len(read_all(journal)) == 3
        assert opened(tmp_path) <= LIMIT
    assert len(list(tmp_path.iterdir())) == COUNT, "a file that was closed was not gone on with"
    for journal in made:
        journal.close()
    assert opened(tmp_path) == 0
    assert [list(read_all(journal).values()) for journal in journals()] == [[frame(1), frame(2), frame(3)]] * COUNT


def test_file_with_messages_to_be_synced_stays_open(journals: Make, tmp_path: Path) -> None:
    made = journals(durable=True)
    for journal in made:
        journal.log.append([frame(1)])
        journal.flush()
    assert opened(tmp_path) == COUNT
    for journal in made:
        journal.commit()
    assert opened(tmp_path) == LIMIT


def test_file_is_not_closed_while_an_fsync_of_it_goes_on(
    journals: Make, syncer: Syncer, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, *others = journals(durable=True)
    first.log.append([frame(1)])
    first.commit()
    synced = []

    def sync_files_late(report: Callback, work: Callable[..., None], descriptors: list[int], *_: object) -> None:
        before = [os.readlink(f"/proc/self/fd/{descriptor}") for descriptor in descriptors]
        first.states.reset(first.states.queues[0])
        first.flush()  # of notes, which nobody waits for
        for journal in others[: LIMIT + 1]:
            journal.states.reset(journal.states.queues[0])
            journal.flush()
        synced.append(before == [os.readlink(f"/proc/self/fd/{descriptor}") for descriptor in descriptors])
        report((None, None))

    first.states.reset(first.states.queues[0])
    with monkeypatch.context() as patch:
        patch.setattr(syncer, "start", sync_files_late)
        first.commit()
    assert synced == [True]


def test_journals_give_way_to_each_other_where_the_process_may_open_no_more(
    journals: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = journals()
    open_file = os.open

    def refusing(path: str, flags: int, mode: int = 0o777) -> int:
        if opened(tmp_path) >= 2:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return open_file(path, flags, mode)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refusing)
        for journal in [*made, *made]:
            journal.log.append([frame(journal.log.next_number)])
            journal.flush()
            assert read_all(journal)[1] == frame(1)
    assert opened(tmp_path) <= 2


def test_file_that_cannot_be_opened_again_is_followed_by_another(journals: Make, tmp_path: Path) -> None:
    made = journals()
    for journal in made:
        journal.log.append([frame(1)])
        journal.flush()
    (tmp_path / "t0.journal.000000.dat").unlink()
    made[0].log.append([frame(2)])
    made[0].flush()
    assert list(read_all(journals()[0]).values()) == [frame(2)]
