"""Reads and checks the journals of a data directory, which gnsqd writes with --durability."""

import io
import os
from collections.abc import Iterator
from dataclasses import dataclass, field

from gnsqd.errors import StorageError
from gnsqd.log import Level, Logger
from gnsqd.storage.journal.records import segment_name
from gnsqd.storage.journal.replay import Replay
from nsqadmin_cli.datadir.checking import Finding, Severity
from nsqadmin_cli.datadir.directory import DataDirectory, Journal
from nsqadmin_cli.datadir.records import Advance
from nsqadmin_cli.errors import AdminError
from nsqadmin_cli.text import plural

_BEHIND_ALL = 1 << 62  # numbers of messages


@dataclass
class JournalReport:
    """The state of a journal. `queues` has the number of messages of each queue in it; the topic's own queue has its
    name."""

    journal: Journal
    queues: dict[str, int] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    @property
    def messages(self) -> int:
        return sum(self.queues.values())

    @property
    def damaged(self) -> bool:
        return any(finding.severity is Severity.DAMAGE for finding in self.findings)


def count_messages(journal: Journal) -> dict[str, int]:
    """The number of messages of each queue in the journal; the topic's own queue has its name; AdminError.

    The newest segment lists all queues, so the others are read only if a kill truncated it; messages lost to damage
    count.
    """
    numbers = sorted(journal.numbers)
    replay = _replay(journal, numbers[-1:], complete=False)
    return _counts(journal, replay if replay.whole else _replay(journal, numbers))


def check_journals(
    found: DataDirectory, topic: str, channel: str, *, running: bool, advance: Advance
) -> list[JournalReport]:
    """Read the journals of that topic, or of all; with a `channel`, only messages of channels of that name."""
    reports = []
    for journal in found.select_journals(topic):
        replay = _replay(journal, sorted(journal.numbers), advance)
        report = JournalReport(journal, _counts(journal, replay))
        report.findings += _judge(report, replay, running)
        if channel:
            report.queues = {name: count for name, count in report.queues.items() if name.endswith(f":{channel}")}
        reports.append(report)
    return reports


def _replay(
    journal: Journal, numbers: list[int], advance: Advance = lambda size: None, *, complete: bool = True
) -> Replay:
    """The content of these segments, which are all if `complete`; AdminError."""
    replay = Replay(journal.topic, Logger("", Level.FATAL, io.StringIO()), mends=False)
    if not complete:
        replay.present.add(1, _BEHIND_ALL)  # or what other segments have would pass for lost
    try:
        replay.read([journal.path(number) for number in numbers], advance)
    except StorageError as error:
        raise AdminError(f"cannot read a journal: {error}") from error
    return replay


def _counts(journal: Journal, replay: Replay) -> dict[str, int]:
    handed_over = replay.queues[0].finished
    counts = {journal.topic: handed_over.gaps(0, replay.next_number).count()}
    for index, state in replay.queues.items():
        if index:
            counts[state.name] = handed_over.without(state.finished).count()
    return counts


def _judge(report: JournalReport, replay: Replay, running: bool) -> Iterator[Finding]:
    topic = report.journal.topic
    if not running:
        for damage in replay.damages:
            text = f"{damage.reason}: messages are lost, gnsqd continues behind it; finished ones may come again"
            name = os.path.basename(damage.path)
            yield Finding(Severity.DAMAGE, topic, name, damage.begin, text)
        if replay.lost:
            yield Finding(Severity.DAMAGE, topic, "", None, replay.describe_lost())
        if replay.torn is not None:
            name = os.path.basename(replay.torn.path)
            text = f"ends in {replay.torn.reason}; gnsqd truncates it"
            yield Finding(Severity.NOTE, topic, name, replay.torn.begin, text)
        name = segment_name(topic, max(report.journal.numbers))
        if replay.converting:
            text = "the disk queues of the topic are an unfinished copy of it, left by an exit; gnsqd drops them"
            yield Finding(Severity.NOTE, topic, name, None, text)
        if report.messages:
            text = f"holds {plural(report.messages, 'message')}, which gnsqd loads when it starts; nsqd does not"
            yield Finding(Severity.NOTE, topic, name, None, text)
