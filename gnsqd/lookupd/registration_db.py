"""The database of nsqlookupd, in memory: topics and channels by name, and the nsqds that have registered for them.

Names outlive the nsqds that registered them: only UNREGISTER of an ephemeral name and the HTTP API remove one. A topic
and a channel are registered independently, as in the real nsqlookupd, so a channel may be listed for a topic that is
not. `*` stands for all topics where a query allows it.

What an nsqd has registered is also kept with the nsqd, so a disconnect does not search the database.
"""

from collections.abc import Iterable, Mapping
from time import monotonic_ns, time_ns

from gnsqd.gotext import dumps
from gnsqd.names import TooMany, is_ephemeral

ALL = "*"

Registration = tuple[str, str, str]  # category (client, topic or channel), topic, channel


class PeerInfo:
    """One nsqd, by what it reported about itself.

    id           the remote address of its connection
    json         the fields of /lookup
    last_update  when it was last heard of, in ns since 1970
    heard        the same by the monotonic clock
    topology     topology_zone and topology_region, or nothing if it reported neither, as v1.3.0 does
    """

    __slots__ = (
        "broadcast_address", "channels", "heard", "hostname", "http_port", "id", "json", "last_update",
        "tcp_port", "topics", "topology", "version",
    )  # fmt: skip

    def __init__(
        self,
        id: str,
        *,
        hostname: str = "",
        broadcast_address: str = "",
        tcp_port: int = 0,
        http_port: int = 0,
        version: str = "",
        topology_zone: str | None = None,
        topology_region: str | None = None,
    ) -> None:
        self.id = id
        self.hostname = hostname
        self.broadcast_address = broadcast_address
        self.tcp_port = tcp_port
        self.http_port = http_port
        self.version = version
        has_topology = topology_zone is not None or topology_region is not None
        topology = {"topology_zone": topology_zone or "", "topology_region": topology_region or ""}
        self.topology = topology if has_topology else {}
        self.json = self.encode(broadcast_address)
        self.topics: dict[str, Producer] = {}
        self.channels: dict[tuple[str, str], None] = {}
        self.last_update = time_ns()
        self.heard = monotonic_ns()

    def encode(self, broadcast_address: str) -> str:
        """The fields of /lookup, as JSON with this address."""
        return dumps(
            {
                "remote_address": self.id,
                "hostname": self.hostname,
                "broadcast_address": broadcast_address,
                "tcp_port": self.tcp_port,
                "http_port": self.http_port,
                "version": self.version,
                **self.topology,
            }
        )

    def json_for(self, host: str) -> str:
        """The fields of /lookup, for an asker that reached nsqlookupd by this host name, "" if unknown."""
        return self.json

    def address_for(self, host: str) -> str:
        """The broadcast address in that."""
        return self.broadcast_address

    def note_update(self) -> int:
        """It was heard of now; how many nanoseconds that is after the last time."""
        before = self.heard
        self.last_update = time_ns()
        self.heard = monotonic_ns()
        return self.heard - before


class Producer:
    """The registration of one nsqd for one topic. `tombstoned_at` is ns since 1970, 0 if it never was."""

    __slots__ = ("_tombstoned", "peer", "tombstoned_at")

    def __init__(self, peer: PeerInfo) -> None:
        self.peer = peer
        self.tombstoned_at = 0
        self._tombstoned = 0

    def tombstone(self) -> None:
        """Hide it from lookups of the topic for a while."""
        self.tombstoned_at = time_ns()
        self._tombstoned = monotonic_ns()

    def is_tombstoned(self, lifetime: int) -> bool:
        """Whether that was less than `lifetime` nanoseconds ago."""
        return bool(self.tombstoned_at) and monotonic_ns() - self._tombstoned < lifetime


class RegistrationDB:
    """Owns all registrations. `limit` is the maximum of `count`, 0 for none.

    clients   every nsqd, by id
    topics    topic -> the producers of it, by id of the nsqd
    channels  topic -> channel -> the nsqds that have it, by id
    count     of topics, channels, and registrations of nsqds for them
    """

    def __init__(self, limit: int) -> None:
        self.clients: dict[str, PeerInfo] = {}
        self.topics: dict[str, dict[str, Producer]] = {}
        self.channels: dict[str, dict[str, dict[str, PeerInfo]]] = {}
        self.count = 0
        self._limit = limit

    def _check(self, more: int) -> None:
        if more and 0 < self._limit < self.count + more:
            raise TooMany("too many registrations")

    # Registrations of nsqds

    def register(self, peer: PeerInfo, topic: str, channel: str) -> list[Registration]:
        """Register an nsqd for a topic, and for a channel of it unless that is ""; what of it is new. TooMany, and
        then none of it is done."""
        new_channel = bool(channel) and (topic, channel) not in peer.channels
        new_topic = topic not in peer.topics
        names = (new_topic and topic not in self.topics) + (new_channel and channel not in self.channels.get(topic, ()))
        self._check(new_channel + new_topic + names)
        registered = []
        if new_channel:
            self.add_channel(topic, channel)
            self.channels[topic][channel][peer.id] = peer
            peer.channels[topic, channel] = None
            registered.append(("channel", topic, channel))
        if new_topic:
            self.add_topic(topic)
            self.topics[topic][peer.id] = peer.topics[topic] = Producer(peer)
            registered.append(("topic", topic, ""))
        self.count += len(registered)
        return registered

    def unregister_topic(self, peer: PeerInfo, topic: str) -> bool:
        """Whether it was registered. An ephemeral topic goes with its last producer."""
        removed = self._remove_from_topic(peer, topic)
        if is_ephemeral(topic) and topic in self.topics and not self.topics[topic]:
            self._drop_topic(topic)
        return removed

    def unregister_channel(self, peer: PeerInfo, topic: str, channel: str) -> bool:
        """Whether it was registered. An ephemeral channel goes with its last producer."""
        removed = self._remove_from_channel(peer, topic, channel)
        if is_ephemeral(channel) and self.channels.get(topic, {}).get(channel) == {}:
            self._drop_channel(topic, channel)
        return removed

    def unregister_channels(self, peer: PeerInfo, topic: str) -> list[str]:
        """Remove an nsqd from all channels of a topic, and return their names. All names stay."""
        names = [name for name in self.channels.get(topic, ()) if (topic, name) in peer.channels]
        for name in names:
            self._remove_from_channel(peer, topic, name)
        return names

    def disconnect(self, peer: PeerInfo) -> list[Registration]:
        """Remove an nsqd, and return what it had registered. All names stay."""
        removed = [("client", "", "")] if self.clients.pop(peer.id, None) else []
        for topic in list(peer.topics):
            self._remove_from_topic(peer, topic)
            removed.append(("topic", topic, ""))
        for topic, channel in list(peer.channels):
            self._remove_from_channel(peer, topic, channel)
            removed.append(("channel", topic, channel))
        return removed

    def _remove_from_topic(self, peer: PeerInfo, topic: str) -> bool:
        if peer.topics.pop(topic, None) is None:
            return False
        del self.topics[topic][peer.id]
        self.count -= 1
        return True

    def _remove_from_channel(self, peer: PeerInfo, topic: str, channel: str) -> bool:
        if (topic, channel) not in peer.channels:
            return False
        del peer.channels[topic, channel]
        del self.channels[topic][channel][peer.id]
        self.count -= 1
        return True

    # Names

    def add_topic(self, topic: str) -> None:
        """TooMany."""
        if topic not in self.topics:
            self._check(1)
            self.topics[topic] = {}
            self.count += 1

    def add_channel(self, topic: str, channel: str) -> None:
        """TooMany."""
        channels = self.channels.get(topic, {})
        if channel not in channels:
            self._check(1)
            channels[channel] = {}
            self.channels[topic] = channels
            self.count += 1

    def delete_topics(self, topic: str) -> int:
        """Remove a topic, or all, with the registrations for it; the number of removed topics."""
        names = self._matching(self.topics, topic)
        for name in names:
            self._drop_topic(name)
        return len(names)

    def delete_channels(self, topic: str) -> list[str]:
        """Remove the channels of a topic, or of all, with the registrations for them; their names."""
        removed = [(name, channel) for name in self._matching(self.channels, topic) for channel in self.channels[name]]
        for name, channel in removed:
            self._drop_channel(name, channel)
        return [channel for _, channel in removed]

    def delete_channel(self, topic: str, channel: str) -> bool:
        """Remove a channel with the registrations for it; whether there was one."""
        found = channel in self.channels.get(topic, ())
        if found:
            self._drop_channel(topic, channel)
        return found

    def _drop_topic(self, topic: str) -> None:
        producers = self.topics.pop(topic)
        for producer in producers.values():
            del producer.peer.topics[topic]
        self.count -= 1 + len(producers)

    def _drop_channel(self, topic: str, channel: str) -> None:
        channels = self.channels[topic]
        peers = channels.pop(channel)
        for peer in peers.values():
            del peer.channels[topic, channel]
        if not channels:
            del self.channels[topic]
        self.count -= 1 + len(peers)

    # Queries

    def has_topic(self, topic: str) -> bool:
        """Whether there is this topic, or any."""
        return bool(self._matching(self.topics, topic))

    def channel_names(self, topic: str) -> list[str]:
        """The channels of a topic, or of all topics, where a name may come more than once."""
        return [channel for name in self._matching(self.channels, topic) for channel in self.channels[name]]

    def producers(self, topic: str) -> Iterable[Producer]:
        """The producers of a topic; of all topics, one for each nsqd."""
        if topic != ALL:
            return self.topics.get(topic, {}).values()
        found: dict[str, Producer] = {}
        for producers in self.topics.values():
            found = producers | found
        return found.values()

    def _matching(self, table: Mapping[str, object], topic: str) -> list[str]:
        if topic == ALL:
            return list(table)
        return [topic] if topic in table else []
