"""The messages that a channel holds back: those deferred when they were published, and those requeued with a delay."""

from collections.abc import Iterable, Iterator
from heapq import merge
from itertools import islice
from operator import itemgetter
from time import monotonic_ns

from gnsqd.hub.cooperative import Turns, free
from gnsqd.queues.message import Message
from gnsqd.queues.schedule import Schedule


class Deferred:
    """Messages held back in memory, by id and by due time (monotonic ns); iterating yields them. Subclasses note them
    in a file, or hold some back in the backend.

    `resume_at` is when the last of them that was delivered before is due, so that an ordered queue waits until then; 0
    if there is none. It may be too late when such a message is cancelled; `ordering` corrects that."""

    def __init__(self) -> None:
        self.resume_at = 0
        self._messages: dict[bytes, Message] = {}
        self._by_due = Schedule(block=list)

    def __len__(self) -> int:
        return len(self._messages)

    def __iter__(self) -> Iterator[Message]:
        return iter(self._messages.values())

    def defer(self, messages: list[Message]) -> None:
        """Holds each message back for its `deferred` ns."""
        now = monotonic_ns()
        for message in messages:
            due = now + message.deferred
            self.hold(message, due)
            if message.attempts and due > self.resume_at:
                self.resume_at = due

    def defer_read(self, messages: list[Message]) -> None:
        """Defers messages that a backend forgets when this returns."""
        self.defer(messages)

    def defer_again(self, message: Message, delay: int) -> None:
        """Holds a message that was in flight back for `delay` ns."""
        message.deferred = delay
        self.defer([message])

    def hold(self, message: Message, due: int) -> bool:
        """Holds `message` back until `due`; False if its id is held back already: it is the same message."""
        if self._messages.setdefault(message.id, message) is not message:
            return False
        message.deadline = due
        self._by_due.push(due, message)
        return True

    @property
    def next_due(self) -> int:
        """No message is due earlier (monotonic ns); maxsize if there is none."""
        return self._by_due.first

    def take_due(self, now: int, limit: int) -> list[Message]:
        """Removes and returns messages that are due at `now`, earliest first, at most `limit`."""
        due: list[Message] = self._by_due.pop_due(now, limit)
        for message in due:
            del self._messages[message.id]
            message.deferred = 0
        return due

    def queue_stored(self, now: int, limit: int, ordered: bool) -> int:
        """Moves at most `limit` of the due messages that only the backend has to its queue; returns their number."""
        return 0

    def released(self, messages: list[Message]) -> None:
        """Notes that these messages, taken and queued, are not held back any more."""

    def cancel(self, due: int, message: Message) -> None:
        """Removes a message that is held back until `due`, as `look`, `find` or `find_stored` returned it."""
        del self._messages[message.id]
        self._by_due.find(message, message.deadline, remove=True)
        self.released([message])

    def clear(self) -> None:
        free(self._messages.popitem, len(self._messages))
        self._messages, self._by_due = {}, Schedule(block=list)
        self.resume_at = 0

    def find(self, id: bytes) -> tuple[int, Message] | None:
        """Returns the message with this id and when it is due (monotonic ns); None if it is not held in memory."""
        message = self._messages.get(id)
        return None if message is None else (message.deadline, message)

    def look(self, begin: int, limit: int, max_bytes: int) -> list[tuple[int, Message]]:
        """Returns messages due from `begin` (monotonic ns) on, and when; bounds as `Queue.look`. Raises StorageError.
        May yield."""
        turns = Turns()
        in_memory = [*islice(self._by_due.from_due(begin), limit)]
        shown: list[tuple[int, Message]] = []
        for due, message in islice(merge(in_memory, self._stored_from(begin, limit), key=itemgetter(0)), limit):
            if message is not None:
                max_bytes -= len(message.frame)
                if shown and max_bytes < 0:
                    break
                shown.append((due, message))
            turns.give()
        return shown

    def _stored_from(self, begin: int, limit: int) -> Iterable[tuple[int, Message | None]]:
        """Yields due times and messages that only the backend has, None if one cannot be read, as `look`."""
        return ()

    def count_before(self, end: int) -> int:
        """Returns how many messages are due earlier than `end` (monotonic ns)."""
        return self._by_due.count_before(end)

    def redelivery_dues(self) -> Iterator[int]:
        """Yields when each message that was delivered before is due (monotonic ns). May switch to other greenlets."""
        return (message.deadline for message in Turns().over([*self]) if message.attempts)

    def remaining(self) -> list[Message]:
        """Returns the messages in memory, each with the time left as `deferred`."""
        now = monotonic_ns()
        for message in self:
            message.deferred = max(message.deadline - now, 1)
        return list(self)
