"""A channel: one queue of a topic's messages, shared by its consumers.

A message waits in memory, or on disk once memory is full; `take` gives some to a consumer and notes them in flight;
FIN, REQ, TOUCH and the queue scan move them on from there. Nothing here yields to the hub but `wait_synced`, so every
method is one step as far as other greenlets can see.

Consumers that could take a message but found none stand in `_waiting`, in order; a put wakes as many as it brought
messages for. A consumer that was not woken leaves one message for each of those, so that what a consumer requeued, or
let time out, goes to others that wait. Each takes its share of what is there, not all of it, so that several consumers
of a busy channel get about as much each.
"""

from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from random import random
from time import monotonic_ns, time_ns

from gnsqd.broker.backend import flush_messages, hold_back, look, read_messages, release, write_messages
from gnsqd.broker.bounds import BoundedQueue, memory_queue
from gnsqd.broker.consumer import Consumer
from gnsqd.broker.envelope import REQUEUED, TIMED_OUT, is_dead_letter_topic
from gnsqd.broker.environment import Environment
from gnsqd.broker.in_flight import Deferred, InFlight
from gnsqd.broker.journal_migration import convert
from gnsqd.broker.journaled import JournaledQueue, held_messages
from gnsqd.broker.message import Message
from gnsqd.broker.names import is_ephemeral
from gnsqd.errors import BrokerError, StorageError
from gnsqd.quantile import Quantile, Result
from gnsqd.storage.backend_queue import BackendQueue, DummyBackendQueue
from gnsqd.storage.journal.queue import Held

# A consumer gets at most this much in one go, so that a large RDY starves nobody.
MAX_TAKE = 256
MAX_TAKE_BYTES = 256 * 1024
MAX_DUE = 1024  # messages that one step of the queue scan moves
MAX_ASIDE = 1024  # messages that wait for the dead-letter topic; beyond that they are requeued


class Channel:
    """Owns the queue, the messages in flight and deferred, and the list of consumers of one channel.

    `on_last_client` is called when an ephemeral channel has lost its last consumer, `on_blocked` when the disk has
    refused messages, and `retry_overflow` is to be called from time to time until it is no longer `blocked`.
    """

    def __init__(
        self,
        topic_name: str,
        name: str,
        environment: Environment,
        on_last_client: "Callable[[Channel], None]",
        on_blocked: Callable[[], None],
        journaled: JournaledQueue | None = None,
    ) -> None:
        self.topic_name = topic_name
        self.name = name
        self.ephemeral = is_ephemeral(name)
        self.clients: dict[int, Consumer] = {}
        self.paused = False
        self.exiting = False
        self.message_count = 0
        self.requeue_count = 0
        self.timeout_count = 0
        self.dead_letter_count = 0
        self.blocked = False  # memory is over its bound because the disk refused what did not fit
        self._environment = environment
        self._log = environment.log
        self._options = environment.options
        self._on_last_client = on_last_client
        self._on_blocked = on_blocked
        self._capacity = environment.options.mem_queue_size
        self._memory: deque[Message] = memory_queue(environment.options)
        self._in_flight = InFlight()
        self._deferred = Deferred()
        self._max_attempts = 0 if is_dead_letter_topic(topic_name) else environment.options.max_attempts
        self._aside: dict[Message, tuple[str, int]] = {}  # dead ones on their way, with why and when (wall clock, ns)
        self._waiting: dict[int, Consumer] = {}
        self._woken: set[int] = set()  # that have not come yet for what they were woken for
        self._backend_first = False
        self.latencies: Quantile | None = None
        if percentiles := environment.options.e2e_processing_latency_percentiles:
            self.latencies = Quantile(environment.options.e2e_processing_latency_window_time, percentiles)
        self._journaled = journaled
        self.backend: BackendQueue
        if journaled is not None:
            journaled.held_messages = self._held_messages
            self.backend = journaled
        elif self.ephemeral:
            self.backend = DummyBackendQueue(name)
        else:
            self.backend = environment.make_backend(f"{topic_name}:{name}")
        self.bounded: BoundedQueue | None = None  # without bounds
        if environment.options.bounded:
            self.bounded = BoundedQueue(self._memory, self.backend, journaled, environment.options)
        environment.notify(self, not self.ephemeral)

    @property
    def depth(self) -> int:
        """Messages waiting, in memory and on disk; not those in flight or deferred."""
        return len(self._memory) + self.backend.depth

    @property
    def backend_depth(self) -> int:
        return self.backend.depth

    @property
    def in_flight_count(self) -> int:
        return len(self._in_flight)

    @property
    def deferred_count(self) -> int:
        journaled = self._journaled.deferred_count if self._journaled is not None else 0
        return len(self._deferred) + len(self._aside) + journaled

    def e2e_latency(self) -> Result | None:
        """How long messages took from being published to FIN; None if no percentiles are configured."""
        return None if self.latencies is None else self.latencies.result()

    # From the topic

    def has_room(self, count: int) -> bool:
        """Whether `count` more messages fit into memory."""
        return count <= self._capacity - len(self._memory) and not self.blocked

    def put_messages(self, messages: list[Message]) -> None:
        """Queue messages of this channel's own; BrokerError("exiting") if it is going away."""
        if self.exiting:
            raise BrokerError("exiting")
        self.message_count += len(messages)
        self._enqueue(messages)

    def put_messages_deferred(self, messages: list[Message], from_disk: bool = False) -> None:
        """Hold each message back for the time it asks for; `from_disk` if the topic's disk queue had them."""
        if self.exiting:
            raise BrokerError("exiting")
        self.message_count += len(messages)
        if from_disk:
            hold_back(messages, self.backend)
            self.backend.write_held()
        self._defer(messages)

    def _defer(self, messages: list[Message]) -> None:
        now = monotonic_ns()
        for message in messages:
            self._hold(message, now + message.deferred)

    def _hold(self, message: Message, due: int) -> None:
        if self._journaled is not None and len(self._deferred) >= self._capacity:
            self._journaled.defer(message, due)
        elif not self._deferred.push(message, due) and self._journaled is not None:
            self._journaled.note_finished([message])  # an older copy of it is there

    def _enqueue(self, messages: list[Message]) -> None:
        count = len(messages)
        if not count:
            return  # an empty write would pass for one that succeeded
        room = self._capacity - len(self._memory)
        if self.ephemeral:
            room = max(room, len(self._waiting) - len(self._memory))
        if count <= room:
            self._memory.extend(messages)
        else:
            room = max(room, 0)
            self._memory.extend(messages[:room])
            self._overflow(messages[room:])
        if self._waiting and not self.paused:
            self._wake_waiting(count)

    def _overflow(self, messages: list[Message]) -> None:
        # What the disk refuses stays in memory and stops the topic's pump (`blocked`): publishers then meet the
        # topic's own limits, and nothing that was acknowledged is lost.
        if self._journaled is not None:
            self._journaled.put(messages)  # the journal has them
            return
        try:
            write_messages(messages, self.backend)
        except StorageError as error:
            self._memory.extend(messages[error.written :])
            if not self.blocked:
                self.blocked = True
                self._on_blocked()
            self._environment.set_health(error)
            self._log.error("CHANNEL(%s): failed to write message to backend - %s", self.name, error)
        else:
            self.blocked = len(self._memory) > self._capacity
            self._environment.set_health(None)

    def retry_overflow(self) -> None:
        """Try again to write what the disk refused."""
        excess = [self._memory.pop() for _ in range(len(self._memory) - self._capacity)]
        if excess:
            self._overflow(excess[::-1])
        else:
            self.blocked = False  # consumers have taken it

    # To and from consumers

    def add_client(self, client: Consumer) -> None:
        """BrokerError if the channel is going away or has as many consumers as max-channel-consumers allows."""
        if self.exiting:
            raise BrokerError("exiting")
        limit = self._options.max_channel_consumers
        if limit and len(self.clients) >= limit and client.id not in self.clients:
            raise BrokerError(f"consumers for {self.topic_name}:{self.name} exceeds limit of {limit}")
        self.clients[client.id] = client

    def remove_client(self, client: Consumer) -> None:
        """What it has in flight stays so until it times out."""
        self.stop_waiting(client)
        if self.clients.pop(client.id, None) is not None and not self.clients and self.ephemeral and not self.exiting:
            self._on_last_client(self)

    def take(self, client: Consumer, window: int, timeout: int, sample_rate: int) -> list[Message]:
        """Up to `window` messages for `client`, noted in flight for `timeout` ns.

        [] puts it into the line of those that wait for more, even if `depth` isn't 0: what is on disk may be
        unreadable for a while. With a `sample_rate` of N > 0 only N % of the messages are given out, the rest are
        consumed silently.
        """
        self._waiting.pop(client.id, None)
        promised = 0
        if self._woken:
            if client.id in self._woken:
                self._woken.remove(client.id)
            else:
                promised = len(self._woken)
        taken: list[Message] = []
        now = monotonic_ns()
        while not taken:
            held_back = len(self._deferred)
            candidates = self._next_messages(window, promised)
            if not candidates:
                self._waiting[client.id] = client
                if len(self._deferred) > held_back:
                    self._wake_waiting(1)  # to go on behind messages that are not due yet
                return taken
            chosen = candidates
            if sample_rate:
                chosen = [message for message in candidates if random() * 100 < sample_rate]
            if self.bounded is not None:
                chosen = self.bounded.fresh(chosen)
            taken = self._in_flight.push(chosen, client.id, now, timeout)
            if self._journaled is not None:
                self._note_taken(candidates, taken)
            if not taken and self.bounded is not None:
                self._waiting[client.id] = client
                self._wake_waiting(1)  # behind what was too old, but not in one turn
                return taken
        if self._waiting:
            self._wake_waiting(self.depth - len(self._woken))
        return taken

    def _note_taken(self, candidates: list[Message], taken: list[Message]) -> None:
        assert self._journaled is not None
        self._journaled.note_taken(taken)
        if len(taken) < len(candidates):
            given = {message.number for message in taken}
            self._journaled.note_finished([message for message in candidates if message.number not in given])

    def _next_messages(self, window: int, promised: int) -> list[Message]:
        memory = self._memory
        backend_depth = self.backend.depth
        depth = len(memory) + backend_depth - promised
        if depth <= 0:
            return []
        # Ceiling of an equal share for this client and everybody who waits.
        limit = min(window, (depth + len(self._waiting)) // (len(self._waiting) + 1), MAX_TAKE)
        if backend_depth and (self._backend_first or not memory):
            self._backend_first = False
            messages = self._read_backend(limit)
            if messages or not memory:
                return messages
        self._backend_first = True
        if not memory:
            return []
        # If those behind the first are larger, the surplus goes back.
        limit = min(limit, len(memory), MAX_TAKE_BYTES // len(memory[0].frame) + 1)
        messages = [memory.popleft() for _ in range(limit)]
        size = 0
        for position, message in enumerate(messages):
            if size >= MAX_TAKE_BYTES:
                memory.extendleft(messages[: position - 1 : -1])
                return messages[:position]
            size += len(message.frame)
        return messages

    def _read_backend(self, limit: int) -> list[Message]:
        if self._journaled is not None:
            messages = self._journaled.take(limit, MAX_TAKE_BYTES)
            for message in messages:
                message.deferred = 0  # it was held back as long as it asked for
            return messages
        payloads = self.backend.peek_many(limit, MAX_TAKE_BYTES)
        messages = read_messages(payloads, self.backend, self._options.max_req_timeout)
        ready = [message for message in messages if not message.deferred]
        if len(ready) < len(messages):
            deferred = [message for message in messages if message.deferred]
            hold_back(deferred, self.backend)
            self._defer(deferred)
        self.backend.advance(len(payloads))
        return ready

    def stop_waiting(self, client: Consumer) -> None:
        """`client` takes nothing for now; if it was woken for something, the next in line is woken instead."""
        self._waiting.pop(client.id, None)
        self._woken.discard(client.id)
        if self._waiting and not self.paused:
            self._wake_waiting(self.depth - len(self._woken))

    def _go_to_the_end(self, client_id: int) -> None:
        """Move the client to the end of the line."""
        client = self._waiting.pop(client_id, None)
        if client is not None:
            self._waiting[client_id] = client

    def _wake_waiting(self, count: int) -> None:
        for client in list(islice(self._waiting.values(), max(count, 0))):
            del self._waiting[client.id]
            self._woken.add(client.id)
            client.wake()

    def finish_run(self, client_id: int, ids: list[bytes]) -> int:
        """FIN of several, up to the first that `client_id` does not have in flight; how many that were."""
        messages = self._in_flight.pop_run(ids, client_id)
        self._note_finished(messages)
        return len(messages)

    def finish(self, client_id: int, id: bytes) -> None:
        """FIN; BrokerError with the reason if `client_id` has no such message in flight."""
        self._note_finished([self._in_flight.pop(id, client_id)])

    def _note_finished(self, messages: list[Message]) -> None:
        if self._journaled is not None:
            self._journaled.note_finished(messages)
        if self.latencies is not None:
            now = time_ns()
            for message in messages:
                self.latencies.insert(now - message.timestamp)

    def requeue(self, client_id: int, id: bytes, delay: int) -> None:
        """REQ: back to the queue after `delay` ns; errors as `finish`."""
        message = self._in_flight.pop(id, client_id)
        self._go_to_the_end(client_id)
        self.requeue_count += 1
        if self._max_attempts and not self._set_aside([message], REQUEUED):
            return
        if delay > 0:
            self._hold(message, monotonic_ns() + delay)
            if self._journaled is not None:
                self._journaled.note_held(message, time_ns() + delay)
        else:
            self._enqueue([message])

    def touch(self, client_id: int, id: bytes, timeout: int) -> None:
        """TOUCH: `timeout` ns from now, never beyond max-msg-timeout since its delivery; errors as `finish`."""
        self._in_flight.touch(id, client_id, monotonic_ns() + timeout, self._options.max_msg_timeout)

    # From the queue scan

    def process_in_flight(self, now: int) -> bool:
        """Put back some of what timed out by `now` (monotonic ns); whether there was anything."""
        due = self._in_flight.pop_due(now, MAX_DUE)
        self.timeout_count += len(due)
        for message in due:
            self._go_to_the_end(message.client_id)
        self._enqueue(self._set_aside(due, TIMED_OUT) if self._max_attempts else due)
        for message in due:
            client = self.clients.get(message.client_id)
            if client is not None:
                client.timed_out_message()
        return bool(due)

    def process_deferred(self, now: int) -> bool:
        """Queue some of what is due by `now` (monotonic ns); whether there was anything."""
        due = self._deferred.pop_due(now, MAX_DUE)
        for message in due:
            message.deferred = 0
        self._enqueue(due)
        release(due, self.backend)
        if self._journaled is not None:
            count = self._journaled.release(now, MAX_DUE)
            if self._waiting and not self.paused:
                self._wake_waiting(count)
            return bool(due) or count > 0
        return bool(due)

    # Dead letters

    def _set_aside(self, messages: list[Message], reason: str) -> list[Message]:
        """Keep what was delivered max-attempts times for the dead-letter topic; the others."""
        others = []
        for message in messages:
            if message.attempts < self._max_attempts or len(self._aside) >= MAX_ASIDE:
                others.append(message)
            else:
                self._aside[message] = (reason, time_ns())
        if len(others) < len(messages):
            self._environment.note_dead(self)
        return others

    @property
    def has_set_aside(self) -> bool:
        return bool(self._aside)

    def look_aside(self, limit: int, max_bytes: int) -> list[tuple[Message, str, int]]:
        """What was set aside first: at most `limit` messages, together at most `max_bytes` but for a single larger one,
        each with why and when (wall clock, ns)."""
        found: list[tuple[Message, str, int]] = []
        for message, (reason, died) in islice(self._aside.items(), limit):
            max_bytes -= len(message.frame)
            if found and max_bytes < 0:
                break
            found.append((message, reason, died))
        return found

    def bury(self, messages: list[Message]) -> None:
        """They are in the dead-letter topic, and done with here."""
        buried = [message for message in messages if self._aside.pop(message, None) is not None]
        self.dead_letter_count += len(buried)
        if self._journaled is not None:
            self._journaled.note_finished(buried)

    def take_back(self) -> None:
        """Requeue everything that is set aside."""
        messages = list(self._aside)
        self._aside.clear()
        self._enqueue(messages)

    # From operators

    def peek(self, limit: int, max_bytes: int) -> list[tuple[Message, bool]]:
        """Some of the messages that wait; see `backend.look`."""
        return look(self._memory, self.backend, limit, max_bytes)

    def pause(self) -> None:
        self._set_paused(True)

    def unpause(self) -> None:
        self._set_paused(False)

    def _set_paused(self, paused: bool) -> None:
        self.paused = paused
        for client in self.clients.values():
            client.wake()

    def empty(self) -> None:
        """Drop everything: waiting, in flight and deferred."""
        self._in_flight = InFlight()
        self._deferred = Deferred()
        self._aside.clear()
        self._memory.clear()
        self.blocked = False
        for client in self.clients.values():
            client.emptied()
        self.backend.empty()

    def delete(self) -> None:
        """Drop everything, files included, and close the consumers' connections."""
        self._exit("deleting")
        self._environment.notify(self, not self.ephemeral)
        try:
            self.empty()
        finally:
            self.backend.delete()

    def close(self) -> tuple[int, int]:
        """Write everything to disk: what waits, then what is in flight, then what is deferred; how many messages could
        not be written, and how many queues could not be synced."""
        self._exit("closing")
        if self._memory or self._in_flight or self.deferred_count:
            self._log.info(
                "CHANNEL(%s): flushing %d memory %d in-flight %d deferred messages to backend",
                self.name,
                len(self._memory),
                len(self._in_flight),
                self.deferred_count,
            )
        now = monotonic_ns()
        for message in self._deferred:
            message.deferred = max(message.deadline - now, 1)
        messages = [*self._memory, *self._in_flight, *self._aside, *self._deferred]
        if self._journaled is not None:
            return convert(messages, self._journaled, self._environment.make_backend, self._log), 0
        lost = flush_messages(messages, self.backend, self._log.error)
        if is_ephemeral(self.topic_name):
            self.backend.delete()  # nothing will ever read these files
            return lost, 0
        return lost, 0 if self.backend.close() else 1

    # With a journal

    def take_over(self, messages: list[Message]) -> None:
        """Queue messages that were in a disk queue of this channel and are in the journal now."""
        self._defer([message for message in messages if message.deferred])
        self._enqueue([message for message in messages if not message.deferred])

    def _held_messages(self) -> Iterator[Held]:
        wall = time_ns() - monotonic_ns()
        return held_messages([*self._memory, *self._in_flight, *self._aside], [*self._deferred], wall)

    def exit(self) -> None:
        """Stop, and leave everything to the journal."""
        self._exit("closing")

    def _exit(self, how: str) -> None:
        self.exiting = True
        self._log.info("CHANNEL(%s): %s", self.name, how)
        for client in list(self.clients.values()):
            client.close()
