"""Live messages of topics, for pages that show them: one consumer for each topic, as long as somebody looks.

It is a client of a temporary channel, as that of `gnsqadmin tail`, so other consumers are not affected. The channel is
deleted with its consumer.
"""

import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from nsqadmin_cli.cluster import Cluster
from nsqadmin_cli.consumer import ClusterConsumer, ConsumerOptions, ephemeral_channel
from nsqadmin_cli.errors import AdminError
from nsqadmin_cli.message import MessageRow, Peeked
from nsqadmin_cli.output import collected
from nsqadmin_cli.web.http import HTTPError

TEMPORARY = "gnsqadmin-"  # begins the names of gnsqadmin's temporary channels
SHOWN = 50  # messages of a topic
LONGEST = 4096  # bytes of a body that are kept
_MOST = 8  # topics
_PATIENCE = 10.0  # seconds without a look until a consumer ends
_WINDOW = 200  # messages in flight
_TICK = 0.2  # seconds


@dataclass(eq=False)
class TopicTail:
    """The latest messages of one topic, the latest first, and how many there were; errors of nodes."""

    topic: str
    looked: float
    latest: deque[Peeked] = field(default_factory=lambda: deque(maxlen=SHOWN))
    count: int = 0
    errors: Sequence[str] = ()


class Tails:
    """Owns the consumers. Threads may share it."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._tails: dict[str, TopicTail] = {}
        self._lock = threading.Lock()
        self._closed = False

    def look(self, topic: str) -> TopicTail:
        """Returns the messages since the first look at this topic, whose consumer this starts; raises HTTPError."""
        with self._lock:
            tail = self._tails.get(topic)
            if tail is None:
                if len(self._tails) >= _MOST:
                    raise HTTPError(503, f"live messages of {_MOST} topics are shown at the moment")
                tail = self._tails[topic] = TopicTail(topic, time.monotonic())
                threading.Thread(target=self._consume, args=(tail,), name="tail", daemon=True).start()
            tail.looked = time.monotonic()
            return tail

    def close(self) -> None:
        self._closed = True

    def _is_looked_at(self, tail: TopicTail) -> bool:
        return not self._closed and time.monotonic() - tail.looked < _PATIENCE

    def _consume(self, tail: TopicTail) -> None:
        options = ConsumerOptions(ephemeral_channel("web"), _WINDOW)
        notes: list[str] = []  # of lost connections, which the errors have too
        try:
            with collected(notes), ClusterConsumer(self._cluster, [tail.topic], options) as consumer:
                consumer.start()
                while self._is_looked_at(tail):
                    messages = consumer.receive(_TICK)
                    for message in messages:
                        about = message.topic, message.timestamp, message.attempts, message.id
                        short = MessageRow(*about, message.body[:LONGEST], message.node)
                        tail.latest.appendleft(Peeked(short, False, len(message.body)))
                    tail.count += len(messages)
                    consumer.finish(messages)
                    tail.errors = [str(error) for error in consumer.errors.values()]
                    notes.clear()
        except AdminError as error:
            tail.errors = [str(error), *map(str, error.causes)]
            while self._is_looked_at(tail):  # shows the error, instead of trying at each look
                time.sleep(_TICK)
        finally:
            with self._lock:
                del self._tails[tail.topic]
