"""The JSON API of nsqadmin v1.3.0 under `/api/`: its paths, bodies, answers and status codes.

With nsqlookupds, nodes and topics come from what they list, otherwise from the nsqds given, as in nsqadmin. In sums
over nodes, the channels of the first node become the sums, as they do in nsqadmin, which adds to them in place. The
documents have Go's null where nothing was added to a list.
"""

import json
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from msgspec.structs import asdict

from gnsqd.shared.names import is_valid_name
from nsqadmin_cli.api import Action, ChannelStats, ClientCounts, Info, Latency, Listing, Lookupd, Nsqd, TopicStats
from nsqadmin_cli.cluster import Answers, errors_of, values_of
from nsqadmin_cli.http_client import Address, NodeError
from nsqadmin_cli.web.http import HTTPError, PageRequest
from nsqadmin_cli.web.site import PageSite

T = TypeVar("T")
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
class APINode:
    """One nsqd: its entry in nsqadmin's list of nodes, and how it is asked."""

    entry: JSONObject
    nsqd: Nsqd

    @property
    def name(self) -> str:
        host = str(self.entry["broadcast_address"])
        return f"{f'[{host}]' if ':' in host else host}:{self.entry['http_port']}"


def _entry(producer: Listing) -> JSONObject:
    topics = [
        {"topic": topic, "tombstoned": dead} for topic, dead in zip(producer.topics, producer.tombstones, strict=False)
    ]
    entry = {"remote_addresses": None, **asdict(producer), "topics": topics or None, "out_of_date": False}
    del entry["tombstones"]
    return entry


# Nodes


def _joined(errors: Iterable[NodeError]) -> str:
    return "\n".join(map(str, errors))


def _message(errors: Sequence[NodeError]) -> JSONObject:
    return {"message": f"WARNING: {_joined(errors)}" if errors else ""}


def _parted(answers: Answers[T], kind: str) -> tuple[dict[Address, T], list[NodeError]]:
    """Returns the answers and the errors among them; raises HTTPError if there are errors alone."""
    errors = errors_of(answers)
    if len(errors) == len(answers):
        raise HTTPError(502, f"UPSTREAM_ERROR: failed to query any {kind}: {_joined(errors)}")
    return values_of(answers), errors


def _listed_nodes(
    site: PageSite, listed: dict[Address, tuple[Listing, ...]], errors: list[NodeError]
) -> Iterator[tuple[Address, Listing, APINode]]:
    """Yields the nodes in these answers of nsqlookupds. Nodes without a valid address are added to `errors`."""
    for lookupd, producers in listed.items():
        for producer in producers:
            try:
                yield lookupd, producer, APINode(_entry(producer), Nsqd(producer.http_address, site.cluster.http))
            except ValueError as error:
                address = Address(producer.broadcast_address, producer.http_port)
                errors.append(NodeError("nsqlookupd", address, f"lists a node at {error}"))


def _all_nodes(site: PageSite) -> tuple[list[APINode], list[NodeError]]:
    """Returns all nodes by host name, and the errors of some; raises HTTPError."""
    if not site.cluster.lookupds:
        return _given_nodes(site, "")
    listed, errors = _parted(site.cluster.ask_lookupds(Lookupd.nodes), "nsqlookupd")
    nodes: dict[tuple[str, int], APINode] = {}
    for lookupd, producer, node in _listed_nodes(site, listed, errors):
        entry = nodes.setdefault((producer.broadcast_address, producer.tcp_port), node).entry
        address = f"{lookupd}/{producer.remote_address or 'N/A'}"
        entry["remote_addresses"] = [*(entry["remote_addresses"] or ()), address]
        if entry["topics"]:
            entry["topics"].sort(key=lambda topic: topic["topic"])
    latest = max([_version(node.entry["version"]) for node in nodes.values()], default=())
    for node in nodes.values():
        node.entry["out_of_date"] = _version(node.entry["version"]) < latest
    return sorted(nodes.values(), key=lambda node: str(node.entry["hostname"])), errors


def _version(text: str) -> tuple[int, ...]:
    """Parses a semantic version for comparison; any other text is the oldest."""
    match = re.fullmatch(r"(\d{1,9})\.(\d{1,9})\.(\d{1,9})(-.+?)?(\+.*)?", text)
    return (*map(int, match.groups()[:3]), not match[4]) if match else (0, 0, 0, 1)


def _given_nodes(site: PageSite, topic: str) -> tuple[list[APINode], list[NodeError]]:
    """Returns the nsqds that the page was given, or those of them that have the topic."""

    def ask(nsqd: Nsqd) -> APINode | None:
        topics = tuple(stats.topic_name for stats in nsqd.stats(topic=topic).topics)
        if topic and topic not in topics:
            return None
        info, host = nsqd.ask("/info", Info), nsqd.address.host
        names = info.hostname or host, info.broadcast_address or host
        ports = info.tcp_port, info.http_port or nsqd.address.port
        producer = Listing("", *names, *ports, info.version, topics, tuple(False for _ in topics))
        return APINode(_entry(producer), nsqd)

    given, errors = _parted(site.cluster.ask(ask), "nsqd")
    return [node for node in given.values() if node is not None], errors


def _nodes_of(site: PageSite, topic: str) -> tuple[list[APINode], list[NodeError]]:
    """Returns the nodes that nsqlookupds send to consumers of a topic, or the given ones that have it."""
    if not site.cluster.lookupds:
        return _given_nodes(site, topic)
    listed, errors = _parted(site.cluster.ask_lookupds(partial(Lookupd.lookup, topic=topic)), "nsqlookupd")
    nodes: dict[str, APINode] = {}
    for _, _, node in _listed_nodes(site, listed, errors):
        nodes.setdefault(node.name, node)
    return list(nodes.values()), errors


def _named_node(site: PageSite, name: str) -> tuple[APINode, list[NodeError]]:
    nodes, errors = _all_nodes(site)
    for node in nodes:
        if node.name == name:
            return node, errors
    raise HTTPError(404, "NODE_NOT_FOUND")


# Statistics


def _stats_of(
    site: PageSite, nodes: Sequence[APINode], topic: str = "", channel: str = "", *, clients: bool = False
) -> tuple[list[JSONObject], dict[str, JSONObject], list[NodeError]]:
    """Returns topics by host name, channels summed over nodes by name, or `topic:channel` without a topic; errors."""
    ask = partial(Nsqd.stats, topic=topic, channel=channel, clients=clients)
    answers, errors = _parted(site.cluster.ask(ask, [node.nsqd for node in nodes]), "nsqd")
    topics: list[JSONObject] = []
    channels: dict[str, JSONObject] = {}
    for node in nodes:
        answer = answers.get(node.nsqd.address)
        for stats in answer.topics if answer is not None else ():
            if topic and stats.topic_name != topic:
                continue
            topics.append(_share(stats, stats.topic_name, node))
            for inner in topics[-1]["channels"]:
                name = inner["channel_name"] if topic else f"{stats.topic_name}:{inner['channel_name']}"
                _add(channels.setdefault(name, _zeros(stats.topic_name, inner["channel_name"])), inner)
    topics.sort(key=lambda stats: str(stats["hostname"]))
    return topics, channels, errors


def _zeros(topic: str, channel: str | None = None) -> JSONObject:
    """Returns the sums of a topic, or of a channel, over no node."""
    made: JSONObject = {"node": "", "hostname": "", "topic_name": topic}
    made |= {} if channel is None else {"channel_name": channel}
    made |= dict.fromkeys(_SUMS_OF_TOPICS if channel is None else _SUMS_OF_CHANNELS, 0)
    inner = "channels" if channel is None else "clients"
    return made | {"nodes": None, inner: None, "paused": False, "e2e_processing_latency": None}


def _share(stats: TopicStats | ChannelStats, topic: str, node: APINode) -> JSONObject:
    """Returns a topic with its channels, or a channel of it with its clients, of one node."""
    share = _zeros(topic, getattr(stats, "channel_name", None))
    share |= {key: value for key, value in asdict(stats).items() if key in share}
    share |= {"node": node.name, "hostname": node.entry["hostname"], "memory_depth": stats.depth - stats.backend_depth}
    share["e2e_processing_latency"] = _latency(stats.e2e_processing_latency)
    if isinstance(stats, TopicStats):
        share["channels"] = [_share(channel, topic, node) for channel in stats.channels]
    elif stats.clients is not None:
        share["clients"] = [_client(client, node) for client in stats.clients]
    return share


def _client(client: ClientCounts, node: APINode) -> JSONObject:
    made = {key: getattr(client, key, None) for key in _OF_CLIENTS}
    return made | {"node": node.name, "connected": (int(time.time()) - client.connect_ts) * 10**9}


def _latency(latency: Latency) -> JSONObject:
    """Returns the latency of one node in the form of sums."""
    percentiles = []
    for percentile in latency.percentiles:
        value, quantile = _plain(percentile.value), _plain(percentile.quantile)
        same = {"average": value, "count": latency.count, "max": value, "min": value}
        percentiles.append(same | {"quantile": quantile, "value": value})
    return {"count": latency.count, "percentiles": percentiles or None, "topic": "", "channel": "", "host": ""}


def _plain(number: Any) -> Any:
    """Returns a number as Go writes it."""
    return int(number) if isinstance(number, float) and number.is_integer() and abs(number) < 1e21 else number


def _add(sums: JSONObject, share: JSONObject) -> None:
    sums["node"] = "*"
    for key in _SUMS_OF_TOPICS if "channels" in sums else _SUMS_OF_CHANNELS:
        sums[key] += share[key]
    sums["paused"] = sums["paused"] or share["paused"]
    for channel in share.get("channels", ()):
        for known in sums["channels"] or ():
            if known["channel_name"] == channel["channel_name"]:
                _add(known, channel)
                break
        else:
            sums["channels"] = [*(sums["channels"] or ()), channel]
    sums["nodes"] = _by_host(sums["nodes"], [share])
    if share.get("clients"):
        sums["clients"] = _by_host(sums["clients"], share["clients"])
    _add_latency(sums, share["e2e_processing_latency"])


def _by_host(rows: Sequence[JSONObject] | None, added: Sequence[JSONObject]) -> list[JSONObject]:
    return sorted([*(rows or ()), *added], key=lambda row: str(row["hostname"]))


def _add_latency(sums: JSONObject, added: JSONObject) -> None:
    """Averages the percentiles, as nsqadmin does."""
    latency = sums["e2e_processing_latency"]
    if latency is None:
        names = {"topic": sums["topic_name"], "channel": sums.get("channel_name", "")}
        latency = sums["e2e_processing_latency"] = {"count": 0, "percentiles": None, **names, "host": "*"}
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


def topics(site: PageSite, request: PageRequest) -> JSONObject:
    if site.cluster.lookupds:
        listed, errors = _parted(site.cluster.ask_lookupds(Lookupd.topics), "nsqlookupd")
        names = {name for topics in listed.values() for name in topics}
    else:
        stats, errors = _parted(site.cluster.ask(Nsqd.stats), "nsqd")
        names = {topic.topic_name for node in stats.values() for topic in node.topics}
    if request.query.get("inactive") != "true":
        return {"topics": sorted(names) or None, **_message(errors)}
    inactive: JSONObject = {}  # the channels that nsqlookupds list for topics without a node
    for topic in sorted(names) if site.cluster.lookupds else ():
        if not any(values_of(site.cluster.ask_lookupds(partial(Lookupd.lookup, topic=topic))).values()):
            channels = values_of(site.cluster.ask_lookupds(partial(Lookupd.channels, topic=topic)))
            inactive[topic] = sorted({name for names in channels.values() for name in names})
    return {"topics": inactive, **_message(errors)}


def topic(site: PageSite, request: PageRequest) -> JSONObject:
    name = request.segments[2]
    nodes, errors = _nodes_of(site, name)
    shares, _, more = _stats_of(site, nodes, name)
    sums = _zeros(name)
    for share in shares:
        _add(sums, share)
    return sums | _message([*errors, *more])


def channel(site: PageSite, request: PageRequest) -> JSONObject:
    topic, name = request.segments[2:]
    nodes, errors = _nodes_of(site, topic)
    _, channels, more = _stats_of(site, nodes, topic, name, clients=True)
    return channels.get(name, {}) | _message([*errors, *more])


def nodes(site: PageSite, request: PageRequest) -> JSONObject:
    nodes, errors = _all_nodes(site)
    return {"nodes": [node.entry for node in nodes] or None, **_message(errors)}


def node(site: PageSite, request: PageRequest) -> JSONObject:
    name = request.segments[2]
    node, errors = _named_node(site, name)
    topics, _, _ = _stats_of(site, [node], clients=True)
    clients = sum(len(channel["clients"] or ()) for topic in topics for channel in topic["channels"])
    sums = {"total_messages": sum(topic["message_count"] for topic in topics), "total_clients": clients}
    return {"node": name, "topics": topics or None, **sums, **_message(errors)}


def counter(site: PageSite, request: PageRequest) -> JSONObject:
    nodes, errors = _all_nodes(site)
    _, channels, more = _stats_of(site, nodes)
    keys = "node", "topic_name", "channel_name", "message_count"
    stats = {
        f"{name}:{share['node']}": {key: share[key] for key in keys}
        for name, channel in channels.items()
        for share in channel["nodes"]
    }
    return {"stats": {key: stats[key] for key in sorted(stats)}, **_message([*errors, *more])}


# Changing


def _body(request: PageRequest) -> dict[str, str]:
    """Returns the strings of the JSON object in the body, which may have others; raises HTTPError."""
    try:
        document = json.JSONDecoder().raw_decode(request.head.body.decode("utf-8", "replace").lstrip())[0]
    except (ValueError, RecursionError):
        raise HTTPError(400, "INVALID_BODY") from None
    if not isinstance(document, dict) or not all(
        isinstance(document.get(key) or "", str) for key in ("topic", "channel", "action")
    ):
        raise HTTPError(400, "INVALID_BODY")
    return {key: document.get(key) or "" for key in ("topic", "channel", "action")}


def _at_nodes(site: PageSite, nodes: Sequence[APINode], action: Action, topic: str, channel: str) -> list[NodeError]:
    act = partial(Nsqd.act, action=action, topic=topic, channel=channel)
    return errors_of(site.cluster.ask(act, [node.nsqd for node in nodes]))


def _at_lookupds(site: PageSite, action: Action, topic: str, channel: str) -> list[NodeError]:
    return errors_of(site.cluster.ask_lookupds(lambda lookupd: lookupd.act(action, topic, channel)))


def _done(site: PageSite, errors: Sequence[NodeError]) -> JSONObject:
    site.monitor.changed()
    return _message(errors)


def create(site: PageSite, request: PageRequest) -> JSONObject:
    """Creates a topic at nsqlookupds, and a channel also on the nodes of the topic. Without nsqlookupds, where nsqadmin
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


def act(site: PageSite, request: PageRequest) -> JSONObject:
    """Pauses, unpauses or empties a topic or channel."""
    topic, channel = (*request.segments[2:], "")[:2]
    action = _body(request)["action"]
    if action not in ("pause", "unpause", "empty"):
        raise HTTPError(400, "INVALID_ACTION")
    nodes, errors = _nodes_of(site, topic)
    return _done(site, errors + _at_nodes(site, nodes, action, topic, channel))  # type: ignore[arg-type]


def delete(site: PageSite, request: PageRequest) -> JSONObject:
    topic, channel = (*request.segments[2:], "")[:2]
    nodes, errors = _nodes_of(site, topic)
    errors += _at_lookupds(site, "delete", topic, channel)
    return _done(site, errors + _at_nodes(site, nodes, "delete", topic, channel))


def tombstone(site: PageSite, request: PageRequest) -> JSONObject:
    """Hides a node from the consumers of a topic, and deletes the topic there. Only nodes that are listed are asked."""
    name = request.segments[2]
    topic = _body(request)["topic"]
    if not is_valid_name(topic):
        raise HTTPError(400, "INVALID_TOPIC")
    node, _ = _named_node(site, name)
    errors = errors_of(site.cluster.ask_lookupds(lambda lookupd: lookupd.tombstone(topic, name)))
    return _done(site, errors + _at_nodes(site, [node], "delete", topic, ""))
