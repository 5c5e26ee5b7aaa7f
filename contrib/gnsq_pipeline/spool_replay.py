"""Publishes messages that are in a spool again: those of a stream whose checkpoint is gone. Needs no Spark."""

from gnsq_pipeline.errors import PipelineError
from gnsq_pipeline.spool_report import find
from pyspark_nsq.columns import unpack
from pyspark_nsq.errors import NsqSourceError, SpoolError
from pyspark_nsq.message_batches import Columns, message_batches
from pyspark_nsq.publishing import Publisher
from pyspark_nsq.schema import COLUMNS
from pyspark_nsq.segment import Kind, read_segment
from pyspark_nsq.settings import Settings
from pyspark_nsq.spool import Spool

_NAMES = [name for name, _ in COLUMNS]
_COLUMNS = Columns(_NAMES.index("value"), _NAMES.index("topic"), None)


def replay(
    directory: str, stream: str, settings: Settings | None, *, to_topic: str | None, committed: bool
) -> list[dict[str, object]]:
    """Publish the messages of the stream whose id begins with `stream`, to the nsqds of `settings`; None: only count.

    Each goes to its own topic, or to `to_topic`. `committed`: also those of committed batches that are still there.
    Returns a row for each topic with `messages`, `bytes` and `damaged`, segments that cannot be read. PipelineError
    when no nsqd takes a message, NotFound when there is no such stream.
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
