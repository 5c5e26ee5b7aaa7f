"""`gnsqadmin data`: the data directory of a stopped nsqd, and its log in an object store.

`ls` and `verify` only read; `export`, `convert`, `repair` and `recover-bad` write its messages elsewhere; `restore`
makes a directory.
"""

import os
import shlex
import time
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

import click

from gnsqd.log import Level, Logger
from gnsqd.queues.moment import parse_moment
from gnsqd.shared.directory import (
    METADATA,
    DataDirectory,
    StoredQueue,
    describe_holder,
    is_held,
    list_directory,
    locked,
    make_plan,
)
from gnsqd.shared.errors import StartError, StorageError
from gnsqd.shared.log_store import LogStore, moment, wal_path
from nsqadmin_cli.archive import DASH, ArchiveWriter
from nsqadmin_cli.change import Shown
from nsqadmin_cli.command_base import Combined, Parsed, argument, command, flag, option
from nsqadmin_cli.datadir.checking import (
    Checker,
    DataProblem,
    JournalReport,
    QueueReport,
    count_messages,
    problem_blocks,
)
from nsqadmin_cli.datadir.records import DEFAULT_MAX_MSG_SIZE, MessageFile, Saved, describe_missing, export_queue
from nsqadmin_cli.datadir.repairing import BadFile, Repair, exchange, put_back
from nsqadmin_cli.datadir.restoring import is_url, opened, restore_log
from nsqadmin_cli.errors import AdminError, ExitCode, NotOnNode
from nsqadmin_cli.message import DOCUMENT
from nsqadmin_cli.output import Advance, Confirm, Output, note, progress, report
from nsqadmin_cli.table import ALWAYS, Block, Cell, Form, Grid, Line, Tone, column, described, json_only, table_of
from nsqadmin_cli.units import plural, printable

_QUICKLY_READ = 20_000_000  # bytes

directory_argument = argument(click.Path(exists=True, file_okay=False))


class _DirectoryOrURL(click.Path):
    """An existing directory, or the URL of a log."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value if is_url(str(value)) else super().convert(value, param, ctx)


max_size_option = option(
    "The --max-msg-size of nsqd, which treats larger messages as damage; gnsqd delivers them.",
    click.IntRange(1),
    default=DEFAULT_MAX_MSG_SIZE,
    metavar="BYTES",
)


class Which(NamedTuple):
    """The queues of a topic and channel, or all if these are empty."""

    topic: str
    channel: str


_which = partial(option, section="Which queues", default="", metavar="NAME")
which_option: Any = Combined(
    Which, {"topic": _which("Only this topic and its channels."), "channel": _which("Only channels of this name.")}
)


def select(data_dir: DataDirectory, which: tuple[str, str] = ("", "")) -> list[StoredQueue]:
    """Returns the queues that the options select; raises NotFound if there are none."""
    topic, channel = which
    queues = data_dir.select(topic, channel)
    if not queues and not (data_dir.select_journals(topic) and not channel) and (topic or channel):
        what = f"the topic {topic}" if topic else f"the channel {channel}"
        what += f" and its channel {channel}" * bool(topic and channel)
        raise NotOnNode(f"{data_dir.path} does not have {what}")
    return queues


def reading(description: str, size: int, *, quiet: bool = False) -> AbstractContextManager[Advance]:
    """Shows progress in bytes, of work that may take over a second."""
    return progress(description, size, "bytes", shown=not quiet and size >= _QUICKLY_READ)


def head(data_dir: DataDirectory, running: bool, **more: Cell) -> list[Block]:
    """Returns the directory, `more` about it, the process that uses it, and errors in nsqd.dat."""
    facts = {"directory": Cell(data_dir.path, Tone.STRONG)} | more
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


_VERIFIED = (
    """
    directory
    running  whether an nsqd runs on it
    sound    whether there is no damage
    """,
    described("queues", "list", VerifiedQueue),
    described("journals", "list, of gnsqd with --durability", VerifiedJournal),
    described("findings", "list", DataProblem),
)


@command(
    examples="""
        gnsqadmin data verify /var/lib/nsqd
        gnsqadmin data verify /var/lib/nsqd --topic orders --json | jq .findings
        gnsqadmin data verify /var/lib/nsqd && systemctl start gnsqd
        gnsqadmin data verify s3://backup/nsqd-1
    """,
    document=_VERIFIED,
)
def verify(
    directory: str = argument(_DirectoryOrURL(exists=True, file_okay=False)),
    which: Which = which_option,
    max_msg_size: int = max_size_option,
) -> Shown:
    """Damage means that nsqd has lost messages, would lose messages, or cannot start. A note is harmless, or nsqd
    corrects it. The exit code is 1 if there is damage.

    While an nsqd runs on the directory, files may disagree, so only damage within files is reported.

    DIRECTORY may also be the URL of a gnsqd's --log-store, which is restored to a temporary directory and removed
    again; TMPDIR specifies where.
    """
    with opened(directory) as data_dir:
        running = is_held(directory)
        if running:
            note(f"Note: {directory} is in use by {describe_holder(directory)}; what it writes meanwhile is ignored.")
        return _verified(data_dir, which, running=running, max_msg_size=max_msg_size)


def _verified(data_dir: DataDirectory, which: Which, *, running: bool, max_msg_size: int, **more: Cell) -> Shown:
    """Reads all files; returns the answer of verify, with `more` about the directory."""
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
    blocks = head(data_dir, running, **more)
    blocks.append(table_of(VerifiedQueue, checked, total=plural(len(checked), "queue"), empty="No queues."))
    blocks += [table_of(VerifiedJournal, in_journals)] if journals else []
    blocks += [*problem_blocks(findings), _verdict(reports, journals, damaged)]
    code = ExitCode.FAILED if damaged else ExitCode.OK
    return Shown(document, blocks, table_of(DataProblem, findings), code=code)


def check(
    data_dir: DataDirectory, queues: list[StoredQueue], *, running: bool, max_msg_size: int
) -> tuple[list[QueueReport], list[DataProblem]]:
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


@command(
    examples="""
        gnsqadmin data export /var/lib/nsqd orders.ndjson.gz --topic orders
        gnsqadmin data export /var/lib/nsqd - --topic orders --channel billing | jq -r .body
    """,
    document=f"""
        directory, file, messages
        queues   list: queue, messages, lost_bytes (unreadable)
        A line of the file itself is the JSON of a message:{DOCUMENT}
        channel  whose queue has it; null: the topic's own queue
        due      until when it is deferred, ns since 1970, or null
    """,
)
def export(
    output: Output,
    directory: str = directory_argument,
    file: str = argument(click.Path(dir_okay=False, allow_dash=True)),
    append: bool = flag("Append to FILE if it exists."),
    which: Which = which_option,
    max_msg_size: int = max_size_option,
) -> int:
    """FILE has one line per message, a JSON document that gnsqadmin load can publish; - is standard output, and a name
    that ends in .gz is compressed. Messages are in nsqd's order of delivery, once for every channel that has them;
    messages after the damage are included.

    The directory is not changed. nsqd may be running, but its messages in memory are missing.
    """
    data_dir = list_directory(directory)
    if is_held(directory):
        note(f"Note: {directory} is in use by {describe_holder(directory)}; its messages in memory are missing.")
    if journals := data_dir.select_journals(which.topic):
        left_out = plural(len(journals), "journal")
        note(f"Note: {left_out} left out; gnsqadmin data convert moves their messages to disk queues.")
    queues = select(data_dir, which)
    size = sum(queue.size for queue in queues)
    with ArchiveWriter(file, append=append) as archive, reading("exporting", size, quiet=file == DASH) as advance:
        lines = MessageFile(archive)
        exported = [export_queue(queue, lines, max_msg_size, advance) for queue in queues]
        lines.flush()
    messages = sum(each.messages for each in exported)
    if file == DASH:
        note(f"{plural(messages, 'message')} of {plural(len(queues), 'queue')}")
    else:
        done = f"Wrote {plural(messages, 'message')} to" if messages else "No messages;"
        verdict = Line.of(f"{done} {file}{'' if messages else ' was not written'}.")
        document = {"directory": directory, "file": file, "messages": messages, "queues": exported}
        output.show(document, [table_of(Saved, exported, empty="No queues."), verdict])
    lost = {each.queue: plural(each.lost_bytes, "byte") for each in exported if each.lost_bytes}
    return report([AdminError(f"{queue}: {size} could not be read as messages") for queue, size in lost.items()])


@dataclass(slots=True)
class ConvertedQueue:
    queue: str = column("queue")
    messages: int = column("messages", "msgs", Form.COUNT, ALWAYS)


@command(
    examples="""
        gnsqadmin data convert /var/lib/nsqd --dry-run
        gnsqadmin data convert /var/lib/nsqd && nsqd --data-path=/var/lib/nsqd
    """,
    document=("directory", described("queues", "list of queues with messages in a journal", ConvertedQueue)),
)
def convert(
    directory: str = directory_argument,
    dry_run: bool = flag("Only show what would be converted.", "--dry-run", "-n"),
) -> Shown:
    """gnsqd keeps journals with --durability, even after a clean exit. Starting gnsqd without that option does the same
    as this command. nsqd must be stopped. If the command is killed, run it again: no message is lost or duplicated."""
    with locked(directory):
        journals = list_directory(directory).select_journals("")
        counts = {name: count for journal in journals for name, count in count_messages(journal).items() if count}
        if not dry_run:
            from gnsqd.queues.data_path import convert as convert_journals  # slow to load: it needs gevent

            try:
                convert_journals(directory, Logger("", Level.WARN))
            except (StartError, StorageError) as error:
                raise AdminError(f"{error}; the journals still have all messages") from error
    messages = plural(sum(counts.values()), "message")
    verdict = f"{messages} would be converted. Nothing was done." if dry_run else f"{messages} converted."
    rows = [ConvertedQueue(name, count) for name, count in counts.items()]
    blocks: list[Block] = [table_of(ConvertedQueue, rows, empty="No messages in journals.")]
    blocks += [Line.of(verdict)] if rows else []
    return Shown({"directory": directory, "queues": rows}, blocks)


@command(
    examples="""
        gnsqadmin data repair /var/lib/nsqd --dry-run
        gnsqadmin data repair /var/lib/nsqd --to /mnt/large/nsqd
        gnsqadmin data repair /var/lib/nsqd --replace --yes && systemctl start gnsqd
    """,
    document="""
        directory
        copy     path of the repaired copy; null: none was made
        kept     with --replace, path of the damaged directory, else null
        queues   list of repaired queues: queue, messages, lost_bytes (unreadable)
        adopted  queues that nsqd.dat lists again
        left     list of problems left in the copy, as the findings of verify
    """,
)
def repair(
    confirm: Confirm,
    directory: str = directory_argument,
    target: str | None = option("Path of the copy. [DIRECTORY.repaired]", click.Path(), "--to"),
    replace: bool = flag("Replace DIRECTORY by the copy, and keep the damaged directory as DIRECTORY.before-repair."),
    adopt_orphans: bool = flag("Add topics and channels to nsqd.dat that it does not list."),
    max_msg_size: int = max_size_option,
) -> Shown:
    """The directory itself is not changed. Messages after the damage are recovered, counts and positions corrected, and
    an unusable nsqd.dat rebuilt (with nothing paused). nsqd must be stopped. Files set aside as .bad are left to data
    recover-bad.

    The copy is read again to verify it. --replace then replaces the directory by the copy.
    """
    path = os.path.realpath(directory)
    copy = os.path.abspath(target or f"{path}.repaired")
    kept = f"{path}.before-repair"
    if os.path.commonpath([path, os.path.realpath(copy)]) == path:
        raise click.UsageError(f"the copy cannot be inside {path}")
    for name in (copy, kept) if replace else (copy,):
        if os.path.lexists(name):
            other = ", or specify another path by --to" * (name == copy)
            raise AdminError(f"{name} already exists; remove it first{other}")
    with locked(path):
        data_dir = list_directory(path)
        reports, findings = check(data_dir, select(data_dir), running=False, max_msg_size=max_msg_size)
        work = Repair(data_dir, reports, copy, adopt_orphans, max_msg_size)
        if not work.is_needed or confirm.dry_run:
            queues = [Saved(each.queue.name, each.messages, each.lost) for each in reports if each.needs_repair]
            plan = {"directory": path, "copy": None, "kept": None, "queues": queues}
            blocks: list[Block] = [*problem_blocks(findings)]
            if not work.is_needed:
                blocks.append(Line((("Nothing to repair", Tone.GOOD), (".", Tone.PLAIN))))
            else:
                blocks.append(table_of(Saved, queues, empty="No queues."))
                blocks += [Line.of(f"nsqd.dat would list {', '.join(work.adopted)}.")] if work.adopted else []
                blocks.append(Line.of(f"The copy would be {copy}. Nothing was done."))
            return Shown(plan | {"adopted": work.adopted, "left": findings}, blocks, table_of(Saved, queues))
        if replace:
            messages = plural(sum(each.messages for each in reports), "message")
            warning = f"{path}, with {messages} readable, is renamed to {kept}, and replaced by its repaired copy."
            confirm.ask(warning, [*problem_blocks(findings)], "Go on?")
        with reading(f"writing {os.path.basename(copy)}", work.size) as advance:
            repaired = work.run(advance)
        left = _check_copy(reports, copy, path if replace else copy, max_msg_size)
        if replace:
            exchange(path, copy, kept)
    saved: list[Block] = [table_of(Saved, repaired, empty="No queues."), *problem_blocks(left)]
    if work.adopted:
        saved.append(Line.of(f"nsqd.dat lists {', '.join(work.adopted)}."))
    if data_dir.passed_over:
        saved.append(Line.of(f"Not copied: {', '.join(sorted(data_dir.passed_over))}.", Tone.NOTE))
    if replace:
        saved.append(Line.of(f"{path} is repaired; the original is {kept}."))
    else:
        saved.append(Line.of(f"The repaired copy is {copy}; {path} is unchanged. To swap them:"))
        saved += [Line.of(shlex.join(["mv", *names]), Tone.NODE) for names in ((path, kept), (copy, path))]
    final = {"directory": path, "copy": path if replace else copy, "kept": kept if replace else None}
    return Shown(final | {"queues": repaired, "adopted": work.adopted, "left": left}, saved)


def _check_copy(reports: list[QueueReport], copy: str, name: str, max_msg_size: int) -> list[DataProblem]:
    """Verifies that the copy has every message. Returns the problems left in it, with commands for the final name."""
    data_dir = list_directory(copy)
    data_dir.path = name
    copied, findings = check(data_dir, select(data_dir), running=False, max_msg_size=max_msg_size)
    there = {each.queue.name: each.messages + each.held for each in copied}
    for each in reports:
        if there.get(each.queue.name, 0) != each.messages + each.held:
            text = f"the copy {copy} differs from what was written, in queue {each.queue.name}"
            raise AdminError(f"{text}; the disk may be faulty")
    return findings


@command(
    examples="""
        gnsqadmin data recover-bad /var/lib/nsqd --dry-run
        gnsqadmin data recover-bad /var/lib/nsqd
        gnsqadmin data recover-bad /var/lib/nsqd --topic orders --to lost.ndjson.gz
    """,
    document=("directory\nfile     the file of --to, or null\nmessages", described("files", "list", BadFile)),
)
def recover_bad(
    output: Output,
    directory: str = directory_argument,
    target: str | None = option(
        "Write the messages to FILE, as export does, and change nothing. nsqd may be running.",
        click.Path(dir_okay=False, allow_dash=True),
        "--to",
    ),
    appending: bool = flag("Append to FILE if it exists.", "--append"),
    everything: bool = flag(
        "Also recover messages that were or may have been delivered: they may come twice.", "--all"
    ),
    dry_run: bool = flag("Only show what would be recovered.", "--dry-run", "-n"),
    which: Which = which_option,
    max_msg_size: int = max_size_option,
) -> int:
    """nsqd sets a file aside at the first damage. nsqd has delivered the messages before the damage. This command
    recovers the messages after it. Of a file without damage, it is unknown which messages were delivered: all, unless
    the log of nsqd reports that it could not open the file, or read at a wrong position. --all recovers all of them.

    The messages are added to the end of their queue, and the file is renamed to .bad.recovered. nsqd must be stopped,
    and a damaged queue must be repaired first. --to writes the messages to a file instead, which gnsqadmin load can
    publish.
    """
    with ExitStack() as stack:
        changing = target is None and not dry_run
        if changing:
            stack.enter_context(locked(directory, ", or --to writes the messages to a file"))
        data_dir = list_directory(directory)
        queues = select(data_dir, which)
        size = sum(sum(queue.bad.values()) for queue in queues)
        files = []
        lines = None
        if target is not None and not dry_run:
            lines = MessageFile(stack.enter_context(ArchiveWriter(target, append=appending)))
        advance = stack.enter_context(reading("recovering", size, quiet=target == DASH))
        for queue in queues:
            for number in sorted(queue.bad):
                path, bad = queue.path(number, bad=True), BadFile(queue.file_name(number, bad=True), queue.name)
                payloads = bad.read(path, everything=everything, max_msg_size=max_msg_size, advance=advance)
                files.append(bad)
                if changing:
                    try:
                        put_back(queue, path, payloads, data_dir)
                    except AdminError as error:
                        bad.recovered, bad.error = 0, str(error)
                    continue
                for payload in payloads:
                    if lines is not None:
                        lines.add(queue, payload)
        if lines is not None:
            lines.flush()
    messages = sum(bad.recovered for bad in files)
    count = plural(messages, "message")
    summary = f"{count} {'is' if messages == 1 else 'are'} back in the queue."
    if dry_run:
        summary = f"{count} would be recovered. Nothing was done."
    elif target is not None:
        summary = f"Wrote {count} to {target}. No queue was changed."
    if target == DASH and not dry_run:
        note(f"{count} of {plural(len(files), 'file')}")
    else:
        document = {"directory": directory, "file": lines and target, "messages": messages, "files": files}
        blocks: list[Block] = [table_of(BadFile, files, empty="No files were set aside.")]
        if unknown := sum(bad.unknown for bad in files) * (not everything):
            text = f"It is unknown whether {plural(unknown, 'message')} of files without damage were delivered; --all"
            blocks.append(Line.of(f"{text} recovers them.", Tone.NOTE))
        output.show(document, [*blocks, *([Line.of(summary)] if messages else [])])
    return report([AdminError(f"{bad.file}: {bad.error}") for bad in files if bad.error])


def _parse_time(text: str) -> int:
    try:
        return parse_moment(text)
    except ValueError:
        forms = "a time ago (-15m), or a time with its zone (2026-11-23T14:00:00Z)"
        raise ValueError(f"{printable(repr(text), 100)} is not {forms}.") from None


@command(
    examples="""
        gnsqadmin data restore s3://backup/nsqd-1 /var/lib/nsqd
        gnsqadmin data restore s3://backup/nsqd-1 /mnt/before --until -2h
        gnsqadmin data restore 's3://nsq/a?endpoint=http://nas:7070' /var/lib/nsqd --json
    """,
    document=(
        """
        url
        number   of the object that ends the restored state
        time     when it was written, unix seconds
        host     that wrote it
        is_newest
                 false: the log goes on after it
        """,
        *_VERIFIED,
    ),
)
def restore(
    url: str = argument(),
    directory: str = argument(click.Path(file_okay=False)),
    until: int | None = option(
        "Restore the last state that is not newer: a time ago (-15m), or a time with its zone (2026-11-23T14:00:00Z).",
        Parsed("time", _parse_time),
        metavar="TIME",
    ),
    max_msg_size: int = max_size_option,
) -> Shown:
    """URL is the --log-store of a gnsqd. DIRECTORY is made, or must be empty; files belong to the user who runs the
    command, which should be gnsqd's. If it is interrupted, run it again: it continues. At the end, everything is
    checked as by data verify.

    A gnsqd that is started on DIRECTORY with the same --log-store continues the log, unless another one has done so
    meanwhile: then it refuses to start, so that nothing is overwritten.
    """
    store = LogStore(url)
    last = restore_log(store, directory, until)
    is_newest = store.size(wal_path(last.number + 1)) < 0
    about = Cell(f"object {last.number:,} of {url}, written by {last.host} at {moment(last.time)}")
    everything = Which("", "")
    shown = _verified(list_directory(directory), everything, running=False, max_msg_size=max_msg_size, state=about)
    text = "gnsqd continues the log with this --data-path and --log-store."
    if not is_newest:
        text = "The log goes on after this state: gnsqd does not start here with this --log-store. Start it without, "
        text += "or with another URL, where a new log begins."
    state = {"url": url, "number": last.number, "time": last.time / 1e9, "host": last.host, "is_newest": is_newest}
    return replace(shown, document=state | shown.document, blocks=[*shown.blocks, Line.of(text)])
