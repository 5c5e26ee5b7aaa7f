"""The log of a topic for readers by number: any number of them, each any range as often as it likes.

Nothing is consumed by reading. The *epoch*, a random name that the log gets when somebody first asks for it,
distinguishes it from another log: of a topic that was deleted and made again, or after the data directory was removed.
"""

from contextlib import suppress
from itertools import repeat

from gnsqd.hub.doorbell import Doorbell
from gnsqd.queues.history import History
from gnsqd.queues.journaled import backend_of
from gnsqd.queues.queue import Queue
from gnsqd.shared.errors import NSQError, StorageError
from gnsqd.shared.journal.records import cut_put, decode_put
from gnsqd.shared.journal.spans import Spans
from gnsqd.storage.journal.journal import Journal

MOST_QUESTIONS = 5000  # to queues, in one read: some ms


class Unreadable(NSQError):
    """Messages of a range cannot be read; the next one that can has the number `readable`."""

    def __init__(self, text: str, readable: int) -> None:
        super().__init__(text)
        self.readable = readable


class MessagesGone(Unreadable):
    """They are not kept any more."""


class MessagesDamaged(Unreadable):
    """They should be there."""


class LogRange:
    """The messages of one journal from number `first` up to, not including, `next`. Each method may raise
    StorageError."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._history = History(journal)

    @property
    def epoch(self) -> str:
        """The name of this log. May yield."""
        log = self._journal.log
        log.make_epoch()
        if not log.is_epoch_safe:
            self._journal.commit()
            log.is_epoch_safe = True
        return log.epoch.hex()

    @property
    def first(self) -> int:
        """The number from which on all messages are kept, by the retention or for a channel, except for damage."""
        # What a queue has not finished is kept, and it has finished nothing behind the ceiling.
        kept = min([self._journal.retention.begin, *(self._ceiling(finished) for finished in self._finished)])
        return max(kept, self._ceiling(self._journal.retention.absent), 1)

    @property
    def _finished(self) -> list[Spans]:
        return [queue.finished for queue in self._journal.states.queues.values()]

    def _ceiling(self, spans: Spans) -> int:
        lost = self._journal.log.lost
        return spans.without(lost).ceiling if lost else spans.ceiling

    def _next_kept(self, number: int) -> int:
        """Returns the number of the first message, from `number` on, that is kept."""
        retention = self._journal.retention
        retained = retention.absent.missing(max(number, retention.begin))
        return min([retained, *(finished.missing(number) for finished in self._finished)])

    @property
    def next(self) -> int:
        """The number behind the last message that survives what it is to survive."""
        log = self._journal.log
        if log.unwritten.first < log.next_number:
            with suppress(StorageError):  # a full disk: readers and `advance` make room
                self._journal.flush()
        return log.safe_number

    @property
    def size(self) -> int:
        """The bytes of the segments that have these messages, as far as they are written."""
        first = self.first
        return sum(segment.size for segment in self._journal.log.segments.all if segment.end > first)

    def position(self, text: str) -> int:
        """Returns the number that `text` is; or `first`, `next`, or as `History.position`. May yield."""
        if text.isdecimal() and len(text) < 16:  # an id has 16 digits
            return max(int(text), 1)
        return self.next if text == "next" else min(self._history.position(text, self.first), self.next)

    def published(self, number: int, end: int) -> int | None:
        """Returns what `History.published` does."""
        return self._history.published(number, end)

    def read(self, number: int, end: int, size: int, queue: Queue | None = None) -> tuple[list[bytes], int]:
        """Returns messages in a row from `number` on, which is less than `end` and that at most `next`, and the number
        behind them: payloads of PUT records of about `size` bytes, and at least one message. MessagesGone,
        MessagesDamaged. Never yields.

        With the `queue` of a channel, messages that are not kept any more since the channel has finished them are
        skipped: of a range of such messages, it returns none and `end`."""
        log = self._journal.log
        gaps = repeat(None, MOST_QUESTIONS // len(self._finished))  # each asks every queue

        def skip(number: int) -> int:
            return next((self._behind_finished(queue, number) for _ in gaps), number)

        payloads = log.segments.read_records(number, end, size, skip)
        if not payloads:
            if (behind := self._behind_finished(queue, number)) > number:
                return self.read(behind, end, size, queue) if behind < end else ([], end)
            if (kept := self._next_kept(number)) > number and number not in log.lost:
                raise MessagesGone(f"messages {number} to {kept - 1} are not kept any more", kept)
            readable = log.read(number, log.next_number)[0]
            raise MessagesDamaged(f"messages {number} to {readable - 1} can't be read", readable)
        payloads[0] = cut_put(payloads[0], number, end)
        payloads[-1] = cut_put(payloads[-1], number, end)
        first, count, _ = decode_put(payloads[-1])
        return payloads, first + count

    def _behind_finished(self, queue: Queue | None, number: int) -> int:
        """Returns the number behind the messages from `number` on that nothing keeps and the channel with this queue
        has finished."""
        if queue is None:
            return number
        kept = self._next_kept(number)
        lost = self._journal.log.lost.between(number, kept)  # a start finishes these in all channels
        return min(backend_of(queue).notes.finished.missing(number), lost.begin or kept)

    def wait(self, bell: Doorbell, timeout: float) -> None:
        """Returns when there may be more messages, the bell is rung, or after `timeout` seconds. Yields."""
        readers = self._journal.log.tail.readers
        readers.append(bell)
        try:
            bell.wait(timeout)
        finally:
            readers.remove(bell)

    @property
    def is_open(self) -> bool:
        """False once the topic is deleted or the daemon exits."""
        return not self._journal.closed

    def channel_position(self, queue: Queue) -> int:
        """Returns the number of the first message that a channel has not finished, or a topic not handed over."""
        return min(max(backend_of(queue).notes.finished.floor, 1), self._journal.log.next_number)

    def advance(self, queue: Queue, end: int) -> int:
        """Finishes the messages before number `end` in a channel as `History.advance`."""
        return self._history.advance(queue, end)
