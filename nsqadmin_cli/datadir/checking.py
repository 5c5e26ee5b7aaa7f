"""Checks a data directory: reads each queue and journal completely and reports how nsqd would handle it.

Only gnsqd writes journals, with --durability.
"""

import os
import shlex
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from gnsqd.shared.directory import (
    METADATA,
    DataDirectory,
    DueTimesFile,
    ReadPlan,
    StoredJournal,
    StoredQueue,
    make_plan,
)
from gnsqd.shared.disk_format import (
    MIN_RECORD_SIZE,
    Gap,
    StoredRecord,
    due_times_file_name,
    message_key,
    meta_file_name,
    segment_name,
)
from gnsqd.shared.errors import StorageError
from gnsqd.shared.journal.replay import Replay
from nsqadmin_cli.datadir.records import describe_missing, first_unread, read_data_file, read_queue
from nsqadmin_cli.errors import AdminError
from nsqadmin_cli.output import Advance
from nsqadmin_cli.table import Block, Line, Paragraph, Tone, column
from nsqadmin_cli.units import plural

_MARGIN = 8  # columns before the text of a problem


# Severities of problems.
DAMAGE = "damage"  # messages are lost, or nsqd would lose them or refuse to start
NOTE = "note"  # harmless, or corrected by nsqd itself


@dataclass(frozen=True, slots=True)
class DataProblem:
    """A problem of a directory. `command` corrects it, if one can."""

    severity: str = column("severity", help='"damage" or "note"')
    queue: str = column("queue", null=True, help="null: the directory")
    file: str = column("file", null=True)
    position: int | None = column("position", help="bytes; null: the whole file")
    text: str = column("text")
    command: str = column("command", null=True, help="or null", default="")

    @property
    def is_damage(self) -> bool:
        return self.severity == DAMAGE


def problem_blocks(problems: list[DataProblem]) -> Iterator[Block]:
    """Yields each problem with its position, meaning and the command that repairs it."""
    for problem in problems:
        tone = Tone.BAD if problem.is_damage else Tone.NOTE
        place = problem.file or problem.queue
        if problem.position is not None:
            place += f" at {problem.position:,}"
        yield Line(((problem.severity.upper().ljust(_MARGIN), tone), (place, Tone.STRONG)))
        yield Paragraph((" " * _MARGIN, Tone.PLAIN), problem.text)
        if problem.command:
            yield Line(((" " * (_MARGIN - 2) + "→ ", Tone.GOOD), (problem.command, Tone.NODE)))
        yield Line()


@dataclass
class FileTally:
    """The content of one file; nsqd loses everything behind the first flaw."""

    messages: int = 0
    bytes: int = 0  # of bodies
    behind: int = 0  # messages at the first flaw or behind it
    lost: int = 0  # bytes that hold no whole message
    flaw_position: int = -1
    flaw: str = ""
    largest: int = 0  # body that is too large for the limit
    broken: bool = False  # there are flaws besides such bodies

    def add(self, item: StoredRecord | Gap) -> None:
        reason = item.reason if isinstance(item, Gap) else item.flaw
        if reason and not self.flaw:
            self.flaw, self.flaw_position = reason, item.begin
        if isinstance(item, Gap):
            self.lost += item.end - item.begin
            self.broken = True
            return
        body = len(item.payload) - MIN_RECORD_SIZE
        self.messages += 1
        self.bytes += body
        if self.flaw:
            self.behind += 1
        if item.flaw:
            self.broken = self.broken or not item.too_large
            self.largest = max(self.largest, body * item.too_large)


@dataclass(kw_only=True)
class Report:
    """The problems of the files of a queue or journal."""

    name: str
    problems: list[DataProblem] = field(default_factory=list)

    def add(self, severity: str, file: str, text: str, position: int | None = None, command: str = "") -> None:
        self.problems.append(DataProblem(severity, self.name, file, position, text, command))

    @property
    def damaged(self) -> bool:
        return any(problem.is_damage for problem in self.problems)


@dataclass
class QueueReport(Report):
    """The state of a queue. `held` are deferred messages that only the side file of gnsqd has."""

    queue: StoredQueue
    plan: ReadPlan
    due_times: DueTimesFile
    messages: int = 0
    bytes: int = 0
    held: int = 0
    files: dict[int, FileTally] = field(default_factory=lambda: defaultdict(FileTally))
    needs_repair: bool = False

    @property
    def lost(self) -> int:
        return sum(tally.lost for tally in self.files.values())


@dataclass
class JournalReport(Report):
    """The state of a journal. `queues` has the messages of each queue in it; the topic's own queue has its name."""

    journal: StoredJournal
    queues: dict[str, int]

    @property
    def messages(self) -> int:
        return sum(self.queues.values())


@dataclass(frozen=True)
class Checker:
    """Checks a directory. `running`: a daemon uses it, so meta files are older than data files."""

    _directory: DataDirectory
    _running: bool
    _max_msg_size: int
    _advance: Advance

    @property
    def _repair(self) -> str:
        path = self._directory.path
        # What is at a URL is repaired in a directory.
        words = ["restore", path, "DIRECTORY"] if "://" in path else ["repair", path]
        return shlex.join(["gnsqadmin", "data", *words])

    def check_directory(self) -> Iterator[DataProblem]:
        """Yields the problems that do not concern a queue."""
        directory = self._directory
        if directory.listed is None:
            starts = directory.metadata_error == "no such file or directory"
            text = f"{directory.metadata_error}: nsqd {'starts without topics' if starts else 'does not start'}"
            yield DataProblem(DAMAGE, "", METADATA, None, text, self._repair)
        for name in directory.others:
            yield DataProblem(NOTE, "", name, None, "this is not a data file, though it is named like one")
        if directory.temporary and not self._running:
            text = f"{plural(len(directory.temporary), 'file')} that a killed nsqd left unfinished; gnsqd removes them"
            yield DataProblem(NOTE, "", directory.temporary[0], None, text)

    def check(self, queue: StoredQueue) -> QueueReport:
        """Reads a queue; raises AdminError if a file cannot be read."""
        report = QueueReport(queue, make_plan(queue), queue.read_due_times(), name=queue.name)
        held = set(report.due_times.held)
        for number, item in read_queue(queue, report.plan, self._max_msg_size, self._advance):
            report.files[number].add(item)
            if held and isinstance(item, StoredRecord):
                held.discard(message_key(item.payload))
        report.messages = sum(tally.messages for tally in report.files.values())
        report.bytes = sum(tally.bytes for tally in report.files.values())
        report.held = len(held)
        for number, tally in report.files.items():
            if not tally.flaw:
                continue
            if self._running and number == max(queue.numbers) and not tally.behind:
                continue  # it is being written
            text = f"{tally.flaw}: nsqd loses the rest of the file"
            if not tally.broken:
                text += ", gnsqd delivers it"
            if tally.behind:
                text += f"; {plural(tally.behind, 'message')} in it can be saved"
            if tally.lost:
                text += f"; {plural(tally.lost, 'byte')} cannot be read as messages"
            command = self._repair if tally.broken else f"nsqd --max-msg-size={tally.largest}"
            report.needs_repair = report.needs_repair or tally.broken
            severity = DAMAGE if tally.broken else NOTE
            report.add(severity, queue.file_name(number), text, tally.flaw_position, command)
        for severity, file, text in self._judge_meta(report):
            report.needs_repair = True
            report.add(severity, file, text, command=self._repair)
        if queue.bad_due_times:
            text = "due times were set aside: deferred messages may have been delivered early or be missing"
            report.add(NOTE, f"{due_times_file_name(queue.name)}.bad", text)
        if not self._directory.is_listed(queue) and report.messages:
            text = f"not in {METADATA}: its {plural(report.messages, 'message')} are unread until it is created again"
            adopt = f"{self._repair} --adopt-orphans" if "#" not in queue.name else ""
            report.add(NOTE, "", text, command=adopt)
        for number in sorted(queue.bad):
            self._judge_bad(report, number)
        return report

    def _judge_meta(self, report: QueueReport) -> Iterator[tuple[str, str, str]]:
        """Yields severity, file and text of the problems that a repair corrects."""
        queue, plan, meta, due_times = report.queue, report.plan, report.plan.meta, report.due_times
        name = meta_file_name(queue.name)
        if self._running:
            return  # it is written later than the files, and they are deleted as they are read
        if meta is None and queue.numbers:
            text = f"{plan.meta_error}: nsqd starts with an empty queue and overwrites it, gnsqd delivers all again"
            yield DAMAGE, name, text
        elif meta is None and queue.has_meta:
            yield NOTE, name, f"{plan.meta_error}; the queue is empty"
        elif meta is not None:
            if plan.missing:
                yield DAMAGE, name, f"{describe_missing(queue, plan)}, and the messages in it are lost"
            begin = first_unread(queue, plan, self._max_msg_size)
            if begin != plan.position:
                text = f"reads from inside the message at {begin:,} of {queue.file_name(meta.read_file)}"
                yield DAMAGE, name, f"{text}: nsqd sets that file aside, gnsqd reads from this message on"
            size, last = queue.numbers.get(meta.write_file, 0), queue.file_name(meta.write_file)
            later = [number for number in plan.numbers if number > meta.write_file]
            if size > meta.write_pos:
                yield NOTE, name, "older than the data files, as after a kill; nsqd reads these to their end"
            elif size < meta.write_pos and meta.write_file in queue.numbers:
                yield DAMAGE, name, f"specifies {plural(meta.write_pos - size, 'byte')} more than {last} has"
            elif later:
                text = f"does not list {queue.file_name(later[0])}: nsqd overwrites it, gnsqd reads it"
                yield DAMAGE, name, text
            elif meta.depth != report.messages and not plan.missing and not report.needs_repair:
                counts = f"{meta.depth:,} messages, but there are {report.messages:,}"
                yield NOTE, name, f"specifies {counts}; nsqd corrects it at the end"
            if plan.read:
                text = f"{plural(len(plan.read), 'file')} from before the read position, which is no longer read"
                yield NOTE, queue.file_name(plan.read[0]), text
        if (lost := due_times.size - due_times.end) > 0:
            text = f"{plural(lost, 'byte')} cannot be read: deferred messages may be delivered early or be missing"
            yield DAMAGE, due_times_file_name(queue.name), text

    def _judge_bad(self, report: QueueReport, number: int) -> None:
        queue = report.queue
        tally = FileTally()
        for item in read_data_file(queue.path(number, bad=True), 0, self._max_msg_size, self._advance):
            tally.add(item)
        name = queue.file_name(number, bad=True)
        if not tally.flaw:
            count = plural(tally.messages, "message")
            text = f"set aside, but whole: it is unknown whether its {count} were delivered. Not all were if nsqd "
            text += "logged that it could not open the file, or read at a wrong position; "
            report.add(NOTE, name, text + "gnsqadmin data recover-bad --all restores all")
        else:
            text = f"set aside for {tally.flaw}; {plural(tally.behind, 'message')} behind that can be recovered"
            severity = DAMAGE if tally.behind else NOTE
            command = shlex.join(["gnsqadmin", "data", "recover-bad", self._directory.path]) if tally.behind else ""
            report.add(severity, name, text, tally.flaw_position, command)

    def check_journal(self, journal: StoredJournal, channel: str) -> JournalReport:
        """Reads a journal; with a `channel`, only messages of channels of that name count. Raises AdminError if it
        cannot be read."""
        replay = _replay(journal, sorted(journal.numbers), self._advance)
        counts = _counts(replay)
        selected = {name: count for name, count in counts.items() if not channel or name.endswith(f":{channel}")}
        report = JournalReport(journal, selected, name=journal.topic)
        if self._running:
            return report
        for damage in replay.damages:
            text = f"{damage.reason}: messages are lost, gnsqd continues behind it; finished ones may come again"
            report.add(DAMAGE, os.path.basename(damage.path), text, damage.begin)
        if replay.lost:
            report.add(DAMAGE, "", replay.describe_lost())
        if replay.torn is not None:
            text = f"ends in {replay.torn.reason}; gnsqd truncates it"
            report.add(NOTE, os.path.basename(replay.torn.path), text, replay.torn.begin)
        newest = segment_name(journal.topic, max(journal.numbers))
        if replay.converting:
            text = "the disk queues of the topic are an unfinished copy of it, left by an exit; gnsqd drops them"
            report.add(NOTE, newest, text)
        if messages := sum(counts.values()):
            text = f"holds {plural(messages, 'message')}, which gnsqd loads when it starts; nsqd does not"
            report.add(NOTE, newest, text)
        return report


_BEHIND_ALL = 1 << 62  # numbers of messages


def count_messages(journal: StoredJournal) -> dict[str, int]:
    """Returns the number of messages of each queue in the journal; the topic's own queue has its name. The newest
    segment lists all queues, so the others are read only if a kill truncated it; messages lost to damage count. Raises
    AdminError if a segment cannot be read."""
    numbers = sorted(journal.numbers)
    replay = _replay(journal, numbers[-1:], complete=False)
    return _counts(replay if replay.whole else _replay(journal, numbers))


def _replay(
    journal: StoredJournal, numbers: list[int], advance: Advance = lambda size: None, *, complete: bool = True
) -> Replay:
    """Returns the content of these segments, which are all if `complete`; raises AdminError."""
    replay = Replay(journal.topic, checks=True)
    if not complete:
        replay.present.add(1, _BEHIND_ALL)  # or what other segments have would pass for lost
    try:
        replay.read([journal.path(number) for number in numbers], advance)
    except StorageError as error:
        raise AdminError(f"cannot read a journal: {error}") from error
    return replay


def _counts(replay: Replay) -> dict[str, int]:
    return {state.name: numbers.count() for _, state, numbers in replay.unread()}
