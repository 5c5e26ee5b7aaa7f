"""The columns of a message in a disk queue, and how messages become Arrow batches.

They begin with those of `format("nsq")`, so that what works on its frames works on these. There, `nsqd` is where a
message comes from; here that is the data directory.
"""

from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_nsq.schema import SCHEMA_DDL
from pyspark_nsq.schema import arrow_schema as message_schema
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


class Rows:
    """Collects the messages of one file by column; `take` makes a batch of them. `dues` stays empty, or has an entry
    (ns or None) for each message."""

    def __init__(self, task: FileTask) -> None:
        self._constants = {
            "topic": task.topic,
            "channel": task.channel,
            "nsqd": task.directory,
            "queue": task.queue,
            "file": task.file,
        }
        self._clear()

    def _clear(self) -> None:
        self.values: list[bytes] = []
        self.timestamps: list[int] = []
        self.attempts: list[int] = []
        self.ids: list[bytes] = []
        self.positions: list[int] = []
        self.dues: list[int | None] = []

    def __len__(self) -> int:
        return len(self.values)

    def take(self) -> pa.RecordBatch:
        """What was collected since; afterwards there is nothing."""
        timestamps = pa.array(self.timestamps, pa.int64())
        columns = {
            "value": pa.array(self.values, pa.binary()),
            "message_id": _texts(self.ids),
            "timestamp": _moments(timestamps),
            "timestamp_ns": timestamps,
            "attempts": pa.array(self.attempts, pa.int32()),
            "position": pa.array(self.positions, pa.int64()),
        }
        if self.dues:
            columns["due"] = _moments(pa.array(self.dues, pa.int64()))
        count = len(self)
        self._clear()
        return self._batch(columns, count)

    def damage_row(self, damage: Damage) -> pa.RecordBatch:
        """A row without a message, which reports damage."""
        columns = {"position": pa.array([damage.position], pa.int64()), "corruption": pa.array([str(damage)])}
        return self._batch(columns, 1)

    def _batch(self, columns: dict[str, pa.Array], count: int) -> pa.RecordBatch:
        """With the columns that are the same for all rows, and null for the rest."""
        for name, text in self._constants.items():
            if text is not None:
                columns[name] = pa.repeat(text, count)
        arrays = [
            columns[field.name] if field.name in columns else pa.nulls(count, field.type) for field in ARROW_SCHEMA
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=ARROW_SCHEMA)


def _moments(nanoseconds: pa.Array) -> pa.Array:
    return pc.divide(nanoseconds, 1000).cast(_MOMENT)


def _texts(ids: list[bytes]) -> pa.Array:
    try:
        return pa.array(ids, pa.binary()).cast(pa.string())
    except pa.ArrowInvalid:  # a damaged one, which nsqd would deliver as it is
        return pa.array([id.decode("ascii", "backslashreplace") for id in ids], pa.string())
