"""The journal of a topic: each message once, and what the topic and its channels have done with it.

Messages get numbers. A queue, the topic's own (0) or a channel's, tells what it is done with: `finished`, for the topic
what it handed over. What any queue is not done with is *wanted*. Everything is appended to segments, files that end at
a certain size; each begins with a snapshot of all queues, so older segments are needed for their wanted messages only,
and go when there are none. `journal_records` has the bytes, `journal_replay` what happens at a start.

Appending only collects. `flush` writes what was collected, at once, and `commit` also has it fsynced where the journal
is durable: many wait for one fsync, which runs in the Syncer's threads. After an fsync that failed nobody knows what
the file holds, so everything not known to be safe is written to a new one.

Nothing here yields to the hub but `commit`, `compact` and `remove`.
"""

import os
import random
from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import perf_counter
from typing import Protocol

from gevent import Greenlet, sleep, spawn

from gnsqd.errors import StorageError
from gnsqd.log import Logger
from gnsqd.storage import journal_records as records
from gnsqd.storage.compaction import Rewriting
from gnsqd.storage.files import failing_as_go, path_error, sync_path
from gnsqd.storage.journal_replay import Replay
from gnsqd.storage.segment import Segment
from gnsqd.storage.spans import Spans
from gnsqd.storage.syncer import Syncer

MAX_RECORD = 128 * 1024  # bytes of the messages in a record, but for a single larger one
GATHER_SHARE = 0.5  # of the time that an fsync takes
MAX_GATHER_SECONDS = 0.002
MIN_ROLL = 4 * 1024 * 1024  # bytes, before a segment without wanted messages is left


class Queue(Protocol):
    """What a journal asks of a topic or channel; `index` names it for good."""

    index: int
    name: str
    finished: Spans

    def note_finished_span(self, start: int, end: int) -> None:
        """It is done with these messages."""

    def notes(self, encoder: records.Encoder) -> list[bytes]:
        """Records of what has happened since `forget_notes`."""

    def forget_notes(self) -> None: ...

    def held(self) -> list[tuple[int, int, int]]:
        """(number, attempts, due or 0) of all messages of which one of the latter is not 0."""


class Journal:
    """Owns the files `{topic}.journal.*` of `data_path`. It begins with what `paths` hold: see `replay`.

    `durable`: commit waits for fsync. `on_dirty(journal)` is called when there is something that nobody may flush soon.
    """

    def __init__(
        self,
        topic: str,
        *,
        data_path: str,
        paths: list[tuple[int, str]],
        segment_size: int,
        durable: bool,
        log: Logger,
        syncer: Syncer,
        on_dirty: "Callable[[Journal], None]",
    ) -> None:
        self.topic = topic
        self.failed: StorageError | None = None  # of the last write
        self.queues: dict[int, Queue] = {}
        self._data_path = data_path
        self._segment_size = segment_size
        self._durable = durable
        self._log = log
        self._syncer = syncer
        self._on_dirty = on_dirty
        self._dirty = False
        self._closed = False
        self._encoder = records.Encoder(random.getrandbits(32))

        self.replay = Replay(topic, log)
        self.replay.read(paths)
        self.next_number = self.replay.next_number
        self._next_queue = self.replay.next_queue
        self._next_segment = max((number for number, _ in paths), default=-1) + 1
        self._segments = self.replay.segments
        self._void = self.replay.void
        self._firsts = [segment.first for segment in self._segments]
        self._reading: Segment | None = None

        self._controls: list[bytes] = []  # records of queues that come and go
        self._puts: list[bytes] = []  # head and payload of each
        self._marks: list[tuple[int, int, int]] = []  # of each put: first number, count, offset among the puts
        self._puts_size = 0
        self._frames: list[bytes] = []  # without due time, not yet a record
        self._frames_first = 0
        self._frames_size = 0
        self._lasts: list[bytes] = []  # records to stand behind everything else
        self._noted: list[Queue] = []

        self._descriptor = -1  # of the last segment; -1: the next write begins one
        self._roll_at = MIN_ROLL
        self._written = 0  # bytes ever
        self._synced = 0
        self._snapshot_end = 0  # of the last segment's snapshot, in bytes ever
        self._unsynced: list[int] = []  # descriptors of segments that are no longer written
        self._unconfirmed: list[tuple[int, list[bytes], list[tuple[int, int, int]]]] = []  # what an fsync must confirm
        self._new_files = False
        self._waiting = 0  # for an fsync
        self._group = 0  # waited for the last
        self._sync_seconds = 0.0
        self._sync: Greenlet[[], StorageError | None] | None = None
        self._compaction: Greenlet[[], None] | None = None

    def forget_replay(self) -> None:
        """All that a replay found has its place."""
        self.replay = Replay(self.topic, self._log)

    # Queues

    def add_queue(self, queue: Queue, index: int = -1) -> int:
        """A queue that the replay knew as `index`, or a new one; its index."""
        if index < 0:
            index = self._next_queue
            self._next_queue += 1
            self._controls += self._encoder.queue(index, queue.name, queue.finished)
            self._note_dirty()
        self.queues[index] = queue
        return index

    def reset_queue(self, queue: Queue) -> None:
        """It is done with more than before, and with all that was in flight or held back."""
        queue.forget_notes()
        self._controls += self._encoder.queue(queue.index, queue.name, queue.finished)
        self._note_dirty()

    def remove_queue(self, queue: Queue) -> None:
        """It is deleted; StorageError if that could not be written yet."""
        if self.queues.pop(queue.index, None) is not None:
            queue.forget_notes()
            self._controls.append(self._encoder.deleted(queue.index))
            self._note_dirty()
            self.flush()

    def note(self, queue: Queue) -> None:
        """`queue` has notes; to be called with the first."""
        self._noted.append(queue)
        self._note_dirty()

    def _note_dirty(self) -> None:
        if not self._dirty and not self._closed:
            self._dirty = True
            self._on_dirty(self)

    # Writing

    def put(self, frames: Sequence[bytes], due: int = 0) -> int:
        """Append messages, not to be delivered before `due` (wall clock, ns); the number of the first."""
        first = self.next_number
        size = sum(map(len, frames))
        if due or self._frames_size + size > MAX_RECORD:
            self._close_record()
        if due or size > MAX_RECORD:
            self._put_records(first, frames, due)
        else:
            if not self._frames:
                self._frames_first = first
            self._frames += frames
            self._frames_size += size
        self.next_number += len(frames)
        self._note_dirty()
        return first

    def _close_record(self) -> None:
        """Make a record of the messages that have none."""
        if self._frames:
            self._add_put(self._frames_first, self._frames, 0)
            self._frames, self._frames_size = [], 0

    def _put_records(self, first: int, frames: Sequence[bytes], due: int) -> None:
        begin = size = 0
        for position, frame in enumerate(frames):
            if size and size + len(frame) > MAX_RECORD:
                self._add_put(first + begin, frames[begin:position], due)
                begin, size = position, 0
            size += len(frame)
        self._add_put(first + begin, frames[begin:], due)

    def _add_put(self, first: int, frames: Sequence[bytes], due: int) -> None:
        head, payload = self._encoder.put(first, frames, due)
        self._puts.append(head)
        self._puts.append(payload)
        self._marks.append((first, len(frames), self._puts_size))
        self._puts_size += len(head) + len(payload)

    def flush(self) -> None:
        """Hand everything to the system; StorageError, and it is tried again with the next."""
        self._dirty = False
        if self._closed:
            return
        try:
            self._flush()
        except StorageError as error:
            self.failed = error
            self.reclaim()  # a full disk gets room by that
            raise
        self.failed = None

    def _flush(self) -> None:
        if self._frames:
            self._close_record()
        if self._is_full():
            if self._puts or self._controls or self._noted or self._lasts:
                self._roll()
            return
        notes = [record for queue in self._noted for record in queue.notes(self._encoder)]
        head = b"".join(self._controls)
        data = b"".join([head, *self._puts, *notes, *self._lasts])
        if data:
            self._write(self._segments[-1], self._descriptor, data, len(head))
            self._forget_written()
        if len(self._segments) > 1:
            self.reclaim()

    def _is_full(self) -> bool:
        """Whether to go on in a new segment: also early, when nearly nothing of the present one is wanted."""
        if self._descriptor < 0:
            return True
        segment = self._segments[-1]
        if segment.size + self._puts_size < self._roll_at:
            return False
        if segment.size + self._puts_size >= self._segment_size:
            return segment.count > 0 or segment.size > self._segment_size
        self._roll_at = segment.size + MIN_ROLL
        return 4 * (self.floor() - segment.first) >= 3 * (segment.end - segment.first)

    def _write(self, segment: Segment, descriptor: int, data: bytes, puts_at: int) -> None:
        """Append `data`, which has the puts at some position, or nothing."""
        begin = segment.size
        try:
            written = os.pwrite(descriptor, data, begin)
            while written < len(data):
                written += os.pwrite(descriptor, data[written:], begin + written)
        except OSError as error:
            with suppress(OSError):  # should this fail, too, the next write goes over it
                os.ftruncate(descriptor, begin)
            raise StorageError(path_error("write", segment.path, error)) from error
        for first, count, offset in self._marks:
            segment.note_put(first, count, begin + puts_at + offset)
        segment.size += len(data)
        self._written += len(data)
        if self._durable and self._puts:
            self._unconfirmed.append((self._written, self._puts, self._marks))

    def _forget_written(self) -> None:
        for queue in self._noted:
            queue.forget_notes()
        self._noted.clear()
        self._controls.clear()
        self._lasts.clear()
        self._puts, self._marks, self._puts_size = [], [], 0

    def _roll(self) -> None:
        """Go on in a new segment."""
        snapshot = self._snapshot()
        number = self._next_segment
        path = os.path.join(self._data_path, records.segment_name(self.topic, number))
        segment = Segment(path, number, self._encoder.salt, self._first_to_come())
        head = records.first_line(self._encoder.salt) + snapshot
        with failing_as_go("open", path):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            self._write(segment, descriptor, b"".join([head, *self._puts, *self._lasts]), len(head))
        except StorageError:
            os.close(descriptor)
            with suppress(OSError):
                os.unlink(path)
            raise
        self._next_segment += 1
        self._snapshot_end = self._written
        self._retire_descriptor()
        self._descriptor = descriptor
        self._new_files = True
        self._segments.append(segment)
        self._firsts.append(segment.first)
        self._roll_at = min(segment.size + MIN_ROLL, self._segment_size)
        self._forget_written()
        self.reclaim()

    def _first_to_come(self) -> int:
        return self._marks[0][0] if self._marks else self.next_number

    def _retire_descriptor(self) -> None:
        if self._descriptor >= 0:
            if self._durable:
                self._unsynced.append(self._descriptor)
            else:
                os.close(self._descriptor)
            self._descriptor = -1

    def _snapshot(self) -> bytes:
        parts: list[bytes] = []
        for index, queue in self.queues.items():
            parts += self._encoder.queue(index, queue.name, queue.finished)
            parts += self._encoder.held(index, queue.held())
        return self._encoder.snapshot(self._first_to_come(), self._next_queue, parts)

    # fsync

    def commit(self) -> None:
        """Return when all that was appended survives what it is to survive; StorageError. May yield."""
        self.flush()
        if self._durable:
            written = self._written
            self._waiting += 1
            try:
                while self._synced < written:
                    if self._sync is None or self._sync.ready():
                        self._sync = spawn(self._run_sync)
                        self._sync.name = f"sync:{self.topic}.journal"
                    error = self._sync.get()
                    if error is not None:
                        raise StorageError(str(error))
            finally:
                self._waiting -= 1

    def _gather(self) -> None:
        """Those who waited for the last fsync are likely to come again: a moment for them makes one fsync of many."""
        end = perf_counter() + min(self._sync_seconds * GATHER_SHARE, MAX_GATHER_SECONDS)
        sleep(1e-6)  # once around the hub
        while self._waiting < self._group and perf_counter() < end:
            sleep(1e-6)
        self._group = self._waiting

    def _run_sync(self) -> StorageError | None:
        self._gather()
        written, new_files = self._written, self._new_files
        retired, self._unsynced = self._unsynced, []
        self._new_files = False
        descriptors = [*retired, self._descriptor] if self._descriptor >= 0 else retired
        path = self._segments[-1].path if self._segments else ""
        try:
            begin = perf_counter()
            self._syncer.run(_sync, descriptors, path, self._data_path if new_files else None)
            self._sync_seconds = perf_counter() - begin
            self._group = max(self._group, self._waiting)
        except StorageError as error:
            self._log.error("JOURNAL(%s): failed to sync - %s", self.topic, error)
            self._new_files = True
            self.failed = error
            self._abandon(retired)
            return error
        for descriptor in retired:
            os.close(descriptor)
        self._synced = written
        done = 0
        while done < len(self._unconfirmed) and self._unconfirmed[done][0] <= written:
            done += 1
        del self._unconfirmed[:done]
        self.reclaim()
        return None

    def _abandon(self, descriptors: list[int]) -> None:
        """Have everything that no fsync confirmed written once more, to a new segment."""
        self._close_record()
        for descriptor in [*descriptors, *self._unsynced, self._descriptor]:
            if descriptor >= 0:
                os.close(descriptor)
        self._unsynced, self._descriptor = [], -1
        unconfirmed, self._unconfirmed = self._unconfirmed, []
        puts, marks, offset = [], [], 0
        for _, older_puts, older_marks in [*unconfirmed, (0, self._puts, self._marks)]:
            for position, (first, count, _) in enumerate(older_marks):
                record = older_puts[2 * position : 2 * position + 2]
                puts += record
                marks.append((first, count, offset))
                offset += sum(map(len, record))
        self._puts, self._marks, self._puts_size = puts, marks, offset
        if marks:
            for segment in self._segments:
                segment.cut(marks[0][0])
            self._firsts = [segment.first for segment in self._segments]
        self._note_dirty()

    # Reading

    def read(self, number: int, end: int) -> tuple[int, list[bytes], int]:
        """As `Segment.read`: messages in a row, from the first there is; those not yet written included."""
        if self._puts or self._frames:
            self.flush()
        while number < end:
            position = max(bisect_right(self._firsts, number) - 1, 0)
            if position >= len(self._segments):
                break
            segment = self._segments[position]
            if segment is not self._reading:
                if self._reading is not None:
                    self._reading.close()
                self._reading = segment
            start, frames, due = segment.read(number, end)
            if frames:
                return start, frames, due
            if position + 1 == len(self._segments):
                break
            number = max(number, self._firsts[position + 1])
        return end, [], 0

    # Reclaiming

    def wanted(self) -> Spans:
        """The messages that some queue is not done with."""
        wanted = Spans()
        for queue in self.queues.values():
            wanted.update(queue.finished.gaps(0, self.next_number))
        return wanted

    def floor(self) -> int:
        """No message before this one is wanted."""
        return min([queue.finished.floor for queue in self.queues.values()], default=0)

    @property
    def segment_count(self) -> int:
        return len(self._segments)

    def reclaim(self) -> None:
        """Delete the oldest segments as far as nothing in them is wanted."""
        if self._descriptor < 0 or (self._durable and self._synced < self._snapshot_end):
            return  # the older segments may be all that survives
        gone = 0
        floor = self.floor() if len(self._segments) > 1 else 0
        while gone < len(self._segments) - 1 and self._segments[gone].end <= floor:
            gone += 1
        if gone or self._void:
            self._remove([*self._void, *self._segments[:gone]])
            self._void = []
            del self._segments[:gone]
            del self._firsts[:gone]

    def compact(self) -> None:
        """Delete what nothing is wanted of, wherever it is, and copy what is wanted of old segments together where that
        frees much. The journal stays within four segments, or twice what is wanted. May yield."""
        if self._compaction is None or self._compaction.ready():
            self._compaction = spawn(self._compact)
            self._compaction.name = f"compact:{self.topic}.journal"
        self._compaction.join()

    def _compact(self) -> None:
        try:
            for group in self._plan():
                if not all(segment in self._segments for segment in group):
                    break  # meanwhile everything in some of them was finished
                rewriting = Rewriting(group, self.wanted(), self._encoder)
                rewriting.run(self._syncer)
                if self._closed or not all(segment in self._segments for segment in group):
                    rewriting.discard()
                    break
                self._replace(group, rewriting.finish())
        except StorageError as error:
            self._log.error("JOURNAL(%s): failed to compact - %s", self.topic, error)

    def _plan(self) -> list[list[Segment]]:
        """Groups of neighbouring segments, each to become one or none."""
        if self._closed or self._descriptor < 0 or (self._durable and self._synced < self._snapshot_end):
            return []
        wanted = self.wanted()
        old = self._segments[:-1]
        live = {segment: segment.estimate(wanted) for segment in old}
        size = sum(segment.size for segment in self._segments)
        needed = sum(live.values()) + self._segments[-1].size
        too_large = size > max(4 * self._segment_size, 2 * needed)
        too_many = len(old) > 16 + 4 * needed // self._segment_size
        groups: list[list[Segment]] = []
        room = 0
        for segment in old:
            if groups and live[segment] <= room:
                groups[-1].append(segment)
                room -= live[segment]
            else:
                groups.append([segment])
                room = self._segment_size - live[segment]
        chosen = []
        for group in groups:
            group_live = sum(live[segment] for segment in group)
            saves = too_large and sum(segment.size for segment in group) >= 2 * group_live
            if not group_live or saves or (too_many and len(group) > 1):
                chosen.append(group)
            else:
                chosen += [[segment] for segment in group if not live[segment]]
        return chosen

    def _replace(self, group: list[Segment], compacted: Segment | None) -> None:
        position = self._segments.index(group[0])
        if self._reading in group:
            self._reading = None
        gone = group if compacted is None else group[:-1]
        group[-1].close()
        self._segments[position : position + len(group)] = [] if compacted is None else [compacted]
        self._firsts = [segment.first for segment in self._segments]
        if self._durable and compacted is not None:
            with suppress(StorageError):
                self._syncer.run(sync_path, self._data_path or ".")
        self._remove(gone)

    def _remove(self, segments: list[Segment]) -> None:
        for segment in segments:
            if segment is self._reading:
                self._reading = None
            try:
                segment.remove()
            except StorageError as error:
                self._log.error("JOURNAL(%s): %s", self.topic, error)

    # The end

    def mark_converting(self) -> None:
        """What the disk queues of the topic hold from now on is a copy; StorageError. May yield."""
        self._lasts.append(self._encoder.record(records.CONVERTING))
        self.commit()

    def remove(self) -> None:
        """Delete all files, as one step for whoever finds them after a kill: the newest, which says that none counts,
        goes last. May yield. Nothing is written from now on."""
        if self._closed:
            return
        segments = self._segments
        self._controls, self._noted = [], []
        self._puts, self._marks, self._puts_size, self._frames, self._frames_size = [], [], 0, [], 0
        if segments:
            self._lasts.append(self._encoder.record(records.VOID))
            try:
                self.commit()
            except StorageError as error:
                self._log.error("JOURNAL(%s): %s", self.topic, error)
                segments = segments[::-1]  # what a kill leaves of them then tells too little rather than too much
        self.close()
        self._remove([*self._void, *segments])
        self._segments, self._firsts = [], []

    def close(self) -> None:
        """Write nothing any more; files stay. May yield."""
        self._closed = True
        if self._compaction is not None:
            self._compaction.join()
        if self._sync is not None:
            self._sync.join()
        for descriptor in [*self._unsynced, self._descriptor]:
            if descriptor >= 0:
                os.close(descriptor)
        self._unsynced, self._descriptor = [], -1
        if self._reading is not None:
            self._reading.close()
            self._reading = None


def _sync(descriptors: list[int], path: str, directory: str | None) -> None:
    with failing_as_go("sync", path):
        for descriptor in descriptors:
            os.fdatasync(descriptor)  # the size with it; that costs half of fsync
    if directory is not None:
        with suppress(StorageError):  # not every file system can sync a directory
            sync_path(directory or ".")
