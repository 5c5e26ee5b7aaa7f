"""The journal of a topic: each message once, and what the topic and its channels have done with it.

Messages have numbers. A queue, the topic's own (0) or a channel's, records what it `finished`: for the topic
what it handed over. What some queue has not finished is *live*. Everything is appended to segments, files that end at
a certain size; each begins with a snapshot of all queues, so older segments are needed for their live messages only,
and go when there are none. Until a large snapshot is complete, the old segment grows on. `records` has the
bytes, `replay` what happens at a start.

Appending only collects. `flush` writes what was collected, at once, and `commit` also has it fsynced where the journal
is durable: many wait for one fsync, which runs in the Syncer's threads. After an fsync that failed nobody knows what
the file holds, so everything not known to be safe is written to a new one.

With *retention*, the newest of the messages that every queue has finished are kept as well, as far as its bounds allow.

Nothing here yields to the hub but `commit`, `compact` and `remove`.
"""

import os
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from time import monotonic

from gevent import Greenlet, spawn

from gnsqd.log import Logger
from gnsqd.options import Options
from gnsqd.shared.disk_format import segment_name
from gnsqd.shared.errors import StorageError
from gnsqd.storage.files import failing_as_go, sync_directory, sync_files, sync_path
from gnsqd.storage.journal import records
from gnsqd.storage.journal.compaction import Rewriting, plan
from gnsqd.storage.journal.open_files import AppendedFile, OpenFiles
from gnsqd.storage.journal.replay import Replay
from gnsqd.storage.journal.retention import Retention
from gnsqd.storage.journal.segment import Segment, Segments
from gnsqd.storage.journal.snapshot import Queue, Snapshot
from gnsqd.storage.journal.spans import Spans
from gnsqd.storage.syncer import GroupCommit, Syncer

MAX_SEGMENT = 64 * 1024 * 1024  # bytes
MIN_ROLL = 4 * 1024 * 1024  # bytes, before a segment without live messages is left
MEAN_OVER = 1 << 17  # messages put last, of which a mean size is
PIECE = 1024  # spans that are looked at without a turn for others
IDLE_TIMES = 20  # as long as it took to find nothing to compact, until that is tried again
RETRY_SECONDS = 5.0


class Journal:
    """Owns the files `{topic}.journal.*` of the data path. It begins with what `paths` hold: see `replay`.
    `on_dirty(journal)` is called when there is something that nobody may flush soon."""

    def __init__(
        self,
        topic: str,
        options: Options,
        paths: list[tuple[int, str]],
        log: Logger,
        syncer: Syncer,
        on_dirty: "Callable[[Journal], None]",
        open_files: OpenFiles,
    ) -> None:
        self.topic = topic
        self.closed = False
        self.failed: StorageError | None = None  # of the last write, or of an fsync since the last that worked
        self.queues: dict[int, Queue] = {}
        self._data_path = options.data_path
        self._max_segment = min(options.max_bytes_per_file, MAX_SEGMENT)
        self._durable = options.durability != "process"  # a conversion must not be undone by a loss of power
        self._log = log
        self._syncer = syncer
        self._on_dirty = on_dirty
        self._open_files = open_files
        self._dirty = False
        self._converting = b""  # the record, once each segment has to have it
        self._own_retention = b""  # the same
        self._encoder = records.Encoder(random.getrandbits(32))

        self.replay = Replay(topic, log)
        self.replay.read([path for _, path in paths])
        self.next_number = self.replay.next_number
        self._next_queue = self.replay.next_queue
        self._next_segment = max((number for number, _ in paths), default=-1) + 1
        self.segments = Segments(topic, self.replay.segments, log, self._open_files, syncer.remove)
        self._void = self.replay.void
        self._replay_whole = self.replay.whole
        own = self.replay.retention
        if own is not None:
            self._own_retention = self._encoder.retention(*own)
        self.retention = Retention(*(own or (options.retention_bytes, options.retention_time, 0)))
        present = self.replay.present
        self.absent = present.gaps(0, self.next_number) if self.retention.max_bytes else Spans()  # no segment has these
        self.rewinds = 0  # that are looking for what comes again, which is retained meanwhile
        self._snapshot_size = 0  # bytes, of the last segment
        self._advance_retention()
        self._put_count = self.replay.put_count
        self._put_size = self.replay.put_size

        self._batch = records.Batch(self._encoder)
        self._noted: dict[Queue, None] = {}

        self._current: Segment | None = None  # the last segment, once one was begun
        self._file: AppendedFile | None = None  # of it; None: the next write begins another
        self._roll_at = MIN_ROLL
        self._begun = monotonic() - self.retention.age(self.segments)  # when the last segment was
        self._written = self._synced = 0  # bytes ever
        self._syncing = False
        self._sync_failed: StorageError | None = None
        self._begin = self._snapshot_end = 0  # of the last segment and its snapshot, in bytes ever
        self._snapshot: Snapshot | None = None  # of the next segment, until it is complete
        self._abandoned: list[Segment] = []  # to be deleted when there is another
        self._unmarked = self.replay.unindexed  # segments that do not yet record that another follows
        self._finished_floor = 0  # no message before this one is live, by what is written
        self._unsynced: list[AppendedFile] = []  # of segments that are no longer written
        self._unconfirmed: list[tuple[int, list[bytes], list[records.Mark]]] = []  # what an fsync must confirm
        self._new_files = False
        self._commits = GroupCommit(f"sync:{topic}.journal", self._sync)
        self._compaction: Greenlet[[], bool] | None = None
        self._compact_at = 0.0  # monotonic; earlier is too early
        self._replaced: list[Segment] = []  # there are copies of their live messages
        if not self._durable:
            self._mark_continued()

    def forget_replay(self) -> None:
        """All that a replay found has its place."""
        self.replay = Replay(self.topic, self._log)

    # Queues

    def add_queue(self, queue: Queue, index: int = -1) -> int:
        """A queue that the replay knew as `index`, or a new one; its index."""
        if index < 0:
            index = self._next_queue
            self._next_queue += 1
            self._batch.controls += self._encoder.queue(index, queue.name, queue.finished)
            self._note_dirty()
        self.queues[index] = queue
        return index

    def reset_queue(self, queue: Queue) -> None:
        """It is done with more than before, and with all that was in flight or held back."""
        queue.forget_notes()
        self._batch.controls += self._encoder.queue(queue.index, queue.name, queue.finished)
        self._note_dirty()

    def rewind_queue(self, queue: Queue, start: int, end: int) -> None:
        """Of the messages from `start` to `end`, it is done with no others than its notes finish. StorageError if that
        could not be written yet."""
        self._batch.controls.append(self._encoder.spans(records.REWOUND, queue.index, [(start, end)]))
        self._note_dirty()
        self.flush()

    def remove_queue(self, queue: Queue) -> None:
        """It is deleted; StorageError if that could not be written yet."""
        if self.queues.pop(queue.index, None) is not None:
            self._drop_snapshot()
            queue.forget_notes()
            self._batch.controls.append(self._encoder.deleted(queue.index))
            self._note_dirty()
            self.flush()

    def note(self, queue: Queue) -> None:
        """`queue` has notes; to be called with the first."""
        self._noted[queue] = None
        self._note_dirty()

    def _note_dirty(self) -> None:
        if not self._dirty and not self.closed:
            self._dirty = True
            self._on_dirty(self)

    # Writing

    def put(self, frames: Sequence[bytes], due: int = 0) -> int:
        """Append messages, not to be delivered before `due` (wall clock, ns); the number of the first."""
        first = self.next_number
        self._put_size += self._batch.put(first, frames, due)
        self._put_count += len(frames)
        self.next_number += len(frames)
        self._note_dirty()
        return first

    def mean_size(self) -> int:
        """Bytes that a message takes in a disk queue, the mean of those put last, about; 0 if there were none."""
        while self._put_count > MEAN_OVER:
            self._put_count //= 2
            self._put_size //= 2
        # A frame also has its type.
        return self._put_size // self._put_count - 4 if self._put_count else 0

    def check(self) -> None:
        """StorageError if nothing can be kept just now."""
        if self._sync_failed is not None:
            raise StorageError(str(self._sync_failed))
        if self.failed is not None:
            self.flush()

    def retry(self) -> None:
        """Write what is not written, or, after a failed fsync, not known to be; errors as `commit`. May yield."""
        if self._sync_failed is not None:
            self.commit()
        else:
            self.flush(advance=True)

    def flush(self, advance: bool = False) -> None:
        """Hand everything to the system; StorageError, and it is tried again with the next. `advance`: the snapshot of
        also the next segment, if there is one, by a step."""
        self._dirty = False
        if self.closed:
            if self._batch.first < self.next_number:
                raise StorageError("exiting")
            return
        try:
            try:
                self._flush(advance)
            except StorageError:
                self._drop_snapshot()  # it may be what the disk has no room for
                count = len(self.segments)
                self.reclaim(self.floor(), at_once=True)
                if len(self.segments) == count:
                    raise
                self._flush(advance)  # a full disk has room now, and what the segments went for has to be written
        except StorageError as error:
            self._drop_snapshot()
            self.failed = error
            raise
        self.failed = self._sync_failed
        if self._snapshot is not None:
            self._note_dirty()

    def _flush(self, advance: bool) -> None:
        batch = self._batch
        batch.close_record()
        is_empty = not (batch.puts or batch.controls or batch.lasts or self._noted)
        if self._file is None:
            if (
                not is_empty or self._sync_failed is not None or self._is_aged()
            ):  # what the last segment has may be nowhere
                self._roll_now()
            return
        snapshot = self._snapshot
        if snapshot is not None:
            if advance:
                snapshot.advance()
        elif (self._is_full() and not is_empty) or self._is_aged():
            begun = self._begin_snapshot()
            if begun.advance():
                self._roll(begun)
                return
        notes = [record for queue in self._noted for record in queue.notes(self._encoder, snapshot is not None)]
        if snapshot is not None:
            snapshot.follow(batch.controls)
            snapshot.follow(notes)
            if snapshot.complete:
                self._roll(snapshot)
                return
        head = b"".join(batch.controls)
        parts = [head, *batch.puts, *notes, *batch.lasts]
        if len(parts) > 1 or head:
            try:
                self._file.open()
            except OSError:
                self._roll_now()
                return
            self._write(self.segments.all[-1], self._file, parts, len(head))
            self._forget_written()
        self._reclaim_written()

    def _is_full(self) -> bool:
        """Whether to go on in a new segment: also early, when nearly nothing of the present one is live."""
        segment = self.segments.all[-1]
        size = segment.size + self._batch.puts_size
        full_size = self._full_size
        if size >= full_size:
            return segment.count > 0 or segment.size > full_size
        if size < self._roll_at:
            return False
        self._roll_at = segment.size + max(MIN_ROLL, 4 * self._snapshot_size)
        return 4 * (self.floor() - segment.first) >= 3 * (segment.end - segment.first)

    def _is_aged(self) -> bool:
        """Whether to go on in a new segment because messages go by their age, and only whole segments go."""
        return self.retention.is_aged(self._begun) and len(self.segments) > 0 and self.segments.all[-1].count > 0

    @property
    def _segment_size(self) -> int:
        return max(min(self._max_segment, self.retention.max_segment), 1)

    @property
    def _full_size(self) -> int:
        return max(self._segment_size, 4 * self._snapshot_size)

    def set_retention(self, max_bytes: int, max_age: int) -> None:
        """Keep so much for this topic, whatever the options are, also after a start: if nothing was kept before, of
        messages from now on. StorageError if it could not be written yet."""
        begin = self.retention.begin if self.retention.max_bytes else self.next_number
        self.retention = Retention(max_bytes, max_age, begin)
        self._own_retention = self._encoder.retention(max_bytes, max_age, begin)
        self._batch.lasts.append(self._own_retention)
        self._note_dirty()
        self._advance_retention()
        self.flush()

    def _advance_retention(self) -> None:
        if self.rewinds:
            return
        last_size = self.segments.all[-1].size if self.segments else 0
        with suppress(StorageError):  # what cannot be read is reported when somebody needs it
            self.retention.advance(self.segments, max(self._full_size - last_size, 0))
        self.absent.remove(0, self.retention.begin)

    def _write(self, segment: Segment, file: AppendedFile, parts: list[bytes], puts_at: int) -> None:
        """Append all `parts`, which together have the puts at some position, or nothing."""
        begin = segment.size
        batch = self._batch
        try:
            size = file.write(parts, begin)
            for first, count, offset, due in batch.marks:
                segment.note_put(first, count, begin + puts_at + offset, due)
            segment.body_size += batch.puts_size - len(batch.marks) * records.PUT_SURPLUS
            segment.size += size
            self._written += size
            if self._durable and batch.puts:
                self._unconfirmed.append((self._written, batch.puts, batch.marks))
        finally:
            self._release(file)

    def _release(self, file: AppendedFile) -> None:
        """It may be closed in favour of others, unless an fsync goes on or has yet to confirm messages in it."""
        if not self._unconfirmed and not self._syncing:
            file.release()

    def _forget_written(self) -> None:
        for queue in self._noted:
            queue.forget_notes()
        self._noted.clear()
        self._batch = records.Batch(self._encoder)

    def _begin_snapshot(self) -> Snapshot:
        self._drop_snapshot()
        path = os.path.join(self._data_path, segment_name(self.topic, self._next_segment))
        self._snapshot = Snapshot(path, self.queues.values(), self._encoder, self._open_files)
        return self._snapshot

    def _drop_snapshot(self) -> None:
        if self._snapshot is not None:
            self._snapshot.discard()
            self._snapshot = None

    def _roll_now(self) -> None:
        """Go on in a new segment, whatever the snapshot takes."""
        snapshot = self._begin_snapshot()
        while not snapshot.advance():
            pass
        self._roll(snapshot)

    def _roll(self, snapshot: Snapshot) -> None:
        """Go on in a new segment, which begins with a complete snapshot."""
        begin, next_number = self._written, min(self._batch.first, self.next_number)
        segment = Segment(snapshot.path, self._encoder.salt, next_number)
        file, end = snapshot.finish(next_number, self._next_queue)
        segment.size = snapshot.size
        head = end + self._converting + self._own_retention
        self._write(segment, file, [head, *self._batch.puts, *self._batch.lasts], len(head))
        self._snapshot = None
        self._next_segment += 1
        self._current = segment
        self._begun = monotonic()
        self._begin, self._snapshot_end, self._snapshot_size = begin, self._written, snapshot.size + len(end)
        if self._file is not None:
            if self._durable:
                self._unsynced.append(self._file)
            else:
                self._file.close()
        self._file = file
        self._new_files = True
        if len(self.segments) and self.segments.all[-1] not in self._unmarked:
            self._unmarked.append(self.segments.all[-1])
        self.segments.all.append(segment)
        self._roll_at = segment.size + max(MIN_ROLL, 4 * self._snapshot_size)
        self._forget_written()
        self._advance_retention()
        self.segments.delete(self._abandoned)
        self._abandoned = []
        self._reclaim_written()
        if not self._durable:
            self._mark_continued()

    def _mark_continued(self) -> None:
        """The last segment survives what it is to survive, so those before it may record that it follows."""
        for segment in self._unmarked:
            if segment in self.segments.all:
                segment.mark_continued()
        self._unmarked = []

    # fsync

    def commit(self) -> None:
        """Return when all that was appended survives what it is to survive; StorageError. May yield."""
        self.flush()
        if self._durable:
            written = self._written
            self._commits.wait(lambda: self._synced >= written)

    def _sync(self) -> StorageError | None:
        written, new_files, floor = self._written, self._new_files, self._finished_floor
        retired, self._unsynced = self._unsynced, []
        self._new_files = False
        files = [*retired, self._file] if self._file is not None else retired
        if self._sync_failed is not None and not files:
            return self._sync_failed
        path = self.segments.all[-1].path if self.segments else ""
        self._syncing = True
        try:
            with failing_as_go("open", path):
                for file in files:
                    with suppress(FileNotFoundError):  # nothing in it was live
                        file.open()
            descriptors = [file.descriptor for file in files if file.descriptor >= 0]
            self._syncer.run(sync_files, descriptors, path, self._data_path if new_files else None)
        except StorageError as error:
            self._log.error("JOURNAL(%s): failed to sync - %s", self.topic, error)
            self._new_files = True
            self.failed = self._sync_failed = error
            self._unsynced += retired
            self._abandon()
            return error
        finally:
            self._syncing = False
        for file in retired:
            file.close()
        self._synced = written
        if self._sync_failed is not None:
            self.failed = self._sync_failed = None
        done = 0
        while done < len(self._unconfirmed) and self._unconfirmed[done][0] <= written:
            done += 1
        del self._unconfirmed[:done]
        if self._file is not None:
            self._release(self._file)
        self.reclaim(floor)
        if written >= self._snapshot_end:
            self._mark_continued()
        return None

    def _abandon(self) -> None:
        """Have everything that no fsync confirmed written once more, to a new segment."""
        self._close_files()
        self._batch.prepend([(puts, marks) for _, puts, marks in self._unconfirmed])
        self._unconfirmed = []
        marks = self._batch.marks
        if marks:
            self.segments.cut(marks[0][0])
        if self._current is not None and self._begin >= self._synced:
            # Nothing in it is confirmed; otherwise there would be one for each attempt.
            self._abandoned += self.segments.replace([self._current], None)
        self._note_dirty()

    # Reading

    def read(self, number: int, end: int) -> tuple[int, list[bytes], int]:
        """As `Segment.read`: messages in a row, from the first there is; those not yet written included."""
        first = self._batch.first
        if number >= first:
            self.flush()
        else:
            end = min(end, first)
        return self.segments.read(number, end)

    # Reclaiming

    def wanted(self, start: int, end: int) -> Iterator[Spans]:
        """The messages from `start` to `end` that some queue is not done with, in pieces of about PIECE spans. What
        queues finish between two pieces may still be in there; what is not will never be live again."""
        start, end = max(start, self.floor()), min(end, self.next_number)
        while start < end:
            finished = [queue.finished for queue in self.queues.values()]
            limit = max(PIECE // max(len(finished), 1), 1)
            stop = min(end, min([spans.stretch(start, limit) for spans in finished], default=end))
            piece = Spans()
            for spans in finished:
                piece.update(spans.gaps(start, stop))
            piece.add(max(start, self.retention.begin), stop)
            yield piece
            start = stop

    def floor(self) -> int:
        """No message before this one is live or retained."""
        floors = [queue.finished.floor for queue in self.queues.values()]
        return min(*floors, self.retention.begin) if floors else 0

    @property
    def first_unwritten(self) -> int:
        """The number of the first message that is not written, behind all numbers if there is none."""
        return self._batch.first

    @property
    def file_size(self) -> int:
        """Bytes of all files, without a snapshot or a copy that is not yet complete."""
        return sum(file.size for file in (*self.segments.all, *self._void, *self._abandoned, *self._replaced))

    def _is_snapshot_safe(self) -> bool:
        """Otherwise older segments may be all that survives."""
        if self._current is None:
            return self._replay_whole
        return self._file is not None and (not self._durable or self._synced >= self._snapshot_end)

    def _reclaim_written(self) -> None:
        """As `reclaim`, for what is written; where the journal is durable that waits for fsync. After a crash the
        messages of a segment that is gone would otherwise count as lost."""
        if len(self.segments) > 1:
            self._finished_floor = self.floor()
        if not self._durable:
            self.reclaim(self._finished_floor)

    def reclaim(self, floor: int, at_once: bool = False) -> None:
        """Delete the oldest segments that have no message from `floor` on; `at_once` as of `Segments.delete`."""
        if not self._is_snapshot_safe():
            return
        if len(self.segments) > 1:
            self.segments.drop_below(min(floor, self.floor()), at_once)
        if self._void:
            self.segments.delete(self._void)
            self._void = []

    def compact(self) -> bool:
        """Delete segments without live messages, and copy the live messages of others together where that frees much:
        the journal stays within four segments, or twice the live messages. False if to be repeated. May yield."""
        if monotonic() < self._compact_at:
            return False
        if self._compaction is None or self._compaction.ready():
            self._compaction = spawn(self._compact)
            self._compaction.name = f"compact:{self.topic}.journal"
        settled: bool = self._compaction.get()
        return settled

    def _compact(self) -> bool:
        if self.closed:
            return True
        begin = monotonic()
        try:
            if self.retention.max_age:
                self._advance_retention()
                if self._is_aged():
                    self.flush(advance=True)
            if self._replaced:
                self._delete_replaced()
            if self._durable and self._synced < self._snapshot_end:
                self.commit()  # where nobody publishes, nobody else does
            if not self._may_compact():
                return False
            groups = plan(self.segments.all, self.wanted, self._segment_size)
            if not groups:
                self._compact_at = monotonic() + IDLE_TIMES * (monotonic() - begin)
            for group in groups:
                if not self._may_compact(group):
                    return False  # meanwhile everything in some of them was finished
                sources = self.segments.reader(group)
                rewriting = Rewriting(group, sources, self.wanted, self._encoder, self._open_files)
                rewriting.run(self._syncer)
                with suppress(StorageError):  # on a full disk, room may be in messages that no queue needs
                    self.commit()  # what is finished is written before its segments go
                if not self._may_compact(group):
                    rewriting.discard()
                    return False
                with self._syncer.keeping(group[-1].path):
                    copy = rewriting.finish()
                gone = self.segments.replace(group, copy)
                if copy is None:
                    self.segments.delete(gone)
                else:
                    self._replaced += gone
                    self._delete_replaced()
        except StorageError as error:
            self._log.error("JOURNAL(%s): failed to compact - %s", self.topic, error)
            self._compact_at = monotonic() + RETRY_SECONDS
            return False
        return not self.expires

    @property
    def expires(self) -> bool:
        """Whether messages go when nothing else happens."""
        return self.retention.max_age > 0 and self.floor() < self.next_number

    def _may_compact(self, group: Sequence[Segment] = ()) -> bool:
        segments = self.segments.all
        return not self.closed and len(segments) > 0 and self._is_snapshot_safe() and set(group) <= set(segments)

    def _delete_replaced(self) -> None:
        """Delete the segments of which there are copies, once these survive what they are to survive; StorageError."""
        if self._durable:
            self._syncer.run(sync_directory, self._data_path)
        self.segments.delete(self._replaced)
        self._replaced = []

    @property
    def is_needed(self) -> bool:
        """Whether it has anything that the next start needs."""
        return self.floor() < self.next_number or self._own_retention != b""

    # The end

    def sync(self) -> None:
        """Have what is written, and the names of all files, survive a loss of power; StorageError. May yield."""
        for segment in self.segments.all[:]:
            self._syncer.run(sync_path, segment.path)
        self._syncer.run(sync_directory, self._data_path)
        self._mark_continued()

    def mark_converting(self) -> None:
        """What the disk queues of the topic hold from now on is a copy; StorageError. May yield."""
        self._converting = self._encoder.record(records.CONVERTING)
        self._batch.lasts.append(self._converting)
        self.commit()

    def remove(self, at_once: bool = True) -> None:
        """Delete all files; if `at_once`, as one step for whoever finds them after a kill: the newest, which records
        that none counts, goes last. May yield. Nothing is written from now on."""
        if self.closed:
            return
        segments = self.segments.all
        self._noted.clear()
        self._batch = records.Batch(self._encoder)
        if segments and (at_once or len(segments) > 1):
            self._batch.lasts.append(self._encoder.record(records.VOID))
            try:
                self.commit()
            except StorageError as error:
                self._log.error("JOURNAL(%s): %s", self.topic, error)
                segments = segments[::-1]  # what a kill leaves of them then records too little rather than too much
        self.close()
        self.segments.delete([*self._void, *self._abandoned, *self._replaced, *segments])
        self.segments = Segments(self.topic, [], self._log, self._open_files)

    def close(self) -> None:
        """Write nothing any more; files stay. May yield."""
        self.closed = True
        if self._compaction is not None:
            self._compaction.join()
        self._commits.close()
        self._drop_snapshot()
        self._close_files()
        self.segments.end_reading()

    def _close_files(self) -> None:
        for file in self._unsynced:
            file.close()
        self._unsynced = []
        if self._file is not None:
            self._file.close()
            self._file = None
