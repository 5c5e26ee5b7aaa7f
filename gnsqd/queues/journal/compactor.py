"""Decides which messages of a log are kept, deletes segments, and copies what is live to free the rest of them.

A message is *live* as long as some queue has not finished it. With *retention*, the newest of the others are kept as
well, as far as two bounds allow. Only whole segments go: the oldest once nothing in them is kept. Of others, the live
messages of neighbours are copied into one that takes the place of the last of them. Should the daemon be killed in
between, the others are still there; a replay counts messages where it meets them last.

A journal may have a million scattered live messages. They are gone through in pieces, with turns for others
in between, and each byte of a segment is read about once.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import groupby
from operator import attrgetter
from sys import maxsize
from time import monotonic, time_ns

from gevent import Greenlet, spawn

from gnsqd.hub.cooperative import BACKGROUND_SECONDS, Turns
from gnsqd.options import SECOND, Options
from gnsqd.queues.journal.log import Log
from gnsqd.queues.journal.segments import AppendedFile
from gnsqd.queues.journal.states import QueueStates
from gnsqd.shared.errors import StorageError
from gnsqd.shared.journal.records import EPOCH, RETENTION, PutBatch, first_line
from gnsqd.shared.journal.replay import Replay
from gnsqd.shared.journal.segment import Segment
from gnsqd.shared.journal.spans import Spans
from gnsqd.storage.directory import Reserve
from gnsqd.storage.files import sync_directory, sync_path

WRITE_SIZE = 64 * 1024  # bytes that are written at once, at least
PIECE = 1024  # spans that are looked at without a turn for others
IDLE_TIMES = 20  # as long as it took to find nothing to compact, until that is tried again
RETRY_SECONDS = 5.0
LEAST_SEGMENTS = 4  # full ones, whose bytes a journal may take, whatever of them is live
MOST_FILES = 16  # segments besides the last that a journal may have, however small they are
PARTS = 8  # a segment has at most such a part of the retained bytes, and messages of such a part of the time

_first = attrgetter("first")

Live = Callable[[int, int], Iterator[Spans]]  # `Retention.live`


class Retention:
    """Knows which messages of a log are kept: the live ones, and of the others at most `max_bytes`, none if 0, that are
    at most `max_age` ns old, or of any age if that is 0."""

    def __init__(
        self, log: Log, states: QueueStates, options: Options, replay: Replay, commit: Callable[[], None]
    ) -> None:
        self.log = log
        self.rewinds = 0  # that are looking for what comes again, which is retained meanwhile
        self.is_own = replay.retention is not None  # of this topic, whatever the options are
        self._states = states
        self._commit = commit
        self._max_segment = log.max_segment
        self._set(*(replay.retention or (options.retention_bytes, options.retention_time, 0)))
        # Numbers from `begin` on of messages that no segment has.
        self.absent = replay.present.gaps(0, log.next_number) if self.max_bytes else Spans()
        self.advance()
        segments = log.segments.all
        with suppress(StorageError):
            if self.max_age and segments and (published := log.published(segments[-1].first, log.next_number)):
                log.begun -= (time_ns() - published) / SECOND

    def _set(self, max_bytes: int, max_age: int, begin: int) -> None:
        self.max_bytes = max_bytes
        self.max_age = max_age
        self.begin = begin if max_bytes else maxsize  # messages from this number on are kept; never goes back
        self.log.max_segment = max(min(self._max_segment, max_bytes // PARTS if max_bytes else maxsize), 1)

    def retain(self, max_bytes: int, max_age: int) -> None:
        """Keeps that much for this topic, also after a start: if nothing was kept, from now on. Raises StorageError.
        May yield."""
        begin = self.begin if self.max_bytes else self.log.next_number
        self._set(max_bytes, max_age, begin)
        self.is_own = True
        self.log.declare(RETENTION, self.log.encoder.retention(max_bytes, max_age, begin))
        self.advance()
        self._commit()

    def advance(self) -> None:
        """Keeps the oldest segments no longer, as far as they exceed a bound once the last one is full."""
        if self.rewinds:
            return
        if self.max_bytes and self.log.segments.all:
            with suppress(StorageError):  # what cannot be read is reported when somebody needs it
                self.begin = max(self.begin, self._oldest())
        self.absent.remove(0, self.begin)

    def _oldest(self) -> int:
        """Returns the first number of the oldest segment within the bounds; raises StorageError."""
        # The last segment counts with the size that it will have, so that the bound holds until it is full. It is kept
        # in any case: at least as many messages stay as were published since it was begun.
        horizon = time_ns() - self.max_age if self.max_age else 0
        segments = self.log.segments.all
        kept = segments[-1]
        room = self.max_bytes - max(self.log.full_size, kept.size)
        for segment in reversed(segments[:-1]):
            room -= segment.size
            if horizon and room >= 0 and not segment.newest:
                segment.newest = self.log.published(segment.end - 1, segment.end) or 1
            if room < 0 or (horizon and segment.newest < horizon):
                break
            kept = segment
        return kept.first

    def is_aged(self) -> bool:
        """True if another segment should follow, because messages go by their age, and only whole segments go."""
        if not self.max_age or monotonic() - self.log.begun <= self.max_age / PARTS / SECOND:
            return False
        segments = self.log.segments.all
        return len(segments) > 0 and segments[-1].count > 0

    @property
    def expires(self) -> bool:
        """True if messages go when nothing else happens."""
        return self.max_age > 0 and self.floor() < self.log.next_number

    def floor(self) -> int:
        """Returns the number of the first message that may be kept."""
        floors = [queue.finished.floor for queue in self._states.queues.values()]
        return min(*floors, self.begin) if floors else 0

    def are_finished(self, end: int) -> bool:
        """True if all queues have finished the messages before number `end`."""
        return min((queue.finished.floor for queue in self._states.queues.values()), default=0) >= end

    def live(self, start: int, end: int) -> Iterator[Spans]:
        """Iterates over the messages from `start` to `end` that are kept, in pieces of about PIECE spans. What queues
        finish between two pieces may still be in there; what is not will never be live again."""
        start, end = max(start, self.floor()), min(end, self.log.next_number)
        while start < end:
            finished = [queue.finished for queue in self._states.queues.values()]
            limit = max(PIECE // max(len(finished), 1), 1)
            stop = min(end, min([spans.stretch(start, limit) for spans in finished], default=end))
            piece = Spans()
            for spans in finished:
                piece.update(spans.gaps(start, stop))
            piece.add(max(start, self.begin), stop)
            yield piece
            start = stop


class Compactor:
    """Deletes segments, and copies what is live in others together. `flush(advance)` and `commit()` are the
    journal's."""

    def __init__(
        self, retention: Retention, reserve: Reserve, flush: Callable[[bool], None], commit: Callable[[], None]
    ) -> None:
        self._log = retention.log
        self._reserve = reserve
        self._retention = retention
        self._flush = flush
        self._commit = commit
        # Positions, and the first number of the segment that has the floor by all that is written before.
        self._floors: deque[tuple[int, int]] = deque()
        self._floor = 0  # the last that survives what it is to survive
        self._greenlet: Greenlet[[], bool] | None = None
        self._compact_at = 0.0  # monotonic; earlier is too early
        self._closed = False

    def note_written(self) -> None:
        """Deletes what goes by what queues have noted, as all of that is written; durable, that waits for fsync: after
        a crash the messages of a segment that is gone would otherwise count as lost."""
        log, floors = self._log, self._floors
        segments = log.segments.all
        if len(segments) > 1:
            first = segments[max(bisect_right(segments, self._retention.floor(), key=_first) - 1, 0)].first
            if first != (floors[-1][1] if floors else self._floor):  # a rewind lowers it
                floors.append((log.tail.position, first))
        if not log.durable:
            self.reclaim()

    def reclaim(self) -> None:
        """Deletes the oldest segments in which nothing is kept, as far as that survives what it is to survive."""
        floors = self._floors
        while floors and floors[0][0] <= self._log.tail.safe:
            self._floor = floors.popleft()[1]
        self._log.delete_before(min(self._floor, self._retention.floor()), at_once=self._reserve.is_needed)

    def make_room(self) -> bool:
        """Deletes the oldest segments in which nothing is kept, though that is not written; False if there are none."""
        count = len(self._log.segments.all)
        self._log.delete_before(self._retention.floor(), at_once=True)
        return len(self._log.segments.all) < count

    def compact(self) -> bool:
        """Deletes segments without live messages, and copies the live messages of others together where that frees
        much: the journal stays within four segments, or twice the live messages. False if to be repeated. May yield."""
        if monotonic() < self._compact_at:
            return False
        if self._greenlet is None or self._greenlet.ready():
            self._greenlet = spawn(self._compact)
            self._greenlet.name = f"compact:{self._log.topic}.journal"
        return bool(self._greenlet.get())

    def _compact(self) -> bool:
        if self._closed:
            return True
        log, begin = self._log, monotonic()
        try:
            if self._retention.max_age:
                self._retention.advance()
                if self._retention.is_aged():
                    self._flush(True)
            if log.replaced:
                self._delete_replaced()
            if log.tail.safe < log.snapshot_end:
                self._commit()  # where nobody publishes, nobody else does
            if self._may_compact():
                groups = plan(log.segments.all, self._retention.live, log.max_segment)
                if not groups:
                    self._compact_at = monotonic() + IDLE_TIMES * (monotonic() - begin)
                if all(self._compact_group(group) for group in groups):
                    return not self._retention.expires
        except StorageError as error:
            log.logger.error("JOURNAL(%s): failed to compact - %s", log.topic, error)
            self._compact_at = monotonic() + RETRY_SECONDS
        return False

    def _compact_group(self, group: list[Segment]) -> bool:
        """Puts one segment, or none, in the place of several; False if all in some was finished meanwhile. Raises
        StorageError."""
        log = self._log
        if not self._may_compact(group):
            return False
        rewriting = Rewriting(log, group, self._retention.live)
        rewriting.run()
        with suppress(StorageError):  # on a full disk, room may be in messages that no queue needs
            self._commit()  # what is finished is written before its segments go
        if not self._may_compact(group):  # the commit has yielded: a segment of the group may be gone
            rewriting.file.discard()
            return False
        with log.syncer.keeping(group[-1].path):
            copy = rewriting.finish()
        gone = log.segments.replace(group, copy)
        log.note_changed()
        if copy is None:
            log.segments.delete(gone)
        else:
            log.replaced += gone
            self._delete_replaced()
        return True

    def _may_compact(self, group: Sequence[Segment] = ()) -> bool:
        log, segments = self._log, self._log.segments.all
        is_possible = not self._closed and len(segments) > 0 and log.is_snapshot_safe
        return is_possible and set(group) <= set(segments) and all(map(log.may_go, group))

    def _delete_replaced(self) -> None:
        """Deletes the segments of which there are copies, once these survive what they are to survive; raises
        StorageError."""
        log = self._log
        if log.durable:
            log.syncer.run(sync_directory, log.data_path)
        log.segments.delete(log.replaced)
        log.replaced = []

    def close(self) -> None:
        """Deletes and copies nothing any more; returns when nobody does. May yield."""
        self._closed = True
        if self._greenlet is not None:
            self._greenlet.join()


def plan(segments: list[Segment], live: Live, segment_size: int) -> list[list[Segment]]:
    """Returns groups of neighbouring segments, each to become one or none; never the last, which is written. First come
    those of which nothing is live, because a copy needs room: without them the others are neighbours. Yields."""
    old = segments[:-1]
    last_size = segments[-1].size
    size = sum(segment.size for segment in segments)
    # Below these bounds nothing is copied, so it is enough to know of which segments nothing is live. That stops at the
    # first live message of each, where an exact count goes through all of them.
    exact = size > LEAST_SEGMENTS * segment_size or len(old) > MOST_FILES
    turns = Turns(BACKGROUND_SECONDS)
    sizes = {segment: _live_size(segment, live, exact, turns) for segment in old}
    chosen = [list(group) for is_dead, group in groupby(old, lambda segment: not sizes[segment]) if is_dead]
    old = [segment for segment in old if sizes[segment]]
    size = sum(segment.size for segment in old) + last_size
    needed = sum(sizes.values()) + last_size
    # At most twice the live bytes, as each byte of a copy then frees one or more: more tightly, every few messages that
    # are finished would have all the others copied again. A journal of few segments is left alone.
    too_large = size > max(LEAST_SEGMENTS * segment_size, 2 * needed)
    # Segments that were begun early, because messages go by their age or after a failed fsync, are small: many files
    # for few bytes, each of which a start opens. Four are allowed for each one that the live messages would fill.
    too_many = len(old) > MOST_FILES + 4 * needed // segment_size
    # Neighbours only, as numbers rise from file to file: where a replay meets a smaller one, it takes what follows for
    # the copy, which counts. A group takes no more than a segment has room for.
    groups: list[list[Segment]] = []
    room = 0
    for segment in old:
        if groups and sizes[segment] <= room:
            groups[-1].append(segment)
            room -= sizes[segment]
        else:
            groups.append([segment])
            room = segment_size - sizes[segment]
    for group in groups:
        # A copy has to be worth its writes: it frees at least as much as it takes, or it is one file instead of many.
        saves = sum(segment.size for segment in group) >= 2 * sum(sizes[segment] for segment in group)
        if (too_large and saves) or (too_many and len(group) > 1):
            chosen.append(group)
    return chosen


def _live_size(segment: Segment, live: Live, exact: bool, turns: Turns) -> int:
    """Returns how many bytes the live messages in it take, about; 0 exactly when there is none. Yields."""
    count = 0
    for piece in live(segment.first, segment.end):
        count += piece.count()
        if count and not exact:
            return segment.size
        turns.give()
    return segment.size * min(count, segment.count) // max(segment.count, 1) + 1 if count else 0


class Rewriting:
    """Owns the copy of the live messages in `group`: `run`, then `finish` or `file.discard`."""

    def __init__(self, log: Log, group: list[Segment], live: Live) -> None:
        self._log = log
        self._sources = log.segments.reader(group)
        self._end = group[-1].end
        self._pieces = live(group[0].first, self._end)
        self._target = Segment(group[-1].path, log.encoder.salt, group[0].first)
        self.file = AppendedFile(self._target.path, log.open_files)
        self._batch = PutBatch(log.encoder)  # not yet written
        self._turns = Turns(BACKGROUND_SECONDS)

    def run(self) -> None:
        """Writes the copy, if anything is still live; raises StorageError, and nothing is left of it. Yields."""
        try:
            self._copy()
            self._write()
            if self._target.count:
                index = self._log.encoder.continued(self._target.index())
                self._target.size += self.file.write([index], self._target.size)
                self._log.syncer.run(sync_path, self.file.path)
                self.file.close()
        except BaseException:
            self.file.discard()
            raise
        finally:
            self._sources.end_reading()

    def _copy(self) -> None:
        frames: list[bytes] = []  # read, `first` being the number of the first
        first = due = 0
        for piece in self._pieces:
            self._turns.give()
            for start, end in piece:
                while start < end:
                    if not first <= start < first + len(frames):
                        first, frames, due = self._sources.read(start, self._end)
                        if not frames:
                            return
                        start = first
                    else:
                        found = frames[start - first : end - first]
                        self._batch.put(start, found, due)
                        self._batch.close_record()
                        start += len(found)
                        if self._batch.puts_size >= WRITE_SIZE:
                            self._write()
                    self._turns.give()

    def _write(self) -> None:
        batch, self._batch = self._batch, PutBatch(self._log.encoder)
        if batch.puts:
            head = b""
            if not self._target.size:
                head = first_line(self._target.salt)
                if epoch := self._log.epoch:  # who reads a log store knows by it to which log the copy belongs
                    head += self._log.encoder.record(EPOCH, epoch)
            size = self.file.write([head, *batch.puts], self._target.size)
            self._target.note_batch(batch, self._target.size + len(head), size)

    def finish(self) -> Segment | None:
        """Puts the copy in place; returns its segment, None if nothing was live. Raises StorageError. Never yields."""
        if not self._target.count:
            return None
        self.file.finish()
        return self._target
