"""The statistics: their table, the snapshot in /stats, and its text form, the real daemon's to the byte (NSQD-COMPAT
5.3).

STAT_FIELDS has the names, meaning and source of every number of topics and channels; /stats, statsd and Prometheus are
made from it. Nothing is stored here: a snapshot reads the broker's counters on request.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

from gnsqd.broker.channel import Channel
from gnsqd.broker.environment import ClientStats, Consumer
from gnsqd.broker.idle import idle_action
from gnsqd.broker.registry import Registry
from gnsqd.broker.rules import Rules
from gnsqd.broker.topic import Topic
from gnsqd.broker.topology import TopologyChannel
from gnsqd.gotext import format_duration
from gnsqd.hub.cooperative import Turns
from gnsqd.options import SECOND, Options
from gnsqd.quantile import LatencyFigures
from gnsqd.shared.statistics import ChannelFigures, StatKind, TopicFigures
from gnsqd.shared.version import version_string


class StatField(NamedTuple):
    """One number. `name` is its key in /stats, `metric` its name in Prometheus without prefix and `_total`, `statsd`
    its name in a push to statsd, "" for one that isn't pushed."""

    name: str
    metric: str
    kind: StatKind
    help: str
    getter: Callable[[Any], Any]
    statsd: str


def _gauge(source: str | Callable[[Any], Any], metric: str, help: str, kind: StatKind = StatKind.GAUGE) -> StatField:
    """Returns a number that only Prometheus has; `source` is a path of attributes, or returns it."""
    if isinstance(source, str):
        return StatField(source, metric, kind, help, attrgetter(source), "")
    return StatField("", metric, kind, help, source, "")


_counter = partial(_gauge, kind=StatKind.COUNTER)


def e2e_latency(thing: Topic | Channel) -> LatencyFigures | None:
    """Returns how long messages took from publication to FIN, in a channel or in all channels of a topic; None if no
    percentiles are configured, or if there is no channel. May yield for a topic."""
    if isinstance(thing, Channel):
        return None if thing.latencies is None else thing.latencies.merged([thing.latencies])
    streams = [channel.latencies for channel in thing.channels.values() if channel.latencies is not None]
    return streams[0].merged(Turns().over(streams)) if streams else None


_GETTERS: dict[str, Callable[[Any], Any]] = {
    "backend_depth": attrgetter("queue.backend.count"),
    "in_flight_count": lambda channel: len(channel.in_flight),
    "client_count": lambda channel: len(channel.clients),
}


def _figures(kind: type) -> tuple[StatField, ...]:
    figures = []
    for name, row in ((field.name, field.metadata) for field in fields(kind) if field.metadata):
        getter, pushed = _GETTERS.get(name) or attrgetter(name), name if row["statsd"] is None else row["statsd"]
        figures.append(StatField(name, row["metric"], row["kind"], row["meaning"], getter, pushed))
    return tuple(figures)


# In the order of /stats.
STAT_FIELDS: dict[str, tuple[StatField, ...]] = {"topic": _figures(TopicFigures), "channel": _figures(ChannelFigures)}

# Only Prometheus has these and the following: /stats stays what clients of nsqd know.
_OWN_FIELDS: dict[str, tuple[StatField, ...]] = {
    "topic": (
        _gauge("queue.age", "oldest_message_age_seconds", "Age of the oldest message that no channel has yet."),
        _gauge("queue.backend.disk_bytes", "disk_bytes", "Bytes of the topic's disk queue, or of its journal."),
        _counter(
            "queue.dropped",
            "dropped_messages",
            "Messages dropped at a limit or by a full ephemeral topic, before any channel had them.",
        ),
    ),
    "channel": (
        _counter("finish_count", "finished_messages", "Messages that clients finished."),
        _gauge(
            lambda channel: sum(client.ready_count for client in channel.clients.values()),
            "ready",
            "Sum of the RDY counts of its clients.",
        ),
        _gauge("queue.age", "oldest_message_age_seconds", "Age of the oldest queued message."),
        _gauge("queue.backend.disk_bytes", "disk_bytes", "Bytes of the channel's disk queue."),
        _counter("queue.dropped", "dropped_messages", "Messages dropped at a limit or by a full ephemeral channel."),
    ),
}

_EXPIRED = "Messages dropped because they exceeded the TTL"
# Only with a bound.
_BOUND_FIELDS: dict[str, tuple[StatField, ...]] = {
    "topic": (
        _counter("queue.rejected", "rejected_messages", "Messages refused because any limit was reached."),
        _counter("queue.expired", "expired_messages", f"{_EXPIRED}, before any channel had them."),
    ),
    "channel": (
        _counter("queue.rejected", "rejected_messages", "Messages refused because the channel was full."),
        _counter("queue.expired", "expired_messages", f"{_EXPIRED}."),
    ),
}

_RETAINED = _gauge(
    lambda topic: 0 if topic.write_ahead is None else topic.write_ahead.history.count,
    "retained_messages",
    "Messages that can be delivered again.",
)
_MOVED = "Messages moved to the dead-letter topic of the channel."
_DEAD_LETTERS = _counter("dead_messages.moved", "dead_letters", _MOVED)


def metric_fields(level: str, options: Options) -> list[StatField]:
    """Returns the statistics of a topic or channel for Prometheus."""
    fields = [*STAT_FIELDS[level], *_OWN_FIELDS[level], *(_BOUND_FIELDS[level] if options.bounded else ())]
    fields += [_RETAINED] if options.durability != "none" and level == "topic" else []
    return [*fields, _DEAD_LETTERS] if options.max_attempts and level == "channel" else fields


# Only Prometheus has these, with metrics-clients; they are read from ClientStats.
CLIENT_FIELDS = (
    _gauge("state", "state", "0 new, 3 subscribed, 4 closing."),
    _gauge("ready_count", "ready", "The client's RDY count."),
    _gauge("in_flight_count", "in_flight", "Messages sent to the client that it has not finished yet."),
    _counter("message_count", "messages", "Messages sent to the client."),
    _counter("finish_count", "finished_messages", "Messages that the client finished."),
    _counter("requeue_count", "requeues", "Messages requeued by the client."),
    _gauge("connect_ts", "connect_timestamp_seconds", "When the client connected, in seconds since 1970."),
    _gauge("sample_rate", "sample_rate", "Percentage of messages that the client receives; 0 means all."),
)

Row = dict[str, Any]

_OMITTED_WHEN_UNSET = ("authed", "auth_identity", "auth_identity_url", "pub_counts")
_LOCAL_COUNTS = ("zone_local_msg_count", "region_local_msg_count", "global_msg_count")


class StatsRows(NamedTuple):
    """Topics and producers as /stats shows them: rows whose keys are in its order. None shows as null."""

    topics: list[Row] | None
    producers: list[Row] | None


def snapshot(
    registry: Registry,
    producers: Callable[[], Iterable[Consumer]],
    topic_name: str = "",
    channel_name: str = "",
    include_clients: bool = True,
    include_finished: bool = False,
    include_ages: bool = False,
) -> StatsRows:
    """Returns the present state, or that of one topic or of the channels of one name (NSQD-COMPAT 5.3). With
    `include_finished`, channels have `finish_count`, and with `include_ages`, topics and channels have the age of their
    oldest message; clients of nsqd expect neither. Yields if there is much: the figures of a row are of one moment,
    those of two rows need not be."""
    if topic_name and topic_name not in registry.topics:
        return StatsRows(None, None)
    topics = [registry.topics[name] for name in ([topic_name] if topic_name else sorted(registry.topics))]
    turns = Turns()

    def client_rows(clients: Iterable[Consumer]) -> list[Row] | None:
        if not include_clients:
            return None
        return [_client_row(client.stats(topic_name)) for client in turns.over(list(clients))]

    rows = []
    for topic in turns.over(topics):
        if channel_name and channel_name not in topic.channels:
            continue
        names = [channel_name] if channel_name else sorted(topic.channels)
        channels = [topic.channels[name] for name in names]
        # before its channels: a message on its way to them shows twice rather than nowhere
        row: Row = {"topic_name": topic.name, "channels": []}
        row |= {field.name: field.getter(topic) for field in STAT_FIELDS["topic"]}
        if include_ages:
            row |= _age_row(topic)
        for channel in turns.over(channels):
            shown: Row = {"channel_name": channel.name}
            for field in STAT_FIELDS["channel"]:
                if field.name == "paused":  # where the real daemon has them
                    shown["clients"] = client_rows(channel.clients.values())
                shown[field.name] = field.getter(channel)
                if field.name == "message_count" and isinstance(channel, TopologyChannel):
                    counts = zip(_LOCAL_COUNTS, channel.local_counts, strict=True)
                    shown |= {key: count for key, count in counts if count}
            shown["e2e_processing_latency"] = _latency_row(e2e_latency(channel))
            if channel.rules != Rules():
                shown["rules"] = channel.rules.settings()
            if (action := idle_action(channel)) is not None:
                shown["idle"] = action._asdict()
            if include_finished:
                shown["finish_count"] = channel.finish_count
            if include_ages:
                shown |= _age_row(channel)
            row["channels"].append(shown)
        row["e2e_processing_latency"] = _latency_row(e2e_latency(topic))
        rows.append(row)
    return StatsRows(rows, client_rows(producers()) or None)


def _age_row(thing: Topic | Channel) -> Row:
    """Returns the age that /metrics has; null without a message, or if its record cannot be read."""
    return {"oldest_message_age_seconds": round(thing.queue.age, 6) or None}


def _latency_row(latency: LatencyFigures | None) -> Row:
    """Returns floats because the real daemon does, which shows from 2**53 ns on."""
    if latency is None:
        return {"count": 0, "percentiles": None}
    percentiles = [{"quantile": quantile, "value": float(value)} for quantile, value in latency.percentiles]
    return {"count": latency.count, "percentiles": percentiles}


def _client_row(stats: ClientStats) -> Row:
    row = {}
    for key in stats.names:
        value = getattr(stats, key)
        if value or (value is not None and key not in _OMITTED_WHEN_UNSET):
            row[key] = value
    if stats.pub_counts:
        row["pub_counts"] = [{"topic": topic, "count": count} for topic, count in stats.pub_counts]
    return row


# The text form

_TOPIC = "[%(topic_name)-15s] depth: %(depth)-5d be-depth: %(backend_depth)-5d msgs: %(message_count)-8d"
_CHANNEL = (
    "[%(channel_name)-25s] depth: %(depth)-5d be-depth: %(backend_depth)-5d inflt: %(in_flight_count)-4d"
    " def: %(deferred_count)-4d re-q: %(requeue_count)-5d timeout: %(timeout_count)-5d msgs: %(message_count)-8d"
)
_CONSUMER = (
    "state: %(state)d inflt: %(in_flight_count)-4d rdy: %(ready_count)-4d fin: %(finish_count)-8d"
    " re-q: %(requeue_count)-8d msgs: %(message_count)-8d"
)


def text_page(stats: StatsRows, memory: Row | None, health: str, start_time: int, uptime: int) -> Iterator[str]:
    """Yields line by line; `start_time` in unix seconds, `uptime` in ns."""
    yield from (version_string(), f"start_time {_rfc3339(start_time)}", f"uptime {format_duration(uptime)}")
    yield from ("", f"Health: {health}")
    if memory is not None:
        yield from ("", "Memory:")
        yield from (f"   {name:<25}\t{value}" for name, value in memory.items())
    yield from ("", "Topics:" if stats.topics else "Topics: None")
    for number, topic in enumerate(stats.topics or []):
        if number:
            yield ""
        yield f"{_paused(topic)}{_TOPIC % topic} e2e%: {_latency(topic)}"
        for channel in topic["channels"]:
            yield f"   {_paused(channel)}{_CHANNEL % channel} e2e%: {_latency(channel)}"
            for client in channel["clients"] or []:
                yield f"        {_client(client)}"
    yield from ("", "Producers:" if stats.producers else "Producers: None")
    for client in stats.producers or []:
        yield f"   {_client(client)}"


def _paused(row: Row) -> str:
    return "*P " if row["paused"] else "   "


def _rfc3339(seconds: int) -> str:
    local = time.localtime(seconds)
    zone = time.strftime("%z", local)
    return time.strftime("%Y-%m-%dT%H:%M:%S", local) + (f"{zone[:3]}:{zone[3:]}" if local.tm_gmtoff else "Z")


def _latency(row: Row) -> str:
    return ", ".join(_nanoseconds(one["value"]) for one in row["e2e_processing_latency"]["percentiles"] or [])


def _nanoseconds(value: float) -> str:
    for size, unit in ((SECOND, "s"), (1_000_000, "ms"), (1_000, "us")):
        if value > size:
            return f"{value / size:.1f}{unit}"
    return f"{value:.1f}ns"


def _client(client: Row) -> str:
    port = client["remote_address"].rpartition(":")[2] if ":" in client["remote_address"] else ""
    name = f"{client['hostname']}:{port} {client['user_agent']}"
    if "pub_counts" in client:
        counts = client["pub_counts"]
        total = sum(entry["count"] for entry in counts)
        topics = ",".join(f"{entry['topic']}={entry['count']}" for entry in counts)
        doing = f"msgs: {total:<8} topics: {topics}"
    else:
        doing = _CONSUMER % client
    connected = max(int(time.time() - client["connect_ts"]), 0) * SECOND
    return f"[{client['version']} {name:<21}] {doing} connected: {format_duration(connected)}"
