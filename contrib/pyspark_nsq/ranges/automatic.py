"""A stream of ranges where every nsqd offers them, and of deliveries otherwise. Its checkpoint keeps the choice."""

from collections.abc import Sequence
from typing import Any

from pyspark.sql.datasource import InputPartition

from pyspark_nsq.admission import StreamReader
from pyspark_nsq.errors import plain_errors
from pyspark_nsq.options import Settings, check_spool
from pyspark_nsq.ranges.planning import offers_ranges
from pyspark_nsq.ranges.positions import is_ours
from pyspark_nsq.ranges.stream_reader import RangeStreamReader


class AutomaticStreamReader(StreamReader):
    """Leaves everything to one of two readers, chosen by the offset of a checkpoint, or by what the nsqds offer."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._chosen: Any = None

    def _reader(self, offset: dict[str, Any] | None = None) -> Any:
        if self._chosen is None:
            if is_ours(offset) if offset is not None else offers_ranges(self._settings):
                self._chosen = RangeStreamReader(self._settings)
            else:
                from pyspark_nsq.stream_reader import NsqStreamReader

                check_spool(self._settings)
                self._chosen = NsqStreamReader(self._settings)
            if self._is_draining:
                self._chosen.prepareForTriggerAvailableNow()
        return self._chosen

    @plain_errors()
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        offset: dict[str, Any] = self._reader().initialOffset()
        return offset

    @plain_errors()
    def latestOffset(self, start: dict[str, Any] | None = None, limit: Any = None) -> dict[str, Any]:  # noqa: N802
        offset: dict[str, Any] = self._reader(start or self._end).latestOffset(start, limit)
        return offset

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        latest: dict[str, Any] | None = self._chosen and self._chosen.reportLatestOffset()
        return latest

    @plain_errors()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        self._end = end
        tasks: Sequence[InputPartition] = self._reader(end).partitions(start, end)
        return tasks

    def commit(self, end: dict[str, Any]) -> None:
        self._reader(end).commit(end)
