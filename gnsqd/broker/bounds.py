"""Bounds for what waits: how many messages in a channel, how many bytes in a topic, how old, and how full the disk.

What waits is in memory or on disk, in a topic for its channels or in a channel for its consumers; what is in flight or
deferred is not counted, and what comes back from there is never refused. Who publishes asks `Bounds.admit` first; with
the policy drop-oldest `Bounds.trim` makes room afterwards. What is too old is dropped where a consumer would get it
(`BoundedQueue.fresh`), and where nobody does by `BoundsLoop`, which also trims what came back.

Every method but the loop is one step, of a bounded number of messages, and does not yield.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from itertools import takewhile
from sys import maxsize
from time import time_ns
from typing import Protocol

from gevent.event import Event

from gnsqd.broker.backend import read_messages
from gnsqd.broker.journaled import JournaledQueue
from gnsqd.broker.message import Message
from gnsqd.errors import BrokerError
from gnsqd.hub.cooperative import Turns, give_way
from gnsqd.options import Options
from gnsqd.storage.backend_queue import BackendQueue
from gnsqd.storage.disk.record import MIN_RECORD_SIZE
from gnsqd.storage.free_disk import FreeDisk

MAX_STEP = 2048  # messages that one step drops
MAX_READ = 256 * 1024  # bytes that are read for that at a time
LOOP_SECONDS = 1.0
OVERHEAD = 4 + MIN_RECORD_SIZE  # bytes of a message in a disk queue beside its body
_FRAME_SURPLUS = 4  # bytes that a frame is longer than that


class OutOfBounds(BrokerError):
    """Publishers are refused, for now at least: the reason says which bound of what."""


class WeighedQueue(deque[Message]):
    """A memory queue that knows its `size`: the bytes that its messages would take in a disk queue."""

    def __init__(self) -> None:
        super().__init__()
        self.size = 0

    def extend(self, messages: Iterable[Message], /) -> None:
        self._add(messages)
        super().extend(messages)

    def extendleft(self, messages: Iterable[Message], /) -> None:
        self._add(messages)
        super().extendleft(messages)

    def _add(self, messages: Iterable[Message]) -> None:
        for message in messages:
            self.size += len(message.frame) - _FRAME_SURPLUS

    def pop(self) -> Message:  # type: ignore[override]
        message = super().pop()
        self.size -= len(message.frame) - _FRAME_SURPLUS
        return message

    def popleft(self) -> Message:
        message = super().popleft()
        self.size -= len(message.frame) - _FRAME_SURPLUS
        return message

    def clear(self) -> None:
        super().clear()
        self.size = 0


def memory_queue(options: Options) -> deque[Message]:
    """What a topic or channel keeps messages in; it is given lists alone."""
    return WeighedQueue() if options.max_topic_bytes else deque()


class BoundedQueue:
    """What waits in a topic or channel, as its bounds see it, and what became of the rest: messages `dropped` to make
    room, `expired` and so dropped, `rejected` because this was full."""

    def __init__(
        self, memory: deque[Message], backend: BackendQueue, journaled: JournaledQueue | None, options: Options
    ) -> None:
        self.dropped = 0
        self.expired = 0
        self.rejected = 0
        self._memory = memory
        self.backend = backend
        self._journaled = journaled  # the same, if it is one
        self._ttl = options.message_ttl

    @property
    def depth(self) -> int:
        return len(self._memory) + self.backend.depth

    @property
    def size(self) -> int:
        """Bytes, if the memory queue is weighed."""
        memory = self._memory
        return self.backend.size + (memory.size if isinstance(memory, WeighedQueue) else 0)

    # Room

    def drop_oldest(self, count: int, size: int = maxsize) -> tuple[int, int]:
        """Drop what waits longest: `count` messages, or fewer if these have `size` bytes; how many, and their bytes."""
        memory = self._memory
        gone: list[Message] = []
        dropped = freed = 0
        front = self._backend_front()
        while dropped < count and freed < size:
            if memory and self._order(memory[0]) <= front:
                message = memory.popleft()
                gone.append(message)
                dropped += 1
                freed += len(message.frame) - _FRAME_SURPLUS
            elif front == maxsize:
                break
            else:
                before = self._order(memory[0]) if memory else maxsize
                number, bytes = self._drop_from_backend(count - dropped, size - freed, before)
                if not number:
                    break
                dropped += number
                freed += bytes
                front = self._backend_front()
        self._note_dropped(gone)
        self.dropped += dropped
        return dropped, freed

    def _order(self, message: Message) -> int:
        return message.timestamp if self._journaled is None else message.number

    def _backend_front(self) -> int:
        """The `_order` of what comes next on disk, maxsize if there is nothing."""
        if self._journaled is not None:
            return self._journaled.front
        payloads = self.backend.peek_many(1, 1) if self.backend.depth else []
        return _timestamp(payloads[0]) if payloads else maxsize

    def _drop_from_backend(self, count: int, size: int, before: int) -> tuple[int, int]:
        """As `drop_oldest`, but only what comes `before` in order."""
        if self._journaled is not None:
            mean = self._journaled.journal.mean_size()
            number = self._journaled.drop_next(min(count, -(-size // mean)) if mean else count, before)
            return number, number * mean
        number = freed = 0
        payloads = self.backend.peek_many(count, MAX_READ)
        for payload in payloads:
            if freed >= size or _timestamp(payload) >= before:
                break
            number += 1
            freed += 4 + len(payload)
        self._consume(payloads[:number])
        return number, freed

    def _consume(self, payloads: list[bytes]) -> None:
        if self.backend.due_times:
            read_messages(payloads, self.backend, 0)  # forgets the delays
        self.backend.advance(len(payloads))

    def _note_dropped(self, messages: list[Message]) -> None:
        if self._journaled is not None and messages:
            self._journaled.note_dropped(messages)

    # Age

    def fresh(self, messages: list[Message]) -> list[Message]:
        """Those that are not too old; the others, which are counted, have been taken out of the queue."""
        if not self._ttl:
            return messages
        horizon = time_ns() - self._ttl
        fresh = [message for message in messages if message.timestamp >= horizon]
        self.expired += len(messages) - len(fresh)
        return fresh

    def drop_expired(self) -> bool:
        """Drop some of what is too old, from the front of memory and disk; whether there was any."""
        if not self._ttl:
            return False
        horizon = time_ns() - self._ttl
        memory = self._memory
        gone: list[Message] = []
        while memory and len(gone) < MAX_STEP and memory[0].timestamp < horizon:
            gone.append(memory.popleft())
        self._note_dropped(gone)
        number = len(gone)
        if self._journaled is not None:
            number += self._journaled.drop_expired(horizon, MAX_STEP)
        elif self._backend_front() < horizon:
            payloads = self.backend.peek_many(MAX_STEP, MAX_READ)
            expired = list(takewhile(lambda payload: _timestamp(payload) < horizon, payloads))
            self._consume(expired)
            number += len(expired)
        self.expired += number
        return number > 0


class BoundedChannel(Protocol):
    """What bounds ask of a channel."""

    @property
    def name(self) -> str: ...
    @property
    def ephemeral(self) -> bool: ...
    @property
    def exiting(self) -> bool: ...
    @property
    def bounded(self) -> BoundedQueue | None: ...


class Bounds:
    """The bounds of one topic; `queue` is its own, `disk` is None without a bound for that."""

    def __init__(
        self,
        topic: str,
        queue: BoundedQueue,
        channels: Mapping[str, BoundedChannel],
        options: Options,
        disk: FreeDisk | None,
    ) -> None:
        self._topic = topic
        self._queue = queue
        self._channels = channels
        self._disk = disk
        self._max_depth = options.max_channel_depth
        self._max_bytes = options.max_topic_bytes
        self._drops = options.overflow_policy == "drop-oldest"

    # For publishers

    def admit(self, bodies: list[bytes]) -> None:
        """OutOfBounds if messages of these bodies may not be put now: all of them or none."""
        count = len(bodies)
        size = sum(map(len, bodies)) + OVERHEAD * count
        if self._disk is not None and self._disk.is_low(size):
            self._reject(count, self._queue, f"less than {self._disk.minimum} bytes of disk are free (--min-free-disk)")
        if self._drops:
            return
        # Ephemeral channels have their own bound, mem-queue-size, and drop the rest, as ever.
        channels = [channel for channel in self._channels.values() if not channel.ephemeral and not channel.exiting]
        if self._max_depth:
            self._admit_depth(count, channels)
        if self._max_bytes:
            queues = [channel.bounded for channel in channels if channel.bounded is not None]
            if self._total(queues, size) > self._max_bytes:
                reason = f"topic {self._topic} would hold more than {self._max_bytes} bytes (--max-topic-bytes)"
                self._reject(count, self._queue, reason)

    def _admit_depth(self, count: int, channels: list[BoundedChannel]) -> None:
        depth = self._queue.depth + count  # the channels will get these, too
        limit = f"would hold more than {self._max_depth} messages (--max-channel-depth)"
        for channel in channels:
            queue = channel.bounded
            if queue is not None and depth + queue.depth > self._max_depth:
                self._reject(count, queue, f"channel {self._topic}:{channel.name} {limit}")
        if not channels and depth > self._max_depth:
            self._reject(count, self._queue, f"topic {self._topic} {limit}")

    def _total(self, queues: list[BoundedQueue], more: int = 0) -> int:
        """Bytes of all queues; what is in the topic, and `more`, each channel will have for itself."""
        return (self._queue.size + more) * max(len(queues), 1) + sum([queue.size for queue in queues])

    def _reject(self, count: int, queue: BoundedQueue, reason: str) -> None:
        self._queue.rejected += count
        if queue is not self._queue:
            queue.rejected += count
        raise OutOfBounds(reason)

    # Room

    def trim(self, step: int) -> bool:
        """With drop-oldest, drop what is too much, of each queue `step` at most; whether there was any."""
        if not self._drops:
            return False
        queues = self._channel_queues()
        dropped = 0
        if self._max_depth:
            dropped += self._trim_depth(self._queue, self._max_depth, step)
            for queue in queues:
                dropped += self._trim_depth(queue, max(self._max_depth - self._queue.depth, 0), step)
        if self._max_bytes:
            dropped += self._trim_bytes(queues)
        return dropped > 0

    def _channel_queues(self) -> list[BoundedQueue]:
        channels = self._channels.values()
        return [channel.bounded for channel in channels if channel.bounded is not None and not channel.exiting]

    def _trim_depth(self, queue: BoundedQueue, limit: int, step: int) -> int:
        excess = queue.depth - limit
        return queue.drop_oldest(min(excess, step))[0] if excess > 0 else 0

    def _trim_bytes(self, queues: list[BoundedQueue]) -> int:
        """From the largest queue first, MAX_STEP messages together: one large message may displace many small ones."""
        copies = max(len(queues), 1)
        dropped = 0
        while dropped < MAX_STEP and (excess := self._total(queues) - self._max_bytes) > 0:
            queue, weight = self._queue, copies
            for other in queues:
                if other.size > queue.size * weight:
                    queue, weight = other, 1
            number, _ = queue.drop_oldest(MAX_STEP - dropped, -(-excess // weight))
            if not number:
                break
            dropped += number
        return dropped

    # For the loop

    def tidy(self) -> bool:
        """Drop some of what is too much or too old; whether there was any."""
        queues = [self._queue, *self._channel_queues()]
        return any(queue.drop_expired() for queue in queues) or self.trim(MAX_STEP // len(queues) + 1)

    def wait_synced(self) -> None:
        """As `BackendQueue.wait_synced`, of all queues. May yield."""
        for queue in (self._queue, *self._channel_queues()):
            queue.backend.wait_synced()


class BoundsLoop:
    """Owns the loop. `bounds()` gives those of all topics."""

    def __init__(self, bounds: Callable[[], Iterable[Bounds]], disk: FreeDisk | None) -> None:
        self._bounds = bounds
        self._disk = disk
        self._exit = Event()

    def stop(self) -> None:
        self._exit.set()

    def run(self) -> None:
        """Look at the disk and at all queues every second, until `stop`."""
        while not self._exit.wait(LOOP_SECONDS):
            if self._disk is not None:
                self._disk.look()
            for bounds in Turns().over(list(self._bounds())):
                while not self._exit.is_set() and bounds.tidy():
                    bounds.wait_synced()
                    give_way()


def _timestamp(payload: bytes) -> int:
    return int.from_bytes(payload[:8], "big", signed=True)
