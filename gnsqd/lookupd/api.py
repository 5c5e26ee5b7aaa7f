"""The HTTP API of nsqlookupd (NSQD-COMPAT 6.3): one method per endpoint of LOOKUPD_ROUTES.

The producers of /lookup and /nodes are put together from JSON that each nsqd was given when it identified itself: a
topic may have thousands of them. Names of topics and channels need no escapes in JSON.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from heapq import merge
from itertools import islice
from time import monotonic_ns
from typing import TypeVar

from gnsqd.hub.cooperative import Turns
from gnsqd.log import Logger
from gnsqd.lookupd.registration_db import PeerInfo, RegistrationDB, TopicProducer
from gnsqd.net.addresses import split_host_port
from gnsqd.options import LookupdOptions
from gnsqd.shared.names import is_valid_name
from gnsqd.shared.record import Record
from gnsqd.shared.version import NSQD_VERSION
from gnsqd.web.debug import Debug
from gnsqd.web.http11 import Request
from gnsqd.web.routes import (
    NAMES_ERRORS,
    PPROF_ROUTES,
    BadQuery,
    Content,
    HTTPError,
    Route,
    read_parameters,
    required,
    topic_and_channel,
)

_TOPIC = "400 MISSING_ARG_TOPIC"
_TOO_MANY = "503 TOO_MANY_REGISTRATIONS"
EMBEDDED_ROUTES = (
    Route("GET", "/ping", "ping", v1=False),
    Route("GET", "/info", "info"),
    Route("GET", "/debug", "debug_registrations"),
    Route("GET", "/lookup", "lookup", errors="400 MISSING_ARG_TOPIC, 404 TOPIC_NOT_FOUND"),
    Route("GET", "/topics", "topics"),
    Route("GET", "/channels", "channels", errors=_TOPIC),
    Route("GET", "/nodes", "nodes"),
    Route("POST", "/topic/create", "create_topic", errors=f"{_TOPIC}, 400 INVALID_ARG_TOPIC, {_TOO_MANY}"),
    Route("POST", "/topic/delete", "delete_topic", errors=_TOPIC),
    Route("POST", "/channel/create", "create_channel", errors=f"{NAMES_ERRORS}, {_TOO_MANY}"),
    Route("POST", "/channel/delete", "delete_channel", errors=f"{NAMES_ERRORS}, 404 CHANNEL_NOT_FOUND"),
    Route("POST", "/topic/tombstone", "tombstone_topic_producer", errors=f"{_TOPIC}, 400 MISSING_ARG_NODE"),
)
LOOKUPD_ROUTES = (
    *EMBEDDED_ROUTES,
    Route("GET", "/debug/pprof", "debug.index", v1=False, logged=False),
    *PPROF_ROUTES,
)

_PIECE = 5000

T = TypeVar("T")

_NEVER = -6795364578871345152  # Go's zero time, as UnixNano shows it


class LookupdAPI(Record):
    """The endpoints of one nsqlookupd; `debug` has those of pprof, which EMBEDDED_ROUTES do not need. `provide(topic)`,
    which may yield, is called for a topic that is looked up and has no producer, except with `create=false` in the
    query."""

    _options: LookupdOptions
    _db: RegistrationDB
    _log: Logger
    debug: Debug | None
    _provide: Callable[[str], None] | None = None

    def ping(self, request: Request) -> str:
        return "OK"

    def info(self, request: Request) -> dict[str, object]:
        return {"version": NSQD_VERSION}

    # Queries

    def topics(self, request: Request) -> Content:
        return Content(f'{{"topics":{_list(self._db.topics, Turns())}}}'.encode())

    def channels(self, request: Request) -> Content:
        topic = required(_parameters(request), "topic")
        return Content(f'{{"channels":{self._channels(topic, Turns())}}}'.encode())

    def _channels(self, topic: str, turns: Turns) -> str:
        """Returns the channels of a topic; of all topics, where a name may come more than once. May yield."""
        names: list[str] = []
        for name in turns.over(self._db.matching(self._db.channels, topic)):
            names += self._db.channels.get(name, ())
        return _list(names, turns)

    def _producers(self, topic: str, turns: Turns) -> list[TopicProducer]:
        """Returns the producers of a topic; of all topics, one for each nsqd. May yield."""
        producers: dict[str, TopicProducer] = {}
        for name in turns.over(self._db.matching(self._db.topics, topic)):
            for id, producer in self._db.topics.get(name, {}).items():
                producers.setdefault(id, producer)
        return list(producers.values())

    def lookup(self, request: Request) -> Content:
        parameters = _parameters(request)
        topic = required(parameters, "topic")
        provide = None if parameters.get("create") == "false" else self._provide
        if provide is not None and not self._db.topics.get(topic) and is_valid_name(topic):
            provide(topic)
        if not self._db.matching(self._db.topics, topic):
            raise HTTPError(404, "TOPIC_NOT_FOUND")
        turns = Turns()
        host, oldest, lifetime = _host(request), self._oldest(), self._options.tombstone_lifetime
        producers = [
            producer.peer.json_for(host)
            for producer in self._producers(topic, turns)
            if producer.peer.heard >= oldest and not (producer.tombstoned_at and producer.is_tombstoned(lifetime))
        ]
        channels = self._channels(topic, turns)
        return Content(f'{{"channels":{channels},"producers":[{",".join(producers)}]}}'.encode())

    def _oldest(self) -> int:
        """Returns the oldest last update of an active producer."""
        return monotonic_ns() - self._options.inactive_producer_timeout

    def nodes(self, request: Request) -> Content:
        turns = Turns()
        host, oldest = _host(request), self._oldest()
        clients = turns.over(list(self._db.clients.values()))
        rows = [self._node(peer, host, turns) for peer in clients if peer.heard >= oldest]
        return Content(f'{{"producers":[{",".join(rows)}]}}'.encode())

    def _node(self, peer: PeerInfo, host: str, turns: Turns) -> str:
        lifetime = self._options.tombstone_lifetime
        topics, producers = list(peer.topics), list(peer.topics.values())
        tombstones = ",".join(str(producer.is_tombstoned(lifetime)).lower() for producer in turns.over(producers))
        return f'{peer.json_for(host)[:-1]},"tombstones":[{tombstones}],"topics":{_list(topics, turns)}}}'

    def debug_registrations(self, request: Request) -> dict[str, object]:
        """Returns every registration by `category:topic:channel`, sorted, without names that nobody has registered."""
        turns = Turns()
        registrations = (registration for registration in self._registrations(turns) if registration[1])
        return dict(turns.over(merge(*map(sorted, _pieces(registrations)))))

    def _registrations(self, turns: Turns) -> Iterator[tuple[str, list[dict[str, object]]]]:
        yield "client::", [_debug_row(peer) for peer in self._db.clients.values()]
        for topic in turns.over(list(self._db.topics)):
            producers = self._db.topics.get(topic, {}).values()
            yield f"topic:{topic}:", [_debug_row(producer.peer, producer.tombstoned_at) for producer in producers]
        for topic in list(self._db.channels):
            for channel in turns.over(self._db.channel_names(topic)):
                peers = self._db.channels.get(topic, {}).get(channel, {}).values()
                yield f"channel:{topic}:{channel}", [_debug_row(peer) for peer in peers]

    # Names

    def create_topic(self, request: Request) -> None:
        topic = required(_parameters(request), "topic")
        if not is_valid_name(topic):
            raise HTTPError(400, "INVALID_ARG_TOPIC")
        self._add_topic(topic)

    def _add_topic(self, topic: str) -> None:
        self._log.info("DB: adding topic(%s)", topic)
        self._db.add_topic(topic)

    def delete_topic(self, request: Request) -> None:
        topic = required(_parameters(request), "topic")
        turns = Turns()
        for channel in turns.over(self._db.delete_channels(topic)):
            self._log.info("DB: removing channel(%s) from topic(%s)", channel, topic)
        for _ in turns.over(self._db.delete_topics(topic)):
            self._log.info("DB: removing topic(%s)", topic)

    def create_channel(self, request: Request) -> None:
        topic, channel = topic_and_channel(_parameters(request))
        self._log.info("DB: adding channel(%s) in topic(%s)", channel, topic)
        self._db.add_channel(topic, channel)
        self._add_topic(topic)

    def delete_channel(self, request: Request) -> None:
        topic, channel = topic_and_channel(_parameters(request))
        if not self._db.delete_channel(topic, channel):
            raise HTTPError(404, "CHANNEL_NOT_FOUND")
        self._log.info("DB: removing channel(%s) from topic(%s)", channel, topic)

    def tombstone_topic_producer(self, request: Request) -> None:
        parameters = _parameters(request)
        topic, node = required(parameters, "topic"), required(parameters, "node")
        self._log.info("DB: setting tombstone for producer@%s of topic(%s)", node, topic)
        host = _host(request)
        for producer in self._producers(topic, Turns()):
            if f"{producer.peer.address_for(host)}:{producer.peer.http_port}" == node:
                producer.tombstone()


def _list(names: Collection[str], turns: Turns) -> str:
    """Encodes names as a JSON list. May yield."""
    joined = '","'.join('","'.join(piece) for piece in turns.over(_pieces(list(names))))
    return f'["{joined}"]' if joined else "[]"


def _pieces(items: Iterable[T]) -> Iterator[list[T]]:
    """Returns the items in lists that take a millisecond or two to join or to sort."""
    rest = iter(items)
    while piece := list(islice(rest, _PIECE)):
        yield piece


def _parameters(request: Request) -> Mapping[str, str]:
    try:
        return read_parameters(request)
    except BadQuery as error:
        raise HTTPError(400, "INVALID_REQUEST") from error


def _host(request: Request) -> str:
    """Returns the host by which the client reached us, without port and brackets; "" if the request has none."""
    text = request.headers.get(b"host", b"").decode("utf-8", "replace")
    try:
        return split_host_port(text)[0]
    except ValueError:  # no port
        return text.removeprefix("[").removesuffix("]")


def _debug_row(peer: PeerInfo, tombstoned_at: int = 0) -> dict[str, object]:
    return {
        "broadcast_address": peer.broadcast_address,
        "hostname": peer.hostname,
        "http_port": peer.http_port,
        "id": peer.id,
        "last_update": peer.last_update,
        "tcp_port": peer.tcp_port,
        "tombstoned": bool(tombstoned_at),
        "tombstoned_at": tombstoned_at or _NEVER,
        **dict(sorted(peer.topology.items())),
        "version": peer.version,
    }
