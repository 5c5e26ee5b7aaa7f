"""`gnsqadmin data export`: writes the messages of a data directory to a file."""

from typing import Any

import click

from nsqadmin_cli.archive import STDOUT, ArchiveWriter
from nsqadmin_cli.command import command
from nsqadmin_cli.commands.data import directory_argument, queue_options, reading, saved_table, select
from nsqadmin_cli.datadir.directory import list_directory
from nsqadmin_cli.datadir.exporting import MessageFile, export_queue
from nsqadmin_cli.datadir.lock import describe_holder, is_held
from nsqadmin_cli.datadir.queue import Saved
from nsqadmin_cli.errors import AdminError
from nsqadmin_cli.message import DOCUMENT
from nsqadmin_cli.options import output_options
from nsqadmin_cli.output import Output, note, report
from nsqadmin_cli.table import Line
from nsqadmin_cli.text import plural


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
@click.option("--append", is_flag=True, help="Append to FILE if it exists.")
@queue_options
@output_options
@click.pass_context
def export(
    ctx: click.Context,
    output: Output,
    directory: str,
    file: str,
    append: bool,
    topic: str,
    channel: str,
    max_msg_size: int,
) -> None:
    """Write the messages of a data directory to a file.

    FILE has one line per message, a JSON document that gnsqadmin load can publish; - is standard output, and a name
    that ends in .gz is compressed. Messages are in nsqd's order of delivery, once for every channel that has them;
    messages behind damage are included.

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
        output.show(
            lambda: _document(directory, file, messages, exported),
            lambda: [saved_table("queue", exported), Line.of(_outcome(messages, file))],
        )
    errors = [
        AdminError(f"{each.queue}: {plural(each.lost_bytes, 'byte')} could not be read as messages")
        for each in exported
        if each.lost_bytes
    ]
    ctx.exit(report(errors))


def _document(directory: str, file: str, messages: int, exported: list[Saved]) -> dict[str, Any]:
    queues = [each._asdict() for each in exported]
    return {"directory": directory, "file": file, "messages": messages, "queues": queues}


def _outcome(messages: int, file: str) -> str:
    return f"Wrote {plural(messages, 'message')} to {file}." if messages else f"No messages; {file} was not written."
