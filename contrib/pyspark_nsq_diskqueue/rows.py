"""The columns of a message in a disk queue, and how messages become Arrow batches.

They begin with those of `format("nsq")`, so that what works on its frames works on these. There, `nsqd` is where a
message comes from; here that is the data directory.
"""

from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from gnsqd.storage.disk.record import LENGTH, MIN_RECORD_SIZE
from pyspark_nsq.columns import cut, message_ids
from pyspark_nsq.schema import SCHEMA_DDL
from pyspark_nsq.schema import arrow_schema as message_schema
from pyspark_nsq.segment import split_ids
from pyspark_nsq_diskqueue.planning import FileTask

DDL = f"{SCHEMA_DDL}, queue STRING, file STRING, position LONG, due TIMESTAMP, corruption STRING"
_MOMENT = pa.timestamp("us", tz="UTC")
ARROW_SCHEMA = pa.schema(
    [
        *message_schema(),
        ("queue", pa.string()),
        ("file", pa.string()),
        ("position", pa.int64()),
        ("due", _MOMENT),
        ("corruption", pa.string()),
    ]
)


class Damage(NamedTuple):
    """Why a file is read no further than to `position`; `lost` bytes follow there."""

    position: int
    reason: str
    lost: int = 0

    def __str__(self) -> str:
        return f"{self.reason}: {self.lost} bytes not read" if self.lost else self.reason


def message_rows(
    task: FileTask, data: bytes, edges: Sequence[int], positions: pa.Array, dues: Sequence[int | None] = ()
) -> pa.RecordBatch:
    """The messages of records that are one behind the other in `data`.

    `edges` is where each record begins, and where the last one ends; `positions` where they stand in the file; `dues`
    has an entry (ns or None) for each, or none at all.
    """
    ids, messages = cut(data, edges, LENGTH.size + MIN_RECORD_SIZE, LENGTH.size)
    columns = {name: messages.column(name) for name in messages.schema.names}
    columns |= {
        "message_id": _texts(ids),
        "timestamp": _moments(columns["timestamp_ns"]),
        "position": positions,
    }
    if any(dues):
        columns["due"] = _moments(pa.array(dues, pa.int64()))
    return _batch(task, columns, messages.num_rows)


def damage_row(task: FileTask, damage: Damage) -> pa.RecordBatch:
    """A row without a message, which reports damage."""
    columns = {"position": pa.array([damage.position], pa.int64()), "corruption": pa.array([str(damage)])}
    return _batch(task, columns, 1)


def _batch(task: FileTask, columns: dict[str, pa.Array], count: int) -> pa.RecordBatch:
    """With the columns that are the same for all rows, and null for the rest."""
    same = {
        "topic": task.topic,
        "channel": task.channel,
        "nsqd": task.directory,
        "queue": task.queue,
        "file": task.file,
    }
    constants = {name: pa.repeat(pa.scalar(text, pa.string()), count) for name, text in same.items()}
    columns = constants | columns
    arrays = [columns[field.name] if field.name in columns else pa.nulls(count, field.type) for field in ARROW_SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=ARROW_SCHEMA)


def _moments(nanoseconds: pa.Array) -> pa.Array:
    return pc.divide(nanoseconds, 1000).cast(_MOMENT)


def _texts(ids: bytes) -> pa.Array:
    if ids.isascii():
        return message_ids(ids)
    # a damaged one, which nsqd would deliver as it is
    return pa.array([id.decode("ascii", "backslashreplace") for id in split_ids(ids)], pa.string())
