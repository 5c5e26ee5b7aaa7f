"""`gnsqadmin tree`: topics, their channels and their consumers, over all nodes."""

from collections.abc import Iterator, Mapping

from nsqadmin_cli import stat_tables
from nsqadmin_cli.address import Address
from nsqadmin_cli.cluster import Cluster
from nsqadmin_cli.command import channel_option, command, topic_option
from nsqadmin_cli.models import ChannelStats, ClientStats
from nsqadmin_cli.output import Output, report
from nsqadmin_cli.snapshot import Snapshot, client_document, require, take_snapshot
from nsqadmin_cli.table import ALWAYS, Cell, Column, Form, Row, Table, Tone
from nsqadmin_cli.text import plural


@command(
    "tree",
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
@topic_option
@channel_option
def tree(cluster: Cluster, output: Output, topic: str, channel: str) -> int:
    """Show topics, their channels and the consumers of these, on all nodes.

    CSV output has one row per consumer.
    """
    seen = take_snapshot(cluster, topic=topic, channel=channel, clients=True)
    require(cluster, seen, topic, channel)
    output.show(
        lambda: {"topics": list(_document(seen))}, lambda: [_table(seen)], lambda: stat_tables.client_table(seen)
    )
    return report(seen.errors)


Places = Mapping[Address, ChannelStats]  # one channel on each node that has it


def _clients(places: Places) -> list[tuple[Address, ClientStats]]:
    clients = [(address, client) for address, channel in places.items() for client in channel.clients or ()]
    return sorted(clients, key=lambda pair: (pair[1].client_id, pair[0], pair[1].remote_address))


def _table(seen: Snapshot) -> Table:
    table = Table(
        (
            Column("name", "topic / channel / consumer"),
            Column("node", "node", keep=6, tone=Tone.NODE),
            Column("depth", "depth", form=Form.COUNT, keep=ALWAYS),
            Column("in_flight_count", "in flight", "inflt", Form.COUNT, keep=ALWAYS),
            Column("deferred_count", "deferred", "def", Form.COUNT, keep=5),
            Column("ready_count", "RDY", form=Form.COUNT, keep=7),
            Column("remote_address", "address", keep=4, tone=Tone.FAINT),
            Column("user_agent", "user agent", keep=3, tone=Tone.FAINT),
        ),
        empty="No topics.",
    )
    for topic in seen.totals.topics:
        name = topic.topic_name
        title = Cell(name + " (paused)" * topic.paused, Tone.STRONG_NOTE if topic.paused else Tone.STRONG)
        table.rows.append([title, _place(seen.topic_shares[name]), topic.depth, *[None] * 5])
        for index, channel in enumerate(topic.channels):
            places = seen.channel_shares[name, channel.channel_name]
            table.rows += _rows(channel, places, last=index == len(topic.channels) - 1)
    return table


def _rows(channel: ChannelStats, places: Places, *, last: bool) -> Iterator[Row]:
    """The row of one channel, and those of its consumers."""
    clients = _clients(places)
    lonely = channel.depth > 0 and not clients
    note = " (paused)" * channel.paused + " (no consumers)" * lonely
    tone = Tone.BAD if lonely else Tone.NOTE if channel.paused else None
    branch = "└─ " if last else "├─ "
    counts = [channel.depth, channel.in_flight_count, channel.deferred_count]
    yield [Cell(f"{branch}{channel.channel_name}{note}", tone), _place(places), *counts, None, None, None]
    for index, (address, client) in enumerate(clients):
        twig = ("   " if last else "│  ") + ("└─ " if index == len(clients) - 1 else "├─ ")
        name = client.client_id or client.hostname
        ready = Cell(0, Tone.BAD) if channel.depth and not client.ready_count else client.ready_count
        numbers = [None, client.in_flight_count, None, ready]
        yield [twig + name, str(address), *numbers, client.remote_address, client.user_agent]


def _place(nodes: Mapping[Address, object]) -> str:
    return str(next(iter(nodes))) if len(nodes) == 1 else plural(len(nodes), "node")


def _document(seen: Snapshot) -> Iterator[dict[str, object]]:
    for topic in seen.totals.topics:
        channels = []
        for channel in topic.channels:
            places = seen.channel_shares[topic.topic_name, channel.channel_name]
            channels.append(
                {
                    "channel_name": channel.channel_name,
                    "nodes": [str(address) for address in places],
                    "depth": channel.depth,
                    "in_flight_count": channel.in_flight_count,
                    "deferred_count": channel.deferred_count,
                    "paused": channel.paused,
                    "clients": [client_document(client, address) for address, client in _clients(places)],
                }
            )
        yield {
            "topic_name": topic.topic_name,
            "nodes": [str(address) for address in seen.topic_shares[topic.topic_name]],
            "depth": topic.depth,
            "paused": topic.paused,
            "channels": channels,
        }
