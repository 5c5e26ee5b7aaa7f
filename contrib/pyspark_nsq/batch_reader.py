"""`spark.read.format("nsq")`: the messages of ranges, or a look at the messages that are queued now."""

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from pyspark_nsq.errors import plain_errors
from pyspark_nsq.partitions import read_rows


class NsqReader(DataSourceReader):
    """The reader of one scan, whose tasks `plan` returns; it is pickled to them."""

    def __init__(self, plan: Callable[[], Sequence[object]]) -> None:
        self._plan = plan

    @plain_errors()
    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(task) for task in self._plan()]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_rows(partition)
