"""`format("nsq_diskqueue")`: where Spark asks for a reader. Options are judged here, before any job starts."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pyspark_nsq.catalog_table import is_table, own_options, schema_of, schema_with, table_options
from pyspark_nsq.errors import OptionError, plain_errors
from pyspark_nsq.partitions import read_rows
from pyspark_nsq_diskqueue.options import ALL, DiskqueueSettings, parse
from pyspark_nsq_diskqueue.planning import FileTask, plan
from pyspark_nsq_diskqueue.reading import DDL, read_task


class DiskqueueDataSource(DataSource):
    """The disk queues of data directories, as a source."""

    def __init__(self, options: Any) -> None:
        super().__init__(dict(own_options(options)))
        self._is_table = is_table(options)

    @classmethod
    def name(cls) -> str:
        return "nsq_diskqueue"

    @plain_errors()
    def schema(self) -> str | StructType:
        parse(self.options)
        return schema_with(self.options, DDL) if self._is_table else DDL

    @plain_errors()
    def reader(self, schema: StructType) -> "DiskqueueReader":
        settings = parse({**table_options(schema), **self.options})
        return DiskqueueReader(settings, _columns(schema))


class DiskqueueReader(DataSourceReader):
    """Plans in the driver and reads in executors; the value of a partition is a FileTask."""

    def __init__(self, settings: DiskqueueSettings, columns: list[str]) -> None:
        self._settings = settings
        self._columns = columns

    @plain_errors()
    def partitions(self) -> list[InputPartition]:
        chosen = self._settings
        everything = chosen.messages == ALL
        tasks = plan(chosen.all_paths, everything=everything, topics=chosen.topics, channels=chosen.channels)
        return [InputPartition(task) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_rows(partition, self._read)

    def _read(self, task: FileTask) -> Iterator[pa.RecordBatch]:
        for batch in read_task(task, self._settings.corruption, self._settings.max_msg_size):
            yield batch.select(self._columns)


def _columns(schema: StructType) -> list[str]:
    """Returns the columns to read: all of them, or those of a schema that the user gave; raises OptionError if it has
    others."""
    types = {field.name: field.dataType for field in schema_of(DDL).fields}
    for field in schema.fields:
        if types.get(field.name) != field.dataType:
            kind = field.dataType.simpleString()
            raise OptionError(f"there is no column {field.name} {kind}; a schema may have some of {DDL}")
    return schema.fieldNames()
