"""The log of a topic: its messages, each with a number, in files that are called segments.

Appending only collects. A write appends what was collected, with records of queues around it, to the last segment. A
segment ends at a certain size; the next one begins with a snapshot of all queues, so older segments are needed only for
their messages.
"""

import os
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from sys import maxsize
from time import monotonic
from typing import Protocol

from gnsqd.hub.cooperative import Report
from gnsqd.hub.doorbell import Doorbell
from gnsqd.log import Logger
from gnsqd.options import Options
from gnsqd.queues.journal.segments import AppendedFile, OpenFiles, Segments, mark_continued
from gnsqd.queues.message import Message
from gnsqd.shared.disk_format import segment_name
from gnsqd.shared.errors import StorageError, failing_as_go
from gnsqd.shared.journal.records import EPOCH, RETENTION, Encoder, Mark, PutBatch
from gnsqd.shared.journal.replay import Replay
from gnsqd.shared.journal.segment import Segment
from gnsqd.storage.files import sync_directory, sync_files, sync_path
from gnsqd.storage.syncer import GroupCommit, Outcome, Syncer

MAX_SEGMENT = 64 * 1024 * 1024  # bytes
MIN_ROLL = 4 * 1024 * 1024  # bytes, before a segment without live messages is left
MEAN_OVER = 1 << 17  # messages put last, of which a mean size is

Puts = tuple[list[bytes], list[Mark]]  # `puts` and `marks` of a `PutBatch`


class Follower(Protocol):
    """Keeps a copy of logs somewhere else: `shipping.Shipper`."""

    def opened(self, log: "Log") -> None: ...
    def note(self, log: "Log", size: int = 0) -> None: ...
    def needs(self, segment: Segment) -> bool: ...
    def call_when_stored(self, log: "Log", report: Report) -> None: ...


class Log:
    """Owns the segments, and the messages that are not written yet.

    `on_dirty()` is called when there is something to write, and `on_synced()` after an fsync."""

    def __init__(
        self,
        topic: str,
        options: Options,
        replay: Replay,
        next_segment: int,
        logger: Logger,
        syncer: Syncer,
        open_files: OpenFiles,
        on_dirty: Callable[[], None],
        on_synced: Callable[[], None],
        shipper: "Follower | None",
    ) -> None:
        self.topic = topic
        self.data_path = options.data_path
        self.durable = options.durability != "process"  # a conversion must not be undone by a loss of power
        self.logger = logger
        self.syncer = syncer
        self.shipper = shipper
        self.is_answered_by_store = options.durability == "store"
        self.open_files = open_files
        self.encoder = Encoder(random.getrandbits(32))
        self.segments = Segments(topic, replay.segments, logger, open_files, syncer.remove)
        self.lost = replay.lost  # numbers of messages that the last start missed
        self.replaced: list[Segment] = []  # there are copies of their live messages
        self.max_segment = min(options.max_bytes_per_file, MAX_SEGMENT)  # bytes
        self.next_number = replay.next_number
        self.unwritten = PutBatch(self.encoder)
        self.tail = LogTail(self, on_synced)
        self.reclaim = on_synced  # deletes what had to wait for the store
        self.begun = monotonic()  # when the last segment was
        self.snapshot_end = 0  # the position behind the last snapshot
        self._on_dirty = on_dirty
        self._next_segment = next_segment
        self._lasting: dict[int, bytes] = {}  # by type, the records that each segment has to have
        if replay.retention is not None:
            self._lasting[RETENTION] = self.encoder.retention(*replay.retention)
        self.epoch = replay.epoch  # the random name of this log; empty if nobody has asked for it
        self.is_epoch_safe = bool(self.epoch)
        if self.epoch:
            self._lasting[EPOCH] = self.encoder.record(EPOCH, self.epoch)
        self._begin = -1  # the position of the last segment, once one was begun
        self._snapshot_size = 0  # bytes, of the last segment
        self._roll_at = MIN_ROLL
        self._is_replay_whole = replay.whole
        self._void = replay.void
        self._abandoned: list[Segment] = []  # to be deleted when there is another
        self._unmarked = replay.unindexed  # segments that do not yet record that another follows
        self._put_count = sum(segment.count for segment in replay.segments)
        self._put_size = sum(segment.body_size for segment in replay.segments)

    def append(self, frames: list[bytes], due: int = 0) -> int:
        """Appends messages, not to be delivered before `due` (wall clock, ns); returns the number of the first."""
        first = self.next_number
        self._put_size += self.unwritten.put(first, frames, due)
        self._put_count += len(frames)
        self.next_number += len(frames)
        self._on_dirty()
        return first

    def mean_size(self) -> int:
        """Returns the mean bytes, about, that messages put last take in a disk queue, 0 if there were none."""
        while self._put_count > MEAN_OVER:
            self._put_count //= 2
            self._put_size //= 2
        # A frame also has its type.
        return self._put_size // self._put_count - 4 if self._put_count else 0

    def declare(self, type: int, record: bytes) -> None:
        """Appends a record that every later segment also has to have, unless another of its type replaces it."""
        self._lasting[type] = record
        self.unwritten.lasts.append(record)
        self._on_dirty()

    def take_name(self) -> None:
        """Gives the log a random name, unless it has one, for segments that begin from now on."""
        if not self.epoch:
            self.epoch = os.urandom(8)
            self._lasting[EPOCH] = self.encoder.record(EPOCH, self.epoch)

    def write(self, segment: Segment, file: AppendedFile, head: bytes, notes: list[bytes]) -> None:
        """Writes what was appended, between these records; StorageError: nothing is written."""
        batch = self.unwritten
        size = self.tail.write(file, [head, *batch.puts, *notes, *batch.lasts], segment.size, batch)
        segment.note_batch(batch, segment.size + len(head), size)
        batch.clear_messages()
        batch.lasts = []

    def take_back(self) -> list[bytes]:
        """Drops the messages that are not written, and returns them: the next ones get their numbers."""
        batch, frames = self.unwritten, []
        number = first = batch.first
        while found := batch.read(number, self.next_number)[1]:
            frames += found
            number += len(found)
        batch.clear_messages()
        self.next_number = first
        return frames

    def append_again(self, lost: list[Puts]) -> None:
        """Has messages that an fsync did not confirm written to a new segment."""
        self.unwritten.prepend(lost)
        if marks := self.unwritten.marks:
            for segment in self.segments.all:
                segment.cut(marks[0][0])
        if self._begin >= self.tail.safe:
            # Nothing in the last is confirmed; otherwise there would be one for each attempt.
            self._abandoned += self.segments.replace(self.segments.all[-1:], None)
        self._on_dirty()

    @property
    def next_path(self) -> str:
        return os.path.join(self.data_path, segment_name(self.topic, self._next_segment))

    @property
    def full_size(self) -> int:
        """Returns the size in bytes from which on a segment is followed by another."""
        # So a snapshot takes a quarter of its segment at most, however many messages are held back.
        return max(self.max_segment, 4 * self._snapshot_size)

    def is_full(self, floor: Callable[[], int]) -> bool:
        """True if a new segment should follow: also early, when before `floor()` is nearly all of the last one."""
        segment = self.segments.all[-1]
        size = segment.size + self.unwritten.puts_size
        full_size = self.full_size
        if size >= full_size:
            # One without messages takes a batch that is larger than a segment: the next would be no emptier.
            return segment.count > 0 or segment.size > full_size
        # A new segment costs a snapshot, so this is looked at again only when several times as much was written.
        if size < self._roll_at:
            return False
        self._roll_at = segment.size + max(MIN_ROLL, 4 * self._snapshot_size)
        return 4 * (floor() - segment.first) >= 3 * (segment.end - segment.first)

    def roll(self, first: int, file: AppendedFile, size: int, rest: bytes) -> None:
        """Goes on in a new segment for messages from number `first` on, whose file has `size` bytes of a snapshot of
        all queues: writes the `rest` of that and what was appended. StorageError: there is no new segment."""
        begin = self.tail.position
        segment = Segment(file.path, self.encoder.salt, first)
        segment.size = size
        if self.shipper is not None:
            self.take_name()  # a store keeps messages of a topic beyond its deletion, and those of the next are others
        lasting = [self._lasting[type] for type in sorted(self._lasting)]
        self.write(segment, file, b"".join([rest, *lasting]), [])
        self._next_segment += 1
        self.begun = monotonic()
        self._begin, self.snapshot_end, self._snapshot_size = begin, self.tail.position, size + len(rest)
        self.tail.go_on_in(file)
        if self.segments.all and self.segments.all[-1] not in self._unmarked:
            self._unmarked.append(self.segments.all[-1])
        self.segments.all.append(segment)
        self._roll_at = segment.size + max(MIN_ROLL, 4 * self._snapshot_size)
        self.segments.delete(self._abandoned)
        self._abandoned = []

    def mark_continued(self) -> None:
        """Has segments record that another follows, as the last one survives what it is to survive."""
        unmarked, self._unmarked = self._unmarked, []
        for segment in unmarked:
            if segment in self.segments.all:
                mark_continued(segment)
                self.note_changed()

    def is_final(self, segment: Segment) -> bool:
        """Returns True if the file of a segment changes no more, unless a copy replaces it."""
        return segment is not self.segments.all[-1] and segment not in self._unmarked

    def note_changed(self, size: int = 0) -> None:
        """Has a log store follow: `size` bytes were written, or files came or went."""
        if self.shipper is not None:
            self.shipper.note(self, size)

    def may_go(self, segment: Segment) -> bool:
        """Returns False if a segment that nobody needs has to wait for a store that keeps it."""
        return self.shipper is None or not self.shipper.needs(segment)

    @property
    def is_snapshot_safe(self) -> bool:
        """False if older segments may be all that survives."""
        if self._begin < 0:
            return self._is_replay_whole
        return self.tail.file is not None and self.tail.safe >= self.snapshot_end

    @property
    def has_older(self) -> bool:
        """True if there is something else than the last segment, which may be deleted."""
        return len(self.segments.all) > 1 or bool(self._void)

    def delete_before(self, number: int, at_once: bool = False) -> None:
        """Deletes the oldest segments without messages from `number` on, unless their records of queues are needed."""
        if self.is_snapshot_safe:
            segments = self.segments.all
            while len(segments) > 1 and segments[0].end <= number and (at_once or self.may_go(segments[0])):
                self.segments.delete([segments.pop(0)], at_once)
                self.note_changed()
            if self._void:
                self.segments.delete(self._void)
                self._void = []

    @property
    def file_size(self) -> int:
        """Returns the bytes of all files, without a snapshot or a copy that is not yet complete."""
        return sum(file.size for file in (*self.segments.all, *self._void, *self._abandoned, *self.replaced))

    def read(self, number: int, end: int) -> tuple[int, list[bytes], int]:
        """Returns (number, frames, due time) of messages in a row, from the first undamaged one at `number` or later
        and before `end`; no frames if there is none up to the number returned. Raises StorageError. Never yields."""
        first = self.unwritten.first
        if number >= first:
            return self.unwritten.read(number, end)
        return self.segments.read(number, min(end, first))

    def published(self, number: int, end: int) -> int | None:
        """Returns when the first message from `number` on and before `end` was published (wall clock, ns), None if
        there is none."""
        frames = self.read(number, end)[1]
        return Message(frames[0], 0, 0).timestamp if frames else None

    def sync_files(self) -> None:
        """Makes what is written, and the names of all files, survive a loss of power; raises StorageError. May
        yield."""
        for segment in self.segments.all[:]:
            self.syncer.run(sync_path, segment.path)
        self.syncer.run(sync_directory, self.data_path)
        self.mark_continued()

    def close(self) -> None:
        """Writes nothing any more; files stay. May yield."""
        self.tail.close()
        self.segments.end_reading()

    def delete_files(self, segments: Sequence[Segment]) -> None:
        """Deletes all files, those of these `segments` last and in this order, after `close`."""
        self.segments.delete([*self._void, *self._abandoned, *self.replaced, *segments])
        self.segments.all = []
        self.note_changed()


class LogTail:
    """Owns the file at the end of a log, and those before it that no fsync has confirmed.

    A *position* is the number of bytes that were written before it, ever, to whichever file. After an fsync that failed
    nobody knows what the file holds, so everything that was not confirmed is written again, to another file.
    `on_synced()` is called after an fsync that worked."""

    def __init__(self, log: "Log", on_synced: Callable[[], None]) -> None:
        self.file: AppendedFile | None = None  # None: the next write begins another
        self.position = 0  # behind what is written
        self.safe = 0  # behind what survives what it is to survive: not durable, that is all that is written
        self.failed: StorageError | None = None  # the error of an fsync, until one works
        self._log = log
        self.readers: list[Doorbell] = []  # rung when more is safe, and at the end
        self._on_synced = on_synced
        self._unsynced: list[AppendedFile] = []  # that are no longer written
        self._unconfirmed: list[tuple[int, Puts]] = []  # messages, and the position behind them
        self._stored_number = maxsize  # behind the last message that a store is known to have, where that counts
        if log.is_answered_by_store:
            self._stored_number = log.next_number
        self._has_new_files = False
        self._syncing = False
        self._commits = GroupCommit(self._begin_sync)

    def write(self, file: AppendedFile, parts: list[bytes], begin: int, batch: PutBatch) -> int:
        """Appends all `parts`, with the messages of `batch`, at `begin`, or nothing; returns their size. Raises
        StorageError."""
        try:
            size = file.write(parts, begin)
            self.position += size
            self._log.note_changed(size)
            if not self._log.durable:
                self._note_safe(self.position)
            elif batch.puts:
                self._unconfirmed.append((self.position, (batch.puts, batch.marks)))
        finally:
            self._release(file)
        return size

    def _note_safe(self, position: int) -> None:
        self.safe = position
        for bell in self.readers:
            bell.ring()

    @property
    def safe_number(self) -> int:
        """Returns the number behind the last message that survives what it is to survive."""
        return min(self._synced_number(), self._stored_number)

    def _synced_number(self) -> int:
        unconfirmed = min((marks[0][0] for _, (_, marks) in self._unconfirmed), default=maxsize)
        return min(unconfirmed, self._log.unwritten.first, self._log.next_number)

    def _release(self, file: AppendedFile) -> None:
        """Lets it be closed in favour of others, unless an fsync goes on or has yet to confirm messages in it."""
        if not self._unconfirmed and not self._syncing:
            file.release()

    def go_on_in(self, file: AppendedFile) -> None:
        """Appends to this file, which is new, from now on."""
        if self.file is not None:
            if self._log.durable:
                self._unsynced.append(self.file)
            else:
                self.file.close()
        self.file = file
        self._has_new_files = True

    def synced(self, position: int) -> None:
        """Returns when all before `position` is as durable as the options promise; raises StorageError if not. May
        yield."""
        if self.safe < position:
            self._commits.wait(lambda: self.safe >= position)

    def call_when_synced(self, report: Report, count: int) -> None:
        """Calls `report`, on behalf of `count` publishers, when all that is written now is safe, or with the error of
        the fsync. Never yields."""
        position = self.position
        self._commits.call(lambda: self.safe >= position, report, count)

    def _begin_sync(self, report: Report) -> None:
        has_new_files, self._has_new_files = self._has_new_files, False
        retired, self._unsynced = self._unsynced, []
        files = [*retired, self.file] if self.file is not None else retired
        if self.failed is not None and not files:
            report(self.failed)
            return
        path = files[-1].path if files else ""
        self._syncing = True
        end = partial(self._end_sync, report, self.position, retired)
        try:
            with failing_as_go("open", path):
                for file in files:
                    with suppress(FileNotFoundError):  # nothing in it was live
                        file.open()
        except StorageError as error:
            end((None, error))
            return
        descriptors = [file.descriptor for file in files if file.descriptor >= 0]
        self._log.syncer.start(end, sync_files, descriptors, path, self._log.data_path if has_new_files else None)

    def _end_sync(self, report: Report, position: int, retired: list[AppendedFile], outcome: Outcome) -> None:
        self._syncing = False
        error = outcome[1]
        if error is None:
            for file in retired:
                file.close()
            self.failed = None
            self._unconfirmed = [each for each in self._unconfirmed if each[0] > position]
            if self.file is not None:
                self._release(self.file)
            shipper = self._log.shipper
            if shipper is not None and self._log.is_answered_by_store:
                end = partial(self._end_store, report, position, self._synced_number())
                shipper.call_when_stored(self._log, end)
                return
            self._note_safe(position)
            self._on_synced()
        elif isinstance(error, StorageError):
            self._log.logger.error("JOURNAL(%s): failed to sync - %s", self._log.topic, error)
            self.failed = error
            self._has_new_files = True
            self._unsynced += retired
            self._close_files()
            lost, self._unconfirmed = self._unconfirmed, []
            self._log.append_again([puts for _, puts in lost])
        report(error)

    def _end_store(self, report: Report, position: int, number: int, error: Exception | None) -> None:
        if error is None:
            self._stored_number = max(self._stored_number, number)
            self._note_safe(position)
            self._on_synced()
        report(error)

    def close(self) -> None:
        """Writes nothing any more. May yield."""
        self._commits.close()
        self._close_files()
        for bell in self.readers:
            bell.ring()

    def _close_files(self) -> None:
        for file in self._unsynced:
            file.close()
        self._unsynced = []
        if self.file is not None:
            self.file.close()
            self.file = None
