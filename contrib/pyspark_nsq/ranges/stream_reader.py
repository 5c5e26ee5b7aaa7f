"""`spark.readStream.format("nsq")` by ranges: the positions of a batch's end are its offset."""

import time
from collections.abc import Sequence
from typing import Any

from pyspark.sql.datasource import InputPartition

from pyspark_nsq.admission import StreamReader
from pyspark_nsq.errors import plain_errors
from pyspark_nsq.options import Settings
from pyspark_nsq.ranges.planning import Planner
from pyspark_nsq.ranges.positions import Positions, from_json, to_json

_LOOK_INTERVAL = 0.25  # seconds between looks while there is nothing new
_COMMIT_INTERVAL = 5.0  # seconds after which an advance that failed is tried again then


class RangeStreamReader(StreamReader):
    """Plans the batches of one streaming query."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._planner = Planner(settings)
        self._initial: dict[str, Any] | None = None
        self._target: Positions | None = None  # of Trigger.AvailableNow, once it is known
        self._looked = 0.0  # when there was nothing (monotonic)
        self._latest: dict[str, Any] | None = None
        self._committed: Positions | None = None
        self._commit_again = 0.0  # when (monotonic)

    @plain_errors()
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        if self._initial is None:  # Spark asks twice
            self._initial = to_json(self._settings.channel, self._planner.begin())
        return self._initial

    @plain_errors()
    def latestOffset(self, start: dict[str, Any] | None = None, limit: Any = None) -> dict[str, Any]:  # noqa: N802
        """Returns the end of the next batch; `start` itself if there is nothing new."""
        start = start or self._end or self.initialOffset()
        positions = from_json(start, self._settings.channel)
        time.sleep(max(0.0, self._looked + _LOOK_INTERVAL - time.monotonic()))
        if self._is_draining and self._target is None:
            self._target = self._planner.latest()
        ends = self._planner.next(positions, self._target)
        self._latest = {"unread": self._planner.unread(ends)}
        if ends == positions:
            if self._is_draining:
                self._planner.check_drained(ends)
            self._looked = time.monotonic()
            if positions != self._committed or time.monotonic() >= self._commit_again:
                self.commit(start)  # Spark does that with the next batch only, which may come tomorrow
            return start
        self._looked = 0.0
        return to_json(self._settings.channel, ends)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Returns, by topic and nsqd, how many messages are behind the batch planned last."""
        return self._latest

    @plain_errors()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        channel, self._end = self._settings.channel, end
        begins, ends = from_json(start, channel), from_json(end, channel)
        return [InputPartition(task) for task in self._planner.tasks(begins, ends, of_stream=True)]

    def commit(self, end: dict[str, Any]) -> None:
        """Advances the channel: the sink has everything up to `end`."""
        self._committed = from_json(end, self._settings.channel)
        self._planner.commit(self._committed)
        self._commit_again = time.monotonic() + _COMMIT_INTERVAL
