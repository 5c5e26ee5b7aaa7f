"""Registers topics and channels with every nsqlookupd, and asks them for the channels of a new topic. Each has its own
lookupLoop with a queue of events, so that one that is slow, dead or faulty does not delay the others.

A name is one peer, which dials the addresses of the name in turn, as nsqd does. If the name has several addresses of
one family, these are the peers instead. Addresses of both families are not: they may be those of one nsqlookupd.
"""

import re
from socket import gethostname
from typing import TYPE_CHECKING, Any

from gevent import Greenlet, joinall, killall, sleep

from gnsqd.broker.channel import Channel
from gnsqd.broker.registry import Registry
from gnsqd.cluster.lookup_peer import CONNECT_TIMEOUT, LookupdInfo, LookupPeer
from gnsqd.hub.cooperative import Spawn, Turns
from gnsqd.hub.doorbell import Doorbell
from gnsqd.log import Logger
from gnsqd.net.addresses import format_address, is_name, join_host_port, look_up, reason, split_host_port
from gnsqd.options import Options
from gnsqd.shared.errors import AnswerTooLarge, HTTPClientError
from gnsqd.shared.names import is_valid_name
from gnsqd.shared.version import NSQD_VERSION

if TYPE_CHECKING:
    from gnsqd.cluster.http_client import HTTPClient

MAX_CHANNELS_BODY = 5 * 1024 * 1024  # bytes
END_TIMEOUT = 1.0  # seconds in which all connections together send the rest
RESOLVE_INTERVAL = 60.0  # seconds until names are looked up again
RESOLVE_PAUSE = 1.0  # the same when a peer failed; many may fail, and often

# An answer with channels, which is parsed name by name: json would take seconds for the worst of MAX_CHANNELS_BODY.
_BEGIN = re.compile(r'"channels"\s*:\s*\[\s*(?P<end>\])?')
_NAME = re.compile(r'\s*"(?P<name>[^"\\]*)"\s*(?:,|(?P<end>\]))')


class Lookup:
    """Owns the peers, in the order of the addresses. Nothing happens before `connect`."""

    def __init__(self, registry: Registry, options: Options, log: Logger, spawn: Spawn) -> None:
        self._registry = registry
        self._options = options
        self._log = log
        self._spawn = spawn
        self._http: HTTPClient | None = None
        self._peers: dict[str, LookupPeer] = {}
        self._addresses: dict[str, list[str]] = {}  # of each name that has several
        self._resolver: Greenlet[..., None] | None = None
        self._resolver_doorbell = Doorbell()
        self._queries: set[Greenlet[..., None]] = set()
        self._ending: list[Greenlet[..., None]] = []

    def stop(self) -> None:
        """Ends the connections; pending queries for channels return without them. Yields."""
        self._log.info("LOOKUP: closing")
        self._ending = [peer.loop for peer in self._peers.values()]
        for peer in self._peers.values():
            peer.end()
        self._peers.clear()
        killall([*self._queries, *([] if self._resolver is None else [self._resolver])])

    def join(self) -> None:
        """Returns after `stop` when the connections have sent the rest, or after END_TIMEOUT. Yields."""
        joinall(self._ending, END_TIMEOUT)
        killall(self._ending)

    def connect(self) -> None:
        """Connects to the nsqlookupds of the options, and disconnects from others. Never yields: names are looked up
        later."""
        options = self._options
        addresses = options.nsqlookupd_tcp_addresses or []
        if addresses and self._http is None:
            from gnsqd.cluster.http_client import HTTPClient  # imported late, as it loads slowly

            timeouts = options.http_client_connect_timeout, options.http_client_request_timeout
            self._http = HTTPClient(*timeouts, MAX_CHANNELS_BODY)
        self._update_peers()
        if self._resolver is not None:
            self._resolver_doorbell.ring()
        elif any(map(is_name, addresses)):
            self._resolver = self._spawn("resolveLoop", self._resolve_loop)

    def _update_peers(self) -> None:
        options = self._options
        given = options.nsqlookupd_tcp_addresses or []
        addresses = [address for each in given for address in self._addresses.get(each, [each])]
        for address in [address for address in self._peers if address not in addresses]:
            self._log.info("LOOKUP(%s): removing peer", address)
            self._peers.pop(address).end()
        for address in addresses:
            if address not in self._peers:
                self._log.info("LOOKUP(%s): adding peer", address)
                functions = self._identity, self._registrations, self._resolver_doorbell.ring
                peer = LookupPeer(address, *functions, options.max_body_size, self._log)
                peer.loop = self._spawn(f"lookupLoop:{address}", peer.lookupLoop)
                self._peers[address] = peer

    def _resolve_loop(self) -> None:
        while True:
            names = list(filter(is_name, self._options.nsqlookupd_tcp_addresses or []))
            self._addresses = {name: self._addresses[name] for name in names if name in self._addresses}
            for name in names:
                self._resolve(name)
            sleep(RESOLVE_PAUSE)
            self._resolver_doorbell.wait(RESOLVE_INTERVAL)

    def _resolve(self, name: str) -> None:
        """Looks a name up, and connects to its addresses if it has several. If that fails, the peers stay. Yields."""
        families: dict[int, set[str]] = {}
        try:
            for family, _, _, _, address in look_up(*split_host_port(name), CONNECT_TIMEOUT):
                families.setdefault(family, set()).add(format_address(address))
        except (OSError, ValueError) as error:
            if name in self._addresses:  # otherwise its peer logs the same
                self._log.warn("LOOKUP(%s): keeping its addresses - %s", name, reason(error))
            return
        addresses = max(map(sorted, families.values()), key=len)
        if len(addresses) > 1 or addresses[0] in self._peers:  # the only one left stays connected
            self._addresses[name] = addresses
        else:
            self._addresses.pop(name, None)
        self._update_peers()

    def connected(self) -> dict[str, bool]:
        """Returns, for each nsqlookupd by address, True if it is connected and has all registrations."""
        return {address: peer.connected for address, peer in self._peers.items()}

    def _identity(self, local_host: str) -> dict[str, object]:
        options = self._options
        if options.broadcast_address_auto:
            options.broadcast_address = local_host  # /info shows it too
        topology = {"topology_region": options.topology_region, "topology_zone": options.topology_zone}
        return {
            "broadcast_address": options.broadcast_address,
            "hostname": gethostname(),
            "http_port": options.broadcast_http_port,
            "tcp_port": options.broadcast_tcp_port,
            **(topology if options.has_topology else {}),
            "version": NSQD_VERSION,
        }

    def _registrations(self) -> list[tuple[str, list[str]]]:
        return [
            (topic.name, [channel.name for channel in topic.channels.values() if not channel.exiting])
            for topic in self._registry.topics.values()
            if not topic.exiting
        ]

    def notify(self, thing: Any) -> None:
        """Reports that a topic or channel was created or deleted. Never yields."""
        kind, names = "topic", thing.name
        if isinstance(thing, Channel):
            kind, names = "channel", f"{thing.topic_name} {thing.name}"
        for peer in self._peers.values():
            peer.queue_command(kind, f"{'UNREGISTER' if thing.exiting else 'REGISTER'} {names}")

    def channels_to_precreate(self, topic_name: str) -> list[str]:
        """Returns the channels of this topic that nsqlookupds list, sorted. Yields until all have answered or failed.
        Peers that do not answer at the moment are asked only if there are no others."""
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
            text = "failed to query nsqlookupd for channels to pre-create for topic %s - %s%s"
            self._log.warn(text, topic_name, prefix, "; ".join(errors))
        return sorted(names)

    def _query(self, info: LookupdInfo, topic_name: str, names: set[str], errors: list[str]) -> "Greenlet[..., None]":
        address = join_host_port(info.broadcast_address, info.http_port)
        target = f"/channels?topic={topic_name.replace('#', '%23')}"  # names have no other special characters

        def query() -> None:
            assert self._http is not None
            self._log.info("CI: querying nsqlookupd http://%s%s", address, target)
            try:
                names.update(self._parse_channels(self._http.request(f"http://{address}{target}")))
            except (HTTPClientError, ValueError) as error:
                errors.append(str(error))
                if isinstance(error.__cause__, AnswerTooLarge):
                    text = "TOPIC(%s): nsqlookupd http://%s lists more than %d bytes of channels, so none of them is "
                    text += "created in advance: each misses the messages before its first consumer connects here"
                    self._log.error(text, topic_name, address, MAX_CHANNELS_BODY)

        greenlet = self._spawn(f"query:{address}", query)
        self._queries.add(greenlet)
        greenlet.rawlink(self._queries.discard)
        return greenlet

    def _parse_channels(self, body: bytes) -> list[str]:
        """Returns the valid names, as they become file names; raises ValueError if there is no list. Yields."""
        text, turns = body.decode("utf-8", "replace"), Turns()
        names: list[str] = []
        match = _BEGIN.search(text)
        while match is not None and match["end"] is None:
            match = _NAME.match(text, match.end())
            if match is not None:
                names.append(match["name"])
            turns.give()
        if match is None:
            raise ValueError("no list of channels")
        valid = [name for name in turns.over(names) if is_valid_name(name)]
        if len(valid) < len(names):
            self._log.warn("skipping creation of %d invalid channels", len(names) - len(valid))
        return valid
