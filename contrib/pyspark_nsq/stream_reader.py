"""`spark.readStream.format("nsq")`: what Spark asks a stream for. A stream reads ranges, or deliveries.

All of this runs in one Python process of the driver, except `read`, of which executors get a copy.

Spark 4.1 has no limits of a batch: there a batch has all that is there. It asks for the latest offset without `start`
and `limit`. But before a query continues, it passes the last offset to `partitions`, as the start and as the end.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyspark
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from pyspark_nsq.deliveries.stream import DeliveryStream
from pyspark_nsq.errors import OptionError, plain_errors
from pyspark_nsq.options import Settings
from pyspark_nsq.partitions import read_rows
from pyspark_nsq.ranges.planning import why_deliveries
from pyspark_nsq.ranges.range_stream import RangeStream

try:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, SupportsTriggerAvailableNow

    HAS_LIMITS = True
except ImportError:
    SupportsTriggerAvailableNow = object  # type: ignore[assignment,misc]
    HAS_LIMITS = False

_LIMITS = {"maxMessagesPerTrigger": "max_messages_per_trigger", "maxBytesPerTrigger": "max_bytes_per_trigger"}


class NsqStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of one streaming query. Made of an OptionError, it fails at the first question: what `streamReader`
    itself raises Spark (4.3) ends with an UnboundLocalError of its own, which is what people would see first."""

    def __init__(self, settings: Settings | OptionError) -> None:
        self._given = settings
        self._chosen: DeliveryStream | RangeStream | None = None
        self._initial: dict[str, Any] | None = None
        self._is_draining = False  # by the trigger availableNow
        self._end: dict[str, Any] | None = None  # of the batch planned last

    def _settings(self) -> Settings:
        """Returns the settings. Raises OptionError if they are wrong, or limit a batch and this Spark cannot."""
        if isinstance(self._given, OptionError):
            raise self._given
        for name, field in _LIMITS.items():
            if getattr(self._given, field) is not None and not HAS_LIMITS:
                raise OptionError(
                    f"option {name!r} needs Spark 4.2 or newer, this is {pyspark.__version__}: "
                    "here each batch reads all queued messages"
                )
        return self._given

    def _stream(self, offset: dict[str, Any] | None = None) -> DeliveryStream | RangeStream:
        """Returns what plans the batches. If `mode` is auto, the offset of a checkpoint decides which it is, or for a
        new stream what the nsqds offer. Raises OptionError if the offset is of another channel."""
        settings = self._settings()
        if offset is not None and (channel := offset.get("channel", settings.channel)) != settings.channel:
            raise OptionError(
                f"option 'channel' is {settings.channel!r}, but the checkpoint belongs to a query that reads the "
                f"channel {channel!r}: expected that, or another checkpointLocation"
            )
        if self._chosen is None:
            kind = DeliveryStream if why_deliveries(settings, offset) else RangeStream
            self._chosen = kind(settings, self._is_draining)
        return self._chosen

    @plain_errors()
    def getDefaultReadLimit(self) -> Any:  # noqa: N802
        limit = self._settings().max_messages_per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Limits the query to what there is at the first look."""
        self._is_draining = True

    @plain_errors()
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        if self._initial is None:  # Spark asks twice in a first batch
            self._initial = self._stream().initial()
        return self._initial

    @plain_errors()
    def latestOffset(self, start: dict[str, Any] | None = None, limit: Any = None) -> dict[str, Any]:  # noqa: N802
        """Returns the end of the next batch; `start` itself if there is nothing new."""
        start = start or self._end or self.initialOffset()
        # Spark 4.1 asks without a start, and not for the tasks of a batch whose plan needs no rows, as with `limit(0)`.
        self._end = self._stream(start).next(start, getattr(limit, "max_rows", None))
        return self._end

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Returns what the progress of the query shows of the batch planned last."""
        return None if self._chosen is None else self._chosen.report

    @plain_errors()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Returns the tasks of the batch that `end` plans."""
        self._end = end
        return [InputPartition(task) for task in self._stream(end).tasks(start, end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Returns the rows of a task, on an executor."""
        return read_rows(partition)

    @plain_errors()
    def commit(self, end: dict[str, Any]) -> None:
        """Notes that the sink has everything up to `end`."""
        self._stream(end).commit(end)
