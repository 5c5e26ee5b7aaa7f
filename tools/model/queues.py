"""The state that a session expects of a daemon at rest: the messages of each queue, and who gets the next ones."""

from collections.abc import Iterator
from dataclasses import astuple, dataclass, field

from model.sides import Stats

INIT, SUBSCRIBED, CLOSING = "init", "subscribed", "closing"


@dataclass
class ExpectedChannel:
    name: str
    depth: int = 0
    in_flight: int = 0
    deferred: int = 0
    clients: int = 0
    paused: bool = False


@dataclass
class ExpectedTopic:
    name: str
    depth: int = 0
    deferred: int = 0  # of those in `depth`
    paused: bool = False
    channels: dict[str, ExpectedChannel] = field(default_factory=dict)


@dataclass
class ConsumerWindow:
    """The messages that one consumer may get, and has."""

    topic: str = ""
    channel: str = ""
    state: str = INIT
    ready: int = 0
    in_flight: int = 0

    @property
    def room(self) -> int:
        return max(self.ready - self.in_flight, 0) if self.state != INIT else 0


class Queues:
    """All topics, by name."""

    def __init__(self) -> None:
        self.topics: dict[str, ExpectedTopic] = {}

    def topic(self, name: str) -> ExpectedTopic:
        return self.topics.setdefault(name, ExpectedTopic(name))

    def channel(self, topic: str, name: str) -> ExpectedChannel:
        channels = self.topic(topic).channels
        return channels.setdefault(name, ExpectedChannel(name))

    def publish(self, name: str, count: int, deferred: bool = False) -> None:
        topic = self.topic(name)
        topic.depth += count
        if deferred:
            topic.deferred += count

    def settle(self, windows: list[ConsumerWindow]) -> Iterator[tuple[ConsumerWindow, int]]:
        """Lets messages move until none can; yields the consumers that get some, and the number. Of a channel's
        consumers no more than one may have room."""
        for topic in self.topics.values():
            if topic.channels and not topic.paused:
                for channel in topic.channels.values():
                    channel.depth += topic.depth - topic.deferred
                    channel.deferred += topic.deferred
                topic.depth = topic.deferred = 0
        for window in windows:
            if not (room := window.room):
                continue
            channel = self.topics[window.topic].channels[window.channel]
            if channel.depth and not channel.paused:
                count = min(room, channel.depth)
                channel.depth -= count
                channel.in_flight += count
                window.in_flight += count
                yield window, count

    def leave(self, window: ConsumerWindow) -> None:
        """Removes a consumer; what it has in flight stays so."""
        if window.state == INIT or window.topic not in self.topics:
            return
        topic = self.topics[window.topic]
        if (channel := topic.channels.get(window.channel)) is None:
            return
        channel.clients -= 1
        if not channel.clients and channel.name.endswith("#ephemeral"):
            self.delete_channel(topic.name, channel.name)

    def delete_channel(self, topic: str, name: str) -> None:
        channels = self.topics[topic].channels
        del channels[name]
        if not channels and topic.endswith("#ephemeral"):
            del self.topics[topic]

    def adopt(self, stats: Stats) -> None:
        """Commands that are refused may make a topic all the same: an empty one."""
        for name, (depth, paused, channels) in stats.items():
            if name not in self.topics and not (depth or paused or channels):
                self.topics[name] = ExpectedTopic(name)

    def stats(self) -> Stats:
        return {
            topic.name: (
                topic.depth,
                topic.paused,
                {channel.name: astuple(channel)[1:] for channel in topic.channels.values()},
            )
            for topic in self.topics.values()
        }
