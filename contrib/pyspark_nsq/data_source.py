"""`format("nsq")`: where Spark asks for readers and writers. Options are judged here, before any job starts."""

import uuid
from typing import Any, NoReturn

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from pyspark_nsq.errors import OptionError
from pyspark_nsq.options import check_load, parse
from pyspark_nsq.schema import COLUMNS, SCHEMA_DDL


class NsqDataSource(DataSource):
    """Topics of nsqds, as a source and as a sink.

    Spark makes one for each `load()` and pickles it to wherever it plans a scan of the frame; `stream` names the
    directory in the spool that all scans of a batch frame share.
    """

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self.stream = uuid.uuid4().hex

    @classmethod
    def name(cls) -> str:
        return "nsq"

    def schema(self) -> str:
        check_load(self.options)
        return SCHEMA_DDL

    def reader(self, schema: StructType) -> DataSourceReader:
        settings = parse(self.options, "read")
        _check_schema(schema)
        from pyspark_nsq.batch_reader import NsqReader

        return NsqReader(settings, self.stream)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        try:
            settings = parse(self.options, "readStream")
            _check_schema(schema)
        except OptionError as error:
            return RefusedStream(error)
        from pyspark_nsq.stream_reader import NsqStreamReader

        return NsqStreamReader(settings)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        settings = parse(self.options, "write")
        if overwrite:
            raise OptionError("mode 'overwrite' is not possible: what is in a topic cannot be replaced, use 'append'")
        from pyspark_nsq.writer import NsqWriter

        return NsqWriter(settings, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        settings = parse(self.options, "writeStream")
        from pyspark_nsq.writer import NsqStreamWriter

        return NsqStreamWriter(settings, schema)


class RefusedStream(DataSourceStreamReader):
    """Fails at the first question. What `streamReader` itself raises Spark (4.3) ends with an UnboundLocalError of its
    own, which is what people would see first."""

    def __init__(self, error: OptionError) -> None:
        self._error = error

    def getDefaultReadLimit(self) -> NoReturn:  # noqa: N802
        raise self._error

    def initialOffset(self) -> NoReturn:  # noqa: N802
        raise self._error

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> NoReturn:  # noqa: N802
        raise self._error

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> NoReturn:
        raise self._error

    def read(self, partition: InputPartition) -> NoReturn:
        raise self._error


def _check_schema(schema: StructType) -> None:
    """A schema that the user gave must be the one that messages have."""
    given = [(field.name, field.dataType.simpleString()) for field in schema.fields]
    if given != [(name, {"LONG": "bigint"}.get(kind, kind.lower())) for name, kind in COLUMNS]:
        columns = ", ".join(f"{name} {kind}" for name, kind in given)
        raise OptionError(f"the schema of messages is {SCHEMA_DDL}, which needs no schema(); it was {columns}")
