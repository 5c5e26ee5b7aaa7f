"""`gnsqadmin save`: consumes messages and writes them to a file."""

import sys
import time
from collections.abc import Sequence

import click

from nsqadmin_cli import units
from nsqadmin_cli.archive import STDOUT, ArchiveWriter
from nsqadmin_cli.cluster import Cluster
from nsqadmin_cli.command import command, topic_argument
from nsqadmin_cli.consumer import Consumer
from nsqadmin_cli.consuming import Source, source_options
from nsqadmin_cli.errors import AdminError
from nsqadmin_cli.message import DOCUMENT
from nsqadmin_cli.output import Output, is_terminal, note, progress, report
from nsqadmin_cli.subscription import Received
from nsqadmin_cli.table import Column, Form, Line, Table
from nsqadmin_cli.text import plural
from nsqadmin_cli.transfer import look_at_rest, transfer


@command(
    "save",
    examples="""
        gnsqadmin save orders orders.ndjson.gz --channel archive
        gnsqadmin save orders - -n 100 | jq .body
        gnsqadmin save orders orders.ndjson --channel archive --create --follow
    """,
    document=f"""
        topic, channel, file, messages, bytes (of their bodies), seconds
        Each line of the file is a document:{DOCUMENT}
    """,
)
@topic_argument
@click.argument("file", type=click.Path(dir_okay=False, allow_dash=True))
@click.option("--append", is_flag=True, help="Append to an existing file.")
@source_options("save")
def save(cluster: Cluster, output: Output, topic: str, file: str, append: bool, source: Source) -> int:
    """Save messages to a file, one JSON document per line.

    The file is compressed if its name ends in .gz; - is standard output. gnsqadmin load publishes the messages again.

    With --channel, the messages of that channel are moved to the file until the channel is empty. Each is finished only
    after it is safely on disk. Messages in flight when a run ends are requeued, so there may be duplicates, but none is
    lost.

    Without --channel, messages published from now on are saved, until Ctrl-C. Messages that arrive while no save runs,
    or faster than they can be saved, are not in the file.
    """
    channel = source.wish.channel
    started = time.monotonic()
    size = 0

    def deliver(messages: Sequence[Received]) -> None:
        nonlocal size
        writer.write(messages)
        size += sum(len(message.body) for message in messages)
        advance(len(messages))

    total = source.count or (None if source.follow else look_at_rest(cluster, topic, channel).waiting or None)
    interrupted = False
    with ArchiveWriter(file, append=append) as writer, Consumer(cluster, [topic], source.wish) as consumer:
        consumer.start(create_channel=source.create, yes=source.yes)
        with progress("saving", total, shown=not (file == STDOUT and is_terminal(sys.stdout))) as advance:
            try:
                transfer(consumer, cluster, topic, channel, deliver, count=source.count, follow=source.follow)
            except KeyboardInterrupt:
                interrupted = True
            except AdminError as error:
                raise AdminError(f"{error}; {plural(writer.messages, 'message')} saved to {file}") from None
    consumer.warn()
    seconds = time.monotonic() - started
    told = f"Saved {plural(writer.messages, 'message')} ({units.size(size)}) of {topic} to {file}"
    row = [topic, channel, file, writer.messages, size, round(seconds, 3)]
    keys = ("topic", "channel", "file", "messages", "bytes", "seconds")
    if file == STDOUT:
        note(told)
    else:
        columns = [Column(key, key, form=Form.COUNT if key in ("messages", "bytes") else Form.TEXT) for key in keys]
        output.show(lambda: dict(zip(keys, row, strict=True)), lambda: [Line.of(told)], lambda: Table(columns, [row]))
    if interrupted:
        sys.stdout.flush()
        raise KeyboardInterrupt
    return report([*cluster.lookupd_errors, *consumer.errors])
