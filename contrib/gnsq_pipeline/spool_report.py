"""What is in spools, as rows for people: streams, the batches of one, and what may be removed."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from gnsq_pipeline.errors import NotFound, PipelineError, UsageError
from gnsq_pipeline.source import SPOOL
from pyspark_nsq.errors import SpoolError
from pyspark_nsq.retention import StreamReport, inspect, remove_stream


def spools(directory: str) -> list[Path]:
    """The spools at `directory`: itself, or, when it is an archive or a roll-up's output, the spools that it has."""
    path = Path(directory)
    if not path.is_dir():
        raise NotFound(f"{directory}: no such directory")
    inside = path / SPOOL
    return sorted(found for found in inside.iterdir() if found.is_dir()) if inside.is_dir() else [path]


def reports(directory: str) -> Iterator[tuple[Path, StreamReport]]:
    """Every stream of the spools at `directory`, with its spool; PipelineError when one can't be read."""
    for spool in spools(directory):
        try:
            for report in inspect(str(spool)):
                yield spool, report
        except SpoolError as error:
            raise PipelineError(str(error)) from None


def stream_rows(directory: str) -> list[dict[str, object]]:
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


def batch_rows(directory: str, stream: str) -> list[dict[str, object]]:
    """A row for each batch of the stream whose id begins with `stream`."""
    _, report = find(directory, stream)
    return [
        {
            "batch": batch.batch,
            "committed": batch.committed,
            "tasks": batch.chains,
            "ended_tasks": batch.ended,
            "segments": batch.segments,
            "messages": batch.messages,
            "suspects": batch.suspects,
            "bytes": batch.bytes,
            "damaged": batch.damaged,
        }
        for batch in report.batches
    ]


def find(directory: str, stream: str) -> tuple[Path, StreamReport]:
    """The one stream whose id begins with `stream`; NotFound or UsageError otherwise."""
    found = [(spool, report) for spool, report in reports(directory) if report.stream.startswith(stream)]
    if not found:
        raise NotFound(f"{directory}: no stream {stream}")
    if len(found) > 1:
        raise UsageError(f"{stream}: the begin of {', '.join(report.stream for _, report in found)}")
    return found[0]


def remove(directory: str, stream: str, with_uncommitted: bool) -> dict[str, object]:
    """Remove a stream; PipelineError when messages are only there and `with_uncommitted` doesn't allow for it."""
    spool, report = find(directory, stream)
    messages = sum(batch.messages for batch in report.uncommitted)
    if messages and report.kind != "read" and not with_uncommitted:
        raise PipelineError(
            f"stream {report.stream}: {messages:,} messages are not committed and would be lost; "
            "run the query to its end first, or use --with-uncommitted"
        )
    return {"stream": report.stream, "removed_bytes": _removed(spool, report.stream)}


def prune(directory: str, age: float) -> list[dict[str, object]]:
    """Remove what batch reads that began more than `age` seconds ago left; a row for each."""
    limit = time.time() - age
    old = [(spool, report) for spool, report in reports(directory) if report.kind == "read" and report.created < limit]
    return [{"stream": report.stream, "removed_bytes": _removed(spool, report.stream)} for spool, report in old]


def _removed(spool: Path, stream: str) -> int:
    try:
        return remove_stream(str(spool), stream)
    except (SpoolError, OSError) as error:
        raise PipelineError(str(error)) from None
