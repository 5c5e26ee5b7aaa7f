"""The JSON API of nsqadmin v1.3.0 under `/api/`: its paths, bodies, answers and status codes.

With nsqlookupds, nodes and topics come from what they list, otherwise from the nsqds given, as in nsqadmin. In sums
over nodes, the channels of the first node become the sums, as they do in nsqadmin, which adds to them in place. The
documents have Go's null where nothing was added to a list.
"""

import json
import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from msgspec.structs import asdict

from gnsqd.shared.names import is_valid_name
from nsqadmin_cli.api import Action, ChannelStats, ClientStats, Info, Latency, Lookupd, Nsqd, Producer, TopicStats
from nsqadmin_cli.cluster import Answers, ask_all, errors_of, values_of
from nsqadmin_cli.http_client import Address, NodeError
from nsqadmin_cli.web.http import HTTPError, Request
from nsqadmin_cli.web.site import Site

JSONObject = dict[str, Any]

_SUMS_OF_TOPICS = ("depth", "memory_depth", "backend_depth", "message_count")
_SUMS_OF_CHANNELS = (
    "depth", "memory_depth", "backend_depth", "in_flight_count", "deferred_count", "requeue_count", "timeout_count",
    "message_count", "client_count",
)  # fmt: skip

_OF_CLIENTS = (
    "node", "remote_address", "version", "client_id", "hostname", "user_agent", "connect_ts", "connected",
    "in_flight_count", "ready_count", "finish_count", "requeue_count", "message_count", "sample_rate", "deflate",
    "snappy", "authed", "auth_identity", "auth_identity_url", "tls", "tls_cipher_suite", "tls_version",
    "tls_negotiated_protocol", "tls_negotiated_protocol_is_mutual",
)  # fmt: skip


@dataclass(slots=True)
class Node:
    """One nsqd: its entry in nsqadmin's list of nodes, and how it is asked."""

    entry: JSONObject
    nsqd: Nsqd

    @property
    def name(self) -> str:
        host = str(self.entry["broadcast_address"])
        return f"{f'[{host}]' if ':' in host else host}:{self.entry['http_port']}"


def _entry(producer: Producer) -> JSONObject:
    topics = [
        {"topic": topic, "tombstoned": dead} for topic, dead in zip(producer.topics, producer.tombstones, strict=False)
    ]
    entry = {"remote_addresses": None, **asdict(producer), "topics": topics or None, "out_of_date": False}
    del entry["tombstones"]
    return entry


# Nodes


def _upstream(kind: str, errors: Sequence[NodeError]) -> HTTPError:
    return HTTPError(502, f"UPSTREAM_ERROR: failed to query any {kind}: {_joined(errors)}")


def _joined(errors: Iterable[NodeError]) -> str:
    return "\n".join(map(str, errors))


def _message(errors: Sequence[NodeError]) -> JSONObject:
    return {"message": f"WARNING: {_joined(errors)}" if errors else ""}


def _answers(answers: Answers[Any], kind: str) -> list[NodeError]:
    """The errors among them; HTTPError if there is nothing else."""
    errors = errors_of(answers)
    if len(errors) == len(answers):
        raise _upstream(kind, errors)
    return errors


def _nsqd_at(site: Site, producer: Producer) -> Nsqd | NodeError:
    try:
        return Nsqd(producer.http_address, site.cluster.http)
    except ValueError as error:
        return NodeError(
            "nsqlookupd", Address(producer.broadcast_address, producer.http_port), f"lists a node at {error}"
        )


def _all_nodes(site: Site) -> tuple[list[Node], list[NodeError]]:
    """All nodes by host name, and the errors of some; HTTPError."""
    if not site.cluster.lookupds:
        return _given_nodes(site, "")
    answers = site.cluster.ask_lookupds(Lookupd.nodes)
    errors = _answers(answers, "nsqlookupd")
    nodes: dict[tuple[str, int], Node] = {}
    for lookupd, producers in values_of(answers).items():
        for producer in producers:
            key = producer.broadcast_address, producer.tcp_port
            if key not in nodes:
                nsqd = _nsqd_at(site, producer)
                if isinstance(nsqd, NodeError):
                    errors.append(nsqd)
                    continue
                nodes[key] = Node(_entry(producer), nsqd)
                nodes[key].entry["remote_addresses"] = []
                if topics := nodes[key].entry["topics"]:
                    topics.sort(key=lambda topic: topic["topic"])
            nodes[key].entry["remote_addresses"].append(f"{lookupd}/{producer.remote_address or 'N/A'}")
    latest = max([_version(node.entry["version"]) for node in nodes.values()], default=())
    for node in nodes.values():
        node.entry["out_of_date"] = _version(node.entry["version"]) < latest
    return sorted(nodes.values(), key=lambda node: str(node.entry["hostname"])), errors


def _version(text: str) -> tuple[int, ...]:
    """A semantic version for comparison; what is none is the oldest."""
    match = re.fullmatch(r"(\d{1,9})\.(\d{1,9})\.(\d{1,9})(-.+?)?(\+.*)?", text)
    return (*map(int, match.groups()[:3]), not match[4]) if match else (0, 0, 0, 1)


def _given_nodes(site: Site, topic: str) -> tuple[list[Node], list[NodeError]]:
    """The nsqds that the page was given, or those of them that have the topic."""

    def ask(nsqd: Nsqd) -> Node | None:
        topics = tuple(stats.topic_name for stats in nsqd.stats(topic=topic).topics)
        if topic and topic not in topics:
            return None
        info, host = nsqd.ask("/info", Info), nsqd.address.host
        names = info.hostname or host, info.broadcast_address or host
        ports = info.tcp_port, info.http_port or nsqd.address.port
        producer = Producer("", *names, *ports, info.version, topics, tuple(False for _ in topics))
        return Node(_entry(producer), nsqd)

    answers = site.cluster.ask(ask, site.cluster.nsqds())
    errors = _answers(answers, "nsqd")
    return [node for node in values_of(answers).values() if node is not None], errors


def _nodes_of(site: Site, topic: str) -> tuple[list[Node], list[NodeError]]:
    """The nodes that nsqlookupds return for a topic, or the given ones that have it."""
    if not site.cluster.lookupds:
        return _given_nodes(site, topic)
    answers = site.cluster.ask_lookupds(lambda lookupd: lookupd.lookup(topic))
    errors = _answers(answers, "nsqlookupd")
    nodes: dict[str, Node] = {}
    for producers in values_of(answers).values():
        for producer in producers:
            nsqd = _nsqd_at(site, producer)
            if isinstance(nsqd, NodeError):
                errors.append(nsqd)
            else:
                nodes.setdefault(producer.name, Node(_entry(producer), nsqd))
    return list(nodes.values()), errors


# Statistics


def _stats_of(
    site: Site, nodes: Sequence[Node], topic: str = "", channel: str = "", *, clients: bool = False
) -> tuple[list[JSONObject], dict[str, JSONObject], list[NodeError]]:
    """Topics by host name, channels summed over nodes by their name, or `topic:channel` without a topic; errors."""
    ask = partial(Nsqd.stats, topic=topic, channel=channel, clients=clients)
    answers = ask_all([node.nsqd for node in nodes], ask, site.cluster.timeout)
    errors = _answers(answers, "nsqd")
    topics: list[JSONObject] = []
    channels: dict[str, JSONObject] = {}
    for node in nodes:
        answer = answers[node.nsqd.address]
        if isinstance(answer, NodeError):
            continue
        for stats in answer.topics:
            if topic and stats.topic_name != topic:
                continue
            made = _topic(stats, node)
            topics.append(made)
            for inner in made["channels"]:
                name = inner["channel_name"] if topic else f"{made['topic_name']}:{inner['channel_name']}"
                if name not in channels:
                    channels[name] = _no_channel(made["topic_name"], inner["channel_name"])
                _add_channel(channels[name], inner)
    topics.sort(key=lambda stats: str(stats["hostname"]))
    return topics, channels, errors


def _no_topic(name: str) -> JSONObject:
    """The sums of a topic over no node."""
    zeros: JSONObject = {"node": "", "hostname": "", "topic_name": name} | dict.fromkeys(_SUMS_OF_TOPICS, 0)
    return zeros | {"nodes": None, "channels": None, "paused": False, "e2e_processing_latency": None}


def _no_channel(topic: str, name: str) -> JSONObject:
    zeros: JSONObject = {"node": "", "hostname": "", "topic_name": topic, "channel_name": name}
    zeros |= dict.fromkeys(_SUMS_OF_CHANNELS, 0)
    return zeros | {"nodes": None, "clients": None, "paused": False, "e2e_processing_latency": None}


def _topic(stats: TopicStats, node: Node) -> JSONObject:
    """A topic of one node."""
    channels = [_channel(channel, stats.topic_name, node) for channel in stats.channels]
    return _share(_no_topic(stats.topic_name), stats, node) | {"channels": channels}


def _channel(stats: ChannelStats, topic: str, node: Node) -> JSONObject:
    """A channel of one node."""
    clients = None if stats.clients is None else [_client(client, node) for client in stats.clients]
    return _share(_no_channel(topic, stats.channel_name), stats, node) | {"clients": clients}


def _share(sums: JSONObject, stats: TopicStats | ChannelStats, node: Node) -> JSONObject:
    sums |= {key: value for key, value in asdict(stats).items() if key in sums}
    sums |= {"node": node.name, "hostname": node.entry["hostname"], "memory_depth": stats.depth - stats.backend_depth}
    return sums | {"e2e_processing_latency": _latency(stats.e2e_processing_latency)}


def _client(client: ClientStats, node: Node) -> JSONObject:
    made = {key: getattr(client, key, None) for key in _OF_CLIENTS}
    return made | {"node": node.name, "connected": (int(time.time()) - client.connect_ts) * 10**9}


def _latency(latency: Latency) -> JSONObject:
    """The latency of one node in the form of sums."""
    percentiles = []
    for percentile in latency.percentiles:
        value, quantile = _plain(percentile.value), _plain(percentile.quantile)
        same = {"average": value, "count": latency.count, "max": value, "min": value}
        percentiles.append(same | {"quantile": quantile, "value": value})
    return {"count": latency.count, "percentiles": percentiles or None, "topic": "", "channel": "", "host": ""}


def _plain(number: Any) -> Any:
    """A number as Go writes it."""
    return int(number) if isinstance(number, float) and number.is_integer() and abs(number) < 1e21 else number


def _add_topic(sums: JSONObject, topic: JSONObject) -> None:
    sums["node"] = "*"
    for key in _SUMS_OF_TOPICS:
        sums[key] += topic[key]
    sums["paused"] = sums["paused"] or topic["paused"]
    for channel in topic["channels"]:
        known = [other for other in sums["channels"] or () if other["channel_name"] == channel["channel_name"]]
        for other in known:
            _add_channel(other, channel)
        if not known:
            sums["channels"] = [*(sums["channels"] or ()), channel]
    sums["nodes"] = sorted([*(sums["nodes"] or ()), topic], key=lambda other: str(other["hostname"]))
    _add_latency(sums, topic, sums["topic_name"], "")


def _add_channel(sums: JSONObject, channel: JSONObject) -> None:
    sums["node"] = "*"
    for key in _SUMS_OF_CHANNELS:
        sums[key] += channel[key]
    sums["paused"] = sums["paused"] or channel["paused"]
    sums["nodes"] = sorted([*(sums["nodes"] or ()), channel], key=lambda other: str(other["hostname"]))
    if channel["clients"]:
        clients = [*(sums["clients"] or ()), *channel["clients"]]
        sums["clients"] = sorted(clients, key=lambda client: str(client["hostname"]))
    _add_latency(sums, channel, sums["topic_name"], sums["channel_name"])


def _add_latency(sums: JSONObject, stats: JSONObject, topic: str, channel: str) -> None:
    """Average the percentiles, as nsqadmin does."""
    latency = sums["e2e_processing_latency"]
    if latency is None:
        latency = {"count": 0, "percentiles": None, "topic": topic, "channel": channel, "host": ""}
        sums["e2e_processing_latency"] = latency
    latency["host"] = "*"
    added = stats["e2e_processing_latency"]
    latency["count"] += added["count"]
    for value in added["percentiles"] or ():
        latency["percentiles"] = latency["percentiles"] or []
        percentile = next((known for known in latency["percentiles"] if known["quantile"] == value["quantile"]), None)
        if percentile is None:
            percentile = {"average": 0, "count": 0, "max": 0, "min": 0, "quantile": value["quantile"]}
            latency["percentiles"].append(percentile)
        percentile["max"] = max(value["max"], percentile["max"])
        percentile["min"] = min(value["max"], percentile["max"])
        percentile["count"] += value["count"]
        if percentile["count"]:
            change = (value["average"] - percentile["average"]) * value["count"] / percentile["count"]
            percentile["average"] = _plain(percentile["average"] + change)
        else:
            percentile["average"] = 0


# Reading


def topics(site: Site, request: Request) -> JSONObject:
    if site.cluster.lookupds:
        answers = site.cluster.ask_lookupds(Lookupd.topics)
        errors = _answers(answers, "nsqlookupd")
        names = {name for listed in values_of(answers).values() for name in listed}
    else:
        stats = site.cluster.ask(Nsqd.stats, site.cluster.nsqds())
        errors = _answers(stats, "nsqd")
        names = {topic.topic_name for node in values_of(stats).values() for topic in node.topics}
    if request.query.get("inactive") != "true":
        return {"topics": sorted(names) or None, **_message(errors)}
    channels_of = {name: _inactive_channels(site, name) for name in sorted(names) if site.cluster.lookupds}
    inactive = {name: channels for name, channels in channels_of.items() if channels is not _ACTIVE}
    return {"topics": inactive, **_message(errors)}


_ACTIVE: list[str] = ["a node has the topic"]


def _inactive_channels(site: Site, topic: str) -> list[str]:
    """The channels that nsqlookupds list for a topic without a node, else _ACTIVE."""
    producers = values_of(site.cluster.ask_lookupds(lambda lookupd: lookupd.lookup(topic)))
    if any(producers.values()):
        return _ACTIVE
    channels = values_of(site.cluster.ask_lookupds(lambda lookupd: lookupd.channels(topic)))
    return sorted({name for names in channels.values() for name in names})


def topic(site: Site, request: Request) -> JSONObject:
    name = request.segments[2]
    nodes, errors = _nodes_of(site, name)
    shares, _, more = _stats_of(site, nodes, name)
    sums = _no_topic(name)
    for share in shares:
        _add_topic(sums, share)
    return sums | _message([*errors, *more])


def channel(site: Site, request: Request) -> JSONObject:
    topic, name = request.segments[2:]
    nodes, errors = _nodes_of(site, topic)
    _, channels, more = _stats_of(site, nodes, topic, name, clients=True)
    return channels.get(name, {}) | _message([*errors, *more])


def nodes(site: Site, request: Request) -> JSONObject:
    nodes, errors = _all_nodes(site)
    return {"nodes": [node.entry for node in nodes] or None, **_message(errors)}


def node(site: Site, request: Request) -> JSONObject:
    name = request.segments[2]
    nodes, errors = _all_nodes(site)
    chosen = [node for node in nodes if node.name == name][:1]
    if not chosen:
        raise HTTPError(404, "NODE_NOT_FOUND")
    topics, _, _ = _stats_of(site, chosen, clients=True)
    clients = sum(len(channel["clients"] or ()) for topic in topics for channel in topic["channels"])
    sums = {"total_messages": sum(topic["message_count"] for topic in topics), "total_clients": clients}
    return {"node": name, "topics": topics or None, **sums, **_message(errors)}


def counter(site: Site, request: Request) -> JSONObject:
    nodes, errors = _all_nodes(site)
    _, channels, more = _stats_of(site, nodes)
    stats = {
        f"{channel['topic_name']}:{channel['channel_name']}:{share['node']}": {
            "node": share["node"],
            "topic_name": channel["topic_name"],
            "channel_name": channel["channel_name"],
            "message_count": share["message_count"],
        }
        for channel in channels.values()
        for share in channel["nodes"]
    }
    return {"stats": {key: stats[key] for key in sorted(stats)}, **_message([*errors, *more])}


# Changing


def _body(request: Request) -> dict[str, str]:
    """The strings of the JSON object in the body, which may have others; HTTPError."""
    try:
        document = json.JSONDecoder().raw_decode(request.body.decode("utf-8", "replace").lstrip())[0]
    except (ValueError, RecursionError):
        raise HTTPError(400, "INVALID_BODY") from None
    if not isinstance(document, dict) or not all(
        isinstance(document.get(key) or "", str) for key in ("topic", "channel", "action")
    ):
        raise HTTPError(400, "INVALID_BODY")
    return {key: document.get(key) or "" for key in ("topic", "channel", "action")}


def _at_nodes(site: Site, nodes: Sequence[Node], action: Action, topic: str, channel: str) -> list[NodeError]:
    act: Callable[[Nsqd], None] = lambda nsqd: nsqd.act(action, topic, channel)  # noqa: E731
    return errors_of(ask_all([node.nsqd for node in nodes], act, site.cluster.timeout))


def _at_lookupds(site: Site, action: Action, topic: str, channel: str) -> list[NodeError]:
    return errors_of(site.cluster.ask_lookupds(lambda lookupd: lookupd.act(action, topic, channel)))


def _done(site: Site, errors: Sequence[NodeError]) -> JSONObject:
    site.monitor.changed()
    return _message(errors)


def create(site: Site, request: Request) -> JSONObject:
    """Create a topic at nsqlookupds, and a channel also on the nodes of the topic. Without nsqlookupds, where nsqadmin
    does nothing, both are created on the nodes."""
    body = _body(request)
    topic, channel = body["topic"], body["channel"]
    if not is_valid_name(topic):
        raise HTTPError(400, "INVALID_TOPIC")
    if channel and not is_valid_name(channel):
        raise HTTPError(400, "INVALID_CHANNEL")
    if not site.cluster.lookupds:
        nodes, errors = _given_nodes(site, "")
        errors += _at_nodes(site, nodes, "create", topic, "")
        return _done(site, errors + (_at_nodes(site, nodes, "create", topic, channel) if channel else []))
    errors = _at_lookupds(site, "create", topic, "")
    if channel:
        errors += _at_lookupds(site, "create", topic, channel)
        nodes, more = _nodes_of(site, topic)
        errors += more + _at_nodes(site, nodes, "create", topic, channel)
    return _done(site, errors)


def act(site: Site, request: Request) -> JSONObject:
    """Pause, unpause or empty a topic or channel."""
    topic, channel = (*request.segments[2:], "")[:2]
    action = _body(request)["action"]
    if action not in ("pause", "unpause", "empty"):
        raise HTTPError(400, "INVALID_ACTION")
    nodes, errors = _nodes_of(site, topic)
    return _done(site, errors + _at_nodes(site, nodes, action, topic, channel))  # type: ignore[arg-type]


def delete(site: Site, request: Request) -> JSONObject:
    topic, channel = (*request.segments[2:], "")[:2]
    nodes, errors = _nodes_of(site, topic)
    errors += _at_lookupds(site, "delete", topic, channel)
    return _done(site, errors + _at_nodes(site, nodes, "delete", topic, channel))


def tombstone(site: Site, request: Request) -> JSONObject:
    """Hide a node from the consumers of a topic, and delete the topic there. Only nodes that are listed are asked."""
    name = request.segments[2]
    topic = _body(request)["topic"]
    if not is_valid_name(topic):
        raise HTTPError(400, "INVALID_TOPIC")
    chosen = [node for node in _all_nodes(site)[0] if node.name == name][:1]
    if not chosen:
        raise HTTPError(404, "NODE_NOT_FOUND")
    errors = errors_of(site.cluster.ask_lookupds(lambda lookupd: lookupd.tombstone(topic, name)))
    return _done(site, errors + _at_nodes(site, chosen, "delete", topic, ""))
