"""Records what the queues of a journal have done with messages, and all of it at the begin of each segment.

A queue, the topic's own (0) or a channel's, records what it has `finished` (for the topic: handed over), what was
taken, and what it holds back. Changes are collected, and written with the messages.

A million messages may be held back, so the records of a snapshot are made and written in steps, and the state of each
queue is copied when its turn comes. What the queues note meanwhile follows them: each note has all that is known of a
message, so the last one counts. The file has another name until it is complete.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from gnsqd.shared.journal.records import COMPLETE, DELETED, REWOUND, SNAPSHOT_HEAD_SIZE, Encoder
from gnsqd.shared.journal.spans import Spans
from gnsqd.storage.journal.open_files import AppendedFile, OpenFiles

STEP = 256 * 1024  # bytes of records that are made at once, about 5 ms,
PIECE = 1024  # where a look at up to 1,000 messages counts as that many, and a copy of what is known of one as a byte

Held = list[tuple[int, int, int]]  # (number, attempts, due or 0) of messages of which one of the latter is not 0


class NotedQueue(Protocol):
    """Has what a journal needs of a topic or channel; `index` names it for good. Notes are what happened since
    `forget_notes`; if `total`, each has all that is known of a message."""

    index: int
    name: str
    finished: Spans

    @property
    def held_count(self) -> int: ...  # messages, about, that `held` has to copy
    def held(self) -> Iterator[Held]: ...  # all that it holds when this is called, in pieces of MAX_HELD
    def note_finished_span(self, start: int, end: int) -> None: ...
    def notes(self, encoder: Encoder, total: bool) -> list[bytes]: ...
    def forget_notes(self) -> None: ...


class QueueStates:
    """Owns what is not yet written of the `queues`, by index, and the snapshot; `on_dirty()`: there is something to
    write."""

    def __init__(self, encoder: Encoder, next_index: int, open_files: OpenFiles, on_dirty: Callable[[], None]) -> None:
        self.queues: dict[int, NotedQueue] = {}
        self.snapshot: Snapshot | None = None  # of the next segment, until that has begun
        self._encoder = encoder
        self.next_index = next_index
        self._open_files = open_files
        self._on_dirty = on_dirty
        self.changes: list[bytes] = []  # records of queues that come, go, or are reset
        self.noted: dict[NotedQueue, None] = {}  # queues that have notes

    def add(self, queue: NotedQueue, index: int = -1) -> int:
        """Adds a queue that the replay knew as `index`, or a new one; returns its index."""
        if index < 0:
            index = self.next_index
            self.next_index += 1
            self.changes += self._encoder.queue(index, queue.name, queue.finished)
            self._on_dirty()
        self.queues[index] = queue
        return index

    def reset(self, queue: NotedQueue) -> None:
        """Records that it has finished more than before, and all that was in flight or held back."""
        queue.forget_notes()
        self.changes += self._encoder.queue(queue.index, queue.name, queue.finished)
        self._on_dirty()

    def rewind(self, queue: NotedQueue, start: int, end: int) -> None:
        """Records that of the messages from `start` to `end`, it has finished no others than its notes finish."""
        self.changes.append(self._encoder.spans(REWOUND, queue.index, [(start, end)]))
        self._on_dirty()

    def remove(self, queue: NotedQueue) -> None:
        """Records that it is deleted."""
        if self.queues.pop(queue.index, None) is not None:
            self.drop_snapshot()
            queue.forget_notes()
            self.changes.append(self._encoder.number(DELETED, queue.index))
            self._on_dirty()

    def note(self, queue: NotedQueue) -> None:
        """Has the notes of `queue` written; to be called with the first."""
        self.noted[queue] = None
        self._on_dirty()

    def records(self, follow: "Snapshot | None") -> tuple[bytes, list[bytes]]:
        """Returns the records before and behind the messages of a write; they also follow a snapshot."""
        notes = [record for queue in self.noted for record in queue.notes(self._encoder, follow is not None)]
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

    def __init__(self, path: str, queues: Iterable[NotedQueue], encoder: Encoder, files: OpenFiles) -> None:
        self.size = SNAPSHOT_HEAD_SIZE  # bytes of the file
        self.complete = False
        self._encoder = encoder
        self.file = AppendedFile(path, files)
        self._records: list[bytes] = []  # not yet written
        self._count = 0  # of records that are written
        self.notes: deque[bytes] = deque()  # QUEUE, FINISHED and HELD records of what has changed since it began
        self._left = 0  # of STEP
        self._pieces = self._make(list(queues))

    def _make(self, queues: list[NotedQueue]) -> Iterator[list[bytes]]:
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
