"""Statistics as tables: of topics with their channels, of topics, channels, clients and nodes each on their own."""

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, make_dataclass
from functools import partial
from typing import Any, TypeVar

from nsqadmin_cli import units
from nsqadmin_cli.api import ChannelStats, ClientCounts, NodeStats, TopicStats
from nsqadmin_cli.cluster import Answers, errors_of
from nsqadmin_cli.http_client import Address, NodeError
from nsqadmin_cli.snapshot import OF_CHANNELS, ClusterSnapshot, Flow, Key, Totals
from nsqadmin_cli.table import ALWAYS, Cell, Form, Grid, Table, Tone, as_json, column, failed, json_only, table_of
from nsqadmin_cli.units import plural

Value = Any  # of a column, or a Cell with it; None is a blank
Shares = Mapping[Address, TopicStats] | Mapping[Address, ChannelStats]

count = partial(column, form=Form.COUNT)


# The columns in their order. A count without a declaration below has its name as heading.
_names = ["name", "place", "ingress_rate", "egress_rate", "depth", "memory_depth", "backend_depth"]
_names += ["oldest_message_age_seconds"]
_names += [*(name for name in OF_CHANNELS if name != "client_count"), "message_count", "client_count"]
_Columns: Any = make_dataclass(
    "_Columns", [(name, Value, count(name.removesuffix("_count").replace("_", " "), keep=3)) for name in _names]
)


@dataclass(eq=False, repr=False)
class Counts(_Columns):  # type: ignore[misc]
    """The counts of topics and channels; None for counts that only channels have."""

    name: Value = column("topic / channel")
    place: Value = column("node", key="node", keep=ALWAYS, tone=Tone.NODE)
    ingress_rate: Value = column("in/s", form=Form.RATE, keep=8)
    egress_rate: Value = column("out/s", form=Form.RATE, keep=8)
    depth: Value = count("depth", keep=ALWAYS)
    memory_depth: Value = count("in memory", "mem", keep=1)
    backend_depth: Value = count("on disk", "disk", keep=3, tone=Tone.NOTE)
    oldest_message_age_seconds: Value = column("oldest", "old", Form.DURATION, keep=6)
    in_flight_count: Value = count("in flight", "inflt", keep=ALWAYS)
    deferred_count: Value = count("deferred", "def", keep=3)
    requeue_count: Value = count("requeued", "req", keep=3)
    timeout_count: Value = count("timed out", "t-o", keep=3, tone=Tone.NOTE)
    message_count: Value = count("messages", "msgs", keep=3)
    client_count: Value = count("clients", keep=ALWAYS)


RATES = ("ingress_rate", "egress_rate")


@dataclass(eq=False, repr=False)
class TopicCounts(Counts):
    name: Value = column("topic", key="topic", tone=Tone.STRONG)
    message_bytes: Value = column("published", "bytes", Form.BYTES, keep=4)
    channel_count: Value = count("channels", keep=ALWAYS)
    paused: Value = column("paused", form=Form.FLAG, keep=6, tone=Tone.NOTE)


@dataclass(eq=False, repr=False)
class ChannelCounts(Counts):
    name: Value = column("channel", key="channel")
    place: Value = column("topic", key="topic", keep=ALWAYS, tone=Tone.STRONG)
    egress_rate: Value = column("finished/s", "fin/s", form=Form.RATE, keep=8)
    paused: Value = column("paused", form=Form.FLAG, keep=6, tone=Tone.NOTE)
    trouble: Value = column("trouble", keep=ALWAYS, tone=Tone.BAD)


@dataclass(eq=False, repr=False)
class NodeCounts(Counts):
    name: Value = column("node", key="node", tone=Tone.NODE)
    state: Value = column("", keep=ALWAYS)


R = TypeVar("R", bound=Counts)
_COUNTED = ("depth", "backend_depth", "message_count", "oldest_message_age_seconds", *OF_CHANNELS)


def counts(
    kind: type[R], row: TopicStats | ChannelStats | Totals, name: Value, flow: Flow | None = None, **more: Value
) -> R:
    """Returns a row with the counts of a topic, a channel or all."""
    known = {field: getattr(row, field, None) for field in _COUNTED}
    made = kind(name=name, memory_depth=row.depth - row.backend_depth, **known, **more)
    if isinstance(row, ChannelStats) and row.depth > 0 and row.client_count == 0:
        made.client_count = Cell(0, Tone.BAD)  # queued messages, but no consumers
    if flow is not None:
        made.ingress_rate, made.egress_rate = flow.ingress, flow.egress
    return made


def node_grid(answers: Answers[NodeStats]) -> Grid:
    grid = Grid()
    for address, answer in answers.items():
        state: list[Cell | str] = ["", Cell("failed", Tone.BAD)]
        if isinstance(answer, NodeStats):
            uptime = Cell(f"up {units.duration(time.time() - answer.start_time)}", Tone.FAINT)
            state = [f"nsqd {answer.version}", uptime, _health(answer)]
        grid.rows.append([Cell(str(address), Tone.NODE), *state])
    return grid


def _health(node: NodeStats) -> Cell:
    return Cell("healthy", Tone.GOOD) if node.health == "OK" else Cell(node.health, Tone.BAD)


def tree_table(snapshot: ClusterSnapshot, *, watched: bool = False, by_node: bool = False) -> Table:
    """Returns each topic followed by its channels; with `by_node`, also their shares of nodes, if several have one."""
    totals, flows = snapshot.totals, snapshot.flows or {}
    rows: list[Counts] = []
    for topic in totals.topics:
        name = topic.topic_name
        shares, flow = snapshot.topic_shares[name], flows.get((name, ""))
        rows += _with_shares(topic, Cell(name, Tone.STRONG), shares, flow, by_node)
        for channel in topic.channels:
            key = name, channel.channel_name
            title = Cell(f"  {channel.channel_name}", Tone.PLAIN)
            rows += _with_shares(channel, title, snapshot.channel_shares[key], flows.get(key), by_node)
    several = len(snapshot.answers) > 1
    summary = f"{plural(totals.topic_count, 'topic')}, {plural(totals.channel_count, 'channel')}"
    total = counts(Counts, totals, Cell(summary, Tone.STRONG)) if len(totals.topics) > 1 else None
    without = [*(() if watched else RATES), *(() if several else ("place",))]
    return table_of(Counts, rows, without=without, total=total)


def _with_shares(
    whole: TopicStats | ChannelStats, name: Cell, shares: Shares, flow: Flow | None, by_node: bool
) -> Iterator[Counts]:
    """Yields the row of one topic or channel, and with `by_node` the rows of its shares."""
    if paused := sum(share.paused for share in shares.values()):
        note = "(paused)" if paused == len(shares) else f"(paused {paused}/{len(shares)})"
        name = Cell(f"{name.value} {note}", Tone.STRONG_NOTE if name.tone is Tone.STRONG else Tone.NOTE)
    yield counts(Counts, whole, name, flow, place=units.one_or_number(shares))
    for address, share in shares.items() if by_node and len(shares) > 1 else ():
        yield counts(Counts, share, Cell("    (paused)" if share.paused else "", Tone.NOTE), place=str(address))


def topic_table(snapshot: ClusterSnapshot, *, watched: bool = False) -> Table:
    flows = snapshot.flows or {}
    rows = []
    for topic in snapshot.totals.topics:
        more = {"message_bytes": topic.message_bytes, "channel_count": len(topic.channels), "paused": topic.paused}
        rows.append(counts(TopicCounts, topic, topic.topic_name, flows.get((topic.topic_name, "")), **more))
    without = ("place", *OF_CHANNELS, *(() if watched else RATES))
    return table_of(TopicCounts, rows, without=without, empty="No topics.")


def channel_table(
    snapshot: ClusterSnapshot, *, watched: bool = False, with_topic: bool = True, only: Collection[Key] | None = None
) -> Table:
    """Returns one row for each channel, or only for these, summed over nodes, also of topics."""
    rows, flows, trouble = [], snapshot.flows or {}, snapshot.trouble or {}
    for topic in snapshot.totals.topics:
        queues: list[TopicStats | ChannelStats] = [topic, *topic.channels]
        for row in queues:
            key = topic.topic_name, row.channel_name if isinstance(row, ChannelStats) else ""
            if key[1] if only is None else key in only:
                more = {"place": key[0], "paused": row.paused, "trouble": trouble.get(key)}
                rows.append(counts(ChannelCounts, row, key[1], flows.get(key), **more))
    without = [*(() if with_topic else ("place",)), *(() if watched else RATES)]
    without += ["trouble"] if snapshot.trouble is None else []
    return table_of(ChannelCounts, rows, without=without, empty="No channels.")


def make_compact(table: Table) -> None:
    """Drops the less important counts that are 0 in each row; "in memory" is depth where nothing is on disk."""
    optional = {"memory_depth", "backend_depth", "oldest_message_age_seconds", "paused", *OF_CHANNELS}
    optional -= {"in_flight_count", "client_count"}
    keys = [column.key for column in table.columns]
    rows = [*table.rows, *([table.total] if table.total else [])]
    used = {key for index, key in enumerate(keys) if any(as_json(row[index]) for row in rows)}
    if "backend_depth" not in used:
        used.discard("memory_depth")
    table.select([index for index, key in enumerate(keys) if key in used or key not in optional])


def share_table(snapshot: ClusterSnapshot, shares: Shares, whole: TopicStats | ChannelStats) -> Table:
    """Returns the share of each node of one topic or channel; nodes that did not answer have a row with the reason."""
    rows: list[NodeCounts] = []
    for address, answer in snapshot.answers.items():
        if isinstance(answer, NodeError):
            rows.append(NodeCounts(str(address), state=failed(answer.reason)))
        elif (share := shares.get(address)) is not None:
            state = Cell("paused", Tone.NOTE) if share.paused else None
            rows.append(counts(NodeCounts, share, str(address), state=state))
    label = Cell(plural(len(shares), "node"), Tone.STRONG)
    total = counts(NodeCounts, whole, label) if len(rows) > 1 else None
    without = ("place", *RATES, *(() if isinstance(whole, ChannelStats) else OF_CHANNELS))
    return table_of(NodeCounts, rows, without=without, total=total)


@dataclass(eq=False, repr=False)
class ClientRow:
    client: Value = column("client")
    topic: Value = column("topic", keep=ALWAYS, tone=Tone.STRONG)
    channel: Value = column("channel", keep=ALWAYS)
    node: Value = column("node", keep=7, tone=Tone.NODE)
    remote_address: Value = column("address", keep=3)
    ready_count: Value = count("RDY", keep=ALWAYS)
    in_flight_count: Value = count("in flight", "inflt", keep=ALWAYS)
    finish_count: Value = count("finished", "fin", keep=6)
    requeue_count: Value = count("requeued", "req", keep=6)
    message_count: Value = count("messages", "msgs", keep=6)
    connected_seconds: Value = column("connected", "conn", Form.DURATION, keep=5)
    security: Value = column("security", "sec", keep=4)
    user_agent: Value = column("user agent", keep=2, tone=Tone.FAINT)


def client_table(snapshot: ClusterSnapshot, *, with_places: bool = True, of: tuple[str, str] | None = None) -> Table:
    """Returns one row for each consumer, or each one of a channel."""
    rows = [
        _client(client, topic, channel, address, snapshot.clock)
        for address, node in snapshot.nodes.items()
        for topic, channel in node.channels()
        if of in (None, (topic, channel.channel_name))
        for client in channel.clients or ()
    ]
    rows.sort(key=lambda row: (row.topic, row.channel, row.client) if with_places else row.client)
    return table_of(ClientRow, rows, without=() if with_places else ("topic", "channel"), empty="No clients.")


def _client(client: ClientCounts, topic: str, channel: ChannelStats, address: Address, now: float) -> ClientRow:
    used = {"TLS": client.tls, "deflate": client.deflate, "snappy": client.snappy, "auth": client.authed}
    known = {name: getattr(client, name) for name in _OF_CLIENTS}
    row = ClientRow(client.name, topic, channel.channel_name, str(address), **known)
    if channel.depth > 0 and client.ready_count == 0:
        row.ready_count = Cell(0, Tone.BAD)  # queued messages, but RDY 0
    row.message_count, row.connected_seconds = client.message_count, max(0.0, now - client.connect_ts)
    row.security = " ".join(name for name, is_used in used.items() if is_used)
    return row


_OF_CLIENTS = ("remote_address", "user_agent", "ready_count", "in_flight_count", "finish_count", "requeue_count")


@dataclass(eq=False, repr=False)
class NodeRow:
    """One node. What it counts is None if it did not answer."""

    address: Value = column("node", key="node", tone=Tone.NODE)
    error: Value = json_only("null, or why it has no numbers")
    status: Value = column("status", keep=ALWAYS, json=False)
    daemon: Value = column("daemon", keep=8, help='"nsqd", or "gnsqd" and its own version')
    draining: Value = json_only()
    version: Value = column("version", keep=8)
    health: Value = json_only()
    start_time: Value = json_only()
    uptime_seconds: Value = column("up", form=Form.DURATION, keep=7, json=False)
    ingress_rate: Value = column("in/s", form=Form.RATE, keep=8, json=False)
    egress_rate: Value = column("finished/s", "fin/s", form=Form.RATE, keep=8, json=False)
    cpu_share: Value = column("CPU", form=Form.SHARE, keep=5, json=False)
    memory_bytes: Value = column("memory", "mem", Form.BYTES, keep=5, json=False)
    free_disk_bytes: Value = column("free disk", "disk", Form.BYTES, keep=5, json=False)
    connection_count: Value = count("connections", "conn", keep=4, json=False)
    topic_count: Value = count("topics", keep=6)
    channel_count: Value = count("channels", keep=6)
    depth: Value = count("depth", keep=ALWAYS)
    backend_depth: Value = count("on disk", "disk", keep=5)
    in_flight_count: Value = count("in flight", "inflt", keep=5)
    message_count: Value = count("messages", "msgs", keep=4)
    client_count: Value = count("clients", keep=ALWAYS, help="all null after an error")
    listed: Value = column("listed", keep=6, json=False)
    tombstoned: Value = count("tombstoned", "tomb", keep=4, tone=Tone.NOTE, json=False)
    lookupds: Value = json_only("that list it", default=())
    tombstoned_topics: Value = json_only(default=())


LISTING = ("listed", "tombstoned")
PROCESS = ("cpu_share", "memory_bytes", "free_disk_bytes", "connection_count")


def node_rows(snapshot: ClusterSnapshot) -> dict[Address, NodeRow]:
    rows = {}
    for address, answer in snapshot.answers.items():
        if isinstance(answer, NodeError):
            rows[address] = NodeRow(str(address), answer.reason, failed(answer.reason))
            continue
        row = rows[address] = NodeRow(str(address), status=_health(answer), **_sums(Totals.over([answer])))
        row.version, row.health, row.start_time = answer.version, answer.health, answer.start_time
        row.uptime_seconds = max(0.0, snapshot.clock - answer.start_time)
        if address in snapshot.node_rates:
            row.ingress_rate, row.egress_rate, *_ = snapshot.node_rates[address]
        row.cpu_share = snapshot.cpu_shares[address]
        if (process := answer.process) is not None:
            row.memory_bytes, row.connection_count = process.memory_bytes, process.connection_count
            row.free_disk_bytes = process.free_disk_bytes if process.disk_bytes else None
            if process.is_low_on_disk:
                row.free_disk_bytes = Cell(process.free_disk_bytes, Tone.BAD)
                row.status = Cell("low on disk", Tone.BAD) if answer.health == "OK" else row.status
    return rows


def _sums(totals: Totals) -> dict[str, int]:
    names = ("topic_count", "channel_count", "depth", "backend_depth", "in_flight_count", "message_count")
    return {name: getattr(totals, name) for name in (*names, "client_count")}


def node_table(
    snapshot: ClusterSnapshot,
    rows: Mapping[Address, NodeRow] | None = None,
    without: Sequence[str] = ("daemon", *LISTING, *RATES, *PROCESS),
) -> Table:
    rows = rows or node_rows(snapshot)
    label = Cell(plural(len(snapshot.answers), "node"), Tone.STRONG)
    total = NodeRow(label, **_sums(snapshot.totals)) if len(snapshot.nodes) > 1 else None
    return table_of(NodeRow, [*rows.values()], without=without, total=total, empty="No nodes.")


def topic_facts(whole: TopicStats, shares: Mapping[Address, TopicStats]) -> dict[str, Cell | str]:
    mean = f", {units.size(whole.message_bytes // whole.message_count)} on average" if whole.message_count else ""
    return {"published": f"{units.size(whole.message_bytes)}{mean}", **common_facts(whole, shares)}


def common_facts(whole: TopicStats | ChannelStats, shares: Shares) -> dict[str, Cell | str]:
    age = whole.oldest_message_age_seconds
    facts: dict[str, Cell | str] = {"oldest message": "–" if age is None else f"{units.duration(age)} old"}
    if paused := [str(address) for address, share in shares.items() if share.paused]:
        where = "on all nodes" if len(paused) == len(shares) else f"on {', '.join(paused)}"
        facts["paused"] = Cell(where, Tone.NOTE)
    latency = whole.e2e_processing_latency
    if latency.percentiles and not latency.count:
        facts["latency"] = Cell("–  (no message was finished yet)", Tone.FAINT)
    elif latency.percentiles:
        texts = [
            f"{percentile.quantile * 100:g}% {units.latency(percentile.value / 1e9)}"
            for percentile in latency.percentiles
        ]
        facts["latency"] = f"{'  '.join(texts)}  (of {plural(latency.count, 'message')})"
    return facts


def share_documents(
    snapshot: ClusterSnapshot, shares: Shares, key: str, **more: Callable[[Address], object]
) -> list[object]:
    """Returns for each node its address, error, what the functions `more` return, and its share under `key`."""
    errors = {error.address: error.reason for error in errors_of(snapshot.answers)}
    return [
        {"address": str(address), "error": errors.get(address)}
        | {name: value(address) for name, value in more.items()}
        | {key: as_json(shares.get(address))}
        for address in snapshot.answers
    ]
