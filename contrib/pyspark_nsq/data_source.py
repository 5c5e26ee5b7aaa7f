"""`format("nsq")`: where Spark asks for readers and writers. Options are judged here, before any job starts."""

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.types import StructType

from pyspark_nsq.catalog_table import is_table, own_options, schema_of, schema_with, table_options
from pyspark_nsq.columns import SCHEMA_DDL
from pyspark_nsq.deliveries.stream import peek
from pyspark_nsq.errors import NsqSourceError, OptionError, plain_errors
from pyspark_nsq.options import Settings, check_load, parse
from pyspark_nsq.partitions import read_rows
from pyspark_nsq.ranges.planning import plan_batch


class NsqDataSource(DataSource):
    """Topics of nsqds, as a source and as a sink.

    Spark makes one for each `load()`, with Spark Connect one for each analysis of a plan, and pickles it to wherever it
    plans a scan. What all scans of a batch frame share is in it: the ranges, which `schema` plans.
    """

    def __init__(self, options: Any) -> None:
        super().__init__(dict(own_options(options)))
        self._is_table = is_table(options)
        self._ranges: Sequence[Any] | NsqSourceError | None = None  # of a batch, or why there are none

    @classmethod
    def name(cls) -> str:
        return "nsq"

    @plain_errors()
    def schema(self) -> str | StructType:
        check_load(self.options)
        if self._is_table:
            return schema_with(self.options, SCHEMA_DDL)
        try:
            settings = parse(self.options, "read")
            self._ranges = None if settings.peek else plan_batch(settings)
        except NsqSourceError as error:  # `load()` does not know whether it is of a batch: `reader` raises it
            self._ranges = error
        return SCHEMA_DDL

    @plain_errors()
    def reader(self, schema: StructType) -> DataSourceReader:
        of_table = table_options(schema)
        default = {"peek": "true"} if of_table else {}
        settings = parse({**default, **of_table, **self.options}, "read")
        _check_schema(schema)
        if settings.peek:
            return NsqReader(settings)
        ranges = plan_batch(settings) if self._ranges is None else self._ranges  # of a table, each scan has its own
        if isinstance(ranges, NsqSourceError):
            raise ranges
        return NsqReader(settings, ranges)

    @plain_errors()
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        from pyspark_nsq.stream_reader import NsqStreamReader

        try:
            of_table = table_options(schema)
            of_table.pop("peek", None)  # which is for its batches
            settings = parse({**of_table, **self.options}, "readStream")
            _check_schema(schema)
            return NsqStreamReader(settings)
        except OptionError as error:
            return NsqStreamReader(error)

    @plain_errors()
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        settings = parse(self.options, "write")
        if overwrite:
            raise OptionError("mode 'overwrite' is not possible: what is in a topic cannot be replaced, use 'append'")
        from pyspark_nsq.writer import NsqWriter

        writer = NsqWriter(settings, schema)
        writer.check_nsqds()
        return writer

    @plain_errors()
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        settings = parse(self.options, "writeStream")
        from pyspark_nsq.writer import NsqStreamWriter

        return NsqStreamWriter(settings, schema)


class NsqReader(DataSourceReader):
    """Reads the messages of `ranges`, or else looks at the messages that are queued now; it is pickled to tasks."""

    def __init__(self, settings: Settings, ranges: Sequence[Any] | None = None) -> None:
        self._settings = settings
        self._ranges = ranges

    @plain_errors()
    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(task) for task in (peek(self._settings) if self._ranges is None else self._ranges)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_rows(partition)


def _check_schema(schema: StructType) -> None:
    """Raises OptionError if the user gave another schema than that of messages."""
    given = [(field.name, field.dataType) for field in schema.fields]
    if given != [(field.name, field.dataType) for field in schema_of(SCHEMA_DDL).fields]:
        columns = ", ".join(f"{name} {kind.simpleString()}" for name, kind in given)
        raise OptionError(f"the schema of messages is {SCHEMA_DDL}, which needs no schema(); it was {columns}")
