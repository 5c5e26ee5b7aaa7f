"""What all stream readers have in common: the limits of a batch, which Spark 4.2 has and 4.1 has not; there a batch has
all that is there.

Spark 4.1 asks for the latest offset without `start` and `limit`. But before a query continues, it passes the last
offset to `partitions`, as the start and as the end.
"""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyspark
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from pyspark_nsq.errors import OptionError
from pyspark_nsq.options import Settings
from pyspark_nsq.partitions import read_rows

try:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, SupportsTriggerAvailableNow

    HAS_LIMITS = True
except ImportError:
    SupportsTriggerAvailableNow = object  # type: ignore[assignment,misc]
    HAS_LIMITS = False


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The base of the stream readers; OptionError if the settings limit a batch, and this Spark cannot."""

    def __init__(self, settings: Settings) -> None:
        for name, value in (
            ("maxMessagesPerTrigger", settings.max_messages_per_trigger),
            ("maxBytesPerTrigger", settings.max_bytes_per_trigger),
        ):
            if value is not None and not HAS_LIMITS:
                raise OptionError(
                    f"option {name!r} needs Spark 4.2 or newer, this is {pyspark.__version__}: "
                    "here each batch reads all queued messages"
                )
        self._settings = settings
        self._is_draining = False  # by the trigger availableNow
        self._end: dict[str, Any] | None = None  # of the last batch whose tasks were planned

    def getDefaultReadLimit(self) -> Any:  # noqa: N802
        limit = self._settings.max_messages_per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._is_draining = True

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Returns the rows of a task, on an executor."""
        return read_rows(partition)
