"""Records what the queues of a journal have done with messages, and all of it at the begin of each segment.

A queue, the topic's own (0) or a channel's, records what it has `finished` (for the topic: handed over), what was
taken, and what it holds back. Changes are collected as notes, and written with the messages.

A million messages may be held back, so the records of a snapshot are made and written in steps, and the state of each
queue is copied when its turn comes. What the queues note meanwhile follows them: each note has all that is known of a
message, so the last one counts. The file has another name until it is complete.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from itertools import chain, islice, starmap
from time import monotonic_ns, time_ns
from typing import TypeVar

from gnsqd.queues.journal.segments import AppendedFile, OpenFiles
from gnsqd.queues.message import Message
from gnsqd.queues.queue import Queue
from gnsqd.queues.schedule import Schedule
from gnsqd.shared.journal.records import (
    COMPLETE,
    DELETED,
    FINISHED,
    MAX_ATTEMPTS,
    MAX_HELD,
    REWOUND,
    SNAPSHOT_HEAD_SIZE,
    TAKEN,
    Encoder,
)
from gnsqd.shared.journal.spans import Spans

STEP = 256 * 1024  # bytes of records that are made at once, about 5 ms,
PIECE = 1024  # where a look at up to 1,000 messages counts as that many, and a copy of what is known of one as a byte

Held = list[tuple[int, int, int]]  # (number, attempts, due or 0) of messages of which one of the latter is not 0

T = TypeVar("T")


class QueueNotes:
    """The state of one queue in a journal, the topic's own queue if `index` is 0, and the notes not yet written.

    `finished` has the numbers of finished messages, `attempts` those of stored messages that were delivered before,
    `deferred` those held back and not in memory. `logs` are sets that also receive what is finished."""

    queue: Queue  # whose state this is

    def __init__(self, name: str, states: "QueueStates") -> None:
        self.name = name
        self.index = 0
        self.finished = Spans()
        self.attempts: dict[int, int] = {}
        self.deferred = Schedule()
        self.logs: list[Spans] = []
        self._states = states
        self._noted = False
        self._finished: list[tuple[int, int]] = []
        self._taken: list[tuple[int, int]] = []
        self._held: dict[int, tuple[int, int, int]] = {}  # number, attempts and due time; the last of each message

    def note_finished_span(self, start: int, end: int) -> None:
        if start >= end:
            return
        self.finished.add(start, end)
        for log in self.logs:
            log.add(start, end)
        notes = self._finished
        if notes and notes[-1][1] == start:
            start = notes.pop()[0]
        notes.append((start, end))
        self._note()

    def forget_from(self, first: int, end: int) -> None:
        """Forgets the messages from number `first` to `end`, the last ones: others will get these numbers."""
        self.finished.remove(first, end)
        for spans in (self._finished, self._taken):
            spans[:] = [(start, min(behind, first)) for start, behind in spans if start < first]
        for number in range(first, end):
            self._held.pop(number, None)
            self.attempts.pop(number, None)

    def note_taken(self, messages: list[Message]) -> None:
        """Notes that these messages are about to be delivered once more."""
        # A redelivery is noted as a total: spans would merge several into one.
        again = False
        for message in messages:
            if message.attempts:
                self._held[message.number] = (message.number, min(message.attempts + 1, MAX_ATTEMPTS), 0)
                again = True
        if again:
            messages = [message for message in messages if not message.attempts]
        self._taken += runs_of(messages)
        self._note()

    def note_held(self, message: Message, due: int) -> None:
        """Notes that a message is held back until `due` (wall clock, ns); 0 if it is not."""
        self._held[message.number] = (message.number, message.attempts, due)
        self._note()

    def _note(self) -> None:
        if not self._noted:
            self._noted = True
            self._states.note(self)

    def notes(self, encoder: Encoder, total: bool) -> list[bytes]:
        """Returns the notes as records; if `total`, each has all that is known of a message."""
        records = []
        if total:
            numbers = chain.from_iterable(starmap(range, self._taken))
            records += encoder.held(self.index, [(number, 1, 0) for number in numbers])
        elif self._taken:
            records.append(encoder.spans(TAKEN, self.index, self._taken))
        if self._held:
            records += encoder.held(self.index, [*self._held.values()])
        if self._finished:
            records.append(encoder.spans(FINISHED, self.index, self._finished))
        return records

    def forget_notes(self) -> None:
        """Drops the notes: they were written, or do not matter any more."""
        self._noted = False
        self._taken.clear()
        self._held.clear()
        self._finished.clear()

    @property
    def held_count(self) -> int:
        """About how many messages `held` has to copy."""
        return len(self.attempts) + len(self.deferred)

    def held(self) -> Iterator[Held]:
        """Yields what is known of all messages when this is called, in pieces of MAX_HELD."""
        wall = time_ns() - monotonic_ns()
        attempts = self.attempts.copy()
        held = deepcopy(self.deferred) if attempts else ()  # without attempts the due time is where the message is
        queue = self.queue
        in_memory, deferred = [*queue.memory, *queue.outside()], [*queue.deferred] if queue.deferred is not None else []

        def known() -> Iterator[Held]:
            for piece in _pieces(held):
                yield [(n, attempts.pop(n), wall + due) for due, n in piece if n in attempts]
            for rest in _pieces(attempts.items()):
                yield [(n, count, 0) for n, count in rest]

        return chain(  # of two entries of a message the later counts
            [[*self._held.values()]],
            known(),
            ([(each.number, each.attempts, 0) for each in piece if each.attempts] for piece in _pieces(in_memory)),
            ([(each.number, each.attempts, wall + each.deadline) for each in piece] for piece in _pieces(deferred)),
        )


def _pieces(items: Iterable[T]) -> Iterator[list[T]]:
    rest = iter(items)
    while piece := list(islice(rest, MAX_HELD)):
        yield piece


def runs_of(messages: list[Message]) -> list[tuple[int, int]]:
    """Returns the numbers of messages as runs: the first of each, and the one behind its last."""
    runs: list[tuple[int, int]] = []
    start = end = -1
    for message in messages:
        number = message.number
        if number != end:
            if end > start:
                runs.append((start, end))
            start = number
        end = number + 1
    if end > start:
        runs.append((start, end))
    return runs


class QueueStates:
    """Owns what is not yet written of the `queues`, by index, and the snapshot; `on_dirty()`: there is something to
    write."""

    def __init__(self, encoder: Encoder, next_index: int, open_files: OpenFiles, on_dirty: Callable[[], None]) -> None:
        self.queues: dict[int, QueueNotes] = {}
        self.snapshot: Snapshot | None = None  # of the next segment, until that has begun
        self._encoder = encoder
        self.next_index = next_index
        self._open_files = open_files
        self._on_dirty = on_dirty
        self.changes: list[bytes] = []  # records of queues that come, go, or are reset
        self.noted: dict[QueueNotes, None] = {}  # queues that have notes

    def add(self, queue: QueueNotes, index: int = -1) -> None:
        """Adds a queue that the replay knew as `index`, or a new one."""
        if index < 0:
            index = self.next_index
            self.next_index += 1
            self.changes += self._encoder.queue(index, queue.name, queue.finished)
            self._on_dirty()
        queue.index = index
        self.queues[index] = queue

    def reset(self, queue: QueueNotes) -> None:
        """Records that it has finished more than before, and all that was in flight or held back."""
        queue.forget_notes()
        self.changes += self._encoder.queue(queue.index, queue.name, queue.finished)
        self._on_dirty()

    def rewind(self, queue: QueueNotes, start: int, end: int) -> None:
        """Records that of the messages from `start` to `end`, it has finished no others than its notes finish."""
        self.changes.append(self._encoder.spans(REWOUND, queue.index, [(start, end)]))
        self._on_dirty()

    def remove(self, queue: QueueNotes) -> None:
        """Records that it is deleted."""
        if self.queues.pop(queue.index, None) is not None:
            self.drop_snapshot()
            queue.forget_notes()
            self.changes.append(self._encoder.number(DELETED, queue.index))
            self._on_dirty()

    def note(self, queue: QueueNotes) -> None:
        """Has the notes of `queue` written; to be called with the first."""
        self.noted[queue] = None
        self._on_dirty()

    def records(self, follow: "Snapshot | None") -> tuple[bytes, list[bytes]]:
        """Returns the records before and behind the messages of a write; they also follow a snapshot."""
        notes: list[bytes] = []
        for queue in self.noted:
            notes += queue.notes(self._encoder, follow is not None)
        if follow is not None:
            follow.notes += [*self.changes, *notes]
        return b"".join(self.changes), notes

    def forget_records(self) -> None:
        """Drops what `records` has returned: it is written."""
        for queue in self.noted:
            queue.forget_notes()
        self.noted.clear()
        self.changes = []

    def begin_snapshot(self, path: str) -> "Snapshot":
        """Begins the snapshot of all queues for the segment `path`, instead of one that is not complete."""
        self.drop_snapshot()
        self.snapshot = Snapshot(path, self.queues.values(), self._encoder, self._open_files)
        return self.snapshot

    def drop_snapshot(self) -> None:
        """Leaves no file of a snapshot that is not complete."""
        if self.snapshot is not None:
            self.snapshot.file.discard()
            self.snapshot = None


class Snapshot:
    """Owns the records of all `queues` for the segment `path`, and its file."""

    def __init__(self, path: str, queues: Iterable[QueueNotes], encoder: Encoder, files: OpenFiles) -> None:
        self.size = SNAPSHOT_HEAD_SIZE  # bytes of the file
        self.complete = False
        self._encoder = encoder
        self.file = AppendedFile(path, files)
        self._records: list[bytes] = []  # not yet written
        self._count = 0  # of records that are written
        self.notes: deque[bytes] = deque()  # QUEUE, FINISHED and HELD records of what has changed since it began
        self._left = 0  # of STEP
        self._pieces = self._make(list(queues))

    def _make(self, queues: list[QueueNotes]) -> Iterator[list[bytes]]:
        for queue in queues:
            if queue.held_count >= self._left:  # the copy gets a step of its own
                self._left = 0
                yield []
            self._left -= queue.held_count
            held = queue.held()
            yield self._encoder.queue(queue.index, queue.name, queue.finished)
            for entries in held:
                yield self._encoder.held(queue.index, entries)
        while self.notes:
            yield [self.notes.popleft()]

    def advance(self) -> bool:
        """Makes some of the records; True if that was the rest. StorageError: only `file.discard` may follow."""
        self._left = STEP
        for records in self._pieces:
            self._records += records
            self._left -= PIECE + sum(map(len, records))
            if self._left <= 0:
                self.size += self.file.write(self._records, self.size)
                self._count += len(self._records)
                self._records = []
                return False
        self.complete = True
        return True

    def finish(self, next_number: int, next_queue: int) -> tuple[AppendedFile, bytes]:
        """Gives the file its own name; returns it, and what completes it at `size`. Errors as `advance`."""
        self.file.write([self._encoder.snapshot_head(next_number, next_queue)], 0)
        self.file.finish()
        rest = [*self._records, *self.notes]
        return self.file, b"".join([*rest, self._encoder.number(COMPLETE, self._count + len(rest))])
