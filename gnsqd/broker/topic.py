"""A topic: where publishers put messages, and the pump that hands each to every channel.

The pump takes messages from the topic's queue, a batch at a time. A batch in hand never crosses a yield: between
reading it and the last channel taking it nothing else runs, so emptying, deleting and counting need no locks.
"""

from collections.abc import Callable
from contextlib import ExitStack, suppress
from time import monotonic, time_ns
from typing import Any

from gevent import get_hub

from gnsqd.broker.bounds import Bounds
from gnsqd.broker.channel import MAX_TAKE_BYTES, Channel
from gnsqd.broker.environment import Environment
from gnsqd.broker.rules import Rules
from gnsqd.broker.topology import TopologyChannel
from gnsqd.hub.cooperative import Report, WouldYield, stand_in_line, yield_turn
from gnsqd.hub.doorbell import Doorbell
from gnsqd.queues.backend import Left
from gnsqd.queues.message import BODY_AT, Message, new_messages
from gnsqd.queues.ordering import set_ordered
from gnsqd.queues.queue import Queue
from gnsqd.shared.errors import BrokerError, NotFound, StorageError
from gnsqd.shared.names import is_ephemeral

MAX_BATCH = 256
MAX_PUT = 2048  # messages that are put at once, or fewer:
MAX_PUT_BYTES = 1024 * 1024
RETRY_SECONDS = 1.0

_NONE: list[Message] = []


class Draining(BrokerError):
    """Publishers are refused, for now at least: the daemon drains."""


def _is_large(bodies: list[bytes]) -> bool:
    """Returns True if these are more messages, or bytes, than are put in one step."""
    size = 0
    for body in bodies:
        size += len(body)
    return size > MAX_PUT_BYTES or len(bodies) > MAX_PUT


class Topic:
    """Owns one topic's queue, its channels and their pump. It moves nothing before `start`."""

    def __init__(self, name: str, environment: Environment, on_last_channel: "Callable[[Topic], None]") -> None:
        self.name = name
        self.ephemeral = is_ephemeral(name)
        self.channels: dict[str, Channel] = {}
        self.paused = self.exiting = self.draining = False
        self.message_count = self.message_bytes = 0
        self._environment = environment
        self._log = environment.log
        self._ids = environment.ids
        self._on_last_channel = on_last_channel
        self._started = False
        self._doorbell = Doorbell()
        self._store = environment.open_store(name)
        self.queue = self._store.queue
        self.write_ahead = self._store.write_ahead
        self._turn_end: Any = None
        if self.write_ahead is not None:
            loop = get_hub().loop
            # With the highest priority, it is called before all greenlets that the turn has woken: consumers get
            # nothing that is not written yet.
            self._turn_end = loop.prepare(priority=loop.MAXPRI)
        self._reports: list[Report] = []  # of publishers that wait for `_turn_end`
        self.bounds: Bounds | None = None
        if environment.options.bounded:
            self.bounds = Bounds(name, self.queue, self.channels, environment.options, environment.free_disk)
        self._pump = environment.spawn(f"messagePump:{name}", self.messagePump)
        environment.notify(self, not self.ephemeral)

    @property
    def depth(self) -> int:
        """The number of messages that no channel has yet, in memory and on disk."""
        return self.queue.count()

    def start(self) -> None:
        """Lets messages move: all channels that must not miss any exist, or only a log knows them. May yield."""
        if self.write_ahead is not None:
            for name in self.write_ahead.restored_channels:
                self.get_channel(name)
            self.write_ahead.start()
        self._started = True
        self._doorbell.ring()

    def new_messages(self, bodies: list[bytes], deferred: int = 0) -> list[Message]:
        """Returns messages of this topic, not yet put; `deferred` is the ns to hold them back in every channel."""
        now = time_ns()
        return new_messages(self._ids.reserve(now, len(bodies)), now, bodies, deferred)

    def put_messages(self, messages: list[Message]) -> None:
        """Queues messages just published; raises BrokerError("exiting"), or StorageError: those before the failing one
        stay queued. The publisher may be answered after `commit`."""
        if self.exiting:
            raise BrokerError("exiting")
        if self.write_ahead is not None:
            self.write_ahead.append(messages)
        self._count(messages, 1)
        queue = self.queue
        flowing = self._flowing()
        # The pump would only add its turn to the latency. It is needed where messages wait here, which go first, and
        # where a channel has to write to the disk: that takes longer than a publisher's turn.
        count = len(messages)
        skips_pump = flowing and not queue.memory and not queue.backend.count
        if skips_pump and count * len(self.channels) <= MAX_BATCH:
            for channel in self.channels.values():
                if not channel.queue.has_room(count):
                    break
            else:
                self._hand_over(messages)
                return
        try:
            if flowing:
                self._doorbell.ring()
            queue.put(messages, count if flowing else 0)
        except StorageError as error:
            self._log.error("TOPIC(%s) ERROR: failed to write message to backend - %s", self.name, error)
            self._count(messages[error.written :], -1)
            raise

    def _count(self, messages: list[Message], sign: int) -> None:
        size = 0
        for message in messages:
            size += len(message.frame)
        self.message_count += sign * len(messages)
        self.message_bytes += sign * (size - BODY_AT * len(messages))

    def publish(self, bodies: list[bytes], deferred: int = 0, may_yield: bool = True) -> None:
        """Puts new messages, in parts with yields in between if they are a large batch. Nothing is put if it raises
        WouldYield, as such a batch came without `may_yield`, Draining or OutOfBounds; other errors as `put_messages`.
        """
        large = _is_large(bodies)
        if large:
            if not may_yield:
                raise WouldYield
            stand_in_line()
        if self.draining:
            raise Draining("draining")
        if large or self.bounds is not None:
            self._publish_in_parts(bodies, deferred)
        else:
            self.put_messages(self.new_messages(bodies, deferred))

    def _publish_in_parts(self, bodies: list[bytes], deferred: int) -> None:
        bounds = self.bounds
        if bounds is not None:
            bounds.admit(bodies)
        first = 0
        try:
            while first < len(bodies):
                if first:
                    self.commit()
                    stand_in_line()
                last = first
                size = 0
                while last < len(bodies) and last - first < MAX_PUT and size < MAX_PUT_BYTES:
                    size += len(bodies[last])
                    last += 1
                part = bodies[first:last]
                self.put_messages(self.new_messages(part, deferred))
                first = last
                if bounds is not None:
                    bounds.note_put(part)
                    bounds.trim(2 * len(part))
        finally:
            if bounds is not None and first < len(bodies):
                bounds.note_put(bodies[first:])

    def commits_at_once(self) -> bool:
        """True if `commit` has nothing to do."""
        return self.write_ahead is None and not self.queue.backend.unsynced

    def publishes_at_once(self, bodies: list[bytes]) -> bool:
        """True if `publish` and `commit` have nothing to wait for with these messages."""
        return self.commits_at_once() and not _is_large(bodies) and self.puts_surely(len(bodies))

    def puts_surely(self, count: int) -> bool:
        """True if `publish` puts all of `count` messages, or none of them; they are not a large batch."""
        # Bounds may refuse some, and drop others from the disk, which needs a commit. A log keeps all or none.
        return self.bounds is None and (self.write_ahead is not None or self.queue.has_room(count))

    def commit(self) -> None:
        """Returns when all that was put is as durable as the options promise; raises StorageError if it is not. May
        yield."""
        self.write()
        self.wait_synced()

    def commit_soon(self, report: Report) -> bool:
        """Commits at the end of the loop's turn, in one write for all publishers of that turn, and has `report` called
        on the hub; returns False if there is no log. To be called on the hub."""
        if self.write_ahead is None:
            return False
        if not self._reports:
            self._turn_end.start(self._end_turn)
        self._reports.append(report)
        return True

    def _end_turn(self) -> None:
        self._turn_end.stop()
        if self._reports:
            with suppress(StorageError):
                self.write()

    def write(self) -> None:
        """Writes what was put, if there is a log; StorageError: it is dropped, unless a consumer has any of it.
        Publishers call this or `commit_soon` before anything else runs: so each gets the error if its messages are
        dropped."""
        if self.write_ahead is not None:
            reports, self._reports = self._reports, []
            try:
                self.write_ahead.write(reports)
            except StorageError as error:
                messages, handed_over = self.write_ahead.take_back()
                self._count(messages, -1)
                for channel in self.channels.values():
                    if not channel.ephemeral:
                        channel.message_count -= handed_over
                for report in reports:
                    report(error)
                raise

    def wait_synced(self) -> None:
        """Returns when all that was written is as durable as the options promise; raises StorageError if it is not. May
        yield."""
        if self.write_ahead is not None:
            self.write_ahead.wait_synced()
        elif self.queue.backend.unsynced:
            self.queue.backend.wait_synced()

    def create_channel(self, name: str, begin: int) -> bool:
        """Makes a channel that receives again the messages from number `begin` on; False if there is one of that name
        by now. Errors as `get_channel`: then there is none. The topic must have a `write_ahead` log. May yield."""
        assert self.write_ahead is not None
        queue = self.write_ahead.past_queue(name, begin)
        if name in self.channels:
            return False
        channel = self.get_channel(name, queue)
        channel.message_count = channel.depth + channel.deferred_count
        try:
            self.commit()
        except StorageError:
            with suppress(StorageError):
                self.delete_existing_channel(name)
            raise
        return True

    def get_channel(self, name: str, past: Queue | None = None) -> Channel:
        """Returns the channel of that name, new if there is none; raises BrokerError("exiting") or StorageError. May
        yield."""
        channel = self.channels.get(name)
        if channel is None:
            if self.exiting:
                raise BrokerError("exiting")
            queue = self._store.channel_queue(name, past)
            new_channel = TopologyChannel if self._environment.options.has_topology else Channel
            # A lambda: Cython passes `self._doorbell.ring` as a pointer of another type, which GCC 14 refuses.
            channel = self.channels[name] = new_channel(
                self.name, name, self._environment, queue, self._delete_soon, lambda: self._doorbell.ring()
            )
            if queue.ordered:
                set_ordered(self.queue, True)
            if self.write_ahead is not None:
                self.write_ahead.adopt(queue)
            self._log.info("TOPIC(%s): new channel(%s)", self.name, name)
            self._doorbell.ring()
        return channel

    def set_rules(self, channel: Channel, rules: Rules) -> None:
        """Changes the rules of a channel. May yield."""
        if rules.ordered:
            set_ordered(self.queue, True)  # first, as messages reach the channel in order only if they leave in order
        channel.set_rules(rules)
        self._follow_rules()
        self._doorbell.ring()

    def _follow_rules(self) -> None:
        set_ordered(self.queue, any(channel.queue.ordered for channel in self.channels.values()))

    def get_existing_channel(self, name: str) -> Channel:
        channel = self.channels.get(name)
        if channel is None:
            raise NotFound("channel")
        return channel

    def delete_existing_channel(self, name: str) -> None:
        """Deletes a channel with all its messages, and an ephemeral topic with its last channel; raises
        NotFound."""
        channel = self.get_existing_channel(name)
        if channel.exiting:
            return
        self._log.info("TOPIC(%s): deleting channel %s", self.name, name)
        try:
            channel.delete()
            if self.write_ahead is not None:
                self.write_ahead.delete_channel(name)
        finally:
            self.channels.pop(name, None)
            self._follow_rules()
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

    def _flowing(self) -> bool:
        return self._started and not self.paused and bool(self.channels)

    def messagePump(self) -> None:
        while not self.exiting:
            blocked = [channel.queue for channel in self.channels.values() if channel.queue.blocked]
            for queue in blocked:
                queue.retry()
            if any(queue.blocked for queue in blocked):
                self._wait_to_retry()
            elif self._flowing() and (messages := self.queue.take(MAX_BATCH, MAX_TAKE_BYTES)):
                self._hand_over(messages)
                for channel in list(self.channels.values()):
                    channel.queue.backend.wait_synced()
                if self.depth:
                    yield_turn()
            else:
                # What can't be read from disk just now is tried again.
                self._doorbell.wait(RETRY_SECONDS if self._flowing() and self.depth else -1.0)
        self._log.info("TOPIC(%s): closing ... messagePump", self.name)

    def _wait_to_retry(self) -> None:
        """Waits, however often the bell rings: every attempt that fails is a line in the log."""
        end = monotonic() + RETRY_SECONDS
        while not self.exiting and (left := end - monotonic()) > 0:
            self._doorbell.wait(left)

    def _hand_over(self, messages: list[Message]) -> None:
        """Gives the messages to every channel, and finishes them here."""
        ready = messages
        deferred = _NONE
        for message in messages:
            if message.deferred:
                ready = [message for message in messages if not message.deferred]
                deferred = [message for message in messages if message.deferred]
                break
        settle = self.queue.backend.unsettled > 0
        copied = False
        for channel in self.channels.values():
            if channel.exiting:
                continue
            if copied:
                ready = [message.copy() for message in ready]
                deferred = [message.copy() for message in deferred]
            copied = True
            channel.put_messages(ready, deferred, settle)
        self.queue.finish(messages)

    def pause(self, paused: bool = True) -> None:
        """Keeps messages from the channels, or lets them go on."""
        self.paused = paused
        self._doorbell.ring()

    def delete(self) -> None:
        """Drops the topic, its channels and all their messages, files included. Raises StorageError. May yield."""
        self._stop_pump("deleting")
        self._environment.notify(self, not self.ephemeral)
        with ExitStack() as last_to_first:  # each, whatever the others raise
            last_to_first.callback(self.channels.clear)
            last_to_first.callback(self._store.delete)
            for channel in self.channels.values():
                last_to_first.callback(channel.delete)

    def close(self) -> Left:
        """Closes the channels, then the store. May yield."""
        self._stop_pump("closing")
        return Left.sum([*(channel.close() for channel in list(self.channels.values())), self._store.close()])

    def _stop_pump(self, how: str) -> None:
        self.exiting = True
        self._log.info("TOPIC(%s): %s", self.name, how)
        self._doorbell.ring()
        self._pump.join()
        if self._turn_end is not None:
            self._turn_end.close()
