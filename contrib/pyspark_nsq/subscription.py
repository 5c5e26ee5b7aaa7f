"""The messages that a task receives and has neither finished nor requeued, over one or more connections to its nsqd.

nsqd limits what may be in flight to a connection (--max-rdy-count, by default 2500). A task that writes messages to the
spool before it finishes them needs more: each sync of the disk serves all that has come until then, and nsqd has to go
on sending meanwhile. So a task opens as many connections as `maxInFlight` needs.

RDY caps what is in flight and not what remains. So each connection has its share of the quota, and its RDY never
exceeds what is left of that without a FIN: together they take no more than the quota. A task that reads several topics
has connections for each.
"""

import logging
import select
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gnsqd.shared.client import Frames
from pyspark_nsq.client import Client
from pyspark_nsq.columns import Messages
from pyspark_nsq.errors import NsqSourceError, Refused
from pyspark_nsq.option_values import Address
from pyspark_nsq.options import Settings
from pyspark_nsq.segment import ID_LENGTH

_LATE = 0.1  # seconds without a message until no more are on their way after RDY 0

_log = logging.getLogger(__name__)


@dataclass
class _Connection:
    """One of the connections; `left` is how many messages it may take, those in hand included, and `window` how many
    may be in flight."""

    client: Client
    topic: str
    left: int = 0
    window: int = 0
    ready: int = 0
    frames: list[Frames] = field(default_factory=list)  # in hand
    ids: bytes = b""  # of the frames, after `take`

    def set_ready(self, count: int) -> None:
        if self.ready != count:
            self.client.ready(count)
            self.ready = count


class Subscription:
    """Owns the connections and the messages in hand: `count` of them, with bodies of `size` bytes.

    Every method may raise ConnectionLost and Refused, after which only `release` and `close` are of use.
    """

    def __init__(self, settings: Settings, address: Address, quotas: Mapping[str, int]) -> None:
        """Subscribes to the channel of the settings, for at most that many messages of each topic."""
        self.count = self.size = 0
        self._connections: list[_Connection] = []
        try:
            for topic, quota in quotas.items():
                self._connect(settings, address, topic, quota)
        except BaseException:
            self.close()
            raise

    def _connect(self, settings: Settings, address: Address, topic: str, quota: int) -> None:
        first, needed = len(self._connections), 1
        while len(self._connections) < first + needed:
            client = Client.connect(address, settings)
            self._connections.append(_Connection(client, topic))
            try:
                client.subscribe(topic, settings.channel)
            except Refused:  # perhaps because of a limit to the consumers of the channel
                if needed == 1:
                    raise
                self._connections.pop().client.close()
                break
            needed = -(-min(settings.max_in_flight, quota) // client.max_rdy_count)
        connections = self._connections[first:]
        for number, one in enumerate(connections):
            one.left = quota // len(connections) + (number < quota % len(connections))
            one.window = min(-(-settings.max_in_flight // len(connections)), one.client.max_rdy_count)

    @property
    def left(self) -> int:
        """How many messages may be taken, those in hand included."""
        return sum(one.left for one in self._connections)

    @property
    def is_half_full(self) -> bool:
        """Whether half of what may be in flight is in hand, or all that is left of the quota."""
        return self.count >= min(self.left, (sum(one.ready for one in self._connections) + 1) // 2)

    def receive(self, timeout: float) -> bool:
        """Take what has come into hand, after waiting up to `timeout` seconds for it; whether there was a message."""
        for one in self._connections:
            one.set_ready(min(one.window, one.left))
        deadline = time.monotonic() + timeout
        while not self._receive():
            if not wait([one.client for one in self._connections], deadline - time.monotonic()):
                return self._receive()  # this process may have been stopped
        return True

    def _receive(self) -> bool:
        before = self.count
        for one in self._connections:
            received = one.client.receive_frames(0.0)
            one.frames += received
            self.count += sum(map(len, received))
            self.size += sum(frames.body_bytes for frames in received)
        return self.count > before

    def take(self) -> dict[str, Messages]:
        """Returns the messages in hand by topic, each once; they remain in hand."""
        found: dict[str, list[Messages]] = {}
        for one in self._connections:
            if one.frames:
                part = Messages.of(one.frames)
                one.ids = part.ids
                found.setdefault(one.topic, []).append(part)
        return {topic: Messages.joined(parts).once() for topic, parts in found.items()}

    def finish(self) -> None:
        """FIN the messages taken."""
        for one in self._connections:
            one.left -= len(one.ids) // ID_LENGTH
            if one.left < one.ready:  # first, so that nsqd sends nothing that would have to be given back
                one.set_ready(one.left)
            if one.ids:
                one.client.finish_joined(one.ids)
            one.frames, one.ids = [], b""
        self.count = self.size = 0

    def confirm(self) -> set[bytes]:
        """Close so that nsqd has processed every FIN; the ids whose FIN it refused."""
        for one in self._connections:
            one.set_ready(0)
        return {id for one in self._connections for id in one.client.finish_confirmed()}

    def release(self) -> None:
        """Give back the messages in hand, and what nsqd sends until it reads our RDY 0, which would otherwise be in
        flight until it has timed out; and close."""
        for step in (self._stop, self._requeue):
            for one in self._connections:
                try:
                    step(one)
                except NsqSourceError as error:
                    _log.info("%s", error)

    def _stop(self, one: _Connection) -> None:
        one.set_ready(0)  # or nsqd could send the messages again, to this or another connection
        while late := one.client.receive_frames(_LATE):
            one.frames += late

    def _requeue(self, one: _Connection) -> None:
        one.client.requeue([id for frames in one.frames for id in frames.ids()])
        one.client.finish_confirmed()

    def close(self) -> None:
        """Close at once; messages in flight go to other consumers when they have timed out."""
        for one in self._connections:
            one.client.close()


def wait(clients: Iterable[Client], timeout: float) -> bool:
    """Wait up to `timeout` seconds until one of them can receive; whether one can."""
    poll = select.poll()
    for client in clients:
        poll.register(client, select.POLLIN)
    return bool(poll.poll(max(0.0, timeout) * 1000))
