"""`format("nsq_rows")`: the same source and sink, handing over single rows where `nsq` hands over Arrow batches. Only
to measure what that is worth."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.datasource import (
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceWriter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from pyspark_nsq.batch_reader import NsqReader
from pyspark_nsq.data_source import NsqDataSource
from pyspark_nsq.options import parse
from pyspark_nsq.stream_reader import NsqStreamReader
from pyspark_nsq.writer import NsqWriter

BATCH = 10_000  # rows that are put together for the writer


def as_tuples(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[Any, ...]]:
    for batch in batches:
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


class RowReader(NsqReader):
    def read(self, partition: InputPartition) -> Iterator[Any]:
        return as_tuples(super().read(partition))


class RowStreamReader(NsqStreamReader):
    def read(self, partition: InputPartition) -> Iterator[Any]:
        return as_tuples(super().read(partition))


class RowWriter(DataSourceWriter):
    def __init__(self, writer: NsqWriter) -> None:
        self._writer = writer

    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        return self._writer.write(self._batches(iterator))

    @staticmethod
    def _batches(rows: Iterator[Row]) -> Iterator[pa.RecordBatch]:
        values: list[bytes] = []
        for row in rows:
            values.append(row.value)
            if len(values) == BATCH:
                yield pa.RecordBatch.from_pydict({"value": pa.array(values, pa.binary())})
                values = []
        if values:
            yield pa.RecordBatch.from_pydict({"value": pa.array(values, pa.binary())})


class RowDataSource(NsqDataSource):
    @classmethod
    def name(cls) -> str:
        return "nsq_rows"

    def reader(self, schema: StructType) -> DataSourceReader:
        return RowReader(parse(self.options, "read"), self.stream)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        return RowStreamReader(parse(self.options, "readStream"))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return RowWriter(NsqWriter(parse(self.options, "write"), schema))
