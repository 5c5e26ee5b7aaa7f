"""The HTTP APIs of nsqd and nsqlookupd: their JSON as dataclasses, and a method for each endpoint.

All methods may raise NodeError.

Fields of dataclasses have the names of the JSON keys, so that one declaration serves reading, totals and the output of
`--json`. Unknown keys are ignored: newer daemons may send more. A missing key without a default, or one of another
type, means that this is another program, and is a `ModelError`.
"""

import email.utils
import re
import socket
import time
import urllib.parse
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from typing import Any, Literal, TypeVar

from gnsqd.shared.errors import reason_of
from gnsqd.shared.names import is_ephemeral
from gnsqd.shared.statistics import ChannelFigures, TopicFigures
from nsqadmin_cli.http_client import Address, HTTPClient, NodeError, NodeLacks, NodeRefused, timed_out
from nsqadmin_cli.json_stream import Rows, parse

_LARGEST = 2**64  # no count of a Go program goes beyond its integers


class ModelError(ValueError):
    """A JSON document is not one of this daemon; the text is the reason."""


@contextmanager
def expecting(what: str) -> Iterator[None]:
    """Raises a ModelError if `with`, or a decorated function, reads JSON of another form."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError):
        raise ModelError(f"it is not {what}") from None


@dataclass(frozen=True, slots=True)
class Percentile:
    """The end-to-end processing latency in ns that the fraction `quantile` of messages does not exceed."""

    quantile: float
    value: float


@dataclass(frozen=True, slots=True)
class Latency:
    """End-to-end processing latency; no percentiles if the daemon does not measure them."""

    count: int
    percentiles: tuple[Percentile, ...]


_NO_LATENCY = Latency(0, ())


@dataclass(frozen=True, slots=True)
class ClientStats:
    """One connection, as a consumer of a channel or as a producer."""

    client_id: str
    hostname: str
    remote_address: str
    version: str
    user_agent: str
    state: int
    ready_count: int
    in_flight_count: int
    message_count: int
    finish_count: int
    requeue_count: int
    connect_ts: int  # unix seconds
    sample_rate: int
    deflate: bool
    snappy: bool
    tls: bool = False
    authed: bool = False
    auth_identity: str = ""

    @property
    def name(self) -> str:
        """What it calls itself, or else its address: both names of an IDENTIFY may be empty."""
        return self.client_id or self.hostname or self.remote_address

    @property
    def full_name(self) -> str:
        """Its name, and its address."""
        return self.name if self.name == self.remote_address else f"{self.name} ({self.remote_address})"


@dataclass(frozen=True, slots=True)
class IdleAction:
    """What gnsqd will do in `left` ns to a channel that had no consumer for `time` ns."""

    policy: str
    time: int
    left: int


@dataclass(frozen=True, slots=True)
class ChannelStats(ChannelFigures):
    """One channel: of one node, or summed over several."""

    e2e_processing_latency: Latency = _NO_LATENCY
    clients: tuple[ClientStats, ...] | None = None  # None: not asked for, and in sums
    finish_count: int | None = field(default=None, metadata={"json": False})  # None: nsqd does not have it; in sums
    idle: IdleAction | None = field(default=None, metadata={"json": False})  # None: nothing will be done; in sums


@dataclass(frozen=True, slots=True)
class TopicStats(TopicFigures):
    """One topic with its channels: of one node, or summed over several."""

    e2e_processing_latency: Latency = _NO_LATENCY
    channels: tuple[ChannelStats, ...] = ()


Connection = tuple[str, str, str, int]  # topic, channel, remote address, time of connecting


@dataclass(frozen=True, slots=True)
class NodeStats:
    """All statistics of one nsqd."""

    version: str
    health: str  # "OK" or "NOK - {error}"
    start_time: int  # unix seconds
    topics: tuple[TopicStats, ...]
    producers: tuple[ClientStats, ...] | None = None  # None: not asked for
    moment: float = field(default=0.0, compare=False, metadata={"json": False})  # of the answer, by time.monotonic()

    def channels(self) -> Iterator[tuple[str, ChannelStats]]:
        """Each channel and the name of its topic."""
        return ((topic.topic_name, channel) for topic in self.topics for channel in topic.channels)

    @property
    def has_ephemeral(self) -> bool:
        """True if a topic or channel is ephemeral."""
        names = [topic.topic_name for topic in self.topics] + [channel.channel_name for _, channel in self.channels()]
        return any(map(is_ephemeral, names))

    def connections(self) -> dict[Connection, ClientStats]:
        """The consumers, by the identity of their connection."""
        clients = (
            (topic, channel.channel_name, client)
            for topic, channel in self.channels()
            for client in channel.clients or ()
        )
        return {(*place, client.remote_address, client.connect_ts): client for *place, client in clients}  # type: ignore[misc]

    @classmethod
    def from_json(cls, data: object, moment: float = 0.0) -> "NodeStats":
        """Read the parsed `/stats?format=json` of one nsqd, with STATS_ROWS, received at `moment`; ModelError."""
        where = ("the document", "")
        node = _object(data, where)
        values = scalars(NodeStats, node, where)
        topics = tuple(_list(node, "topics", where) or ())
        producers = _list(node, "producers", where) if "producers" in node else None
        clients = None if producers is None else tuple(producers)
        return cls(*values, topics, clients, moment)  # type: ignore[call-arg]


@dataclass(frozen=True, slots=True)
class Info:
    """`/info` of one nsqd. The port is -1 for a unix socket."""

    tcp_port: int


@dataclass(frozen=True, slots=True)
class Producer:
    """One nsqd as an nsqlookupd knows it; `topics` and `tombstones` are parallel, and empty in an answer of /lookup."""

    remote_address: str
    hostname: str
    broadcast_address: str
    tcp_port: int
    http_port: int
    version: str
    topics: tuple[str, ...] = ()
    tombstones: tuple[bool, ...] = ()

    @property
    def name(self) -> str:
        """The name of the node in tombstones: {broadcast address}:{HTTP port}."""
        return f"{self.broadcast_address}:{self.http_port}"

    @property
    def http_address(self) -> Address:
        """ValueError if it is invalid."""
        host = self.broadcast_address
        return Address.parse(f"[{host}]:{self.http_port}" if ":" in host else self.name)

    @classmethod
    def from_json(cls, data: object) -> "Producer":
        """An item of `/nodes` or `/lookup` of one nsqlookupd; ModelError if it is anything else."""
        where = ("a producer", "")
        producer = _object(data, where)
        topics = strings(producer, "topics", where) if "topics" in producer else ()
        tombstones = tuple(map(bool, _list(producer, "tombstones", where) or ())) if topics else ()
        return cls(*scalars(Producer, producer, where), topics, tombstones)  # type: ignore[call-arg]


@dataclass(frozen=True, slots=True)
class Holder:
    """A queue that is not empty; `channel` is "" for a topic's own, `remark` the reason if it is not consumed."""

    topic: str
    channel: str
    messages: int
    remark: str

    def __str__(self) -> str:
        name = f"{self.topic}:{self.channel}" if self.channel else self.topic
        return f"{name} {self.messages:,}{f' ({self.remark})' if self.remark else ''}"


@dataclass(frozen=True, slots=True)
class DrainState:
    """A drain as gnsqd has it; `remaining` ns are left until it exits in any case. `holding`: the fullest queues."""

    draining: bool
    remaining: int
    messages: int
    holding: tuple[Holder, ...]

    @classmethod
    def from_json(cls, data: Any) -> "DrainState":
        """ModelError."""
        with expecting("a state of a drain"):
            holding = tuple(Holder(*scalars(Holder, holder)) for holder in data["holding"])
            state = cls(*scalars(cls, data), holding)  # type: ignore[call-arg]
            if min(state.messages, state.remaining) < 0:
                raise ValueError
            return state


def located(producers: Iterable[Producer]) -> Iterator[tuple[Address, Producer]]:
    """The producers whose HTTP address is valid; Cluster.nsqds reports the others."""
    for producer in producers:
        with suppress(ValueError):
            yield producer.http_address, producer


Where = tuple[str, str]  # what is read, and its name if it has one; made a text of only for an error


def items(data: object, key: str) -> tuple[Any, ...]:
    """The list that a document has under `key`, whose items are rows already; ModelError."""
    where = ("the document", "")
    return tuple(_list(_object(data, where), key, where) or ())


def strings(data: object, key: str, where: Where = ("the document", "")) -> tuple[str, ...]:
    """The list of strings that an object has under `key`; ModelError."""
    texts = _list(_object(data, where), key, where) or []
    if not all(isinstance(text, str) for text in texts):
        raise ModelError(f'"{key}" of {_text(where)} is not a list of strings')
    return tuple(texts)


def _topic(data: object) -> TopicStats:
    topic = _object(data, ("a topic", ""))
    values = scalars(TopicStats, topic, ("a topic", ""))
    name = values[0]
    inner = ("a channel of topic", name)
    channels = []
    for item in _list(topic, "channels", ("topic", name)) or ():
        channel = _object(item, inner)
        finished = channel.get("finish_count")
        nested = (
            _latency(channel, inner),
            _clients(channel, "clients", inner),
            finished if type(finished) is int else None,
            IdleAction(*scalars(IdleAction, channel["idle"], inner)) if "idle" in channel else None,
        )
        channels.append(ChannelStats(*scalars(ChannelStats, channel, inner), *nested))  # type: ignore[call-arg]
    return TopicStats(*values, _latency(topic, ("topic", name)), tuple(channels))  # type: ignore[call-arg]


def _clients(data: dict[str, Any], key: str, where: Where) -> tuple[ClientStats, ...] | None:
    clients = _list(data, key, where) if key in data else None
    if clients is None:
        return None
    inner = (f"a client of {_text(where)}", "") if clients else where
    return tuple(ClientStats(*scalars(ClientStats, client, inner)) for client in clients)


def _producer(data: object) -> ClientStats:
    return ClientStats(*scalars(ClientStats, data, ("a client of the document", "")))


def _name(data: object) -> str:
    if not isinstance(data, str):
        raise ModelError("a name is not a string")
    return data


def _latency(data: dict[str, Any], where: Where) -> Latency:
    if (value := data.get("e2e_processing_latency")) is None:
        return _NO_LATENCY
    latency = _object(value, where)
    percentiles = latency.get("percentiles")
    if not percentiles:
        return _NO_LATENCY
    try:
        read = [Percentile(float(percentile["quantile"]), float(percentile["value"])) for percentile in percentiles]
        return Latency(int(latency["count"]), tuple(read))
    except (TypeError, ValueError, LookupError, OverflowError):
        raise ModelError(f'"e2e_processing_latency" of {_text(where)} is not a latency') from None


def _object(data: object, where: Where) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise ModelError(f"{_text(where)} is not a JSON object")
    return data


def _list(data: dict[str, Any], key: str, where: Where) -> list[Any] | None:
    """A list, which Go encodes as null if it is nil."""
    if key not in data:
        raise ModelError(f'{_text(where)} has no "{key}"')
    value = data[key]
    if value is not None and not isinstance(value, list):
        raise ModelError(f'"{key}" of {_text(where)} is not a list')
    return value


def scalars(kind: type, data: object, where: Where = ("the document", "")) -> list[Any]:
    """The values in `data` of the fields of `kind` that are text, numbers or booleans, in their order; ModelError."""
    data, values = _object(data, where), []
    for name, expected, default in _fields_of(kind):
        value = data.get(name, default)
        if type(value) is not expected or (expected is int and not -_LARGEST < value < _LARGEST):
            if value is MISSING:
                raise ModelError(f'{_text(where)} has no "{name}"')
            raise ModelError(f'"{name}" of {_text(where)} is not {_NAMES[expected]}')
        values.append(value)
    return values


@cache
def _fields_of(kind: type) -> tuple[tuple[str, Any, Any], ...]:
    """Name, type and default of the fields that `scalars` reads."""
    return tuple(
        (attribute.name, attribute.type, attribute.default)
        for attribute in fields(kind)
        if attribute.type in (str, int, bool) and attribute.metadata.get("json", True)
    )


_NAMES: dict[object, str] = {str: "a string", int: "a count", bool: "a boolean"}


def _text(where: Where) -> str:
    what, name = where
    return f"{what} {name!r:.100}" if name else what


STATS_ROWS: dict[str, Callable[[Any], Any]] = {"topics": _topic, "producers": _producer}
_PRODUCERS: Rows = {"producers": Producer.from_json}

T = TypeVar("T")

Action = Literal["create", "delete", "empty", "pause", "unpause"]
Query = Mapping[str, str] | None
# By the code or status of a NodeRefused: the reason of a NodeError that is raised instead, or another error.
Reasons = Mapping[str, str | Exception] | None


class Peer:
    """One daemon with an HTTP API; `program` is its name."""

    program = ""
    _elsewhere = ""  # a path that only daemons of the other kind have
    _mistake = ""  # what is wrong when this one has it

    def __init__(self, address: Address, http: HTTPClient) -> None:
        self.address = address
        self.timeout = http.timeout  # seconds for a whole answer
        self._http = http

    def __str__(self) -> str:
        return str(self.address)

    def request(
        self, method: str, path: str, body: bytes | None = None, *, query: Query = None, reasons: Reasons = None
    ) -> bytes:
        """The body of a 200 answer."""
        return self.read(method, path, body, query, reasons, b"".join)

    def read(
        self,
        method: str,
        path: str,
        body: bytes | None,
        query: Query,
        reasons: Reasons,
        read: Callable[[Iterator[bytes]], T],
    ) -> T:
        """What `read` makes of the parts of that body."""
        # Names from a command line may be any bytes, which Python carries as surrogates.
        target = f"{path}?{urllib.parse.urlencode(query, errors='surrogateescape')}" if query else path
        try:
            answer: T = self._http.answer(self.address, method, target, body, program=self.program, read=read)[1]
            return answer
        except NodeRefused as error:
            failure: Exception = error
            if error.code == "NOT_FOUND":
                with suppress(NodeError):
                    self._http.answer(self.address, "GET", self._elsewhere, program=self.program)
                    failure = NodeError(self.program, self.address, self._mistake)
            known = (reasons or {}).get(error.code) or (reasons or {}).get(str(error.status))
            if known and failure is error:
                kind = NodeLacks if error.code == "NOT_FOUND" else NodeError
                failure = kind(self.program, self.address, known) if isinstance(known, str) else known
            raise failure from None

    def ask(
        self,
        path: str,
        read: Callable[[object], T],
        query: Query = None,
        method: str = "GET",
        reasons: Reasons = None,
        rows: Rows | None = None,
    ) -> T:
        """The JSON at `path`, with `rows` of `json_stream.parse`, as `read` reads it; ModelErrors of both become
        NodeErrors."""
        try:
            return read(self.read(method, path, None, query, reasons, lambda parts: parse(parts, rows or {})))
        except ModelError as error:
            reason = f"answered JSON that is not an {self.program}'s: {error}"
        except (ValueError, RecursionError):
            reason = f"answered something that is not JSON; is this the HTTP address of an {self.program}?"
        raise NodeError(self.program, self.address, reason)

    def act(self, action: Action, topic: str, channel: str = "") -> None:
        """Performs an operation on a topic or channel; nsqlookupds only create and delete. NodeRefused if missing,
        codes TOPIC_NOT_FOUND and CHANNEL_NOT_FOUND; to delete an unknown topic at an nsqlookupd is not an error."""
        query = {"topic": topic} | ({"channel": channel} if channel else {})
        self.request("POST", f"/{'channel' if channel else 'topic'}/{action}", query=query)

    def clock_ahead(self) -> tuple[float, float] | None:
        """Lower and upper bound of how many seconds its clock is ahead of this machine's; None if unknown."""
        asked = time.time()
        headers, _ = self._http.answer(self.address, "GET", "/ping", program=self.program)
        answered = time.time()
        try:
            date = email.utils.parsedate_to_datetime(headers.get("Date", "")).timestamp()
        except (ValueError, OverflowError):
            return None
        return date - answered, date + 1 - asked  # the header has whole seconds


class Nsqd(Peer):
    """One nsqd, ours or the real one."""

    program = "nsqd"
    _elsewhere = "/nodes"
    _mistake = "it is an nsqlookupd; name it with --lookupd-http-address"

    def tcp_address(self) -> tuple[str, int]:
        """The TCP address of this node, on the host of its HTTP address, which this machine can reach."""
        port = self.ask("/info", lambda data: Info(*scalars(Info, data)).tcp_port)
        if port < 1:
            raise NodeError(self.program, self.address, "does not have a TCP port, only a unix socket")
        return self.address.host or "127.0.0.1", port

    def try_tcp(self, port: int) -> None:
        """Connects to this TCP port of its host, as a consumer would. NodeError."""
        try:
            with socket.create_connection((self.address.host, port), self.timeout) as sock:
                sock.sendall(b"  V2")  # else nsqd would log an error
        except (OSError, OverflowError) as error:
            reason = timed_out(self.timeout) if isinstance(error, TimeoutError) else reason_of(error)
            raise NodeError(self.program, self.address, f"TCP port {port}: {reason}") from None

    def stats(self, *, topic: str = "", channel: str = "", clients: bool = False) -> NodeStats:
        """Topics and channels, all or those of the given names (an empty name does not filter)."""
        query = {"format": "json", "include_clients": str(clients).lower(), "include_mem": "false"}
        query |= {"include_finished": "true", "topic": topic, "channel": channel}
        moments: list[float] = []  # the first is that of the answer: more of it may take long to arrive and to parse

        def row(data: object) -> TopicStats:
            if not moments:
                moments.append(time.monotonic())
            return _topic(data)

        def read(data: object) -> NodeStats:
            return NodeStats.from_json(data, *moments or [time.monotonic()])

        return self.ask("/stats", read, query, rows=STATS_ROWS | {"topics": row})

    def daemon(self) -> str:
        """`gnsqd` and its version, or `nsqd`, from the "built with" line of its text statistics."""
        query = {"format": "text", "include_clients": "false", "include_mem": "false", "topic": "-"}
        first, _, _ = self.request("GET", "/stats", query=query).partition(b"\n")
        match = re.search(rb"\(built w/gnsqd-([0-9A-Za-z.]{1,20})-", first)
        return f"gnsqd {match[1].decode()}" if match else "nsqd"

    def dropped(self) -> dict[tuple[str, str], int]:
        """The messages that each topic, with "" as channel, and each channel has dropped; none of the real nsqd, which
        does not count them."""
        try:
            page = self.request("GET", "/metrics")
        except NodeRefused:
            return {}
        dropped = {}
        lines = rb"^gnsqd_\w+_dropped_messages_total\{(.*)\} (\d[\d.]{,20}(?:e\+\d\d)?)$"
        for labels, count in re.findall(lines, page, re.MULTILINE):
            names = dict(re.findall(r'(topic|channel)="([^"]*)"', labels.decode("utf-8", "replace")))
            dropped[names.get("topic", ""), names.get("channel", "")] = int(float(count))
        return dropped

    def pub(self, topic: str, body: bytes, *, defer_ms: int = 0) -> None:
        self.request("POST", "/pub", body, query={"topic": topic} | ({"defer": str(defer_ms)} if defer_ms else {}))

    def mpub(self, topic: str, bodies: Sequence[bytes]) -> None:
        """Publish all of `bodies`, which may contain any bytes, or none of them."""
        parts = [len(bodies).to_bytes(4, "big")]
        for body in bodies:
            parts += [len(body).to_bytes(4, "big"), body]
        self.request("POST", "/mpub", b"".join(parts), query={"topic": topic, "binary": "true"})

    def get_config(self, option: str) -> str:
        """The value of an option by its config key, as nsqd writes it: plain text or JSON. Code INVALID_OPTION."""
        return self._config("GET", option)

    def set_config(self, option: str, value: str, reasons: Reasons) -> str:
        """Change an option; returns the new value. Codes INVALID_OPTION and INVALID_VALUE."""
        return self._config("PUT", option, value.encode("utf-8", "surrogateescape"), reasons=reasons)

    def _config(self, method: str, option: str, *value: bytes, **more: Any) -> str:
        path = f"/config/{urllib.parse.quote(option, safe='')}"
        return self.request(method, path, *value, **more).decode("utf-8", "replace")

    def drain(self, method: Literal["GET", "POST", "DELETE"]) -> DrainState:
        """Query, start or cancel a drain, which only gnsqd supports."""
        reasons = {"404": "cannot drain: only gnsqd can", "EXITING": "is already exiting"}
        return self.ask("/drain", DrainState.from_json, None, method, reasons=reasons)


class Lookupd(Peer):
    program = "nsqlookupd"
    _elsewhere = "/stats?topic=-"
    _mistake = "it is an nsqd; name it with --nsqd-http-address"

    def topics(self) -> tuple[str, ...]:
        return self.ask("/topics", lambda data: items(data, "topics"), rows={"topics": _name})

    def channels(self, topic: str) -> tuple[str, ...]:
        """Empty for unknown topics."""
        return self.ask("/channels", lambda data: items(data, "channels"), {"topic": topic}, rows={"channels": _name})

    def lookup(self, topic: str) -> tuple[Producer, ...]:
        """The nodes that consumers of a topic are sent to, without tombstoned ones. Code TOPIC_NOT_FOUND; gnsqd in
        dev mode does not create the topic for it."""
        query = {"topic": topic, "create": "false"}
        return self.ask("/lookup", lambda data: items(data, "producers"), query, rows=_PRODUCERS)

    def nodes(self) -> tuple[Producer, ...]:
        """All active nodes, also tombstoned ones."""
        return self.ask("/nodes", lambda data: items(data, "producers"), rows=_PRODUCERS)

    def tombstone(self, topic: str, node: str) -> None:
        """Hide a node, `{broadcast address}:{HTTP port}`, from consumers of a topic; it may be unknown."""
        self.request("POST", "/topic/tombstone", query={"topic": topic, "node": node})
