"""A queue of messages, which a topic keeps for its channels, or a channel for its consumers.

Messages are in memory, at most mem-queue-size of them. The backend of the queue (`backend`) keeps the rest: a disk
queue (`disk`), a journal (`journal.backend`), or nothing. Reading alternates between memory and backend, as the select
of nsqd does.

A channel's queue also holds messages back until they are due (`deferred`). `ordering` lets the oldest come next.

Only `close` and some methods of the parts may yield.
"""

from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import chain, islice, repeat
from time import time_ns

from gnsqd.hub.cooperative import free
from gnsqd.log import Logger
from gnsqd.options import SECOND, Options
from gnsqd.queues.backend import Backend, Left, sort_key
from gnsqd.queues.deferred import Deferred
from gnsqd.queues.message import FRAME_SURPLUS, Message
from gnsqd.shared.errors import StorageError


class WeighedMemory(deque[Message]):
    """Messages, and their `size`: the bytes that they would take in a disk queue."""

    def __init__(self) -> None:
        super().__init__()
        self.size = 0

    def append(self, message: Message, /) -> None:
        super().append(self._weighed(message, 1))

    def extend(self, messages: Iterable[Message], /) -> None:
        super().extend(self._weighed(message, 1) for message in messages)

    def extendleft(self, messages: Iterable[Message], /) -> None:
        super().extendleft(self._weighed(message, 1) for message in messages)

    def pop(self) -> Message:  # type: ignore[override]
        return self._weighed(super().pop(), -1)

    def popleft(self) -> Message:
        return self._weighed(super().popleft(), -1)

    def _weighed(self, message: Message, sign: int) -> Message:
        self.size += sign * (len(message.frame) - FRAME_SURPLUS)
        return message

    def clear(self) -> None:
        super().clear()
        self.size = 0


class Queue:
    """The queue `name`: `topic`, or `topic:channel`, which has `deferred` messages.

    A channel sets the callables: `outside()` returns its messages in flight and dead letters, `on_refused()` is called
    when the backend begins to refuse messages, `on_more(count, again)` when `count` messages came that are not from the
    channel; with `again`, it had them before."""

    def __init__(
        self, name: str, options: Options, log: Logger, backend: Backend, deferred: Deferred | None = None
    ) -> None:
        self.name = name
        self.label = "CHANNEL(%s)" if ":" in name else "TOPIC(%s)"  # of log lines, where JSON has the name as a field
        self.use_memory(WeighedMemory() if options.max_topic_bytes else deque())
        self.capacity = options.mem_queue_size
        self.backend = backend
        self.backend_next = False  # `take` looks there first; false after it took messages from there
        self.blocked = False  # memory is over its bound because the backend refused messages
        self.closed = False
        self.dropped = self.rejected = 0
        self.log = log
        self.deferred = deferred
        self.passed_over = False  # `take` passed over messages, and there may be more; the owner resets it
        self.ttl = options.message_ttl  # ns since the publication: older messages are dropped; 0 if none are
        self.expired = 0  # messages that were too old
        self.ordered = False  # the oldest message comes next
        self.arranging: object | None = None  # a call of `ordering.arrange` that is at work: `take` returns nothing
        self.outside: Callable[[], list[Message]] = list
        self.on_refused: Callable[[], None] = lambda: None
        self.on_more: Callable[[int, bool], None] = lambda count, again: None

    def use_memory(self, memory: deque[Message]) -> None:
        """Lets `memory` be where messages are queued from now on."""
        self.memory = memory
        self._append = memory.append  # looked up once, not for each PUB

    def count(self) -> int:
        """Returns the number of queued messages, without deferred ones."""
        return len(self.memory) + self.backend.count

    @property
    def age(self) -> float:
        """The age of the next message in memory or in the backend, whichever is older, in s; 0 if there is none."""
        age = time_ns() - self.backend.timestamp() if self.backend.count else 0
        return max(age, self.memory[0].age if self.memory else 0, 0) / SECOND

    def has_room(self, count: int) -> bool:
        """True if `count` more messages fit into memory."""
        if self.ordered and self.backend.count:
            return False
        return count <= self.capacity - len(self.memory) and not self.blocked

    def put(self, messages: list[Message], takers: int = 0, keep: bool = False) -> None:
        """Queues messages. If the backend refuses some, the first `written` of the StorageError that is raised are
        queued nevertheless; with `keep`, all are: the others stay in memory, `blocked` until they are gone.

        `takers` is how many messages consumers could take now: an ephemeral queue has room for these."""
        memory, backend = self.memory, self.backend
        room = self.capacity - len(memory)
        if not backend.keeps:
            room = max(room, takers - len(memory))
        if room < 0 or (self.ordered and backend.count):
            room = 0  # the backend refuses messages, or what is in memory is to be older than what it has
        if len(messages) <= room:
            if len(messages) == 1:
                self._append(messages[0])
            else:
                memory.extend(messages)
        elif not backend.keeps:
            memory.extend(messages[:room])
            self.dropped += len(messages) - room
        else:
            memory.extend(messages[:room])
            try:
                backend.put(messages[room:])
            except StorageError as error:
                error.written += room
                if not keep:
                    raise
                memory.extend(messages[error.written :])
                text = f"{self.label}: failed to write message to backend - %s"
                self.log.error(text, self.name.rpartition(":")[2], error)
                if not self.blocked:
                    self.blocked = True
                    self.on_refused()
                return
        if self.blocked:
            self.blocked = len(memory) > self.capacity

    def put_again(self, messages: list[Message], takers: int = 0) -> None:
        """Queues messages that were delivered before, and keeps all. An ordered queue gives them before newer ones."""
        if not self.ordered:
            self.put(messages, takers, keep=True)
        elif messages:
            memory, again, key = self.memory, messages[:], sort_key(self.backend)
            last = max(map(key, messages))
            while memory and key(memory[0]) < last:
                again.append(memory.popleft())
            memory.extendleft(sorted(again, key=key, reverse=True))

    def retry(self) -> None:
        """Tries again to store the messages that the backend refused."""
        excess = [self.memory.pop() for _ in range(len(self.memory) - self.capacity)]
        if excess:
            self.put(excess[::-1], keep=True)
        else:
            self.blocked = False

    def release(self, now: int, limit: int, takers: int) -> int:
        """Queues deferred messages due at `now`: `limit` in memory, and as many others; returns their number."""
        deferred = self.deferred
        if deferred is None:
            return 0
        count = deferred.queue_stored(now, limit, self.ordered)
        due = others = deferred.take_due(now, limit)
        if due:
            if self.ordered:
                self.put_again([message for message in due if message.attempts], takers)
                others = [message for message in due if not message.attempts]
            self.put(others, takers, keep=True)
            deferred.released(due)
        return count + len(due)

    def take(self, limit: int, max_bytes: int) -> list[Message]:
        """Removes and returns the next messages: at most `limit`, together at most `max_bytes` except for a single
        larger one. Empty if nothing can be read now.

        A channel's queue holds back what is not due yet, and drops what is too old; it sets `passed_over` if there was
        any. `finish` follows when the channels of a topic have the messages, or consumers of a channel finished them.
        """
        memory, backend = self.memory, self.backend
        if self.arranging is not None:
            return []
        if self.ordered and memory and backend.count:
            self.backend_next = backend.front() < backend.order(memory[0])
            limit = 1
        if (self.backend_next or not memory) and backend.count:
            self.backend_next = False
            messages = backend.read(limit, max_bytes)
            if messages and self.deferred is not None:
                return self._deliverable(messages)
            if messages or not memory:
                return messages
        self.backend_next = True
        if not memory:
            return []
        # If those behind the first are larger, the surplus goes back.
        limit = min(limit, len(memory), max_bytes // len(memory[0].frame) + 1)
        if 1 < limit == len(memory):  # one message is faster to pop
            messages = list(memory)
            memory.clear()
        else:
            popleft = memory.popleft
            messages = [popleft() for _ in range(limit)]
        size = 0
        for position, message in enumerate(messages):
            if size >= max_bytes:
                memory.extendleft(messages[: position - 1 : -1])
                messages = messages[:position]
                break
            size += len(message.frame)
        return self._deliverable(messages) if self.ttl and self.deferred is not None else messages

    def _deliverable(self, messages: list[Message]) -> list[Message]:
        """Returns which of these messages consumers may have now: others are not due, or too old."""
        taken = messages
        early = [message for message in messages if message.deferred]
        if early:
            assert self.deferred is not None
            self.deferred.defer_read(early)
            messages = [message for message in messages if not message.deferred]
        if self.backend.unsettled:
            self.backend.finish(taken)
        if self.ttl:
            horizon = time_ns() - self.ttl
            expired = [message for message in messages if message.timestamp < horizon]
            if expired:
                self.finish(expired)
                self.expired += len(expired)
                messages = [message for message in messages if message.timestamp >= horizon]
        self.passed_over = len(messages) < len(taken)
        return messages

    def finish(self, messages: list[Message]) -> None:
        """Lets the backend forget messages that were taken."""
        backend = self.backend
        if backend.journaled or backend.unsettled:
            backend.finish(messages)

    def look(self, limit: int, max_bytes: int) -> list[tuple[Message, bool]]:
        """Returns the next messages of memory, then those of the backend, each with True if it is there: at most
        `limit`, together at most `max_bytes` except for a single larger one. They stay in the queue."""
        shown: list[tuple[Message, bool]] = []
        messages = chain(zip(self.memory, repeat(False)), zip(self.backend.messages(), repeat(True)))
        with suppress(StorageError):
            for message, is_stored in islice(messages, limit):
                max_bytes -= len(message.frame)
                if shown and max_bytes < 0:
                    break
                shown.append((message, is_stored))
        return shown

    def empty(self) -> None:
        """Drops all messages; raises StorageError if the backend cannot."""
        self.forget()
        self.backend.empty()

    def forget(self) -> None:
        """Drops the messages in memory and the deferred ones, but does not use the backend."""
        free(self.memory.pop, len(self.memory))
        self.use_memory(type(self.memory)())
        if self.deferred is not None:
            self.deferred.clear()
        self.blocked = False

    def delete(self) -> None:
        """Drops all messages, files included, and stops; errors as `empty`."""
        self.closed = True
        self.forget()
        self.backend.delete()

    def close(self) -> Left:
        """Stops, and keeps what the backend keeps. May yield."""
        self.closed = True
        if not self.backend.keeps or self.backend.journaled:
            return self.backend.close([])
        outside, deferred = self.outside(), [] if self.deferred is None else self.deferred.remaining()
        messages = [*self.memory, *outside, *deferred]
        if self.ordered:
            messages.sort(key=sort_key(self.backend))
        if messages:
            others = f" {len(outside)} in-flight {len(deferred)} deferred" if self.deferred is not None else ""
            text = f"{self.label}: flushing %d memory%s messages to backend"
            self.log.info(text, self.name.rpartition(":")[2], len(self.memory), others)
        return self.backend.close(messages)
