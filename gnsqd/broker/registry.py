"""All topics of the daemon, their entries in nsqd.dat, and the daemon's health."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from time import time
from typing import TypeVar

from gevent import Greenlet, joinall, spawn, wait

from gnsqd.broker.environment import Environment
from gnsqd.broker.topic import Topic
from gnsqd.hub.cooperative import Turns, yield_turn
from gnsqd.queues.backend import Left
from gnsqd.shared.errors import BrokerError, NotFound, StorageError
from gnsqd.shared.names import is_ephemeral, is_valid_name
from gnsqd.storage.metadata import ChannelMetadata, TopicMetadata

PRECREATION_PATIENCE = 0.5  # seconds
T = TypeVar("T", TopicMetadata, ChannelMetadata)
CLOSERS = 8  # topics that are closed at a time; each has some files open meanwhile


class Registry:
    """Owns the topics by name. While `loading` is true, they come from nsqd.dat, which is not written."""

    def __init__(self) -> None:
        self.topics: dict[str, Topic] = {}
        self.loading = False
        self.start_time = int(time())
        self.draining = False
        self._environment: Environment
        self._late: set[Topic] = set()  # whose channels nsqlookupd was too slow to report
        self.error: Exception | None = None  # of the last disk write; None when it succeeded
        self.idle_actions: dict[str, int] = {}  # by policy; empty if no channel ever had an idle timeout
        self.disk_figures: Callable[[], dict[str, float]] = dict  # may yield
        self.store_figures: Callable[[], dict[str, float]] = dict  # of --log-store, empty without
        self._exiting = False

    def attach(self, environment: Environment) -> None:
        self._environment = environment

    @property
    def healthy(self) -> bool:
        return self.error is None

    @property
    def health(self) -> str:
        return "OK" if self.error is None else f"NOK - {self.error}"

    @property
    def low_on_disk(self) -> bool:
        disk = self._environment.free_disk
        return disk is not None and disk.low

    def set_draining(self, draining: bool) -> None:
        self.draining = draining
        for topic in self.topics.values():
            topic.draining = draining

    def get_topic(self, name: str) -> Topic:
        """Returns the topic of that name, new if there is none; raises BrokerError("exiting") or StorageError. A new
        one moves no message before it has the channels that nsqlookupd knows; may yield for PRECREATION_PATIENCE."""
        topic = self.topics.get(name)
        if topic is None:
            if self._exiting:
                raise BrokerError("exiting")
            topic = self.topics[name] = Topic(name, self._environment, self._delete_soon)
            topic.draining = self.draining
            self._environment.log.info("TOPIC(%s): created", name)
            if not self.loading:
                precreation = self._environment.spawn(f"precreate:{name}", lambda: self._precreate_channels(topic))
                if not self._late:
                    precreation.join(PRECREATION_PATIENCE)
                    if not precreation.ready():
                        self._late.add(topic)
        return topic

    def _precreate_channels(self, topic: Topic) -> None:
        for name in self._environment.channels_to_precreate(topic.name):
            if topic.exiting:
                break
            if not is_ephemeral(name):
                try:
                    topic.get_channel(name)
                except StorageError as error:
                    self._environment.log.error("TOPIC(%s): creating channel %s - %s", topic.name, name, error)
                yield_turn()  # there may be very many
        self._late.discard(topic)
        topic.start()

    def has_journal(self, name: str) -> bool:
        """Returns True if a topic of this name has a journal, or would have one."""
        return self._environment.options.has_journal(name)

    def get_existing_topic(self, name: str) -> Topic:
        topic = self.topics.get(name)
        if topic is None:
            raise NotFound("topic")
        return topic

    def delete_existing_topic(self, name: str) -> None:
        """Deletes a topic with all it has; raises NotFound. May yield; meanwhile publishers get "exiting"."""
        topic = self.get_existing_topic(name)
        if topic.exiting:
            return
        try:
            topic.delete()
        finally:
            self.topics.pop(name, None)

    def _delete_soon(self, topic: Topic) -> None:
        def delete() -> None:
            if self.topics.get(topic.name) is topic and not topic.channels:
                try:
                    self.delete_existing_topic(topic.name)
                except StorageError as error:
                    self._environment.log.error("deleting topic %s - %s", topic.name, error)

        self._environment.spawn(f"delete:{topic.name}", delete)

    def metadata(self, name: str) -> TopicMetadata | None:
        """Returns a topic's entry in nsqd.dat and the file of rules; None if there must be none."""
        topic = self.topics.get(name)
        if topic is None or topic.ephemeral or topic.exiting:
            return None
        listed: list[ChannelMetadata] = []
        for channel in topic.channels.values():
            if not channel.ephemeral and not channel.exiting:
                rules = None if channel.rules == channel.configured_rules else channel.rules.settings()
                listed.append(ChannelMetadata(channel.name, channel.paused, rules))
        return TopicMetadata(name, topic.paused, listed)

    def held(self) -> dict[str, int]:
        """Counts topics, channels and messages in memory. Yields."""
        counts = Counter(topics=0, channels=0, messages_in_memory=0, in_flight=0, deferred=0)
        turns = Turns()
        for topic in turns.over(list(self.topics.values())):
            counts["topics"] += 1
            counts["messages_in_memory"] += topic.depth - topic.queue.backend.count
            for channel in turns.over(list(topic.channels.values())):
                counts["channels"] += 1
                counts["messages_in_memory"] += channel.depth - channel.queue.backend.count
                counts["in_flight"] += len(channel.in_flight)
                counts["deferred"] += channel.deferred_count
        return dict(counts)

    def load(self, topics: list[TopicMetadata], journaled: Iterable[str] = ()) -> None:
        """Creates the topics and channels of nsqd.dat, and topics of journals. Skips invalid names."""
        self.loading = True
        try:
            known = {topic.name for topic in topics}
            others = [TopicMetadata(name, False) for name in journaled if name not in known]
            for topic_metadata in self._valid("topic", [*topics, *others]):
                topic = self.get_topic(topic_metadata.name)
                if topic_metadata.paused:
                    topic.pause()
                for channel_metadata in self._valid("channel", topic_metadata.channels):
                    channel = topic.get_channel(channel_metadata.name)
                    if channel_metadata.paused:
                        channel.pause()
                topic.start()
        finally:
            self.loading = False
        for topic in self.topics.values():
            for channel in topic.channels.values():
                channel.mark_used()  # no consumer could come before

    def _valid(self, kind: str, listed: Sequence[T]) -> Iterator[T]:
        for metadata in listed:
            if is_valid_name(metadata.name):
                yield metadata
            else:
                self._environment.log.warn("skipping creation of invalid %s %s", kind, metadata.name)

    def close(self) -> Left:
        """Closes all topics, several at a time: most of the time is fsync's. None is created afterwards. May yield."""
        self._exiting = True
        closing = []
        busy: set[Greenlet[..., Left]] = set()
        for topic in list(self.topics.values()):
            if len(busy) == CLOSERS:
                busy.difference_update(wait(busy, count=1))
            closing.append(spawn(lambda topic: Left() if topic.exiting else topic.close(), topic))
            closing[-1].name = f"close:{topic.name}"
            busy.add(closing[-1])
        joinall(closing)
        return Left.sum([greenlet.get() for greenlet in closing])
