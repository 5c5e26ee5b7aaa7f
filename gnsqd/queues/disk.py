"""The backend of a queue that is a disk queue, and how messages go to one and come from it.

The records of a disk queue do not contain how long a message is to be held back. `storage.disk.due_times` does.
"""

from collections.abc import Callable, Iterator
from sys import maxsize
from time import time_ns

from gnsqd.log import Logger
from gnsqd.options import Options
from gnsqd.queues.backend import MAX_STEP, Backend, Left
from gnsqd.queues.deferred import Deferred
from gnsqd.queues.message import Message, message_from_payload
from gnsqd.shared.errors import StorageError
from gnsqd.shared.names import is_ephemeral
from gnsqd.storage.disk.diskqueue import HEAD_SIZE, DiskQueue

MAX_FLUSH = 256  # messages in one write
MAX_READ = 256 * 1024  # bytes that are read at a time to be dropped


class DiskBackend(Backend):
    """Owns a disk queue. That of an ephemeral topic leaves no files, since nobody would ever read them."""

    def __init__(
        self, disk_queue: DiskQueue, options: Options, log: Logger, set_health: Callable[[Exception | None], None]
    ) -> None:
        super().__init__(keeps=True)
        self.disk_queue = disk_queue
        self._log = log
        self._set_health = set_health
        self._temporary = is_ephemeral(disk_queue.name.partition(":")[0])
        self._longest = options.longest_delay
        self._changed()

    def _changed(self) -> None:
        self.count = self.disk_queue.depth
        self.unsynced = self.disk_queue.is_behind()

    @property
    def size(self) -> int:
        return self.disk_queue.size

    @property
    def disk_bytes(self) -> int:
        return self.disk_queue.file_size

    def put(self, messages: list[Message]) -> None:
        try:
            write_messages(messages, self.disk_queue)
        except StorageError as error:
            self._set_health(error)
            raise
        finally:
            self._changed()
        self._set_health(None)

    def read(self, limit: int, max_bytes: int) -> list[Message]:
        payloads = self.disk_queue.peek_many(limit, max_bytes)
        self.unsettled = len(payloads)
        self._changed()
        return read_messages(payloads, self.disk_queue, self._longest)

    def finish(self, messages: list[Message]) -> None:
        self.disk_queue.advance(self.unsettled)
        self.unsettled = 0
        self._changed()

    def messages(self) -> Iterator[Message]:
        return (message_from_payload(payload) for payloads in self.disk_queue.read_all() for payload in payloads)

    def timestamp(self) -> int:
        head = self.disk_queue.peek_head()
        return _timestamp(head) if len(head) == HEAD_SIZE else maxsize

    def front(self) -> int:
        if not self.count:
            return maxsize
        payloads = self.disk_queue.peek_many(1, 1)
        self._changed()
        return _timestamp(payloads[0]) if payloads else maxsize

    def drop(self, count: int, size: int, before: int) -> tuple[int, int]:
        number = freed = 0
        payloads = self.disk_queue.peek_many(count, MAX_READ)
        for payload in payloads:
            if freed >= size or _timestamp(payload) >= before:
                break
            number += 1
            freed += 4 + len(payload)
        if self.disk_queue.due_times:
            read_messages(payloads[:number], self.disk_queue, 0)  # forgets the delays
        self.disk_queue.advance(number)
        self._changed()
        return number, freed

    def drop_older(self, horizon: int) -> int:
        return self.drop(MAX_STEP, maxsize, horizon)[0] if self.front() < horizon else 0

    def wait_synced(self) -> None:
        self.disk_queue.wait_synced()
        self._changed()

    def empty(self) -> None:
        try:
            self.disk_queue.empty()
        finally:
            self._changed()

    def delete(self) -> None:
        try:
            self.empty()
        finally:
            self.disk_queue.delete()

    def close(self, messages: list[Message]) -> Left:
        lost = flush_messages(messages, self.disk_queue, self._log)
        if self._temporary:
            self.disk_queue.delete()
            return Left(lost)
        return Left(lost, 0 if self.disk_queue.close() else 1)


class DiskDeferred(Deferred):
    """Deferred messages; if they were on disk, they are also in the side file of the disk queue."""

    def __init__(self, disk_queue: DiskQueue) -> None:
        super().__init__()
        self._disk_queue = disk_queue

    def defer_read(self, messages: list[Message]) -> None:
        now = time_ns()
        self._disk_queue.hold([(message.payload(), now + message.deferred) for message in messages])
        self.defer(messages)

    def released(self, messages: list[Message]) -> None:
        self._disk_queue.due_times.release([(message.id, message.attempts) for message in messages])


def write_messages(messages: list[Message], disk_queue: DiskQueue) -> None:
    """Appends messages to a disk queue; errors as `DiskQueue.put_many`."""
    written = len(messages)
    try:
        disk_queue.put_many([message.payload() for message in messages])
    except StorageError as error:
        written = error.written
        raise
    finally:
        keep_delays(messages[:written], disk_queue)


def keep_delays(messages: list[Message], disk_queue: DiskQueue) -> None:
    """Notes for how long messages that are in a disk queue are to be held back."""
    for message in messages:
        if message.deferred:
            disk_queue.due_times.add(message.id, message.attempts, time_ns() + message.deferred)


def read_messages(payloads: list[bytes], disk_queue: DiskQueue, longest: int) -> list[Message]:
    """Returns the messages of payloads just read, each with the ns to hold it back as `deferred`, at most `longest`."""
    messages = [message_from_payload(payload) for payload in payloads]
    if disk_queue.due_times:
        now = time_ns()
        for message in messages:
            due = disk_queue.due_times.pop(message.id, message.attempts)
            if due > now:
                message.deferred = min(due - now, longest)
    return messages


def flush_messages(messages: list[Message], disk_queue: DiskQueue, log: Logger) -> int:
    """Appends as many messages as the disk takes, at the end of a queue; returns how many are lost."""
    failures: dict[str, int] = {}
    position = 0
    size = MAX_FLUSH
    while position < len(messages):
        batch = messages[position : position + size]
        try:
            write_messages(batch, disk_queue)
        except StorageError as error:
            failures[str(error)] = failures.get(str(error), 0) + 1
            position += error.written + 1  # a shorter one may still fit
            size = 1
        else:
            position += len(batch)
            size = MAX_FLUSH
    for text, count in failures.items():
        log.error("failed to write %d messages to backend %s - %s", count, disk_queue.name, text)
    return sum(failures.values())


def _timestamp(payload: bytes) -> int:
    return int.from_bytes(payload[:8], "big", signed=True)
