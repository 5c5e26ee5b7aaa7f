"""Messages as Arrow columns: what is received, and the batches that Spark gets from it.

Columns are cut out of the received bytes in bulk: there is no Python object for each message.

Spark takes a batch only if its schema is exactly the declared one: `timestamp` is in microseconds, UTC. The whole
nanoseconds of NSQ are in `timestamp_ns`. (`nsqd`, `topic`, `message_id`) identifies a message. `offset` is its number
in the log of the topic, where ranges are read.
"""

import sys
from array import array
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from gnsqd.shared.client import FRAME_HEAD, Frames

MESSAGE_DDL = (
    "value BINARY, topic STRING, channel STRING, nsqd STRING, message_id STRING, "
    "timestamp TIMESTAMP, timestamp_ns LONG, attempts INT"
)
SCHEMA_DDL = f"{MESSAGE_DDL}, offset LONG"
MOMENT = pa.timestamp("us", tz="UTC")
_TYPES = {"BINARY": pa.binary(), "STRING": pa.string(), "TIMESTAMP": MOMENT, "LONG": pa.int64(), "INT": pa.int32()}
MESSAGE_SCHEMA = pa.schema([(name, _TYPES[kind]) for name, kind in map(str.split, MESSAGE_DDL.split(", "))])
ARROW_SCHEMA = MESSAGE_SCHEMA.append(pa.field("offset", pa.int64()))
_STORED = pa.schema([ARROW_SCHEMA.field(name) for name in ("value", "timestamp_ns", "attempts")])

ID_LENGTH = 16
_INT32_MAX = 2**31 - 1
_NATIVE = -1 if sys.byteorder == "little" else 1  # the order of bytes in Arrow's numbers; in NSQ's they are big-endian


class Messages(NamedTuple):
    """Messages by column: joined `ids` of 16 bytes, and a `batch` of `value`, `timestamp_ns` and `attempts`."""

    ids: bytes
    batch: pa.RecordBatch

    @classmethod
    def of(cls, received: Iterable[Frames]) -> "Messages":
        """Returns what was received."""
        parts = [cut(frames.data, frames.edges, FRAME_HEAD, 8) for frames in received]
        if len(parts) == 1:
            return parts[0]
        (batch,) = pa.Table.from_batches([part.batch for part in parts]).combine_chunks().to_batches()
        return cls(b"".join(part.ids for part in parts), batch)


def cut(data: bytes, edges: Sequence[int], head: int, number: int) -> Messages:
    """Returns the messages that are one behind the other in `data`.

    `edges` is where each begins, and where the last one ends. A message has `head` bytes before its body: from `number`
    on these are timestamp (8), attempts (2) and id (16).
    """
    count = len(edges) - 1
    bounds = pa.py_buffer(array("i", edges))
    messages = pa.Array.from_buffers(pa.binary(), count, [None, bounds, pa.py_buffer(data)])

    def bytes_of(begin: int, end: int) -> bytes:
        """Returns the bytes `begin` to `end` of each message."""
        data: bytes = pc.binary_slice(messages, begin, end).buffers()[2].to_pybytes()
        return data[: (end - begin) * count]

    heads = bytes_of(number, number + 10)

    def number_column(kind: pa.DataType, places: Sequence[int | None]) -> pa.Array:
        """Returns numbers with the bytes at these places of `heads`, 0 for None."""
        column = bytearray(len(places) * count)
        for at, place in enumerate(places[::_NATIVE]):
            if place is not None:
                column[at :: len(places)] = heads[place::10]
        return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(column)])

    columns = [
        pc.binary_slice(messages, head, _INT32_MAX),
        number_column(pa.int64(), range(8)),
        number_column(pa.int32(), [None, None, 8, 9]),
    ]
    return Messages(bytes_of(number + 10, number + 10 + ID_LENGTH), pa.record_batch(columns, schema=_STORED))


def pack(batch: pa.RecordBatch) -> bytes:
    """Returns rows of ARROW_SCHEMA as bytes, for `unpack`."""
    packed: bytes = batch.serialize().to_pybytes()
    return packed


def unpack(packed: bytes) -> pa.RecordBatch:
    """Returns the rows that were packed."""
    return pa.ipc.read_record_batch(packed, ARROW_SCHEMA)


def split_ids(joined: bytes) -> list[bytes]:
    """Returns the single ids of `Messages.ids`."""
    return [joined[at : at + ID_LENGTH] for at in range(0, len(joined), ID_LENGTH)]


def columns_of(messages: Messages) -> dict[str, pa.Array]:
    """Returns the columns that Spark gets of messages, by name."""
    columns = {name: messages.batch.column(name) for name in _STORED.names}
    return columns | {"message_id": _texts(messages.ids), "timestamp": moments(columns["timestamp_ns"])}


def moments(nanoseconds: pa.Array) -> pa.Array:
    """Returns times in microseconds, as Spark has them."""
    return pc.divide(nanoseconds, 1000).cast(MOMENT)


def _texts(ids: bytes) -> pa.Array:
    """Returns joined ids as texts; bytes that are not ASCII, as damaged ones have, are escaped."""
    if ids.isascii():
        column = pa.Array.from_buffers(pa.binary(ID_LENGTH), len(ids) // ID_LENGTH, [None, pa.py_buffer(ids)])
        return column.cast(pa.binary()).view(pa.string())
    return pa.array([id.decode("ascii", "backslashreplace") for id in split_ids(ids)], pa.string())


@cache
def _text(text: str | None) -> pa.StringScalar:
    """Keeps texts as pyarrow has them: it takes a hundred times longer to make one than to repeat it."""
    return pa.scalar(text, pa.string())


def batch_of(schema: pa.Schema, count: int, columns: Mapping[str, pa.Array], **same: str | None) -> pa.RecordBatch:
    """Returns `count` rows of these columns, and of texts that are the `same` in all rows; the rest is null."""
    columns = {**columns, **{name: pa.repeat(_text(text), count) for name, text in same.items()}}
    arrays = [columns[field.name] if field.name in columns else pa.nulls(count, field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def rows_of(messages: Messages, *, topic: str, channel: str, nsqd: str) -> pa.RecordBatch:
    """Returns the rows that Spark gets of messages."""
    columns = columns_of(messages)
    return batch_of(ARROW_SCHEMA, len(columns["value"]), columns, topic=topic, channel=channel, nsqd=nsqd)
