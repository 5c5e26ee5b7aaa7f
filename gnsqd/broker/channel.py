"""A channel: one queue of a topic's messages, shared by its consumers.

Messages are in the channel's queue; `take` gives some to a consumer and notes them in flight; FIN, REQ, TOUCH and the
queue scan move them on from there. Nothing here yields but `close`, `rewind` and what changes the order, so every other
method is one step as far as other greenlets can see.

Consumers that could take a message but found none wait; a put wakes as many as it brought messages for. A consumer that
was not woken leaves one message for each that was, so that what a consumer requeued, or let time out, goes to
others. Each takes its share of what is there, not all of it, so that several consumers of a busy channel get about as
much each.

A channel with rules has a `Limiter`, which lowers how many messages are there to be taken.
"""

from collections.abc import Callable
from operator import attrgetter
from random import random
from sys import maxsize
from time import monotonic_ns, time_ns

from gnsqd.broker.dead_letter_format import REQUEUED, TIMED_OUT, is_dead_letter_topic
from gnsqd.broker.environment import Consumer, Environment
from gnsqd.broker.in_flight import DeadMessages, InFlight
from gnsqd.broker.rules import Limiter, Rules
from gnsqd.options import TOPOLOGY_AWARE
from gnsqd.quantile import Quantile, Result
from gnsqd.queues.message import Message
from gnsqd.queues.queue import Left, Queue
from gnsqd.shared.errors import BrokerError
from gnsqd.shared.names import is_ephemeral

# A consumer gets at most this much in one go, so that a large RDY starves nobody.
MAX_TAKE = 256
MAX_TAKE_BYTES = 256 * 1024
MAX_DUE = 1024  # messages that one step of the queue scan moves


_rank = attrgetter("rank")


class WaitingConsumers:
    """Consumers that can take a message but found none, in a line: who is at its front is woken first, or with `ranked`
    the first of those with the lowest rank. A consumer that was woken has a message promised until it comes."""

    def __init__(self, ranked: bool) -> None:
        self._ranked = ranked
        self._waiting: dict[Consumer, None] = {}
        self._woken: set[Consumer] = set()

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def promised(self) -> int:
        """Messages that woken consumers have yet to take, one each."""
        return len(self._woken)

    def leave(self, client: Consumer) -> int:
        """It does not wait. How many messages are promised to others: none if it was woken itself."""
        self._waiting.pop(client, None)
        if client in self._woken:
            self._woken.remove(client)
            return 0
        return len(self._woken)

    def join(self, client: Consumer) -> None:
        """It waits at the end of the line."""
        self._waiting[client] = None

    def go_to_the_end(self, client: Consumer | None) -> None:
        """If it waits, then at the end of the line from now on."""
        if client is not None and client in self._waiting:
            del self._waiting[client]
            self._waiting[client] = None

    def wake(self, count: int) -> None:
        """Wake the first `count` of the line."""
        line = sorted(self._waiting, key=_rank) if self._ranked else self._waiting
        first: list[Consumer] = []  # compiled, this loop is faster than islice
        for client in line:
            if len(first) >= count:
                break
            first.append(client)
        for client in first:
            del self._waiting[client]
            self._woken.add(client)
            client.wake()


class Channel:
    """Owns the queue, the messages in flight and the list of consumers of one channel.

    `on_last_client` is called when an ephemeral channel has lost its last consumer, `on_refused` when the disk has
    refused messages: `queue.retry` is to be called from time to time then until the queue is no longer `blocked`."""

    def __init__(
        self,
        topic_name: str,
        name: str,
        environment: Environment,
        queue: Queue,
        on_last_client: "Callable[[Channel], None]",
        on_refused: Callable[[], None],
    ) -> None:
        self.topic_name = topic_name
        self.name = name
        self.ephemeral = is_ephemeral(name)
        self.clients: dict[int, Consumer] = {}
        self.paused = self.exiting = False
        self.message_count = self.finish_count = self.requeue_count = self.timeout_count = self.dead_letter_count = 0
        self._environment = environment
        self._log = environment.log
        self._options = environment.options
        self._on_last_client = on_last_client
        self._in_flight = InFlight()
        self._alarm = maxsize  # when the queue scan looks at the channel (monotonic ns)
        self.dead_letters = DeadMessages(0 if is_dead_letter_topic(topic_name) else environment.options.max_attempts)
        self._waiting = WaitingConsumers(TOPOLOGY_AWARE in environment.options.experiments)
        # Messages from memory, by the locality of the consumer.
        self.local_counts: list[int] | None = [0, 0, 0] if environment.options.has_topology else None
        self.latencies: Quantile | None = None
        if percentiles := environment.options.e2e_processing_latency_percentiles:
            self.latencies = Quantile(environment.options.e2e_processing_latency_window_time, percentiles)
        self.queue = queue
        queue.outside = self._outside
        queue.on_refused = on_refused
        queue.on_more = self._on_more
        self.limiter: Limiter | None = None  # if there are rules
        self._configured = environment.rules.configured.get((topic_name, name), Rules())
        self.set_rules(environment.rules.kept.get((topic_name, name), self._configured))
        self._wake_at(queue.next_due)
        environment.notify(self, not self.ephemeral)

    @property
    def depth(self) -> int:
        """Messages waiting, in memory and on disk; not those in flight or deferred."""
        return self.queue.count()

    @property
    def backend_depth(self) -> int:
        return self.queue.stored()

    @property
    def in_flight_count(self) -> int:
        return len(self._in_flight)

    @property
    def deferred_count(self) -> int:
        return self.queue.deferred_count + len(self.dead_letters)

    def available(self) -> int:
        """Messages that consumers may take now: `depth`, or fewer by the rules."""
        return self.queue.count() if self.limiter is None else self.limiter.allowed(len(self._in_flight))

    def has_more(self) -> bool:
        """Whether a consumer that was not woken may take a message now: one is promised to each woken consumer."""
        return self.available() > self._waiting.promised

    def _outside(self) -> list[Message]:
        """Messages that are in no queue."""
        return [*self._in_flight, *self.dead_letters]

    def e2e_latency(self) -> Result | None:
        """How long messages took from being published to FIN; None if no percentiles are configured."""
        return None if self.latencies is None else self.latencies.result()

    # From the topic

    def put_messages(self, messages: list[Message]) -> None:
        """Queue messages of this channel's own. It must not be `exiting`."""
        self.message_count += len(messages)
        self._enqueue(messages)

    def put_messages_deferred(self, messages: list[Message], stored: bool = False) -> None:
        """As `put_messages`, but hold each back for the time it asks for; `stored` as for `Queue.defer`."""
        self.message_count += len(messages)
        self.queue.defer(messages, stored)
        self._wake_at(self.queue.next_due)

    def _enqueue(self, messages: list[Message]) -> None:
        self.queue.put_all(messages, len(self._waiting))
        self._wake(len(messages))

    def _enqueue_again(self, messages: list[Message]) -> None:
        """Queue messages that were delivered before."""
        self.queue.put_again(messages, len(self._waiting))
        self._wake(len(messages))

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
        """What it has in flight stays so until it times out, which in an ordered channel is at once."""
        self.stop_waiting(client)
        if self.clients.pop(client.id, None) is None or self.exiting:
            return
        self._time_out_abandoned()
        if not self.clients and self.ephemeral:
            self._on_last_client(self)

    def _time_out_abandoned(self) -> None:
        """In an ordered channel, where they hold up all others, put back the messages of consumers that have left."""
        if self.queue.ordered:
            self._time_out(self._in_flight.pop_abandoned(self.clients))

    def take(self, client: Consumer, window: int, timeout: int, sample_rate: int) -> list[Message]:
        """Up to `window` messages for `client`, noted in flight for `timeout` ns.

        [] lets it wait for more, even if `depth` isn't 0: what is on disk may be unreadable for a while. With a
        `sample_rate` of N > 0 only N % of the messages are delivered, the rest are consumed silently."""
        queue = self.queue
        waiting = self._waiting
        promised = waiting.leave(client)
        taken: list[Message] = []
        now = monotonic_ns()
        while not taken:
            held_back = queue.deferred_count
            candidates = self._next_messages(window, promised)
            holds_more = queue.deferred_count > held_back
            if holds_more:
                self._wake_at(queue.next_due)
            if not candidates:
                waiting.join(client)
                if holds_more:
                    waiting.wake(1)  # to go on behind messages that are not due yet
                return taken
            chosen = candidates
            if self.local_counts is not None and queue.from_memory():
                self.local_counts[client.locality] += len(candidates)
            if sample_rate:
                chosen = [message for message in candidates if random() * 100 < sample_rate]
            chosen = queue.fresh(chosen)
            taken = self._in_flight.push(chosen, client.id, now, timeout)
            queue.taken(candidates, taken)
            if self.limiter is not None:
                self.limiter.delivered(len(taken))
            if not taken and queue.ttl:
                waiting.join(client)
                waiting.wake(1)  # behind what was too old, but not in one turn
                return taken
        self._wake_at(now + timeout)
        if len(waiting):
            self._wake(queue.count() - waiting.promised)
        return taken

    def _next_messages(self, window: int, promised: int) -> list[Message]:
        depth = self.available() - promised
        if depth <= 0:
            return []
        others = len(self._waiting) + self._waiting.promised
        # Ceiling of an equal share for this client, and everybody who waits or was woken for these messages.
        limit = min(window, (depth + others) // (others + 1), MAX_TAKE)
        return self.queue.take(limit, MAX_TAKE_BYTES)

    def wait(self, client: Consumer) -> None:
        """`client`, which was given all that is there, could take more."""
        self._waiting.join(client)

    def stop_waiting(self, client: Consumer) -> None:
        """`client` takes nothing for now; if it was woken for something, the next in line is woken instead."""
        self._waiting.leave(client)
        self._wake(self.depth - self._waiting.promised)

    def _wake(self, count: int) -> None:
        """That many messages are there to be taken."""
        if count > 0 and len(self._waiting) and not self.paused and not self.exiting:
            if self.limiter is not None:  # one at a time, so that the others still count for its share
                count = min(self.available() - self._waiting.promised, 1)
            self._waiting.wake(count)

    def _on_more(self, count: int) -> None:
        """That many messages came to the queue by themselves, and others that it holds back."""
        self._wake(count)
        self._wake_at(self.queue.next_due)

    def finish_run(self, client_id: int, ids: list[bytes]) -> int:
        """FIN of several, up to the first that `client_id` does not have in flight; how many that were."""
        messages = self._in_flight.pop_run(ids, client_id)
        self._note_finished(messages)
        return len(messages)

    def finish(self, client_id: int, id: bytes) -> None:
        """FIN; BrokerError with the reason if `client_id` has no such message in flight."""
        self._note_finished([self._in_flight.pop(id, client_id)])

    def _note_finished(self, messages: list[Message]) -> None:
        self.finish_count += len(messages)
        self.queue.finish(messages)
        if self.limiter is not None:
            self._wake(1)
        if self.latencies is not None:
            now = time_ns()
            for message in messages:
                self.latencies.insert(now - message.timestamp)

    def requeue(self, client_id: int, id: bytes, delay: int) -> None:
        """REQ: back to the queue after `delay` ns; errors as `finish`."""
        message = self._in_flight.pop(id, client_id)
        self._waiting.go_to_the_end(self.clients.get(client_id))
        self.requeue_count += 1
        if not self._unless_dead([message], REQUEUED):
            if self.limiter is not None:
                self._wake(1)
            return
        if delay > 0:
            self.queue.defer_again(message, delay)
            self._wake_at(self.queue.next_due)
            if self.limiter is not None:
                self._wake(1)
        else:
            self._enqueue_again([message])

    def touch(self, client_id: int, id: bytes, timeout: int) -> None:
        """TOUCH: `timeout` ns from now, never beyond max-msg-timeout since its delivery; errors as `finish`."""
        self._wake_at(self._in_flight.touch(id, client_id, monotonic_ns() + timeout, self._options.max_msg_timeout))

    # From the queue scan

    def _wake_at(self, due: int) -> None:
        """Let the queue scan look at the channel at `due` (monotonic ns), unless it will earlier."""
        if due < self._alarm:
            self._alarm = due
            self._environment.wake_at(self, due)

    def process_due(self, now: int) -> None:
        """Put back some of what timed out, and queue some of what is due, by `now` (monotonic ns). The queue scan is
        asked to look again when the next message is."""
        self._alarm = maxsize
        self.process_in_flight(now)
        self.process_deferred(now)
        self._wake_at(min(self._in_flight.next_due, self.queue.next_due))

    def process_in_flight(self, now: int) -> bool:
        """Put back some of what timed out by `now` (monotonic ns); whether there was anything."""
        due = self._in_flight.pop_due(now, MAX_DUE)
        self._time_out(due)
        return bool(due)

    def _time_out(self, messages: list[Message]) -> None:
        """Put back messages that were in flight until now."""
        self.timeout_count += len(messages)
        clients = [client for message in messages if (client := self.clients.get(message.client_id)) is not None]
        for client in clients:
            self._waiting.go_to_the_end(client)
        self._enqueue_again(self._unless_dead(messages, TIMED_OUT))
        for client in clients:
            client.timed_out_message()

    def process_deferred(self, now: int) -> bool:
        """Queue some of what is due by `now` (monotonic ns); whether there was anything."""
        count = self.queue.release(now, MAX_DUE, len(self._waiting))
        self._wake(count)
        return count > 0

    # Dead letters

    def _unless_dead(self, messages: list[Message], reason: str) -> list[Message]:
        """Returns messages that were not delivered max-attempts times; the others become dead letters."""
        others = self.dead_letters.add(messages, reason)
        if len(others) < len(messages):
            self._environment.note_dead(self)
        return others

    def finish_dead_letters(self, messages: list[Message]) -> None:
        """Finishes messages that are in the dead-letter topic."""
        moved = self.dead_letters.remove(messages)
        self.dead_letter_count += len(moved)
        self.queue.finish(moved)

    def requeue_dead_letters(self) -> None:
        """Requeues all dead letters."""
        self._enqueue_again(self.dead_letters.clear())

    # Rules

    @property
    def rules(self) -> Rules:
        return Rules() if self.limiter is None else self.limiter.rules

    @property
    def own_rules(self) -> dict[str, object] | None:
        """The rules by name, if they are not those of the options."""
        return None if self.rules == self._configured else self.rules._asdict()

    def set_rules(self, rules: Rules) -> None:
        """May yield."""
        if self.limiter is None and rules != Rules():
            self.limiter = Limiter(self.queue, self._on_time)
        if self.limiter is not None:
            self.limiter.set(rules)
            if rules == Rules():
                self.limiter = None
            self._time_out_abandoned()
            self._wake(self.depth - self._waiting.promised)

    def cancel(self, due: int, message: Message) -> None:
        """Drop a message that is held back until `due`. May yield."""
        self.queue.cancel(due, message)
        self.queue.cancelled(due)
        self._wake(self.depth - self._waiting.promised)

    def _on_time(self) -> None:
        if not self.paused:
            self._waiting.wake(1)

    # From operators

    def pause(self, paused: bool = True) -> None:
        self.paused = paused
        for client in self.clients.values():
            client.wake()

    def unpause(self) -> None:
        self.pause(False)

    def empty(self) -> None:
        """Drop everything: queued, in flight and deferred."""
        self._forget()
        self.queue.empty()

    def _forget(self) -> None:
        self._in_flight = InFlight()
        self.dead_letters.clear()
        for client in self.clients.values():
            client.emptied()

    def rewind(self, start: int, end: int) -> int:
        """Queue messages once more, as `Queue.rewind`; unfinished ones are not changed."""
        if self.exiting:
            raise BrokerError("exiting")
        return self.queue.rewind(start, end, self._note_rewound)

    def _note_rewound(self, count: int) -> None:
        self.message_count += count
        self._on_more(self.queue.count() - self._waiting.promised)

    def delete(self) -> None:
        """Drop everything, files included, and close the consumers' connections."""
        self._exit("deleting")
        self._environment.notify(self, not self.ephemeral)
        self._forget()
        self.queue.delete()

    def close(self) -> Left:
        """Keep everything as the store does. May yield."""
        self._exit("closing")
        return self.queue.close()

    def _exit(self, how: str) -> None:
        self.exiting = True
        self._environment.wake_at(self, maxsize)
        if self.limiter is not None:
            self.limiter.stop()
        self._log.info("CHANNEL(%s): %s", self.name, how)
        for client in list(self.clients.values()):
            client.close()
