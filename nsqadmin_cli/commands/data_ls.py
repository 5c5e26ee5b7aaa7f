"""`gnsqadmin data ls`: lists the queues of a data directory. It only reads, so nsqd may be running."""

import time
from typing import Any

import click

from nsqadmin_cli.command import command
from nsqadmin_cli.commands.data import directory_argument, head, select
from nsqadmin_cli.datadir.directory import METADATA, DataDirectory, Queue, list_directory
from nsqadmin_cli.datadir.due_times import read_due_times
from nsqadmin_cli.datadir.journals import count_messages
from nsqadmin_cli.datadir.lock import is_held
from nsqadmin_cli.datadir.queue import make_plan, oldest
from nsqadmin_cli.errors import AdminError
from nsqadmin_cli.options import output_options
from nsqadmin_cli.output import Output
from nsqadmin_cli.table import ALWAYS, Block, Cell, Column, Form, Line, Table, Tone
from nsqadmin_cli.text import plural


@command(
    "ls",
    examples="""
        gnsqadmin data ls /var/lib/nsqd
        gnsqadmin data ls . --topic orders
        gnsqadmin data ls /var/lib/nsqd --json | jq '.queues[] | select(.bad_files > 0)'
    """,
    document="""
        directory
        running  whether an nsqd runs on it
        metadata_error
                 null, or why nsqd.dat cannot be read
        queues   list: queue, topic, channel (null: the queue of the topic itself),
                 listed (whether nsqd.dat has it; null if that cannot be read),
                 paused, messages (null without a usable meta file), journaled
                 (messages in the journal; null if that cannot be read), bytes,
                 files, bad_files, oldest (unix seconds or null), due_times
                 (deferred messages), problem (null, or a text)
        journals list, of gnsqd with --durability: topic, files, bytes
    """,
)
@directory_argument
@click.option("--topic", default="", metavar="NAME", help="Only this topic and its channels.")
@click.option("--channel", default="", metavar="NAME", help="Only channels of this name.")
@output_options
def ls(output: Output, directory: str, topic: str, channel: str) -> None:
    """List the queues in a data directory: their messages, and the age of the oldest.

    DIRECTORY is nsqd's --data-path. Counts are from the meta files, which is fast; data verify reads everything.
    Messages in the memory of a running nsqd are missing. A topic's own queue has the messages that are not in its
    channels yet.

    If gnsqd keeps a journal, a column shows each queue's messages in it, as the newest journal file lists them,
    including messages in flight and deferred messages. After a killed conversion, the queue's files are copies of them.
    """
    found = list_directory(directory)
    running = is_held(directory)
    journaled, unreadable = _count_journaled(found, topic)
    rows = [_facts(found, queue, journaled, unreadable) for queue in select(found, topic, channel)]
    journals = [
        {"topic": journal.topic, "files": len(journal.numbers), "bytes": journal.size}
        for journal in found.select_journals(topic)
    ]
    output.show(
        lambda: {
            "directory": directory,
            "running": running,
            "metadata_error": found.metadata_error or None,
            "queues": rows,
            "journals": journals,
        },
        lambda: [*head(found, running), _queue_table(rows, with_journal=bool(journals)), *_journal_table(journals)],
        lambda: _queue_table(rows, with_journal=True),
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


def _facts(found: DataDirectory, queue: Queue, journaled: dict[str, int], unreadable: dict[str, str]) -> dict[str, Any]:
    plan = make_plan(queue)
    problem = unreadable.get(queue.name, "")
    if plan.meta is None and (queue.numbers or queue.has_meta):
        problem = plan.meta_error
    elif plan.missing:
        problem = plan.missing
    return {
        "queue": queue.name,
        "topic": queue.topic,
        "channel": queue.channel or None,
        "listed": None if found.listed is None else queue.name in found.listed,
        "paused": found.is_paused(queue),
        "messages": plan.meta.depth if plan.meta else None if queue.numbers or queue.has_meta else 0,
        "journaled": None if queue.topic in unreadable else journaled.get(queue.name, 0),
        "bytes": queue.size,
        "files": len(queue.numbers),
        "bad_files": len(queue.bad),
        "oldest": oldest(queue, plan),
        "due_times": len(read_due_times(queue).due),
        "problem": problem or None,
    }


def _queue_table(facts: list[dict[str, Any]], *, with_journal: bool) -> Table:
    counts = ["messages", *["journaled"] * with_journal, "bytes", "files", "bad_files"]
    columns = (
        Column("queue", "queue"),
        Column("messages", "messages", "msgs", Form.COUNT, ALWAYS),
        *[Column("journaled", "in journal", "jrnl", Form.COUNT, ALWAYS)] * with_journal,
        Column("bytes", "size", form=Form.BYTES, keep=7),
        Column("files", "files", form=Form.COUNT, keep=4),
        Column("bad_files", "bad", form=Form.COUNT, keep=6, tone=Tone.NOTE),
        Column("oldest", "oldest", form=Form.DURATION, keep=6),
        Column("due_times", "deferred", "def", Form.COUNT, keep=5),
        Column("state", "state", keep=ALWAYS, tone=Tone.NOTE),
    )
    table = Table(columns, empty="No queues.")
    now = time.time()
    for row in facts:
        age = None if row["oldest"] is None else max(0.0, now - row["oldest"])
        state = ["paused"] * row["paused"] + [f"not in {METADATA}"] * (row["listed"] is False)
        tone = Tone.BAD if row["problem"] else None
        text = Cell(", ".join([*state, *([row["problem"]] if row["problem"] else [])]), tone)
        name = Cell(row["queue"], None if row["channel"] else Tone.STRONG)
        table.rows.append([name, *(row[key] for key in counts), age, row["due_times"], text])
    if len(facts) > 1:
        sums = [sum(row[key] or 0 for row in facts) for key in (*counts, "due_times")]
        table.total = [plural(len(facts), "queue"), *sums[:-1], None, sums[-1], None]
    return table


def _journal_table(facts: list[dict[str, Any]]) -> list[Block]:
    if not facts:
        return []
    columns = (
        Column("topic", "journal of"),
        Column("bytes", "size", form=Form.BYTES, keep=ALWAYS),
        Column("files", "files", form=Form.COUNT, keep=4),
    )
    return [Line(), Table(columns, [[row["topic"], row["bytes"], row["files"]] for row in facts])]
