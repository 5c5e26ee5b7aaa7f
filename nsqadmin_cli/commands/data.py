"""`gnsqadmin data verify` and `ls`, which only read, and the parts that commands for data directories share."""

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import click

from gnsq_shared.directory import (
    METADATA,
    DataDirectory,
    Queue,
    describe_holder,
    is_held,
    list_directory,
    make_plan,
    oldest,
    read_due_times,
)
from nsqadmin_cli.command import Function, command, option
from nsqadmin_cli.datadir.checking import (
    Checker,
    Finding,
    JournalReport,
    Report,
    Severity,
    check_journals,
    count_messages,
)
from nsqadmin_cli.datadir.records import DEFAULT_MAX_MSG_SIZE, describe_missing
from nsqadmin_cli.errors import AdminError, ExitCode, NotFound
from nsqadmin_cli.output import Advance, Output, note, progress
from nsqadmin_cli.table import (
    ALWAYS,
    Block,
    Cell,
    Form,
    Grid,
    Line,
    Paragraph,
    Table,
    Tone,
    as_json,
    column,
    described,
    json_only,
    table_of,
)
from nsqadmin_cli.units import plural

_MARGIN = 8
_QUICKLY_READ = 20_000_000  # bytes

directory_argument = click.argument("directory", type=click.Path(exists=True, file_okay=False))
max_msg_size_option = option(
    "--max-msg-size",
    type=click.IntRange(1),
    default=DEFAULT_MAX_MSG_SIZE,
    metavar="BYTES",
    help="The --max-msg-size of nsqd, which treats larger messages as damage.",
)


def queue_options(function: Function) -> Function:
    """`--topic` and `--channel`: parameters of these names."""
    which = partial(option, section="Which queues", default="", metavar="NAME")
    channels = which("--channel", help="Only channels of this name.")
    return which("--topic", help="Only this topic and its channels.")(channels(function))


def select(found: DataDirectory, topic: str, channel: str) -> list[Queue]:
    """The queues that the options select; NotFound without any."""
    queues = found.select(topic, channel)
    if not queues and not (found.select_journals(topic) and not channel) and (topic or channel):
        what = f"the topic {topic}" if topic else f"the channel {channel}"
        raise NotFound(f"{found.path} does not have {what}" + f" and its channel {channel}" * bool(topic and channel))
    return queues


def reading(description: str, size: int, *, quiet: bool = False) -> AbstractContextManager[Advance]:
    """Progress in bytes, of work that may take over a second."""
    return progress(description, size, "bytes", shown=not quiet and size >= _QUICKLY_READ)


def head(found: DataDirectory, running: bool) -> list[Block]:
    """The directory, the process that uses it, and errors in nsqd.dat."""
    facts: list[Sequence[Cell | str]] = [[Cell("directory", Tone.FAINT), Cell(found.path, Tone.STRONG)]]
    if running:
        facts.append([Cell("in use by", Tone.FAINT), Cell(describe_holder(found.path), Tone.NODE)])
    if found.listed is None:
        facts.append([Cell(METADATA, Tone.FAINT), Cell(found.metadata_error, Tone.BAD)])
    return [Grid(facts)]


@dataclass(slots=True)
class VerifiedQueue:
    queue: Cell = column("queue")
    messages: int = column("messages", "msgs", Form.COUNT, ALWAYS)
    bytes: int = column("bytes", form=Form.BYTES, keep=7, help="of bodies")
    held: int = column(
        "deferred", "def", Form.COUNT, keep=5, help="deferred messages that gnsqd keeps outside the queue"
    )
    state: Cell = column("state", keep=ALWAYS, json=False)
    sound: bool = json_only()


@dataclass(slots=True)
class VerifiedJournal:
    topic: Cell | str = column("in a journal", key="queue")
    messages: int = column("messages", "msgs", Form.COUNT, ALWAYS)
    bytes: int | None = column("size", form=Form.BYTES, keep=7)
    queues: list[dict[str, Any]] = json_only("name and messages of each that has some", default=())
    state: Cell | None = column("state", keep=ALWAYS, json=False)
    sound: bool = json_only()


@command(
    "verify",
    examples="""
        gnsqadmin data verify /var/lib/nsqd
        gnsqadmin data verify /var/lib/nsqd --topic orders --json | jq .findings
        gnsqadmin data verify /var/lib/nsqd && systemctl start gnsqd
    """,
    document=(
        """
        directory
        running  whether an nsqd runs on it
        sound    whether there is no damage
        """,
        described("queues", "list", VerifiedQueue),
        described("journals", "list, of gnsqd with --durability", VerifiedJournal),
        described("findings", "list", Finding),
    ),
)
@directory_argument
@queue_options
@max_msg_size_option
def verify(output: Output, directory: str, topic: str, channel: str, max_msg_size: int) -> int:
    """Read all files of a data directory, and report damage and how to repair it.

    Damage means that nsqd has lost messages, would lose messages, or cannot start. A note is harmless, or nsqd corrects
    it. The exit code is 1 if there is damage.

    While an nsqd runs on the directory, files may disagree, so only damage within files is reported.
    """
    found = list_directory(directory)
    running = is_held(directory)
    if running:
        note(f"Note: {directory} is in use by {describe_holder(directory)}; what it writes meanwhile is ignored.")
    queues = select(found, topic, channel)
    reports, findings = check(found, queues, running=running, max_msg_size=max_msg_size)
    with reading("reading", sum(journal.size for journal in found.select_journals(topic))) as advance:
        journals = check_journals(found, topic, channel, running=running, advance=advance)
    findings = _in_order([*findings, *(finding for each in journals for finding in each.findings)])
    checked, checked_journals = _verified_queues(reports), _verified_journals(journals)
    output.show(
        lambda: {
            "directory": found.path,
            "running": running,
            "sound": not _damage(findings),
            "queues": checked,
            "journals": checked_journals,
            "findings": findings,
        },
        lambda: [
            *head(found, running),
            table_of(VerifiedQueue, checked, total=plural(len(checked), "queue"), empty="No queues."),
            *_journal_blocks(checked_journals),
            *finding_blocks(findings),
            _verdict(reports, journals, findings),
        ],
        lambda: table_of(Finding, findings),
    )
    return ExitCode.FAILED if _damage(findings) else ExitCode.OK


def check(
    found: DataDirectory, queues: list[Queue], *, running: bool, max_msg_size: int
) -> tuple[list[Report], list[Finding]]:
    """Read these queues; findings are sorted by severity."""
    size = sum(queue.size + sum(queue.bad.values()) for queue in queues)
    with reading("reading", size) as advance:
        checker = Checker(found, running=running, max_msg_size=max_msg_size, advance=advance)
        findings = list(checker.check_directory())
        reports = [checker.check(queue) for queue in queues]
    findings += [finding for each in reports for finding in each.findings]
    return reports, _in_order(findings)


def _in_order(findings: list[Finding]) -> list[Finding]:
    return sorted(findings, key=lambda finding: finding.severity is not Severity.DAMAGE)


def _damage(findings: list[Finding]) -> int:
    return sum(finding.severity is Severity.DAMAGE for finding in findings)


def _verified_queues(reports: list[Report]) -> list[VerifiedQueue]:
    rows = []
    for each in reports:
        name = Cell(each.queue.name, None if each.queue.channel else Tone.STRONG)
        state = Cell("damaged", Tone.BAD) if each.damaged else Cell("sound", Tone.GOOD)
        rows.append(VerifiedQueue(name, each.messages, each.bytes, each.held, state, not each.damaged))
    return rows


def _verified_journals(journals: list[JournalReport]) -> list[VerifiedJournal]:
    rows = []
    for each in journals:
        topic, sound = Cell(each.journal.topic, Tone.STRONG), not each.damaged
        queues = [{"queue": name, "messages": count} for name, count in each.queues.items() if count]
        state = Cell("sound", Tone.GOOD) if sound else Cell("damaged", Tone.BAD)
        rows.append(VerifiedJournal(topic, each.messages, each.journal.size, queues, state, sound))
    return rows


def _journal_blocks(rows: list[VerifiedJournal]) -> list[Block]:
    """A row for each queue that has messages in a journal."""
    shown_rows = []
    for row in rows:
        shown_rows.append(row)
        for queue in row.queues:
            if queue["queue"] != as_json(row.topic):
                shown_rows.append(VerifiedJournal(queue["queue"], queue["messages"]))
    return [Line(), table_of(VerifiedJournal, shown_rows)] if rows else []


def finding_blocks(findings: list[Finding]) -> Iterator[Block]:
    """Each finding with its position, meaning and the command that repairs it."""
    for finding in findings:
        tone = Tone.BAD if finding.severity is Severity.DAMAGE else Tone.NOTE
        place = finding.file or finding.queue
        if finding.position is not None:
            place += f" at {finding.position:,}"
        yield Line(((finding.severity.value.upper().ljust(_MARGIN), tone), (place, Tone.STRONG)))
        yield Paragraph((" " * _MARGIN, Tone.PLAIN), finding.text)
        if finding.command:
            yield Line(((" " * (_MARGIN - 2) + "→ ", Tone.GOOD), (finding.command, Tone.NODE)))
        yield Line()


def _verdict(reports: list[Report], journals: list[JournalReport], findings: list[Finding]) -> Line:
    messages = plural(sum(each.messages for each in reports), "message")
    if journals:
        messages += f" on disk and {sum(each.messages for each in journals):,} in {plural(len(journals), 'journal')}"
    if not _damage(findings):
        return Line((("Sound", Tone.GOOD), (f": {messages} in {plural(len(reports), 'queue')}.", Tone.PLAIN)))
    damaged = sum(each.damaged for each in reports)
    of = f": {damaged:,} of {plural(len(reports), 'queue')}" if damaged else f": {METADATA}"
    if broken := sum(each.damaged for each in journals):
        of = f": {broken:,} of {plural(len(journals), 'journal')}"
    return Line((("Damaged", Tone.BAD), (f"{of}; {messages} can be read.", Tone.PLAIN)))


@dataclass(slots=True)
class QueueRow:
    """A queue in the directory. `age` and `oldest` are those of its first unread message."""

    queue: Cell = column("queue")
    topic: str = json_only()
    channel: str = json_only("null: the queue of the topic itself", null=True)
    listed: bool | None = json_only("whether nsqd.dat has it; null if that cannot be read")
    paused: bool = json_only()
    messages: int | None = column("messages", "msgs", Form.COUNT, ALWAYS, help="null without a usable meta file")
    journaled: int | None = column(
        "in journal", "jrnl", Form.COUNT, ALWAYS, help="messages in the journal; null if that cannot be read"
    )
    bytes: int = column("size", form=Form.BYTES, keep=7)
    files: int = column("files", form=Form.COUNT, keep=4)
    bad_files: int = column("bad", form=Form.COUNT, keep=6, tone=Tone.NOTE)
    age: float | None = column("oldest", key="oldest", form=Form.DURATION, keep=6, json=False)
    oldest: float | None = json_only("unix seconds or null")
    due_times: int = column("deferred", "def", Form.COUNT, keep=5, help="deferred messages")
    state: Cell = column("state", keep=ALWAYS, tone=Tone.NOTE, json=False)
    problem: str = json_only("null, or a text", null=True)


@dataclass(slots=True)
class JournalRow:
    topic: str = column("journal of")
    bytes: int = column("size", form=Form.BYTES, keep=ALWAYS)
    files: int = column("files", form=Form.COUNT, keep=4)


@command(
    "ls",
    examples="""
        gnsqadmin data ls /var/lib/nsqd
        gnsqadmin data ls . --topic orders
        gnsqadmin data ls /var/lib/nsqd --json | jq '.queues[] | select(.bad_files > 0)'
    """,
    document=(
        """
        directory
        running  whether an nsqd runs on it
        metadata_error
                 null, or why nsqd.dat cannot be read
        """,
        described("queues", "list", QueueRow),
        described("journals", "list, of gnsqd with --durability", JournalRow),
    ),
)
@directory_argument
@queue_options
def ls(output: Output, directory: str, topic: str, channel: str) -> None:
    """List the queues in a data directory: their messages, and the age of the oldest.

    DIRECTORY is nsqd's --data-path. Counts are read from the meta files, which is fast. data verify reads all files.
    Messages in the memory of a running nsqd are missing. A topic's own queue has the messages that are not in its
    channels yet.

    If gnsqd keeps a journal, a column shows the number of each queue's messages in the journal, according to its newest
    file. It includes messages in flight and deferred messages. After a killed conversion, the same messages are also in
    the queue's files.
    """
    found = list_directory(directory)
    running = is_held(directory)
    journaled, unreadable = _count_journaled(found, topic)
    rows = [_row(found, queue, journaled, unreadable) for queue in select(found, topic, channel)]
    journals = [JournalRow(each.topic, each.size, len(each.numbers)) for each in found.select_journals(topic)]

    def table(*without: str) -> Table:
        return table_of(QueueRow, rows, without=without, total=plural(len(rows), "queue"), empty="No queues.")

    output.show(
        lambda: {
            "directory": directory,
            "running": running,
            "metadata_error": found.metadata_error or None,
            "queues": rows,
            "journals": journals,
        },
        lambda: [
            *head(found, running),
            *([table(), Line(), table_of(JournalRow, journals)] if journals else [table("journaled")]),
        ],
        table,
    )


def _count_journaled(found: DataDirectory, topic: str) -> tuple[dict[str, int], dict[str, str]]:
    """The messages in journals by queue, and by topic the errors of journals. Adds to `found` the queues that only
    journals have."""
    counts: dict[str, int] = {}
    unreadable: dict[str, str] = {}
    for journal in found.select_journals(topic):
        try:
            counts |= count_messages(journal)
        except AdminError as error:
            unreadable[journal.topic] = str(error)
    for name in [*counts, *unreadable]:
        found.queues.setdefault(name, Queue(found.path, name))
    return counts, unreadable


def _row(found: DataDirectory, queue: Queue, journaled: dict[str, int], unreadable: dict[str, str]) -> QueueRow:
    plan = make_plan(queue)
    problem = unreadable.get(queue.name, "")
    if plan.meta is None and (queue.numbers or queue.has_meta):
        problem = plan.meta_error
    elif plan.missing:
        problem = describe_missing(queue, plan)
    first = oldest(queue, plan)
    row = QueueRow(Cell(queue.name, None if queue.channel else Tone.STRONG), queue.topic, queue.channel)
    row.listed = None if found.listed is None else queue.name in found.listed
    row.paused = found.is_paused(queue)
    row.messages = plan.meta.depth if plan.meta else None if queue.numbers or queue.has_meta else 0
    row.journaled = None if queue.topic in unreadable else journaled.get(queue.name, 0)
    row.bytes, row.files, row.bad_files = queue.size, len(queue.numbers), len(queue.bad)
    row.age, row.oldest = None if first is None else max(0.0, time.time() - first), first
    row.due_times = len(read_due_times(queue.due_times_path).due)
    words = ["paused"] * row.paused + [f"not in {METADATA}"] * (row.listed is False) + [problem] * bool(problem)
    row.state, row.problem = Cell(", ".join(words), Tone.BAD if problem else None), problem
    return row
