"""What an nsqd says in `GET /stats?format=json`, as dataclasses.

Fields have the names of the JSON keys, so that one declaration serves reading, totals and the output of `--json`.
Keys that are not declared here are ignored: newer nsqds may send more. A missing key or one of another type means
that this is not an nsqd, and is a `ModelError`.
"""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any, TypeVar

_LARGEST = 2**64  # no count of a Go program goes beyond its integers


class ModelError(ValueError):
    """A JSON document is not what an nsqd sends; the text says what is wrong with it."""


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


@dataclass(frozen=True, slots=True)
class TopicStats:
    """One topic with its channels: of one node, or summed over several."""

    topic_name: str
    depth: int
    backend_depth: int
    message_count: int
    message_bytes: int
    paused: bool
    channels: tuple[ChannelStats, ...]


@dataclass(frozen=True, slots=True)
class NodeStats:
    """Everything one nsqd said about itself."""

    version: str
    health: str  # "OK" or "NOK - {error}"
    start_time: int  # unix seconds
    topics: tuple[TopicStats, ...]

    @classmethod
    def from_json(cls, data: object) -> "NodeStats":
        """Read the parsed document of one nsqd; ModelError if it is something else."""
        node = _object(data, "the document")
        return cls(**_scalars(cls, node, "the document"), topics=_topics(_list(node, "topics", "the document")))


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over all nodes. Topics and channels that several nodes have count once.

    `depth` and `backend_depth` are of topics and channels together, `message_count` and `message_bytes` of topics
    (each message once, as published), the other counts of channels.
    """

    topic_count: int
    channel_count: int
    depth: int
    backend_depth: int
    in_flight_count: int
    deferred_count: int
    message_count: int
    message_bytes: int
    requeue_count: int
    timeout_count: int
    client_count: int
    topics: tuple[TopicStats, ...]

    @classmethod
    def over(cls, nodes: Iterable[NodeStats]) -> "Totals":
        """Sum up `nodes`; a topic or channel counts as paused when it is paused on any of them."""
        topics = _summed(TopicStats, [topic for node in nodes for topic in node.topics])
        channels = [channel for topic in topics for channel in topic.channels]
        sums = {
            name: sum(getattr(row, name) for row in rows)
            for rows, names in (
                ((*topics, *channels), ("depth", "backend_depth")),
                (topics, ("message_count", "message_bytes")),
                (channels, ("in_flight_count", "deferred_count", "requeue_count", "timeout_count", "client_count")),
            )
            for name in names
        }
        return cls(topic_count=len(topics), channel_count=len(channels), topics=topics, **sums)


Row = TypeVar("Row", TopicStats, ChannelStats)


def _summed(kind: type[Row], rows: Iterable[Row]) -> tuple[Row, ...]:
    """One row per name in the order of names: counts added, paused when any is."""
    key = fields(kind)[0].name
    same: dict[str, list[Row]] = {}
    for row in rows:
        same.setdefault(getattr(row, key), []).append(row)
    return tuple(kind(**_sum(same[name])) for name in sorted(same))


def _sum(rows: list[Row]) -> dict[str, Any]:
    """The fields of the sum of `rows`, which have the same name."""
    sums: dict[str, Any] = {}
    for field in fields(rows[0]):
        values = [getattr(row, field.name) for row in rows]
        if field.name == "channels":
            sums["channels"] = _summed(ChannelStats, [channel for channels in values for channel in channels])
        elif field.type is int:
            sums[field.name] = sum(values)
        else:
            sums[field.name] = max(values)
    return sums


def _topics(items: list[Any]) -> tuple[TopicStats, ...]:
    topics = []
    for item in items:
        where = "a topic"
        topic = _object(item, where)
        scalars = _scalars(TopicStats, topic, where)
        where = f"topic {scalars['topic_name']!r:.100}"
        channels = tuple(
            ChannelStats(**_scalars(ChannelStats, _object(channel, where), f"a channel of {where}"))
            for channel in _list(topic, "channels", where)
        )
        topics.append(TopicStats(**scalars, channels=channels))
    return tuple(topics)


def _object(data: object, where: str) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise ModelError(f"{where} is no JSON object")
    return data


def _list(data: dict[str, Any], key: str, where: str) -> list[Any]:
    """A list, which Go shows as null when it never made one."""
    value = _value(data, key, where)
    if value is not None and not isinstance(value, list):
        raise ModelError(f'"{key}" of {where} is no list')
    return value or []


def _scalars(kind: type, data: dict[str, Any], where: str) -> dict[str, Any]:
    """The values in `data` of the fields of `kind` that are text, numbers or booleans."""
    scalars: dict[str, Any] = {}
    for field in fields(kind):
        if field.type in (str, int, bool):
            value = _value(data, field.name, where)
            if type(value) is not field.type or (isinstance(value, int) and abs(value) >= _LARGEST):
                raise ModelError(f'"{field.name}" of {where} is no {_NAMES[field.type]}')
            scalars[field.name] = value
    return scalars


_NAMES: dict[object, str] = {str: "text", int: "count", bool: "truth value"}


def _value(data: dict[str, Any], key: str, where: str) -> Any:
    try:
        return data[key]
    except KeyError:
        raise ModelError(f'{where} has no "{key}"') from None
