"""A queue of messages, which a topic keeps for its channels, or a channel for its consumers.

Messages are in memory, at most mem-queue-size of them. The rest is in the *store* of the queue, which a subclass adds:
a disk queue (`disk`) or a journal (`journaled`). Reading alternates between memory and store, as the select of nsqd
does. A channel's queue also holds messages back until they are due.

Only `rewind`, `wait_synced`, `close`, and what changes the order may yield.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from heapq import merge, nsmallest
from itertools import accumulate, chain, islice, repeat
from operator import itemgetter
from sys import maxsize
from time import monotonic_ns, time_ns
from typing import NamedTuple

from gnsqd.hub.cooperative import Turns, free
from gnsqd.log import Logger
from gnsqd.options import SECOND, Options
from gnsqd.queues.message import FRAME_SURPLUS, Message
from gnsqd.queues.schedule import MessageSchedule
from gnsqd.shared.errors import StorageError
from gnsqd.storage.journal.spans import Spans

MAX_STEP = 2048  # messages that one step drops
MAX_COPY = 16384  # messages that one step copies


class Left(NamedTuple):
    """What queues leave at their end: messages not written, queues not synced, and messages in journals."""

    lost: int = 0
    unsynced: int = 0
    journaled: int = 0

    @classmethod
    def sum(cls, parts: "Iterable[Left]") -> "Left":
        return cls(*map(sum, zip(Left(), *parts, strict=True)))


class WeighedMemory(deque[Message]):
    """Messages, and their `size`: the bytes that they would take in a disk queue."""

    def __init__(self) -> None:
        super().__init__()
        self.size = 0

    def extend(self, messages: Iterable[Message], /) -> None:
        super().extend(self._added(messages))

    def extendleft(self, messages: Iterable[Message], /) -> None:
        super().extendleft(self._added(messages))

    def _added(self, messages: Iterable[Message]) -> Iterator[Message]:
        for message in messages:
            self.size += len(message.frame) - FRAME_SURPLUS
            yield message

    def pop(self) -> Message:  # type: ignore[override]
        message = super().pop()
        self.size -= len(message.frame) - FRAME_SURPLUS
        return message

    def popleft(self) -> Message:
        message = super().popleft()
        self.size -= len(message.frame) - FRAME_SURPLUS
        return message

    def clear(self) -> None:
        super().clear()
        self.size = 0


class Deferred:
    """Messages that a channel holds back, by id and by due time (monotonic ns)."""

    __slots__ = ("_by_due", "_messages")

    def __init__(self) -> None:
        self._messages: dict[bytes, Message] = {}
        self._by_due = MessageSchedule()

    def __len__(self) -> int:
        return len(self._messages)

    def __iter__(self) -> Iterator[Message]:
        return iter(self._messages.values())

    def push(self, message: Message, due: int) -> bool:
        """Hold `message` back until `due`; False if its id is held back already, as it is the same message."""
        if self._messages.setdefault(message.id, message) is not message:
            return False
        message.deadline = due
        self._by_due.push(due, message)
        return True

    def get(self, id: bytes) -> Message | None:
        return self._messages.get(id)

    def pop(self, id: bytes) -> None:
        """Take out one message."""
        message = self._messages.pop(id)
        self._by_due.find(message, message.deadline, remove=True)

    @property
    def first(self) -> int:
        """No message is due earlier; maxsize if there is none."""
        return self._by_due.first

    def pop_due(self, now: int, limit: int) -> list[Message]:
        """Take out what is due at `now`, earliest first, at most `limit` messages."""
        due: list[Message] = self._by_due.pop_due(now, limit)
        for message in due:
            del self._messages[message.id]
        return due

    def clear(self) -> None:
        free(self._messages.popitem, len(self._messages))
        self._messages, self._by_due = {}, MessageSchedule()


class Queue:
    """The queue `name`: `topic` or `topic:channel`. This class has no store.

    The owner of a channel's queue sets the callables: `outside()` returns its messages in flight and dead letters,
    `on_refused()` is called when the store begins to refuse messages, and `on_more(count)` when messages were queued or
    held back that did not come from the owner; `count` of them are queued."""

    def __init__(self, name: str, options: Options, log: Logger) -> None:
        self.name = name
        topic, _, channel = name.partition(":")
        self.label = f"CHANNEL({channel})" if channel else f"TOPIC({topic})"
        self.memory: deque[Message] = WeighedMemory() if options.max_topic_bytes else deque()
        self.deferred = Deferred()
        self.blocked = False  # memory is over its bound because the store refused messages
        self.closed = False
        self.unsettled = 0  # messages that the store forgets with `finish`
        self.dropped = self.expired = self.rejected = 0
        self.ttl = options.message_ttl
        self.capacity = options.mem_queue_size
        self.log = log
        self.outside: Callable[[], list[Message]] = list
        self.on_refused: Callable[[], None] = lambda: None
        self.on_more: Callable[[int], None] = lambda count: None
        self._store_first = False
        self.ordered = False  # the oldest message comes next; `set_ordered` changes it
        self.arranging: object | None = None  # while `set_ordered` is at work
        self.resume_at = 0  # of an ordered queue, when the last of its delivered messages that are held back is due

    def count(self) -> int:
        """Queued messages, in memory and in the store, without messages that are held back."""
        return len(self.memory) + self.stored()

    @property
    def size(self) -> int:
        """Bytes of the queued messages; those in memory count if there is a bound for bytes."""
        return self.stored_size() + (self.memory.size if isinstance(self.memory, WeighedMemory) else 0)

    @property
    def age(self) -> float:
        """Of the next message in memory or in the store, whichever is older, in seconds; 0 if there is none."""
        age = time_ns() - self.stored_since() if self.stored() else 0
        return max(age, self.memory[0].age if self.memory else 0, 0) / SECOND

    @property
    def disk_bytes(self) -> int:
        """Bytes of the files of the queue, read messages included; of a journal for the topic's queue alone."""
        return 0

    @property
    def deferred_count(self) -> int:
        return len(self.deferred)

    def has_room(self, count: int) -> bool:
        """Whether `count` more messages fit into memory."""
        if self.ordered and self.stored():
            return False
        return count <= self.capacity - len(self.memory) and not self.blocked

    # In

    def put(self, messages: list[Message], takers: int = 0) -> None:
        """Queue messages; StorageError if the store refuses some: the first `error.written` are queued nevertheless.

        `takers` is how many messages could be taken at once: an ephemeral queue has room for these."""
        memory = self.memory
        room = self.capacity - len(memory)  # less than 0 while the store refuses messages
        if self.ordered and self.stored():
            room = 0  # so that what is in memory is older
        if len(messages) <= room or not messages:
            memory.extend(messages)
            return
        room = max(room, 0)
        memory.extend(messages[:room])
        try:
            self.store(messages[room:])
        except StorageError as error:
            error.written += room
            raise

    def put_all(self, messages: list[Message], takers: int = 0) -> None:
        """As `put`, but messages that the store refuses stay in memory, and it is `blocked` until they are gone."""
        try:
            self.put(messages, takers)
        except StorageError as error:
            self.memory.extend(messages[error.written :])
            self.log.error("%s: failed to write message to backend - %s", self.label, error)
            if not self.blocked:
                self.blocked = True
                self.on_refused()
        else:
            if self.blocked:
                self.blocked = len(self.memory) > self.capacity

    def put_again(self, messages: list[Message], takers: int = 0) -> None:
        """As `put_all`, of messages that were delivered before; in an ordered queue they come before newer ones."""
        if not self.ordered:
            self.put_all(messages, takers)
        elif messages:
            memory, again = self.memory, messages[:]
            last = max(map(self._age_key, messages))
            while memory and self._age_key(memory[0]) < last:
                again.append(memory.popleft())
            memory.extendleft(sorted(again, key=self._age_key, reverse=True))

    def _age_key(self, message: Message) -> tuple[int, bytes]:
        return self.order(message), message.id

    def retry(self) -> None:
        """Try again to store the messages that the store refused."""
        excess = [self.memory.pop() for _ in range(len(self.memory) - self.capacity)]
        if excess:
            self.put_all(excess[::-1])
        else:
            self.blocked = False

    # Out

    def next(self, limit: int, max_bytes: int) -> list[Message]:
        """Take the next messages: at most `limit`, together at most `max_bytes` except for a single larger one.

        [] if nothing can be read now. What came from the store may have to be held back first, for `deferred` ns. Call
        `finish` with the messages when other queues have them."""
        memory = self.memory
        if self.arranging is not None:
            return []
        if self.ordered and memory and self.stored():
            self._store_first = self.front() < self.order(memory[0])
            limit = 1
        if (self._store_first or not memory) and self.stored():
            self._store_first = False
            messages = self.read(limit, max_bytes)
            if messages or not memory:
                return messages
        self._store_first = True
        if not memory:
            return []
        # If those behind the first are larger, the surplus goes back.
        limit = min(limit, len(memory), max_bytes // len(memory[0].frame) + 1)
        if limit == len(memory):
            messages = list(memory)
            memory.clear()
        else:
            messages = [memory.popleft() for _ in range(limit)]
        size = 0
        for position, message in enumerate(messages):
            if size >= max_bytes:
                memory.extendleft(messages[: position - 1 : -1])
                return messages[:position]
            size += len(message.frame)
        return messages

    def from_memory(self) -> bool:
        """Whether `next` gave messages from memory the last time."""
        return self._store_first

    def take(self, limit: int, max_bytes: int) -> list[Message]:
        """As `next`, for consumers: messages that are not due yet are held back, the owner has the others."""
        return self.next(limit, max_bytes)

    def taken(self, messages: list[Message], given: list[Message]) -> None:
        """Of the `messages` just taken, those `given` are about to be delivered, and the others are gone."""

    def finish(self, messages: list[Message]) -> None:
        """The queue need not keep these messages any more."""

    # Held back

    def defer(self, messages: list[Message], stored: bool = False) -> None:
        """Hold each message back for its `deferred` ns; `stored`: a store had it, and forgets it when this returns."""
        now = monotonic_ns()
        for message in messages:
            self.hold(message, now + message.deferred)
            if self.ordered and message.attempts:
                self.resume_at = max(self.resume_at, now + message.deferred)

    def defer_again(self, message: Message, delay: int) -> None:
        """Hold back a message that was in flight, for `delay` ns."""
        due = monotonic_ns() + delay
        self.hold(message, due)
        if self.ordered:
            self.resume_at = max(self.resume_at, due)

    def hold(self, message: Message, due: int) -> None:
        self.deferred.push(message, due)

    def release(self, now: int, limit: int, takers: int) -> int:
        """Queue at most `limit` messages that are due at `now` (monotonic ns); how many."""
        due = self.deferred.pop_due(now, limit)
        for message in due:
            message.deferred = 0
        if due:
            others = due
            if self.ordered:
                self.put_again([message for message in due if message.attempts], takers)
                others = [message for message in due if not message.attempts]
            self.put_all(others, takers)
            self.released(due)
        return len(due)

    def released(self, messages: list[Message]) -> None:
        """The store need not know any more that these messages are held back."""

    def cancel(self, due: int, message: Message) -> None:
        """Drop a message that is held back until then, as just found."""
        self.deferred.pop(message.id)
        self.released([message])
        self.finish([message])

    def still_deferred(self) -> list[Message]:
        """The messages that are held back in memory, each with the time left as `deferred`."""
        now = monotonic_ns()
        for message in self.deferred:
            message.deferred = max(message.deadline - now, 1)
        return list(self.deferred)

    # In order

    def set_ordered(self, ordered: bool) -> None:
        """Whether the oldest message comes next, also before others that were queued or held back until now. May yield;
        until it returns, `next` gives nothing."""
        if not ordered:
            self.ordered, self.arranging, self.resume_at = False, None, 0
        elif not self.ordered:
            self._arrange(self._sort)

    def cancelled(self, due: int) -> None:
        """A message is not held back until `due` any more; in an ordered queue, others may have waited for it. Yields
        as `set_ordered`."""
        if self.ordered and due == self.resume_at:
            self._arrange(lambda: True)

    def _arrange(self, sort: Callable[[], bool]) -> None:
        """`sort`, then find out until when messages wait. A later call replaces one that is under way."""
        this = self.arranging = object()
        try:
            while not sort():
                if self.arranging is not this:
                    return
            self.ordered = True
            self.resume_at = 0
            resume_at = max(self.held_again(), default=0)
            if self.arranging is this:
                self.resume_at = max(self.resume_at, resume_at)
        finally:
            if self.arranging is this:
                self.arranging = None

    def _sort(self) -> bool:
        """Sort what is in memory, in steps. Meanwhile others may queue messages; False if they dropped some."""
        turns, this = Turns(), self.arranging
        memory = ordered = self.memory
        count, ends = len(memory), [*islice(memory, 1), *islice(reversed(memory), 1)]
        in_order: list[Message] = []  # which are nearly all, as a rule
        others: list[Message] = []
        last = (0, b"")
        for first in range(0, count, MAX_COPY):
            memory.rotate(-first)  # moves references only: 2,000,000 messages take 1 ms, and a copy of them 50 ms
            messages = [*islice(memory, min(count - first, MAX_COPY))]
            memory.rotate(first)
            for message in messages:
                key = self._age_key(message)
                if key >= last:
                    last = key
                    in_order.append(message)
                else:
                    others.append(message)
            turns.give()
        if others:
            runs = [in_order]
            for first in range(0, len(others), MAX_STEP):
                runs.append(sorted(others[first : first + MAX_STEP], key=self._age_key))
                turns.give()
            merged = merge(*runs, key=self._age_key)
            ordered = type(memory)()
            while len(ordered) < count:
                ordered.extend(islice(merged, MAX_STEP))
                turns.give()
        while in_order:
            del in_order[-MAX_STEP:]
            turns.give()
        if self.arranging is not this or self.memory is not memory or len(memory) < count:
            return False
        if count and ends != [memory[0], memory[count - 1]]:
            return False
        later = [memory.pop() for _ in range(len(memory) - count)][::-1]
        self.memory = ordered
        self.ordered = True
        ordered.extend([message for message in later if not message.attempts])
        self.put_again([message for message in later if message.attempts])
        return True

    def held_again(self) -> Iterator[int]:
        """When the messages that were delivered before and are held back are due (monotonic ns). Yields."""
        return (message.deadline for message in Turns().over([*self.deferred]) if message.attempts)

    # Delivered again

    def rewindable(self, start: int, end: int) -> Spans:
        """Of the messages with numbers from `start` to `end`, all that can be delivered again."""
        return Spans()

    def rewind(self, start: int, end: int, on_queued: Callable[[int], None]) -> int:
        """Queue these once more; how many. `on_queued` is called with that number once they are queued. BrokerError
        ("exiting"), or StorageError: not written yet. May yield."""
        return 0

    # Bounds

    def drop_oldest(self, count: int, size: int = maxsize) -> int:
        """Drop the oldest messages: `count`, or fewer if these have `size` bytes; how many."""
        if self.arranging is not None:
            return 0
        memory = self.memory
        gone: list[Message] = []
        dropped = freed = 0
        front = self.front()
        while dropped < count and freed < size:
            if memory and self.order(memory[0]) <= front:
                message = memory.popleft()
                gone.append(message)
                dropped += 1
                freed += len(message.frame) - FRAME_SURPLUS
            elif front == maxsize:
                break
            else:
                before = self.order(memory[0]) if memory else maxsize
                number, bytes = self.drop_stored(count - dropped, size - freed, before)
                if not number:
                    break
                dropped += number
                freed += bytes
                front = self.front()
        self.lost(gone)
        self.dropped += dropped
        return dropped

    def fresh(self, messages: list[Message]) -> list[Message]:
        """The messages that are not too old; the others count as expired."""
        if not self.ttl:
            return messages
        horizon = time_ns() - self.ttl
        fresh = [message for message in messages if message.timestamp >= horizon]
        self.expired += len(messages) - len(fresh)
        return fresh

    def drop_expired(self) -> bool:
        """Drop some messages that are too old, from the front of memory and store; whether there were any."""
        if not self.ttl or self.arranging is not None:
            return False
        horizon = time_ns() - self.ttl
        memory = self.memory
        gone: list[Message] = []
        while memory and len(gone) < MAX_STEP and memory[0].timestamp < horizon:
            gone.append(memory.popleft())
        self.lost(gone)
        number = len(gone) + self.drop_stored_before(horizon)
        self.expired += number
        return number > 0

    # Observers

    def look(self, limit: int, max_bytes: int) -> list[tuple[Message, bool]]:
        """The messages that would come next from memory, then those of the store, each with whether it is there: at
        most `limit`, together at most `max_bytes` except for a single larger one. All of them stay where they are."""
        found: list[tuple[Message, bool]] = []
        messages = chain(zip(self.memory, repeat(False)), zip(self.stored_messages(), repeat(True)))
        with suppress(StorageError):
            for message, is_stored in islice(messages, limit):
                max_bytes -= len(message.frame)
                if found and max_bytes < 0:
                    break
                found.append((message, is_stored))
        return found

    @property
    def next_due(self) -> int:
        """No message that is held back is due earlier (monotonic ns); maxsize if there is none."""
        return self.deferred.first

    def look_deferred(self, begin: int, limit: int, max_bytes: int) -> list[tuple[int, Message]]:
        """The messages that are held back and due first, at `begin` (monotonic ns) or later, each with that time, in
        order; the bounds are those of `look`. StorageError. May yield."""
        turns = Turns()
        in_memory = [(each.deadline, each) for each in turns.over([*self.deferred]) if each.deadline >= begin]
        first = nsmallest(limit, in_memory, key=itemgetter(0))
        found: list[tuple[int, Message]] = []
        for due, held in islice(merge(first, self.held_from(begin, limit), key=itemgetter(0)), limit):
            message = held if isinstance(held, Message) else self.read_held(held)
            if message is not None:
                max_bytes -= len(message.frame)
                if found and max_bytes < 0:
                    break
                found.append((due, message))
            turns.give()
        return found

    def find_deferred(self, id: bytes) -> tuple[int, Message] | None:
        """The message with this id, if it is held back in memory, and when it is due (monotonic ns)."""
        message = self.deferred.get(id)
        return None if message is None else (message.deadline, message)

    def find_held(self, number: int, near: int) -> tuple[int, Message] | None:
        """The same of a message that the store has as held back, probably until about the time `near`. StorageError."""
        return None

    def count_due(self, ends: list[int]) -> list[int]:
        """How many of the messages that are held back are due earlier than each of `ends` (monotonic ns), which rise.
        May yield."""
        counts = [0] * (len(ends) + 1)
        for message in Turns().over([*self.deferred]):
            counts[bisect_right(ends, message.deadline)] += 1
        return [*accumulate(counts)][:-1]

    # The end

    def empty(self) -> None:
        """Drop everything; StorageError if the store can't."""
        free(self.memory.pop, len(self.memory))
        self.memory = type(self.memory)()
        self.deferred.clear()
        self.blocked = False
        self.resume_at = 0

    def delete(self) -> None:
        """Drop everything, files included, and stop; errors as `empty`."""
        self.closed = True
        self.empty()

    def close(self) -> Left:
        """Stop, with everything kept that the store keeps. May yield."""
        self.closed = True
        return Left()

    # What a store adds

    def stored(self) -> int:
        """Messages in the store; after damage an estimate, but 0 exactly when nothing is left to read."""
        return 0

    def stored_size(self) -> int:
        """Bytes of these."""
        return 0

    def stored_since(self) -> int:
        """When the next of these was published (wall clock, ns); maxsize if that can't be read now."""
        return maxsize

    def store(self, messages: list[Message]) -> None:
        """Keep messages; errors as `put`."""

    def held_from(self, begin: int, limit: int) -> list[tuple[int, int]]:
        """Of the messages that the store has as held back: due time and number of the first `limit`, as above."""
        return []

    def read_held(self, number: int) -> Message | None:
        """One of these; None if it can't be read. StorageError."""
        return None

    def read(self, limit: int, max_bytes: int) -> list[Message]:
        """As `next`, of the store."""
        return []

    def stored_messages(self) -> Iterator[Message]:
        """All that the store has, as far as they can be read; StorageError. It keeps them."""
        return iter(())

    def order(self, message: Message) -> int:
        """What the messages of memory and store are compared by: the smaller is the older."""
        return message.timestamp

    def front(self) -> int:
        """The `order` of the message that comes next in the store, maxsize if there is none."""
        return maxsize

    def drop_stored(self, count: int, size: int, before: int) -> tuple[int, int]:
        """As `drop_oldest`, of the store: only messages `before` in order; how many, and their bytes."""
        return 0, 0

    def drop_stored_before(self, horizon: int) -> int:
        """Drop about MAX_STEP messages at the front of the store that are older than `horizon`; how many."""
        return 0

    def lost(self, messages: list[Message]) -> None:
        """Messages in memory were dropped."""

    def wait_synced(self) -> None:
        """Return once at most sync-every operations are not fsynced. May yield: call it between batches."""


class EphemeralQueue(Queue):
    """Of an ephemeral topic or channel: what memory has no room for is dropped."""

    def put(self, messages: list[Message], takers: int = 0) -> None:
        room = max(max(self.capacity, takers) - len(self.memory), 0)
        if room < len(messages):
            self.dropped += len(messages) - room
            messages = messages[:room]
        self.memory.extend(messages)
