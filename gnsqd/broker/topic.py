"""A topic: where publishers put messages, and the pump that hands each to every channel.

Messages wait in memory, or on disk once memory is full, until the pump takes them a batch at a time. A batch in hand
never crosses a yield: between reading it and the last channel taking it nothing else runs, so emptying, deleting and
counting need no locks and lose nothing.
"""

from collections import deque
from collections.abc import Callable
from time import monotonic, time_ns

from gnsqd.broker.backend import flush_messages, look, read_messages, write_messages
from gnsqd.broker.bounds import BoundedQueue, Bounds, memory_queue
from gnsqd.broker.channel import MAX_TAKE_BYTES, Channel
from gnsqd.broker.environment import Environment
from gnsqd.broker.journaled import JournaledQueue
from gnsqd.broker.message import BODY_AT, Message, new_messages
from gnsqd.broker.names import is_ephemeral
from gnsqd.broker.topic_journal import TopicJournal
from gnsqd.errors import BrokerError, StorageError
from gnsqd.hub.cooperative import Turns, give_way
from gnsqd.hub.doorbell import Doorbell
from gnsqd.quantile import Result
from gnsqd.storage.backend_queue import BackendQueue, DummyBackendQueue

MAX_BATCH = 256
MAX_PUT = 2048
RETRY_SECONDS = 1.0


class ChannelNotFound(BrokerError):
    """The topic has no channel of that name."""


class Draining(BrokerError):
    """Publishers are refused, for now at least: the daemon drains."""

    def __init__(self) -> None:
        super().__init__("draining")


class Topic:
    """Owns one topic's queue, its channels and their pump. It moves nothing before `start`."""

    def __init__(self, name: str, environment: Environment, on_last_channel: "Callable[[Topic], None]") -> None:
        self.name = name
        self.ephemeral = is_ephemeral(name)
        self.channels: dict[str, Channel] = {}
        self.paused = False
        self.exiting = False
        self.draining = False
        self.message_count = 0
        self.message_bytes = 0
        self._environment = environment
        self._log = environment.log
        self._ids = environment.ids
        self._on_last_channel = on_last_channel
        self._capacity = environment.options.mem_queue_size
        self._max_delay = environment.options.max_req_timeout
        self._memory: deque[Message] = memory_queue(environment.options)
        self._backend_first = False
        self._started = False
        self._doorbell = Doorbell()
        journal = None if self.ephemeral else environment.open_journal(name)
        self._journal: TopicJournal | None = None
        self._journaled: JournaledQueue | None = None
        self.backend: BackendQueue
        if journal is not None:
            self._journal = TopicJournal(name, journal, environment)
            self.backend = self._journaled = self._journal.queue
        elif self.ephemeral:
            self.backend = DummyBackendQueue(name)
        else:
            self.backend = environment.make_backend(name)
        self.bounded: BoundedQueue | None = None  # without bounds
        self.bounds: Bounds | None = None
        if environment.options.bounded:
            self.bounded = BoundedQueue(self._memory, self.backend, self._journaled, environment.options)
            self.bounds = Bounds(name, self.bounded, self.channels, environment.options, environment.free_disk)
        self._pump = environment.spawn(f"messagePump:{name}", self.messagePump)
        environment.notify(self, not self.ephemeral)

    @property
    def depth(self) -> int:
        """Messages that no channel has yet, in memory and on disk."""
        return len(self._memory) + self.backend.depth

    @property
    def backend_depth(self) -> int:
        return self.backend.depth

    def e2e_latency(self) -> Result | None:
        """How long messages took from being published to FIN, over all channels; None if no percentiles are configured
        or there is no channel. May yield."""
        streams = [channel.latencies for channel in self.channels.values() if channel.latencies is not None]
        return streams[0].merged(Turns().over(streams)) if streams else None

    def start(self) -> None:
        """Let messages move: all channels that must not miss any are there. May yield."""
        if self._journal is not None:
            self._journal.end_replay(list(self.channels.values()))
        self._started = True
        self._doorbell.ring()

    # From publishers

    def new_messages(self, bodies: list[bytes], deferred: int = 0) -> list[Message]:
        """Messages of this topic, not yet put; `deferred` is the ns to hold them back in every channel."""
        now = time_ns()
        return new_messages(self._ids.next_ids(now, len(bodies)), now, bodies, deferred)

    def put_messages(self, messages: list[Message]) -> None:
        """Queue what was just published; BrokerError("exiting") or StorageError if that can't be.

        After a StorageError those that came before the failing one stay queued. Call `commit` before telling the
        publisher that they are kept.
        """
        if self.exiting:
            raise BrokerError("exiting")
        failure = None
        if self._journal is not None:
            self._journal.put(messages)
        room = self._capacity - len(self._memory)
        if self._nothing_before(len(messages)):
            self._hand_over(messages)
        elif len(messages) <= room:
            self._memory.extend(messages)
            self._doorbell.ring()
        elif not self._capacity and self._flowing() and self.ephemeral:
            # There is neither memory nor disk to wait in.
            self._hand_over(messages)
        else:
            room = max(room, 0)
            self._memory.extend(messages[:room])
            if self._journaled is not None:
                self._journaled.put(messages[room:])
            else:
                failure = self._write_to_backend(messages[room:])
            self._doorbell.ring()
            if failure is not None:
                messages = messages[: room + failure.written]
        self.message_count += len(messages)
        size = 0
        for message in messages:
            size += len(message.frame)
        self.message_bytes += size - BODY_AT * len(messages)
        if failure is not None:
            raise failure

    def _nothing_before(self, count: int) -> bool:
        """Whether so few messages may go to the channels right away, as the pump would do it: nothing waits here, and
        they have room in memory."""
        if self._memory or not self._flowing() or count * len(self.channels) > MAX_BATCH or self.backend.depth:
            return False
        for channel in self.channels.values():  # noqa: SIM110 (compiled methods have no generators)
            if not channel.has_room(count):
                return False
        return True

    def _write_to_backend(self, messages: list[Message]) -> StorageError | None:
        try:
            write_messages(messages, self.backend)
        except StorageError as error:
            self._environment.set_health(error)
            self._log.error("TOPIC(%s) ERROR: failed to write message to backend - %s", self.name, error)
            return error
        self._environment.set_health(None)
        return None

    def publish(self, bodies: list[bytes], deferred: int = 0) -> None:
        """Put messages of these bodies; errors as `put_messages`, and Draining or OutOfBounds, with nothing put. Of
        very many at once it makes several turns."""
        if self.draining:
            raise Draining
        if self.bounds is not None:
            self.bounds.admit(bodies)
        for first in range(0, len(bodies), MAX_PUT):
            if first:
                self.commit()
                give_way()
            self.put_messages(self.new_messages(bodies[first : first + MAX_PUT], deferred))
            if self.bounds is not None:
                self.bounds.trim(2 * min(len(bodies), MAX_PUT))

    def commit(self) -> None:
        """Return when what was put is kept as surely as the options promise; StorageError if it isn't. May yield."""
        if self._journal is None:
            self.backend.wait_synced()
        else:
            self._journal.commit()

    # Channels

    def get_channel(self, name: str) -> Channel:
        """The channel of that name, new if there is none yet; BrokerError("exiting") or StorageError."""
        channel = self.channels.get(name)
        if channel is None:
            if self.exiting:
                raise BrokerError("exiting")
            journaled = None
            if self._journal is not None and not is_ephemeral(name):
                journaled = self._journal.channel_queue(name)
            channel = self.channels[name] = Channel(
                self.name, name, self._environment, self._delete_soon, self._doorbell.ring, journaled=journaled
            )
            if self._journal is not None and self._started:
                self._journal.import_channel(channel)
            self._log.info("TOPIC(%s): new channel(%s)", self.name, name)
            self._doorbell.ring()
        return channel

    @property
    def restored_channels(self) -> list[str]:
        """Those that only the journal knows so far."""
        return self._journal.restored_channels if self._journal is not None else []

    def get_existing_channel(self, name: str) -> Channel:
        channel = self.channels.get(name)
        if channel is None:
            raise ChannelNotFound("channel does not exist")
        return channel

    def delete_existing_channel(self, name: str) -> None:
        """Drop a channel with all its messages; ChannelNotFound. The last one takes an ephemeral topic with it."""
        channel = self.get_existing_channel(name)
        if channel.exiting:
            return
        self._log.info("TOPIC(%s): deleting channel %s", self.name, name)
        try:
            channel.delete()
            if self._journal is not None:
                self._journal.remove_channel(name)
        finally:
            self.channels.pop(name, None)
            if self.ephemeral and not self.channels and not self.exiting:
                self._on_last_channel(self)

    def _delete_soon(self, channel: Channel) -> None:
        def delete() -> None:
            if self.channels.get(channel.name) is channel and not channel.clients:
                try:
                    self.delete_existing_channel(channel.name)
                except StorageError as error:
                    self._log.error("TOPIC(%s): deleting channel %s - %s", self.name, channel.name, error)

        self._environment.spawn(f"delete:{self.name}:{channel.name}", delete)

    # The pump

    def _flowing(self) -> bool:
        return self._started and not self.paused and bool(self.channels)

    def messagePump(self) -> None:
        """Hand every message to every channel, until exit."""
        while not self.exiting:
            blocked = [channel for channel in self.channels.values() if channel.blocked]
            for channel in blocked:
                channel.retry_overflow()
            if any(channel.blocked for channel in blocked):
                self._wait_to_retry()
            elif self._flowing() and self._pump_batch():
                for channel in list(self.channels.values()):
                    channel.backend.wait_synced()
                if self.depth:
                    give_way()
            else:
                # What can't be read from disk just now is tried again.
                self._doorbell.wait(RETRY_SECONDS if self._flowing() and self.depth else -1.0)
        self._log.info("TOPIC(%s): closing ... messagePump", self.name)

    def _wait_to_retry(self) -> None:
        """However often the bell is rung: every attempt that fails is a line in the log."""
        end = monotonic() + RETRY_SECONDS
        while not self.exiting and (left := end - monotonic()) > 0:
            self._doorbell.wait(left)

    def _pump_batch(self) -> bool:
        memory = self._memory
        if self._journaled is not None and self.backend.depth and (self._backend_first or not memory):
            self._backend_first = False
            messages = self._journaled.take(MAX_BATCH, MAX_TAKE_BYTES)
            if messages:
                self._hand_over(messages)
            return bool(messages)
        if self.backend.depth and (self._backend_first or not memory):
            payloads = self.backend.peek_many(MAX_BATCH, MAX_TAKE_BYTES)
            self._hand_over(read_messages(payloads, self.backend, self._max_delay), True)
            self.backend.advance(len(payloads))
            self._backend_first = False
            return bool(payloads)
        self._backend_first = True
        if len(memory) <= MAX_BATCH:
            batch = list(memory)
            memory.clear()
        else:
            batch = [memory.popleft() for _ in range(MAX_BATCH)]
        if batch:
            self._hand_over(batch)
        return bool(batch)

    def _hand_over(self, messages: list[Message], from_disk: bool = False) -> None:
        if self._journaled is not None:
            self._journaled.note_finished(messages)
        deferred = [message for message in messages if message.deferred]
        if deferred:
            messages = [message for message in messages if not message.deferred]
        copied = False
        for channel in self.channels.values():
            if channel.exiting:
                continue
            if copied:
                messages = [message.copy() for message in messages]
                deferred = [message.copy() for message in deferred]
            copied = True
            if messages:
                channel.put_messages(messages)
            if deferred:
                channel.put_messages_deferred(deferred, from_disk)

    # From operators

    def peek(self, limit: int, max_bytes: int) -> list[tuple[Message, bool]]:
        """Some of the messages that no channel has yet; see `backend.look`."""
        return look(self._memory, self.backend, limit, max_bytes)

    def pause(self) -> None:
        """Keep messages here; publishers go on."""
        self.paused = True

    def unpause(self) -> None:
        self.paused = False
        self._doorbell.ring()

    def empty(self) -> None:
        """Drop what no channel has yet."""
        self._memory.clear()
        if self._journaled is not None:
            self._journaled.empty_topic()
        else:
            self.backend.empty()

    def delete(self) -> None:
        """Drop the topic, its channels and all their messages, files included. May yield."""
        self._stop_pump("deleting")
        self._environment.notify(self, not self.ephemeral)
        failure = None
        deletes = [*(channel.delete for channel in self.channels.values()), self.empty, self.backend.delete]
        if self._journal is not None:
            deletes.insert(0, self._journal.remove)
        for delete in deletes:
            try:
                delete()
            except StorageError as error:
                failure = error
        self.channels.clear()
        if failure is not None:
            raise failure

    def close(self) -> tuple[int, int]:
        """Write everything to disk, channel by channel, then what no channel has yet; result as `Channel.close`. May
        yield."""
        self._stop_pump("closing")
        if self._journal is not None:
            self._journal.convert(self._memory, list(self.channels.values()))
            return 0, 0
        lost = unsynced = 0
        for channel in list(self.channels.values()):
            channel_lost, channel_unsynced = channel.close()
            lost += channel_lost
            unsynced += channel_unsynced
        if self._memory:
            self._log.info("TOPIC(%s): flushing %d memory messages to backend", self.name, len(self._memory))
        lost += flush_messages(list(self._memory), self.backend, self._log.error)
        if not self.backend.close():
            unsynced += 1
        return lost, unsynced

    def _stop_pump(self, how: str) -> None:
        self.exiting = True
        self._log.info("TOPIC(%s): %s", self.name, how)
        self._doorbell.ring()
        self._pump.join()
