"""A channel: one queue of a topic's messages, shared by its consumers.

Messages are in the channel's queue; `take` gives some to a consumer and notes them in flight; FIN, REQ, TOUCH and the
queue scan move them on from there. Only `close` and changes of the order yield; every other method is one step.

Consumers that could take a message but found none wait; a put wakes as many as it brought messages for. A consumer that
was not woken leaves one message for each that was, so that what a consumer requeued, or let time out, goes to
others. Each takes its share of the messages, so that several consumers of a busy channel get about as much each.

A channel with rules has a `Limiter`, which lowers how many messages may be taken.
"""

from collections.abc import Callable
from sys import maxsize
from time import monotonic_ns, time_ns

from gnsqd.broker.dead_letter_format import REQUEUED, TIMED_OUT, is_dead_letter_topic
from gnsqd.broker.environment import Consumer, Environment
from gnsqd.broker.in_flight import DeadMessages, InFlight
from gnsqd.broker.rules import MAX_DUE, Limiter, Rules
from gnsqd.quantile import Quantile
from gnsqd.queues.backend import Left
from gnsqd.queues.message import Message
from gnsqd.queues.ordering import arrange
from gnsqd.queues.queue import Queue
from gnsqd.shared.errors import BrokerError
from gnsqd.shared.names import is_ephemeral

# A consumer gets at most this much in one go, so that a large RDY starves nobody.
MAX_TAKE = 256
MAX_TAKE_BYTES = 256 * 1024

_NONE: list[Message] = []


class WaitingConsumers:
    """Consumers that can take a message but found none, in a line: the front is woken first. A consumer that was
    `woken` has a message promised until it comes."""

    def __init__(self) -> None:
        self.line: dict[Consumer, None] = {}
        self.woken: set[Consumer] = set()

    def leave(self, client: Consumer) -> int:
        """Removes `client` from the line; returns how many messages are promised to others: 0 if it was woken."""
        if client in self.woken:  # then it is not in the line
            self.woken.remove(client)
            return 0
        self.line.pop(client, None)
        return len(self.woken)

    def move_to_end(self, client: Consumer | None) -> None:
        """Moves `client` to the end of the line, if it waits."""
        if client is not None and client in self.line:
            del self.line[client]
            self.line[client] = None

    def wake(self, count: int) -> None:
        first: list[Consumer] = []  # compiled, this loop is faster than islice
        for client in self.line:
            if len(first) >= count:
                break
            first.append(client)
        for client in first:
            del self.line[client]
            self.woken.add(client)
            client.doorbell.ring()


class Channel:
    """Owns the queue, the messages in flight and the list of consumers of one channel.

    `on_last_client` is called when an ephemeral channel has lost its last consumer, `on_refused` when the disk has
    refused messages: `queue.retry` must be called from time to time until the queue is no longer `blocked`."""

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
        self.message_count = self.finish_count = self.requeue_count = self.timeout_count = 0
        self._environment = environment
        self._options = environment.options
        self._on_last_client = on_last_client
        self.readers = 0  # requests under way that read by ranges
        self.mark_used()
        self.emptied = 0  # monotonic ns
        self.in_flight = InFlight()
        self._alarm = maxsize  # when the queue scan looks at the channel (monotonic ns)
        max_attempts = 0 if is_dead_letter_topic(topic_name) else environment.options.max_attempts
        self.dead_messages = DeadMessages(max_attempts, queue, self._put_again)
        self.waiting = WaitingConsumers()
        # Sees the messages that a consumer takes from the queue, also those outside its sample.
        self.on_taken: Callable[[Consumer, list[Message]], None] | None = None
        self.latencies: Quantile | None = None
        if percentiles := environment.options.e2e_processing_latency_percentiles:
            self.latencies = Quantile(environment.options.e2e_processing_latency_window_time, percentiles)
        self.queue = queue
        assert queue.deferred is not None
        self.deferred = queue.deferred
        queue.outside = lambda: [*self.in_flight, *self.dead_messages]
        queue.on_refused = on_refused
        queue.on_more = self._on_more
        self.limiter: Limiter | None = None  # if there are rules
        self.configured_rules = environment.rules.configured_for(topic_name, name)
        self.set_rules(environment.rules.kept.get((topic_name, name), self.configured_rules))
        self._wake_at(self.deferred.next_due)
        environment.notify(self, not self.ephemeral)

    @property
    def depth(self) -> int:
        """The number of queued messages, in memory and on disk, without those in flight or deferred."""
        return self.queue.count()

    @property
    def deferred_count(self) -> int:
        """The number of messages that are held back, or on their way to the dead-letter topic."""
        return len(self.deferred) + len(self.dead_messages)

    def _available(self) -> int:
        """Returns how many messages consumers may take now: `depth`, or fewer by the rules."""
        return self.queue.count() if self.limiter is None else self.limiter.allowed(len(self.in_flight))

    def put_messages(self, messages: list[Message], deferred: list[Message] = _NONE, settle: bool = False) -> None:
        """Queues `messages`, and holds each of `deferred` back for the time it asks for. With `settle`, those come from
        a disk queue that forgets them when this returns. The channel must not be `exiting`."""
        self.message_count += len(messages) + len(deferred)
        if messages:
            self.queue.put(messages, len(self.waiting.line), keep=True)
            self._wake(len(messages))
        if deferred:
            defer = self.deferred.defer_read if settle else self.deferred.defer
            defer(deferred)
            self._wake_at(self.deferred.next_due)

    def _put_again(self, messages: list[Message]) -> None:
        self.queue.put_again(messages, len(self.waiting.line))
        self._wake(len(messages))

    def add_client(self, client: Consumer) -> None:
        """Adds a consumer; raises BrokerError if the channel ends, or has as many as max-channel-consumers allows."""
        if self.exiting:
            raise BrokerError("exiting")
        limit = self._options.max_channel_consumers
        if limit and len(self.clients) >= limit and client.id not in self.clients:
            raise BrokerError(f"consumers for {self.topic_name}:{self.name} exceeds limit of {limit}")
        self.clients[client.id] = client
        self.mark_used()

    def mark_used(self) -> None:
        """Counts the time without consumers from now on, as one is there or has just left, or after an unpausing."""
        self.idle_since = monotonic_ns()
        self.may_refuse = not self.ephemeral  # publishers, at a bound

    @property
    def is_used(self) -> bool:
        """True while somebody consumes it: a subscribed client, or a reader of ranges during a request."""
        return bool(self.clients or self.readers)

    def remove_client(self, client: Consumer) -> None:
        """Removes a consumer. Its messages in flight time out, in an ordered channel at once."""
        self.stop_waiting(client)
        if self.clients.pop(client.id, None) is None or self.exiting:
            return
        self.mark_used()
        self._time_out_abandoned()
        if not self.clients and self.ephemeral:
            self._on_last_client(self)

    def _time_out_abandoned(self) -> None:
        """Puts back the messages of consumers that have left an ordered channel, where all others wait for them."""
        if self.queue.ordered:
            self._time_out(self.in_flight.pop_abandoned(self.clients))

    def take(self, client: Consumer, window: int, timeout: int, sample_rate: int) -> list[Message]:
        """Gives `client` up to `window` messages, which are in flight for `timeout` ns from now on; returns them. If
        there is none, `client` waits; `depth` may be greater than 0 then, if the disk is unreadable for a while. With a
        `sample_rate` of N > 0 only N % of the messages are delivered, the rest is finished."""
        queue = self.queue
        waiting = self.waiting
        promised = waiting.leave(client)
        taken: list[Message] = []
        now = monotonic_ns()
        while not taken:
            queue.passed_over = False
            chosen = candidates = taken
            depth = self._available() - promised
            if depth > 0:
                # Ceiling of an equal share for this client, and everybody who waits or was woken for these messages.
                others = len(waiting.line) + len(waiting.woken)
                limit = min(window, (depth + others) // (others + 1), MAX_TAKE)
                chosen = candidates = queue.take(limit, MAX_TAKE_BYTES)
            if queue.passed_over:
                self._wake_at(self.deferred.next_due)
            if not candidates:
                waiting.line[client] = None
                if queue.passed_over:
                    waiting.wake(1)  # to go on behind these messages, after a turn of others
                return taken
            if self.on_taken is not None:
                self.on_taken(client, candidates)
            if sample_rate:
                from random import random  # imported late, as few clients ask for a sample

                chosen = [message for message in candidates if random() * 100 < sample_rate]
            taken = self.in_flight.push(chosen, client.id, now, timeout)
            if queue.backend.journaled:
                queue.backend.delivered(taken, candidates)
            if self.limiter is not None:
                self.limiter.delivered(len(taken))
        if now + timeout < self._alarm:
            self._wake_at(now + timeout)
        if waiting.line:
            self._wake(queue.count() - len(waiting.woken))
        return taken

    def waits(self, client: Consumer) -> bool:
        """Puts `client`, which could take more, at the end of the line, unless it has a message promised; False if it
        may take one now: one is promised to each woken consumer."""
        waiting = self.waiting
        if self._available() > len(waiting.woken):
            return False
        if client not in waiting.woken:
            waiting.line[client] = None
        return True

    def stop_waiting(self, client: Consumer) -> None:
        """Removes `client` from the line. If it was woken for a message, the next in line is woken instead."""
        self.waiting.leave(client)
        self._wake_others()

    def _wake_others(self) -> None:
        """Wakes consumers for the messages that are not promised to any."""
        self._wake(self.queue.count() - len(self.waiting.woken))

    def _wake(self, count: int) -> None:
        if count > 0 and self.waiting.line and not self.paused and not self.exiting:
            if self.limiter is not None:  # one at a time, so that the others still count for its share
                count = min(self._available() - len(self.waiting.woken), 1)
            self.waiting.wake(count)

    def _on_more(self, count: int, again: bool) -> None:
        if again:
            self.message_count += count
        self._wake_others()
        self._wake_at(self.deferred.next_due)

    def finish_run(self, client_id: int, fins: bytes) -> int:
        """Executes FINs, a result of `Decoder.next_fins`, up to the first whose message `client_id` does not have in
        flight; returns their number."""
        messages = self.in_flight.pop_run(fins, client_id)
        self._note_finished(messages)
        return len(messages)

    def finish(self, client_id: int, id: bytes) -> None:
        """Executes FIN; raises BrokerError with the reason if `client_id` has no such message in flight."""
        self._note_finished([self.in_flight.pop(id, client_id)])

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
        """Executes REQ: the message is queued again after `delay` ns; errors as `finish`."""
        message = self.in_flight.pop(id, client_id)
        self.waiting.move_to_end(self.clients.get(client_id))
        self.requeue_count += 1
        if self._unless_dead([message], REQUEUED):
            if delay <= 0:
                self._put_again([message])
                return
            self.deferred.defer_again(message, delay)
            self._wake_at(self.deferred.next_due)
        if self.limiter is not None:
            self._wake(1)

    def touch(self, client_id: int, id: bytes, timeout: int) -> None:
        """Moves the time-out to `timeout` ns from now, max-msg-timeout after delivery at most; errors as `finish`."""
        self._wake_at(self.in_flight.touch(id, client_id, monotonic_ns() + timeout, self._options.max_msg_timeout))

    def _wake_at(self, due: int) -> None:
        """Lets the queue scan look at the channel at `due` (monotonic ns), unless it will earlier."""
        if due < self._alarm:
            self._alarm = due
            self._environment.wake_at(self, due)

    def process_due(self, now: int) -> None:
        """Moves some messages that timed out or are due by `now` (monotonic ns), and sets the alarm for the next."""
        self._alarm = maxsize
        self._time_out(self.in_flight.pop_due(now, MAX_DUE))
        self._wake(self.queue.release(now, MAX_DUE, len(self.waiting.line)))
        self._wake_at(min(self.in_flight.next_due, self.deferred.next_due))

    def _time_out(self, messages: list[Message]) -> None:
        self.timeout_count += len(messages)
        clients = [client for message in messages if (client := self.clients.get(message.client_id)) is not None]
        for client in clients:
            self.waiting.move_to_end(client)
        self._put_again(self._unless_dead(messages, TIMED_OUT))
        for client in clients:
            client.left_flight(1)

    def _unless_dead(self, messages: list[Message], reason: str) -> list[Message]:
        """Returns the messages that were not delivered max-attempts times; the others become dead letters."""
        others = self.dead_messages.add(messages, reason)
        if len(others) < len(messages):
            self._environment.note_dead(self)
        return others

    def set_rules(self, rules: Rules) -> None:
        """Changes the rules. May yield."""
        self.rules = rules
        timeout = rules.idle_timeout
        if timeout is None:  # dead letters wait for somebody to look at them
            timeout = 0 if is_dead_letter_topic(self.topic_name) else self._options.channel_idle_timeout
        self.idle_timeout = 0 if self.ephemeral else timeout
        self.idle_policy = rules.idle_policy or self._options.channel_idle_policy
        if self.idle_timeout:
            self._environment.watch_idle()
        if self.limiter is None and rules.limits_delivery:
            self.limiter = Limiter(self.queue, lambda: None if self.paused else self.waiting.wake(1))
        if self.limiter is not None:
            self.limiter.set(rules)
            if not rules.limits_delivery:
                self.limiter = None
            self._time_out_abandoned()
            self._wake_others()

    def cancel(self, due: int, message: Message) -> None:
        """Drops a message that is held back until `due`. May yield."""
        self.deferred.cancel(due, message)
        self.queue.finish([message])
        if self.queue.ordered and due == self.deferred.resume_at:
            arrange(self.queue)
        self._wake_others()

    def pause(self, paused: bool = True) -> None:
        self.paused = paused
        if not paused:
            self.mark_used()  # or it would be paused again at once
        for client in self.clients.values():
            client.doorbell.ring()

    def empty(self) -> None:
        """Drops all messages: queued, in flight and deferred. Raises StorageError."""
        self.emptied = monotonic_ns()
        self._forget()
        self.queue.empty()

    def _forget(self) -> None:
        self.in_flight = InFlight()
        self.dead_messages.clear()
        for client in self.clients.values():
            client.emptied()

    def delete(self) -> None:
        """Drops all messages, files included, and closes the consumers' connections. Raises StorageError."""
        self._exit("deleting")
        self._environment.notify(self, not self.ephemeral)
        self._forget()
        self.queue.delete()

    def close(self) -> Left:
        """Closes as `Queue.close`, and the consumers' connections. May yield."""
        self._exit("closing")
        return self.queue.close()

    def _exit(self, how: str) -> None:
        self.exiting = True
        self._environment.wake_at(self, maxsize)
        if self.limiter is not None:
            self.limiter.stop()
        self._environment.log.info("CHANNEL(%s): %s", self.name, how)
        for client in list(self.clients.values()):
            client.close()
