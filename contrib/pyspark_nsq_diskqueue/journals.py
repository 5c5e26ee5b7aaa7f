"""Journals, which gnsqd has with `--durability` in place of disk queues: what is to be read of them, by segments.

A journal has each message once, for all channels, and what each of them has done with it. It is replayed as gnsqd does
at its start, from the newest segment and the indexes of older ones, so planning does not read messages.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterator
from typing import NamedTuple

from gnsqd.shared.directory import DataDirectory, StoredJournal, is_held, list_directory
from gnsqd.shared.disk_format import Gap
from gnsqd.shared.journal.replay import Replay
from gnsqd.shared.journal.spans import Spans
from pyspark_nsq.errors import OptionError


class JournalQueue(NamedTuple):
    """The messages in a segment that a queue has, by number, with the attempts and due times (ns) of some."""

    name: str
    numbers: Spans
    attempts: dict[int, int]
    due: dict[int, int]


class SegmentPlan(NamedTuple):
    """The part of a segment that is to be read, up to `end`; some `gaps` are known already."""

    path: str
    end: int
    queues: tuple[JournalQueue, ...]
    gaps: tuple[Gap, ...]


def replay_journals(found: DataDirectory, topics: Collection[str]) -> dict[str, Replay] | None:
    """Replays journals, by topic; None if a daemon has added or deleted segments meanwhile. Raises StorageError if one
    cannot be read."""
    journals = {name: journal for name, journal in found.journals.items() if not topics or name in topics}
    replays = {name: _replay(journal) for name, journal in journals.items()}
    files = _files(found)
    return replays if not files or _files(list_directory(found.path)) == files else None


def _files(found: DataDirectory) -> dict[str, set[int]]:
    return {name: set(journal.numbers) for name, journal in found.journals.items()}


def _replay(journal: StoredJournal) -> Replay:
    replay = Replay(journal.topic)
    replay.read([journal.path(number) for number in sorted(journal.numbers)])
    return replay


def plan_journal(
    journal: StoredJournal, replay: Replay, everything: bool, channels: Collection[str]
) -> Iterator[SegmentPlan]:
    """Plans what the queues of these channels, or all, have unread; `everything`: each message once. Raises OptionError
    if both are given."""
    if everything and channels:
        raise OptionError(
            f"{journal.directory} has a journal of {journal.topic}, where a message is once for all channels: "
            "the options channel and messages = 'all' exclude each other"
        )
    gaps = defaultdict[str, list[Gap]](list)
    for gap in replay.damages:
        gaps[gap.path].append(gap)
    if replay.lost:
        newest = journal.path(max(journal.numbers))
        gaps[newest].append(Gap(newest, 0, 0, replay.describe_lost()))
    if everything:
        queues = [(replay.queues[0], replay.present)]
    else:
        unread = [(state, numbers) for _, state, numbers in replay.unread()]
        queues = [each for each in unread if not channels or each[0].name.partition(":")[2] in channels]
    details = []
    for state, numbers in queues:
        due_times = sorted(zip(*replay.due_of(state, numbers), strict=True))
        details.append((sorted(state.attempts.items()), due_times))
    for segment in replay.segments:
        parts = []
        for (state, all_numbers), known in zip(queues, details, strict=True):
            if numbers := all_numbers.between(segment.first, segment.end):
                attempts, due = (_within(pairs, segment.first, segment.end) for pairs in known)
                parts.append(JournalQueue(state.name, numbers, attempts, due))
        found = gaps.pop(segment.path, [])
        if parts or found:
            yield SegmentPlan(segment.path, segment.size, tuple(parts), tuple(found))
    for path, found in gaps.items():
        yield SegmentPlan(path, 0, (), tuple(found))


def _within(pairs: list[tuple[int, int]], first: int, end: int) -> dict[int, int]:
    return dict(pairs[bisect_left(pairs, (first,)) : bisect_left(pairs, (end,))])


def were_finished(directory: str, topic: str, numbers: Spans) -> bool:
    """True if a running gnsqd has dropped these messages, and not moved them: no segment has any."""
    journal = list_directory(directory).journals.get(topic)
    if journal is None or not is_held(directory):
        return False
    replay = _replay(journal)
    return not replay.converting and numbers.without(replay.present).count() == numbers.count()
