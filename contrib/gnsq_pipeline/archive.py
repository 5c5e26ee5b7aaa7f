"""Archives: how a batch of messages becomes part of one exactly once, and how it is read.

A batch is written to a staging directory, its files are moved to their partitions, and then one new version of the log
makes them part of the archive (see `file_log`), unless the batch is there already. So wherever that is cut off, Spark
can run the batch again, even while an old driver, taken for dead, is still at it: each has a directory and file names
of its own. What is left over is in no version, and swept up later. Readers that follow the log (all of Spark's) see a
batch whole or not at all.
"""

import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING

from gnsq_pipeline.archive_layout import PARTITION_COLUMNS, SCHEMA, to_archive
from gnsq_pipeline.errors import NotFound, PipelineError
from gnsq_pipeline.file_log import Entry, FileLog, Version
from gnsq_pipeline.files import Files, files_at

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STAGING = "_staging"


class ArchiveSink:
    """Writes batches of one stream into the archive; `write_batch` is made for `foreachBatch`.

    `after_batch` is called after each, with the archive in order: the place for a compaction.
    """

    def __init__(self, files: Files, after_batch: Callable[[], None] | None = None) -> None:
        self._files = files
        self._log = FileLog(files)
        self._after_batch = after_batch

    def write_batch(self, messages: "DataFrame", batch: int) -> None:
        """Archive the rows of the source in `messages` as batch `batch` of the streaming query that calls."""
        stream = messages.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        self.write(messages, stream or "batch", batch)
        if self._after_batch is not None:
            self._after_batch()

    def write(self, messages: "DataFrame", stream: str, batch: int) -> Version:
        """Archive `messages` as batch `batch` of `stream`, unless it is there; the archive as it is then."""
        latest = self._log.latest()
        if latest.last_batch(stream) >= batch:
            return latest
        name = unique_name(f"{stream[:8]}-{batch:08d}")
        staging = f"{STAGING}/{name}"
        try:
            to_archive(messages).write.partitionBy(*PARTITION_COLUMNS).parquet(self._files.location(staging))
            entries = self.place(staging, name, {stream: batch})
        finally:
            self._files.remove(staging)

        def added(now: Version) -> list[Entry] | None:
            # A batch without rows leaves no file and needs none: run again, it is without rows again.
            return [*now.entries, *entries] if entries and now.last_batch(stream) < batch else None

        return self._log.commit(added)

    def place(self, staging: str, name: str, batches: dict[str, int]) -> list[Entry]:
        """Move the Parquet files of `staging` to their partitions as `<name>-<number>.parquet`; not yet in the log."""
        entries = []
        written = sorted(status for status in self._files.walk(staging) if is_data_file(status.path))
        for number, status in enumerate(written):
            directory = status.path.removeprefix(f"{staging}/").rpartition("/")[0]
            target = f"{directory}/{name}-{number:05d}.parquet"
            self._files.move(status.path, target)
            entries.append(Entry(target, status.size, int(status.modified * 1000), batches))
        return entries


def is_data_file(path: str) -> bool:
    """Whether a file below a staging directory or partition holds rows: no checksum, marker or temporary file."""
    name = path.rpartition("/")[2]
    return name.endswith(".parquet") and not name.startswith(("_", "."))


def require_archive(files: Files) -> Version:
    """The newest version of the archive; NotFound when there is none, PipelineError when it was moved."""
    latest = unmoved(files)
    if latest.number < 0:
        raise NotFound(f"{files.location('')}: no archive there")
    return latest


def unmoved(files: Files) -> Version:
    """The newest version, of an archive that may not have begun; PipelineError when it is one of another place."""
    latest = FileLog(files).latest()
    if latest.moved_from is not None:
        raise PipelineError(
            f"{files.location('')} was moved or copied from elsewhere; `gnsq-pipeline compact --adopt` makes it right"
        )
    return latest


def read_archive(spark: "SparkSession", location: str) -> "DataFrame":
    """The rows of the archive at `location`, or of any other Parquet that has a `value` column.

    A plain directory of Parquet files keeps its own columns. NotFound when there is nothing to read.
    """
    files = files_at(location, spark)
    if not files.exists(""):
        raise NotFound(f"{location}: no such directory")
    if FileLog(files).latest().number < 0:
        if not any(is_data_file(status.path) for status in files.walk()):
            raise NotFound(f"{location}: no archive and no Parquet files there")
        frame = spark.read.parquet(location)
        if "value" not in frame.columns:
            raise PipelineError(f"{location}: no column 'value' among {', '.join(frame.columns)}")
        return frame
    require_archive(files)
    return spark.read.schema(SCHEMA).parquet(files.location(""))


def adopt(files: Files) -> Version:
    """Make an archive that was moved or copied here right: its log gets the paths of this place."""
    return FileLog(files).commit(lambda now: now.entries if now.moved_from is not None else None)


def unique_name(prefix: str) -> str:
    """A name that no other staging directory has, nor the files from it."""
    return f"{prefix}-{uuid.uuid4().hex[:12]}"
