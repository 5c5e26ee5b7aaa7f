"""Messages as Arrow columns: what a segment's payload holds, and the batches that Spark gets from it.

The payload is an Arrow stream of one batch with what differs from message to message, without ids: `value`,
`timestamp_ns`, `attempts`. The other columns are made when it is read.
"""

from collections.abc import Sequence
from functools import cache

import pyarrow as pa

from pyspark_nsq.client import Message
from pyspark_nsq.errors import SpoolError
from pyspark_nsq.schema import arrow_schema
from pyspark_nsq.segment import ID_LENGTH


@cache
def _stored_schema() -> pa.Schema:
    return pa.schema([("value", pa.binary()), ("timestamp_ns", pa.int64()), ("attempts", pa.int32())])


def pack(messages: Sequence[Message]) -> bytes:
    """The payload of a segment with these messages."""
    timestamps, attempts, _, bodies = zip(*messages, strict=True)
    batch = pa.record_batch(
        [pa.array(bodies, pa.binary()), pa.array(timestamps, pa.int64()), pa.array(attempts, pa.int32())],
        schema=_stored_schema(),
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    payload: bytes = sink.getvalue().to_pybytes()
    return payload


def unpack(ids: bytes, payload: bytes, *, topic: str, channel: str, nsqd: str) -> pa.RecordBatch:
    """The rows of a segment; SpoolError if the payload is not what `pack` makes."""
    try:
        batch = pa.ipc.open_stream(payload).read_next_batch()
    except (pa.ArrowInvalid, StopIteration) as error:
        raise SpoolError(f"a segment of the spool holds no messages: {error}") from None
    count = batch.num_rows
    if len(ids) != ID_LENGTH * count or not batch.schema.equals(_stored_schema()):
        raise SpoolError("a segment of the spool holds other columns than this version of pyspark_nsq writes")
    message_ids = pa.FixedSizeBinaryArray.from_buffers(pa.binary(ID_LENGTH), count, [None, pa.py_buffer(ids)])
    timestamp_ns = batch.column("timestamp_ns")
    return pa.record_batch(
        [
            batch.column("value"),
            pa.repeat(topic, count),
            pa.repeat(channel, count),
            pa.repeat(nsqd, count),
            message_ids.cast(pa.string(), safe=False),
            timestamp_ns.cast(pa.timestamp("ns")).cast(pa.timestamp("us", tz="UTC"), safe=False),
            timestamp_ns,
            batch.column("attempts"),
        ],
        schema=arrow_schema(),
    )
