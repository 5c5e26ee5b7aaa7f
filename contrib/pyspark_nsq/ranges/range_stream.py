"""`spark.readStream.format("nsq")` by ranges: the positions of a batch's end are its offset."""

import time
from collections.abc import Sequence
from typing import Any

from pyspark_nsq.nodes import Pace
from pyspark_nsq.options import Settings
from pyspark_nsq.ranges.planning import Planner
from pyspark_nsq.ranges.positions import Positions, begin_of, from_json, to_json
from pyspark_nsq.ranges.reading import RangePartition

_COMMIT_INTERVAL = 5.0  # seconds after which an advance that failed is tried again then


class RangeStream:
    """Plans the batches of one streaming query; `report` has, by topic and nsqd, how many messages are behind the batch
    planned last. A stream that `is_draining` reads what there is at the first look."""

    def __init__(self, settings: Settings, is_draining: bool) -> None:
        self._settings = settings
        self._is_draining = is_draining
        self._planner = Planner(settings)
        self._target: Positions | None = None  # of Trigger.AvailableNow, once it is known
        self._pace = Pace(settings)
        self.report: dict[str, Any] | None = None
        self._committed: Positions | None = None
        self._commit_again = 0.0  # when (monotonic)

    def initial(self) -> dict[str, Any]:
        """Returns where a query without a checkpoint begins."""
        return to_json(self._settings.channel, self._planner.begin())

    def next(self, start: dict[str, Any], _: int | None) -> dict[str, Any]:
        """Returns the end of the next batch; `start` itself if there is nothing new."""
        positions = from_json(start)
        self._pace.wait()
        if self._is_draining and self._target is None:
            self._target = self._planner.latest()
        ends = self._planner.next(positions, self._target)
        count, unread = sum(end.number - begin_of(positions, end) for end in ends.values()), self._planner.unread(ends)
        count += sum(sum(nodes.values()) for nodes in unread.values())  # beyond the limits
        if ends != positions and not (self._is_draining or self._pace.is_enough(count)):
            ends, unread = positions, self._planner.unread(positions)
        self.report = {"unread": unread}
        if ends == positions:
            if self._target is not None:
                self._planner.check_drained(ends, self._target)
            self._pace.looked(is_new=False)
            if positions != self._committed or time.monotonic() >= self._commit_again:
                self.commit(start)  # Spark does that with the next batch only, which may come tomorrow
            return start
        self._pace.looked(is_new=True)
        return to_json(self._settings.channel, ends)

    def tasks(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[RangePartition]:
        """Returns the tasks of the batch between these offsets."""
        return self._planner.tasks(from_json(start), from_json(end), of_stream=True)

    def commit(self, end: dict[str, Any]) -> None:
        """Advances the channel: the sink has everything up to `end`."""
        self._committed = from_json(end)
        self._planner.commit(self._committed)
        self._commit_again = time.monotonic() + _COMMIT_INTERVAL
