"""`gnsqadmin channel show`, `create`, `pause`, `unpause`, `empty` and `delete`."""

from functools import partial

from nsqadmin_cli import stat_tables
from nsqadmin_cli.api import ChannelStats
from nsqadmin_cli.change import Shown
from nsqadmin_cli.cluster import Cluster
from nsqadmin_cli.command_base import command
from nsqadmin_cli.operations import commands_of
from nsqadmin_cli.snapshot import client_document, no_such, take_snapshot
from nsqadmin_cli.table import Block, Cell, Grid, Line, Tone, as_json, described
from nsqadmin_cli.units import plural


@command(
    examples="""
        gnsqadmin channel show orders billing
        gnsqadmin channel show orders billing -o csv
        gnsqadmin channel show orders billing --json | jq '.clients[] | select(.ready_count == 0)'
    """,
    document=(
        "topic_name",
        described("(others)", "counts are summed over nodes, paused is of any node", ChannelStats),
        """
        clients  list: node, and the keys of a client in the /stats of nsqd
        nodes    list: address, error (null, or why it has no numbers), channel (the
                 keys above, or null where the node does not have it)
        """,
    ),
)
def show(cluster: Cluster, topic: str, channel: str) -> Shown:
    """CSV output has one row per consumer."""
    snapshot = take_snapshot(cluster, topic=topic, channel=channel, clients=True)
    if (topic, channel) not in snapshot.channel_shares:
        raise no_such(cluster, snapshot.errors, topic, channel)
    whole, shares = snapshot.totals.topics[0].channels[0], snapshot.channel_shares[topic, channel]
    clients = [client_document(client, address) for address, share in shares.items() for client in share.clients or ()]
    document = {"topic_name": topic, **as_json(whole), "clients": clients}
    facts = {"channel": Cell(channel, Tone.STRONG), "topic": topic, **stat_tables.common_facts(whole, shares)}
    table = stat_tables.client_table(snapshot, with_places=False)
    table.empty = "No consumers." if not whole.depth else "No consumers: its messages are not consumed."
    count = Line.of(plural(len(table.rows), "consumer"), Tone.STRONG)
    document["nodes"] = stat_tables.share_documents(snapshot, shares, "channel")
    blocks: list[Block] = [Grid.of(facts), stat_tables.share_table(snapshot, shares, whole), count, table]
    return Shown(document, blocks, partial(stat_tables.client_table, snapshot), snapshot.errors)


create, pause, unpause, empty, delete = commands_of("channel")
