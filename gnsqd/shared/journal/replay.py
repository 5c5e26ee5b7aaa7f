"""Reads a journal, as a daemon does when it starts: which messages there are, and what each queue has done with them.

Every segment is read from the oldest on. The newest begins with a snapshot, so what is missing of older ones costs
nothing but the messages that were in them, and of what older ones record of queues nothing is decoded. Damage never
stops the replay: what is readable behind it counts, and where it could have hit what was finished, messages come again
rather than not at all.
"""

import errno
import os
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from sys import maxsize
from time import monotonic, time_ns
from typing import Protocol

from gnsqd.shared.disk_format import Gap
from gnsqd.shared.errors import StorageError, path_error
from gnsqd.shared.journal import records
from gnsqd.shared.journal.segment import Segment, read_index
from gnsqd.shared.journal.spans import Spans

PROGRESS_SECONDS = 5.0
MAX_RANGES = 5  # of numbers that a line names
_IN_SNAPSHOT = (records.QUEUE, records.FINISHED, records.HELD, records.REWOUND)
_BEFORE_SNAPSHOT = (records.PUT, records.VOID, records.CONTINUED)  # what counts of the segments before a whole one


class ReplayLog(Protocol):
    """Takes what a daemon logs of a replay, in the form of its logger."""

    def info(self, format: str, *args: object) -> None: ...
    def warn(self, format: str, *args: object) -> None: ...
    def error(self, format: str, *args: object) -> None: ...


class NoLog:
    """Drops it, where the attributes of the replay suffice."""

    def info(self, format: str, *args: object) -> None:
        pass

    warn = error = info


@dataclass
class ReplayedQueue:
    """Has what a replay knows of the topic (queue 0) or a channel: what is finished, and more of other messages."""

    name: str
    finished: Spans = field(default_factory=Spans)
    attempts: dict[int, int] = field(default_factory=dict)
    due: dict[int, int] = field(default_factory=dict)

    def finish(self, spans: Spans) -> None:
        self.finished.update(spans)
        for start, end in spans:
            for known in (self.attempts, self.due):
                span = range(start, end)
                for number in span if len(span) <= len(known) else [number for number in known if number in span]:
                    known.pop(number, None)

    def note(self, type: int, spans: Spans) -> None:
        """Applies FINISHED, REWOUND or TAKEN."""
        if type == records.FINISHED:
            self.finish(spans)
            return
        for start, end in spans:
            if type == records.REWOUND:
                self.finished.remove(start, end)
            else:
                for number in range(start, end):
                    self.attempts[number] = min(self.attempts.get(number, 0) + 1, records.MAX_ATTEMPTS)

    def cut(self, end: int) -> None:
        """Drops what is known of messages from `end` on."""
        self.finished.remove(end, maxsize)
        for known in (self.attempts, self.due):
            for number in [number for number in known if number >= end]:
                del known[number]


class Replay:
    """Reads segments into `segments`, `queues` by number, and the rest of what a journal goes on from. Nothing is
    changed unless it `repairs`: then what a kill left unfinished at the end is cut off. If it `checks`, it reads also
    what an index replaces."""

    def __init__(
        self, topic: str, log: ReplayLog | None = None, *, repairs: bool = False, checks: bool = False
    ) -> None:
        self.next_number = self.next_queue = 1
        self.void: list[Segment] = []  # segments that do not count any more
        self.whole = False  # the last segment by itself records what queues are done with
        self.damages: list[Gap] = []
        self.lost = Spans()  # messages that are in no segment and that some queue is not done with
        self.torn: Gap | None = None
        self.unindexed: list[Segment] = []  # undamaged, with another behind them: a kill came before their index
        self._repairs = repairs
        self._checks = checks
        self._topic = topic
        self._log = log or NoLog()
        self._continued: Segment | None = None  # the last segment, if it records that another follows
        self._now = time_ns()
        self._snapshot_records = 0
        self._snapshot_damaged = False
        self._start_over()

    def _start_over(self) -> None:
        self.segments: list[Segment] = []
        self.queues: dict[int, ReplayedQueue] = {}
        self.present = Spans()  # messages
        self.due_numbers = array("q")  # of messages that are not due and that nobody was given yet, rising
        self.due_times = array("q")  # of these
        self.converting = False  # the disk queues are a copy
        self.retention: tuple[int, ...] | None = None  # bytes, ns and first message, if the topic has its own
        self.epoch = b""  # empty if nobody has read ranges
        self.damaged = False  # what was finished may be unknown
        self._snapshot: dict[int, ReplayedQueue] | None = None  # one that is not complete
        self._first_number = self.next_number  # of all that counts
        self._written_end = self.next_number  # every number below was written

    def read(self, paths: list[str], advance: Callable[[int], None] = lambda size: None) -> None:
        """Reads all files, in order; `advance` gets the bytes read. Raises StorageError if one can't be, unless the
        disk fails: damage."""
        begin = progress = monotonic()
        # A kill may have left a last file without records. A whole snapshot replaces all that is recorded of queues
        # before it, so of the segments before the newest that has one, only messages matter.
        last = max((at for at, path in enumerate(paths) if _has_records(path)), default=0)
        snapshot = next((at for at in range(last, 0, -1) if _has_snapshot(paths[at])), 0)
        for position, path in enumerate(paths):
            try:
                advance(self._read_segment(path, position >= last, position < snapshot))
            except FileNotFoundError:
                pass  # a daemon deletes them, where one runs
            except OSError as error:
                text = path_error("read", path, error)
                if error.errno != errno.EIO:
                    raise StorageError(text) from error
                self._note_damage(Gap(path, 0, 0, text))
            if monotonic() - progress >= PROGRESS_SECONDS:
                progress = monotonic()
                self._log.info("JOURNAL(%s): %d of %d segments replayed", self._topic, position + 1, len(paths))
        self._end_segment()
        if self._continued is not None:
            path, size = self._continued.path, self._continued.size
            text = f"the segment that follows is missing, with all messages from number {self.next_number} on"
            self._note_damage(Gap(path, size, size, text))
        self._settle()
        if self.lost:
            self._log.error("JOURNAL(%s): %s", self._topic, self.describe_lost())
        if paths:
            text = "JOURNAL(%s): replayed %d segments with %d messages in %.3f seconds"
            self._log.info(text, self._topic, len(self.segments), self.present.count(), monotonic() - begin)

    def _read_segment(self, path: str, is_last: bool, before_snapshot: bool) -> int:
        """Returns the size of the file; raises OSError."""
        if before_snapshot and not self._checks and self._read_index(path):
            return self.segments[-1].size
        with open(path, "rb") as file:
            data = file.read()
        salt = records.parse_first_line(data)
        if salt is None:
            self._set_aside(path, len(data), is_last)
            return len(data)
        self._end_segment()
        self.whole = False
        self._continued = None
        segment = Segment(path, salt, self.next_number)
        segment.size = len(data)
        self.segments.append(segment)
        is_indexed = False
        for item in records.read_records(path, data, salt):
            if isinstance(item, Gap):
                if item.end == len(data) and self._is_torn(segment, data, item.begin, is_last):
                    size = item.end - item.begin
                    self.torn = item._replace(reason=f"{size:,} bytes of an unfinished write")
                    text = "JOURNAL(%s): %s ends in %d bytes of an unfinished write, cut off"
                    self._log.warn(text, self._topic, path, size)
                    segment.size = item.begin
                    if self._repairs:
                        os.truncate(path, item.begin)
                else:
                    self._note_damage(item)
                continue
            type, begin, start, end = item
            if before_snapshot and type not in _BEFORE_SNAPSHOT:
                continue
            try:
                if type == records.CONTINUED:
                    self._continued = segment
                    is_indexed = start < end == len(data)
                elif type == records.PUT:
                    self._put(segment, memoryview(data)[start : start + records.PUT_HEAD], begin)
                    segment.body_size += end - start - records.PUT_HEAD
                else:
                    self._apply(type, data[start:end])
            except StorageError as error:
                self._note_damage(Gap(path, begin, end, str(error)))
        if not is_indexed:
            self.unindexed.append(segment)
        return len(data)

    def _read_index(self, path: str) -> bool:
        """True if the index of a segment has replaced reading it: damage of its messages is found when these are
        needed. Raises OSError."""
        index = read_index(path)
        if index is None:
            return False
        try:
            segment, present = Segment.indexed(path, *index)
        except StorageError:
            return False
        self.whole = False
        self._continued = segment
        self.segments.append(segment)
        if present:
            self._cut(segment.first)
            self.present.update(present)
            self._mention_written(segment.end)
            numbers, times = segment.due_later(self._now)
            self.due_numbers += numbers
            self.due_times += times
        segment.forget_index()
        return True

    def _is_torn(self, segment: Segment, data: bytes, position: int, is_last: bool) -> bool:
        """True if a kill has cut off what follows: it lacks its full size, in the last segment or as an index, behind
        which a segment has nothing else."""
        type, size, _ = records.parse_header(data, position, records.mark_of(segment.salt))
        position += records.HEADER.size
        if not type or position + size > len(data):
            return is_last or type == records.CONTINUED
        # A whole header with a wrong checksum is damage. If it is that of the next messages, their numbers are taken:
        # nobody else may get them, as consumers may have had these messages.
        if is_last and type == records.PUT and size >= records.PUT_HEAD:
            first, count, _ = records.decode_put(data[position : position + records.PUT_HEAD])
            if first == self._written_end and 0 < count < size:  # or that is where the damage is
                self._mention(first + count)
        return False

    def _set_aside(self, path: str, size: int, is_last: bool) -> None:
        """Renames a file without a salt: nothing in it can be distinguished from the content of bodies."""
        if not size or (is_last and size <= records.FIRST_LINE_SIZE):  # a kill came before anything else
            self.torn = Gap(path, 0, size, f"{size} bytes of an unfinished first line")
            self._log.warn("JOURNAL(%s): %s is not a segment of a journal yet, removed", self._topic, path)
            self.void.append(Segment(path, 0, self.next_number))
            return
        self._continued = None  # here it is
        self._note_damage(Gap(path, 0, size, "not a segment of a journal"))
        if self._repairs:
            with suppress(OSError):
                os.rename(path, f"{path}.bad")

    def _note_damage(self, damage: Gap) -> None:
        self.damaged = self._snapshot_damaged = True
        self.damages.append(damage)
        path, begin, end, reason = damage
        self._log.error("JOURNAL(%s): %s from %d to %d: %s", self._topic, path, begin, end, reason)

    def _put(self, segment: Segment, head: memoryview, offset: int) -> None:
        first, count, due = records.decode_put(head)
        if first <= 0 or count <= 0:
            raise StorageError("invalid numbers")
        self._cut(first)
        segment.note_put(first, count, offset, due)
        self.present.add(first, first + count)
        self._mention_written(first + count)
        if due > self._now:
            self.due_numbers.extend(range(first, first + count))
            self.due_times.extend([due] * count)

    def _cut(self, first: int) -> None:
        """Takes messages from `first` on out of all segments but the last, which has what is still needed of them."""
        if self.present.ceiling > first:
            self.present.remove(first, maxsize)
        at = len(self.segments) - 2
        while at >= 0 and self.segments[at].end > first:
            self.segments[at].cut(first)
            at -= 1
        if self.due_numbers and self.due_numbers[-1] >= first:
            position = bisect_left(self.due_numbers, first)
            del self.due_numbers[position:], self.due_times[position:]

    def unread(self) -> Iterator[tuple[int, ReplayedQueue, Spans]]:
        """Iterates over number and state of each queue, the topic first, with the messages that it still has."""
        handed_over = self.queues[0].finished
        yield 0, self.queues[0], handed_over.gaps(0, self.next_number)
        latest = {state.name: index for index, state in sorted(self.queues.items())}
        for index, state in self.queues.items():
            if index and index == latest[state.name]:  # damage may have hit that an older one was deleted
                yield index, state, handed_over.without(state.finished)

    def due_of(self, state: ReplayedQueue, spans: Spans) -> tuple["array[int]", "array[int]"]:
        """Returns the numbers and due times of the messages of a queue, among `spans`, that are not due."""
        numbers, times = array("q"), array("q")
        for start, end in spans.without(Spans.of(state.due)):
            first = bisect_left(self.due_numbers, start)
            last = bisect_left(self.due_numbers, end, first)
            numbers += self.due_numbers[first:last]
            times += self.due_times[first:last]
        numbers.extend(state.due.keys())
        times.extend(state.due.values())
        return numbers, times

    def _mention(self, end: int) -> None:
        self.next_number = max(self.next_number, end)

    def _mention_written(self, end: int) -> None:
        self._written_end = max(self._written_end, end)
        self._mention(end)

    def _apply(self, type: int, payload: bytes) -> None:
        if type in _IN_SNAPSHOT:
            self._snapshot_records += 1
        elif type != records.COMPLETE:
            self._end_snapshot()
        if type == records.SNAPSHOT:
            number, queue = records.decode_snapshot(payload)
            self._mention_written(number)
            self.next_queue = max(self.next_queue, queue)
            self._snapshot, self._snapshot_records, self._snapshot_damaged = {}, 0, False
        elif type == records.COMPLETE:
            if self._snapshot is not None and records.decode_number(payload) == self._snapshot_records:
                self.queues = self._snapshot
                self.converting = self.damaged = False  # the snapshot replaces what was before
                self._snapshot = None
                self.whole = True
            else:
                self._snapshot_damaged = True
                self._end_snapshot()
        elif type == records.QUEUE:
            index, name, spans = records.decode_queue(payload)
            self._known()[index] = ReplayedQueue(name, spans)
            self.next_queue = max(self.next_queue, index + 1)
            self._mention(spans.ceiling)
        elif type == records.DELETED:
            self.queues.pop(records.decode_number(payload), None)
        elif type in (records.FINISHED, records.TAKEN, records.REWOUND):
            index, spans = records.decode_spans(payload)
            self._mention(spans.ceiling)
            if state := self._known().get(index):
                state.note(type, spans)
        elif type == records.HELD:
            index, entries = records.decode_held(payload)
            state = self._known().get(index)
            for number, attempts, due in entries:
                self._mention(number + 1)
                if state is not None:
                    state.attempts[number], state.due[number] = attempts, due
        elif type == records.CONVERTING:
            self.converting = True
        elif type == records.RETENTION:
            self.retention = records.decode_retention(payload)
        elif type == records.EPOCH:
            self.epoch = payload
        elif type == records.VOID:
            self.void += self.segments
            self._start_over()

    def _known(self) -> dict[int, ReplayedQueue]:
        """Returns what the next record describes: a snapshot counts when it is whole."""
        return self.queues if self._snapshot is None else self._snapshot

    def _end_segment(self) -> None:
        """Drops what is noted of messages whose write a kill prevented: others get their numbers, in a segment that
        follows. After damage they may have been there."""
        self._end_snapshot()
        if not self.damages and self.next_number > self._written_end:
            self.next_number = self._written_end
            for state in self.queues.values():
                state.cut(self.next_number)

    def _end_snapshot(self) -> None:
        """Ends a snapshot that is not whole: at the end of the journal its write was never finished, so it is as if
        there was none, because what is before it is all there. Damage in it leaves what can be read of both."""
        if self._snapshot is not None and self._snapshot_damaged:
            self.queues |= self._snapshot
            self.damaged = True
        self._snapshot = None
        self._snapshot_damaged = False

    def describe_lost(self) -> str:
        """Returns how many messages are lost, and which; it may be fewer where it isn't known what was finished."""
        ranges = (f"{start}-{end - 1}" if end - start > 1 else f"{start}" for start, end in self.lost)
        numbers = ", ".join(islice(ranges, MAX_RANGES))
        if len(self.lost) > MAX_RANGES:
            numbers += f" and {len(self.lost) - MAX_RANGES} more ranges"
        count = self.lost.count()
        text = f"{'up to ' * self.damaged}{count} {'message is' if count == 1 else 'messages are'} lost"
        return f"{text}, no segment has them: numbers {numbers}"

    def _settle(self) -> None:
        """Adds that the topic handed over what any channel is done with or was given; nobody waits for what is lost."""
        is_known = 0 in self.queues
        topic = self.queues.setdefault(0, ReplayedQueue(self._topic))
        missing = self.present.gaps(0, self.next_number)
        for state in self.queues.values():
            if state is not topic:
                topic.finished.update(state.finished)
                for number in [*state.attempts, *state.due]:
                    topic.finished.add(number, number + 1)
        # Lost is what no segment has and not all queues had finished. What all had finished went with its segment.
        suspects = done = self.present.gaps(self._first_number, self.next_number)
        for state in self.queues.values():
            before = state.finished.copy()
            state.finish(missing)
            if state.finished.count() > before.count():
                done = done.without(done.without(before))
            finished = state.finished
            state.attempts = {number: count for number, count in state.attempts.items() if number not in finished}
            state.due = {number: due for number, due in state.due.items() if due > self._now and number not in finished}
        if is_known or not self.damaged:
            self.lost = suspects.without(done)
        needed = [segment for segment in self.segments if segment.count or segment is self.segments[-1]]
        self.void += [segment for segment in self.segments if segment not in needed]
        self.segments = needed
        if needed and not needed[-1].count:  # it goes on behind messages that no segment may have any more
            needed[-1].first = needed[-1].end = self.next_number
        damaged = {damage.path for damage in self.damages}
        self.unindexed = [each for each in self.unindexed if each in needed[:-1] and each.path not in damaged]


def _has_snapshot(path: str) -> bool:
    """True if the segment begins with a whole snapshot."""
    data = b""
    with suppress(OSError), open(path, "rb") as file:
        data = file.read()
    salt = records.parse_first_line(data)
    if salt is None:
        return False
    count = 0
    expected: tuple[int, ...] = (records.SNAPSHOT,)
    for item in records.read_records(path, data, salt):
        if isinstance(item, Gap) or item.type not in expected:
            return False
        if item.type == records.COMPLETE:
            return records.decode_number(data[item.start : item.end]) == count
        expected = (*_IN_SNAPSHOT, records.COMPLETE)
        count += item.type != records.SNAPSHOT
    return False


def _has_records(path: str) -> bool:
    with suppress(OSError):
        return os.path.getsize(path) > records.FIRST_LINE_SIZE
    return False
