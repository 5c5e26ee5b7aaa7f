"""`write.format("nsq")` and `writeStream.format("nsq")`: the rows of a frame as messages.

A frame has a column `value`, BINARY or STRING, and may have `topic` and `defer_ms`, milliseconds for which nsqd holds
a message back; other columns are passed over, so that what was read from NSQ or from an archive can be written as it
is. Delivery is at least once: NSQ has no transactions, so what a failed task published stays published, and is
published again when Spark runs the task, or the batch of a stream, once more. An error that a second run would meet
again, a row or message that NSQ does not take, therefore ends a task without failing it: the driver raises it instead.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from pyspark_nsq.errors import InvalidRow, Refused, WriteError, plain_errors
from pyspark_nsq.message_batches import Columns, message_batches
from pyspark_nsq.options import Settings
from pyspark_nsq.publishing import TaskPublisher

# The columns that matter, their types by Spark's names, and those for people.
_TYPES = {
    "value": (("binary", "string"), "BINARY or STRING"),
    "topic": (("string",), "STRING"),
    "defer_ms": (("byte", "short", "integer", "long"), "an integer"),
}


def find_columns(schema: StructType, settings: Settings) -> Columns:
    """Returns where the columns are. Raises WriteError if a frame of this schema cannot be published. Case does not
    matter in names, as in Spark."""
    found: dict[str, int] = {}
    for index, field in enumerate(schema.fields):
        name = field.name.lower()
        if name not in _TYPES:
            continue
        if name in found:
            raise WriteError(f"the frame has two columns {name}")
        types, expected = _TYPES[name]
        if field.dataType.typeName() not in types:
            kind = field.dataType.simpleString().upper()
            raise WriteError(f"the column {name} of the frame is {kind}: expected {expected}")
        found[name] = index
    if "value" not in found:
        columns = ", ".join(schema.fieldNames()) or "none"
        raise WriteError(f"the frame has no column value with the bodies of the messages; its columns are {columns}")
    if "topic" not in found and settings.topic is None:
        raise WriteError("no topic: give the option 'topic', or the frame a column topic")
    return Columns(found["value"], found.get("topic"), found.get("defer_ms"))


@dataclass
class Rejected(WriterCommitMessage):
    """The end of a task that met what NSQ does not take."""

    error: str


class _Writer:
    """The common part of both writers; pickled to the executors."""

    def __init__(self, settings: Settings, schema: StructType) -> None:
        self._settings = settings
        self._columns = find_columns(schema, settings)

    def check_nsqds(self) -> None:
        """Raises WriteError on the driver unless an nsqd can be reached, after `retryTimeoutMs` at most."""
        publisher = TaskPublisher(self._settings)
        publisher.connect()
        publisher.close()

    @plain_errors()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Publishes the rows of a task; on return nsqds have them all, unless it is Rejected. May raise WriteError."""
        context = TaskContext.get()
        publisher = TaskPublisher(self._settings, context.partitionId() if context else 0)
        try:
            for rows in iterator:
                for batch in message_batches(rows, self._columns, self._settings):
                    publisher.publish(batch)
        except (InvalidRow, Refused) as error:
            for _ in iterator:  # Spark sends all rows, whether they are used or not
                pass
            return Rejected(str(error))
        finally:
            publisher.close()
        return WriterCommitMessage()

    @plain_errors()
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int = 0) -> None:  # noqa: N803
        """Raises WriteError on the driver if a task met what NSQ does not take."""
        errors = sorted({message.error for message in messages if isinstance(message, Rejected)})
        if errors:
            raise WriteError("; ".join(errors))


class NsqWriter(_Writer, DataSourceArrowWriter):
    """Writes a batch."""


class NsqStreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Writes the batches of a stream."""
