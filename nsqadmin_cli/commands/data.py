"""`gnsqadmin data verify`, which only reads, and the parts that commands for data directories share."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click

from nsqadmin_cli.command import AdminOption, command
from nsqadmin_cli.datadir.checking import Checker, Finding, Report, Severity
from nsqadmin_cli.datadir.directory import METADATA, DataDirectory, Queue, list_directory
from nsqadmin_cli.datadir.journals import JournalReport, check_journals
from nsqadmin_cli.datadir.lock import describe_holder, is_held
from nsqadmin_cli.datadir.queue import Saved
from nsqadmin_cli.datadir.records import DEFAULT_MAX_MSG_SIZE, Advance
from nsqadmin_cli.errors import ExitCode, NotFound
from nsqadmin_cli.options import output_options
from nsqadmin_cli.output import Output, note
from nsqadmin_cli.table import ALWAYS, Block, Cell, Column, Form, Grid, Line, Paragraph, Row, Table, Tone
from nsqadmin_cli.text import plural

Function = Callable[..., Any]

_WHICH = "Which queues"
_MARGIN = 8
_QUICKLY_READ = 20_000_000  # bytes

directory_argument = click.argument("directory", type=click.Path(exists=True, file_okay=False))
max_msg_size_option = click.option(
    "--max-msg-size",
    type=click.IntRange(1),
    default=DEFAULT_MAX_MSG_SIZE,
    show_default=True,
    metavar="BYTES",
    help="The --max-msg-size of nsqd, which treats larger messages as damage.",
)


def queue_options(function: Function) -> Function:
    """`--topic`, `--channel` and `--max-msg-size`: parameters of these names."""
    for option in (
        max_msg_size_option,
        click.option(
            "--channel", cls=AdminOption, section=_WHICH, default="", metavar="NAME", help="Only channels of this name."
        ),
        click.option(
            "--topic",
            cls=AdminOption,
            section=_WHICH,
            default="",
            metavar="NAME",
            help="Only this topic and its channels.",
        ),
    ):
        function = option(function)
    return function


def select(found: DataDirectory, topic: str, channel: str) -> list[Queue]:
    """The queues that the options select; NotFound without any."""
    queues = found.select(topic, channel)
    if not queues and not (found.select_journals(topic) and not channel) and (topic or channel):
        what = f"the topic {topic}" if topic else f"the channel {channel}"
        raise NotFound(f"{found.path} does not have {what}" + f" and its channel {channel}" * bool(topic and channel))
    return queues


@contextmanager
def reading(description: str, size: int, *, quiet: bool = False) -> Iterator[Advance]:
    """Progress in bytes, of work that may take over a second."""
    if quiet or size < _QUICKLY_READ or not sys.stderr.isatty():
        yield lambda count: None
        return
    from nsqadmin_cli.render.progress import progress  # imported late: it loads slowly

    with progress(description, total=size, unit="bytes") as advance:
        yield advance


def head(found: DataDirectory, running: bool) -> list[Block]:
    """The directory, the process that uses it, and errors in nsqd.dat."""
    facts: list[Sequence[Cell | str]] = [[Cell("directory", Tone.FAINT), Cell(found.path, Tone.STRONG)]]
    if running:
        facts.append([Cell("in use by", Tone.FAINT), Cell(describe_holder(found.path), Tone.NODE)])
    if found.listed is None:
        facts.append([Cell(METADATA, Tone.FAINT), Cell(found.metadata_error, Tone.BAD)])
    return [Grid(facts)]


@command(
    "verify",
    examples="""
        gnsqadmin data verify /var/lib/nsqd
        gnsqadmin data verify /var/lib/nsqd --topic orders --json | jq .findings
        gnsqadmin data verify /var/lib/nsqd && systemctl start gnsqd
    """,
    document="""
        directory
        running  whether an nsqd runs on it
        sound    whether there is no damage
        queues   list: queue, messages, bytes (of bodies), held (deferred messages
                 that gnsqd keeps outside the queue), sound
        journals list, of gnsqd with --durability: topic, messages, bytes, queues
                 (name and messages of each that has some), sound
        findings list: severity ("damage" or "note"), queue (null: the directory),
                 file, position (bytes; null: the whole file), text, command (or null)
    """,
)
@directory_argument
@queue_options
@output_options
@click.pass_context
def verify(ctx: click.Context, output: Output, directory: str, topic: str, channel: str, max_msg_size: int) -> None:
    """Read all files of a data directory, and report damage and how to repair it.

    Damage is what nsqd has lost, would lose, or cannot start with; a note is harmless, or corrected by nsqd itself. The
    exit code is 1 if there is damage.

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
    output.show(
        lambda: _verify_document(found, running, reports, journals, findings),
        lambda: [
            *head(found, running),
            _verify_table(reports),
            *_verified_journals(journals),
            *finding_blocks(findings),
            _verdict(reports, journals, findings),
        ],
        lambda: _finding_table(findings),
    )
    ctx.exit(ExitCode.FAILED if _damage(findings) else ExitCode.OK)


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


def saved_table(heading: str, rows: Sequence[Saved]) -> Table:
    """A row for each queue with the messages that were saved from it."""
    columns = (
        Column("queue", heading),
        Column("messages", "messages", "msgs", Form.COUNT, ALWAYS),
        Column("lost_bytes", "lost", form=Form.BYTES, keep=ALWAYS, tone=Tone.BAD),
    )
    return Table(columns, [*rows], empty="No queues.")


def _damage(findings: list[Finding]) -> int:
    return sum(finding.severity is Severity.DAMAGE for finding in findings)


def _verify_document(
    found: DataDirectory,
    running: bool,
    reports: list[Report],
    journals: list[JournalReport],
    findings: list[Finding],
) -> dict[str, Any]:
    return {
        "directory": found.path,
        "running": running,
        "sound": not _damage(findings),
        "queues": [
            {
                "queue": each.queue.name,
                "messages": each.messages,
                "bytes": each.bytes,
                "held": each.held,
                "sound": not each.damaged,
            }
            for each in reports
        ],
        "journals": [
            {
                "topic": each.journal.topic,
                "messages": each.messages,
                "bytes": each.journal.size,
                "queues": [{"queue": name, "messages": count} for name, count in each.queues.items() if count],
                "sound": not each.damaged,
            }
            for each in journals
        ],
        "findings": [finding.as_json() for finding in findings],
    }


def _verify_table(reports: list[Report]) -> Table:
    table = Table(
        (
            Column("queue", "queue"),
            Column("messages", "messages", "msgs", Form.COUNT, ALWAYS),
            Column("bytes", "bytes", form=Form.BYTES, keep=7),
            Column("held", "deferred", "def", Form.COUNT, keep=5),
            Column("state", "state", keep=ALWAYS),
        ),
        empty="No queues.",
    )
    for each in reports:
        state = Cell("damaged", Tone.BAD) if each.damaged else Cell("sound", Tone.GOOD)
        name = Cell(each.queue.name, None if each.queue.channel else Tone.STRONG)
        table.rows.append([name, each.messages, each.bytes, each.held, state])
    if len(reports) > 1:
        sums = [sum(each.messages for each in reports), sum(each.bytes for each in reports)]
        table.total = [plural(len(reports), "queue"), *sums, sum(each.held for each in reports), None]
    return table


def _verified_journals(journals: list[JournalReport]) -> list[Block]:
    """A row for each queue that has messages in a journal."""
    if not journals:
        return []
    columns = (
        Column("queue", "in a journal"),
        Column("messages", "messages", "msgs", Form.COUNT, ALWAYS),
        Column("bytes", "size", form=Form.BYTES, keep=7),
        Column("state", "state", keep=ALWAYS),
    )
    table = Table(columns)
    for each in journals:
        state = Cell("damaged", Tone.BAD) if each.damaged else Cell("sound", Tone.GOOD)
        table.rows.append([Cell(each.journal.topic, Tone.STRONG), each.messages, each.journal.size, state])
        for name, count in each.queues.items():
            if count and name != each.journal.topic:
                table.rows.append([name, count, None, None])
    return [Line(), table]


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


def _finding_table(findings: list[Finding]) -> Table:
    columns = ("severity", "queue", "file", "position", "text", "command")
    rows: list[Row] = [list(one.as_json().values()) for one in findings]
    return Table([Column(key, key) for key in columns], rows)


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
