"""An nsqd without sockets, for tests that stop it, or the one who reads from it, at any point.

`FakeDaemon` is one topic with one channel of an nsqd; `patch` puts it where pyspark_nsq would connect to an nsqd and
ask it for its depth. Several at one port are topics of one nsqd. Nothing waits: what is not there at once is not there.
"""

import struct
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Self

import pytest

from gnsqd.shared.client import Frames, PushedMessage
from pyspark_nsq import nodes
from pyspark_nsq.columns import split_ids
from pyspark_nsq.deliveries import backlog, batch, stream
from pyspark_nsq.discovery import Depth, KnownNsqd
from pyspark_nsq.errors import ConnectionLost, DiscoveryError, NsqSourceError, Refused
from pyspark_nsq.option_values import Address
from pyspark_nsq.options import Settings

TOPIC, CHANNEL = "clicks", "archive"


def frames_of(messages: Sequence[PushedMessage]) -> Frames:
    """Returns what an nsqd sends."""
    data, edges = b"", [0]
    for timestamp, attempts, id, body in messages:
        data += struct.pack(">IiqH16s", 30 + len(body), 2, timestamp, attempts, id) + body
        edges.append(len(data))
    return Frames(data, edges)


def split_bodies(data: bytes | memoryview) -> list[bytes]:
    """Returns the bodies of an MPUB, where each stands behind its size."""
    found, left = [], bytes(data)
    while left:
        end = 4 + int.from_bytes(left[:4], "big")
        found.append(left[4:end])
        left = left[end:]
    return found


class FakeDaemon:
    """Messages and who has them. The published bodies are numbers, never the same twice."""

    def __init__(
        self, port: int = 4150, max_rdy_count: int = 2500, piece: int = 3, host: str = "node", topic: str = TOPIC
    ) -> None:
        self.topic = topic
        self.nsqd = KnownNsqd(f"{host}:{port}", (host, port), (host, port + 1))
        self.max_rdy_count = max_rdy_count
        self.msg_timeout = 60.0
        self.sending = 0  # pieces that are on their way; a real one does not heed TOUCH until they are read
        self.touched: Counter[bytes] = Counter()
        self.piece = piece  # the most messages that arrive at once
        self.queue: deque[PushedMessage] = deque()  # with the attempts so far
        self.in_flight: dict[bytes, tuple[PushedMessage, FakeClient]] = {}
        self.finished: list[PushedMessage] = []
        self.published = 0
        self.start_time = 1000
        self.channel_exists = True
        self.up = True
        self.consumers = 0  # of others
        self.subscribed: set[FakeClient] = set()
        self.max_consumers = 99
        self.is_cutting = False  # connections that subscribe
        self.most_in_flight = 0
        self.error: NsqSourceError | None = None  # of connecting
        self.answers: Iterator[NsqSourceError | None] = iter(())  # to what is published, and then None
        self.taken: list[tuple[str, list[bytes], int]] = []  # what was published: topic, bodies, delay
        self.connections = 0

    def publish(self, count: int) -> None:
        for _ in range(count):
            self.published += 1
            id = f"{self.nsqd.tcp[1]:06x}{self.published:010x}".encode()
            body = f"{self.topic}@{self.nsqd.name}/{self.published}".encode()  # ids are of the topic, as in nsqd
            self.queue.append(PushedMessage(self.published * 1_000_000_123, 0, id, body))

    def time_out(self) -> None:
        """Puts what is in flight back into the queue."""
        for message, _ in self.in_flight.values():
            self.queue.append(message)
        self.in_flight.clear()

    def restart(self) -> None:
        """Connections break."""
        self.time_out()
        self.start_time += 1

    def depth(self) -> Depth:
        if not self.up:
            raise DiscoveryError(f"nsqd {self.nsqd.name} does not answer")
        return Depth(
            channel=len(self.queue) if self.channel_exists else 0,
            in_flight=len(self.in_flight),
            topic=0 if self.channel_exists else len(self.queue),
            channel_exists=self.channel_exists,
            topic_exists=True,
            consumers=self.consumers,
        )


class FakeClient:
    """A connection to it, as pyspark_nsq.client.SourceClient."""

    def __init__(self, *topics: FakeDaemon) -> None:
        fake = topics[0]
        if not fake.up:
            raise ConnectionLost("nsqd refuses the connection")
        if fake.error is not None:
            raise fake.error
        fake.connections += 1
        self.fake = fake
        self._topics = {one.topic: one for one in topics}
        self.max_rdy_count = fake.max_rdy_count
        self.msg_timeout = fake.msg_timeout
        self.unfinished: set[bytes] = set()
        self.hangs = False
        self._run = fake.start_time
        self._ready = 0
        self._arrived: list[PushedMessage] = []
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _mine(self) -> list[bytes]:
        return [id for id, (_, client) in self.fake.in_flight.items() if client is self]

    def _alive(self) -> FakeDaemon:
        if self._closed or not self.fake.up or self._run != self.fake.start_time:
            raise ConnectionLost("nsqd closed the connection")
        return self.fake

    def subscribe(self, topic: str, channel: str) -> None:
        assert channel == CHANNEL
        self.fake = fake = self._topics.get(topic, self.fake)
        self._run = fake.start_time
        self._alive()
        if fake.is_cutting:
            raise ConnectionLost("nsqd closed the connection")
        if len(fake.subscribed) >= fake.max_consumers:
            raise Refused("E_TOO_MANY_CHANNEL_CONSUMERS", "")
        fake.subscribed.add(self)
        fake.channel_exists = True

    def ready(self, count: int) -> None:
        assert count <= self.max_rdy_count
        self._alive()
        self._ready = count
        self._push()

    def _push(self) -> None:
        """Sends as long as RDY allows, whether the client receives or not, as nsqd does."""
        while self.fake.queue and len(self._mine()) < self._ready:
            message = self.fake.queue.popleft()
            message = message._replace(attempts=message.attempts + 1)
            self.fake.in_flight[message.id] = message, self
            self._arrived.append(message)
        self.fake.most_in_flight = max(self.fake.most_in_flight, len(self.fake.in_flight))

    def receive_frames(self, timeout: float) -> list[Frames]:
        piece = self._alive().piece
        self._push()
        messages, self._arrived = self._arrived[:piece], self._arrived[piece:]
        return [frames_of(messages)] if messages else []

    def listen(self) -> None:
        self._alive()

    def poll(self) -> bool:
        """Returns True as long as nsqd sends."""
        fake = self._alive()
        fake.sending = max(0, fake.sending - 1)
        return fake.sending > 0

    def touch_joined(self, ids: bytes, *, within: float) -> None:
        if not self._alive().sending:
            self.fake.touched.update(split_ids(ids))

    def finish_joined(self, ids: bytes, *, within: float) -> None:
        self.finish(split_ids(ids))

    def finish(self, ids: Iterable[bytes]) -> None:
        fake = self._alive()
        for id in list(ids):
            message, client = fake.in_flight.get(id, (None, None))
            if message is None or client is not self:
                self.unfinished.add(id)
            else:
                del fake.in_flight[id]
                fake.finished.append(message)
        self._push()

    def finish_confirmed(self) -> set[bytes]:
        self._ready = 0
        self.requeue([message.id for message in self._arrived])
        self.close()
        return self.unfinished

    def requeue(self, ids: Iterable[bytes]) -> None:
        fake = self._alive()
        for id in self._mine():
            if id in ids:
                fake.queue.append(fake.in_flight.pop(id)[0])

    def publish_joined(self, topic: str, data: bytes, count: int, defer_ms: int) -> None:
        if (error := next(self._alive().answers, None)) is not None:
            raise error
        bodies = split_bodies(data)
        assert len(bodies) == count
        self.fake.taken.append((topic, bodies, defer_ms))

    def close(self) -> None:
        """Closes; what is in flight stays so until it has timed out."""
        self.fake.subscribed.discard(self)
        self.fake.connections -= not self._closed
        self._closed = True


def patch(monkeypatch: pytest.MonkeyPatch, nsqds: Sequence[FakeDaemon]) -> None:
    """Lets these be all there is."""
    by_address: dict[Address, list[FakeDaemon]] = {}
    for fake in nsqds:
        by_address.setdefault(fake.nsqd.tcp, []).append(fake)

    class Client:
        @classmethod
        def connect(cls, address: Address, settings: Settings) -> FakeClient:
            return FakeClient(*by_address[address])

    def depths(settings: Settings, nsqd: KnownNsqd) -> dict[str, Depth]:
        found = {fake.topic: fake.depth() for fake in by_address[nsqd.tcp]}
        return {topic: found.get(topic) or Depth() for topic in settings.topics or filter(settings.matches, found)}

    def find_nsqds(settings: Settings, topic: str = "") -> list[KnownNsqd]:
        return sorted({fake.nsqd for fake in nsqds})

    for module in (backlog, batch, stream):
        monkeypatch.setattr(module, "SourceClient", Client)
    for module in (backlog, stream):
        monkeypatch.setattr(module, "depths", depths)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    monkeypatch.setattr(batch.DeliveryBatch, "_wait", lambda self, timeout: False)
    monkeypatch.setattr(nodes, "find_nsqds", find_nsqds)
    monkeypatch.setattr(backlog, "_SCAN", -60.0)


def bodies(nsqds: Iterable[FakeDaemon]) -> Iterator[bytes]:
    """Yields everything that was published."""
    for fake in nsqds:
        for number in range(1, fake.published + 1):
            yield f"{fake.topic}@{fake.nsqd.name}/{number}".encode()
