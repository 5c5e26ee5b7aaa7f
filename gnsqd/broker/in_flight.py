"""The messages of a channel that are in no queue: in flight to consumers, or dead letters that are not yet moved.

Messages with the same time-out expire in the order in which they were sent, so one insertion-ordered dict per distinct
time-out is already sorted by deadline. Only messages moved by TOUCH go to a heap, whose stale entries are skipped when
they come first, and removed when they outnumber the live ones.
"""

from collections.abc import Callable, Container, Iterator
from heapq import heapify, heappop, heappush
from itertools import islice
from sys import maxsize
from time import time_ns

from gnsqd.net.plain import id_at, new_by_id
from gnsqd.queues.message import ID_AT, Message
from gnsqd.queues.queue import Queue
from gnsqd.shared.errors import BrokerError
from gnsqd.shared.protocol import FIN_ID_AT, FIN_LENGTH

MAX_DEAD_LETTERS = 1024  # dead letters of a channel; beyond that they are requeued
_SWEEP_FROM = 64


class InFlight:
    """The messages in flight of one channel, by id and by deadline (monotonic ns)."""

    __slots__ = ("_by_timeout", "_heap", "_touched", "_where")

    def __init__(self) -> None:
        self._by_timeout: dict[int, dict[bytes, Message]] = {}
        self._touched: dict[bytes, Message] = new_by_id()
        self._heap: list[tuple[int, bytes]] = []
        self._where: list[dict[bytes, Message]] = [self._touched]

    def __len__(self) -> int:
        return sum(map(len, self._where))

    def __iter__(self) -> Iterator[Message]:
        for messages in self._where:
            yield from messages.values()

    def push(self, messages: list[Message], client_id: int, now: int, timeout: int) -> list[Message]:
        """Adds messages sent to `client_id` at `now`; returns them without the ones whose ids are in flight already."""
        by_id = self._by_timeout.get(timeout)
        if by_id is None:
            by_id = self._by_timeout[timeout] = new_by_id()
            self._where.insert(0, by_id)
        for others in self._where:
            if others and others is not by_id:
                messages = [message for message in messages if others.get(id_at(message.frame, ID_AT)) is None]
        before = len(by_id)
        for message in messages:
            by_id.setdefault(id_at(message.frame, ID_AT), message)
            message.client_id = client_id
            message.delivered_at = now
        if len(by_id) == before + len(messages):
            return messages
        return [message for message in messages if by_id.get(id_at(message.frame, ID_AT)) is message]

    def pop_run(self, fins: bytes, client_id: int) -> list[Message]:
        """Removes and returns the messages of these FINs, a result of `Decoder.next_fins`, up to the first message that
        is not in flight to `client_id`."""
        popped: list[Message] = []
        at = FIN_ID_AT
        while at < len(fins):
            id = id_at(fins, at)
            at += FIN_LENGTH
            for messages in self._where:
                message = messages.get(id)
                if message is not None:
                    break
            else:
                break
            if message.client_id != client_id:
                break
            popped.append(messages.pop(id))
        return popped

    def pop(self, id: bytes, client_id: int) -> Message:
        """Removes and returns a message; raises BrokerError if it is not in flight, or in flight to another client."""
        key = id_at(id, 0)
        for messages in self._where:
            message = messages.get(key)
            if message is not None:
                if message.client_id != client_id:
                    raise BrokerError("client does not own message")
                return messages.pop(key)
        raise BrokerError("ID not in flight")

    def pop_abandoned(self, clients: Container[int]) -> list[Message]:
        """Removes and returns the messages of clients that are not in `clients`."""
        return [self.pop(message.id, message.client_id) for message in [*self] if message.client_id not in clients]

    def touch(self, id: bytes, client_id: int, deadline: int, max_timeout: int) -> int:
        """Moves a deadline, at most to `max_timeout` ns after the delivery, and returns it; errors as `pop`."""
        message = self.pop(id, client_id)
        deadline = min(deadline, message.delivered_at + max_timeout)
        message.deadline = deadline
        self._touched.setdefault(id_at(id, 0), message)
        heappush(self._heap, (deadline, id))
        if len(self._heap) > 2 * len(self._touched) + _SWEEP_FROM:
            self._heap = [(touched.deadline, touched.id) for touched in self._touched.values()]
            heapify(self._heap)
        return deadline

    @property
    def next_due(self) -> int:
        """A lower bound of all deadlines (monotonic ns); maxsize if nothing is in flight."""
        due = self._heap[0][0] if self._heap else maxsize
        for timeout, messages in self._by_timeout.items():
            for message in messages.values():
                due = min(due, message.delivered_at + timeout)
                break
        return due

    def longest(self) -> tuple[int, int]:
        """Returns when the first of the messages, of which there are some, was delivered, and its time-out (ns)."""
        first = [(message.delivered_at, message.deadline - message.delivered_at) for message in self._touched.values()]
        for timeout, messages in self._by_timeout.items():
            first += [(message.delivered_at, timeout) for message in islice(messages.values(), 1)]
        return min(first)

    def pop_due(self, now: int, limit: int) -> list[Message]:
        """Removes and returns at most `limit` messages whose deadline is `now` or earlier."""
        due: list[Message] = []
        for timeout, messages in list(self._by_timeout.items()):
            first = len(due)
            for message in messages.values():
                if message.delivered_at + timeout > now or len(due) >= limit:
                    break
                due.append(message)
            for message in due[first:]:
                messages.pop(id_at(message.frame, ID_AT))
            if not messages:
                del self._by_timeout[timeout]
                self._where = [*self._by_timeout.values(), self._touched]
        while self._heap and self._heap[0][0] <= now and len(due) < limit:
            deadline, id = heappop(self._heap)
            message_or_none = self._touched.get(id_at(id, 0))
            if message_or_none is not None and message_or_none.deadline == deadline:
                due.append(self._touched.pop(id_at(id, 0)))
        return due


class DeadMessages:
    """Messages of a channel that were delivered `max_attempts` times (0: never any), on their way to the dead-letter
    topic, the oldest first. `moved` counts the messages that arrived; `put_again` requeues the others."""

    def __init__(self, max_attempts: int, queue: Queue, put_again: Callable[[list[Message]], None]) -> None:
        self.moved = 0
        self._max_attempts = max_attempts
        self._queue = queue
        self._put_again = put_again
        self._messages: dict[Message, tuple[str, int]] = {}

    def __len__(self) -> int:
        return len(self._messages)

    def __iter__(self) -> Iterator[Message]:
        return iter(self._messages)

    def add(self, messages: list[Message], reason: str) -> list[Message]:
        """Adds the messages that were delivered that often; returns the others."""
        if not self._max_attempts:
            return messages
        others = []
        for message in messages:
            if message.attempts < self._max_attempts or len(self._messages) >= MAX_DEAD_LETTERS:
                others.append(message)
            else:
                self._messages[message] = (reason, time_ns())
        return others

    def look(self, limit: int, max_bytes: int) -> list[tuple[Message, str, int]]:
        """Returns messages, each with why and when (wall clock, ns) it died; bounds as `Queue.look`."""
        first: list[tuple[Message, str, int]] = []
        for message, (reason, died) in islice(self._messages.items(), limit):
            max_bytes -= len(message.frame)
            if first and max_bytes < 0:
                break
            first.append((message, reason, died))
        return first

    def finish(self, messages: list[Message]) -> None:
        """Removes and finishes messages that are in the dead-letter topic, if they are still here."""
        moved = [message for message in messages if self._messages.pop(message, None) is not None]
        self.moved += len(moved)
        self._queue.finish(moved)

    def requeue(self) -> None:
        messages = list(self._messages)
        self._messages.clear()
        self._put_again(messages)

    def clear(self) -> None:
        self._messages.clear()
