"""The messages of a topic that can be delivered again: where among them a time or a message is, and how a channel gets
them once more.

They are searched by their times, which rise with their numbers, unless a clock was set back or disk queues were moved
to the journal: then the result is near the time asked for. A message with an id is found in any case.

A rewind queues messages that a channel has finished. There may be a million, so they are looked at in pieces, others
run in between, and the messages are queued together at the end. What is finished meanwhile is not rewound.

Readers by number consume nothing: any number of them reads each any range as often as it likes. The *epoch*, a random
name that a log gets when somebody first asks for it, distinguishes it from another log: of a topic that was deleted and
made again, or after the data directory was removed.
"""

from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from itertools import repeat
from sys import maxsize
from time import monotonic_ns, time_ns

from gnsqd.hub.cooperative import Turns
from gnsqd.hub.doorbell import Doorbell
from gnsqd.options import SECOND
from gnsqd.queues.journal.backend import JournalDeferred, backend_of, deferred_of
from gnsqd.queues.journal.journal import Journal
from gnsqd.queues.message import Message, time_of
from gnsqd.queues.moment import parse_moment
from gnsqd.queues.ordering import arrange
from gnsqd.queues.queue import Queue
from gnsqd.shared.errors import BrokerError, NotFound, NSQError, StorageError
from gnsqd.shared.journal.records import EPOCH, cut_put, decode_put
from gnsqd.shared.journal.spans import Spans

FOREVER = float("inf")  # seconds
_NEAR = SECOND // 10  # between when the id of a message was made and when it was published
MOST_QUESTIONS = 5000  # to queues, in one read: some ms


class TopicHistory:
    """The messages of one journal. Each method may raise StorageError."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.retention = journal.retention
        self._begin = journal.retention.begin

    @property
    def first(self) -> int:
        """The number from which on all messages are retained, as it was when this object was made."""
        return self._begin

    @property
    def count(self) -> int:
        """The number of messages, finished or not."""
        return max(self._journal.log.next_number - self.first - self.retention.absent.count(), 0)

    @property
    def size(self) -> int:
        """The bytes of the segments that have these, as far as they are written."""
        first = self.first
        return sum(segment.size for segment in self._journal.log.segments.all if segment.end > first)

    @property
    def oldest(self) -> int | None:
        """The time when the first of them was published (wall clock, ns); None if there is none."""
        return self.published(self.first)

    def position(self, text: str) -> int:
        """Returns the number of the message at `first`, at a time as for `parse_moment`, also after the last message,
        or with an id, among the messages from `first` on. Raises ValueError if `text` is none of these,
        NotFound. May yield."""
        begin = self.first
        if text == "first":
            return begin
        if len(text) == 16:
            with suppress(ValueError):
                return self._number_of(text, begin)
        return self._number_at(parse_moment(text), begin)

    def find_deferred(self, queue: Queue, id: str) -> tuple[int, Message] | None:
        """Returns when the message with this id is due, and it, if `queue` holds it back in the journal alone. Raises
        ValueError if this is not an id, NotFound. May yield."""
        number = self._number_of(id, self.retention.floor())
        near = self._journal.log.read(number, number + 1)[2] - time_ns() + monotonic_ns()
        deferred = queue.deferred
        return deferred.find_stored(number, near) if isinstance(deferred, JournalDeferred) else None

    def rewindable(self, queue: Queue, begin: int, end: int) -> tuple[int, int | None, int | None]:
        """Returns how many messages `rewind` would queue, and when the first and the last were published."""
        spans = self._done(queue, begin, end)
        if not spans:
            return 0, None, None
        return spans.count(), self.published(spans.begin), self.published(spans.ceiling - 1)

    def rewind(self, queue: Queue, begin: int, end: int) -> int:
        """Queues the messages from number `begin` to `end` that a channel has finished, before others in its backend,
        as if never delivered; returns their number. Raises BrokerError("exiting"), StorageError: not written yet.
        Yields."""
        if queue.closed:
            raise BrokerError("exiting")
        notes = backend_of(queue).notes
        with backend_of(queue).rewinding:
            finished = Spans()
            notes.logs.append(finished)
            try:
                again, count = self._take_again(queue, begin, end)
            finally:
                notes.logs.remove(finished)
            if again:
                queue.on_more(count, True)
                for spans in (finished, self.retention.absent):
                    for span in spans.between(again.begin, again.ceiling):
                        notes.note_finished_span(*span)
                self._journal.states.rewind(notes, again.begin, again.ceiling)
                self._journal.flush()
            return count

    def advance(self, queue: Queue, end: int) -> int:
        """Finishes the messages before number `end`, which the topic has handed over; returns how many of them the
        channel had queued or held back. Consumers keep the messages that they have, until the daemon starts again.
        Raises BrokerError("exiting"), StorageError: not written yet. May yield."""
        backend, deferred = backend_of(queue), deferred_of(queue)
        with backend.rewinding:
            if queue.closed:
                raise BrokerError("exiting")
            count = queue.count() + len(deferred)
            memory = [message for message in queue.memory if message.number >= end]
            if len(memory) < len(queue.memory):
                queue.use_memory(type(queue.memory)())
                queue.memory.extend(memory)
            backend.drop_before(end)
            deferred.drop_before(end)
            count -= queue.count() + len(deferred)
            backend.notes.note_finished_span(0, end)
            self._journal.flush()
        if queue.ordered and count:
            arrange(queue)
        return count

    def begin_at(self, queue: Queue, begin: int, topic: Queue) -> None:
        """Rewinds a queue new to the journal; then it has all that `topic` handed over. Raises StorageError. May
        yield."""
        journal, topic_notes = self._journal, backend_of(topic).notes
        handed_over = Spans()
        notes = backend_of(queue).notes
        notes.finished = topic_notes.finished.copy()
        topic_notes.logs.append(handed_over)
        self.retention.rewinds += 1  # until the journal knows what this queue needs
        try:
            again, _ = self._take_again(queue, begin, maxsize)
            notes.finished.update(self.retention.absent.between(again.begin, again.ceiling))
            journal.flush()
            runs, _, _ = self._sort_out(queue, handed_over, Turns(FOREVER))
            backend_of(queue).put_spans(runs)
        finally:
            self.retention.rewinds -= 1
            topic_notes.logs.remove(handed_over)

    def _done(self, queue: Queue, begin: int, end: int) -> Spans:
        """Returns the messages from `begin` to `end` that the queue is done with and the journal has."""
        journal = self._journal
        end = min(end, journal.log.next_number)
        done = backend_of(queue).notes.finished.between(max(begin, self.retention.begin), end)
        return done.without(self.retention.absent) if self.retention.absent else done

    def _take_again(self, queue: Queue, begin: int, end: int) -> tuple[Spans, int]:
        """Queues finished messages; returns them, and their number: none if the queue was emptied meanwhile. Errors as
        `rewind`. May yield, but not between its last look at other queues and its end."""
        backend, journal = backend_of(queue), self._journal
        # Messages have to be in segments, and that they were finished is written before that they are not.
        journal.flush()
        again = self._done(queue, begin, end)
        deferred = backend.notes.deferred
        self.retention.rewinds += 1
        try:
            runs, queued, count = self._sort_out(queue, again, Turns())
        finally:
            self.retention.rewinds -= 1
        if queue.closed:
            raise BrokerError("exiting")
        if backend.notes.deferred is not deferred:
            return Spans(), 0
        backend.notes.finished.remove(again.begin, again.ceiling)
        backend.put_first(runs, queued)
        if queue.ordered:
            backend.sort()
        return again, count

    def _sort_out(self, queue: Queue, again: Spans, turns: Turns) -> tuple[deque[tuple[int, int]], int, int]:
        """Holds back which of these messages are not due; returns runs of the others, their number, and the number of
        all. Yields in `turns`, as long as the queue is not emptied or deleted."""
        backend = backend_of(queue)
        runs: deque[tuple[int, int]] = deque()
        deferred, queued, count = backend.notes.deferred, 0, 0
        for piece, numbers, times in self._journal.log.segments.pieces(again, time_ns()):
            if numbers:
                deferred_of(queue).hold_until(times, numbers)
                piece = piece.without(Spans.of(numbers))
            runs.extend(piece)
            queued += piece.count()
            count += len(numbers)
            turns.give()
            if backend.notes.deferred is not deferred or queue.closed:
                break
        else:
            backend.rewound_end = max(backend.rewound_end, again.ceiling)
        return runs, queued, count + queued

    def published(self, number: int, end: int | None = None) -> int | None:
        """Returns when the first message from `number` on and before `end` was published (wall clock, ns), None if
        there is none."""
        log = self._journal.log
        return log.published(number, log.next_number if end is None else end)

    def _number_at(self, time: int, first: int) -> int:
        """Returns the number of the first message published then or later, from `first` on."""
        journal = self._journal
        end = journal.log.next_number
        while first < end:
            middle = (first + end) // 2
            number, frames, _ = journal.log.read(middle, end)
            if frames and Message(frames[0], 0, 0).timestamp < time:
                first = number + 1
            else:
                end = middle
        return first

    def _number_of(self, id: str, first: int) -> int:
        published = time_of(id)
        near = self._number_at(published - _NEAR, first)
        for begin, latest in ((near, published + _NEAR), (first, maxsize)):  # the clock may have been set back
            for number, message in self._messages(begin):
                if message.id == id.encode():
                    return number
                if message.timestamp > latest:
                    break
        raise NotFound("message")

    def _messages(self, number: int) -> Iterator[tuple[int, Message]]:
        turns = Turns()
        while True:
            number, frames, _ = self._journal.log.read(number, self._journal.log.next_number)
            if not frames:
                return
            for frame in frames:
                yield number, Message(frame, 0, 0)
                number += 1
            turns.give()


class UnreadableRange(NSQError):
    """Messages of a range cannot be read: they are not kept any more if `gone`, else they should be there. The next one
    that can has the number `readable`."""

    def __init__(self, text: str, readable: int, gone: bool) -> None:
        super().__init__(text)
        self.readable = readable
        self.gone = gone


class LogRange(TopicHistory):
    """The messages of one journal from number `first` up to, not including, `next`."""

    @property
    def epoch(self) -> str:
        """The name of this log. May yield."""
        log = self._journal.log
        if not log.epoch:
            log.take_name()
            log.declare(EPOCH, log.encoder.record(EPOCH, log.epoch))
        if not log.is_epoch_safe:
            self._journal.commit()
            log.is_epoch_safe = True
        return log.epoch.hex()

    @property
    def first(self) -> int:
        """The number from which on all messages are kept, by the retention or for a channel, except for damage."""
        # What a queue has not finished is kept, and it has finished nothing behind the ceiling.
        kept = min([self.retention.begin, *(self._ceiling(finished) for finished in self._finished)])
        return max(kept, self._ceiling(self.retention.absent), 1)

    @property
    def _finished(self) -> list[Spans]:
        return [queue.finished for queue in self._journal.states.queues.values()]

    def _ceiling(self, spans: Spans) -> int:
        lost = self._journal.log.lost
        return spans.without(lost).ceiling if lost else spans.ceiling

    def _next_kept(self, number: int) -> int:
        """Returns the number of the first message, from `number` on, that is kept."""
        retained = self.retention.absent.missing(max(number, self.retention.begin))
        return min([retained, *(finished.missing(number) for finished in self._finished)])

    @property
    def next(self) -> int:
        """The number behind the last message that survives what it is to survive."""
        log = self._journal.log
        if log.unwritten.first < log.next_number:
            with suppress(StorageError):  # a full disk: readers and `advance` make room
                self._journal.flush()
        return log.tail.safe_number

    def position(self, text: str) -> int:
        """Returns the number that `text` is; or that of `next`, or as `TopicHistory.position`. May yield."""
        if text.isdecimal() and len(text) < 16:  # an id has 16 digits
            return max(int(text), 1)
        return self.next if text == "next" else min(super().position(text), self.next)

    def read(self, number: int, end: int, size: int, queue: Queue | None = None) -> tuple[list[bytes], int]:
        """Returns messages in a row from `number` on, which is less than `end` and that at most `next`, and the number
        behind them: payloads of PUT records of about `size` bytes, and at least one message.
        Raises UnreadableRange. Never yields.

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
                raise UnreadableRange(f"messages {number} to {kept - 1} are not kept any more", kept, gone=True)
            readable = log.read(number, log.next_number)[0]
            raise UnreadableRange(f"messages {number} to {readable - 1} can't be read", readable, gone=False)
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
