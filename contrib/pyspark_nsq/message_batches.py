"""Which rows of a frame go together into an MPUB, or a row of DPUBs.

Rows go by topic and delay, and as many together as `batchSize` and `batchBytes` allow. Nothing waits for the next
Arrow batch (10,000 rows, unless Spark is configured otherwise), so memory is bounded by that.
"""

import base64
import json
import logging
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple, cast

import pyarrow as pa

from gnsq_shared.client import batches
from pyspark_nsq.errors import InvalidRow
from pyspark_nsq.option_values import TOPIC
from pyspark_nsq.options import Settings

_log = logging.getLogger(__name__)


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
    """All messages of an Arrow batch. With the policy `fail`, InvalidRow before the first one if a row is invalid."""
    groups, invalid = _grouped(rows, columns, settings.topic)
    if invalid:
        policy = settings.invalid_rows
        if policy == "fail":
            raise invalid[0].error
        done = "are not published" if policy == "skip" else f"are published to {policy.replace(':', ' ')}"
        count = sum(len(one.bodies) for one in invalid)
        _log.warning("%d of %d rows %s: no body, or an invalid topic or delay", count, rows.num_rows, done)
        if policy != "skip":
            groups.setdefault((policy.removeprefix("topic:"), 0), []).extend(
                letter for one in invalid for letter in one.dead_letters()
            )
    for (topic, defer_ms), group in groups.items():
        for batch in batches(group, settings.batch_size, settings.batch_bytes):
            yield MessageBatch(topic, defer_ms, batch)


class _Invalid(NamedTuple):
    """Rows that are invalid for the same reason."""

    error: InvalidRow
    topic: str | None
    defer_ms: int | None
    bodies: list[bytes | None]

    def dead_letters(self) -> Iterator[bytes]:
        """A JSON object for each row: reason, topic, defer_ms, and value, or value_base64 if that is not UTF-8."""
        row: dict[str, object] = {"reason": str(self.error), "topic": self.topic, "defer_ms": self.defer_ms}
        for body in self.bodies:
            try:
                value: dict[str, object] = {"value": None if body is None else body.decode()}
            except UnicodeDecodeError:
                value = {"value_base64": base64.b64encode(body or b"").decode()}
            yield json.dumps(row | value).encode()


def _grouped(
    rows: pa.RecordBatch, columns: Columns, topic: str | None
) -> tuple[dict[tuple[str, int], list[bytes]], list[_Invalid]]:
    """Bodies by topic and delay, and invalid rows. An option `topic` prevails over the column."""
    count = rows.num_rows
    bodies: list[bytes | None] = rows.column(columns.value).cast(pa.binary()).to_pylist()
    has_one_topic = topic or columns.topic is None
    groups: dict[tuple[str | None, int | None, bool], list[bytes | None]] = defaultdict(list)
    if has_one_topic and columns.defer_ms is None and all(bodies):
        groups[topic, 0, True] = bodies
    else:
        topics = [topic] * count if has_one_topic else rows.column(columns.topic).to_pylist()
        delays = [0] * count if columns.defer_ms is None else rows.column(columns.defer_ms).to_pylist()
        for key, body in zip(zip(topics, delays, map(bool, bodies), strict=True), bodies, strict=True):
            groups[key].append(body)
    checked: dict[tuple[str, int], list[bytes]] = {}
    invalid = []
    for (name, delay, has_body), found in groups.items():
        try:
            if not has_body:
                what = "NULL" if None in found else "empty"
                raise InvalidRow(f"the column value is {what} in a row: nsqd takes no message without a body")
            checked.setdefault((_topic(name), _delay(delay)), []).extend(cast(list[bytes], found))
        except InvalidRow as error:
            invalid.append(_Invalid(error, name, delay, found))
    return checked, invalid


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
