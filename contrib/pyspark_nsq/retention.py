"""What of the spool is kept, for how long, and what there is.

Spark commits a batch; then its segments are needed only by somebody who resets a checkpoint by hand, and of its ids
those whose FIN is in doubt (suspects). `Retention.commit` writes the ids files, notes the batch as committed, and then
deletes, in this order, so that it may die in between:

- segments of committed batches: after `spoolRetention`, or earlier while there are more than `spoolMaxBytes`;
- ids whose FIN was confirmed: after ten minutes (a killed nsqd may deliver them again, what it had not synced);
- suspects: after `dedupRetention`, or like the confirmed when their channel was seen empty since. What `spoolMaxBytes`
  leaves no room for is also deleted: first the oldest confirmed ids, then the oldest suspects.

Ages count only while the stream runs: a message that waits for a stopped stream is still known when it runs again. They
are taken from a clock that nobody sets, and not from the times of files, which another machine may have given them.
Segments without a commit are never deleted: NSQ no longer has their messages.
"""

import logging
import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark_nsq.errors import SpoolError
from pyspark_nsq.known_ids import IdsFile, archive, ids_files
from pyspark_nsq.options import Settings
from pyspark_nsq.segment import Kind, read_entry
from pyspark_nsq.spool import Spool, split_chain_name

CONFIRMED_RETENTION = 600.0

_log = logging.getLogger(__name__)


class Retention:
    """Keeps one stream's spool within its limits, on the driver; made when the stream is started."""

    def __init__(self, spool: Spool, settings: Settings) -> None:
        self._spool = spool
        self._settings = settings
        self._first_seen: dict[str, float] = {}  # by path, of what may be deleted some time
        self._sizes: dict[int, int] = {}  # by batch

    def commit(self, batch: int, empty: Mapping[tuple[str, str], int]) -> None:
        """The batch, and those before it, need no replay any more.

        `empty` has, for topics of nsqds whose channel was seen empty, after which batch. If this raises OSError or
        SpoolError, for want of space perhaps, the next call makes up for it.
        """
        self._commit(batch)
        self._delete(empty)

    def _commit(self, batch: int) -> None:
        before = self._spool.committed()
        if batch <= before:
            return
        for one in self._spool.batches():
            if before < one <= batch:
                archive(self._spool, one)
        self._spool.set_committed(batch)

    def _age(self, path: str) -> float:
        now = time.monotonic()
        return now - self._first_seen.setdefault(path, now)

    def _delete(self, empty: Mapping[tuple[str, str], int]) -> None:
        committed = self._spool.committed()
        limit = self._settings.spool_max_bytes
        batches = [batch for batch in self._spool.batches() if batch <= committed]
        files = self._id_files(committed)
        for batch in batches:
            if batch not in self._sizes:
                self._sizes[batch] = _size_below(self._spool.batch_directory(batch))
        used = sum(self._sizes[batch] for batch in batches) + sum(size for _, _, size in files)
        for batch in batches:
            directory = self._spool.batch_directory(batch)
            if self._age(directory) >= self._settings.spool_retention or (limit is not None and used > limit):
                shutil.rmtree(directory)
                del self._first_seen[directory]
                used -= self._sizes.pop(batch)
        for key, file, size in sorted(files, key=lambda item: (not item[1].confirmed, item[1].batch)):
            keep = self._settings.dedup_retention
            if file.confirmed or empty.get(key, 0) >= file.batch:
                keep = min(keep, CONFIRMED_RETENTION)
            due = self._age(file.path) >= keep
            if due or (limit is not None and used > limit):
                if not due and not file.confirmed:
                    _log.warning("spool at %s: %s is forgotten for want of room", self._spool.directory, file.path)
                os.unlink(file.path)
                del self._first_seen[file.path]
                used -= size

    def _id_files(self, committed: int) -> list[tuple[tuple[str, str], IdsFile, int]]:
        found = []
        for name in os.listdir(os.path.join(self._spool.directory, "ids")):
            key = split_chain_name(name)
            for file in ids_files(self._spool, *key):
                if file.batch <= committed:
                    found.append((key, file, os.stat(file.path).st_size))
        return found


def _size_below(directory: str) -> int:
    return sum(path.stat().st_size for path in Path(directory).rglob("*") if path.is_file())


# Inspection


@dataclass
class BatchReport:
    """What is there of one batch. `suspects` are messages whose FIN is not confirmed; `ended` are tasks."""

    batch: int
    committed: bool
    chains: int = 0
    segments: int = 0
    messages: int = 0
    suspects: int = 0
    ended: int = 0
    bytes: int = 0
    damaged: int = 0  # entries


@dataclass
class StreamReport:
    """What is there of one stream. `ids`, of which some are `suspects`, are those remembered of committed batches."""

    stream: str
    kind: str
    created: int  # unix seconds
    topics: tuple[str, ...]
    channel: str
    committed: int
    batches: list[BatchReport] = field(default_factory=list)
    ids: int = 0
    suspects: int = 0
    id_bytes: int = 0

    @property
    def uncommitted(self) -> list[BatchReport]:
        """The batches whose messages NSQ doesn't have any more and Spark hasn't committed yet."""
        return [batch for batch in self.batches if not batch.committed]

    @property
    def bytes(self) -> int:
        return self.id_bytes + sum(batch.bytes for batch in self.batches)


def inspect(location: str) -> list[StreamReport]:
    """All streams of a spool, by age; SpoolError if there is no such directory."""
    try:
        names = sorted(os.listdir(location))
    except OSError as error:
        raise SpoolError(f"cannot read the spool at {location}: {error.strerror}") from None
    streams = (Spool(location, name, strict=False) for name in names)
    return sorted((_inspect(spool) for spool in streams if spool.exists()), key=lambda report: report.created)


def _inspect(spool: Spool) -> StreamReport:
    about: dict[str, Any] = spool.about()
    report = StreamReport(
        spool.stream,
        str(about.get("kind", "")),
        int(about.get("created", 0)),
        tuple(about.get("topics", ())),
        str(about.get("channel", "")),
        spool.committed(),
    )
    for batch in spool.batches():
        report.batches.append(_inspect_batch(spool, batch, batch <= report.committed))
    for name in os.listdir(os.path.join(spool.directory, "ids")):
        for file in ids_files(spool, *split_chain_name(name)):
            try:
                entry = read_entry(file.path, 0)
            except (SpoolError, FileNotFoundError):
                continue
            report.ids += entry.messages
            report.suspects += 0 if file.confirmed else entry.messages
            report.id_bytes += entry.size
    return report


def _inspect_batch(spool: Spool, batch: int, committed: bool) -> BatchReport:
    report = BatchReport(batch, committed)
    for _, _, chain in spool.chains(batch):
        chain.refresh()
        sure = chain.confirmed()
        report.chains += 1
        for entry in chain.entries:
            if entry.kind is Kind.SEGMENT:
                report.segments += 1
                report.messages += entry.messages
                report.suspects += 0 if entry.slot in sure else entry.messages
            report.ended += entry.kind is Kind.END
            report.damaged += entry.kind is Kind.LOST
            report.bytes += entry.size
    return report


def remove_old_reads(location: str, age: float) -> None:
    """Delete what reads other than streams have left, if they were made more than `age` seconds ago."""
    for report in inspect(location):
        if report.kind == "read" and time.time() - report.created > age:
            remove_stream(location, report.stream)


def remove_stream(location: str, stream: str) -> int:
    """Delete all of a stream, whose query and checkpoint must be gone for good; returns the bytes that were there."""
    spool = Spool(location, stream)
    if os.sep in stream or stream in ("", ".", "..") or not spool.exists():
        raise SpoolError(f"there is no stream {stream!r} in the spool at {location}")
    size = _size_below(spool.directory)
    shutil.rmtree(spool.directory)
    return size
