"""`gnsqadmin data verify` and `ls`, which only read, and the parts that commands for data directories share."""

import time
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

import click

from gnsqd.shared.directory import (
    METADATA,
    DataDirectory,
    StoredQueue,
    describe_holder,
    is_held,
    list_directory,
    make_plan,
)
from nsqadmin_cli.change import Shown
from nsqadmin_cli.command_base import Combined, argument, command, option
from nsqadmin_cli.datadir.checking import Checker, JournalReport, Problem, QueueReport, count_messages, problem_blocks
from nsqadmin_cli.datadir.records import DEFAULT_MAX_MSG_SIZE, describe_missing
from nsqadmin_cli.errors import AdminError, ExitCode, NotFound
from nsqadmin_cli.output import Advance, note, progress
from nsqadmin_cli.table import ALWAYS, Block, Cell, Form, Grid, Line, Tone, column, described, json_only, table_of
from nsqadmin_cli.units import plural

_QUICKLY_READ = 20_000_000  # bytes

directory_argument = argument(click.Path(exists=True, file_okay=False))
max_size_option = option(
    "The --max-msg-size of nsqd, which treats larger messages as damage; gnsqd delivers them.",
    click.IntRange(1),
    default=DEFAULT_MAX_MSG_SIZE,
    metavar="BYTES",
)


class Which(NamedTuple):
    """Of a topic and channel, or of all if these are empty."""

    topic: str
    channel: str


_WHICH = {"topic": "Only this topic and its channels.", "channel": "Only channels of this name."}
_which_option = partial(option, section="Which queues", default="", metavar="NAME")
which_option: Any = Combined(Which, {name: _which_option(help) for name, help in _WHICH.items()})


def select(data_dir: DataDirectory, which: tuple[str, str] = ("", "")) -> list[StoredQueue]:
    """Returns the queues that the options select; raises NotFound if there are none."""
    topic, channel = which
    queues = data_dir.select(topic, channel)
    if not queues and not (data_dir.select_journals(topic) and not channel) and (topic or channel):
        what = f"the topic {topic}" if topic else f"the channel {channel}"
        what += f" and its channel {channel}" * bool(topic and channel)
        raise NotFound(f"{data_dir.path} does not have {what}")
    return queues


def reading(description: str, size: int, *, quiet: bool = False) -> AbstractContextManager[Advance]:
    """Progress in bytes, of work that may take over a second."""
    return progress(description, size, "bytes", shown=not quiet and size >= _QUICKLY_READ)


def head(data_dir: DataDirectory, running: bool) -> list[Block]:
    """Returns the directory, the process that uses it, and errors in nsqd.dat."""
    facts = {"directory": Cell(data_dir.path, Tone.STRONG)}
    if running:
        facts["in use by"] = Cell(describe_holder(data_dir.path), Tone.NODE)
    if data_dir.listed is None:
        facts[METADATA] = Cell(data_dir.metadata_error, Tone.BAD)
    return [Grid.of(facts)]


@dataclass(slots=True)
class VerifiedQueue:
    queue: Cell = column("queue")
    messages: int = column("messages", "msgs", Form.COUNT, ALWAYS)
    bytes: int = column("bytes", form=Form.BYTES, keep=7, help="of bodies")
    held: int = column("deferred", "def", Form.COUNT, help="deferred messages that gnsqd keeps outside the queue")
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
        described("findings", "list", Problem),
    ),
)
def verify(
    directory: str = directory_argument,
    which: Which = which_option,
    max_msg_size: int = max_size_option,
) -> Shown:
    """Damage means that nsqd has lost messages, would lose messages, or cannot start. A note is harmless, or nsqd
    corrects it. The exit code is 1 if there is damage.

    While an nsqd runs on the directory, files may disagree, so only damage within files is reported.
    """
    data_dir = list_directory(directory)
    running = is_held(directory)
    if running:
        note(f"Note: {directory} is in use by {describe_holder(directory)}; what it writes meanwhile is ignored.")
    queues = select(data_dir, which)
    reports, findings = check(data_dir, queues, running=running, max_msg_size=max_msg_size)
    stored = data_dir.select_journals(which.topic)
    with reading("reading", sum(journal.size for journal in stored)) as advance:
        checker = Checker(data_dir, running, max_msg_size, advance)
        journals = [checker.check_journal(journal, which.channel) for journal in stored]
    findings = sorted([*findings, *(problem for report in journals for problem in report.problems)], key=_SEVERITY)
    damaged = any(finding.is_damage for finding in findings)
    checked = [
        VerifiedQueue(
            _name(report.queue), report.messages, report.bytes, report.held, _state(report.damaged), not report.damaged
        )
        for report in reports
    ]
    in_journals: list[VerifiedJournal] = []  # below each journal, the queues of channels that have messages in it
    for each in journals:
        counts = {name: count for name, count in each.queues.items() if count}
        queue_counts = [{"queue": name, "messages": count} for name, count in counts.items()]
        whole = Cell(each.name, Tone.STRONG), each.messages, each.journal.size, queue_counts
        in_journals.append(VerifiedJournal(*whole, _state(each.damaged), not each.damaged))
        in_journals += [VerifiedJournal(name, count) for name, count in counts.items() if name != each.name]
    document = {"directory": data_dir.path, "running": running, "sound": not damaged}
    document |= {"queues": checked, "journals": [row for row in in_journals if row.state], "findings": findings}
    blocks = head(data_dir, running)
    blocks.append(table_of(VerifiedQueue, checked, total=plural(len(checked), "queue"), empty="No queues."))
    blocks += [table_of(VerifiedJournal, in_journals)] if journals else []
    blocks += [*problem_blocks(findings), _verdict(reports, journals, damaged)]
    code = ExitCode.FAILED if damaged else ExitCode.OK
    return Shown(document, blocks, table_of(Problem, findings), code=code)


def check(
    data_dir: DataDirectory, queues: list[StoredQueue], *, running: bool, max_msg_size: int
) -> tuple[list[QueueReport], list[Problem]]:
    """Reads these queues; findings are sorted by severity."""
    size = sum(queue.size + sum(queue.bad.values()) for queue in queues)
    with reading("reading", size) as advance:
        checker = Checker(data_dir, running, max_msg_size, advance)
        findings = list(checker.check_directory())
        reports = [checker.check(queue) for queue in queues]
    findings += [problem for each in reports for problem in each.problems]
    return reports, sorted(findings, key=_SEVERITY)


_SEVERITY = attrgetter("severity")  # damage comes before notes


def _state(damaged: bool) -> Cell:
    return Cell("damaged", Tone.BAD) if damaged else Cell("sound", Tone.GOOD)


def _name(queue: StoredQueue) -> Cell:
    return Cell(queue.name, None if queue.channel else Tone.STRONG)


def _verdict(reports: list[QueueReport], journals: list[JournalReport], is_damaged: bool) -> Line:
    messages = plural(sum(each.messages for each in reports), "message")
    if journals:
        messages += f" on disk and {sum(each.messages for each in journals):,} in {plural(len(journals), 'journal')}"
    if not is_damaged:
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
def ls(directory: str = directory_argument, which: Which = which_option) -> Shown:
    """DIRECTORY is nsqd's --data-path. Counts are read from the meta files, which is fast. data verify reads all files.
    Messages in the memory of a running nsqd are missing. A topic's own queue has the messages that are not in its
    channels yet.

    If gnsqd keeps a journal, a column shows the number of each queue's messages in the journal, according to its newest
    file. It includes messages in flight and deferred messages. After a killed conversion, the same messages are also in
    the queue's files.
    """
    data_dir = list_directory(directory)
    running = is_held(directory)
    journals, journaled, unreadable = [], dict[str, int](), dict[str, str]()  # the latter by topic
    for journal in data_dir.select_journals(which.topic):
        journals.append(JournalRow(journal.topic, journal.size, len(journal.numbers)))
        try:
            journaled |= count_messages(journal)
        except AdminError as error:
            unreadable[journal.topic] = str(error)
    for name in [*journaled, *unreadable]:  # also queues that only journals have
        data_dir.queues.setdefault(name, StoredQueue(data_dir.path, name))
    rows = [_row(data_dir, queue, journaled, unreadable) for queue in select(data_dir, which)]
    table = partial(table_of, QueueRow, rows, total=plural(len(rows), "queue"), empty="No queues.")
    document = {"directory": directory, "running": running, "metadata_error": data_dir.metadata_error or None}
    blocks: list[Block] = [table(), table_of(JournalRow, journals)]
    if not journals:
        blocks = [table(without=["journaled"])]
    return Shown(document | {"queues": rows, "journals": journals}, [*head(data_dir, running), *blocks], table)


def _row(
    data_dir: DataDirectory, queue: StoredQueue, journaled: dict[str, int], unreadable: dict[str, str]
) -> QueueRow:
    """Returns the row of a queue; `journaled` has messages in journals, `unreadable` errors of journals by topic."""
    plan = make_plan(queue)
    problem = unreadable.get(queue.name, "")
    if plan.meta is None and (queue.numbers or queue.has_meta):
        problem = plan.meta_error
    elif plan.missing:
        problem = describe_missing(queue, plan)
    first = plan.oldest(queue)
    row = QueueRow(_name(queue), queue.topic, queue.channel)
    row.listed = None if data_dir.listed is None else queue.name in data_dir.listed
    row.paused = data_dir.is_paused(queue)
    row.messages = plan.meta.depth if plan.meta else None if queue.numbers or queue.has_meta else 0
    row.journaled = None if queue.topic in unreadable else journaled.get(queue.name, 0)
    row.bytes, row.files, row.bad_files = queue.size, len(queue.numbers), len(queue.bad)
    row.age, row.oldest = None if first is None else max(0.0, time.time() - first), first
    row.due_times = len(queue.read_due_times().due)
    words = ["paused"] * row.paused + [f"not in {METADATA}"] * (row.listed is False) + [problem] * bool(problem)
    row.state, row.problem = Cell(", ".join(words), Tone.BAD if problem else None), problem
    return row
