"""The database of nsqlookupd, in memory: topics and channels by name, and the nsqds that have registered for them.

Names outlive the nsqds that registered them, except ephemeral ones, which go with their last producer; the HTTP API
removes any. A topic and a channel are registered independently, as in the real nsqlookupd, so a channel may be listed
for a topic that is not. `*` stands for all topics where a query allows it.

The registrations of an nsqd are also kept with the nsqd, so a disconnect does not search the database.

There may be a million registrations. Functions that remove many of them are generators, which remove one for each item:
the caller yields to other greenlets in between, which may change the same names. What nsqds register and unregister is
logged here, in the lines of the real nsqlookupd.
"""

from collections.abc import Iterator, Mapping
from time import monotonic_ns, time_ns

from gnsqd.gotext import dumps
from gnsqd.hub.cooperative import Turns
from gnsqd.log import Logger
from gnsqd.shared.names import TooMany, is_ephemeral
from gnsqd.shared.record import Record

ALL = "*"

_LONG_AGO = -(1 << 63)


class PeerInfo(Record):
    """One nsqd, as it described itself.

    id           the remote address of its connection
    json         the fields of /lookup, with its broadcast address
    last_update  when it was last heard of, in ns since 1970
    heard        the same by the monotonic clock
    topology     topology_zone and topology_region, or nothing if it reported neither, as v1.3.0 does
    follows_host  True if its address is the asker's name for it
    """

    id: str
    hostname: str = ""
    broadcast_address: str = ""
    tcp_port: int = 0
    http_port: int = 0
    version: str = ""
    topology_zone: str | None = None
    topology_region: str | None = None
    follows_host: bool = False

    def __post_init__(self) -> None:
        self.topics: dict[str, TopicProducer] = {}
        self.channels: dict[tuple[str, str], None] = {}
        self.last_update = time_ns()
        self.heard = monotonic_ns()
        topology = {"topology_zone": self.topology_zone or "", "topology_region": self.topology_region or ""}
        self.topology = {} if self.topology_zone is None and self.topology_region is None else topology
        self.json = self._encode(self.broadcast_address)

    def _encode(self, broadcast_address: str) -> str:
        row: dict[str, object] = {
            "remote_address": self.id,
            "hostname": self.hostname,
            "broadcast_address": broadcast_address,
        }
        row |= {"tcp_port": self.tcp_port, "http_port": self.http_port, "version": self.version, **self.topology}
        return dumps(row)

    def json_for(self, host: str) -> str:
        """Returns the fields of /lookup, for an asker that reached nsqlookupd by this host name, "" if unknown."""
        return self._encode(self.address_for(host)) if self.follows_host else self.json

    def address_for(self, host: str) -> str:
        """Returns the broadcast address in `json_for`."""
        return host if host and self.follows_host else self.broadcast_address

    def note_update(self) -> int:
        """Sets the time of the last update to now; returns the nanoseconds since the one before."""
        before, self.heard = self.heard, monotonic_ns()
        self.last_update = time_ns()
        return self.heard - before


class TopicProducer:
    """The registration of one nsqd for one topic. `tombstoned_at` is ns since 1970, 0 if it never was."""

    __slots__ = ("_tombstoned", "peer", "tombstoned_at")

    def __init__(self, peer: PeerInfo) -> None:
        self.peer = peer
        self.tombstoned_at = 0
        self._tombstoned = 0  # by the monotonic clock

    def tombstone(self) -> None:
        """Hides it from lookups of the topic for a while."""
        self.tombstoned_at = time_ns()
        self._tombstoned = monotonic_ns()

    def is_tombstoned(self, lifetime: int) -> bool:
        """Returns True if it was tombstoned less than `lifetime` nanoseconds ago."""
        return bool(self.tombstoned_at) and monotonic_ns() - self._tombstoned < lifetime


class RegistrationDB:
    """Owns all registrations. `limit` is the maximum of `count`, 0 for none; `own`, an nsqd in this process, is not
    limited, and does not count.

    clients   every nsqd, by id
    topics    topic -> the producers of it, by id of the nsqd
    channels  topic -> channel -> the nsqds that have it, by id
    count     of topics, channels, and registrations of nsqds for them
    """

    def __init__(self, limit: int, log: Logger) -> None:
        self.clients: dict[str, PeerInfo] = {}
        self.topics: dict[str, dict[str, TopicProducer]] = {}
        self.channels: dict[str, dict[str, dict[str, PeerInfo]]] = {}
        self.count = 0
        self.own: PeerInfo | None = None
        self._limit = limit
        self._log = log

    def _log_change(self, peer: PeerInfo, what: str, category: str, topic: str = "", channel: str = "") -> None:
        line = "DB: client(%s) %s category:%s key:%s subkey:%s"
        self._log.info(line, peer.id, what, category, topic, channel)

    def _check(self, more: int) -> None:
        own = 0 if self.own is None else 2 * (len(self.own.topics) + len(self.own.channels))
        if more and 0 < self._limit < self.count - own + more:
            raise TooMany("too many registrations")

    # Registrations of nsqds

    def connect(self, peer: PeerInfo) -> None:
        """Adds an nsqd."""
        self.clients[peer.id] = peer
        self._log_change(peer, "REGISTER", "client")

    def register(self, peer: PeerInfo, topic: str, channel: str) -> None:
        """Registers an nsqd for a topic, and for a channel of it unless that is "". Raises TooMany, without having
        registered anything."""
        new_channel = bool(channel) and (topic, channel) not in peer.channels
        new_topic = topic not in peer.topics
        names = (new_topic and topic not in self.topics) + (new_channel and channel not in self.channels.get(topic, ()))
        if peer is not self.own:
            self._check(new_channel + new_topic + names)
        if new_channel:
            self._channel(topic, channel)[peer.id] = peer
            peer.channels[topic, channel] = None
            self._log_change(peer, "REGISTER", "channel", topic, channel)
        if new_topic:
            self._topic(topic)[peer.id] = peer.topics[topic] = TopicProducer(peer)
            self._log_change(peer, "REGISTER", "topic", topic)
        self.count += new_channel + new_topic

    def unregister(self, peer: PeerInfo, topic: str, channel: str) -> None:
        """Removes the registration of an nsqd for a channel or, without one, for a topic, which goes with its channels.
        May yield without a channel."""
        if channel:
            if self._leave_channel(peer, topic, channel):
                self._log_change(peer, "UNREGISTER", "channel", topic, channel)
            return
        registered = [name for name in self.channel_names(topic) if (topic, name) in peer.channels]
        for name in Turns().over(registered):
            if self._leave_channel(peer, topic, name):
                line = "client(%s) unexpected UNREGISTER category:channel key:%s subkey:%s"
                self._log.warn(line, peer.id, topic, name)
        self.unregister_topic(peer, topic)

    def unregister_topic(self, peer: PeerInfo, topic: str) -> bool:
        """Removes the registration for a topic, and not for channels that it may still have; returns True if there was
        one. An ephemeral topic goes with its last producer."""
        producer = peer.topics.pop(topic, None)
        producers = self.topics.get(topic, {})
        if producer is not None:
            if producers.get(peer.id) is producer:  # another may have the id while one that left is being removed
                del producers[peer.id]
            self.count -= 1
        if is_ephemeral(topic) and topic in self.topics and not producers:
            self._drop_topic(topic)
        if producer is not None:
            self._log_change(peer, "UNREGISTER", "topic", topic)
        return producer is not None

    def _leave_channel(self, peer: PeerInfo, topic: str, channel: str) -> bool:
        """Removes a registration; returns True if there was one. An ephemeral channel goes with its last producer."""
        registered = (topic, channel) in peer.channels
        peers = self.channels.get(topic, {}).get(channel, {})
        if registered:
            del peer.channels[topic, channel]
            if peers.get(peer.id) is peer:
                del peers[peer.id]
            self.count -= 1
        if is_ephemeral(channel) and not peers:
            self.delete_channel(topic, channel)
        return registered

    def disconnect(self, peer: PeerInfo) -> Iterator[None]:
        """Removes an nsqd, and with each item one of its registrations. From the first item on, no query finds it."""
        peer.heard = _LONG_AGO
        if self.clients.get(peer.id) is peer:
            del self.clients[peer.id]
            self._log_change(peer, "UNREGISTER", "client")
            yield
        for topic in list(peer.topics):
            if self.unregister_topic(peer, topic):
                yield
        for topic, channel in list(peer.channels):
            if self._leave_channel(peer, topic, channel):
                self._log_change(peer, "UNREGISTER", "channel", topic, channel)
                yield

    # Names

    def add_topic(self, topic: str) -> None:
        """Adds a topic; raises TooMany."""
        if topic not in self.topics:
            self._check(1)
            self._topic(topic)

    def add_channel(self, topic: str, channel: str) -> None:
        """Adds a channel; raises TooMany."""
        if channel not in self.channels.get(topic, ()):
            self._check(1)
            self._channel(topic, channel)

    def _topic(self, topic: str) -> dict[str, TopicProducer]:
        """Returns the producers of a topic, whose name is added if it is new."""
        if topic not in self.topics:
            self.topics[topic] = {}
            self.count += 1
        return self.topics[topic]

    def _channel(self, topic: str, channel: str) -> dict[str, PeerInfo]:
        """Returns the nsqds of a channel, whose name is added if it is new."""
        channels = self.channels.setdefault(topic, {})
        if channel not in channels:
            channels[channel] = {}
            self.count += 1
        return channels[channel]

    def delete_topics(self, topic: str) -> Iterator[str]:
        """Removes a topic, or all, with the registrations for it; returns the names of the removed topics."""
        for name in self.matching(self.topics, topic):
            if name in self.topics:
                self._drop_topic(name)
                yield name

    def delete_channels(self, topic: str) -> Iterator[str]:
        """Removes the channels of a topic, or of all, with the registrations for them; returns their names."""
        for name in self.matching(self.channels, topic):
            for channel in self.channel_names(name):
                if self.delete_channel(name, channel):
                    yield channel

    def delete_channel(self, topic: str, channel: str) -> bool:
        """Removes a channel with the registrations for it; returns True if it existed."""
        channels = self.channels.get(topic, {})
        if channel not in channels:
            return False
        peers = channels.pop(channel)
        for peer in peers.values():
            del peer.channels[topic, channel]
        if not channels:
            del self.channels[topic]
        self.count -= 1 + len(peers)
        return True

    def _drop_topic(self, topic: str) -> None:
        producers = self.topics.pop(topic)
        for producer in producers.values():
            del producer.peer.topics[topic]
        self.count -= 1 + len(producers)

    # Queries

    def channel_names(self, topic: str) -> list[str]:
        return list(self.channels.get(topic, ()))

    def matching(self, table: Mapping[str, object], topic: str) -> list[str]:
        """Returns the topic if it is in the table, or all topics of the table."""
        if topic == ALL:
            return list(table)
        return [topic] if topic in table else []
