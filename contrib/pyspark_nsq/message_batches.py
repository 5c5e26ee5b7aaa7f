"""Which rows of a frame go together into an MPUB, or a row of DPUBs.

Rows go by topic and delay, and as many together as `batchSize` and `batchBytes` allow. Nothing waits for the next
Arrow batch (10,000 rows, unless Spark is configured otherwise), so memory is bounded by that.
"""

import logging
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import pyarrow as pa

from pyspark_nsq.errors import InvalidRow
from pyspark_nsq.option_values import TOPIC
from pyspark_nsq.settings import Settings

_log = logging.getLogger(__name__)

_SIZE_OF_SIZE = 4  # bytes in front of each message of an MPUB


class Columns(NamedTuple):
    """Where in a frame the columns stand that matter; None for columns that it does not have."""

    value: int
    topic: int | None
    defer_ms: int | None


class MessageBatch(NamedTuple):
    """Messages to publish at once."""

    topic: str
    defer_ms: int
    bodies: list[bytes]


def message_batches(rows: pa.RecordBatch, columns: Columns, settings: Settings) -> Iterator[MessageBatch]:
    """All messages of an Arrow batch; InvalidRow, before the first one, if a row has none that could be published and
    invalid rows are not to be skipped."""
    skip = settings.invalid_rows == "skip"
    bodies: list[bytes] = rows.column(columns.value).cast(pa.binary()).to_pylist()
    total = len(bodies)
    if not all(bodies):
        if not skip:
            what = "NULL" if None in bodies else "empty"
            raise InvalidRow(f"the column value is {what} in a row: nsqd takes no message without a body")
        rows = rows.take(pa.array([index for index, body in enumerate(bodies) if body], pa.int64()))
        bodies = [body for body in bodies if body]
    groups = _grouped(rows, columns, settings.topic, bodies, skip)
    if skipped := total - sum(map(len, groups.values())):
        _log.warning("%d of %d rows are not published: no body, or an invalid topic or delay", skipped, total)
    for (topic, defer_ms), group in groups.items():
        for batch in _cut(group, settings.batch_size, settings.batch_bytes):
            yield MessageBatch(topic, defer_ms, batch)


def _grouped(
    rows: pa.RecordBatch, columns: Columns, topic: str | None, bodies: list[bytes], skip: bool
) -> dict[tuple[str, int], list[bytes]]:
    """Bodies by topic and delay. An option `topic` prevails over the column. `skip`: leave out invalid ones."""
    count = len(bodies)
    topics = [topic] * count if topic or columns.topic is None else rows.column(columns.topic).to_pylist()
    delays = [0] * count if columns.defer_ms is None else rows.column(columns.defer_ms).to_pylist()
    groups: dict[tuple[str | None, int | None], list[bytes]] = {}
    for key, body in zip(zip(topics, delays, strict=True), bodies, strict=True):
        group = groups.get(key)
        if group is None:
            groups[key] = [body]
        else:
            group.append(body)
    checked: dict[tuple[str, int], list[bytes]] = {}
    for (name, delay), group in groups.items():
        try:
            checked.setdefault((_topic(name), _delay(delay)), []).extend(group)
        except InvalidRow:
            if not skip:
                raise
    return checked


def _topic(name: str | None) -> str:
    if name is None:
        raise InvalidRow("the column topic is NULL in a row, and there is no option 'topic'")
    try:
        TOPIC.read(name)
    except ValueError as error:
        raise InvalidRow(f"the column topic is {name!r} in a row: {error}") from None
    return name


def _delay(milliseconds: int | None) -> int:
    if milliseconds is not None and milliseconds < 0:
        raise InvalidRow(f"the column defer_ms is {milliseconds} in a row: expected milliseconds from 0 on")
    return milliseconds or 0


def _cut(bodies: Iterable[bytes], most: int, most_bytes: int) -> Iterator[list[bytes]]:
    """Pieces of at most that many messages and bytes; a larger message is a piece by itself."""
    batch: list[bytes] = []
    room = most_bytes
    for body in bodies:
        size = _SIZE_OF_SIZE + len(body)
        if batch and (size > room or len(batch) == most):
            yield batch
            batch, room = [], most_bytes
        batch.append(body)
        room -= size
    if batch:
        yield batch
