"""A queue whose messages are in the topic's journal: what a topic or channel has instead of a disk queue of its own.

It holds no messages but the numbers of those that memory has no room for, as runs, and reads on in the journal where
they begin. It also tells the journal what its owner does: `finished` (for a topic: handed over), taken, held back.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from itertools import chain, islice
from sys import maxsize
from time import monotonic_ns, time_ns

from gnsqd.broker.message import MAX_ATTEMPTS, Message
from gnsqd.errors import StorageError
from gnsqd.log import Logger
from gnsqd.storage.disk.due_times import DueTimes
from gnsqd.storage.journal.journal import Journal
from gnsqd.storage.journal.queue import Held, Queue
from gnsqd.storage.journal.records import FINISHED, MAX_HELD, TAKEN, Encoder
from gnsqd.storage.journal.replay import QueueState
from gnsqd.storage.journal.spans import Spans

MAX_READS = 16  # of the journal in one step, where messages are scattered
MAX_BYTES = 1 << 20  # of deferred messages that are read in one step


class JournaledQueue:
    """One queue of a journal, `name` as its disk queue would be called; `held_messages()` gives those of its owner, as
    `held` does."""

    due_times: DueTimes | None = None

    def __init__(self, journal: Journal, name: str, log: Logger, longest: int) -> None:
        self.journal = journal
        self.name = name
        self.index = 0
        self.depth = 0
        self.finished = Spans()
        self.held_messages: Callable[[], Iterator[Held]] = lambda: iter(())
        self._log = log
        self.longest = longest
        self._runs: deque[tuple[int, int]] = deque()
        self._deferred: list[tuple[int, int]] = []  # a heap of due time (monotonic ns) and number
        self._attempts: dict[int, int] = {}
        self._frames: list[bytes] = []  # read ahead
        self._frames_at = 0  # number of the first
        self._frames_due = 0
        self._seen = (-1, 0)  # number and timestamp of the message that drop_expired met last, and left
        self._noted = False
        self._finished_notes: list[int] = []
        self._taken_notes: list[int] = []
        self._held_notes: dict[int, tuple[int, int]] = {}  # attempts and due time; the last of each message

    # What waits

    def put(self, messages: list[Message]) -> None:
        """They wait here from now on."""
        start = end = -1
        runs = self._runs
        if runs:
            start, end = runs.pop()
        for message in messages:
            number = message.number
            if number == end:
                end += 1
            else:
                if end > start:
                    runs.append((start, end))
                start = number
                end = number + 1
            if message.attempts:
                self._attempts[number] = message.attempts
        if end > start:
            runs.append((start, end))
        self.depth += len(messages)

    def put_spans(self, spans: Spans) -> None:
        for start, end in spans:
            self._runs.append((start, end))
            self.depth += end - start

    def take(self, limit: int, max_bytes: int) -> list[Message]:
        """The next messages: at most `limit`, together at most `max_bytes` but for a single larger one. None if there
        is none or the journal can't be read."""
        messages: list[Message] = []
        size = reads = 0
        runs = self._runs
        while runs and len(messages) < limit:
            start, end = runs[0]
            if not 0 <= start - self._frames_at < len(self._frames):
                if messages and (reads == MAX_READS or start >= self.journal.first_unwritten):
                    break  # a write may tell of all queues, and these messages are in none just now
                reads += 1
                if not self._read_ahead(start):
                    if runs and runs[0][0] > start:
                        continue
                    break
            frames = self._frames
            offset = self._frames_at
            stop = min(end, offset + len(frames), start + limit - len(messages))
            delay = self._frames_due - time_ns() if self._frames_due else 0
            number = start
            while number < stop:
                frame = frames[number - offset]
                size += len(frame)
                if size > max_bytes and messages:
                    limit = 0
                    break
                message = Message(frame, 0, 0)
                message.number = number
                if self._attempts:
                    message.attempts = self._attempts.pop(number, 0)
                if delay > 0:
                    message.deferred = min(delay, self.longest)
                messages.append(message)
                number += 1
            self.depth -= number - start
            if number == end:
                runs.popleft()
            else:
                runs[0] = (number, end)
            if number == offset + len(frames):
                self._frames = []
        return messages

    def _read_ahead(self, start: int) -> bool:
        self._frames = []
        try:
            first, frames, due = self.journal.read(start, self.journal.next_number)
        except StorageError as error:
            self._log.error("JOURNAL(%s): %s", self.name, error)
            return False
        if first > start:
            self._lose(start, min(first, self._runs[0][1]))
            return False
        self._frames, self._frames_at, self._frames_due = frames, first, due
        return True

    def _lose(self, start: int, end: int) -> None:
        """What the first run begins with is damaged."""
        self._log.error("JOURNAL(%s): %d messages from %d on can't be read and are lost", self.name, end - start, start)
        self._skip(end)
        self.note_finished_span(start, end)

    def _skip(self, end: int) -> None:
        """The first run begins at `end` from now on."""
        start, run_end = self._runs[0]
        if end < run_end:
            self._runs[0] = (end, run_end)
        else:
            self._runs.popleft()
        self.depth -= end - start

    def look(self, limit: int, max_bytes: int) -> list[bytes]:
        """As `BackendQueue.look`."""
        found: list[bytes] = []
        for start, end in self._runs:
            while start < end:
                try:
                    start, frames, _ = self.journal.read(start, end)
                except StorageError:
                    return found
                for frame in frames:
                    max_bytes -= len(frame)
                    if found and (len(found) >= limit or max_bytes < 0):
                        return found
                    found.append(Message(frame, self._attempts.get(start, 0), 0).payload())
                    start += 1
        return found

    # What is held back

    @property
    def deferred_count(self) -> int:
        return len(self._deferred)

    def defer(self, message: Message, due: int) -> None:
        """It waits here from `due` (monotonic ns) on."""
        heappush(self._deferred, (due, message.number))
        if message.attempts:
            self._attempts[message.number] = message.attempts

    def release(self, now: int, limit: int) -> int:
        """Let up to `limit` messages wait that are due at `now`; how many those are."""
        count = 0
        while self._deferred and self._deferred[0][0] <= now and count < limit:
            number = heappop(self._deferred)[1]
            self._runs.append((number, number + 1))
            count += 1
        self.depth += count
        return count

    def take_deferred(self, limit: int, now: int) -> list[Message]:
        """Up to `limit` messages that are held back, each for how long after `now` (monotonic ns). None if there is
        none or the journal can't be read; to be called until then, with nothing else in between."""
        waiting, self._runs = self._runs, deque()
        depth, self.depth = self.depth, 0
        entries = self._deferred[-limit:]  # without its end a heap stays one
        del self._deferred[-limit:]
        due = {number: due for due, number in entries}
        self.put_spans(Spans.of(due))
        messages: list[Message] = []
        while batch := self.take(limit, MAX_BYTES):
            messages += batch
        for message in messages:
            message.deferred = max(due[message.number] - now, 1)
        if self._runs:
            for start, end in self._runs:
                self._deferred += [(due[number], number) for number in range(start, end)]
            heapify(self._deferred)
        self._runs, self.depth = waiting, depth
        return messages

    # What is dropped

    @property
    def size(self) -> int:
        return self.depth * self.journal.mean_size()

    @property
    def front(self) -> int:
        """The number of the message that comes next, behind all numbers if there is none."""
        return self._runs[0][0] if self._runs else maxsize

    def drop_next(self, limit: int, before: int = maxsize) -> int:
        """Drop some of what comes next: at most `limit` messages, with numbers below `before`, which is more than
        `front`. How many those were."""
        start, end = self._runs[0]
        end = min(end, start + limit, before)
        self._skip(end)
        if self._attempts:
            for number in range(start, end):
                self._attempts.pop(number, None)
        self._note_dropped_span(start, end)
        return end - start

    def drop_expired(self, horizon: int, limit: int) -> int:
        """Drop what comes next and is older than `horizon` (wall clock, ns), about `limit` messages at most; how many
        those were."""
        dropped = 0
        while self._runs and dropped < limit:
            start, end = self._runs[0]
            if start == self._seen[0] and self._seen[1] >= horizon:
                break
            try:
                first, frames, _ = self.journal.read(start, end)
            except StorageError:
                break  # whoever takes it will tell
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
                dropped += self.drop_next(count)
            if count < len(frames):
                break
        return dropped

    def note_dropped(self, messages: list[Message]) -> None:
        """They were in memory, and are gone for good."""
        bounds = _bounds(messages)
        for at in range(0, len(bounds), 2):
            self._note_dropped_span(bounds[at], bounds[at + 1])

    def _note_dropped_span(self, start: int, end: int) -> None:
        """What a topic drops no channel has to wait for."""
        queues: list[Queue] = list(self.journal.queues.values()) if self.index == 0 else [self]
        for queue in queues:
            queue.note_finished_span(start, end)

    # What the journal is told

    def note_finished(self, messages: list[Message]) -> None:
        bounds = _bounds(messages)
        for at in range(0, len(bounds), 2):
            self.note_finished_span(bounds[at], bounds[at + 1])

    def note_finished_span(self, start: int, end: int) -> None:
        self.finished.add(start, end)
        notes = self._finished_notes
        if notes and notes[-1] == start:
            notes[-1] = end
        else:
            notes.append(start)
            notes.append(end)
        if not self._noted:
            self._note()

    def note_taken(self, messages: list[Message]) -> None:
        """They are about to be delivered. A redelivery is noted as a total: spans would merge several into one."""
        again = False
        for message in messages:
            if message.attempts:
                self._held_notes[message.number] = (min(message.attempts + 1, MAX_ATTEMPTS), 0)
                again = True
        if again:
            messages = [message for message in messages if not message.attempts]
        self._taken_notes += _bounds(messages)
        if not self._noted:
            self._note()

    def note_held(self, message: Message, due: int) -> None:
        """It is held back until `due`, wall clock in ns."""
        self._held_notes[message.number] = (message.attempts, due)
        if not self._noted:
            self._note()

    def _note(self) -> None:
        self._noted = True
        self.journal.note(self)

    # For the journal

    def notes(self, encoder: Encoder, total: bool) -> list[bytes]:
        records = []
        if total:
            spans = zip(self._taken_notes[::2], self._taken_notes[1::2], strict=True)
            records += encoder.held(
                self.index, [(number, 1, 0) for start, end in spans for number in range(start, end)]
            )
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
        return len(self._attempts) + len(self._deferred)

    def held(self) -> Iterator[Held]:
        deferred = self._deferred[:] if self._attempts else []  # without attempts the due time is where the message is
        known = _known(self._attempts.copy(), deferred, time_ns() - monotonic_ns())
        return chain([self._held_entries()], known, self.held_messages())  # the later of two counts

    # From the owner of the queue

    def restore(self, state: QueueState, wanted: Spans, due: dict[int, int]) -> None:
        """What a replay found waits here, or is held back until `due` (wall clock, ns), by number."""
        self.finished = state.finished
        self._attempts = {number: attempts for number, attempts in state.attempts.items() if attempts}
        now, wall = monotonic_ns(), time_ns()
        self._deferred = [(now + min(due[number] - wall, self.longest), number) for number in due]
        heapify(self._deferred)
        self.put_spans(wanted.without(Spans.of(due)))

    def forget_waiting(self) -> None:
        self._runs.clear()
        self._deferred.clear()
        self._attempts.clear()
        self._frames = []
        self.depth = 0

    def empty(self) -> None:
        """A channel drops all that its topic has handed over; StorageError if that is not kept yet."""
        self.forget_waiting()
        self.finished.update(self.journal.queues[0].finished)
        self.journal.reset_queue(self)
        self.journal.flush()

    def empty_topic(self) -> None:
        """The topic drops all that it has not handed over; errors as `empty`."""
        self.forget_waiting()
        for start, end in self.finished.gaps(0, self.journal.next_number):
            for queue in list(self.journal.queues.values()):
                queue.note_finished_span(start, end)
        self.journal.flush()

    def delete(self) -> None:
        """The channel is gone; errors as `empty`."""
        self.forget_waiting()
        self.journal.remove_queue(self)

    # The rest of a BackendQueue: messages come and go by `put` and `take`

    def put_many(self, payloads: Sequence[bytes]) -> None:
        raise NotImplementedError

    def peek_many(self, limit: int, max_bytes: int) -> list[bytes]:
        raise NotImplementedError

    def advance(self, count: int) -> None:
        raise NotImplementedError

    def write_held(self) -> None:
        pass

    def wait_synced(self) -> None:
        pass

    def close(self) -> bool:
        return True


def held_messages(messages: list[Message], deferred: list[Message], wall: int) -> Iterator[Held]:
    """Those of a channel, `wall` (ns) being the wall clock less the monotonic one; `Queue.held`."""
    for at in range(0, len(messages), MAX_HELD):
        yield [(message.number, message.attempts, 0) for message in messages[at : at + MAX_HELD] if message.attempts]
    for at in range(0, len(deferred), MAX_HELD):
        yield [(message.number, message.attempts, wall + message.deadline) for message in deferred[at : at + MAX_HELD]]


def _known(attempts: dict[int, int], deferred: list[tuple[int, int]], wall: int) -> Iterator[Held]:
    """All `attempts`, with the due times that are known, `wall` after those of `deferred`."""
    for at in range(0, len(deferred), MAX_HELD):
        yield [
            (number, attempts.pop(number), wall + due)
            for due, number in deferred[at : at + MAX_HELD]
            if number in attempts
        ]
    rest = iter(attempts.items())
    while piece := [(number, count, 0) for number, count in islice(rest, MAX_HELD)]:
        yield piece


def _bounds(messages: list[Message]) -> list[int]:
    """Their numbers as runs: start, end, start, end."""
    bounds: list[int] = []
    start = end = -1
    for message in messages:
        number = message.number
        if number == end:
            end += 1
        else:
            if end > start:
                bounds.append(start)
                bounds.append(end)
            start = number
            end = number + 1
    if end > start:
        bounds.append(start)
        bounds.append(end)
    return bounds


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
        number = journal.put(frames, time_ns() + deferred if deferred else 0)
        for message in messages[first:end]:
            message.number = number
            number += 1
        first = end
