"""Order: the oldest message of a queue comes next, also before others that were queued or held back until now.

A message that was delivered before is queued in front of newer ones. If it is held back, a channel's `Limiter` lets the
others wait for it. What is in memory when a queue becomes ordered is sorted in steps, and others run in between.
"""

from collections import deque
from heapq import merge
from itertools import islice

from gnsqd.hub.cooperative import Turns
from gnsqd.queues.backend import MAX_STEP, sort_key
from gnsqd.queues.message import Message
from gnsqd.queues.queue import Queue

MAX_COPY = 16384  # messages that one step copies


def set_ordered(queue: Queue, ordered: bool) -> None:
    """Lets the oldest message of `queue` come next, or not. May yield; until it returns, the queue gives nothing."""
    if not ordered:
        queue.ordered, queue.arranging = False, None
    elif not queue.ordered:
        arrange(queue)


def arrange(queue: Queue) -> None:
    """Sorts the queue, unless it is sorted, and then finds out until when messages wait. A later call replaces an
    earlier one. Yields as `set_ordered`."""
    this = queue.arranging = object()
    try:
        while not queue.ordered:
            if not _sort(queue) and queue.arranging is not this:
                return
        if queue.deferred is not None and queue.arranging is this:
            queue.deferred.resume_at = 0
            resume_at = max(queue.deferred.redelivery_dues(), default=0)
            if queue.arranging is this:
                queue.deferred.resume_at = max(queue.deferred.resume_at, resume_at)
    finally:
        if queue.arranging is this:
            queue.arranging = None


def _sort(queue: Queue) -> bool:
    """Sorts the messages in memory, in steps. Meanwhile others may queue messages; False if they dropped some."""
    turns, this, memory = Turns(), queue.arranging, queue.memory
    count, ends = len(memory), [*islice(memory, 1), *islice(reversed(memory), 1)]
    in_order, others = _split(queue, count, turns)
    ordered = _merged(queue, in_order, others, turns) if others else memory
    while in_order:
        del in_order[-MAX_STEP:]
        turns.give()
    if queue.arranging is not this or queue.memory is not memory or len(memory) < count:
        return False
    if count and ends != [memory[0], memory[count - 1]]:
        return False
    later = [memory.pop() for _ in range(len(memory) - count)][::-1]
    queue.use_memory(ordered)
    queue.ordered = True
    ordered.extend([message for message in later if not message.attempts])
    queue.put_again([message for message in later if message.attempts])
    queue.backend.sort()
    return True


def _split(queue: Queue, count: int, turns: Turns) -> tuple[list[Message], list[Message]]:
    """Returns the first `count` messages in memory: those in order, nearly all as a rule, and the others. Yields."""
    memory, key = queue.memory, sort_key(queue.backend)
    in_order: list[Message] = []
    others: list[Message] = []
    last = (0, b"")
    for first in range(0, count, MAX_COPY):
        memory.rotate(-first)  # moves references only: 2,000,000 messages take 1 ms, and a copy of them 50 ms
        messages = [*islice(memory, min(count - first, MAX_COPY))]
        memory.rotate(first)
        for message in messages:
            value = key(message)
            if value >= last:
                last = value
                in_order.append(message)
            else:
                others.append(message)
        turns.give()
    return in_order, others


def _merged(queue: Queue, in_order: list[Message], others: list[Message], turns: Turns) -> deque[Message]:
    """Returns a new memory with these messages, sorted. Yields."""
    runs, key = [in_order], sort_key(queue.backend)
    for first in range(0, len(others), MAX_STEP):
        runs.append(sorted(others[first : first + MAX_STEP], key=key))
        turns.give()
    merged = merge(*runs, key=key)
    ordered = type(queue.memory)()
    count = len(in_order) + len(others)
    while len(ordered) < count:
        ordered.extend(islice(merged, MAX_STEP))
        turns.give()
    return ordered
