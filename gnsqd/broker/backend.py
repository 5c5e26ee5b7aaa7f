"""Messages to and from a backend queue: as payloads, and with what payloads cannot say, the time they are held back."""

from collections.abc import Callable, Iterable
from time import time_ns

from gnsqd.broker.message import Message, message_from_payload
from gnsqd.errors import StorageError
from gnsqd.storage.backend_queue import BackendQueue
from gnsqd.storage.disk.due_times import DueTimes

MAX_FLUSH = 256  # messages in one write


def write_messages(messages: list[Message], backend: BackendQueue) -> None:
    """Append them; errors as `BackendQueue.put_many`."""
    written = len(messages)
    try:
        backend.put_many([message.payload() for message in messages])
    except StorageError as error:
        written = error.written
        raise
    finally:
        keep_delays(messages[:written], backend)


def keep_delays(messages: list[Message], backend: BackendQueue) -> None:
    """Note for how long to hold back messages that are in the queue, which its records cannot say."""
    due_times = backend.due_times
    if due_times is not None:
        for message in messages:
            if message.deferred:
                due_times.add(message.id, message.attempts, time_ns() + message.deferred)


def flush_messages(messages: list[Message], backend: BackendQueue, log_error: Callable[..., None]) -> int:
    """Append as many of them as can be, on the way out; how many are lost."""
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
        log_error("failed to write %d messages to backend %s - %s", count, backend.name, text)
    return sum(failures.values())


def read_messages(payloads: list[bytes], backend: BackendQueue, longest: int) -> list[Message]:
    """The messages of the payloads just read, to be held back for at most `longest` ns."""
    messages = [message_from_payload(payload) for payload in payloads]
    if backend.due_times:
        _set_delays(messages, backend.due_times, longest)
    return messages


def look(memory: Iterable[Message], backend: BackendQueue, limit: int, max_bytes: int) -> list[tuple[Message, bool]]:
    """The messages of a queue that would come next from memory, then those from disk, each with whether it is there:
    at most `limit`, together at most `max_bytes` but for a single larger one. All of them stay where they are."""
    found: list[tuple[Message, bool]] = []
    for message in memory:
        max_bytes -= len(message.frame)
        if found and (len(found) == limit or max_bytes < 0):
            return found
        found.append((message, False))
    if len(found) < limit and max_bytes > 0:
        found += [(message_from_payload(payload), True) for payload in backend.look(limit - len(found), max_bytes)]
    return found


def hold_back(messages: list[Message], backend: BackendQueue) -> None:
    """The messages, which were on disk, are deferred in memory from now on; a kill must not take them."""
    if backend.due_times is not None:
        now = time_ns()
        backend.due_times.hold([(message.payload(), now + message.deferred) for message in messages])


def release(messages: list[Message], backend: BackendQueue) -> None:
    """The messages are no longer deferred."""
    if backend.due_times is not None:
        backend.due_times.release([(message.id, message.attempts) for message in messages])


def _set_delays(messages: list[Message], due_times: DueTimes, longest: int) -> None:
    now = time_ns()
    for message in messages:
        due = due_times.pop(message.id, message.attempts)
        if due > now:
            message.deferred = min(due - now, longest)
