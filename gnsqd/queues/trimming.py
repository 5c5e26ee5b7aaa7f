"""Trimming: queued messages are dropped, the oldest where there are more than a bound allows, and expired ones.

No function yields. While a queue is put in order, nothing is dropped.
"""

from sys import maxsize

from gnsqd.queues.backend import MAX_STEP
from gnsqd.queues.message import FRAME_SURPLUS, Message
from gnsqd.queues.queue import Queue, WeighedMemory


def size_of(queue: Queue) -> int:
    """Returns the bytes of the queued messages, with those in memory if there is a bound for bytes."""
    return queue.backend.size + (queue.memory.size if isinstance(queue.memory, WeighedMemory) else 0)


def drop_oldest(queue: Queue, count: int, size: int = maxsize) -> int:
    """Drops the oldest messages: `count`, or fewer if these have `size` bytes; returns their number."""
    if queue.arranging is not None:
        return 0
    memory, backend = queue.memory, queue.backend
    gone: list[Message] = []
    dropped = freed = 0
    front = backend.front()
    while dropped < count and freed < size:
        if memory and backend.order(memory[0]) <= front:
            message = memory.popleft()
            gone.append(message)
            dropped += 1
            freed += len(message.frame) - FRAME_SURPLUS
        elif front == maxsize:
            break
        else:
            before = backend.order(memory[0]) if memory else maxsize
            number, bytes = backend.drop(count - dropped, size - freed, before)
            if not number:
                break
            dropped += number
            freed += bytes
            front = backend.front()
    backend.discard(gone)
    queue.dropped += dropped
    return dropped


def drop_expired(queue: Queue) -> bool:
    """Drops some messages that are too old, from the front of memory and backend; True if there were any."""
    expiry = queue.expiry
    if expiry is None or queue.arranging is not None:
        return False
    horizon = expiry.horizon
    memory = queue.memory
    gone: list[Message] = []
    while memory and len(gone) < MAX_STEP and memory[0].timestamp < horizon:
        gone.append(memory.popleft())
    queue.backend.discard(gone)
    number = len(gone) + queue.backend.drop_older(horizon)
    expiry.expired += number
    return number > 0
