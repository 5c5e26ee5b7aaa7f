"""What goes from disk queues to a journal when a daemon starts, and back at its clean exit, for any nsqd to come.

A move to the journal goes batch by batch. The journal has a batch before the disk queue's read position passes it, and
that position is synced before the next batch is read: a kill leaves one batch in both at most, and the next start
goes on behind the position.
"""

from collections.abc import Callable
from time import monotonic_ns

from gnsqd.broker.backend import MAX_FLUSH, flush_messages, keep_delays, read_messages
from gnsqd.broker.journaled import JournaledQueue, journal_messages
from gnsqd.broker.message import Message
from gnsqd.errors import StorageError
from gnsqd.hub.cooperative import give_way
from gnsqd.log import Logger
from gnsqd.storage.backend_queue import BackendQueue
from gnsqd.storage.disk.diskqueue import DiskQueue

IMPORT_BATCH = 1000  # messages
MAX_BYTES = 1 << 20  # in one step


def convert(
    messages: list[Message], queue: JournaledQueue, make_backend: Callable[[str], BackendQueue], log: Logger
) -> int:
    """Write `messages` and what the queue has to a disk queue; 0 if it has them all, safe. May yield."""
    try:
        target = make_backend(queue.name)
    except StorageError as error:
        log.error("JOURNAL(%s): %s", queue.name, error)
        return len(messages) + queue.depth + queue.deferred_count
    lost = flush_messages(messages, target, log.error)
    while batch := queue.take(MAX_FLUSH, MAX_BYTES):
        lost += flush_messages(batch, target, log.error)
    while batch := queue.take_deferred(MAX_FLUSH, monotonic_ns()):
        lost += flush_messages(batch, target, log.error)
    if not target.close():
        lost += 1
    return lost + queue.depth + queue.deferred_count


def move(
    old: DiskQueue, queue: JournaledQueue, receive: Callable[[list[Message]], None], is_over: Callable[[], bool]
) -> None:
    """Move messages from a disk queue to the journal, wanted by `queue` alone if it is a channel's, until there are no
    more or `is_over()`; `receive` gets each batch. StorageError if the journal or the read position of the disk queue
    can't be written: the rest is in the disk queue then. Yields after each batch."""
    while not is_over() and (messages := _move_batch(old, queue)):
        receive(messages)
        if not old.depth:
            give_way()  # it is deleted next, without an fsync: there may be thousands of short queues
        elif not old.start_sync().get():
            raise StorageError(f"the read position of {old.name} can't be written")


def _move_batch(old: DiskQueue, queue: JournaledQueue) -> list[Message]:
    """What was moved; StorageError if the journal can't keep it: it is in the disk queue then. May yield."""
    journal = queue.journal
    payloads = old.peek_many(IMPORT_BATCH, MAX_BYTES)
    messages = read_messages(payloads, old, queue.longest)
    first = journal.next_number
    end = first + len(messages)
    try:
        if queue.index and messages:
            for other in list(journal.queues.values()):
                if other is not queue:
                    other.note_finished_span(first, end)
            journal.flush()  # before the messages themselves, so that no kill can leave them to all channels
        journal_messages(journal, messages)
        if queue.index:
            for message in messages:
                if message.attempts:
                    queue.note_held(message, 0)
        journal.commit()
    except StorageError:
        journal.next_number = max(journal.next_number, end)  # nobody else may get these numbers
        if messages:
            for each in list(journal.queues.values()):  # and nobody waits for them, whatever of them is written
                each.note_finished_span(first, end)
        keep_delays(messages, old)
        raise
    old.advance(len(payloads))
    return messages
