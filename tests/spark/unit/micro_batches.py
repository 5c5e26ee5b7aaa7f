"""What Spark does with a stream reader, without Spark: micro-batches with a checkpoint and a sink that is atomic.

The checkpoint is two logs, as Spark's: a batch is planned in one before its tasks run, and noted in the other when the
sink has its rows. `Died` stands for a kill: a driver that died is replaced by calling `restart`.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pyspark_nsq.options import Settings
from pyspark_nsq.read_task import ReadPartition
from pyspark_nsq.stream_reader import NsqStreamReader


class Died(BaseException):
    """A process was killed here."""


Rows = list[dict[str, Any]]


def run_task(partition: ReadPartition) -> Rows:
    """The rows of one run of a task."""
    return [row for batch in partition.read() for row in batch.to_pylist()]


class MicroBatches:
    """A streaming query with the trigger availableNow, as far as the reader sees one."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.offsets: list[dict[str, Any]] = []  # planned
        self.committed = 0  # how many of them the sink has
        self.sink: Rows = []
        self.run_task: Callable[[ReadPartition], Rows] = run_task
        self.failures = 4  # of a task, until the query fails
        self.restart()

    def restart(self) -> None:
        """A new driver."""
        self.reader = NsqStreamReader(replace(self.settings, mode="deliveries"))
        self.reader.prepareForTriggerAvailableNow()

    def start(self) -> dict[str, Any]:
        return self.offsets[self.committed - 1] if self.committed else self.reader.initialOffset()

    def partitions(self) -> list[ReadPartition]:
        """Of the batch that is planned and not committed."""
        return [one.value for one in self.reader.partitions(self.start(), self.offsets[self.committed])]

    def plan(self) -> bool:
        """Plan a batch unless there is one already; False when nothing waits."""
        if len(self.offsets) == self.committed:
            start = self.start()
            end = self.reader.latestOffset(start, self.reader.getDefaultReadLimit())
            if end == start:
                return False
            self.offsets.append(end)
            if self.committed:
                self.reader.commit(start)
        return True

    def execute(self) -> None:
        """Run the tasks of the planned batch, each again when it died or failed, and commit."""
        rows = []
        for partition in self.partitions():
            for failed in range(self.failures):
                try:
                    rows += self.run_task(partition)
                    break
                except (Died, Exception) as error:
                    if failed == self.failures - 1 or isinstance(error, AssertionError):  # of the test itself
                        raise
        self.commit(rows)

    def commit(self, rows: Rows) -> None:
        self.sink += rows
        self.committed += 1

    def drain(self) -> None:
        """Batch after batch until nothing waits."""
        while self.plan():
            self.execute()
