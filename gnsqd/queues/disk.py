"""A queue whose store is a disk queue, and how messages go to one and come from it.

The records of a disk queue do not contain how long a message is to be held back. `storage.disk.due_times` does.
"""

from collections.abc import Callable, Iterator
from sys import maxsize
from time import time_ns

from gnsqd.log import Logger
from gnsqd.options import Options
from gnsqd.queues.message import Message, message_from_payload
from gnsqd.queues.queue import MAX_STEP, Left, Queue
from gnsqd.shared.errors import StorageError
from gnsqd.shared.names import is_ephemeral
from gnsqd.storage.disk.diskqueue import HEAD_SIZE, DiskQueue

MAX_FLUSH = 256  # messages in one write
MAX_READ = 256 * 1024  # bytes that are read at a time to be dropped


class DiskBackedQueue(Queue):
    """`set_health(error)` is called after each write of messages that memory has no room for; None if it worked. Of an
    ephemeral topic there are no files after the end, since nobody would ever read them."""

    def __init__(
        self,
        name: str,
        options: Options,
        log: Logger,
        backend: DiskQueue,
        set_health: Callable[[Exception | None], None],
    ) -> None:
        super().__init__(name, options, log)
        self.backend = backend
        self._set_health = set_health
        self._temporary = is_ephemeral(name.partition(":")[0])
        self._longest = options.longest_delay

    def stored(self) -> int:
        return self.backend.depth

    def stored_size(self) -> int:
        return self.backend.size

    def stored_since(self) -> int:
        head = self.backend.peek_head()
        return _timestamp(head) if len(head) == HEAD_SIZE else maxsize

    @property
    def disk_bytes(self) -> int:
        return self.backend.file_size

    def store(self, messages: list[Message]) -> None:
        try:
            write_messages(messages, self.backend)
        except StorageError as error:
            self._set_health(error)
            raise
        self._set_health(None)

    def read(self, limit: int, max_bytes: int) -> list[Message]:
        payloads = self.backend.peek_many(limit, max_bytes)
        self.unsettled = len(payloads)
        return read_messages(payloads, self.backend, self._longest)

    def finish(self, messages: list[Message]) -> None:
        if self.unsettled:
            self.backend.advance(self.unsettled)
            self.unsettled = 0

    def take(self, limit: int, max_bytes: int) -> list[Message]:
        messages = self.next(limit, max_bytes)
        if self.unsettled:
            ready = [message for message in messages if not message.deferred]
            if len(ready) < len(messages):
                self.defer([message for message in messages if message.deferred], stored=True)
                messages = ready
            self.finish(messages)
        return messages

    # Held back

    def defer(self, messages: list[Message], stored: bool = False) -> None:
        if stored:  # a kill must not take them
            now = time_ns()
            self.backend.hold([(message.payload(), now + message.deferred) for message in messages])
        Queue.defer(self, messages)  # super() needs a frame, which compiled methods lack

    def released(self, messages: list[Message]) -> None:
        self.backend.due_times.release([(message.id, message.attempts) for message in messages])

    # Bounds

    def front(self) -> int:
        payloads = self.backend.peek_many(1, 1) if self.backend.depth else []
        return _timestamp(payloads[0]) if payloads else maxsize

    def drop_stored(self, count: int, size: int, before: int) -> tuple[int, int]:
        number = freed = 0
        payloads = self.backend.peek_many(count, MAX_READ)
        for payload in payloads:
            if freed >= size or _timestamp(payload) >= before:
                break
            number += 1
            freed += 4 + len(payload)
        if self.backend.due_times:
            read_messages(payloads[:number], self.backend, 0)  # forgets the delays
        self.backend.advance(number)
        return number, freed

    def drop_stored_before(self, horizon: int) -> int:
        return self.drop_stored(MAX_STEP, maxsize, horizon)[0] if self.front() < horizon else 0

    # Observers and the end

    def stored_messages(self) -> Iterator[Message]:
        return (message_from_payload(payload) for payloads in self.backend.read_all() for payload in payloads)

    def wait_synced(self) -> None:
        self.backend.wait_synced()

    def empty(self) -> None:
        super().empty()
        self.backend.empty()

    def delete(self) -> None:
        try:
            super().delete()
        finally:
            self.backend.delete()

    def close(self) -> Left:
        """Write memory, then messages in flight, then those held back to disk."""
        self.closed = True
        outside = self.outside()
        messages = [*self.memory, *outside, *self.still_deferred()]
        if self.ordered:
            messages.sort(key=self._age_key)
        if messages:
            others = f" {len(outside)} in-flight {len(self.deferred)} deferred" if ":" in self.name else ""
            self.log.info("%s: flushing %d memory%s messages to backend", self.label, len(self.memory), others)
        lost = flush_messages(messages, self.backend, self.log)
        if self._temporary:
            self.backend.delete()
            return Left(lost)
        return Left(lost, 0 if self.backend.close() else 1)


def write_messages(messages: list[Message], backend: DiskQueue) -> None:
    """Append messages to a disk queue; errors as `DiskQueue.put_many`."""
    written = len(messages)
    try:
        backend.put_many([message.payload() for message in messages])
    except StorageError as error:
        written = error.written
        raise
    finally:
        keep_delays(messages[:written], backend)


def keep_delays(messages: list[Message], backend: DiskQueue) -> None:
    """Note for how long messages that are in a disk queue are to be held back."""
    for message in messages:
        if message.deferred:
            backend.due_times.add(message.id, message.attempts, time_ns() + message.deferred)


def read_messages(payloads: list[bytes], backend: DiskQueue, longest: int) -> list[Message]:
    """The messages of the payloads just read, to be held back for at most `longest` ns."""
    messages = [message_from_payload(payload) for payload in payloads]
    if backend.due_times:
        now = time_ns()
        for message in messages:
            due = backend.due_times.pop(message.id, message.attempts)
            if due > now:
                message.deferred = min(due - now, longest)
    return messages


def flush_messages(messages: list[Message], backend: DiskQueue, log: Logger) -> int:
    """Append as many messages as the disk takes, before the end of a queue; how many are lost."""
    failures: dict[str, int] = {}
    position = 0
    size = MAX_FLUSH
    while position < len(messages):
        batch = messages[position : position + size]
        try:
            write_messages(batch, backend)
        except StorageError as error:
            failures[str(error)] = failures.get(str(error), 0) + 1
            position += error.written + 1  # a shorter one may still fit
            size = 1
        else:
            position += len(batch)
            size = MAX_FLUSH
    for text, count in failures.items():
        log.error("failed to write %d messages to backend %s - %s", count, backend.name, text)
    return sum(failures.values())


def _timestamp(payload: bytes) -> int:
    return int.from_bytes(payload[:8], "big", signed=True)
