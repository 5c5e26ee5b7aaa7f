"""`gnsqadmin data export`, `convert`, `repair` and `recover-bad`: write the messages of a data directory elsewhere."""

import os
import shlex
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import click

from gnsq_shared.directory import DataDirectory, describe_holder, is_held, list_directory, locked
from gnsqd.errors import StartError, StorageError
from gnsqd.log import Level, Logger
from nsqadmin_cli.archive import STDOUT, ArchiveWriter
from nsqadmin_cli.command import command, option
from nsqadmin_cli.commands.data import (
    check,
    directory_argument,
    finding_blocks,
    max_msg_size_option,
    queue_options,
    reading,
    select,
)
from nsqadmin_cli.datadir.checking import Finding, Report, count_messages
from nsqadmin_cli.datadir.records import Saved
from nsqadmin_cli.datadir.recovering import MessageFile, bad_files, export_queue, put_back
from nsqadmin_cli.datadir.repairing import Repair, exchange
from nsqadmin_cli.errors import AdminError
from nsqadmin_cli.message import DOCUMENT
from nsqadmin_cli.output import Confirm, Output, note, report
from nsqadmin_cli.table import ALWAYS, Block, Form, Line, Tone, column, described, json_only, table_of
from nsqadmin_cli.units import plural


@command(
    "export",
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
@directory_argument
@click.argument("file", type=click.Path(dir_okay=False, allow_dash=True))
@option("--append", is_flag=True, help="Append to FILE if it exists.")
@queue_options
@max_msg_size_option
def export(
    output: Output,
    directory: str,
    file: str,
    append: bool,
    topic: str,
    channel: str,
    max_msg_size: int,
) -> int:
    """Write the messages of a data directory to a file.

    FILE has one line per message, a JSON document that gnsqadmin load can publish; - is standard output, and a name
    that ends in .gz is compressed. Messages are in nsqd's order of delivery, once for every channel that has them;
    messages after the damage are included.

    The directory is not changed. nsqd may be running, but its messages in memory are missing.
    """
    found = list_directory(directory)
    if is_held(directory):
        note(f"Note: {directory} is in use by {describe_holder(directory)}; its messages in memory are missing.")
    if journals := found.select_journals(topic):
        left_out = plural(len(journals), "journal")
        note(f"Note: {left_out} left out; gnsqadmin data convert moves their messages to disk queues.")
    queues = select(found, topic, channel)
    size = sum(queue.size for queue in queues)
    with ArchiveWriter(file, append=append) as archive, reading("exporting", size, quiet=file == STDOUT) as advance:
        lines = MessageFile(archive)
        exported = [export_queue(queue, lines, max_msg_size, advance) for queue in queues]
        lines.flush()
    messages = sum(each.messages for each in exported)
    if file == STDOUT:
        note(f"{plural(messages, 'message')} of {plural(len(queues), 'queue')}")
    else:
        told = (
            f"Wrote {plural(messages, 'message')} to {file}." if messages else f"No messages; {file} was not written."
        )
        output.show(
            lambda: {"directory": directory, "file": file, "messages": messages, "queues": exported},
            lambda: [table_of(Saved, exported, empty="No queues."), Line.of(told)],
        )
    errors = [
        AdminError(f"{each.queue}: {plural(each.lost_bytes, 'byte')} could not be read as messages")
        for each in exported
        if each.lost_bytes
    ]
    return report(errors)


@dataclass(slots=True)
class ConvertedQueue:
    queue: str = column("queue")
    messages: int = column("messages", "msgs", Form.COUNT, ALWAYS)


@command(
    "convert",
    examples="""
        gnsqadmin data convert /var/lib/nsqd --dry-run
        gnsqadmin data convert /var/lib/nsqd && nsqd --data-path=/var/lib/nsqd
    """,
    document=("directory", described("queues", "list of queues with messages in a journal", ConvertedQueue)),
)
@directory_argument
@option("--dry-run", "-n", is_flag=True, help="Only show what would be converted.")
def convert(output: Output, directory: str, dry_run: bool) -> None:
    """Move the messages of journals to disk queues, which the real nsqd reads.

    gnsqd keeps journals with --durability, even after a clean exit. Starting gnsqd without that option does the same as
    this command. nsqd must be stopped. If the command is killed, run it again: no message is lost or duplicated.
    """
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
    table = table_of(ConvertedQueue, rows, empty="No messages in journals.")
    output.show(
        lambda: {"directory": directory, "queues": rows}, lambda: [table, *([Line.of(verdict)] if rows else [])]
    )


@command(
    "repair",
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
@directory_argument
@option("--to", "target", type=click.Path(), metavar="PATH", help="Path of the copy. [DIRECTORY.repaired]")
@option(
    "--replace",
    is_flag=True,
    help="Replace DIRECTORY by the copy, and keep the damaged directory as DIRECTORY.before-repair.",
)
@option("--adopt-orphans", is_flag=True, help="Add topics and channels to nsqd.dat that it does not list.")
@max_msg_size_option
def repair(
    output: Output,
    directory: str,
    target: str | None,
    replace: bool,
    adopt_orphans: bool,
    confirm: Confirm,
    max_msg_size: int,
) -> None:
    """Make a repaired copy of a data directory.

    The directory itself is not changed. Messages after the damage are recovered, counts and positions corrected,
    and an unusable nsqd.dat rebuilt (with nothing paused). nsqd must be stopped. Files set aside as .bad are left to
    data recover-bad.

    The copy is read again to verify it. --replace then replaces the directory by the copy.
    """
    path = os.path.realpath(directory)
    copy = os.path.abspath(target or f"{path}.repaired")
    kept = f"{path}.before-repair"
    if os.path.commonpath([path, os.path.realpath(copy)]) == path:
        raise click.UsageError(f"the copy cannot be inside {path}")
    for name in (copy, kept) if replace else (copy,):
        if os.path.lexists(name):
            raise AdminError(
                f"{name} already exists; remove it first" + ", or specify another path by --to" * (name == copy)
            )
    with locked(path):
        found = list_directory(path)
        reports, findings = check(found, select(found, "", ""), running=False, max_msg_size=max_msg_size)
        work = Repair(found, reports, copy, adopt=adopt_orphans, max_msg_size=max_msg_size)
        if not work.is_needed or confirm.dry_run:
            damaged = [each for each in reports if each.needs_repair]
            output.show(
                lambda: _document(path, None, None, _preview(damaged), work.adopted, findings),
                lambda: [*finding_blocks(findings), *_plan(work, damaged, copy)],
                lambda: table_of(Saved, _preview(damaged), empty="No queues."),
            )
            return
        if replace:
            messages = plural(sum(each.messages for each in reports), "message")
            warning = f"{path}, with {messages} readable, is renamed to {kept}, and replaced by its repaired copy."
            confirm.ask(warning, [*finding_blocks(findings)], "Go on?")
        with reading(f"writing {os.path.basename(copy)}", work.size) as advance:
            repaired = work.run(advance)
        left = _check_copy(reports, copy, path if replace else copy, max_msg_size)
        if replace:
            exchange(path, copy, kept)
    output.show(
        lambda: _document(path, path if replace else copy, kept if replace else None, repaired, work.adopted, left),
        lambda: [
            table_of(Saved, repaired, empty="No queues."),
            *finding_blocks(left),
            *_outcome(found, work.adopted, path, copy, kept if replace else ""),
        ],
    )


def _check_copy(reports: list[Report], copy: str, name: str, max_msg_size: int) -> list[Finding]:
    """Verify that the copy has every message. Returns the problems left in it, with commands for the final name."""
    found = list_directory(copy)
    found.path = name
    copied, findings = check(found, select(found, "", ""), running=False, max_msg_size=max_msg_size)
    there = {each.queue.name: each.messages + each.held for each in copied}
    for each in reports:
        if there.get(each.queue.name, 0) != each.messages + each.held:
            raise AdminError(
                f"the copy {copy} differs from what was written, in queue {each.queue.name}; the disk may be faulty"
            )
    return findings


def _preview(damaged: list[Report]) -> list[Saved]:
    return [Saved(each.queue.name, each.messages, sum(tally.lost for tally in each.files.values())) for each in damaged]


def _plan(work: Repair, damaged: list[Report], copy: str) -> list[Block]:
    """What a repair would do."""
    if not work.is_needed:
        return [Line((("Nothing to repair", Tone.GOOD), (".", Tone.PLAIN)))]
    blocks: list[Block] = [table_of(Saved, _preview(damaged), empty="No queues.")]
    if work.adopted:
        blocks.append(Line.of(f"nsqd.dat would list {', '.join(work.adopted)}."))
    return [*blocks, Line.of(f"The copy would be {copy}. Nothing was done.")]


def _outcome(found: DataDirectory, adopted: list[str], path: str, copy: str, kept: str) -> list[Block]:
    blocks: list[Block] = []
    if adopted:
        blocks.append(Line.of(f"nsqd.dat lists {', '.join(adopted)}."))
    if found.passed_over:
        blocks.append(Line.of(f"Not copied: {', '.join(sorted(found.passed_over))}.", Tone.NOTE))
    if kept:
        blocks.append(Line.of(f"{path} is repaired; the original is {kept}."))
    else:
        blocks.append(Line.of(f"The repaired copy is {copy}; {path} is unchanged. To swap them:"))
        blocks.append(Line.of(f"mv {shlex.quote(path)} {shlex.quote(kept or path + '.before-repair')}", Tone.NODE))
        blocks.append(Line.of(f"mv {shlex.quote(copy)} {shlex.quote(path)}", Tone.NODE))
    return blocks


def _document(
    path: str, copy: str | None, kept: str | None, repaired: list[Saved], adopted: list[str], left: list[Finding]
) -> dict[str, Any]:
    return {"directory": path, "copy": copy, "kept": kept, "queues": repaired, "adopted": adopted, "left": left}


@dataclass(slots=True)
class BadRow:
    """What was recovered of a file that was set aside."""

    file: str = column("file")
    queue: str = json_only()
    delivered: int = column(
        "delivered before", "before", Form.COUNT, keep=5, help="messages before the damage, which nsqd had read"
    )
    recovered: int = column("recovered", "rec", Form.COUNT, ALWAYS)
    lost_bytes: int = column("lost", form=Form.BYTES, keep=ALWAYS, tone=Tone.BAD, help="unreadable")
    error: str = column("error", keep=6, tone=Tone.BAD, null=True, help="null, or why nothing was recovered")


@command(
    "recover-bad",
    examples="""
        gnsqadmin data recover-bad /var/lib/nsqd --dry-run
        gnsqadmin data recover-bad /var/lib/nsqd
        gnsqadmin data recover-bad /var/lib/nsqd --topic orders --to lost.ndjson.gz
    """,
    document=("directory\nfile     the file of --to, or null\nmessages", described("files", "list", BadRow)),
)
@directory_argument
@option(
    "--to",
    "target",
    type=click.Path(dir_okay=False, allow_dash=True),
    metavar="FILE",
    help="Write the messages to FILE, as export does, and change nothing. nsqd may be running.",
)
@option("--append", "appending", is_flag=True, help="Append to FILE if it exists.")
@option(
    "--all", "everything", is_flag=True, help="Also recover messages before the damage, which are then delivered twice."
)
@option("--dry-run", "-n", is_flag=True, help="Only show what would be recovered.")
@queue_options
@max_msg_size_option
def recover_bad(
    output: Output,
    directory: str,
    target: str | None,
    appending: bool,
    everything: bool,
    dry_run: bool,
    topic: str,
    channel: str,
    max_msg_size: int,
) -> int:
    """Recover the messages in files that nsqd set aside as .bad.

    nsqd sets a file aside at the first damage. nsqd has delivered the messages before the damage. This command recovers
    the messages after it. A file without damage was read completely, unless the log of nsqd reports that it could not
    be opened; in that case, recover it with --all.

    The messages are added to the end of their queue, and the file is renamed to .bad.recovered. nsqd must be stopped,
    and a damaged queue must be repaired first. --to writes the messages to a file instead, which gnsqadmin load can
    publish.
    """
    errors: list[AdminError] = []
    with ExitStack() as stack:
        changing = target is None and not dry_run
        if changing:
            stack.enter_context(locked(directory, ", or --to writes the messages to a file"))
        found = list_directory(directory)
        select(found, topic, channel)
        files = bad_files(found, topic, channel)
        size = sum(bad.queue.bad[bad.number] for bad in files)
        lines = None
        if target is not None and not dry_run:
            lines = MessageFile(stack.enter_context(ArchiveWriter(target, append=appending)))
        advance = stack.enter_context(reading("recovering", size, quiet=target == STDOUT))
        for bad in files:
            if changing:
                try:
                    put_back(bad, found, everything=everything, max_msg_size=max_msg_size, advance=advance)
                except AdminError as error:
                    bad.found, bad.error = 0, str(error)
                    errors.append(AdminError(f"{bad.name}: {error}"))
                continue
            for payload in bad.read(everything=everything, max_msg_size=max_msg_size, advance=advance):
                if lines is not None:
                    lines.add(bad.queue, payload)
        if lines is not None:
            lines.flush()
    messages = sum(bad.found for bad in files)
    rows = [BadRow(bad.name, bad.queue.name, bad.delivered, bad.found, bad.lost_bytes, bad.error) for bad in files]
    told = f"{plural(messages, 'message')} {'is' if messages == 1 else 'are'} back in the queue."
    if dry_run:
        told = f"{plural(messages, 'message')} would be recovered. Nothing was done."
    elif target is not None:
        told = f"Wrote {plural(messages, 'message')} to {target}. No queue was changed."
    if target == STDOUT and not dry_run:
        note(f"{plural(messages, 'message')} of {plural(len(files), 'file')}")
    else:
        output.show(
            lambda: {"directory": directory, "file": lines and target, "messages": messages, "files": rows},
            lambda: [table_of(BadRow, rows, empty="No files were set aside."), *([Line.of(told)] if messages else [])],
        )
    return report(errors)
