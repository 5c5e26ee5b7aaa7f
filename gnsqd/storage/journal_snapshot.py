"""What all queues of a journal are done with and hold back, as records.

A million messages may be held back, so the records are made in steps. What the queues note meanwhile follows them: each
note has all that is known of a message, so the last one counts.
"""

from collections.abc import Iterable, Iterator

from gnsqd.storage.journal_queue import Held, Queue
from gnsqd.storage.journal_records import Encoder
from gnsqd.storage.spans import Spans

STEP = 256 * 1024  # bytes of records that are made at once, with PIECE for each look at up to 1,000 messages
PIECE = 1024


class Snapshot:
    """Of `queues` as they are now."""

    def __init__(self, queues: Iterable[Queue], encoder: Encoder) -> None:
        self.complete = False
        self._encoder = encoder
        self._records: list[bytes] = []
        self._notes: list[bytes] = []
        self._pieces = self._encode([(queue, queue.finished.copy(), queue.held()) for queue in queues])

    def _encode(self, copies: list[tuple[Queue, Spans, Iterator[Held]]]) -> Iterator[list[bytes]]:
        for queue, finished, held in copies:
            yield self._encoder.queue(queue.index, queue.name, finished)
            for entries in held:
                yield self._encoder.held(queue.index, entries)

    def advance(self) -> bool:
        """Make some of the records; whether that was the rest of them."""
        size = 0
        for records in self._pieces:
            self._records += records
            size += PIECE + sum(map(len, records))
            if size >= STEP:
                return False
        self.complete = True
        return True

    def follow(self, notes: Iterable[bytes]) -> None:
        """QUEUE, FINISHED and HELD records of what has changed since the last of these calls."""
        self._notes += notes

    def encode(self, next_number: int, next_queue: int) -> bytes:
        return self._encoder.snapshot(next_number, next_queue, [*self._records, *self._notes])
