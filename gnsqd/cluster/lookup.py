"""Tells every nsqlookupd which topics and channels there are, and asks them for the channels of a new topic.

Each nsqlookupd has a lookupLoop with a queue of events of its own, so that one which is slow, dead or lying delays
nobody else: telling it something is putting a line into its queue. What can't be told is dropped, because the next
connection registers everything anew: the queue when connecting fails, and a queue that has grown too long together
with its connection.
"""

import json
from collections import deque
from collections.abc import Callable
from socket import gethostname
from time import monotonic
from urllib.parse import quote_plus

from gevent import Greenlet, joinall, killall

from gnsqd.broker.channel import Channel
from gnsqd.broker.environment import Spawn
from gnsqd.broker.registry import Registry
from gnsqd.broker.topic import Topic
from gnsqd.cluster.http_client import HTTPClient, HTTPClientError
from gnsqd.cluster.lookup_peer import LookupdError, LookupPeer, PeerInfo, register, unregister
from gnsqd.hub.doorbell import Doorbell
from gnsqd.log import Logger
from gnsqd.names import is_valid_name
from gnsqd.net.addresses import join_host_port
from gnsqd.options import Options
from gnsqd.version import NSQD_VERSION

PING_INTERVAL = 15.0  # seconds
MAX_EVENTS = 1000
MAX_CHANNELS_BODY = 256 * 1024  # bytes; more would keep everybody waiting while it is parsed


class Lookup:
    """Owns the peers, in the order of the addresses. Nothing happens before `start`."""

    def __init__(self, registry: Registry, options: Options, log: Logger, spawn: Spawn) -> None:
        self._registry = registry
        self._options = options
        self._log = log
        self._spawn = spawn
        self._http = HTTPClient(
            options.http_client_connect_timeout, options.http_client_request_timeout, max_body_size=MAX_CHANNELS_BODY
        )
        self._peers: dict[str, _Announcer] = {}
        self._queries: set[Greenlet[..., None]] = set()

    def start(self) -> None:
        """Announce this daemon. Never yields."""
        self.set_addresses(self._options.nsqlookupd_tcp_addresses)

    def stop(self) -> None:
        """Close all connections, and let who waits for channels to create go on without. Yields."""
        self._log.info("LOOKUP: closing")
        loops = [peer.greenlet for peer in self._peers.values()]
        self._peers.clear()
        killall([*loops, *self._queries])

    def set_addresses(self, addresses: list[str]) -> None:
        """Leave the peers that aren't among `addresses`, and connect to those that are new. Never yields."""
        wanted = set(addresses)
        for address in [address for address in self._peers if address not in wanted]:
            self._log.info("LOOKUP(%s): removing peer", address)
            self._peers.pop(address).greenlet.kill(block=False)
        for address in addresses:
            if address not in self._peers:
                self._log.info("LOOKUP(%s): adding peer", address)
                self._peers[address] = self._announce_at(address)

    def _announce_at(self, address: str) -> "_Announcer":
        options = self._options
        identity = {
            "broadcast_address": options.broadcast_address,
            "hostname": gethostname(),
            "tcp_port": options.broadcast_tcp_port,
            "http_port": options.broadcast_http_port,
            "version": NSQD_VERSION,
        }
        peer = LookupPeer(address, identity, self._registrations, options.max_body_size, self._log)
        return _Announcer(peer, self._log, self._spawn)

    def _registrations(self) -> list[tuple[str, list[str]]]:
        return [
            (topic.name, [channel.name for channel in topic.channels.values() if not channel.exiting])
            for topic in self._registry.topics.values()
            if not topic.exiting
        ]

    def notify(self, thing: object) -> None:
        """A topic or channel came or went. Never yields."""
        if isinstance(thing, Channel):
            self._tell_all("channel", thing.topic_name, thing.name, thing.exiting)
        elif isinstance(thing, Topic):
            self._tell_all("topic", thing.name, "", thing.exiting)

    def _tell_all(self, kind: str, topic: str, channel: str, gone: bool) -> None:
        command = (unregister if gone else register)(topic, channel)
        for peer in self._peers.values():
            peer.tell(kind, command)

    # Channels of a new topic

    def channels_to_precreate(self, topic_name: str) -> list[str]:
        """The channels that any nsqlookupd knows of this topic, sorted. Yields until all have answered or failed.

        Those that don't answer at the moment are asked only if there are no others.
        """
        known = [peer for peer in self._peers.values() if peer.info.broadcast_address]
        infos = [peer.info for peer in known if peer.connected] or [peer.info for peer in known]
        if not infos:
            if self._peers:
                self._log.error("no available nsqlookupd to query for channels to pre-create for topic %s", topic_name)
            return []
        names: set[str] = set()
        errors: list[str] = []
        queries = [self._query(info, topic_name, names, errors) for info in infos]
        joinall(queries)
        if errors:
            prefix = "failed to query any nsqlookupd: " if len(errors) == len(infos) else ""
            self._log.warn(
                "failed to query nsqlookupd for channels to pre-create for topic %s - %s%s",
                topic_name,
                prefix,
                "; ".join(errors),
            )
        return sorted(names)

    def _query(self, info: PeerInfo, topic_name: str, names: set[str], errors: list[str]) -> "Greenlet[..., None]":
        address = join_host_port(info.broadcast_address, info.http_port)
        target = f"/channels?topic={quote_plus(topic_name)}"

        def query() -> None:
            self._log.info("CI: querying nsqlookupd http://%s%s", address, target)
            try:
                names.update(self._parse_channels(self._http.get(f"http://{address}{target}")))
            except (HTTPClientError, ValueError) as error:
                errors.append(str(error))

        greenlet = self._spawn(f"query:{address}", query)
        self._queries.add(greenlet)
        greenlet.rawlink(self._queries.discard)
        return greenlet

    def _parse_channels(self, body: bytes) -> list[str]:
        """ValueError if that is no list of names; a name that no channel may have is left out, since files are named
        after channels."""
        try:
            names = json.loads(body)["channels"]
        except (TypeError, KeyError, RecursionError):
            names = ""
        if not isinstance(names, list):
            raise ValueError("no list of channels")
        valid = [name for name in names if isinstance(name, str) and is_valid_name(name)]
        if len(valid) < len(names):
            self._log.warn("skipping creation of %d invalid channels", len(names) - len(valid))
        return valid


class _Announcer:
    """One nsqlookupd, and what it is still to be told."""

    def __init__(self, peer: LookupPeer, log: Logger, spawn: Spawn) -> None:
        self._peer = peer
        self._log = log
        self._events: deque[tuple[str, str]] = deque()
        self._doorbell = Doorbell()
        self._overrun = False
        self.greenlet = spawn(f"lookupLoop:{peer.address}", self.lookupLoop)

    @property
    def info(self) -> PeerInfo:
        return self._peer.info or PeerInfo()

    @property
    def connected(self) -> bool:
        return self._peer.connected

    def tell(self, kind: str, command: str) -> None:
        if len(self._events) < MAX_EVENTS:
            self._events.append((kind, command))
        else:
            self._events.clear()
            self._overrun = True
        self._doorbell.ring()

    def lookupLoop(self) -> None:
        """Tell the nsqlookupd everything and what changes, and PING it, until killed."""
        address = self._peer.address
        try:
            ping_at = monotonic() + PING_INTERVAL
            self._connect()
            while True:
                wait = ping_at - monotonic()
                if self._overrun:
                    self._log.warn("LOOKUPD(%s): too far behind, registering everything anew", address)
                    self._overrun = False
                    self._peer.close()
                    self._connect()
                elif wait <= 0:
                    self._log.debug("LOOKUPD(%s): sending heartbeat", address)
                    ping_at = monotonic() + PING_INTERVAL
                    self._command("PING")
                elif self._events:
                    kind, command = self._events.popleft()
                    self._log.info("LOOKUPD(%s): %s %s", address, kind, command)
                    self._command(command)
                else:
                    self._doorbell.wait(wait)
        finally:
            self._peer.close()

    def _connect(self) -> None:
        self._attempt("connect", self._peer.connect)

    def _command(self, command: str) -> None:
        self._attempt(command, lambda: self._peer.command(command))

    def _attempt(self, what: str, action: Callable[[], None]) -> None:
        connected = self._peer.connected
        try:
            action()
        except LookupdError as error:
            self._log.error("LOOKUPD(%s): %s - %s", self._peer.address, error.command or what, error)
            if not connected:
                self._events.clear()
            elif error.ended:
                self._connect()  # it was restarted, perhaps, and the next PING would be long in coming
