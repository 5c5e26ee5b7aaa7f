"""The JSON of nsqd and nsqlookupd as dataclasses.

Fields have the names of the JSON keys, so that one declaration serves reading, totals and the output of `--json`.
Unknown keys are ignored: newer daemons may send more. A missing key without a default, or one of another type, means
that this is another program, and is a `ModelError`.
"""

from dataclasses import MISSING, dataclass, field, fields
from typing import Any

_LARGEST = 2**64  # no count of a Go program goes beyond its integers


class ModelError(ValueError):
    """A JSON document is not one of this daemon; the text is the reason."""


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


@dataclass(frozen=True, slots=True)
class ChannelStats:
    """One channel: of one node, or summed over several."""

    channel_name: str
    depth: int  # messages waiting, in memory and on disk; neither in-flight nor deferred ones
    backend_depth: int  # those of them that wait on disk
    in_flight_count: int
    deferred_count: int
    message_count: int
    requeue_count: int
    timeout_count: int
    client_count: int
    paused: bool
    e2e_processing_latency: Latency = _NO_LATENCY
    clients: tuple[ClientStats, ...] | None = None  # None: not asked for, and in sums


@dataclass(frozen=True, slots=True)
class TopicStats:
    """One topic with its channels: of one node, or summed over several."""

    topic_name: str
    depth: int
    backend_depth: int
    message_count: int
    message_bytes: int
    paused: bool
    e2e_processing_latency: Latency = _NO_LATENCY
    channels: tuple[ChannelStats, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeStats:
    """All statistics of one nsqd."""

    version: str
    health: str  # "OK" or "NOK - {error}"
    start_time: int  # unix seconds
    topics: tuple[TopicStats, ...]
    producers: tuple[ClientStats, ...] | None = None  # None: not asked for
    moment: float = field(default=0.0, compare=False, metadata={"json": False})  # of the answer, by time.monotonic()

    @classmethod
    def from_json(cls, data: object, moment: float = 0.0) -> "NodeStats":
        """Read the parsed `/stats?format=json` of one nsqd, received at `moment`; ModelError."""
        where = ("the document", "")
        node = _object(data, where)
        scalars = _scalars(NodeStats, node, where)
        topics = tuple(_topic(item) for item in _list(node, "topics", where) or ())
        return cls(*scalars, topics, _clients(node, "producers", where), moment)  # type: ignore[call-arg]


@dataclass(frozen=True, slots=True)
class Info:
    """`/info` of one nsqd. Ports are -1 for unix sockets."""

    version: str
    broadcast_address: str
    hostname: str
    http_port: int
    tcp_port: int
    start_time: int  # unix seconds

    @classmethod
    def from_json(cls, data: object) -> "Info":
        """ModelError if it is anything else."""
        return cls(*_scalars(Info, _object(data, ("the document", "")), ("the document", "")))


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

    @classmethod
    def list_from_json(cls, data: object) -> tuple["Producer", ...]:
        """The producers in the parsed `/nodes` or `/lookup` of one nsqlookupd; ModelError if it is anything else."""
        where = ("the document", "")
        found = []
        for item in _list(_object(data, where), "producers", where) or ():
            inner = ("a producer", "")
            producer = _object(item, inner)
            topics = strings(producer, "topics", inner) if "topics" in producer else ()
            tombstones = tuple(bool(told) for told in _list(producer, "tombstones", inner) or ()) if topics else ()
            found.append(cls(*_scalars(Producer, producer, inner), topics, tombstones))  # type: ignore[call-arg]
        return tuple(found)


Where = tuple[str, str]  # what is read, and its name if it has one; made a text of only for an error


def strings(data: object, key: str, where: Where = ("the document", "")) -> tuple[str, ...]:
    """The list of strings that an object has under `key`; ModelError."""
    found = _list(_object(data, where), key, where) or []
    if not all(isinstance(text, str) for text in found):
        raise ModelError(f'"{key}" of {_text(where)} is not a list of strings')
    return tuple(found)


def as_json(value: object) -> object:
    """A model for json.dumps: its fields in order, recursively."""
    if isinstance(value, tuple):
        return [as_json(item) for item in value]
    scalars = _SCALARS.get(type(value))
    if scalars is None:
        return value
    document: dict[str, object] = {name: getattr(value, name) for name, _, _ in scalars}
    for name in _NESTED[type(value)]:
        document[name] = as_json(getattr(value, name))
    return document


def _topic(data: object) -> TopicStats:
    topic = _object(data, ("a topic", ""))
    scalars = _scalars(TopicStats, topic, ("a topic", ""))
    name = scalars[0]
    inner = ("a channel of topic", name)
    channels = []
    for item in _list(topic, "channels", ("topic", name)) or ():
        channel = _object(item, inner)
        latency = _latency(channel, inner)
        clients = _clients(channel, "clients", inner)
        channels.append(ChannelStats(*_scalars(ChannelStats, channel, inner), latency, clients))  # type: ignore[call-arg]
    return TopicStats(*scalars, _latency(topic, ("topic", name)), tuple(channels))  # type: ignore[call-arg]


def _clients(data: dict[str, Any], key: str, where: Where) -> tuple[ClientStats, ...] | None:
    found = _list(data, key, where) if key in data else None
    if found is None:
        return None
    inner = (f"a client of {_text(where)}", "") if found else where
    return tuple(ClientStats(*_scalars(ClientStats, _object(item, inner), inner)) for item in found)


def _latency(data: dict[str, Any], where: Where) -> Latency:
    if (found := data.get("e2e_processing_latency")) is None:
        return _NO_LATENCY
    latency = _object(found, where)
    percentiles = latency.get("percentiles")
    if not percentiles:
        return _NO_LATENCY
    try:
        read = [Percentile(float(one["quantile"]), float(one["value"])) for one in percentiles]
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


def _scalars(kind: type, data: dict[str, Any], where: Where) -> list[Any]:
    """The values in `data` of the fields of `kind` that are text, numbers or booleans, in their order."""
    scalars = []
    for name, wanted, default in _SCALARS[kind]:
        value = data.get(name, default)
        if type(value) is not wanted or (wanted is int and not -_LARGEST < value < _LARGEST):
            if value is MISSING:
                raise ModelError(f'{_text(where)} has no "{name}"')
            raise ModelError(f'"{name}" of {_text(where)} is not {_NAMES[wanted]}')
        scalars.append(value)
    return scalars


_NAMES: dict[object, str] = {str: "a string", int: "a count", bool: "a boolean"}


def _text(where: Where) -> str:
    what, name = where
    return f"{what} {name!r:.100}" if name else what


_MODELS = (Percentile, Latency, ClientStats, ChannelStats, TopicStats, NodeStats, Info, Producer)
_SIMPLE = (str, int, bool, float)
_SCALARS: dict[type, tuple[tuple[str, Any, Any], ...]] = {
    kind: tuple(
        (one.name, one.type, one.default)
        for one in fields(kind)
        if one.type in _SIMPLE and one.metadata.get("json", True)
    )
    for kind in _MODELS
}
_NESTED: dict[type, tuple[str, ...]] = {
    kind: tuple(one.name for one in fields(kind) if one.type not in _SIMPLE) for kind in _MODELS
}
