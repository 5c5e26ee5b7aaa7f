"""Statistics as tables: of topics with their channels, of topics, channels, clients and nodes each on their own."""

import time
from collections.abc import Iterator, Mapping, Sequence

from nsqadmin_cli import units
from nsqadmin_cli.address import Address
from nsqadmin_cli.cluster import Answers
from nsqadmin_cli.http_client import NodeError
from nsqadmin_cli.look import Look
from nsqadmin_cli.models import ChannelStats, ClientStats, NodeStats, TopicStats
from nsqadmin_cli.table import ALWAYS, Cell, Column, Form, Grid, Row, Table, Tone
from nsqadmin_cli.text import plural
from nsqadmin_cli.totals import Flow, Key, Totals

Counts = TopicStats | ChannelStats | Totals

_COUNTS = (
    Column("depth", "depth", keep=ALWAYS, form=Form.COUNT),
    Column("memory_depth", "in memory", "mem", Form.COUNT, keep=1),
    Column("backend_depth", "on disk", "disk", Form.COUNT, keep=3),
    Column("in_flight_count", "in flight", "inflt", Form.COUNT, keep=ALWAYS),
    Column("deferred_count", "deferred", "def", Form.COUNT, keep=3),
    Column("requeue_count", "requeued", "req", Form.COUNT, keep=3),
    Column("timeout_count", "timed out", "t-o", Form.COUNT, keep=3),
    Column("message_count", "messages", "msgs", Form.COUNT, keep=3),
    Column("client_count", "clients", form=Form.COUNT, keep=ALWAYS),
)
_RATES = (
    Column("ingress_rate", "in/s", form=Form.RATE, keep=8),
    Column("egress_rate", "out/s", form=Form.RATE, keep=8),
)


def counts(row: Counts) -> list[object]:
    """The cells of `_COUNTS`; blank for what topics do not count."""
    waits = isinstance(row, ChannelStats) and row.depth > 0 and row.client_count == 0
    backend = row.backend_depth
    return [
        row.depth,
        row.depth - backend,
        Cell(backend, Tone.NOTE) if backend else 0,
        getattr(row, "in_flight_count", None),
        getattr(row, "deferred_count", None),
        getattr(row, "requeue_count", None),
        Cell(timed_out, Tone.NOTE) if (timed_out := getattr(row, "timeout_count", None)) else timed_out,
        row.message_count,
        Cell(0, Tone.BAD) if waits else getattr(row, "client_count", None),  # queued messages, but no consumers
    ]


class Columns:
    """The columns of counts, after those of rates, if there are any."""

    def __init__(self, flows: Mapping[Key, Flow] | None, *, watched: bool) -> None:
        self._flows = flows or {}
        self._watched = watched
        self.columns = (*(_RATES if watched else ()), *_COUNTS)

    def cells(self, row: Counts, key: Key | None = None) -> list[object]:
        if not self._watched:
            return counts(row)
        flow = self._flows.get(key) if key else None
        return [*(flow[:2] if flow else (None, None)), *counts(row)]


def node_grid(answers: Answers[NodeStats]) -> Grid:
    """One line for each node: address and state."""
    return Grid([[Cell(str(address), Tone.NODE), *_condition(answer)] for address, answer in answers.items()])


def _condition(answer: NodeStats | NodeError) -> list[Cell | str]:
    if isinstance(answer, NodeError):
        return ["", Cell("failed", Tone.BAD)]
    health = Cell("healthy", Tone.GOOD) if answer.health == "OK" else Cell(answer.health, Tone.BAD)
    uptime = Cell(f"up {units.duration(time.time() - answer.start_time)}", Tone.FAINT)
    return [f"nsqd {answer.version}", uptime, health]


def tree_table(look: Look, *, watched: bool = False) -> Table:
    """Each topic followed by its channels, each with its share per node, if several have it."""
    shown = Columns(look.flows, watched=watched)
    totals = look.totals
    several = len(look.answers) > 1
    node = (Column("node", "node", tone=Tone.NODE, keep=ALWAYS),) if several else ()
    table = Table((Column("name", "topic / channel"), *node, *shown.columns))
    for topic in totals.topics:
        name = topic.topic_name
        table.rows += _with_shares(name, topic, look.topic_shares[name], Tone.STRONG, shown, (name, ""), several)
        for channel in topic.channels:
            key = name, channel.channel_name
            title = f"  {channel.channel_name}"
            table.rows += _with_shares(title, channel, look.channel_shares[key], Tone.PLAIN, shown, key, several)
    if len(totals.topics) > 1:
        table.total = _total(totals, shown, [None] if several else [])
    return table


def _total(totals: Totals, shown: Columns, blanks: list[None]) -> Row:
    summary = f"{plural(totals.topic_count, 'topic')}, {plural(totals.channel_count, 'channel')}"
    return [Cell(summary, Tone.STRONG), *blanks, *shown.cells(totals)]


def _with_shares(
    name: str,
    total: TopicStats | ChannelStats,
    shares: Mapping[Address, TopicStats] | Mapping[Address, ChannelStats],
    tone: Tone,
    shown: Columns,
    key: Key,
    several: bool,
) -> Iterator[Row]:
    """The row of one topic or channel, and those of its shares."""
    paused = sum(share.paused for share in shares.values())
    if paused:
        name += " (paused)" if paused == len(shares) else f" (paused {paused}/{len(shares)})"
        tone = Tone.STRONG_NOTE if tone is Tone.STRONG else Tone.NOTE
    if not several:
        yield [Cell(name, tone), *shown.cells(total, key)]
    elif len(shares) == 1:
        yield [Cell(name, tone), str(next(iter(shares))), *shown.cells(total, key)]
    else:
        yield [Cell(name, tone), f"{len(shares)} nodes", *shown.cells(total, key)]
        for address, share in shares.items():
            yield [Cell("    (paused)" if share.paused else "", Tone.NOTE), str(address), *shown.cells(share)]


def topic_table(look: Look, *, watched: bool = False) -> Table:
    """One row for each topic, summed over nodes."""
    shown = Columns(look.flows, watched=watched)
    only = [column for column in shown.columns if column.key not in _OF_CHANNELS]
    kept = [index for index, column in enumerate(shown.columns) if column.key not in _OF_CHANNELS]
    more = (
        Column("message_bytes", "published", "bytes", Form.BYTES, keep=4),
        Column("channel_count", "channels", form=Form.COUNT, keep=ALWAYS),
        Column("paused", "paused", form=Form.FLAG, keep=6, tone=Tone.NOTE),
    )
    table = Table((Column("topic", "topic", tone=Tone.STRONG), *only, *more), empty="No topics.")
    for topic in look.totals.topics:
        cells = shown.cells(topic, (topic.topic_name, ""))
        table.rows.append(
            [
                topic.topic_name,
                *(cells[index] for index in kept),
                topic.message_bytes,
                len(topic.channels),
                topic.paused,
            ]
        )
    return table


_OF_CHANNELS = ("in_flight_count", "deferred_count", "requeue_count", "timeout_count", "client_count")


def channel_table(look: Look, *, watched: bool = False, with_topic: bool = True) -> Table:
    """One row for each channel, summed over nodes."""
    shown = Columns(look.flows, watched=watched)
    of_topic = (Column("topic", "topic", keep=ALWAYS, tone=Tone.STRONG),)
    table = Table(
        (
            Column("channel", "channel"),
            *(of_topic if with_topic else ()),
            *shown.columns,
            Column("paused", "paused", form=Form.FLAG, keep=6, tone=Tone.NOTE),
        ),
        empty="No channels.",
    )
    for topic in look.totals.topics:
        for channel in topic.channels:
            key = topic.topic_name, channel.channel_name
            place = [topic.topic_name] if with_topic else []
            table.rows.append([channel.channel_name, *place, *shown.cells(channel, key), channel.paused])
    return table


def client_table(look: Look, *, with_places: bool = True) -> Table:
    """One row for each consumer, with its topic, channel and node."""
    places = (
        Column("topic", "topic", keep=ALWAYS, tone=Tone.STRONG),
        Column("channel", "channel", keep=ALWAYS),
    )
    table = Table(
        (
            Column("client", "client"),
            *(places if with_places else ()),
            Column("node", "node", keep=7, tone=Tone.NODE),
            Column("remote_address", "address", keep=3),
            Column("ready_count", "RDY", form=Form.COUNT, keep=ALWAYS),
            Column("in_flight_count", "in flight", "inflt", Form.COUNT, keep=ALWAYS),
            Column("finish_count", "finished", "fin", Form.COUNT, keep=6),
            Column("requeue_count", "requeued", "req", Form.COUNT, keep=6),
            Column("message_count", "messages", "msgs", Form.COUNT, keep=6),
            Column("connected_seconds", "connected", "conn", Form.DURATION, keep=5),
            Column("security", "security", "sec", keep=4),
            Column("user_agent", "user agent", keep=2, tone=Tone.FAINT),
        ),
        empty="No clients.",
    )
    for address, node in look.nodes.items():
        for topic in node.topics:
            for channel in topic.channels:
                at = [topic.topic_name, channel.channel_name] if with_places else []
                waits = channel.depth > 0
                table.rows += (_client(client, at, address, look.clock, waits) for client in channel.clients or ())
    table.rows.sort(key=lambda row: [str(value) for value in (*row[1 : len(places) * with_places + 1], row[0])])
    return table


def _client(client: ClientStats, at: Sequence[str], address: Address, now: float, waits: bool) -> Row:
    idle = waits and client.ready_count == 0
    secured = (
        ["TLS"] * client.tls + ["deflate"] * client.deflate + ["snappy"] * client.snappy + ["auth"] * client.authed
    )
    return [
        client.client_id or client.hostname,
        *at,
        str(address),
        client.remote_address,
        Cell(0, Tone.BAD) if idle else client.ready_count,  # queued messages, but RDY 0
        client.in_flight_count,
        client.finish_count,
        client.requeue_count,
        client.message_count,
        max(0.0, now - client.connect_ts),
        " ".join(secured),
        client.user_agent,
    ]


def node_table(look: Look) -> Table:
    """One row for each node, also if it is down."""
    table = Table(
        (
            Column("node", "node", tone=Tone.NODE),
            Column("status", "status", keep=ALWAYS),
            Column("version", "version", keep=8),
            Column("uptime_seconds", "up", form=Form.DURATION, keep=7),
            Column("topic_count", "topics", form=Form.COUNT, keep=6),
            Column("channel_count", "channels", form=Form.COUNT, keep=6),
            Column("depth", "depth", form=Form.COUNT, keep=ALWAYS),
            Column("backend_depth", "on disk", "disk", Form.COUNT, keep=5),
            Column("in_flight_count", "in flight", "inflt", Form.COUNT, keep=5),
            Column("message_count", "messages", "msgs", Form.COUNT, keep=4),
            Column("client_count", "clients", form=Form.COUNT, keep=ALWAYS),
        ),
        empty="No nodes.",
    )
    for address, answer in look.answers.items():
        if isinstance(answer, NodeError):
            table.rows.append([str(address), Cell(f"failed: {answer.reason}", Tone.BAD), *[None] * 9])
            continue
        sums = Totals.over([answer])
        healthy = answer.health == "OK"
        table.rows.append(
            [
                str(address),
                Cell("healthy", Tone.GOOD) if healthy else Cell(answer.health, Tone.BAD),
                answer.version,
                max(0.0, look.clock - answer.start_time),
                sums.topic_count,
                sums.channel_count,
                sums.depth,
                sums.backend_depth,
                sums.in_flight_count,
                sums.message_count,
                sums.client_count,
            ]
        )
    if len(look.nodes) > 1:
        whole = look.totals
        table.total = [
            Cell(plural(len(look.answers), "node"), Tone.STRONG),
            *[None] * 3,
            whole.topic_count,
            whole.channel_count,
            whole.depth,
            whole.backend_depth,
            whole.in_flight_count,
            whole.message_count,
            whole.client_count,
        ]
    return table


def share_table(
    look: Look, shares: Mapping[Address, TopicStats] | Mapping[Address, ChannelStats], whole: TopicStats | ChannelStats
) -> Table:
    """The share of each node of one topic or channel; nodes that did not answer have a row with the reason."""
    hidden = () if isinstance(whole, ChannelStats) else _OF_CHANNELS
    kept = [index for index, column in enumerate(_COUNTS) if column.key not in hidden]
    columns = [_COUNTS[index] for index in kept]
    table = Table((Column("node", "node", tone=Tone.NODE), *columns, Column("state", "", keep=ALWAYS)))
    for address, answer in look.answers.items():
        if isinstance(answer, NodeError):
            table.rows.append([str(address), *[None] * len(kept), Cell(f"failed: {answer.reason}", Tone.BAD)])
        elif (share := shares.get(address)) is not None:
            cells = counts(share)
            state = Cell("paused", Tone.NOTE) if share.paused else None
            table.rows.append([str(address), *(cells[index] for index in kept), state])
    if len(table.rows) > 1:
        cells = counts(whole)
        table.total = [Cell(plural(len(shares), "node"), Tone.STRONG), *(cells[index] for index in kept), None]
    return table


Facts = list[Sequence[Cell | str]]


def topic_facts(whole: TopicStats, shares: Mapping[Address, TopicStats]) -> Facts:
    """Properties of a topic other than counts."""
    mean = f", {units.size(whole.message_bytes // whole.message_count)} on average" if whole.message_count else ""
    facts: Facts = [[Cell("published", Tone.FAINT), f"{units.size(whole.message_bytes)}{mean}"]]
    return facts + _common_facts(whole, shares)


def channel_facts(whole: ChannelStats, shares: Mapping[Address, ChannelStats]) -> Facts:
    return _common_facts(whole, shares)


def _common_facts(
    whole: TopicStats | ChannelStats, shares: Mapping[Address, TopicStats] | Mapping[Address, ChannelStats]
) -> Facts:
    facts: Facts = []
    paused = [str(address) for address, share in shares.items() if share.paused]
    if paused:
        where = "on all nodes" if len(paused) == len(shares) else f"on {', '.join(paused)}"
        facts.append([Cell("paused", Tone.FAINT), Cell(where, Tone.NOTE)])
    latency = whole.e2e_processing_latency
    if latency.percentiles:
        texts = [f"{one.quantile * 100:g}% {units.latency(one.value / 1e9)}" for one in latency.percentiles]
        facts.append([Cell("latency", Tone.FAINT), f"{'  '.join(texts)}  (of {plural(latency.count, 'message')})"])
    return facts
