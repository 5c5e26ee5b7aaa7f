"""Puts rows of a frame together into MPUBs, or rows of DPUBs.

Rows go by topic and delay, and as many together as `batchSize` and `batchBytes` allow. Nothing waits for the next
Arrow batch (10,000 rows, unless Spark is configured otherwise), so memory is bounded by that.
"""

import base64
import json
import logging
from bisect import bisect_right
from collections.abc import Iterator
from struct import pack
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_nsq.errors import InvalidRow
from pyspark_nsq.option_values import TOPIC
from pyspark_nsq.options import Settings

_SIZE = 4  # bytes in front of a body

_log = logging.getLogger(__name__)


class Columns(NamedTuple):
    """Places in a frame of the columns that matter; None for columns that it does not have."""

    value: int
    topic: int | None
    defer_ms: int | None


class MessageBatch(NamedTuple):
    """Messages to publish at once: in `data` their bodies, each behind its size of 4 bytes, as in an MPUB."""

    topic: str
    defer_ms: int
    messages: int  # how many
    data: bytes | memoryview


def message_batches(rows: pa.RecordBatch, columns: Columns, settings: Settings) -> Iterator[MessageBatch]:
    """Yields all messages of an Arrow batch. With the policy `fail`, raises InvalidRow first if a row is invalid."""
    groups, invalid = _grouped(rows, columns, settings.topic)
    if invalid:
        policy = settings.invalid_rows
        if policy == "fail":
            raise invalid[0].error
        done = "are not published" if policy == "skip" else f"are published to {policy.replace(':', ' ')}"
        count = sum(len(one.bodies) for one in invalid)
        _log.warning("%d of %d rows %s: no body, or an invalid topic or delay", count, rows.num_rows, done)
        if policy != "skip":
            letters = [letter for one in invalid for letter in one.dead_letters()]
            groups.setdefault((policy.removeprefix("topic:"), 0), []).append(pa.array(letters, pa.large_binary()))
    for (topic, defer_ms), bodies in groups.items():
        yield from cut(topic, defer_ms, pa.concat_arrays(bodies), settings)


def cut(topic: str, defer_ms: int, bodies: pa.LargeBinaryArray, settings: Settings) -> Iterator[MessageBatch]:
    """Yields messages with these bodies, as many at once as `batchSize` and `batchBytes` allow; a larger one by itself.

    There is no Python object for a body.
    """
    count = len(bodies)
    sizes = pack(f">{count}I", *pc.binary_length(bodies).to_pylist())
    heads = pa.Array.from_buffers(pa.binary(_SIZE), count, [None, pa.py_buffer(sizes)]).cast(pa.large_binary())
    joined = pc.binary_join_element_wise(heads, bodies, pa.scalar(b"", pa.large_binary()))
    _, offsets, values = joined.buffers()
    edges, data = memoryview(offsets).cast("q"), memoryview(values).cast("B")
    begin = 0
    while begin < count:
        most = min(begin + settings.batch_size, count)
        fitting = bisect_right(edges, edges[begin] + settings.batch_bytes, begin + 1, most + 1) - 1
        end = max(begin + 1, fitting)
        yield MessageBatch(topic, defer_ms, end - begin, data[edges[begin] : edges[end]])
        begin = end


class _Invalid(NamedTuple):
    """Rows that are invalid for the same reason."""

    error: InvalidRow
    topic: str | None
    defer_ms: int | None
    bodies: pa.LargeBinaryArray

    def dead_letters(self) -> Iterator[bytes]:
        """Yields a JSON object for each row: reason, topic, defer_ms, and value, or value_base64 if it is not UTF-8."""
        row: dict[str, object] = {"reason": str(self.error), "topic": self.topic, "defer_ms": self.defer_ms}
        for body in self.bodies.to_pylist():
            try:
                value: dict[str, object] = {"value": None if body is None else body.decode()}
            except UnicodeDecodeError:
                value = {"value_base64": base64.b64encode(body).decode()}
            yield json.dumps(row | value).encode()


def _grouped(
    rows: pa.RecordBatch, columns: Columns, topic: str | None
) -> tuple[dict[tuple[str, int], list[pa.LargeBinaryArray]], list[_Invalid]]:
    """Returns bodies by topic and delay, and invalid rows. An option `topic` prevails over the column."""
    count = rows.num_rows
    bodies = rows.column(columns.value).cast(pa.large_binary())
    has_topics = topic is None and columns.topic is not None
    topics = rows.column(columns.topic) if has_topics else pa.repeat(pa.scalar(topic, pa.string()), count)
    delays = pa.repeat(0, count) if columns.defer_ms is None else rows.column(columns.defer_ms)
    has_body = pc.greater(pc.fill_null(pc.binary_length(bodies), 0), 0)
    numbers = pc.cumulative_sum(pa.repeat(1, count), start=-1)
    table = pa.table({"topic": topics, "delay": delays, "has_body": has_body, "row": numbers})
    found = table.group_by(["topic", "delay", "has_body"], use_threads=False).aggregate([("row", "list")])
    valid: dict[tuple[str, int], list[pa.LargeBinaryArray]] = {}
    invalid = []
    keys = zip(*(found[name].to_pylist() for name in ("topic", "delay", "has_body")), strict=True)
    for (name, delay, is_full), one in zip(keys, found["row_list"], strict=True):
        group = bodies.take(one.values)
        try:
            if not is_full:
                what = "NULL" if group.null_count else "empty"
                raise InvalidRow(f"the column value is {what} in a row: nsqd takes no message without a body")
            valid.setdefault((_topic(name), _delay(delay)), []).append(group)
        except InvalidRow as error:
            invalid.append(_Invalid(error, name, delay, group))
    return valid, invalid


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
