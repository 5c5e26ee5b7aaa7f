"""Limits the queued messages: their number in a channel, their bytes in a topic, their age, and the use of the disk.

Messages in flight and deferred messages do not count, and are not refused when they return to a queue. A publish calls
`Bounds.admit` first; with a policy that drops messages, `Bounds.trim` makes room afterwards: drop-idle does so only in
channels that `IdleChannels` found idle, and nobody is refused because of these. Messages that are too old are dropped
at delivery, or by `bounds_loop`, which also trims queues to which messages returned.

Each method is one step, of a bounded number of messages, and `enforce` yields only after it. While a queue is put in
order, nothing of it is dropped.
"""

from collections.abc import Callable, Iterable, Mapping
from heapq import heapify, heappop, heappush
from sys import maxsize
from time import time_ns

from gevent.event import Event

from gnsqd.broker.channel import Channel
from gnsqd.hub.cooperative import Turns, yield_turn
from gnsqd.options import Options
from gnsqd.queues.backend import MAX_STEP
from gnsqd.queues.message import FRAME_SURPLUS, Message
from gnsqd.queues.queue import Queue, WeighedMemory
from gnsqd.shared.disk_format import MIN_RECORD_SIZE
from gnsqd.shared.errors import BrokerError
from gnsqd.storage.directory import FreeDisk

LOOP_SECONDS = 1.0
OVERHEAD = 4 + MIN_RECORD_SIZE  # bytes of a message in a disk queue beside its body


class OutOfBounds(BrokerError):
    """A publish is refused. Its `reason` names the bound."""


class Bounds:
    """The bounds of one topic, whose own queue is `queue`; `disk` is None if free disk space has no bound."""

    def __init__(
        self, topic: str, queue: Queue, channels: Mapping[str, Channel], options: Options, disk: FreeDisk | None
    ) -> None:
        self._topic = topic
        self._queue = queue
        self._channels = channels
        self._disk = disk
        self._max_depth = options.max_channel_depth
        self._max_bytes = options.max_topic_bytes
        self._drops = options.overflow_policy == "drop-oldest"
        self._trims = options.overflow_policy != "reject"
        self._coming_count = self._coming_size = 0  # of messages that were admitted, and are not yet put

    def admit(self, bodies: list[bytes]) -> None:
        """Raises OutOfBounds if the queues cannot take messages of all these bodies; otherwise there is room for them
        until `note_put` of each, as others publish in between."""
        count = len(bodies)
        self._check(count, self._coming_size + _disk_size(bodies))
        self._coming_count += count
        self._coming_size += _disk_size(bodies)

    def note_put(self, bodies: list[bytes]) -> None:
        """Reports that admitted messages are queued, or will not be."""
        self._coming_count -= len(bodies)
        self._coming_size -= _disk_size(bodies)

    def _check(self, count: int, size: int) -> None:
        if self._disk is not None and self._disk.is_low(size):
            self._reject(count, self._queue, f"less than {self._disk.minimum} bytes of disk are free (--min-free-disk)")
        if self._drops:
            return
        # Ephemeral channels have their own bound, mem-queue-size, and drop the rest; of idle ones `trim` may drop it.
        channels = [channel for channel in self._channels.values() if channel.may_refuse and not channel.exiting]
        if self._max_depth:
            depth = self._queue.count() + self._coming_count + count  # the channels will also get these
            limit = f"would hold more than {self._max_depth} messages (--max-channel-depth)"
            for channel in channels:
                if depth + channel.queue.count() > self._max_depth:
                    self._reject(count, channel.queue, f"channel {self._topic}:{channel.name} {limit}")
            if not channels and depth > self._max_depth:
                self._reject(count, self._queue, f"topic {self._topic} {limit}")
        if self._max_bytes and self._total([channel.queue for channel in channels], size) > self._max_bytes:
            reason = f"topic {self._topic} would hold more than {self._max_bytes} bytes (--max-topic-bytes)"
            self._reject(count, self._queue, reason)

    def _total(self, queues: list[Queue], more: int = 0) -> int:
        """Returns the bytes of all queues; each channel will get what is in the topic, and `more`."""
        return (_size_of(self._queue) + more) * max(len(queues), 1) + sum([_size_of(queue) for queue in queues])

    def _reject(self, count: int, queue: Queue, reason: str) -> None:
        self._queue.rejected += count
        if queue is not self._queue:
            queue.rejected += count
        raise OutOfBounds(reason)

    def trim(self, step: int) -> bool:
        """Drops messages beyond the bounds if that is the policy, at most `step` of each queue; returns True if any."""
        if not self._trims:
            return False
        queues = self._channel_queues()
        if not self._drops:  # drop-idle, which leaves the other channels to `admit`
            channels = [channel for channel in self._channels.values() if not channel.may_refuse]
            queues = [channel.queue for channel in channels if not channel.ephemeral and not channel.exiting]
        dropped = 0
        if self._max_depth:
            if self._drops:
                dropped += _drop_oldest(self._queue, min(self._queue.count() - self._max_depth, step))
            for queue in queues:
                limit = max(self._max_depth - self._queue.count(), 0)
                dropped += _drop_oldest(queue, min(queue.count() - limit, step))
        if self._max_bytes:
            dropped += self._trim_bytes(queues)
        return dropped > 0

    def _channel_queues(self) -> list[Queue]:
        return [channel.queue for channel in self._channels.values() if not channel.exiting]

    def _trim_bytes(self, queues: list[Queue]) -> int:
        """Drops at most MAX_STEP messages, in the largest queues, and then those of the topic's own, which are newer.
        One large message may displace many small ones."""
        excess = self._total(self._channel_queues()) - self._max_bytes
        if excess <= 0:
            return 0
        share = -(-excess // max(len(queues), 1))
        largest = [(-_size_of(queue), index) for index, queue in enumerate(queues)]
        heapify(largest)
        dropped = 0
        while largest and dropped < MAX_STEP and excess > 0:
            before, index = heappop(largest)
            surplus = largest[0][0] - before if largest else excess
            number = _drop_oldest(queues[index], MAX_STEP - dropped, min(excess, max(surplus, share)))
            if before and not number:  # it is being put in order
                return dropped
            dropped += number
            after = -_size_of(queues[index])
            excess += before - after
            if after:
                heappush(largest, (after, index))
        if self._drops:
            dropped += _drop_oldest(self._queue, MAX_STEP - dropped, -(-excess // max(len(queues), 1)))
        return dropped

    def enforce(self) -> bool:
        """Drops some messages that are beyond the bounds or too old; True if it dropped any. Then it may yield."""
        queues = [self._queue, *self._channel_queues()]
        dropped = any(map(_drop_expired, queues)) or self.trim(MAX_STEP // len(queues) + 1)
        if dropped:
            for queue in queues:
                queue.backend.wait_synced()
        return dropped


def _disk_size(bodies: list[bytes]) -> int:
    return sum(map(len, bodies)) + OVERHEAD * len(bodies)


def _size_of(queue: Queue) -> int:
    """Returns the bytes of the queued messages, with those in memory if there is a bound for bytes."""
    return queue.backend.size + (queue.memory.size if isinstance(queue.memory, WeighedMemory) else 0)


def _drop_oldest(queue: Queue, count: int, size: int = maxsize) -> int:
    """Drops the oldest messages: `count`, or fewer if these have `size` bytes; returns their number."""
    if count <= 0 or queue.arranging is not None:
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


def _drop_expired(queue: Queue) -> bool:
    """Drops some messages that are too old, from the front of memory and backend; True if there were any."""
    if not queue.ttl or queue.arranging is not None:
        return False
    horizon = time_ns() - queue.ttl
    memory = queue.memory
    gone: list[Message] = []
    while memory and len(gone) < MAX_STEP and memory[0].timestamp < horizon:
        gone.append(memory.popleft())
    queue.backend.discard(gone)
    number = len(gone) + queue.backend.drop_older(horizon)
    queue.expired += number
    return number > 0


def bounds_loop(bounds: Callable[[], Iterable[Bounds]], disk: FreeDisk | None, exit: Event) -> None:
    """Checks the disk and `bounds()`, which are those of all topics, every second until `exit` is set."""
    while not exit.wait(LOOP_SECONDS):
        if disk is not None:
            disk.check()
        for topic_bounds in Turns().over(list(bounds())):
            while not exit.is_set() and topic_bounds.enforce():
                yield_turn()
