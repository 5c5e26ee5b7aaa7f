"""`format("nsq_ceiling")`: what Spark itself allows. The source yields the Arrow batches of `nsq`, always the same; the
sink drops what it gets, so that a ratio to it shows what NSQ and our code cost."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import datasource
from pyspark.sql.types import StructType

from pyspark_nsq.columns import SCHEMA_DDL, Messages, rows_of

BATCH = 10_000  # rows


@dataclass
class Share(datasource.InputPartition):
    """The rows of one task."""

    rows: int
    size: int


class CeilingSource(datasource.DataSource):
    """Options: `rows` in all, `size` of a body in bytes, `tasks`; others are passed over."""

    @classmethod
    def name(cls) -> str:
        return "nsq_ceiling"

    def schema(self) -> str:
        return SCHEMA_DDL

    def reader(self, schema: StructType) -> datasource.DataSourceReader:
        return CeilingReader(self.options)

    def streamReader(self, schema: StructType) -> datasource.DataSourceStreamReader:  # noqa: N802
        return CeilingStream(self.options)

    def writer(self, schema: StructType, overwrite: bool) -> datasource.DataSourceArrowWriter:
        return CeilingWriter()


class CeilingReader(datasource.DataSourceReader):
    def __init__(self, options: Any) -> None:
        self._rows, self._size, self._tasks = (int(options[name]) for name in ("rows", "size", "tasks"))

    def partitions(self) -> Sequence[datasource.InputPartition]:
        return [Share(self._rows // self._tasks, self._size) for _ in range(self._tasks)]

    def read(self, partition: datasource.InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Share)
        columns = {
            "value": pa.array([b"%0*d" % (partition.size, row) for row in range(BATCH)], pa.binary()),
            "timestamp_ns": pa.array(range(10**18, 10**18 + BATCH), pa.int64()),
            "attempts": pa.array([1] * BATCH, pa.int32()),
        }
        ids = b"".join(b"%016x" % row for row in range(BATCH))
        messages = Messages(ids, pa.RecordBatch.from_pydict(columns))
        batch = rows_of(messages, topic="bench", channel="spark", nsqd="127.0.0.1:4150")
        for begin in range(0, partition.rows, BATCH):
            yield batch.slice(0, partition.rows - begin)


class CeilingStream(CeilingReader, datasource.DataSourceStreamReader):
    """One batch of all rows."""

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"batch": 0}

    def latestOffset(self) -> dict[str, int]:  # type: ignore[override]  # noqa: N802
        return {"batch": 1}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[datasource.InputPartition]:  # type: ignore[override]
        return CeilingReader.partitions(self)


class CeilingWriter(datasource.DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> datasource.WriterCommitMessage:
        for _ in iterator:
            pass
        return datasource.WriterCommitMessage()
