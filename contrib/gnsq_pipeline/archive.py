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

from gnsq_pipeline.errors import InputNotFound, PipelineError, UsageError, reason

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

SCHEMA = (
    "value BINARY, channel STRING, nsqd STRING, message_id STRING, timestamp TIMESTAMP, timestamp_ns LONG,"
    " attempts INT, offset LONG, archived_at TIMESTAMP, topic STRING, date DATE"
)
COLUMNS = [column.split()[0] for column in SCHEMA.split(", ")]
PARTITION_COLUMNS = ("topic", "date")
FORMATS = ("parquet", "delta", "iceberg")
NS_PER_DAY = 86_400_000_000_000
CHECKPOINT = "_checkpoint"
_LOG = "_spark_metadata"


def to_archive(messages: "DataFrame") -> "DataFrame":
    """Returns rows of the source as rows of an archive: with `archived_at`, the start of the batch, unless it is there,
    and `date`, the day of `timestamp_ns` in UTC whatever the session's time zone is."""
    from pyspark.sql import functions as sf

    if "archived_at" not in messages.columns:
        messages = messages.withColumn("archived_at", sf.current_timestamp())
    day = f"(timestamp_ns - pmod(timestamp_ns, {NS_PER_DAY}L)) div {NS_PER_DAY}L"
    return messages.withColumn("date", sf.expr(f"date_from_unix_date(cast({day} as int))")).select(*COLUMNS)


def start(
    writer: "DataStreamWriter", table: str, table_format: str, checkpoint: str, partitions: tuple[str, ...] = ()
) -> "StreamingQuery":
    """Starts a query that appends to `table`: a directory or, of Iceberg, a table of a catalog, created if needed."""
    writer = writer.format(table_format).outputMode("append").option("checkpointLocation", checkpoint)
    if partitions:
        writer = writer.partitionBy(*partitions)
    if table_format == "iceberg":
        return writer.option("fanout-enabled", "true").toTable(table)  # else Iceberg demands sorted rows
    return writer.start(table)


def write(frame: "DataFrame", table: str, table_format: str, partitions: tuple[str, ...] = ()) -> None:
    """Writes a table that does not exist yet; what a killed run has left does not count."""
    from pyspark.sql import functions as sf

    if table_format == "iceberg":
        creator = frame.writeTo(table)
        (creator.partitionedBy(*map(sf.col, partitions)) if partitions else creator).create()
    else:
        mode = "append" if set(_names(frame.sparkSession, table)) <= {"_temporary"} else "error"
        frame.write.format(table_format).mode(mode).partitionBy(*partitions).save(table)


def read_archive(spark: "SparkSession", table: str, table_format: str = "parquet") -> "DataFrame":
    """Returns the rows of an archive, or of any table with a column `value`. Raises InputNotFound if there is none."""
    from pyspark.errors import AnalysisException

    try:
        if table_format == "iceberg":
            frame = spark.read.table(table)
        else:
            reader, names = spark.read, _check_format(spark, table, table_format)
            if table_format == "parquet" and all(name[0] in "_." for name in names) and _latest(spark, table, _LOG) < 0:
                raise InputNotFound(f"{table}: no archive and no Parquet files there")
            if _LOG in names and (_listed_file(spark, table) or "topic=").startswith("topic="):
                reader = reader.schema(SCHEMA)  # else topics that are numbers become numbers
            frame = reader.format(table_format).load(table)
    except AnalysisException as error:
        if error.getCondition() in ("TABLE_OR_VIEW_NOT_FOUND", "PATH_NOT_FOUND", "DELTA_TABLE_NOT_FOUND"):
            raise InputNotFound(f"{table}: no such {table_format} table") from None
        raise
    if "value" not in frame.columns:
        raise PipelineError(f"{table}: no column 'value' among {', '.join(frame.columns)}")
    return frame


def check_writable(spark: "SparkSession", directory: str, table_format: str = "parquet") -> None:
    """Raises PipelineError if a sink would hide files or skip batches, UsageError if the table has another format."""
    names = _check_format(spark, directory, table_format)
    if table_format != "parquet":
        return
    latest = _latest(spark, directory, _LOG)
    if latest < 0 and not all(name[0] in "_." for name in names):
        raise PipelineError(f"{directory} has files that are not of an archive: use another directory")
    if latest >= 0 and "/hour=" in _listed_file(spark, directory):  # its log has other numbers than the batches
        raise PipelineError(
            f"{directory} was written by an older release: replay and rollup read it; archive to another directory"
        )
    if latest > _latest(spark, directory, CHECKPOINT, "offsets"):
        raise PipelineError(
            f"{directory}: the checkpoint of this archive is missing, and without it messages would be lost: "
            "restore it, or use another directory"
        )


def _check_format(spark: "SparkSession", directory: str, table_format: str) -> list[str]:
    """Returns the names in a table. Raises UsageError if it has another format: replaced files would be read too."""
    names = _names(spark, directory)
    for other, name in (("parquet", _LOG), ("delta", "_delta_log"), ("iceberg", "metadata")):
        if name in names and other != table_format:
            raise UsageError(f"{directory} looks like a table of another format: use --format {other}")
    return names


def _place(spark: "SparkSession", *parts: str) -> tuple[Any, Any]:
    """Returns the Hadoop file system of a path, and the path with its scheme."""
    jvm: Any = spark._jvm
    path = jvm.org.apache.hadoop.fs.Path("/".join(parts))
    system = path.getFileSystem(spark._jsc.hadoopConfiguration())
    return system, system.makeQualified(path)


def _names(spark: "SparkSession", *parts: str) -> list[str]:
    """Returns the names in a directory; none if it does not exist."""
    system, path = _place(spark, *parts)
    return [status.getPath().getName() for status in system.listStatus(path)] if system.exists(path) else []


def _latest(spark: "SparkSession", *log: str) -> int:
    """Returns the number of the last batch in a log of Spark, -1 if there is none."""
    numbers = [name.removesuffix(".compact") for name in _names(spark, *log)]
    return max((int(number) for number in numbers if number.isdigit()), default=-1)


def last_offset(spark: "SparkSession", checkpoint: str) -> dict[str, Any] | None:
    """Returns the offset of the batch that was planned last with a checkpoint, None if there is none yet."""
    batch = _latest(spark, checkpoint, "offsets")
    if batch < 0:
        return None
    system, path = _place(spark, checkpoint, "offsets", str(batch))
    with contextlib.closing(system.open(path)) as file:
        offset: dict[str, Any] = json.loads(bytes(file.readAllBytes()).splitlines()[-1])  # the only source's
    return offset


def _listed_file(spark: "SparkSession", directory: str) -> str:
    """Returns a file that the log of Spark's file sink lists, as a path in `directory`; empty if there is none.

    Raises PipelineError if the log is damaged, or lists files elsewhere because the directory was moved or copied."""
    from py4j.protocol import Py4JJavaError

    try:  # not by DataFrame.inputFiles: py4j would get them one by one
        files = spark.read.schema(SCHEMA).parquet(directory)._jdf.inputFiles()
    except Py4JJavaError as error:
        raise PipelineError(f"{directory}/{_LOG} is damaged: {reason(error)}") from None
    file = unquote(urlsplit(files[0]).path) if len(files) else ""
    root = _place(spark, directory)[1].toUri().getPath().rstrip("/") + "/"
    if file and not file.startswith(root):
        raise PipelineError(
            f"{directory} was moved or copied: the log of Spark's sink lists files of "
            f"{file.partition('/topic=')[0]}; move it back, or read all its files with --conf "
            "spark.sql.streaming.fileStreamSink.ignoreMetadata=true"
        )
    return file.removeprefix(root)


@contextlib.contextmanager
def only_writer(table: str, checkpoint: Path) -> Iterator[None]:
    """Keeps other runs of this host from `checkpoint`; on other file systems, Spark detects them.

    A directory that this makes stays only if Spark writes to it.
    """
    new = [path for path in (checkpoint, *checkpoint.parents) if not path.exists()]
    checkpoint.mkdir(parents=True, exist_ok=True)
    lock = checkpoint / ".lock"
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PipelineError(f"{table}: another run of gnsq-pipeline writes to it") from None
        except OSError:  # of a file system without locks; Spark detects other writers at their next batch
            pass
        try:
            yield
        finally:
            if new and list(checkpoint.iterdir()) == [lock]:
                lock.unlink()
                with contextlib.suppress(OSError):  # the first that is not empty any more
                    for path in new:
                        path.rmdir()
