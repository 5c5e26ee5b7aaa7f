"""`gnsqadmin load`: publishes messages saved by `gnsqadmin save`."""

import itertools
import time
from collections import Counter
from collections.abc import Sequence

import click

from nsqadmin_cli.archive import Line, read_archive
from nsqadmin_cli.cluster import Cluster
from nsqadmin_cli.command import Name, command
from nsqadmin_cli.completion import complete_topics
from nsqadmin_cli.errors import AdminError
from nsqadmin_cli.lines import InputError, name_of, size_of, spread
from nsqadmin_cli.output import Advance, Output, note, progress, report
from nsqadmin_cli.publisher import Publisher, rate_option, show_by_topic
from nsqadmin_cli.text import plural

_PATIENCE = 20.0  # seconds that all nodes may be away


@command(
    "load",
    examples="""
        gnsqadmin load orders.ndjson.gz
        gnsqadmin load orders.ndjson orders_test --rate 200
        gnsqadmin load orders.ndjson --from-line 40001
        zcat *.gz | gnsqadmin load - --dry-run
    """,
    document="""
        topics   list: topic, messages published to it (with --dry-run: to publish)
        messages, bytes, seconds
                 what was published, and the duration
        nodes    list: address, messages that it accepted
    """,
)
@click.argument("file", type=click.Path(dir_okay=False, allow_dash=True))
@click.argument("topic", type=Name("topic"), default=None, required=False, shell_complete=complete_topics)
@click.option(
    "--from-line", "start", type=click.IntRange(1), default=1, metavar="N", help="Start at line N of the file."
)
@click.option("--dry-run", is_flag=True, help="Only read the file, and show what would be published.")
@rate_option
def load(
    cluster: Cluster,
    output: Output,
    file: str,
    topic: str | None,
    start: int,
    dry_run: bool,
    rate: float,
) -> int:
    """Publish the messages of a file that gnsqadmin save, tail --json or data export wrote.

    They are published to their original topics, or to TOPIC. The file may be compressed with gzip; - is standard input.

    Each line is a JSON object with "body" or "body_base64", and "topic" unless TOPIC is given. Messages get a new id
    and timestamp. At an invalid line, or when nodes refuse a message, load stops and prints the line to continue from.
    """
    publisher = None if dry_run else Publisher(cluster.nsqds(), patience=_PATIENCE, rate=rate)
    run = _Run(publisher)
    started = time.monotonic()
    try:
        with progress("reading" if dry_run else "publishing", size_of(file), "bytes") as advance:
            for lines, size in read_archive(file, start=start):
                published = spread(advance, size, len(lines) + 1)
                for name, group in itertools.groupby(lines, lambda line: topic or line.topic):
                    run.take(name, list(group), file, published)
                published(1)  # for lines that are left out
    except (AdminError, KeyboardInterrupt) as error:
        told = f"{plural(run.messages, 'message')} {'read' if dry_run else 'published'}"
        if run.last:
            told += f", up to line {run.last}; continue with --from-line {run.last + 1}"
        if isinstance(error, KeyboardInterrupt):
            note(f"Interrupted: {told}")
            raise
        raise AdminError(f"{error}; {told}") from None
    show_by_topic(output, run.topics, run.bytes, time.monotonic() - started, publisher)
    return report(cluster.lookupd_errors)


class _Run:
    """Progress: messages by topic, their bytes, and `last`, the line up to which all are published."""

    def __init__(self, publisher: Publisher | None) -> None:
        self.publisher = publisher
        self.topics: Counter[str] = Counter()
        self.bytes = 0
        self.last = 0

    @property
    def messages(self) -> int:
        return self.topics.total()

    def take(self, topic: str, lines: Sequence[Line], file: str, published: Advance) -> None:
        if not topic:
            raise InputError(f"line {lines[0].number:,} of {name_of(file)} has no topic; give TOPIC")
        bodies = [line.body for line in lines]
        counts = [len(lines)] if self.publisher is None else self.publisher.publish(topic, bodies)
        done = 0
        for count in counts:
            self.bytes += sum(map(len, bodies[done : done + count]))
            done += count
            self.topics[topic] += count
            self.last = lines[done - 1].number
            published(count)
