"""Moves messages that failed `--max-attempts` times to a topic of their own, as dead letters (`dead_letter_format`).

One greenlet puts a dead letter into the topic, waits until it is as durable as the options promise, and only then lets
the channel finish the message: after a kill it may be in both places, but never in none. Messages that the topic cannot
take are requeued.
"""

from gevent import Greenlet
from gevent.event import Event

from gnsqd.broker.channel import Channel
from gnsqd.broker.dead_letter_format import DeadLetter, dead_letter_topic
from gnsqd.broker.registry import Registry
from gnsqd.broker.topic import RETRY_SECONDS
from gnsqd.hub.cooperative import Spawn, yield_turn
from gnsqd.hub.doorbell import Doorbell
from gnsqd.log import Logger
from gnsqd.queues.message import Message
from gnsqd.shared.errors import BrokerError, StorageError

MAX_BATCH = 64
MAX_BATCH_BYTES = 1 << 20


class DeadLetters:
    """Owns `deadLetterLoop`, and the set of channels that have dead letters."""

    def __init__(self, registry: Registry, log: Logger, spawn: Spawn) -> None:
        self._registry = registry
        self._log = log
        self._spawn = spawn
        self._channels: dict[Channel, None] = {}
        self._doorbell = Doorbell()
        self._exit = Event()
        self._failing = False
        self._loop: Greenlet[..., None] | None = None

    def start(self) -> None:
        self._loop = self._spawn("deadLetterLoop", self.dead_letter_loop)

    def stop(self) -> None:
        """Stops the loop; dead letters that have not been moved stay with their channels. May yield."""
        self._exit.set()
        self._doorbell.ring()
        if self._loop is not None:
            self._loop.join()

    def note(self, channel: Channel) -> None:
        self._channels[channel] = None
        self._doorbell.ring()

    def dead_letter_loop(self) -> None:
        while not self._exit.is_set():
            if not self._channels:
                self._doorbell.wait()
                continue
            channel = next(iter(self._channels))
            del self._channels[channel]
            failure = self.move_some(channel)
            if channel.dead_messages:
                self._channels[channel] = None
            if failure is None:
                self._failing = False
                yield_turn()
            else:
                if not self._failing:  # one line for all failures in a row
                    self._failing = True
                    name = f"{channel.topic_name}:{channel.name}"
                    self._log.error("DEADLETTER(%s): failed to move messages, they are requeued - %s", name, failure)
                self._exit.wait(RETRY_SECONDS)  # or a consumer that fails at once would make it a busy loop

    def move_some(self, channel: Channel) -> Exception | None:
        """Moves some dead messages of a channel to its topic; if that fails, requeues all of them and returns why."""
        if not channel.dead_messages:  # it was emptied or deleted
            return None
        moved: list[Message] = []
        failure: Exception | None = None
        try:
            topic = self._registry.get_topic(dead_letter_topic(channel.topic_name, channel.name))
            # One by one, to know which are in, and without a yield, so that nobody empties the channel meanwhile.
            for message, reason, died in channel.dead_messages.look(MAX_BATCH, MAX_BATCH_BYTES):
                origin = message.id.decode("latin-1"), channel.topic_name, channel.name
                letter = DeadLetter(*origin, message.timestamp, message.attempts, reason, died, message.body)
                try:
                    topic.put_messages(topic.new_messages([letter.encode()]))
                except (BrokerError, StorageError) as error:
                    failure = error
                    break
                moved.append(message)
            topic.commit()
        except (BrokerError, StorageError) as error:
            failure = error
            moved = []  # what was put may be kept nevertheless, and then there are two of it
        channel.dead_messages.finish(moved)
        if failure is not None:
            channel.dead_messages.requeue()
        return failure
