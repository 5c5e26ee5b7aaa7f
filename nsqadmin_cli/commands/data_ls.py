"""`gnsqadmin data ls`: lists the queues of a data directory. It only reads, so nsqd may be running."""

import time
from dataclasses import dataclass

import click

from nsqadmin_cli.command import command
from nsqadmin_cli.commands.data import directory_argument, head, select
from nsqadmin_cli.datadir.directory import METADATA, DataDirectory, Queue, list_directory
from nsqadmin_cli.datadir.due_times import read_due_times
from nsqadmin_cli.datadir.journals import count_messages
from nsqadmin_cli.datadir.lock import is_held
from nsqadmin_cli.datadir.queue import make_plan, oldest
from nsqadmin_cli.errors import AdminError
from nsqadmin_cli.output import Output
from nsqadmin_cli.table import ALWAYS, Cell, Form, Line, Table, Tone, described, shown, table_of, told
from nsqadmin_cli.text import plural


@dataclass(slots=True)
class QueueRow:
    """A queue in the directory. `age` and `oldest` are those of its first unread message."""

    queue: Cell = shown("queue")
    topic: str = told()
    channel: str = told("null: the queue of the topic itself", null=True)
    listed: bool | None = told("whether nsqd.dat has it; null if that cannot be read")
    paused: bool = told()
    messages: int | None = shown("messages", "msgs", Form.COUNT, ALWAYS, help="null without a usable meta file")
    journaled: int | None = shown(
        "in journal", "jrnl", Form.COUNT, ALWAYS, help="messages in the journal; null if that cannot be read"
    )
    bytes: int = shown("size", form=Form.BYTES, keep=7)
    files: int = shown("files", form=Form.COUNT, keep=4)
    bad_files: int = shown("bad", form=Form.COUNT, keep=6, tone=Tone.NOTE)
    age: float | None = shown("oldest", key="oldest", form=Form.DURATION, keep=6, json=False)
    oldest: float | None = told("unix seconds or null")
    due_times: int = shown("deferred", "def", Form.COUNT, keep=5, help="deferred messages")
    state: Cell = shown("state", keep=ALWAYS, tone=Tone.NOTE, json=False)
    problem: str = told("null, or a text", null=True)


@dataclass(slots=True)
class JournalRow:
    topic: str = shown("journal of")
    bytes: int = shown("size", form=Form.BYTES, keep=ALWAYS)
    files: int = shown("files", form=Form.COUNT, keep=4)


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
@click.option("--topic", default="", metavar="NAME", help="Only this topic and its channels.")
@click.option("--channel", default="", metavar="NAME", help="Only channels of this name.")
def ls(output: Output, directory: str, topic: str, channel: str) -> None:
    """List the queues in a data directory: their messages, and the age of the oldest.

    DIRECTORY is nsqd's --data-path. Counts are from the meta files, which is fast; data verify reads everything.
    Messages in the memory of a running nsqd are missing. A topic's own queue has the messages that are not in its
    channels yet.

    If gnsqd keeps a journal, a column shows each queue's messages in it, as the newest journal file lists them,
    including messages in flight and deferred messages. If an exit was killed, the files of the queue hold copies.
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
        problem = plan.missing
    first = oldest(queue, plan)
    row = QueueRow(Cell(queue.name, None if queue.channel else Tone.STRONG), queue.topic, queue.channel)
    row.listed = None if found.listed is None else queue.name in found.listed
    row.paused = found.is_paused(queue)
    row.messages = plan.meta.depth if plan.meta else None if queue.numbers or queue.has_meta else 0
    row.journaled = None if queue.topic in unreadable else journaled.get(queue.name, 0)
    row.bytes, row.files, row.bad_files = queue.size, len(queue.numbers), len(queue.bad)
    row.age, row.oldest = None if first is None else max(0.0, time.time() - first), first
    row.due_times = len(read_due_times(queue).due)
    words = ["paused"] * row.paused + [f"not in {METADATA}"] * (row.listed is False) + [problem] * bool(problem)
    row.state, row.problem = Cell(", ".join(words), Tone.BAD if problem else None), problem
    return row
