"""A snapshot of all nodes' statistics: sums over nodes, and their rates of change since the previous one."""

import itertools
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import InitVar, dataclass, field, make_dataclass
from functools import cached_property, partial
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

from msgspec.structs import replace

from gnsqd.shared.statistics import ChannelFigures, TopicFigures, counts_of
from nsqadmin_cli.api import ChannelStats, ClientCounts, Latency, NodeStats, Nsqd, Percentile, TopicStats
from nsqadmin_cli.change import Shown, ending
from nsqadmin_cli.cluster import Answers, Cluster, by_node, errors_of, failures_of, rows_of, values_of
from nsqadmin_cli.errors import AdminError
from nsqadmin_cli.http_client import Address, NodeError, NodeRefused
from nsqadmin_cli.output import not_found
from nsqadmin_cli.table import as_json, table_of
from nsqadmin_cli.units import grouped, printable, suggestion

_OF_TOPIC, _OF_CHANNEL = counts_of(TopicFigures), counts_of(ChannelFigures)
# Counts that topics do not have.
OF_CHANNELS = tuple(name for name in _OF_CHANNEL if name not in _OF_TOPIC)

# Whatever is counted has a sum.
_names = ["topic_count", "channel_count", *_OF_CHANNEL]
_names.insert(_names.index("message_count") + 1, "message_bytes")
_Sums: Any = make_dataclass("_Sums", [(name, int) for name in _names], frozen=True, slots=True)


@dataclass(frozen=True, slots=True)
class Totals(_Sums):  # type: ignore[misc]
    """Sums over all nodes. A topic or channel on several nodes counts once.

    `depth` and `backend_depth` are of topics and channels together, `message_count` and `message_bytes` of topics
    (each message once, as published), the other counts of channels.
    """

    topics: tuple[TopicStats, ...]

    @classmethod
    def over(cls, nodes: Iterable[NodeStats]) -> "Totals":
        """Sums up `nodes`; a topic or channel counts as paused if it is paused on any of them."""
        rows_by_name = grouped((topic.topic_name, topic) for node in nodes for topic in node.topics)
        topics = tuple(_topic(rows) for _, rows in sorted(rows_by_name.items()))
        channels = [channel for topic in topics for channel in topic.channels]
        sums = {name: sum(map(attrgetter(name), channels)) for name in OF_CHANNELS}
        sums |= {name: sum(map(attrgetter(name), topics)) for name in ("message_count", "message_bytes")}
        sums |= {name: sum(map(attrgetter(name), [*topics, *channels])) for name in ("depth", "backend_depth")}
        return cls(topic_count=len(topics), channel_count=len(channels), **sums, topics=topics)

    def topic(self, name: str) -> TopicStats | None:
        """Returns the sums of one topic, None if no node has it."""
        return next((topic for topic in self.topics if topic.topic_name == name), None)


def _topic(rows: Sequence[TopicStats]) -> TopicStats:
    rows_by_name = grouped((channel.channel_name, channel) for row in rows for channel in row.channels)
    channels = tuple(_channel(channel_rows) for _, channel_rows in sorted(rows_by_name.items()))
    return replace(rows[0], **_sums(rows, _OF_TOPIC), channels=channels)


def _channel(rows: Sequence[ChannelStats]) -> ChannelStats:
    if len(rows) == 1 and rows[0].clients is None:
        return rows[0]
    return replace(rows[0], **_sums(rows, _OF_CHANNEL), clients=None, finish_count=None, idle=None)


def _sums(rows: Sequence[TopicStats] | Sequence[ChannelStats], names: Sequence[str]) -> dict[str, Any]:
    """Returns the values of the sum of `rows` that replace those of the first."""
    if len(rows) == 1:
        return {}
    sums: dict[str, Any] = {name: sum(map(attrgetter(name), rows)) for name in names}
    sums |= {"paused": any(row.paused for row in rows), "e2e_processing_latency": _latency(rows)}
    return sums | {"oldest_message_age_seconds": oldest_age(rows)}


def oldest_age(rows: Sequence[TopicStats | ChannelStats]) -> float | None:
    """Returns the age of the oldest message in several queues; None if none is queued, or nsqd does not report it."""
    ages = [row.oldest_message_age_seconds for row in rows if row.depth]
    return None if None in ages else max(ages, default=None)  # type: ignore[type-var]


def _latency(rows: Sequence[TopicStats] | Sequence[ChannelStats]) -> Latency:
    """Returns for each quantile that of the slowest node: quantiles cannot be added, and this is an upper bound."""
    latencies = [row.e2e_processing_latency for row in rows]
    quantiles = grouped(
        (percentile.quantile, percentile.value) for latency in latencies for percentile in latency.percentiles
    )
    percentiles = tuple(Percentile(quantile, max(values)) for quantile, values in quantiles.items())
    return Latency(sum(latency.count for latency in latencies), percentiles)


_TRANSIT = 2  # messages that are considered in transit


class Flow(NamedTuple):
    """Messages per second into a topic or channel, and out of it: finished, or for a topic passed to channels.
    `requeues` and `timeouts` per second are of channels."""

    ingress: float = 0.0
    egress: float = 0.0
    requeues: float = 0.0
    timeouts: float = 0.0

    @property
    def is_growing(self) -> bool:
        """Returns whether clearly more arrives than leaves."""
        return self.ingress > self.egress * 1.05 + 0.1

    def drain_seconds(self, depth: int) -> float | None:
        """Returns the time until a queue of `depth` messages is empty at the current rates; None: it does not shrink.
        Two messages, or as many as leave in a second, are considered in transit, whatever the ingress."""
        if not depth:
            return 0.0
        if self.egress - self.ingress > 1e-9:
            return depth / (self.egress - self.ingress)
        return depth / self.egress if self.egress and depth <= max(_TRANSIT, self.egress) else None


def drain_seconds(row: TopicStats | ChannelStats, flow: Flow, seconds: float = 1.0) -> float | None:
    """Returns `Flow.drain_seconds` of a topic or channel. Consumers that finished nothing in the `seconds` of
    measurement may be slow: their messages in flight count as finished in this time if nothing arrived, or if the queue
    is in transit."""
    drain_time = flow.drain_seconds(row.depth)
    if drain_time is not None or flow.egress or row.paused:
        return drain_time
    takers, held = (len(row.channels), 0) if isinstance(row, TopicStats) else (row.client_count, row.in_flight_count)
    if row.depth <= _TRANSIT:
        held = held or min(takers, 1)
    elif flow.ingress:
        held = 0
    return row.depth * seconds / held if held else None


Key = tuple[str, str]  # topic, and channel or nothing


def backlog(row: TopicStats | ChannelStats) -> int:
    """Returns undelivered and unfinished messages of a topic or channel, including in-flight and deferred ones."""
    if isinstance(row, ChannelStats):
        return row.depth + row.in_flight_count + row.deferred_count
    return row.depth


def _cpu_share(before: NodeStats | None, after: NodeStats) -> float | None:
    """Returns the share of a CPU that a node used between two answers; None if restarted, or not reported."""
    if before is None or before.process is None or after.process is None or before.start_time != after.start_time:
        return None
    then, now = before.process, after.process
    return (now.cpu_seconds - then.cpu_seconds) / max(1e-3, after.moment - before.moment)


def summed(parts: Iterable[Mapping[Key, Flow]]) -> dict[Key, Flow]:
    flows_by_key = grouped(pair for part in parts for pair in part.items())
    return {key: Flow(*map(sum, zip(*flows, strict=True))) for key, flows in flows_by_key.items()}


def through(flows: Mapping[Key, Flow]) -> Flow:
    """Returns the messages per second published to topics, and finished by consumers."""
    ingress = sum(flow.ingress for (_, channel), flow in flows.items() if not channel)
    return Flow(ingress, sum(flow.egress for (_, channel), flow in flows.items() if channel))


def node_flows(before: NodeStats | None, after: NodeStats) -> dict[Key, Flow]:
    """Returns the flows of all that one node has; none if it was restarted, or a topic created again, in between. From
    a channel flows what its clients finished, if that is known: messages may also leave because it was emptied."""
    flows: dict[Key, Flow] = {}
    known = by_key(before) if before and before.start_time == after.start_time else {}
    seconds = max(1e-3, after.moment - before.moment) if before else 1.0
    for key, row in by_key(after).items():
        then = known.get(key)
        if then is None or row.message_count < then.message_count:
            flows[key] = _STILL
            continue
        arrived = row.message_count - then.message_count
        counts = [arrived, max(0, arrived - (backlog(row) - backlog(then)))]
        if isinstance(row, ChannelStats) and isinstance(then, ChannelStats):
            if (finished := _finished_between(then, row)) is not None:
                counts[1] = max(0, finished)
            counts.append(max(0, row.requeue_count - then.requeue_count))
            counts.append(max(0, row.timeout_count - then.timeout_count))
        flows[key] = Flow(*(count / seconds for count in counts)) if any(counts) else _STILL
    return flows


_STILL = Flow()


def _finished_between(before: ChannelStats, after: ChannelStats) -> int | None:
    """Returns the messages finished between two answers of a node; None if that is unknown: nsqd counts them for each
    client, and a client that has gone took its count along."""
    if before.finish_count is not None and after.finish_count is not None:
        return after.finish_count - before.finish_count
    if before.clients is None or after.clients is None:
        return None
    then, now = (
        {(client.remote_address, client.connect_ts): client.finish_count for client in row.clients or ()}
        for row in (before, after)
    )
    return sum(now.values()) - sum(then.values()) if then.keys() <= now.keys() else None


def by_key(node: NodeStats | NodeError) -> dict[Key, TopicStats | ChannelStats]:
    """Returns the topics and channels of a node, none if it did not answer."""
    if isinstance(node, NodeError):
        return {}
    rows: dict[Key, TopicStats | ChannelStats] = {(topic.topic_name, ""): topic for topic in node.topics}
    return rows | {(topic, channel.channel_name): channel for topic, channel in node.channels()}


KNOWN_SECONDS = 3600.0  # for which a node that does not answer is still known to have what it had


@dataclass
class ClusterSnapshot:
    """One snapshot. `clock` is in unix seconds, `moment` monotonic; there are flows if there was a snapshot before.
    `known` are earlier answers of nodes that may have failed now."""

    answers: Answers[NodeStats]
    lookupd_errors: list[NodeError]
    before: InitVar["ClusterSnapshot | None"] = None
    known: InitVar[Mapping[Address, NodeStats] | None] = None
    clock: float = field(default_factory=time.time)
    moment: float = field(default_factory=time.monotonic)
    trouble: Mapping["Key", str] | None = None  # the last of an examination has codes of findings, as `troubled`

    def __post_init__(self, before: "ClusterSnapshot | None", known: Mapping[Address, NodeStats] | None) -> None:
        self.latest: dict[Address, NodeStats]  # also of nodes that failed now
        last = before.latest if before else {}
        # The rates of each node use the times of its own two answers, because slow nodes answer later than others.
        by_node = {at: node_flows(last.get(at), node) for at, node in self.nodes.items()} if before else {}
        self.flows = summed(by_node.values()) if before else None
        self.node_rates = {at: through(flows) for at, flows in by_node.items()}
        self.cpu_shares = {at: _cpu_share(last.get(at), node) for at, node in self.nodes.items()}
        # A node that is no longer listed is not waited for; one that an nsqlookupd listed that failed now may be there.
        latest = {**last, **(known or {})}
        self.latest = {at: latest[at] for at in latest if at in self.answers or self.lookupd_errors} | self.nodes

    @cached_property
    def nodes(self) -> dict[Address, NodeStats]:
        return values_of(self.answers)

    @cached_property
    def totals(self) -> Totals:
        return Totals.over(self.nodes.values())

    @cached_property
    def last_known(self) -> "ClusterSnapshot":
        """Returns the last answers, of the hour before, of the nodes that did not answer now."""
        since = self.moment - KNOWN_SECONDS
        missing = {at: node for at, node in self.latest.items() if at not in self.nodes and node.moment > since}
        return ClusterSnapshot({**missing}, [])

    @cached_property
    def partial_keys(self) -> set[Key]:
        """Returns the cluster, topics and channels whose sums lack a node that had them; the cluster is `("", "")`."""
        missing = self.last_known.nodes.values()
        return set().union(*(by_key(node) for node in missing), [("", "")] if missing else [])

    def places(self, topic: str = "", channel: str = "") -> Collection[Address]:
        """Returns the nodes that answered, or those of them that have the topic or channel."""
        if channel:
            return self.channel_shares.get((topic, channel), {})
        return self.topic_shares.get(topic, {}) if topic else self.nodes

    @cached_property
    def topic_shares(self) -> dict[str, dict[Address, TopicStats]]:
        placed = ((topic.topic_name, (address, topic)) for address, node in self.nodes.items() for topic in node.topics)
        return {name: dict(shares) for name, shares in grouped(placed).items()}

    @cached_property
    def channel_shares(self) -> dict[Key, dict[Address, ChannelStats]]:
        placed = (
            ((topic, channel.channel_name), (address, channel))
            for address, node in self.nodes.items()
            for topic, channel in node.channels()
        )
        return {key: dict(shares) for key, shares in grouped(placed).items()}

    @cached_property
    def topic_flows(self) -> dict[str, Flow]:
        """Returns for each topic what is published to it, and finished in its channels; {} without flows."""
        parts = grouped((key[0], (key, flow)) for key, flow in (self.flows or {}).items())
        return {topic: through(dict(flows)) for topic, flows in parts.items()}

    @property
    def errors(self) -> list[NodeError]:
        return [*self.lookupd_errors, *errors_of(self.answers)]

    def document(self) -> dict[str, Any]:
        """Returns nodes, sums and flows, as specified by `gnsqadmin stats --help`."""
        unknown: dict[str, Any] = {"version": None, "health": None, "start_time": None, "topics": [], "producers": None}
        nodes = by_node(self.answers, as_json, unknown)
        flows = self.flows and [
            {"topic": topic, "channel": channel, "ingress_rate": flow.ingress, "egress_rate": flow.egress}
            for (topic, channel), flow in self.flows.items()
        ]
        return {"time": self.clock, "nodes": nodes, "totals": as_json(self.totals), "flows": flows}


def snapshots(
    cluster: Cluster, seconds: float | None, count: int | None, topic: str, channel: str = "", *, clients: bool = False
) -> Iterator[ClusterSnapshot]:
    """Yields `count` snapshots `seconds` apart, one without `seconds`. After a slow one, the next one waits for at
    least half of `seconds`: rates over less are not meaningful. Raises NotFound for an unknown topic or channel."""
    due = time.monotonic()
    snapshot: ClusterSnapshot | None = None
    for number in itertools.count(1):
        snapshot = take_snapshot(cluster, topic=topic, channel=channel, clients=clients, before=snapshot)
        if number == 1:
            require(cluster, snapshot, topic, channel)
        yield snapshot
        if seconds is None or number == count:
            return
        now = time.monotonic()
        due = due + seconds if due + seconds / 2 > now else now + seconds
        time.sleep(due - now)


def require(cluster: Cluster, snapshot: ClusterSnapshot, topic: str, channel: str = "") -> None:
    """Raises unless a node has the topic or channel of the options (empty: none), or no node answered."""
    names = [name for name in snapshot.channel_shares if channel == name[1]] if channel else snapshot.topic_shares
    if snapshot.nodes and (topic or channel) and not names:
        raise no_such(cluster, snapshot.errors, topic, channel)


def no_such(cluster: Cluster, errors: Sequence[AdminError], topic: str, channel: str = "") -> AdminError:
    """Returns the error if no node has a topic, or a channel of it or of any; it suggests the most similar name."""
    of = f" in the topic {topic}" if topic else ""
    what = f"the channel {channel}{of}" if channel else f"the topic {topic}"
    if errors:  # those nodes are not waited for again
        return not_found(what, errors)
    known = names_of(values_of(cluster.ask(Nsqd.stats)).values())
    if topic and topic not in known:
        return not_found(what + suggestion(topic, known), [])
    channels = known[topic] if topic else set().union(*known.values())
    return not_found(what + suggestion(channel, sorted(channels)), [])


T = TypeVar("T")
_ABSENT = ("TOPIC_NOT_FOUND", "CHANNEL_NOT_FOUND", "MESSAGE_NOT_FOUND")


def ask_holders(
    cluster: Cluster, question: Callable[[Nsqd], T], topic: str, channel: str = "", message: str = ""
) -> Answers[T]:
    """Asks the nodes that have the topic or channel, and returns their answers, with the errors of nodes whose
    statistics are unknown. Raises NotFound if no node has it, or none has the message."""
    nodes = cluster.nsqds()
    stats = cluster.ask(partial(Nsqd.stats, topic=topic, channel=channel), nodes)
    holders = [node for node in nodes if (topic, channel) in by_key(stats[node.address])]
    answers: Answers[Any] = {at: answer for at, answer in stats.items() if isinstance(answer, NodeError)}
    answers |= cluster.ask(question, holders)
    refused = {at: answer.code for at, answer in answers.items() if isinstance(answer, NodeRefused)}
    absent = {at: code for at, code in refused.items() if code in _ABSENT}
    others = {node.address: answers[node.address] for node in nodes if node.address in answers.keys() - absent.keys()}
    if not values_of(others) and (absent or len(answers) < len(nodes)):
        errors = [*cluster.lookupd_errors, *errors_of(others)]
        if "MESSAGE_NOT_FOUND" in absent.values():
            raise not_found(f"the message {printable(message, 100)}", errors)
        raise no_such(cluster, errors, topic, channel)
    return others


def shown_rows(
    cluster: Cluster, about: Mapping[str, object], kind: type, answers: Answers[Any], total: Any = None
) -> Shown:
    """Returns the answers, which are rows of this kind, in JSON after the keys of `about`; one of these, `dry_run`, is
    true if nothing was done."""
    rows = rows_of(kind, answers)
    blocks = [table_of(kind, rows, total=total, empty="No nodes."), *ending(bool(about.get("dry_run")))]
    return Shown({**about, "nodes": rows}, blocks, errors=[*cluster.lookupd_errors, *failures_of(answers)])


def names_of(nodes: Iterable[NodeStats]) -> dict[str, set[str]]:
    """Returns the channels of each topic."""
    channels_by_topic = grouped((topic.topic_name, topic.channels) for node in nodes for topic in node.topics)
    return {
        topic: {channel.channel_name for channel in itertools.chain(*channels)}
        for topic, channels in channels_by_topic.items()
    }


def take_snapshot(
    cluster: Cluster,
    *,
    topic: str = "",
    channel: str = "",
    clients: bool = False,
    before: ClusterSnapshot | None = None,
) -> ClusterSnapshot:
    """Queries all nodes for statistics, of all topics and channels or the given ones."""
    answers = cluster.ask(partial(Nsqd.stats, topic=topic, channel=channel, clients=clients))
    return ClusterSnapshot(answers, cluster.lookupd_errors, before)


def client_document(client: ClientCounts, address: Address) -> dict[str, Any]:
    return {"node": str(address), **as_json(client)}
