"""`gnsqadmin data convert`: moves messages from journals, which only gnsqd reads, to disk queues."""

import click

from gnsqd.errors import StartError, StorageError
from gnsqd.log import Level, Logger
from nsqadmin_cli.command import command
from nsqadmin_cli.commands.data import directory_argument
from nsqadmin_cli.datadir.directory import list_directory
from nsqadmin_cli.datadir.journals import count_messages
from nsqadmin_cli.datadir.lock import locked
from nsqadmin_cli.errors import AdminError
from nsqadmin_cli.output import Output
from nsqadmin_cli.table import ALWAYS, Column, Form, Line, Table
from nsqadmin_cli.text import plural


@command(
    "convert",
    examples="""
        gnsqadmin data convert /var/lib/nsqd --dry-run
        gnsqadmin data convert /var/lib/nsqd && nsqd --data-path=/var/lib/nsqd
    """,
    document="""
        directory
        queues   list of queues with messages in a journal: queue, messages
    """,
)
@directory_argument
@click.option("--dry-run", "-n", is_flag=True, help="Only show what would be converted.")
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
    columns = (Column("queue", "queue"), Column("messages", "messages", "msgs", Form.COUNT, ALWAYS))
    table = Table(columns, [[name, count] for name, count in counts.items()], empty="No messages in journals.")
    output.show(
        lambda: {
            "directory": directory,
            "queues": [{"queue": name, "messages": count} for name, count in counts.items()],
        },
        lambda: [table, Line.of(verdict)] if counts else [table],
        lambda: table,
    )
