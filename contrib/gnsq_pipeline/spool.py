"""`gnsq-pipeline spool`: the streams of spools, and the messages of one published again.

Needs no Spark, and pyarrow only when a command runs.
"""

from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import click

from gnsq_pipeline.errors import NotFound, PipelineError, UsageError
from gnsq_pipeline.options import (
    DESTINATION,
    DIRECTORY,
    DRY_RUN,
    JSON,
    SPOOL,
    TO_TOPIC,
    Rows,
    command,
    nsq_options,
    option,
    show_rows,
)
from pyspark_nsq.errors import NsqSourceError, SpoolError
from pyspark_nsq.options import Settings, parse

if TYPE_CHECKING:
    from pyspark_nsq.retention import StreamReport

STREAM = click.Argument(["stream"])


@click.group(short_help="List the streams of a spool, or publish the messages of one again.")
def spool() -> None:
    """List the streams of a spool, or publish the messages of one again.

    DIRECTORY is a spool, or the output of a pipeline that contains its spool. STREAM is the beginning of a stream's id.
    """


def reports(directory: str) -> Iterator[tuple[str, "StreamReport"]]:
    """Every stream of a spool, or of the spools in an output, with its spool; SpoolError if one cannot be read."""
    from pyspark_nsq.retention import inspect

    locations = [directory]
    if "://" not in directory:
        if not Path(directory).is_dir():
            raise NotFound(f"{directory}: no such directory")
        if (inside := Path(directory) / SPOOL).is_dir():
            locations = sorted(str(found) for found in inside.iterdir() if found.is_dir())
    for location in locations:
        yield from ((location, report) for report in inspect(location))


def find(given: SimpleNamespace) -> tuple[str, "StreamReport"]:
    """The one stream whose id begins with STREAM; NotFound or UsageError otherwise."""
    found = [(path, report) for path, report in reports(given.directory) if report.stream.startswith(given.stream)]
    if not found:
        raise NotFound(f"{given.directory}: no stream {given.stream}")
    if len(found) > 1:
        raise UsageError(f"{given.stream}: the begin of {', '.join(report.stream for _, report in found)}")
    return found[0]


@command(spool, "list", DIRECTORY, JSON)
def list_streams(given: SimpleNamespace) -> Rows:
    """List the streams: batches, segments, messages, suspects (ids whose FIN is in doubt), bytes."""
    return [
        {"spool": path, **{name: value for name, value in asdict(report).items() if name != "session"}}
        | {"created": datetime.fromtimestamp(report.created, UTC), "topics": ",".join(report.topics)}
        for path, report in reports(given.directory)
    ]


@command(
    spool, "replay", DIRECTORY, STREAM, *DESTINATION, TO_TOPIC,
    option("--all", "committed", is_flag=True, help="Include committed messages that are still there."),
    DRY_RUN, JSON,
)  # fmt: skip
def replay(given: SimpleNamespace) -> None:
    """Publish the uncommitted messages of a stream whose checkpoint is lost.

    The spool keeps them, so a second run publishes them again.
    """
    settings = None if given.dry_run else parse(nsq_options(given, "write"), "write")
    rows = publish(*find(given), settings, given.topic, given.committed)
    show_rows(rows, given.as_json)
    if damaged := sum(int(str(row["damaged"])) for row in rows):
        raise PipelineError(f"{damaged} segments are damaged: their messages are not published")


def publish(
    location: str, report: "StreamReport", settings: Settings | None, to_topic: str | None, committed: bool
) -> Rows:
    """Publish the messages of a stream to the nsqds of `settings`; None: only count.

    Each goes to its own topic, or to `to_topic`. `committed`: also those of committed batches that are still there.
    Returns a row for each topic with `messages`, `bytes` and `damaged`, segments that cannot be read. PipelineError
    if no nsqd takes a message.
    """
    from pyspark_nsq.columns import Messages
    from pyspark_nsq.message_batches import cut
    from pyspark_nsq.publishing import Publisher
    from pyspark_nsq.segment import EntryKind, read_segment
    from pyspark_nsq.spool import Spool

    stored = Spool(location, report.stream, strict=False)
    limits = settings or Settings()
    publisher = Publisher(settings) if settings else None
    rows: dict[str, dict[str, int]] = {}

    def row_of(topic: str) -> dict[str, int]:
        return rows.setdefault(topic, {"messages": 0, "bytes": 0, "damaged": 0})

    try:
        for batch in stored.batches():
            if batch <= report.committed_batch and not committed:
                continue
            for _, chain in stored.chains(batch):
                for entry in chain.entries:
                    if entry.kind not in (EntryKind.SEGMENT, EntryKind.LOST):
                        continue
                    try:
                        found = Messages.unpacked(*read_segment(entry))
                    except (SpoolError, OSError):  # also which of the stream's topics it had is lost
                        row_of(to_topic or ", ".join(report.topics))["damaged"] += 1
                        continue
                    for topic, messages in found.items():
                        row, bodies = row_of(to_topic or topic), messages.batch.column("value").cast("large_binary")
                        for one in cut(to_topic or topic, 0, bodies, limits):
                            if publisher is not None:
                                publisher.publish(one)
                            row["messages"] += one.messages
                            row["bytes"] += one.body_bytes
    except (NsqSourceError, OSError) as error:
        sent = sum(row["messages"] for row in rows.values())
        raise PipelineError(f"stopped after {sent:,} messages: {error}") from None
    finally:
        if publisher is not None:
            publisher.close()
    if publisher is not None and report.session:
        stored.mark_named()
    return [{"stream": report.stream, "topic": topic, **row} for topic, row in sorted(rows.items())]
