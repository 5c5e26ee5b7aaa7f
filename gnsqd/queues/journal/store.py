"""A store that keeps each message of a topic once, in a journal, and how it exchanges messages with disk queues.

A start moves messages of disk queues to the journal before the topic serves, batch by batch: the journal has a batch
before the read position passes it, and that position is synced before the batch is queued. So a kill leaves one batch
in both at most; the next start passes over what the journal has of it. A topic or channel that nsqd.dat does not list
is moved when somebody makes it. Others publish and read meanwhile, and may delete it.

A daemon without durability converts: `close` writes everything to disk queues, for any nsqd, and removes the journal,
which first notes that the disk queues are copies, so that a start after a kill drops them.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import chain, islice
from time import monotonic

from gevent.lock import Semaphore

from gnsqd.hub.cooperative import Report, Turns, yield_turn
from gnsqd.log import Logger
from gnsqd.queues.backend import Left
from gnsqd.queues.disk import MAX_FLUSH, flush_messages, keep_delays, read_messages
from gnsqd.queues.journal.backend import backend_of, deferred_of, journal_messages, journaled_queue
from gnsqd.queues.journal.history import LogRange, TopicHistory
from gnsqd.queues.journal.journal import Journal
from gnsqd.queues.message import Message
from gnsqd.queues.queue import Queue
from gnsqd.queues.store import Context, Store
from gnsqd.shared.errors import StorageError
from gnsqd.shared.journal.spans import Spans
from gnsqd.shared.names import is_ephemeral
from gnsqd.storage.disk.diskqueue import DiskQueue
from gnsqd.storage.files import sync_directory

IMPORT_BATCH = 4000  # messages: some 10 ms, and an fsync of the read position
MAX_BYTES = 1 << 20  # in one step
PROGRESS_SECONDS = 5.0


class JournalStore(Store):
    """Owns the journal of one topic, and the queues in it. Each method may raise StorageError, and may yield, except
    `append`."""

    def __init__(self, topic: str, context: Context, journal: Journal) -> None:
        self._journal = journal
        self._restored: dict[str, Queue] = {}  # of channels that are not made yet
        self._are_copies = journal.replay.converting  # disk queues hold what the journal has
        self._unmoved: set[str] = set()  # disk queues with messages that are not in the journal
        self._moving = Semaphore(1)  # held while a disk queue is open
        self._ending = False
        super().__init__(topic, context)
        self.write_ahead = self
        replay = journal.replay
        for index, state, left in replay.unread():
            queue = self.new_queue(state.name) if index else self.queue
            backend = backend_of(queue)
            backend.notes.finished = state.finished
            backend.notes.attempts = {number: attempts for number, attempts in state.attempts.items() if attempts}
            if index:
                numbers, times = replay.due_of(state, left)
                left = left.without(Spans.of(numbers))
                deferred_of(queue).hold_until(times, numbers)
                self._restored[state.name.rpartition(":")[2]] = queue
            backend.put_spans(left)
            journal.states.add(backend.notes, index)

    def new_queue(self, name: str) -> Queue:
        if is_ephemeral(name):
            return super().new_queue(name)
        return journaled_queue(name, self.context.options, self.log, self._journal)

    @property
    def history(self) -> TopicHistory:
        return TopicHistory(self._journal)

    @property
    def range(self) -> LogRange:
        return LogRange(self._journal)

    @property
    def restored_channels(self) -> list[str]:
        """The channels that only the journal knows so far."""
        return list(self._restored)

    def channel_queue(self, channel: str, past: Queue | None = None) -> Queue:
        queue = self._restored.pop(channel, None)
        if queue is not None:
            return queue
        # A past queue is in the record of the new queue: a kill leaves it with its past, or not at all.
        queue = past or self.new_queue(f"{self.topic}:{channel}")
        if not is_ephemeral(channel):
            journal, backend, handed_over = self._journal, backend_of(queue), backend_of(self.queue).notes.finished
            if past is None:
                backend.notes.finished = handed_over.copy()
            if journal.replay.damaged:
                # It may have been there before: rather everything once more than something not at all.
                backend.notes.finished = journal.replay.present.gaps(0, journal.log.next_number)
                backend.put_spans(handed_over.without(backend.notes.finished))
            journal.states.add(backend.notes)
        return queue

    def past_queue(self, channel: str, begin: int) -> Queue | None:
        """Returns a queue, not yet in the journal, with what can be delivered again from the message with number
        `begin` on: for `channel_queue`, without a yield in between. None for an ephemeral channel."""
        if is_ephemeral(channel):
            return None
        queue = self.new_queue(f"{self.topic}:{channel}")
        self.history.begin_at(queue, begin, self.queue)
        return queue

    def adopt(self, queue: Queue) -> None:
        """Moves the messages of the disk queue of that name to the journal; also StartError, by `check_exit`. If that
        fails, the rest is there for the next start."""
        name = queue.name
        if not queue.backend.journaled or name not in self.context.data_files:
            return
        with self._moving:
            self._unmoved.add(name)
            if self._ending or queue.closed:
                return
            old: DiskQueue | None = None
            try:
                old = self.context.open_disk_queue(name)
                if self._are_copies and old.depth:
                    self.log.info("JOURNAL(%s): an exit was not finished, its disk queue is a copy", name)
                elif old.depth:
                    self._move(old, queue)
                if self._are_copies or not old.depth:
                    old.delete()
                    self._unmoved.remove(name)
            except StorageError as error:
                self.context.set_health(error)
                self.log.error("JOURNAL(%s): moving messages from the disk queue - %s", name, error)
            finally:
                if old is not None:
                    old.close()
            if old is not None and name in self._unmoved and old.depth and not queue.closed:
                self.log.error("JOURNAL(%s): %d messages stay in the disk queue until the next start", name, old.depth)

    def delete_channel(self, channel: str) -> None:
        """Writes that the channel is deleted, and removes its disk queue."""
        if is_ephemeral(channel):
            return
        self._journal.flush()
        name = f"{self.topic}:{channel}"
        with self._moving:
            if name in self._unmoved:
                self._delete_disk_queue(name)
                self._unmoved.remove(name)

    def start(self) -> None:
        """Moves the messages of the topic's own disk queue to the journal, after those of its channels, which are
        older; also StartError, by `check_exit`."""
        self.adopt(self.queue)
        self._journal.forget_replay()
        self._are_copies = False

    def append(self, messages: list[Message]) -> None:
        """Keeps messages before they are queued, all or none."""
        if self._journal.failed is not None:
            self._report(self._journal.check)
        journal_messages(self._journal, messages)

    def write(self, reports: Sequence[Report] = ()) -> None:
        """Writes what was appended. Has each of `reports` called when that is as durable as the options promise, or
        with the error of the fsync. Never yields."""
        journal = self._journal
        failed_before = journal.failed
        self._report(journal.flush)
        tail = journal.log.tail
        if tail.safe >= tail.position:
            for report in reports:
                report(None)
        elif reports:

            def report_all(error: Exception | None) -> None:
                self._note_outcome(failed_before, error)
                for report in reports:
                    report(error)

            tail.call_when_synced(report_all, len(reports))

    def wait_synced(self) -> None:
        self._report(self._journal.wait_synced)

    def _report(self, write: Callable[[], None]) -> None:
        failed_before = self._journal.failed
        try:
            write()
        except StorageError as error:
            self._note_outcome(failed_before, error)
            raise
        if failed_before is not None:
            self._note_outcome(failed_before, None)

    def _note_outcome(self, failed_before: StorageError | None, error: Exception | None) -> None:
        if error is not None:
            self.context.set_health(error)
            if failed_before is None:
                self.log.error("TOPIC(%s) ERROR: failed to write message to journal - %s", self.topic, error)
        elif failed_before is not None and self._journal.failed is None:
            self.context.set_health(None)

    def take_back(self) -> tuple[list[Message], int]:
        """Drops the messages that `write` could not keep, if none of them has left the queues; returns them, and how
        many were handed over to the channels."""
        journal = self._journal
        first, end = journal.log.unwritten.first, journal.log.next_number
        if first >= end or journal.log.tail.failed is not None:
            return [], 0
        notes = journal.states.queues.values()
        handed_over = backend_of(self.queue).notes.finished.between(first, end).count()
        for each in notes:
            owed = handed_over if each.index else end - first - handed_over
            if each.logs or backend_of(each.queue).count_from(first) != owed:
                return [], 0
        for each in notes:
            backend_of(each.queue).take_back(first, end)
        return [Message(frame, 0, 0) for frame in journal.log.take_back()], handed_over

    def _pass_over(self, old: DiskQueue, queue: Queue) -> None:
        """Passes over the messages at the front of a disk queue that the journal has for `queue`, all unread there: a
        kill came before the read position was written. Raises StorageError. May yield."""
        payloads = old.peek_many(IMPORT_BATCH, MAX_BYTES)
        missing = set(map(_content, payloads))
        for message in Turns().over(chain(queue.backend.messages(), _stored_deferred(queue))):
            missing.discard(_content(message.payload()))
        count = next((at for at, payload in enumerate(payloads) if _content(payload) in missing), len(payloads))
        if count:
            self.log.info("JOURNAL(%s): %d messages of the disk queue are in the journal already", queue.name, count)
            old.advance(count)
            _save_position(old)

    def _move(self, old: DiskQueue, queue: Queue) -> None:
        """Moves messages for `queue` until there are no more, or it or the store ends. Raises StorageError if the
        journal or the read position can't be written: the rest is in the disk queue then."""
        self.log.info("JOURNAL(%s): moving %d messages from the disk queue", queue.name, old.depth)
        self._pass_over(old, queue)
        progress = MoveProgress(self.log, f"JOURNAL({queue.name}): %d messages moved from the disk queue")
        while True:
            self.context.check_exit()
            if self._ending or queue.closed or not (messages := self._move_batch(old, queue)):
                return
            progress.add(len(messages))
            try:
                if old.depth:
                    _save_position(old)
                else:
                    yield_turn()
                    old.delete()  # without an fsync: there may be thousands of short queues
            finally:
                _receive(queue, messages)

    def _move_batch(self, old: DiskQueue, queue: Queue) -> list[Message]:
        """Returns messages it moved; StorageError: the disk queue has them. May yield."""
        journal = self._journal
        payloads = old.peek_many(IMPORT_BATCH, MAX_BYTES)
        messages = read_messages(payloads, old, self.context.options.longest_delay)
        notes = backend_of(queue).notes
        first = journal.log.next_number
        end = first + len(messages)
        try:
            if notes.index and messages:
                for other in list(journal.states.queues.values()):
                    if other is not notes:
                        other.note_finished_span(first, end)
                journal.flush()  # before the messages themselves, so that no kill can leave them to all channels
            journal_messages(journal, messages)
            if notes.index:
                for message in messages:
                    if message.attempts:
                        notes.note_held(message, 0)
            journal.commit()
        except StorageError:
            journal.log.next_number = max(journal.log.next_number, end)  # nobody else may get these numbers
            journal.retention.absent.add(first, end)
            if messages:
                for each in list(journal.states.queues.values()):  # and none needs them, whatever of them is written
                    each.note_finished_span(first, end)
            keep_delays(messages, old)
            raise
        old.advance(len(payloads))
        return messages

    def delete(self) -> None:
        self._ending = True
        with self._moving:
            self._journal.remove()
        self.queue.forget()
        with ExitStack() as steps:  # each, whatever the others raise
            if self._journal.log.durable:
                steps.callback(self.context.syncer.run, sync_directory, self.context.options.data_path)
            for name in self._unmoved:
                steps.callback(self._delete_disk_queue, name)

    def _delete_disk_queue(self, name: str) -> None:
        self.context.open_disk_queue(name).delete()

    def close(self) -> Left:
        self._ending = True
        with self._moving:
            pass  # whatever moves has ended
        journal = self._journal
        if not journal.is_needed:
            journal.remove(at_once=False)
            return Left()
        if self.context.options.durability == "none":
            return self._convert()
        unfinished = Spans()
        for queue in journal.states.queues.values():
            unfinished.update(queue.finished.gaps(0, journal.log.next_number))
        unsynced = 0
        try:
            journal.commit()
            journal.log.sync_files()
        except StorageError as error:
            self.log.error("TOPIC(%s): %s", self.topic, error)
            unsynced = 1
        journal.close()
        return Left(unsynced=unsynced, journaled=unfinished.count())

    def _convert(self) -> Left:
        """Writes everything to disk queues; if that fails, the journal stays."""
        journal = self._journal
        try:
            if self._unmoved:  # then a kill from now on may multiply, but must not drop
                journal.commit()
            else:
                journal.mark_converting()
            queues = [notes.queue for notes in journal.states.queues.values()]
            left = sum(map(self._write_to_disk, queues))
            if not left:
                journal.log.sync_files()  # before the journal records that it does not count
        except StorageError as error:
            left = 1
            self.log.error("TOPIC(%s): %s", self.topic, error)
        if left:
            self.log.error("TOPIC(%s): the disk queues are incomplete, but the journal has all messages", self.topic)
            journal.close()
        else:
            journal.remove()
        return Left(journaled=left)

    def _write_to_disk(self, queue: Queue) -> int:
        """Writes a queue to its disk queue; returns 0 if that has all messages, safe. Raises StorageError. May
        yield."""
        target = self.context.open_disk_queue(queue.name)
        progress = MoveProgress(self.log, f"JOURNAL({queue.name}): %d messages moved to the disk queue")
        turns = Turns()
        deferred = [] if queue.deferred is None else queue.deferred.remaining()
        left = flush_messages([*queue.memory, *queue.outside(), *deferred], target, self.log)
        stored = _stored_deferred(queue)
        while batch := queue.backend.read(MAX_FLUSH, MAX_BYTES) or list(islice(stored, MAX_FLUSH)):
            left += flush_messages(batch, target, self.log)
            progress.add(len(batch))
            turns.give()
        return left + queue.backend.count + (not target.close())


class MoveProgress:
    """Logs `text` with the count of messages moved so far, a line each PROGRESS_SECONDS."""

    def __init__(self, log: Logger, text: str) -> None:
        self._log = log
        self._text = text
        self._count = 0
        self._next = monotonic() + PROGRESS_SECONDS

    def add(self, count: int) -> None:
        self._count += count
        if monotonic() >= self._next:
            self._next = monotonic() + PROGRESS_SECONDS
            self._log.info(self._text, self._count)


def _receive(queue: Queue, messages: list[Message]) -> None:
    """Queues messages that the journal has from a disk queue now."""
    ready = messages
    if queue.deferred is not None:
        ready = [message for message in messages if not message.deferred]
        queue.deferred.defer([message for message in messages if message.deferred])
    queue.put(ready, keep=True)
    queue.on_more(len(ready), False)


def _stored_deferred(queue: Queue) -> Iterator[Message]:
    """Yields the messages of a channel that are held back in the journal alone; raises StorageError."""
    return iter(()) if queue.deferred is None else deferred_of(queue).stored_messages()


def _save_position(queue: DiskQueue) -> None:
    """Writes the read position; raises StorageError. Yields."""
    if queue.start_sync().get() is not None:
        raise StorageError(f"the read position of {queue.name} can't be written")


def _content(payload: bytes) -> tuple[bytes, bytes]:
    """Returns all of a message except its attempts."""
    return payload[:8], payload[10:]
