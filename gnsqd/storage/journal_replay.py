"""What a journal says when a daemon starts: which messages there are, and what each queue has done with them.

Every segment is read from the oldest on. The newest begins with a snapshot, so what is missing of older ones costs
nothing but the messages that were in them. Damage never stops the replay: what is readable behind it counts, and where
it could have hit what was finished, messages come again rather than not at all.
"""

import os
from dataclasses import dataclass, field
from time import monotonic, time_ns

from gnsqd.errors import StorageError
from gnsqd.log import Logger
from gnsqd.storage import journal_records as records
from gnsqd.storage.files import path_error
from gnsqd.storage.segment import Segment
from gnsqd.storage.spans import Spans

PROGRESS_SECONDS = 5.0


@dataclass
class QueueState:
    """Of the topic (queue 0) or a channel: what it is done with, and what is known of other messages."""

    name: str
    finished: Spans = field(default_factory=Spans)
    attempts: dict[int, int] = field(default_factory=dict)
    due: dict[int, int] = field(default_factory=dict)

    def finish(self, spans: Spans) -> None:
        self.finished.update(spans)
        for start, end in spans:
            for known in (self.attempts, self.due):
                if known:
                    if end - start > len(known):
                        for number in [number for number in known if start <= number < end]:
                            del known[number]
                    else:
                        for number in range(start, end):
                            known.pop(number, None)


class Replay:
    """Reads segments into `segments`, `queues` by number, and the rest of what a journal goes on from."""

    def __init__(self, topic: str, log: Logger) -> None:
        self.segments: list[Segment] = []
        self.queues: dict[int, QueueState] = {}
        self.present = Spans()  # messages
        self.due: dict[int, int] = {}  # of messages that nobody was given yet
        self.next_number = 1
        self.next_queue = 1
        self.converting = False  # the disk queues are a copy
        self.damaged = False  # what was finished may be unknown
        self.void: list[Segment] = []  # segments that do not count any more
        self._topic = topic
        self._log = log
        self._now = time_ns()
        self._snapshot: set[int] | None = None
        self._snapshot_records = 0

    def read(self, paths: list[tuple[int, str]]) -> None:
        """Read all files, as (number, path) in order. What can't be read at all is logged and left alone."""
        begin = progress = monotonic()
        for position, (number, path) in enumerate(paths):
            try:
                self._read_segment(number, path, position == len(paths) - 1)
            except OSError as error:
                self.damaged = True
                self._log.error("JOURNAL(%s): %s", self._topic, path_error("read", path, error))
            if monotonic() - progress >= PROGRESS_SECONDS:
                progress = monotonic()
                self._log.info("JOURNAL(%s): %d of %d segments replayed", self._topic, position + 1, len(paths))
        self._settle()
        if paths:
            self._log.info(
                "JOURNAL(%s): replayed %d segments with %d messages in %.3f seconds",
                self._topic,
                len(self.segments),
                self.present.count(),
                monotonic() - begin,
            )

    def _read_segment(self, number: int, path: str, is_last: bool) -> None:
        with open(path, "rb") as file:
            data = file.read()
        salt = records.parse_first_line(data)
        if salt is None:
            # Without its salt nothing in it can be told from what bodies contain.
            if data and not is_last:
                self.damaged = True
            level = self._log.warn if is_last else self._log.error
            level("JOURNAL(%s): %s is not a segment of a journal, %d bytes ignored", self._topic, path, len(data))
            self.void.append(Segment(path, number, 0, self.next_number))
            return
        segment = Segment(path, number, salt, self.next_number)
        segment.size = len(data)
        self.segments.append(segment)
        position = records.FIRST_LINE_SIZE
        for type, start, end in records.find_records(data, salt):
            begin = start - records.HEADER.size
            if begin != position:
                self._note_damage(path, position, begin)
            position = end
            try:
                if type == records.PUT:
                    self._put(segment, memoryview(data)[start : start + records.PUT_HEAD], begin)
                else:
                    self._apply(type, data[start:end])
            except StorageError:
                self._note_damage(path, begin, end)
        if position < len(data):
            if is_last:
                self._log.warn(
                    "JOURNAL(%s): %s ends in %d bytes of an unfinished write, cut off",
                    self._topic,
                    path,
                    len(data) - position,
                )
                segment.size = position
                os.truncate(path, position)
            else:
                self._note_damage(path, position, len(data))

    def _note_damage(self, path: str, begin: int, end: int) -> None:
        self.damaged = True
        self._log.error("JOURNAL(%s): %s is damaged from %d to %d", self._topic, path, begin, end)

    def _put(self, segment: Segment, head: memoryview, offset: int) -> None:
        first, count, due = records.decode_put(head)
        if first <= 0 or count <= 0:
            raise StorageError("invalid numbers")
        for earlier in self.segments:
            if earlier is not segment and earlier.end > first:
                earlier.cut(first)  # a later segment has them once more
        segment.note_put(first, count, offset)
        self.present.add(first, first + count)
        self._mention(first + count)
        if due > self._now:
            for number in range(first, first + count):
                self.due[number] = due

    def _mention(self, end: int) -> None:
        self.next_number = max(self.next_number, end)

    def _apply(self, type: int, payload: bytes) -> None:
        if self._snapshot is not None and type in (records.QUEUE, records.FINISHED, records.HELD):
            self._snapshot_records += 1
        if type == records.SNAPSHOT:
            number, queue = records.decode_snapshot(payload)
            self._mention(number)
            self.next_queue = max(self.next_queue, queue)
            self._snapshot, self._snapshot_records = set(), 0
        elif type == records.COMPLETE:
            self._complete(records.decode_number(payload))
        elif type == records.QUEUE:
            index, name, spans = records.decode_queue(payload)
            self.queues[index] = QueueState(name, spans)
            self.next_queue = max(self.next_queue, index + 1)
            self._mention(spans.ceiling)
            if self._snapshot is not None:
                self._snapshot.add(index)
        elif type == records.DELETED:
            self.queues.pop(records.decode_number(payload), None)
        elif type in (records.FINISHED, records.TAKEN):
            self._spans(type, *records.decode_spans(payload))
        elif type == records.HELD:
            index, entries = records.decode_held(payload)
            self._held(index, entries)
        elif type == records.CONVERTING:
            self.converting = True
        elif type == records.VOID:
            self._start_anew()

    def _complete(self, count: int) -> None:
        if self._snapshot is not None and count == self._snapshot_records:
            for index in [index for index in self.queues if index not in self._snapshot]:
                del self.queues[index]
            self.converting = self.damaged = False  # what was before is told anew
        else:
            self.damaged = True
        self._snapshot = None

    def _spans(self, type: int, index: int, spans: Spans) -> None:
        self._mention(spans.ceiling)
        state = self.queues.get(index)
        if state is None:
            return
        if type == records.FINISHED:
            state.finish(spans)
        else:
            for start, end in spans:
                for number in range(start, end):
                    state.attempts[number] = state.attempts.get(number, 0) + 1

    def _held(self, index: int, entries: list[tuple[int, int, int]]) -> None:
        state = self.queues.get(index)
        for number, attempts, due in entries:
            self._mention(number + 1)
            if state is not None:
                state.attempts[number] = attempts
                state.due[number] = due

    def _start_anew(self) -> None:
        self.void += self.segments
        self.segments = []
        self.queues = {}
        self.present = Spans()
        self.due = {}
        self.converting = self.damaged = False
        self._snapshot = None

    def _settle(self) -> None:
        """The topic has handed over what any channel is done with or was given, and nobody waits for what is lost."""
        topic = self.queues.setdefault(0, QueueState(self._topic))
        missing = self.present.gaps(0, self.next_number)
        for state in self.queues.values():
            if state is not topic:
                topic.finished.update(state.finished)
                for number in [*state.attempts, *state.due]:
                    topic.finished.add(number, number + 1)
        for state in self.queues.values():
            state.finish(missing)
            for number in list(state.attempts):
                if number in state.finished:
                    del state.attempts[number]
            state.due = {
                number: due for number, due in state.due.items() if due > self._now and number not in state.finished
            }
        self.segments = [segment for segment in self.segments if segment.count or segment is self.segments[-1]]
