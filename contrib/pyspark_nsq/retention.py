"""What of the spool is kept, for how long, and what there is.

Spark commits a batch; then its segments are needed only by somebody who resets a checkpoint by hand, and of its ids
those whose FIN is in doubt (suspects). `Retention.commit` writes the ids files, notes the batch as committed, and then
deletes, in this order, so that it may die in between:

- segments of committed batches: after `spoolRetention`, or the oldest earlier while there are more than
  `spoolMaxBytes`;
- ids whose FIN was confirmed: after ten minutes (a killed nsqd may deliver them again, what it had not synced);
- suspects: after `dedupRetention`.

Ages count only while the stream runs: a message that waits for a stopped stream is still known when it runs again. They
are taken from a clock that nobody sets, and not from the times of files, which another machine may have given them.
Segments without a commit are never deleted: NSQ no longer has their messages.
"""

import logging
import math
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from gnsqd.shared.errors import reason_of
from pyspark_nsq.errors import SpoolError
from pyspark_nsq.files import place
from pyspark_nsq.known_ids import archive, ids_files
from pyspark_nsq.options import Settings
from pyspark_nsq.segment import EntryKind
from pyspark_nsq.spool import Spool, split_chain_name

CONFIRMED_RETENTION = 600.0
_READ_RETENTION = 86400.0  # seconds that batch reads are kept at least, since Spark does not report when one is over

_log = logging.getLogger(__name__)


class Retention:
    """Keeps one stream's spool within its limits, on the driver; made when the stream is started."""

    def __init__(self, spool: Spool, settings: Settings) -> None:
        self._spool = spool
        self._settings = settings
        self._dropped = 0
        self._seen: dict[str, tuple[float, int]] = {}  # by path: since when, in seconds, and its size

    def commit(self, batch: int) -> dict[str, int]:
        """The batch, and those before it, need no replay any more. Returns how many suspects, and bytes of segments and
        ids, are kept of them, and how many messages were dropped since the stream was started, because they were read
        before; uncommitted batches are not counted.

        If this raises OSError or SpoolError, for want of space perhaps, the next call makes up for it.
        """
        before = self._spool.committed()
        if batch > before:
            for one in self._spool.batches():
                if before < one <= batch and (dropped := archive(self._spool, one)):
                    self._dropped += dropped
                    what = f"batch {one}: {dropped} messages were dropped, since they were read before"
                    _log.warning("%s; after `channel rewind`, 'deliverRewound' = 'true' delivers them", what)
            self._spool.set_committed(batch)
        return {**self._delete(max(before, batch)), "dropped": self._dropped}

    def _delete(self, committed: int) -> dict[str, int]:
        """Delete what is due, and segments that there is no room for; returns what is left."""
        settings, now = self._settings, time.monotonic()
        segments = [self._spool.batch_directory(batch) for batch in self._spool.batches() if batch <= committed]
        ids = {file.path: file for file in ids_files(self._spool) if file.batch <= committed}
        for path in (*segments, *ids):
            if path not in self._seen:
                self._seen[path] = now, place(path).size(path)
        excess = sum(self._seen[path][1] for path in segments) - (settings.spool_max_bytes or math.inf)
        left = {"suspects": 0, "spool_bytes": 0}
        for path in (*segments, *ids):
            first_seen, size = self._seen[path]
            file = ids.get(path)
            keep = settings.spool_retention if file is None else settings.dedup_retention
            if file is not None and file.confirmed:
                keep = min(keep, CONFIRMED_RETENTION)
            if now - first_seen >= keep or (file is None and excess > 0):
                place(path).delete(path)
                del self._seen[path]
                excess -= size
                continue
            left["spool_bytes"] += size
            if file is not None and not file.confirmed:
                left["suspects"] += file.messages
        return left


# Inspection


@dataclass
class StreamReport:
    """What a spool has of one stream. `known_ids` are of committed batches. `suspects` are messages whose FIN is not
    confirmed, among these ids and in uncommitted batches. `damaged` are entries."""

    stream: str
    kind: str
    created: int  # unix seconds
    topics: tuple[str, ...]
    channel: str
    committed_batch: int
    session: str = ""  # of a batch read without a name that nobody has taken up since
    batches: int = 0
    segments: int = 0
    messages: int = 0
    uncommitted_messages: int = 0
    known_ids: int = 0
    suspects: int = 0
    bytes: int = 0
    damaged: int = 0

    def takes_from(self, settings: Settings) -> bool:
        """True if it takes messages of the channel and of a topic of the settings."""
        return self.channel == settings.channel and not set(self.topics).isdisjoint(settings.subscription)


def inspect(location: str) -> list[StreamReport]:
    """All streams of a spool, by age; SpoolError if there is no such directory."""
    try:
        names = place(location).names(location)
    except OSError as error:
        raise SpoolError(f"cannot read the spool at {location}: {reason_of(error)}") from None
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
        "" if spool.exists("named") else str(about.get("session", "")),
    )
    for batch in spool.batches():
        report.batches += 1
        for _, chain in spool.chains(batch):
            sure = chain.confirmed()
            report.bytes += sum(entry.size for entry in chain.entries)
            report.damaged += sum(entry.kind is EntryKind.LOST for entry in chain.entries)
            for entry in chain.segments():
                report.segments += 1
                report.messages += entry.messages
                if batch > report.committed_batch:
                    report.uncommitted_messages += entry.messages
                    report.suspects += 0 if entry.slot in sure else entry.messages
    for file in ids_files(spool):
        with suppress(FileNotFoundError):
            report.bytes += place(file.path).size(file.path)
            report.known_ids += file.messages
            report.suspects += 0 if file.confirmed else file.messages
    return report


def others_of(settings: Settings, kind: str) -> list[StreamReport]:
    """Returns the streams of a kind in the spool of the settings, before a new one begins."""
    try:
        return [report for report in inspect(settings.spool_location or "") if report.kind == kind]
    except (OSError, SpoolError):  # there is none yet; or making the new one's directory will fail with the reason
        return []


def check_other_reads(settings: Settings, session: str) -> None:
    """Raises SpoolError, before a batch read begins in `session`, if a read without a name took messages of its channel
    in another session, since nothing else would read them; in this one, where its frame is, warns. Deletes old reads.
    """
    location = settings.spool_location or ""
    reads = others_of(settings, "read")
    unnamed = [read for read in reads if read.session and read.messages]
    lost = [read for read in unnamed if read.session != session and settings.fail_on_data_loss]
    rivals = [read for read in unnamed if read.takes_from(settings) and settings.read_id is None]
    for read in sorted(rivals, key=lost.__contains__)[-1:]:
        name, _ = split_chain_name(read.stream)
        text = (
            f"the spool at {location} has {read.messages} messages of channel {read.channel}, which another batch read "
            f"took at {datetime.fromtimestamp(read.created, UTC).isoformat()}. If they were not written, 'readId' = "
            f"{name!r} reads them again, and `gnsq-pipeline spool replay {location} {name}` publishes them again; "
            "'failOnDataLoss' = 'false' goes on without them. With a 'readId', a repeated job reads the same rows"
        )
        if read in lost:
            raise SpoolError(text)
        _log.warning("%s", text)
    for read in reads:
        if time.time() - read.created > max(_READ_RETENTION, settings.spool_retention) and read not in lost:
            place(location).delete(os.path.join(location, read.stream))
