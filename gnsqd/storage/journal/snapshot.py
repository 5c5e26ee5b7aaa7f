"""What all queues of a journal are done with and hold back, as records at the begin of a new segment.

A million messages may be held back, so the records are made and written in steps, and the state of each queue is copied
when its turn comes. What the queues note meanwhile follows them: each note has all that is known of a message, so the
last one counts. The file has another name until it is complete.
"""

from collections.abc import Iterable, Iterator
from typing import Protocol

from gnsqd.storage.journal.open_files import AppendedFile, OpenFiles
from gnsqd.storage.journal.records import SNAPSHOT_HEAD_SIZE, Encoder
from gnsqd.storage.journal.spans import Spans

STEP = 256 * 1024  # bytes of records that are made at once, about 5 ms,
PIECE = 1024  # where a look at up to 1,000 messages counts as that many, and a copy of what is known of one as a byte

Held = list[tuple[int, int, int]]  # (number, attempts, due or 0) of messages of which one of the latter is not 0


class Queue(Protocol):
    """What a journal asks of a topic or channel; `index` names it for good."""

    index: int
    name: str
    finished: Spans

    def note_finished_span(self, start: int, end: int) -> None:
        """It is done with these messages."""

    def notes(self, encoder: Encoder, total: bool) -> list[bytes]:
        """Records of what has happened since `forget_notes`; if `total`, each has all that is known of a message."""

    def forget_notes(self) -> None: ...

    @property
    def held_count(self) -> int:
        """How many messages `held` has to copy, about."""

    def held(self) -> Iterator[Held]:
        """All that it holds when this is called, in pieces of MAX_HELD."""


class Snapshot:
    """Of `queues`, for the segment `path`."""

    def __init__(self, path: str, queues: Iterable[Queue], encoder: Encoder, files: OpenFiles) -> None:
        self.path = path
        self.size = SNAPSHOT_HEAD_SIZE  # bytes of the file
        self.complete = False
        self._encoder = encoder
        self._file = AppendedFile(path, files)
        self._records: list[bytes] = []  # not yet written
        self._count = 0  # of the ones that are
        self._notes: list[bytes] = []
        self._left = 0  # of STEP
        self._pieces = self._make(list(queues))

    def _make(self, queues: list[Queue]) -> Iterator[list[bytes]]:
        for queue in queues:
            if queue.held_count >= self._left:  # the copy gets a step of its own
                self._left = 0
                yield []
            self._left -= queue.held_count
            held = queue.held()
            yield self._encoder.queue(queue.index, queue.name, queue.finished)
            for entries in held:
                yield self._encoder.held(queue.index, entries)
        while self._notes:
            notes, self._notes = self._notes, []
            for note in notes:
                yield [note]

    def advance(self) -> bool:
        """Make some of the records; whether that was the rest of them. StorageError: only `discard` may follow."""
        self._left = STEP
        for records in self._pieces:
            self._records += records
            self._left -= PIECE + sum(map(len, records))
            if self._left <= 0:
                self.size += self._file.write(self._records, self.size)
                self._count += len(self._records)
                self._records = []
                return False
        self.complete = True
        return True

    def follow(self, notes: Iterable[bytes]) -> None:
        """QUEUE, FINISHED and HELD records of what has changed since the last of these calls."""
        self._notes += notes

    def finish(self, next_number: int, next_queue: int) -> tuple[AppendedFile, bytes]:
        """The file, under its own name, and what is to be written at `size` to complete it. Errors as `advance`."""
        self._file.write([self._encoder.snapshot_head(next_number, next_queue)], 0)
        self._file.finish()
        rest = [*self._records, *self._notes]
        return self._file, b"".join([*rest, self._encoder.snapshot_end(self._count + len(rest))])

    def discard(self) -> None:
        """Leave no file."""
        self._file.discard()
