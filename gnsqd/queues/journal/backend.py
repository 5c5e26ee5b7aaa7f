"""The backend of a queue whose messages are in the journal of the topic.

The journal has every message, those in memory too. So the backend has only the numbers of the messages that memory has
no room for, as runs. What becomes of messages is noted in `states`.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from copy import deepcopy
from itertools import chain, islice, takewhile
from sys import maxsize
from time import monotonic_ns, time_ns

from gevent.lock import Semaphore

from gnsqd.hub.cooperative import Turns
from gnsqd.log import Logger
from gnsqd.options import Options
from gnsqd.queues.backend import MAX_STEP, Backend
from gnsqd.queues.deferred import Deferred
from gnsqd.queues.journal.journal import Journal
from gnsqd.queues.journal.states import QueueNotes, runs_of
from gnsqd.queues.message import Message
from gnsqd.queues.queue import Queue
from gnsqd.queues.schedule import Schedule
from gnsqd.shared.errors import StorageError
from gnsqd.shared.journal.spans import Spans

MAX_READS = 16  # of the journal in one step, where messages are scattered


class JournalBackend(Backend):
    """The messages of one queue that are in the journal and not in memory."""

    def __init__(self, options: Options, log: Logger, journal: Journal, notes: QueueNotes) -> None:
        super().__init__(keeps=True)
        self.journaled = True
        self.journal = journal
        self.notes = notes
        self.rewinding = Semaphore(1)  # held by a rewind
        self.rewound_end = 0  # messages before this one may come earlier than they are due
        self._log = log
        self._longest = options.longest_delay
        self._runs: deque[tuple[int, int]] = deque()
        self._frames: list[bytes] = []  # read ahead
        self._frames_at = 0  # number of the first
        self._frames_due = 0
        self._first_seen = (-1, 0)  # number and timestamp of the last message known to be the next

    @property
    def size(self) -> int:
        return self.count * self.journal.log.mean_size()

    @property
    def disk_bytes(self) -> int:
        return 0 if self.notes.index else self.journal.log.file_size

    def put(self, messages: list[Message]) -> None:
        self.put_spans(runs_of(messages))
        for message in messages:
            if message.attempts:
                self.notes.attempts[message.number] = message.attempts

    def put_spans(self, spans: Iterable[tuple[int, int]]) -> None:
        runs = self._runs
        for start, end in spans:
            self.count += end - start
            if runs and runs[-1][1] == start:
                start = runs.pop()[0]
            runs.append((start, end))

    def put_first(self, runs: deque[tuple[int, int]], count: int) -> None:
        """Queues the messages of these runs, `count` together, before all others."""
        if len(runs) < len(self._runs):
            self._runs.extendleft(reversed(runs))
        else:
            runs.extend(self._runs)
            self._runs = runs
        self.count += count

    def sort(self) -> None:
        self._runs = deque(sorted(self._runs))

    def read(self, limit: int, max_bytes: int) -> list[Message]:
        messages: list[Message] = []
        size = reads = 0
        runs = self._runs
        attempts = self.notes.attempts
        while runs and len(messages) < limit:
            start, end = runs[0]
            if not 0 <= start - self._frames_at < len(self._frames):
                if messages and reads == MAX_READS:
                    break
                reads += 1
                if not self._read_ahead(start):
                    if runs and runs[0][0] > start:
                        continue
                    break
            frames = self._frames
            offset = self._frames_at
            stop = min(end, offset + len(frames), start + limit - len(messages))
            # A channel has held back its messages as long as they ask for, except those of a rewind.
            is_early = self._frames_due and (not self.notes.index or start < self.rewound_end)
            delay = self._frames_due - time_ns() if is_early else 0
            number = start
            while number < stop:
                frame = frames[number - offset]
                size += len(frame)
                if size > max_bytes and messages:
                    limit = 0
                    break
                message = Message.__new__(Message)
                message.frame = frame
                message.number = number
                message.attempts = attempts.pop(number, 0) if attempts else 0
                message.deferred = min(delay, self._longest) if delay > 0 else 0
                messages.append(message)
                number += 1
            self.count -= number - start
            if number == end:
                runs.popleft()
            else:
                runs[0] = (number, end)
            if number == offset + len(frames):
                self._frames = []
        return messages

    def _read_ahead(self, start: int) -> bool:
        self._frames = []
        name = self.notes.name
        try:
            first, frames, due = self.journal.log.read(start, self.journal.log.next_number)
        except StorageError as error:
            self._log.error("JOURNAL(%s): %s", name, error)
            return False
        if first > start:
            end = min(first, self._runs[0][1])
            # Finished messages here are of consumers that requeued them after an `advance`.
            if lost := self.notes.finished.gaps(start, end):
                text = "JOURNAL(%s): %d messages from %d on can't be read and are lost"
                self._log.error(text, name, lost.count(), lost.begin)
                self._log.damages += 1
                self.journal.log.lost.update(lost)  # not finished, for readers by number
            self._skip(end)
            self.notes.note_finished_span(start, end)
            return False
        self._frames, self._frames_at, self._frames_due = frames, first, due
        return True

    def _skip(self, end: int) -> None:
        start, run_end = self._runs[0]
        if end < run_end:
            self._runs[0] = (end, run_end)
        else:
            self._runs.popleft()
        self.count -= end - start

    def finish(self, messages: list[Message]) -> None:
        for start, end in runs_of(messages):
            self.notes.note_finished_span(start, end)

    def delivered(self, given: list[Message], messages: list[Message]) -> None:
        if len(given) < len(messages):
            numbers = {message.number for message in given}
            self.finish([message for message in messages if message.number not in numbers])
        self.notes.note_taken(given)

    def messages(self) -> Iterator[Message]:
        return self.read_spans([*self._runs])  # which others change where the caller yields

    def read_spans(self, spans: Iterable[tuple[int, int]]) -> Iterator[Message]:
        """Yields the messages with these numbers that can be read; raises StorageError."""
        for start, end in spans:
            while start < end:
                start, frames, _ = self.journal.log.read(start, end)
                for frame in frames:
                    message = Message(frame, self.notes.attempts.get(start, 0), 0)
                    message.number = start
                    yield message
                    start += 1

    def timestamp(self) -> int:
        start = self.front()
        if start != self._first_seen[0]:
            with suppress(StorageError):  # the next read of the queue logs it
                if (published := self.journal.log.published(start, start + 1)) is not None:
                    self._first_seen = (start, published)
        return self._first_seen[1] if start == self._first_seen[0] else maxsize

    def order(self, message: Message) -> int:
        return message.number

    def front(self) -> int:
        return self._runs[0][0] if self._runs else maxsize

    def drop(self, count: int, size: int, before: int) -> tuple[int, int]:
        mean = self.journal.log.mean_size()
        number = self._drop_next(min(count, -(-size // mean)) if mean else count, before)
        return number, number * mean

    def _drop_next(self, limit: int, before: int = maxsize) -> int:
        """Drops at most `limit` messages of the first run, with numbers less than `before`; returns their number."""
        start, end = self._runs[0]
        end = min(end, start + limit, before)
        self._skip(end)
        if self.notes.attempts:
            for number in range(start, end):
                self.notes.attempts.pop(number, None)
        self._finish_dropped(start, end)
        return end - start

    def drop_before(self, end: int) -> None:
        """Drops the messages with numbers less than `end`, which the caller finishes."""
        runs = deque((max(start, end), stop) for start, stop in self._runs if stop > end)
        self.count = sum(stop - start for start, stop in runs)
        self._runs = runs
        attempts = self.notes.attempts
        for number in [number for number in attempts if number < end]:
            del attempts[number]

    def count_from(self, first: int) -> int:
        """Returns how many of the last messages of its queue, queued or held back, have numbers from `first` on."""
        queue = self.notes.queue
        deferred = [] if queue.deferred is None else deferred_of(queue).from_number(first)
        runs = takewhile(lambda run: run[1] > first, reversed(self._runs))
        stored = sum(end - max(start, first) for start, end in runs)
        return stored + len(deferred) + len(_last_from(first, reversed(queue.memory)))

    def take_back(self, first: int, end: int) -> None:
        """Drops the messages from `first` to `end`, which `count_from` has counted."""
        queue = self.notes.queue
        while queue.memory and queue.memory[-1].number >= first:
            queue.memory.pop()
        if queue.deferred is not None:
            for message in deferred_of(queue).from_number(first):
                queue.deferred.cancel(message.deadline, message)
        while self._runs and self._runs[-1][1] > first:
            start, behind = self._runs.pop()
            self.count -= behind - max(start, first)
            if start < first:
                self._runs.append((start, first))
        self._frames = []
        self._first_seen = (-1, 0)
        self.notes.forget_from(first, end)

    def drop_older(self, horizon: int) -> int:
        dropped = 0
        while self._runs and dropped < MAX_STEP:
            start, end = self._runs[0]
            if start == self._first_seen[0] and self._first_seen[1] >= horizon:
                break
            try:
                first, frames, _ = self.journal.log.read(start, end)
            except StorageError:
                break  # the next read of the queue logs it
            if first > start or not frames:
                break
            count = 0
            for frame in frames:
                timestamp = Message(frame, 0, 0).timestamp
                if timestamp >= horizon:
                    self._first_seen = (start + count, timestamp)
                    break
                count += 1
            if count:
                dropped += self._drop_next(count)
            if count < len(frames):
                break
        return dropped

    def discard(self, messages: list[Message]) -> None:
        for start, end in runs_of(messages):
            self._finish_dropped(start, end)

    def _finish_dropped(self, start: int, end: int) -> None:
        """Finishes messages that were dropped: if this is the topic's own queue, in all channels."""
        queues: list[QueueNotes] = [self.notes] if self.notes.index else list(self.journal.states.queues.values())
        for queue in queues:
            queue.note_finished_span(start, end)

    def empty(self) -> None:
        """Drops what the topic has handed over to a channel, or what it still has. StorageError: not written yet."""
        self._forget()
        if self.notes.index:
            self.notes.finished.update(self.journal.states.queues[0].finished)
            self.journal.states.reset(self.notes)
        else:
            for start, end in self.notes.finished.gaps(0, self.journal.log.next_number):
                self._finish_dropped(start, end)
        self.journal.flush()

    def delete(self) -> None:
        """Removes the channel from the journal, which is not written yet."""
        self._forget()
        self.journal.states.remove(self.notes)

    def _forget(self) -> None:
        self._runs.clear()
        self.notes.attempts.clear()
        self._frames = []
        self.count = 0


class JournalDeferred(Deferred):
    """Deferred messages, in memory as many as that has room for. The others are held back as numbers
    (`QueueNotes.deferred`), about 20 bytes each, and queued in the journal when they are due."""

    def __init__(self, options: Options, log: Logger, backend: JournalBackend) -> None:
        super().__init__()
        self._log = log
        self._backend = backend
        self._notes = backend.notes
        self._capacity = options.mem_queue_size
        self._longest = options.longest_delay

    def __len__(self) -> int:
        return len(self._messages) + len(self._notes.deferred)

    def hold(self, message: Message, due: int) -> bool:
        if len(self._messages) >= self._capacity:
            self._notes.deferred.push(due, message.number)
            if message.attempts:
                self._notes.attempts[message.number] = message.attempts
        elif not super().hold(message, due):
            self._backend.finish([message])  # an older copy of it is there
            return False
        return True

    def hold_until(self, times: Sequence[int], numbers: Sequence[int]) -> None:
        """Holds messages back as numbers until these times (wall clock, ns)."""
        now, wall = monotonic_ns(), time_ns()
        self._notes.deferred.extend([now + min(time - wall, self._longest) for time in times], numbers)

    def defer_again(self, message: Message, delay: int) -> None:
        super().defer_again(message, delay)
        self._notes.note_held(message, time_ns() + delay)

    @property
    def next_due(self) -> int:
        return min(self._notes.deferred.first, self._by_due.first)

    def queue_stored(self, now: int, limit: int, ordered: bool) -> int:
        due = self._notes.deferred.pop_due(now, limit)
        again = {number for number in due if number in self._notes.attempts} if ordered else set()
        self._backend.put_spans([(number, number + 1) for number in due if number not in again])
        self._backend.put_first(deque((number, number + 1) for number in sorted(again)), len(again))
        return len(due)

    def cancel(self, due: int, message: Message) -> None:
        if self._messages.get(message.id) is message:
            super().cancel(due, message)
        else:
            self._notes.deferred.find(message.number, due, remove=True)
            self._notes.attempts.pop(message.number, None)

    def clear(self) -> None:
        super().clear()
        self._notes.deferred = Schedule()

    def drop_before(self, end: int) -> None:
        """Drops the messages with numbers less than `end`, which the caller finishes."""
        kept = [message for message in self if message.number >= end]
        if len(kept) < len(self._messages):
            self._messages = {message.id: message for message in kept}
            self._by_due = Schedule([message.deadline for message in kept], kept, list)
        self._notes.deferred.drop_before(end)

    def from_number(self, first: int) -> list[Message]:
        """Returns the last messages that are held back in memory, as far as their numbers are `first` or more."""
        return _last_from(first, reversed(self._messages.values()))

    def find_stored(self, number: int, near: int) -> tuple[int, Message] | None:
        """Finds a message that only the backend has, probably held back until about `near`. Raises StorageError."""
        due = None if number in self._notes.finished else self._notes.deferred.find(number, near)
        message = None if due is None else self._read(number)
        return None if due is None or message is None else (due, message)

    def _stored_from(self, begin: int, limit: int) -> Iterable[tuple[int, Message | None]]:
        return ((due, self._read(number)) for due, number in [*islice(self._notes.deferred.from_due(begin), limit)])

    def _read(self, number: int) -> Message | None:
        return next(self._backend.read_spans([(number, number + 1)]), None)

    def count_before(self, end: int) -> int:
        return super().count_before(end) + self._notes.deferred.count_before(end)

    def redelivery_dues(self) -> Iterator[int]:
        attempts = self._notes.attempts
        stored = Turns().over(deepcopy(self._notes.deferred)) if attempts else ()
        return chain(super().redelivery_dues(), (due for due, number in stored if number in attempts))

    def stored_messages(self) -> Iterator[Message]:
        """Yields copies of the messages held back as numbers, each with the time left as `deferred`; raises
        StorageError. `QueueNotes.deferred` must not change meanwhile."""
        due = {number: due for due, number in self._notes.deferred}
        for message in self._backend.read_spans(Spans.of(due)):
            message.deferred = max(due.pop(message.number) - monotonic_ns(), 1)
            yield message
        if due:
            text = "JOURNAL(%s): %d deferred messages can't be read and are lost"
            self._log.error(text, self._notes.name, len(due))


def _last_from(first: int, messages: Iterable[Message]) -> list[Message]:
    return [*takewhile(lambda message: message.number >= first, messages)]


def journaled_queue(name: str, options: Options, log: Logger, journal: Journal) -> Queue:
    """Returns a queue whose messages are in the journal. The journal does not know it yet."""
    notes = QueueNotes(name, journal.states)
    backend = JournalBackend(options, log, journal, notes)
    queue = Queue(name, options, log, backend, JournalDeferred(options, log, backend) if ":" in name else None)
    notes.queue = queue
    return queue


def backend_of(queue: Queue) -> JournalBackend:
    assert isinstance(queue.backend, JournalBackend)
    return queue.backend


def deferred_of(queue: Queue) -> JournalDeferred:
    assert isinstance(queue.deferred, JournalDeferred)
    return queue.deferred


def journal_messages(journal: Journal, messages: list[Message]) -> None:
    """Appends all messages, each to be held back for its `deferred` ns, and sets their numbers."""
    first = 0
    while first < len(messages):
        deferred = messages[first].deferred
        end = first
        frames = []
        for message in messages[first:] if first else messages:
            if message.deferred != deferred:
                break
            frames.append(message.frame)
            end += 1
        number = journal.log.append(frames, time_ns() + deferred if deferred else 0)
        for message in messages[first:end]:
            message.number = number
            number += 1
        first = end
