"""`format("nsq_diskqueue")`: where Spark asks for a reader. Options are judged here, before any job starts."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pyspark_nsq.catalog_table import all_options, is_table, own_options, schema_with
from pyspark_nsq.errors import OptionError, plain_errors
from pyspark_nsq_diskqueue.options import ALL, DiskqueueSettings, parse
from pyspark_nsq_diskqueue.planning import FileTask, plan
from pyspark_nsq_diskqueue.reading import read_task
from pyspark_nsq_diskqueue.rows import DDL


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
        settings = parse(all_options(self.options, schema))
        return DiskqueueReader(settings, _columns(schema))


@dataclass
class FilePartition(InputPartition):
    """One file."""

    task: FileTask


class DiskqueueReader(DataSourceReader):
    """Plans in the driver and reads in executors."""

    def __init__(self, settings: DiskqueueSettings, columns: list[str]) -> None:
        self._settings = settings
        self._columns = columns

    @plain_errors()
    def partitions(self) -> list[InputPartition]:
        settings = self._settings
        tasks = plan(
            settings.all_paths,
            everything=settings.messages == ALL,
            topics=settings.topics,
            channels=settings.channels,
        )
        return [FilePartition(task) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, FilePartition):
            return  # Spark makes a partition of its own where there is none
        with plain_errors():
            for batch in read_task(partition.task, self._settings.corruption, self._settings.max_msg_size):
                yield batch.select(self._columns)


def _columns(schema: StructType) -> list[str]:
    """The columns to read: all of them, or those of a schema that the user gave; OptionError if it has others."""
    types = {name: kind.lower().replace("long", "bigint") for name, kind in map(str.split, DDL.split(", "))}
    for field in schema.fields:
        kind = field.dataType.simpleString()
        if types.get(field.name) != kind:
            raise OptionError(f"there is no column {field.name} {kind}; a schema may have some of {DDL}")
    return schema.fieldNames()
