"""Compaction: many small files of a partition become one, while batches are written and the archive is read.

Files of a directory are put together up to a target size, rewritten in the order of their timestamps, and exchanged
for the new file in one version of the log. The old ones stay for a while, for readers that started from an older
version, and are swept up later, together with what a crash left; only files that no version lists and that nobody has
touched for that while are removed, so a file that a writer has placed but not yet listed is safe.
"""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from gnsq_pipeline.archive import STAGING, ArchiveSink, is_data_file, unique_name
from gnsq_pipeline.archive_layout import SCHEMA
from gnsq_pipeline.errors import PipelineError
from gnsq_pipeline.file_log import DIRECTORY, Entry, FileLog, Version
from gnsq_pipeline.files import Files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LEAST_KEPT = 600.0  # seconds that an unlisted file is left alone, whatever was asked: a writer may be about to list it
HOUR_OPEN = 900.0  # seconds after its end that an hour still gets messages of its own, as a rule
KEEP = 3600.0  # seconds that replaced files stay
_AT_ONCE = 2  # groups
_LEFTOVERS = (f"{STAGING}/", f"{DIRECTORY}/.new-")


class Compacted(NamedTuple):
    """What a compaction did."""

    groups: int
    files_before: int
    bytes_before: int
    files_after: int
    bytes_after: int


def plan(
    entries: Iterable[Entry], target_bytes: int, min_files: int = 2, wanted: Callable[[str], bool] = lambda _: True
) -> list[list[Entry]]:
    """The groups of files to make one of: same directory (`wanted`), `target_bytes` at most, `min_files` at least.

    A file of more than half the target stays as it is: rewriting it would win little, and win it again and again.
    """
    small: dict[str, list[Entry]] = {}
    for entry in entries:
        if entry.size <= target_bytes // 2 and wanted(entry.directory):
            small.setdefault(entry.directory, []).append(entry)
    groups = []
    for directory in sorted(small):
        group: list[Entry] = []
        size = 0
        for entry in sorted(small[directory], key=lambda entry: (entry.modified_ms, entry.file)):
            if group and size + entry.size > target_bytes:
                groups.append(group)
                group, size = [], 0
            group.append(entry)
            size += entry.size
        groups.append(group)
    return [group for group in groups if len(group) >= max(2, min_files)]


def closed_before(limit: float) -> Callable[[str], bool]:
    """For `plan`: the directories of hours that ended before `limit`, in seconds since 1970."""

    def closed(directory: str) -> bool:
        fields = dict(part.partition("=")[::2] for part in directory.split("/"))
        began = datetime.fromisoformat(f"{fields['date']}T{int(fields['hour']):02}:00:00+00:00")
        return began.timestamp() + 3600 <= limit

    return closed


def compact_archive(
    spark: "SparkSession",
    files: Files,
    target_bytes: int,
    min_files: int = 2,
    keep: float = KEEP,
    wanted: Callable[[str], bool] = lambda _: True,
) -> Compacted:
    """Make one file of each group that `plan` finds now; replaced files are removed at once when `keep` is 0.

    A group of which another process has taken a file meanwhile is left to it.
    """
    groups = plan(FileLog(files).latest().entries, target_bytes, min_files, wanted)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        done = [entries for entries in pool.map(lambda group: _compact(spark, files, group, keep), groups) if entries]
    return Compacted(
        groups=len(done),
        files_before=sum(len(old) for old, _ in done),
        bytes_before=sum(entry.size for old, _ in done for entry in old),
        files_after=sum(len(new) for _, new in done),
        bytes_after=sum(entry.size for _, new in done for entry in new),
    )


def _compact(
    spark: "SparkSession", files: Files, group: Sequence[Entry], keep: float
) -> tuple[Sequence[Entry], Sequence[Entry]] | None:
    name = unique_name("compact")
    staging = f"{STAGING}/{name}"
    directory = group[0].directory
    columns = ", ".join(SCHEMA.split(", ")[:-3])  # the partition's own are in the path
    try:
        rows = spark.read.schema(columns).parquet(*(files.location(entry.file) for entry in group))
        written = files.location(f"{staging}/{directory}")
        rows.repartition(1).sortWithinPartitions("timestamp_ns").write.parquet(written)
        before, after = rows.count(), spark.read.schema(columns).parquet(written).count()
        if before != after:
            raise PipelineError(f"{files.location(directory)}: {before} rows became {after}; nothing was changed")
        batches: dict[str, int] = {}
        for entry in group:
            for stream, batch in entry.batches.items():
                batches[stream] = max(batch, batches.get(stream, -1))
        new = ArchiveSink(files).place(staging, name, batches)
        return (group, new) if exchange(files, group, new, keep) else None
    finally:
        files.remove(staging)


def exchange(files: Files, old: Sequence[Entry], new: Sequence[Entry], keep: float) -> bool:
    """Put `new` in the place of `old` in the log; False, with `new` removed, when `old` isn't all there any more."""
    names = {entry.file for entry in old}

    def exchanged(now: Version) -> list[Entry] | None:
        rest = [entry for entry in now.entries if entry.file not in names]
        return [*rest, *new] if len(now.entries) - len(rest) == len(names) else None

    listed = {entry.file for entry in FileLog(files).commit(exchanged).entries}
    won = all(entry.file in listed for entry in new)
    for entry in old if won else ():
        if keep > 0:
            files.touch(entry.file)  # its time as an unlisted file begins
        else:
            files.remove(entry.file)
    for entry in () if won else new:
        files.remove(entry.file)
    return won


def sweep(files: Files, keep: float, now: float) -> tuple[int, int]:
    """Remove data files that no version lists and staging directories, untouched for `keep` seconds: (files, bytes).

    `now` is the time, in seconds since 1970.
    """
    found = list(files.walk())  # before the log: what is listed by then is not a leftover
    listed = {entry.file for entry in FileLog(files).latest().entries}
    limit = now - max(keep, LEAST_KEPT)
    removed = size = 0
    for status in found:
        hidden = status.path.startswith(("_", "."))
        leftover = status.path.startswith(_LEFTOVERS) if hidden else is_data_file(status.path)
        if leftover and status.path not in listed and status.modified < limit:
            files.remove(status.path)
            removed += 1
            size += status.size
    return removed, size
