"""`gnsqadmin copy`, `save` and `load`: move messages to another topic or cluster, to a file, and back."""

import itertools
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import click

from nsqadmin_cli import units
from nsqadmin_cli.archive import DASH, ArchiveWriter, InputError, name_of, read_archive, size_of
from nsqadmin_cli.change import Shown
from nsqadmin_cli.cluster import Cluster
from nsqadmin_cli.command_base import ADDRESS, Name, argument, command, complete_contexts, flag, option
from nsqadmin_cli.consumer import Source, source_options, transfer
from nsqadmin_cli.context import ClusterContext, ClusterSettings
from nsqadmin_cli.http_client import Address
from nsqadmin_cli.message import DOCUMENT, MessageRow
from nsqadmin_cli.output import Advance, Output, explained, is_terminal, note, progress, report
from nsqadmin_cli.publisher import BY_TOPIC, PATIENCE, PUBLISHED, Sender, rate_option, shown_by_topic, shown_published
from nsqadmin_cli.table import Form, Line, column, table_of
from nsqadmin_cli.units import plural

_TO = "Where to"


@command(
    examples="""
        gnsqadmin copy orders orders_test --follow
        gnsqadmin copy orders --channel move --create --to-context new_cluster
        gnsqadmin copy orders --channel billing --to-nsqd-http-address b.example:4151
        gnsqadmin copy orders orders_test --from -1h --to -30m
    """,
    document=f"{PUBLISHED}\n        source, channel\n                 the topic and channel they were consumed from",
)
def copy(
    cluster: Cluster,
    topic: str,
    destination: str | None = argument(Name("topic"), required=False),
    to_nsqds: tuple[Address, ...] = option(
        "HTTP address of an nsqd to publish to. Without this and the next two options, publish to the source nodes.",
        ADDRESS,
        "--to-nsqd-http-address",
        section=_TO,
        multiple=True,
    ),
    to_lookupds: tuple[Address, ...] = option(
        "HTTP address of an nsqlookupd, to publish to all nodes that it lists.",
        ADDRESS,
        "--to-lookupd-http-address",
        section=_TO,
        multiple=True,
    ),
    to_context: str = option(
        "A saved context to publish to.", section=_TO, default="", metavar="NAME", shell_complete=complete_contexts
    ),
    rate: float = rate_option,
    source: Source = source_options,
) -> Shown:
    """With --channel, the messages of that channel are moved until it is empty. Each is finished only after a node of
    the destination has accepted it. Messages in flight when a run ends are requeued, so there may be duplicates, but
    none is lost.

    Without --channel, messages published from now on are copied, until Ctrl-C; other channels are not affected. If
    messages arrive faster than they can be copied, some may be missing in the copy.

    With --from, nothing is consumed: messages in the logs of nodes, or with --from-store in an object store, are
    copied, as with gnsqadmin save.

    A destination that cannot be reached is retried for 20 seconds. Messages get a new id and timestamp there.
    """
    target = cluster
    if to_nsqds or to_lookupds or to_context:
        context = ClusterContext(tuple(map(str, to_nsqds)), tuple(map(str, to_lookupds)))
        target = ClusterSettings(context, context_name=to_context).cluster()
    name = destination or topic
    nodes = target.nsqds()
    lookupd_errors = [] if target is cluster else target.lookupd_errors
    comes_from = [] if source.store or name != topic else cluster.nsqds()
    if {node.address for node in nodes} & {node.address for node in comes_from}:
        text = "source and destination are the same: give another DESTINATION, or another cluster"
        raise click.UsageError(f"{text}, as with --to-context.")
    publisher = Sender(nodes, patience=PATIENCE, rate=rate)

    def deliver(messages: Sequence[MessageRow], advance: Advance) -> None:
        for count in publisher.publish(name, [message.body for message in messages]):
            advance(count)

    errors, interrupted = transfer(
        cluster, topic, source, "copying", deliver, lambda: f"{plural(publisher.total, 'message')} copied to {name}"
    )
    shown = shown_published(publisher, name, {"source": topic, "channel": source.options.channel or None})
    return replace(shown, errors=[*errors, *lookupd_errors], is_interrupted=interrupted)


@dataclass(slots=True)
class SavedFile:
    """Messages that were saved; `bytes` are those of their bodies."""

    topic: str = column("topic")
    channel: str = column("channel", null=True)
    file: str = column("file")
    messages: int = column("messages", form=Form.COUNT, default=0)
    bytes: int = column("bytes", form=Form.COUNT, default=0)
    seconds: float = column("seconds", default=0.0)


@command(
    examples="""
        gnsqadmin save orders orders.ndjson.gz --channel archive
        gnsqadmin save orders - -n 100 | jq .body
        gnsqadmin save orders orders.ndjson --channel archive --create --follow
        gnsqadmin save orders orders.ndjson.gz --from -1h --to -30m
        gnsqadmin save orders old.ndjson.gz --from 2026-11-01T00:00:00Z --from-store s3://backup/nsqd-1
    """,
    document=f"""
        topic, channel, file, messages, bytes (of their bodies), seconds
        Each line of the file is a document:{DOCUMENT}
    """,
)
def save(
    cluster: Cluster,
    output: Output,
    topic: str,
    file: str = argument(click.Path(dir_okay=False, allow_dash=True)),
    append: bool = flag("Append to an existing file."),
    source: Source = source_options,
) -> int:
    """The file is compressed if its name ends in .gz; - is standard output. gnsqadmin load publishes the messages
    again.

    With --channel, the messages of that channel are moved to the file until the channel is empty. Each message is
    finished only after it is synced to disk. Messages in flight when a run ends are requeued, so there may be
    duplicates, but none is lost.

    Without --channel, messages published from now on are saved, until Ctrl-C. Messages that arrive while save does not
    run, or that arrive too fast, are not in the file.

    With --from, nothing is consumed: the logs of gnsqd nodes with --durability are saved from POINT up to, but not
    including, --to, and the number to continue from is printed. POINT is as for gnsqadmin topic range.

    With --from-store, the messages come from the object store in which a gnsqd with --log-store keeps its log, also
    when that gnsqd is gone, and as far back as --log-store-retention. POINT cannot be an id then.
    """
    started = time.monotonic()
    row = SavedFile(topic, source.options.channel, file)
    is_shown = not (file == DASH and is_terminal(sys.stdout))

    def deliver(messages: Sequence[MessageRow], advance: Advance) -> None:
        writer.write(messages)
        row.bytes += sum(len(message.body) for message in messages)
        row.messages = writer.messages
        advance(len(messages))

    def done() -> str:
        return f"{plural(row.messages, 'message')} saved to {file}"

    with ArchiveWriter(file, append=append) as writer:
        errors, interrupted = transfer(cluster, topic, source, "saving", deliver, done, shown=is_shown)
    row.seconds = round(time.monotonic() - started, 3)
    summary = f"Saved {plural(row.messages, 'message')} ({units.size(row.bytes)}) of {topic} to {file}"
    if not row.messages and file != DASH:
        summary = f"No messages of {topic}; {file} was not written"
    if file == DASH:
        note(summary)
    else:
        output.show(row, [Line.of(summary)], table_of(SavedFile, [row]))
    if interrupted:
        raise KeyboardInterrupt
    return report(errors)


@command(
    examples="""
        gnsqadmin load orders.ndjson.gz
        gnsqadmin load orders.ndjson orders_test --rate 200
        gnsqadmin load orders.ndjson --from-line 40001
        zcat *.gz | gnsqadmin load - --dry-run
    """,
    document=BY_TOPIC,
)
def load(
    cluster: Cluster,
    file: str = argument(click.Path(dir_okay=False, allow_dash=True)),
    topic: str | None = argument(Name("topic"), required=False),
    start: int = option("Start at line N of the file.", click.IntRange(1), "--from-line", default=1),
    dry_run: bool = flag("Only read the file, and show what would be published."),
    rate: float = rate_option,
) -> Shown:
    """They are published to their original topics, or to TOPIC. The file may be compressed with gzip; - is standard
    input.

    Each line is a JSON object with "body" or "body_base64", and "topic" unless TOPIC is given. Messages get a new id
    and timestamp. At an invalid line, or when nodes refuse a message, load stops and prints the line to continue from.
    """
    publisher = Sender(None if dry_run else cluster.nsqds(), patience=PATIENCE, rate=rate)
    last = 0  # all messages up to this line are published

    def done() -> str:
        count = f"{plural(publisher.total, 'message')} {'read' if dry_run else 'published'}"
        return f"{count}, up to line {last}; continue with --from-line {last + 1}" if last else count

    with explained(done), progress("reading" if dry_run else "publishing", size_of(file), "bytes") as advance:
        for lines, size in read_archive(file, start=start):
            share = size / (len(lines) + 1)  # of a message, and of lines that are left out
            for name, group in itertools.groupby(lines, lambda line: topic or line.topic):
                rest = list(group)
                if not name:
                    raise InputError(f"line {rest[0].number:,} of {name_of(file)} has no topic; give TOPIC")
                for count in publisher.publish(name, [line.body for line in rest]):
                    last, rest = rest[count - 1].number, rest[count:]
                    advance(share * count)
            advance(share)
    return replace(shown_by_topic(publisher), errors=cluster.lookupd_errors)
