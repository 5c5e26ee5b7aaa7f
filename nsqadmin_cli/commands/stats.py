"""`gnsqadmin stats`, `tree` and `counter`: statistics of topics, channels, clients and nodes."""

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import click

from nsqadmin_cli import stat_tables, units
from nsqadmin_cli.api import ChannelStats, ClientCounts, TopicStats
from nsqadmin_cli.change import Shown
from nsqadmin_cli.cluster import Cluster
from nsqadmin_cli.command_base import Watch, command, flag, option
from nsqadmin_cli.commands.doctor import BRIEFLY, findings_of
from nsqadmin_cli.context import ClusterContext, ClusterSettings, CommandLines
from nsqadmin_cli.diagnosis.examination import Examination, troubled
from nsqadmin_cli.errors import ExitCode
from nsqadmin_cli.http_client import Address
from nsqadmin_cli.output import Output, measure_rates, report
from nsqadmin_cli.snapshot import ClusterSnapshot, Totals, client_document, require, snapshots, take_snapshot, through
from nsqadmin_cli.table import ALWAYS, Block, Cell, Form, Line, Table, Tone, column, described, table_of
from nsqadmin_cli.units import one_or_number, printable


@command(
    examples="""
        gnsqadmin stats
        gnsqadmin stats --nsqd-http-address a.example:4151 --nsqd-http-address b.example:4151
        gnsqadmin stats --lookupd-http-address lookup.example:4161 --by channel -o csv
        gnsqadmin stats --sort depth --columns topic,channel,depth,client_count
        gnsqadmin stats --trouble
        gnsqadmin stats --topic orders --channel billing --by channel --watch 2
        gnsqadmin stats --topic orders --json | jq .totals.depth
    """,
    document=(
        """
        time     unix seconds
        nodes    list, in the order queried: address, error (null, or why this node
                 has no numbers), version, health ("OK" or "NOK - ..."; both null
                 after an error), start_time (unix seconds or null), topics, producers
        """,
        described("totals", "the sums over all nodes", Totals),
        described("topics", "list by name", TopicStats),
        described("channels", "list by name", ChannelStats),
        """
        clients  null without --by client and in totals, else as in /stats
        flows    null, or with --watch since the last document: list of topic,
                 channel (empty: the topic itself), ingress_rate, egress_rate
        Other keys are those of nsqd's /stats. In totals, paused means on any
        node, and latencies are those of the slowest node.
        With --watch there is one document per line.
        """,
    ),
)
def stats(
    cluster: Cluster,
    output: Output,
    watch: Watch,
    topic: str = "",
    channel: str = "",
    by: str | None = option(
        "Rows: topics with their channels, or only one of these. [default: tree; channel with --sort, --trouble and "
        "names of --columns]",
        click.Choice(["tree", "topic", "channel", "client", "node"]),
    ),
    by_node: bool = flag("Also a row for each node that has the topic or channel.", "--nodes"),
    columns: str | None = option(
        "These columns, by their names in CSV, separated by commas; or all. By default, a table has no columns that "
        "are 0 in each row, except for the most important ones.",
        metavar="NAMES",
    ),
    sort: str | None = option(
        "Sort by this column, the largest value first. Without --by, rows are channels.", metavar="NAME"
    ),
    trouble: bool = flag(
        "Only topics and channels that findings of doctor other than notes are about, with the code of the worst one. "
        "doctor watches them for a second, or for the time of --watch."
    ),
) -> int:
    """The depth of a topic counts messages not yet passed to its channels. The depth of a channel counts queued
    messages; it excludes messages in flight and deferred messages. "In memory" and "on disk" are the two parts of
    depth. Rows are sums over nodes. The last line is the sum of the depths of topics and channels, and of messages
    published to topics.

    --columns, --sort and --trouble are for tables and CSV; --json has everything.

    With --watch or --trouble, in/s is the rate of published messages, and finished/s the rate of messages finished by a
    channel's clients. In tables with topics, out/s is the same for channels, and for topics the rate of messages passed
    to all channels.

    On a narrow terminal, headings are abbreviated as in nsq_stat, and numbers are rounded down (12.3k).

    A node that does not answer causes one line on standard error and exit code 1; the others are still shown.
    """
    if trouble and by not in (None, "channel"):
        raise click.UsageError("--trouble is about channels: leave out --by, or use --by channel.")
    if sort and by == "tree":
        raise click.UsageError("the rows of --by tree have an order of their own: --sort requires another --by.")
    by = by or ("channel" if sort or trouble or columns not in (None, "all") else "tree")
    names, watched = columns.split(",") if columns else None, watch.interval is not None

    def table(snapshot: ClusterSnapshot, by: str, *, compact: bool = False) -> Table:
        """Returns the selected rows and columns; raises UsageError for a wrong name."""
        match by:
            case "tree":
                table = stat_tables.tree_table(snapshot, watched=watched, by_node=by_node)
            case "topic":
                table = stat_tables.topic_table(snapshot, watched=watched)
            case "channel":
                table = stat_tables.channel_table(snapshot, watched=watched or trouble, only=snapshot.trouble)
            case "client":
                table = stat_tables.client_table(snapshot)
            case _:
                table = stat_tables.node_table(snapshot)
        keys = [column.key for column in table.columns]
        for name in [*(names or ()), *([sort] if sort else [])]:
            if name not in keys and name != "all":
                raise click.UsageError(f"{printable(name)!r} is not a column of --by {by}: {', '.join(keys)}.")
        if sort:
            table.sort(keys.index(sort))
        if names is not None and "all" not in names:
            table.select([keys.index(name) for name in names])
        elif names is None and compact and not watched:
            stat_tables.make_compact(table)
        return table

    def blocks(snapshot: ClusterSnapshot) -> Sequence[Block]:
        if not snapshot.nodes and by != "node":
            return ()
        rows = table(snapshot, by, compact=True)
        if not rows.rows and not snapshot.totals.topics:
            rows.empty = "No topics."
        elif not rows.rows and trouble:
            rows.empty = "No topic or channel is in trouble."
        if watched and by in ("topic", "channel") and len(rows.rows) == 1:
            return [rows]
        head = [Line(), Line.of(units.clock(snapshot.clock))] if watched else []
        return [*head, *([stat_tables.node_grid(snapshot.answers)] if by == "tree" else []), rows]

    code = ExitCode.OK
    looks = _examined(cluster, *watch, topic, channel) if trouble else None
    for number, snapshot in enumerate(looks or snapshots(cluster, *watch, topic, channel, clients=by == "client")):
        rows = partial(table, snapshot, "channel" if by == "tree" else by)
        output.show(snapshot.document, partial(blocks, snapshot), rows, number=number if watched else None)
        code = report(snapshot.errors)
    return code


def _examined(
    cluster: Cluster, seconds: float | None, count: int | None, topic: str, channel: str
) -> Iterator[ClusterSnapshot]:
    """Yields snapshots as `snapshots`, each with what `status` would report as in trouble."""
    commands = CommandLines(ClusterSettings(ClusterContext()))  # remedies are not shown
    interval, wait = (BRIEFLY, measure_rates) if seconds is None else (seconds, time.sleep)
    for _ in itertools.count() if seconds and not count else range(count or 1):
        examination = Examination(cluster, commands, topic=topic, channel=channel, interval=interval, wait=wait)
        snapshot = examination.after
        if examination.discovery and not snapshot.answers:
            raise examination.discovery[0]
        require(cluster, snapshot, topic, channel)
        snapshot.lookupd_errors += cluster.lookupd_errors
        snapshot.trouble = troubled(findings_of(examination))
        yield snapshot


@command(
    examples="""
        gnsqadmin tree
        gnsqadmin tree --topic orders
        gnsqadmin tree --lookupd-http-address lookup.example:4161 --json | jq '.topics[].channels[].channel_name'
    """,
    document="""
        topics   list by name: topic_name, nodes (addresses that have it), depth,
                 paused, channels
        channels list by name: channel_name, nodes, depth, in_flight_count,
                 deferred_count, paused, clients
        clients  list: node, and the keys of a client in the /stats of nsqd
    """,
)
def tree(cluster: Cluster, topic: str = "", channel: str = "") -> Shown:
    """CSV output has one row per consumer."""
    snapshot = take_snapshot(cluster, topic=topic, channel=channel, clients=True)
    require(cluster, snapshot, topic, channel)
    blocks = [table_of(TreeRow, [*_tree(snapshot)], empty="No topics.")]
    consumers = partial(stat_tables.client_table, snapshot)
    return Shown({"topics": [*_tree_document(snapshot)]}, blocks, consumers, snapshot.errors)


@dataclass(eq=False, repr=False)
class TreeRow:
    """A topic, a channel, or a consumer. What it does not have is None."""

    name: Cell = column("topic / channel / consumer")
    node: str = column("node", keep=6, tone=Tone.NODE)
    depth: int | None = column("depth", form=Form.COUNT, keep=ALWAYS)
    in_flight_count: int | None = column("in flight", "inflt", Form.COUNT, keep=ALWAYS)
    deferred_count: int | None = column("deferred", "def", Form.COUNT, keep=5)
    ready_count: Cell | int | None = column("RDY", form=Form.COUNT, keep=7)
    remote_address: str | None = column("address", keep=4, tone=Tone.FAINT)
    user_agent: str | None = column("user agent", keep=3, tone=Tone.FAINT)


def _clients(places: Mapping[Address, ChannelStats]) -> list[tuple[Address, ClientCounts]]:
    """Returns the consumers of a channel on each node that has it."""
    clients = [(address, client) for address, channel in places.items() for client in channel.clients or ()]
    return sorted(clients, key=lambda pair: (pair[1].name, pair[0], pair[1].remote_address))


def _tree(snapshot: ClusterSnapshot) -> Iterator[TreeRow]:
    for topic in snapshot.totals.topics:
        name = topic.topic_name
        title = Cell(name + " (paused)" * topic.paused, Tone.STRONG_NOTE if topic.paused else Tone.STRONG)
        yield TreeRow(title, one_or_number(snapshot.topic_shares[name]), topic.depth)
        for channel in topic.channels:
            places = snapshot.channel_shares[name, channel.channel_name]
            clients, is_last = _clients(places), channel is topic.channels[-1]
            is_lonely = channel.depth > 0 and not clients
            note = " (paused)" * channel.paused + " (no consumers)" * is_lonely
            tone = Tone.BAD if is_lonely else Tone.NOTE if channel.paused else None
            title = Cell(f"{'└─' if is_last else '├─'} {channel.channel_name}{note}", tone)
            counts = channel.depth, channel.in_flight_count, channel.deferred_count
            yield TreeRow(title, one_or_number(places), *counts)
            for index, (address, client) in enumerate(clients):
                twig = f"{' ' if is_last else '│'}  {'└─' if index == len(clients) - 1 else '├─'} "
                ready = Cell(client.ready_count, Tone.BAD if channel.depth and not client.ready_count else None)
                row = TreeRow(Cell(twig + client.name), str(address), in_flight_count=client.in_flight_count)
                row.ready_count, row.remote_address, row.user_agent = ready, client.remote_address, client.user_agent
                yield row


def _tree_document(snapshot: ClusterSnapshot) -> Iterator[dict[str, object]]:
    for topic in snapshot.totals.topics:
        name, channels = topic.topic_name, []
        for channel in topic.channels:
            places = snapshot.channel_shares[name, channel.channel_name]
            counts = {key: getattr(channel, key) for key in ("depth", "in_flight_count", "deferred_count", "paused")}
            clients = [client_document(client, address) for address, client in _clients(places)]
            channels.append({"channel_name": channel.channel_name, "nodes": [*places], **counts, "clients": clients})
        about = {"topic_name": name, "nodes": [*snapshot.topic_shares[name]], "depth": topic.depth}
        yield about | {"paused": topic.paused, "channels": channels}


@dataclass(eq=False, repr=False)
class Count:
    time: float = column("time", form=Form.TIME)
    published: int = column("published", form=Form.COUNT, keep=ALWAYS)
    delivered: int = column("delivered", form=Form.COUNT, keep=ALWAYS)
    ingress_rate: float | None = column("in/s", form=Form.RATE, keep=ALWAYS)
    egress_rate: float | None = column("finished/s", "fin/s", form=Form.RATE, keep=ALWAYS)


@command(
    examples="""
        gnsqadmin counter
        gnsqadmin counter --watch 1
        gnsqadmin counter --topic orders --watch 10 -o csv >> orders.csv
    """,
    document="""
        time       unix seconds
        published  messages that topics received since their nodes started
        delivered  messages that channels received: each message once per channel
        ingress_rate, egress_rate
                   messages per second published to topics, and finished by
                   consumers; null without --watch
    """,
)
def counter(cluster: Cluster, output: Output, watch: Watch, topic: str = "") -> int:
    code = ExitCode.OK
    for number, snapshot in enumerate(snapshots(cluster, *watch, topic)):
        delivered = sum(channel.message_count for topic in snapshot.totals.topics for channel in topic.channels)
        row = Count(snapshot.clock, snapshot.totals.message_count, delivered)
        if snapshot.flows is not None:
            row.ingress_rate, row.egress_rate, *_ = through(snapshot.flows)
        table = table_of(Count, [row], without=() if watch.interval else stat_tables.RATES)
        output.show(row, [table], number=number if watch.interval else None)
        code = report(snapshot.errors)
    return code
