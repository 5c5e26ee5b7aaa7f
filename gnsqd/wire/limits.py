"""Limits on the number of topics and channels that clients create, since each costs memory and files.

Topics and channels that exist, are in nsqd.dat, or are listed by nsqlookupd are not refused.
"""

from gnsqd.broker.registry import Registry
from gnsqd.broker.topic import Topic
from gnsqd.errors import BrokerError
from gnsqd.options import Options


class NoRoom(BrokerError):
    """The limit is reached."""


class Room:
    """Checked before a name is used."""

    def __init__(self, registry: Registry, options: Options) -> None:
        self._registry = registry
        self._options = options

    def check_topic(self, name: str) -> None:
        """NoRoom if there is no such topic, and may be none."""
        limit = self._options.max_topics
        if 0 < limit <= len(self._registry.topics) and name not in self._registry.topics:
            raise NoRoom("too many topics")

    def check_channel(self, topic: Topic, name: str) -> None:
        """NoRoom if there is no such channel, and may be none."""
        limit = self._options.max_channels
        if 0 < limit <= len(topic.channels) and name not in topic.channels:
            raise NoRoom("too many channels")
