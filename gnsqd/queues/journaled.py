"""A queue whose store is the journal of the topic.

The journal has every message, those in memory too. So the store of a queue is only the numbers of the messages that
memory has no room for, as runs; they are read from the journal, where a run begins. The queue also notes for the
journal what its owner does with messages: taken, held back, finished (for a topic: handed over).
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain, islice, starmap
from sys import maxsize
from time import monotonic_ns, time_ns
from typing import TypeVar

from gevent.lock import Semaphore

from gnsqd.hub.cooperative import Turns
from gnsqd.log import Logger
from gnsqd.options import Options
from gnsqd.queues.message import MAX_ATTEMPTS, Message
from gnsqd.queues.queue import MAX_STEP, Queue
from gnsqd.queues.schedule import Schedule
from gnsqd.shared.errors import BrokerError, StorageError
from gnsqd.storage.journal.journal import Journal
from gnsqd.storage.journal.queue_states import Held, NotedQueue
from gnsqd.storage.journal.records import FINISHED, MAX_HELD, TAKEN, Encoder
from gnsqd.storage.journal.replay import ReplayedQueue
from gnsqd.storage.journal.spans import Spans

T = TypeVar("T")
FOREVER = float("inf")  # seconds
MAX_READS = 16  # of the journal in one step, where messages are scattered


class JournaledQueue(Queue):
    """One queue of a journal, the topic's own if `index` is 0."""

    def __init__(self, name: str, options: Options, log: Logger, journal: Journal) -> None:
        super().__init__(name, options, log)
        self.journal = journal
        self.index = 0
        self.finished = Spans()
        self._longest = options.longest_delay
        self._depth = 0
        self._runs: deque[tuple[int, int]] = deque()
        self._held = Schedule()  # monotonic ns
        self._attempts: dict[int, int] = {}
        self._frames: list[bytes] = []  # read ahead
        self._frames_at = 0  # number of the first
        self._frames_due = 0
        self._rewound_end = 0  # messages before this one may come earlier than they are due
        self._seen = (-1, 0)  # number and timestamp of a message, the last that was at the front
        self._rewinding = Semaphore(1)
        self.logs: list[Spans] = []  # for greenlets that need what is finished meanwhile
        self._noted = False
        self._finished_notes: list[tuple[int, int]] = []
        self._taken_notes: list[tuple[int, int]] = []
        self._held_notes: dict[int, tuple[int, int]] = {}  # attempts and due time; the last of each message

    # The store

    def stored(self) -> int:
        return self._depth

    def stored_size(self) -> int:
        return self._depth * self.journal.log.mean_size()

    def stored_since(self) -> int:
        start = self._runs[0][0]
        if start != self._seen[0]:
            with suppress(StorageError):  # the next read of the queue logs it
                if frames := self.journal.log.read(start, start + 1)[1]:
                    self._seen = (start, Message(frames[0], 0, 0).timestamp)
        return self._seen[1] if start == self._seen[0] else maxsize

    @property
    def disk_bytes(self) -> int:
        return 0 if self.index else self.journal.log.file_size

    def store(self, messages: list[Message]) -> None:
        for start, end in _runs_of(messages):
            self._append(start, end)
        for message in messages:
            if message.attempts:
                self._attempts[message.number] = message.attempts

    def put_spans(self, spans: Spans) -> None:
        for start, end in spans:
            self._append(start, end)

    def _append(self, start: int, end: int) -> None:
        self._depth += end - start
        if self._runs and self._runs[-1][1] == start:
            start = self._runs.pop()[0]
        self._runs.append((start, end))

    def read(self, limit: int, max_bytes: int) -> list[Message]:
        messages: list[Message] = []
        size = reads = 0
        runs = self._runs
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
            is_early = self._frames_due and (not self.index or start < self._rewound_end)
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
                message.attempts = self._attempts.pop(number, 0) if self._attempts else 0
                message.deferred = min(delay, self._longest) if delay > 0 else 0
                messages.append(message)
                number += 1
            self._depth -= number - start
            if number == end:
                runs.popleft()
            else:
                runs[0] = (number, end)
            if number == offset + len(frames):
                self._frames = []
        return messages

    def take(self, limit: int, max_bytes: int) -> list[Message]:
        messages = self.next(limit, max_bytes)
        if self._rewound_end:
            early = [message for message in messages if message.deferred]
            if early:
                self.defer(early)
                messages = [message for message in messages if not message.deferred]
        return messages

    def _read_ahead(self, start: int) -> bool:
        self._frames = []
        try:
            first, frames, due = self.journal.log.read(start, self.journal.log.next_number)
        except StorageError as error:
            self.log.error("JOURNAL(%s): %s", self.name, error)
            return False
        if first > start:
            end = min(first, self._runs[0][1])
            text = "JOURNAL(%s): %d messages from %d on can't be read and are lost"
            self.log.error(text, self.name, end - start, start)
            self._skip(end)
            self.note_finished_span(start, end)
            return False
        self._frames, self._frames_at, self._frames_due = frames, first, due
        return True

    def _skip(self, end: int) -> None:
        """The first run begins at `end` from now on."""
        start, run_end = self._runs[0]
        if end < run_end:
            self._runs[0] = (end, run_end)
        else:
            self._runs.popleft()
        self._depth -= end - start

    def stored_messages(self) -> Iterator[Message]:
        return self._in_journal([*self._runs])  # which others change where the caller yields

    def _in_journal(self, spans: Iterable[tuple[int, int]]) -> Iterator[Message]:
        """The messages with these numbers that can be read; StorageError."""
        for start, end in spans:
            while start < end:
                start, frames, _ = self.journal.log.read(start, end)
                for frame in frames:
                    message = Message(frame, self._attempts.get(start, 0), 0)
                    message.number = start
                    yield message
                    start += 1

    # Rewinding

    def rewindable(self, start: int, end: int) -> Spans:
        """Of the messages from `start` to `end`, all that the queue is done with and the journal has."""
        journal = self.journal
        done = self.finished.between(max(start, journal.retention.begin), min(end, journal.log.next_number))
        return done.without(journal.retention.absent) if journal.retention.absent else done

    def rewind(self, start: int, end: int, on_queued: Callable[[int], None]) -> int:
        """Queue what is `rewindable` before everything in the store, as if it had never been delivered.

        There may be a million messages, so they are looked at in pieces, with turns for others in between, and queued
        together at the end. What is finished meanwhile is not rewound."""
        with self._rewinding:
            finished = Spans()
            self.logs.append(finished)
            try:
                again, count = self._take_again(start, end)
            finally:
                self.logs.remove(finished)
            if again:
                on_queued(count)
                for spans in (finished, self.journal.retention.absent):
                    for span in spans.between(again.begin, again.ceiling):
                        self.note_finished_span(*span)
                self.journal.states.rewind(self, again.begin, again.ceiling)
                self.journal.flush()
            return count

    def begin_at(self, start: int, topic: "JournaledQueue") -> None:
        """As `rewind` to `start`, of a queue that the journal does not know yet, of a channel that has what its topic
        has handed over by the time when this returns. StorageError. May yield."""
        handed_over = Spans()
        self.finished = topic.finished.copy()
        topic.logs.append(handed_over)
        self.journal.retention.rewinds += 1  # until the journal knows what this queue needs
        try:
            again, _ = self._take_again(start, maxsize)
            self.finished.update(self.journal.retention.absent.between(again.begin, again.ceiling))
            self.journal.flush()
            runs, _ = self._sort_out(handed_over, Turns(FOREVER))
            self._runs.extend(runs)
        finally:
            self.journal.retention.rewinds -= 1
            topic.logs.remove(handed_over)

    def _take_again(self, start: int, end: int) -> tuple[Spans, int]:
        """Queue what is rewindable; what that was, and how many messages: none if the queue was emptied meanwhile.
        BrokerError("exiting"), StorageError. May yield, but not between its last look at other queues and its end."""
        # Messages have to be in segments, and that they were finished is written before that they are not.
        self.journal.flush()
        again = self.rewindable(start, end)
        held = self._held
        self.journal.retention.rewinds += 1
        try:
            runs, count = self._sort_out(again, Turns())
        finally:
            self.journal.retention.rewinds -= 1
        if self.closed:
            raise BrokerError("exiting")
        if self._held is not held:
            return Spans(), 0
        self.finished.remove(again.begin, again.ceiling)
        runs.extend(self._runs)
        self._runs = runs
        if self.ordered:
            self._sort_runs()
        return again, count

    def _sort_out(self, again: Spans, turns: Turns) -> tuple[deque[tuple[int, int]], int]:
        """Hold back which of these messages are not due, and add the others to the depth; runs of these, and how many
        all are. Yields in `turns`, as long as the queue is not emptied or deleted."""
        runs: deque[tuple[int, int]] = deque()
        held, depth, count = self._held, 0, 0
        for piece, numbers, times in self.journal.log.segments.pieces(again, time_ns()):
            if numbers:
                self._hold_until(times, numbers)
                piece = piece.without(Spans.of(numbers))
            runs.extend(piece)
            depth += piece.count()
            count += len(numbers)
            turns.give()
            if self._held is not held or self.closed:
                break
        else:
            self._depth += depth
            self._rewound_end = max(self._rewound_end, again.ceiling)
        return runs, count + depth

    def _hold_until(self, times: Sequence[int], numbers: Sequence[int]) -> None:
        """Hold messages back until these times (wall clock, ns)."""
        now, wall = monotonic_ns(), time_ns()
        self._held.extend([now + min(time - wall, self._longest) for time in times], numbers)

    # Held back

    @property
    def deferred_count(self) -> int:
        return len(self.deferred) + len(self._held)

    def hold(self, message: Message, due: int) -> None:
        """In memory, or, where that is full, as a number."""
        if len(self.deferred) >= self.capacity:
            self._held.push(due, message.number)
            if message.attempts:
                self._attempts[message.number] = message.attempts
        elif not self.deferred.push(message, due):
            self.finish([message])  # an older copy of it is there

    def defer_again(self, message: Message, delay: int) -> None:
        super().defer_again(message, delay)
        self.note_held(message, time_ns() + delay)

    def release(self, now: int, limit: int, takers: int) -> int:
        due = self._held.pop_due(now, limit)
        again = [number for number in due if number in self._attempts] if self.ordered else []
        for number in due:
            if number not in again:
                self._append(number, number + 1)
        self._runs.extendleft((number, number + 1) for number in sorted(again, reverse=True))
        self._depth += len(again)
        return len(due) + super().release(now, limit, takers)

    def cancel(self, due: int, message: Message) -> None:
        if self.deferred.get(message.id) is message:
            super().cancel(due, message)
        else:
            self._held.find(message.number, due, remove=True)
            self._attempts.pop(message.number, None)
            self.finish([message])

    def find_held(self, number: int, near: int) -> tuple[int, Message] | None:
        due = None if number in self.finished else self._held.find(number, near)
        message = None if due is None else self.read_held(number)
        return None if due is None or message is None else (due, message)

    @property
    def next_due(self) -> int:
        return min(self._held.first, self.deferred.first)

    def held_from(self, begin: int, limit: int) -> list[tuple[int, int]]:
        return [*islice(self._held.from_due(begin), limit)]

    def read_held(self, number: int) -> Message | None:
        return next(self._in_journal([(number, number + 1)]), None)

    def count_due(self, ends: list[int]) -> list[int]:
        in_memory = super().count_due(ends)  # a comprehension has no super() where it is compiled
        return [count + self._held.count_before(end) for count, end in zip(in_memory, ends, strict=True)]

    def _sort(self) -> bool:
        done = super()._sort()
        if done:
            self._sort_runs()
        return done

    def _sort_runs(self) -> None:
        self._runs = deque(sorted(self._runs))

    def held_again(self) -> Iterator[int]:
        held = Turns().over(self._held.copy()) if self._attempts else ()
        return chain(super().held_again(), (due for due, number in held if number in self._attempts))

    def held_messages(self) -> Iterator[Message]:
        """Copies of the messages that are held back as numbers, each with the time left as `deferred`; StorageError."""
        due = {number: due for due, number in self._held}
        unread = len(due)
        for message in self._in_journal(Spans.of(due)):
            message.deferred = max(due[message.number] - monotonic_ns(), 1)
            unread -= 1
            yield message
        if unread:
            self.log.error("JOURNAL(%s): %d deferred messages can't be read and are lost", self.name, unread)

    # Bounds

    def order(self, message: Message) -> int:
        return message.number

    def front(self) -> int:
        return self._runs[0][0] if self._runs else maxsize

    def drop_stored(self, count: int, size: int, before: int) -> tuple[int, int]:
        mean = self.journal.log.mean_size()
        number = self._drop_next(min(count, -(-size // mean)) if mean else count, before)
        return number, number * mean

    def _drop_next(self, limit: int, before: int = maxsize) -> int:
        """Drop at most `limit` messages of the first run, with numbers below `before`, above `front`; how many."""
        start, end = self._runs[0]
        end = min(end, start + limit, before)
        self._skip(end)
        if self._attempts:
            for number in range(start, end):
                self._attempts.pop(number, None)
        self._finish_dropped(start, end)
        return end - start

    def drop_stored_before(self, horizon: int) -> int:
        dropped = 0
        while self._runs and dropped < MAX_STEP:
            start, end = self._runs[0]
            if start == self._seen[0] and self._seen[1] >= horizon:
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
                    self._seen = (start + count, timestamp)
                    break
                count += 1
            if count:
                dropped += self._drop_next(count)
            if count < len(frames):
                break
        return dropped

    def lost(self, messages: list[Message]) -> None:
        for start, end in _runs_of(messages):
            self._finish_dropped(start, end)

    def _finish_dropped(self, start: int, end: int) -> None:
        """No channel needs the messages that a topic drops."""
        queues: list[NotedQueue] = [self] if self.index else list(self.journal.states.queues.values())
        for queue in queues:
            queue.note_finished_span(start, end)

    # Notes for the journal

    def finish(self, messages: list[Message]) -> None:
        for start, end in _runs_of(messages):
            self.note_finished_span(start, end)

    def note_finished_span(self, start: int, end: int) -> None:
        self.finished.add(start, end)
        for log in self.logs:
            log.add(start, end)
        notes = self._finished_notes
        if notes and notes[-1][1] == start:
            start = notes.pop()[0]
        notes.append((start, end))
        self._note()

    def taken(self, messages: list[Message], given: list[Message]) -> None:
        if len(given) < len(messages):
            numbers = {message.number for message in given}
            self.finish([message for message in messages if message.number not in numbers])
        # A redelivery is noted as a total: spans would merge several into one.
        again = False
        for message in given:
            if message.attempts:
                self._held_notes[message.number] = (min(message.attempts + 1, MAX_ATTEMPTS), 0)
                again = True
        if again:
            given = [message for message in given if not message.attempts]
        self._taken_notes += _runs_of(given)
        self._note()

    def note_held(self, message: Message, due: int) -> None:
        """It is held back until `due`, wall clock in ns."""
        self._held_notes[message.number] = (message.attempts, due)
        self._note()

    def _note(self) -> None:
        if not self._noted:
            self._noted = True
            self.journal.states.note(self)

    def notes(self, encoder: Encoder, total: bool) -> list[bytes]:
        records = []
        if total:
            numbers = chain.from_iterable(starmap(range, self._taken_notes))
            records += encoder.held(self.index, [(number, 1, 0) for number in numbers])
        elif self._taken_notes:
            records.append(encoder.spans(TAKEN, self.index, self._taken_notes))
        if self._held_notes:
            records += encoder.held(self.index, self._held_entries())
        if self._finished_notes:
            records.append(encoder.spans(FINISHED, self.index, self._finished_notes))
        return records

    def _held_entries(self) -> Held:
        return [(number, attempts, due) for number, (attempts, due) in self._held_notes.items()]

    def forget_notes(self) -> None:
        self._noted = False
        self._taken_notes.clear()
        self._held_notes.clear()
        self._finished_notes.clear()

    @property
    def held_count(self) -> int:
        return len(self._attempts) + len(self._held)

    def held(self) -> Iterator[Held]:
        wall = time_ns() - monotonic_ns()
        attempts = self._attempts.copy()
        held = self._held.copy() if attempts else ()  # without attempts the due time is where the message is
        in_memory, deferred = [*self.memory, *self.outside()], [*self.deferred]

        def known() -> Iterator[Held]:
            for piece in _pieces(held):
                yield [(n, attempts.pop(n), wall + due) for due, n in piece if n in attempts]
            for rest in _pieces(attempts.items()):
                yield [(n, count, 0) for n, count in rest]

        return chain(  # of two entries of a message the later counts
            [self._held_entries()],
            known(),
            ([(each.number, each.attempts, 0) for each in piece if each.attempts] for piece in _pieces(in_memory)),
            ([(each.number, each.attempts, wall + each.deadline) for each in piece] for piece in _pieces(deferred)),
        )

    # From the store

    def restore(self, state: ReplayedQueue, wanted: Spans, held: Sequence[int], due: Sequence[int]) -> None:
        """Queue the `wanted` messages of a replay; of these, hold some back until they are `due` (wall clock, ns)."""
        self.finished = state.finished
        self._attempts = {number: attempts for number, attempts in state.attempts.items() if attempts}
        self._hold_until(due, held)
        self.put_spans(wanted.without(Spans.of(held)))

    def receive(self, messages: list[Message]) -> None:
        """Queue messages that the journal has from a disk queue now."""
        if not self.index:
            self.put(messages)
            return
        ready = [message for message in messages if not message.deferred]
        self.defer([message for message in messages if message.deferred])
        self.put_all(ready)
        self.on_more(len(ready))

    def forget(self) -> None:
        """Drop all messages, but note nothing."""
        super().empty()
        self._runs.clear()
        self._held = Schedule()
        self._attempts.clear()
        self._frames = []
        self._depth = 0

    def empty(self) -> None:
        """A channel drops what its topic has handed over, a topic what it still has. StorageError: not written yet."""
        self.forget()
        if self.index:
            self.finished.update(self.journal.states.queues[0].finished)
            self.journal.states.reset(self)
        else:
            for start, end in self.finished.gaps(0, self.journal.log.next_number):
                self._finish_dropped(start, end)
        self.journal.flush()

    def delete(self) -> None:
        """The channel is gone; errors as `empty`."""
        self.closed = True
        self.forget()
        self.journal.states.remove(self)
        self.journal.flush()


def _pieces(items: Iterable[T]) -> Iterator[list[T]]:
    rest = iter(items)
    while piece := list(islice(rest, MAX_HELD)):
        yield piece


def _runs_of(messages: list[Message]) -> list[tuple[int, int]]:
    """Their numbers: the first of each run, and the one behind its last."""
    runs: list[tuple[int, int]] = []
    start = end = -1
    for message in messages:
        number = message.number
        if number == end:
            end += 1
        else:
            if end > start:
                runs.append((start, end))
            start = number
            end = number + 1
    if end > start:
        runs.append((start, end))
    return runs


def journal_messages(journal: Journal, messages: list[Message]) -> None:
    """Append them all, each to be held back for its `deferred` ns."""
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
