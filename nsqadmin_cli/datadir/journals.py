"""The journals of a data directory, which gnsqd has with --durability: what they hold, and what of it can be read."""

import io
import os
from collections.abc import Iterator
from dataclasses import dataclass, field

from gnsqd.errors import StorageError
from gnsqd.log import Level, Logger
from gnsqd.storage.journal_records import segment_name
from gnsqd.storage.journal_replay import Replay
from nsqadmin_cli.datadir.checking import Finding, Severity
from nsqadmin_cli.datadir.directory import DataDirectory, Journal
from nsqadmin_cli.datadir.records import Advance
from nsqadmin_cli.errors import AdminError
from nsqadmin_cli.text import plural


@dataclass
class JournalReport:
    """How a journal is. `queues` says how many messages each queue has in it, that of the topic by its own name."""

    journal: Journal
    queues: dict[str, int] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    @property
    def messages(self) -> int:
        return sum(self.queues.values())

    @property
    def damaged(self) -> bool:
        return any(finding.severity is Severity.DAMAGE for finding in self.findings)


def check_journals(
    found: DataDirectory, topic: str, channel: str, *, running: bool, advance: Advance
) -> list[JournalReport]:
    """Read the journals of that topic, or of all; with a `channel`, what they have of channels of that name."""
    reports = []
    for journal in found.select_journals(topic):
        report = _check(journal, running, advance)
        if channel:
            report.queues = {name: count for name, count in report.queues.items() if name.endswith(f":{channel}")}
        reports.append(report)
    return reports


def _check(journal: Journal, running: bool, advance: Advance) -> JournalReport:
    replay = Replay(journal.topic, Logger("", Level.FATAL, io.StringIO()), mends=False)
    try:
        replay.read([(number, journal.path(number)) for number in sorted(journal.numbers)], advance)
    except StorageError as error:
        raise AdminError(f"cannot read a journal: {error}") from error
    report = JournalReport(journal)
    topic = replay.queues[0]
    report.queues[journal.topic] = replay.present.without(topic.finished).count()
    for index, state in replay.queues.items():
        if index:
            report.queues[state.name] = topic.finished.without(state.finished).count()
    report.findings += _judge(report, replay, running)
    return report


def _judge(report: JournalReport, replay: Replay, running: bool) -> Iterator[Finding]:
    topic = report.journal.topic
    if not running:
        for damage in replay.damages:
            text = f"{damage.reason}: messages there are lost, gnsqd goes on behind it; finished ones may come again"
            name = os.path.basename(damage.path)
            yield Finding(Severity.DAMAGE, topic, name, damage.begin, text)
        if replay.torn is not None:
            name = os.path.basename(replay.torn.path)
            text = f"ends in {replay.torn.reason}; gnsqd cuts it off"
            yield Finding(Severity.NOTE, topic, name, replay.torn.begin, text)
        name = segment_name(topic, max(report.journal.numbers))
        if replay.converting:
            text = "the disk queues of the topic are a copy of it that an exit did not finish; gnsqd drops them"
            yield Finding(Severity.NOTE, topic, name, None, text)
        if report.messages:
            text = f"holds {plural(report.messages, 'message')}, with which gnsqd goes on when it starts; nsqd does not"
            yield Finding(Severity.NOTE, topic, name, None, text)
