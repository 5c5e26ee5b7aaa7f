"""`spark.read.format("nsq")` by ranges: the messages between two positions, which `load()` settles."""

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from pyspark_nsq.errors import DiscoveryError
from pyspark_nsq.options import EARLIEST, Settings
from pyspark_nsq.partitions import read_rows
from pyspark_nsq.ranges.planning import Planner
from pyspark_nsq.ranges.reading import RangePartition


def plan(settings: Settings) -> list[RangePartition]:
    """Returns the tasks for what the options name; DiscoveryError, OptionError."""
    planner = Planner(settings)
    begins, ends = planner.begin(EARLIEST), planner.end()
    if not begins:
        topics, pattern = ", ".join(settings.topics), settings.topic_pattern
        raise DiscoveryError(
            f"no nsqd has {f'a topic that matches {pattern!r}' if pattern else f'one of the topics {topics}'}"
        )
    return planner.tasks(begins, ends)


class RangeReader(DataSourceReader):
    """The reader of one scan; `tasks` are the same for all scans of a frame."""

    def __init__(self, tasks: Sequence[RangePartition]) -> None:
        self._tasks = tasks

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(task) for task in self._tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_rows(partition)
