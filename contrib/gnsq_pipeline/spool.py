"""What is in spools, as rows for people: streams, the batches of one, their removal, and their messages published
again. Needs no Spark."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from gnsq_pipeline.errors import NotFound, PipelineError, UsageError
from gnsq_pipeline.options import SPOOL
from pyspark_nsq.columns import unpack
from pyspark_nsq.errors import NsqSourceError, SpoolError
from pyspark_nsq.message_batches import Columns, message_batches
from pyspark_nsq.publishing import Publisher
from pyspark_nsq.retention import StreamReport, inspect, remove_stream
from pyspark_nsq.schema import COLUMNS
from pyspark_nsq.segment import Kind, read_segment
from pyspark_nsq.settings import Settings
from pyspark_nsq.spool import Spool

Rows = list[dict[str, object]]

_NAMES = [name for name, _ in COLUMNS]
_COLUMNS = Columns(_NAMES.index("value"), _NAMES.index("topic"), None)


def reports(directory: str) -> Iterator[tuple[Path, StreamReport]]:
    """Every stream of a spool, or of the spools in an output, with its spool; PipelineError if one cannot be read."""
    path = Path(directory)
    if not path.is_dir():
        raise NotFound(f"{directory}: no such directory")
    inside = path / SPOOL
    for spool in sorted(found for found in inside.iterdir() if found.is_dir()) if inside.is_dir() else [path]:
        try:
            for report in inspect(str(spool)):
                yield spool, report
        except SpoolError as error:
            raise PipelineError(str(error)) from None


def stream_rows(directory: str) -> Rows:
    """A row for each stream."""
    return [
        {
            "spool": str(spool),
            "stream": report.stream,
            "kind": report.kind,
            "created": datetime.fromtimestamp(report.created, UTC),
            "topics": ",".join(report.topics),
            "channel": report.channel,
            "committed_batch": report.committed,
            "batches": len(report.batches),
            "segments": sum(batch.segments for batch in report.batches),
            "messages": sum(batch.messages for batch in report.batches),
            "uncommitted_messages": sum(batch.messages for batch in report.uncommitted),
            "known_ids": report.ids,
            "suspects": report.suspects + sum(batch.suspects for batch in report.uncommitted),
            "bytes": report.bytes,
            "damaged": sum(batch.damaged for batch in report.batches),
        }
        for spool, report in reports(directory)
    ]


def batch_rows(directory: str, stream: str) -> Rows:
    """A row for each batch of the stream whose id begins with `stream`."""
    names = ("batch", "committed", "chains", "ended", "segments", "messages", "suspects", "bytes", "damaged")
    shown = {"chains": "tasks", "ended": "ended_tasks"}
    _, report = find(directory, stream)
    return [{shown.get(name, name): getattr(batch, name) for name in names} for batch in report.batches]


def find(directory: str, stream: str) -> tuple[Path, StreamReport]:
    """The one stream whose id begins with `stream`; NotFound or UsageError otherwise."""
    found = [(spool, report) for spool, report in reports(directory) if report.stream.startswith(stream)]
    if not found:
        raise NotFound(f"{directory}: no stream {stream}")
    if len(found) > 1:
        raise UsageError(f"{stream}: the begin of {', '.join(report.stream for _, report in found)}")
    return found[0]


def remove(directory: str, stream: str, with_uncommitted: bool) -> Rows:
    """Remove a stream; PipelineError if it has uncommitted messages and `with_uncommitted` is false."""
    spool, report = find(directory, stream)
    messages = sum(batch.messages for batch in report.uncommitted)
    if messages and report.kind != "read" and not with_uncommitted:
        raise PipelineError(
            f"stream {report.stream}: {messages:,} messages are not committed and would be lost; "
            "run the query to its end first, or use --with-uncommitted"
        )
    return [_removed(spool, report.stream)]


def prune(directory: str, age: float) -> Rows:
    """Remove what batch reads that began more than `age` seconds ago left; a row for each."""
    limit = time.time() - age
    old = [(spool, report) for spool, report in reports(directory) if report.kind == "read" and report.created < limit]
    return [_removed(spool, report.stream) for spool, report in old]


def _removed(spool: Path, stream: str) -> dict[str, object]:
    try:
        return {"stream": stream, "removed_bytes": remove_stream(str(spool), stream)}
    except (SpoolError, OSError) as error:
        raise PipelineError(str(error)) from None


def replay(directory: str, stream: str, settings: Settings | None, *, to_topic: str | None, committed: bool) -> Rows:
    """Publish the messages of the stream whose id begins with `stream`, to the nsqds of `settings`; None: only count.

    Each goes to its own topic, or to `to_topic`. `committed`: also those of committed batches that are still there.
    Returns a row for each topic with `messages`, `bytes` and `damaged`, segments that cannot be read. PipelineError
    if no nsqd takes a message, NotFound if there is no such stream.
    """
    location, report = find(directory, stream)
    spool = Spool(str(location), report.stream, strict=False)
    publisher = Publisher(settings) if settings is not None else None
    rows: dict[str, dict[str, int]] = {}
    try:
        for batch in report.batches if committed else report.uncommitted:
            for topic, nsqd, chain in spool.chains(batch.batch):
                chain.refresh()
                row = rows.setdefault(to_topic or topic, {"messages": 0, "bytes": 0, "damaged": 0})
                for entry in chain.entries:
                    if entry.kind not in (Kind.SEGMENT, Kind.LOST):
                        continue
                    try:
                        ids, payload = read_segment(entry)
                        found = unpack(ids, payload, topic=topic, channel=report.channel, nsqd=nsqd)
                    except (SpoolError, OSError):
                        row["damaged"] += 1
                        continue
                    for messages in message_batches(found, _COLUMNS, settings or Settings()):
                        if publisher is not None:
                            publisher.publish(messages.topic, messages.bodies)
                        row["messages"] += len(messages.bodies)
                        row["bytes"] += sum(map(len, messages.bodies))
    except (NsqSourceError, OSError) as error:
        sent = sum(row["messages"] for row in rows.values())
        raise PipelineError(f"stopped after {sent:,} messages: {error}") from None
    finally:
        if publisher is not None:
            publisher.close()
    return [{"stream": report.stream, "topic": topic, **row} for topic, row in sorted(rows.items())]
