"""Order: the oldest message of a queue comes next, also before others that were queued or held back until now.

A message that was delivered before is queued in front of newer ones. If it is held back, a channel's `Limiter` lets the
others wait for it. What is in memory when a queue becomes ordered is sorted in steps, and others run in between.
"""

from collections import deque
from heapq import merge
from itertools import islice
from typing import Protocol

from gnsqd.hub.cooperative import Turns
from gnsqd.queues.backend import MAX_STEP, Backend
from gnsqd.queues.deferred import Deferred
from gnsqd.queues.message import Message

MAX_COPY = 16384  # messages that one step copies


class Arranged(Protocol):
    """The parts of a queue that `Order` reads and changes. While `is_arranging`, the queue gives no messages."""

    memory: deque[Message]
    backend: Backend
    deferred: Deferred | None
    ordered: bool
    is_arranging: bool
    order: "Order | None"


def set_ordered(queue: Arranged, ordered: bool) -> None:
    """Lets the oldest message of `queue` come next, or not. May yield; until it returns, the queue gives nothing."""
    if not ordered:
        queue.ordered, queue.is_arranging, queue.order = False, False, None
    elif not queue.ordered:
        queue.order = Order(queue)  # it replaces one that is at work
        queue.order.arrange()


class Order:
    """The order of one queue, from the oldest message to the newest."""

    def __init__(self, queue: Arranged) -> None:
        self._queue = queue
        self._arranging: object | None = None  # the present call of `arrange`

    def key(self, message: Message) -> tuple[int, bytes]:
        """Returns what messages are sorted by."""
        return self._queue.backend.order(message), message.id

    def put_again(self, messages: list[Message]) -> None:
        """Queues messages that were delivered before, in memory, in front of newer ones."""
        memory, again = self._queue.memory, messages[:]
        last = max(map(self.key, messages))
        while memory and self.key(memory[0]) < last:
            again.append(memory.popleft())
        memory.extendleft(sorted(again, key=self.key, reverse=True))

    def cancelled(self, due: int) -> None:
        """Finds out until when others wait, after a message was cancelled that was held back until `due`. May yield;
        until it returns, the queue gives nothing."""
        queue = self._queue
        if queue.ordered and queue.deferred is not None and due == queue.deferred.resume_at:
            self.arrange()

    def arrange(self) -> None:
        """Sorts the queue, unless it is sorted, and then finds out until when messages wait. A later call replaces an
        earlier one. Yields as `set_ordered`."""
        queue = self._queue
        this = self._arranging = object()
        queue.is_arranging = True
        try:
            while not queue.ordered:
                if not self._sort() and not self._is_current(this):
                    return
            if queue.deferred is not None and self._is_current(this):
                queue.deferred.resume_at = 0
                resume_at = max(queue.deferred.redelivery_dues(), default=0)
                if self._is_current(this):
                    queue.deferred.resume_at = max(queue.deferred.resume_at, resume_at)
        finally:
            if self._is_current(this):
                queue.is_arranging = False

    def _is_current(self, call: object | None) -> bool:
        return self._queue.order is self and self._arranging is call

    def _sort(self) -> bool:
        """Sorts the messages in memory, in steps. Meanwhile others may queue messages; False if they dropped some."""
        queue, turns, this = self._queue, Turns(), self._arranging
        memory = queue.memory
        count, ends = len(memory), [*islice(memory, 1), *islice(reversed(memory), 1)]
        in_order, others = self._split(memory, count, turns)
        ordered = self._merged(memory, in_order, others, turns) if others else memory
        while in_order:
            del in_order[-MAX_STEP:]
            turns.give()
        if not self._is_current(this) or queue.memory is not memory or len(memory) < count:
            return False
        if count and ends != [memory[0], memory[count - 1]]:
            return False
        later = [memory.pop() for _ in range(len(memory) - count)][::-1]
        queue.memory = ordered
        queue.ordered = True
        ordered.extend([message for message in later if not message.attempts])
        if again := [message for message in later if message.attempts]:
            self.put_again(again)
        queue.backend.sort()
        return True

    def _split(self, memory: deque[Message], count: int, turns: Turns) -> tuple[list[Message], list[Message]]:
        """Returns those of the first `count` messages that are in order, which are nearly all, as a rule, and the
        others. Yields."""
        in_order: list[Message] = []
        others: list[Message] = []
        last = (0, b"")
        for first in range(0, count, MAX_COPY):
            memory.rotate(-first)  # moves references only: 2,000,000 messages take 1 ms, and a copy of them 50 ms
            messages = [*islice(memory, min(count - first, MAX_COPY))]
            memory.rotate(first)
            for message in messages:
                key = self.key(message)
                if key >= last:
                    last = key
                    in_order.append(message)
                else:
                    others.append(message)
            turns.give()
        return in_order, others

    def _merged(
        self, memory: deque[Message], in_order: list[Message], others: list[Message], turns: Turns
    ) -> deque[Message]:
        """Returns a memory of the kind of `memory` with these messages, sorted. Yields."""
        runs = [in_order]
        for first in range(0, len(others), MAX_STEP):
            runs.append(sorted(others[first : first + MAX_STEP], key=self.key))
            turns.give()
        merged = merge(*runs, key=self.key)
        ordered = type(memory)()
        count = len(in_order) + len(others)
        while len(ordered) < count:
            ordered.extend(islice(merged, MAX_STEP))
            turns.give()
        return ordered
