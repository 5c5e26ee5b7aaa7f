"""Uses a stream reader as Spark does, without Spark: micro-batches with a checkpoint.

The checkpoint is two logs, as Spark's: a batch is planned in one before its tasks run, and noted in the other when the
sink has its rows. A driver that died is replaced by calling `restart`.
"""

from dataclasses import replace
from typing import Any

from pyspark_nsq.options import Settings
from pyspark_nsq.stream_reader import NsqStreamReader

Rows = list[dict[str, Any]]


class MicroBatches:
    """A streaming query with the trigger availableNow, as far as the reader sees one."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.offsets: list[dict[str, Any]] = []  # planned
        self.committed = 0  # how many of them the sink has
        self.sink: Rows = []
        self.restart()

    def restart(self) -> None:
        """Starts a new driver."""
        self.reader = NsqStreamReader(replace(self.settings, mode="deliveries"))
        self.reader.prepareForTriggerAvailableNow()

    def start(self) -> dict[str, Any]:
        return self.offsets[self.committed - 1] if self.committed else self.reader.initialOffset()

    def plan(self) -> bool:
        """Plans a batch unless there is one already; returns False if nothing waits."""
        if len(self.offsets) == self.committed:
            start = self.start()
            end = self.reader.latestOffset(start, self.reader.getDefaultReadLimit())
            if end == start:
                return False
            self.offsets.append(end)
            if self.committed:
                self.reader.commit(start)
        return True

    def rows(self) -> Rows:
        """Returns the rows of the batch that is planned and not committed."""
        return rows_of(self.reader, self.start(), self.offsets[self.committed])

    def execute(self) -> None:
        """Runs the tasks of the planned batch, and commits."""
        self.sink += self.rows()
        self.committed += 1

    def drain(self) -> None:
        """Executes batch after batch until nothing waits."""
        while self.plan():
            self.execute()

    def drain_again(self, settings: Settings) -> None:
        """Drains with a new driver, which has these settings."""
        self.settings = settings
        self.restart()
        self.drain()


def rows_of(reader: NsqStreamReader, start: dict[str, Any], end: dict[str, Any]) -> Rows:
    """Returns the rows of all tasks of a batch."""
    tasks = reader.partitions(start, end)
    return [row for task in tasks for batch in reader.read(task) for row in batch.to_pylist()]
