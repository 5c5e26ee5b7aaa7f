"""Archives: tables of messages that Spark's own streaming sinks write, and how they are checked and read.

Parquet is written by Spark's file sink. Its log `_spark_metadata` lists the files of each batch; Spark reads only these
files, and skips a batch that is in the log. The log knows batches only by their number, so one archive belongs to one
checkpoint: a query with another one would lose the batches whose numbers are in the log. The checkpoint is therefore in
the archive's directory, where Spark finds out if two queries use it. Delta Lake and Iceberg have transactions that name
the query, and take several writers.
"""

import contextlib
import fcntl
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from gnsq_pipeline.errors import NotFound, PipelineError, UsageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

SCHEMA = (
    "value BINARY, channel STRING, nsqd STRING, message_id STRING, timestamp TIMESTAMP, timestamp_ns LONG,"
    " attempts INT, archived_at TIMESTAMP, topic STRING, date DATE"
)
COLUMNS = [column.split()[0] for column in SCHEMA.split(", ")]
PARTITION_COLUMNS = ("topic", "date")
FORMATS = ("parquet", "delta", "iceberg")
NS_PER_DAY = 86_400_000_000_000
CHECKPOINT = "_checkpoint"
_LOG = "_spark_metadata"
_IGNORED = "spark.sql.streaming.fileStreamSink.ignoreMetadata"


def to_archive(messages: "DataFrame") -> "DataFrame":
    """Rows of the source as rows of an archive: with `archived_at`, the start of the batch, unless it is there, and
    `date`, the day of `timestamp_ns` in UTC whatever the session's time zone is."""
    from pyspark.sql import functions as sf

    if "archived_at" not in messages.columns:
        messages = messages.withColumn("archived_at", sf.current_timestamp())
    day = f"(timestamp_ns - pmod(timestamp_ns, {NS_PER_DAY}L)) div {NS_PER_DAY}L"
    return messages.withColumn("date", sf.expr(f"date_from_unix_date(cast({day} as int))")).select(*COLUMNS)


def start(
    writer: "DataStreamWriter", table: str, table_format: str, checkpoint: str, partitions: tuple[str, ...] = ()
) -> "StreamingQuery":
    """Start a query that appends to `table`: a directory or, of Iceberg, a table of a catalog, created if needed."""
    writer = writer.format(table_format).outputMode("append").option("checkpointLocation", checkpoint)
    if partitions:
        writer = writer.partitionBy(*partitions)
    if table_format == "iceberg":
        return writer.option("fanout-enabled", "true").toTable(table)  # else Iceberg demands sorted rows
    return writer.start(table)


def read_archive(spark: "SparkSession", table: str, table_format: str = "parquet") -> "DataFrame":
    """The rows of an archive, or of any other table with a column `value`; NotFound if there is nothing to read."""
    from pyspark.errors import AnalysisException

    try:
        if table_format == "iceberg":
            frame = spark.read.table(table)
        elif schema := FileLog(spark, table).check_readable(table_format):
            frame = spark.read.schema(schema).parquet(table)
        else:
            frame = spark.read.format(table_format).load(table)
    except AnalysisException as error:
        if error.getCondition() in ("TABLE_OR_VIEW_NOT_FOUND", "PATH_NOT_FOUND", "DELTA_TABLE_NOT_FOUND"):
            raise NotFound(f"{table}: no such {table_format} table") from None
        raise
    if "value" not in frame.columns:
        raise PipelineError(f"{table}: no column 'value' among {', '.join(frame.columns)}")
    return frame


class FileLog:
    """The log of Spark's file sink in `directory`: the number of the last batch, or -1, and an entry, if there is one.

    Entries of releases of gnsqd before Spark's file sink have `batches`.
    """

    def __init__(self, spark: "SparkSession", directory: str) -> None:
        jvm: Any = spark._jvm
        self._path = jvm.org.apache.hadoop.fs.Path
        root = self._path(directory)
        self._system = root.getFileSystem(spark._jsc.hadoopConfiguration())
        self._root = self._system.makeQualified(root)
        self._directory = directory
        self._ignored = spark.conf.get(_IGNORED) == "true"
        self._names = self._list(self._root)
        self._has_files = any(not name.startswith(("_", ".")) for name in self._names)
        batches = self._batches(_LOG)
        self._latest = max(batches, default=-1)
        entries = (self._first_entry(batches[number]) for number in sorted(batches, reverse=True))
        self._entry = next(filter(None, entries), None)  # a batch without rows has none

    def _list(self, path: Any) -> list[str]:
        if not self._system.exists(path):
            return []
        return [status.getPath().getName() for status in self._system.listStatus(path)]

    def _batches(self, log: str) -> dict[int, str]:
        """The files of a log of Spark by their batches."""
        names = self._list(self._path(self._root, log))
        return {int(name.split(".")[0]): name for name in names if name.removesuffix(".compact").isdigit()}

    def _first_entry(self, name: str) -> dict[str, Any] | None:
        stream = self._system.open(self._path(self._root, f"{_LOG}/{name}"))
        try:
            lines = bytes(stream.readNBytes(1 << 16)).decode(errors="replace").split("\n")[1:2]
        finally:
            stream.close()
        try:
            entry = json.loads(lines[0]) if lines and lines[0] else None
        except ValueError as error:
            raise PipelineError(f"{self._directory}/{_LOG}/{name} is damaged: {error}") from None
        return entry if isinstance(entry, dict) else None

    def _check_format(self, table_format: str) -> None:
        """UsageError if the directory is a table of another format, whose readers would find replaced files too."""
        for other, name in (("parquet", _LOG), ("delta", "_delta_log"), ("iceberg", "metadata")):
            if name in self._names and other != table_format:
                raise UsageError(f"{self._directory} looks like a table of another format: use --format {other}")

    def _check_place(self) -> None:
        """PipelineError if the log lists files elsewhere, because the directory was moved or copied."""
        if self._entry is None or self._ignored:
            return
        listed, here = (unquote(urlsplit(str(uri)).path) for uri in (self._entry["path"], self._root.toUri()))
        if not listed.startswith(here.rstrip("/") + "/"):
            raise PipelineError(
                f"{self._directory} was moved or copied: the log of Spark's sink lists files of "
                f"{listed.partition('/topic=')[0]}; move it back, or read all its files with --conf {_IGNORED}=true"
            )

    def check_readable(self, table_format: str = "parquet") -> str | None:
        """The schema with which to read an archive, else topics that are numbers become numbers; None: another table.

        NotFound if there is nothing to read; an error if it is of another format or has been moved."""
        self._check_format(table_format)
        if table_format != "parquet":
            return None
        if not self._system.exists(self._root):
            raise NotFound(f"{self._directory}: no such directory")
        if self._latest < 0 and not self._has_files:
            raise NotFound(f"{self._directory}: no archive and no Parquet files there")
        self._check_place()
        if self._latest < 0 or (self._entry and "/topic=" not in self._entry["path"]):
            return None
        return SCHEMA + (", hour INT" if self._entry and "batches" in self._entry else "")

    def check_writable(self, table_format: str = "parquet") -> None:
        """PipelineError if a sink would hide files or skip batches here."""
        self._check_format(table_format)
        if table_format != "parquet":
            return
        if self._entry and "batches" in self._entry:
            raise PipelineError(
                f"{self._directory} was written by an older release: replay and rollup read it; archive to another "
                f"directory, or copy it first: spark.read.parquet({self._directory!r}).drop('hour').write"
                ".format('delta').partitionBy('topic', 'date').save(...)"
            )
        self._check_place()
        if self._latest < 0 and self._has_files:
            raise PipelineError(f"{self._directory} has files that are not of an archive: use another directory")
        if self._latest > max(self._batches(f"{CHECKPOINT}/offsets"), default=-1):
            raise PipelineError(
                f"{self._directory}: the checkpoint of this archive is missing, and without it messages would be lost: "
                "restore it, or use another directory"
            )


@contextlib.contextmanager
def only_writer(table: str, checkpoint: Path | None) -> Iterator[None]:
    """Keep other runs of this host from `checkpoint`; None: on another file system, where Spark detects them."""
    if checkpoint is None:
        yield
        return
    checkpoint.mkdir(parents=True, exist_ok=True)
    with (checkpoint / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PipelineError(f"{table}: another run of gnsq-pipeline writes to it") from None
        except OSError:  # of a file system without locks; Spark detects other writers at their next batch
            pass
        yield
