"""`gnsqadmin channel show`, `create`, `pause`, `unpause`, `empty` and `delete`."""

from functools import partial

from nsqadmin_cli import stat_tables
from nsqadmin_cli.api import ChannelStats
from nsqadmin_cli.cluster import Cluster
from nsqadmin_cli.command_base import command
from nsqadmin_cli.operations import Operation, lookupd_only_option, operate, operation_command, pattern_command
from nsqadmin_cli.output import Confirm, Output, report
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
def show(cluster: Cluster, output: Output, topic: str, channel: str) -> int:
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
    output.show(document, blocks, partial(stat_tables.client_table, snapshot))
    return report(snapshot.errors)


@operation_command(
    examples="""
        gnsqadmin channel create orders billing
        gnsqadmin channel create orders billing --lookupd-http-address lookup.example:4161
        gnsqadmin channel create orders billing --lookupd-only --lookupd-http-address lookup.example:4161
    """
)
def create(cluster: Cluster, output: Output, topic: str, channel: str, lookupd_only: bool = lookupd_only_option) -> int:
    """From then on, the channel queues what is published, even without consumers. Nodes that create the topic later get
    the channel from nsqlookupd."""
    return operate(cluster, output, Operation("create", topic, channel, lookupd_only=lookupd_only))


@pattern_command(examples="gnsqadmin channel pause orders billing\ngnsqadmin channel pause 'orders/*'")
def pause(cluster: Cluster, output: Output, confirm: Confirm, topic: str, channel: str) -> int:
    """New messages are queued, consumers stay connected, and messages in flight can be finished. The channel stays
    paused across restarts."""
    return operate(cluster, output, Operation("pause", topic, channel), confirm)


@pattern_command(examples="gnsqadmin channel unpause orders billing\ngnsqadmin channel unpause orders billing --json")
def unpause(cluster: Cluster, output: Output, confirm: Confirm, topic: str, channel: str) -> int:
    return operate(cluster, output, Operation("unpause", topic, channel), confirm)


@pattern_command(
    examples="""
        gnsqadmin channel empty orders billing --dry-run
        gnsqadmin channel empty 'orders/*' --dry-run
        gnsqadmin channel empty orders billing --yes --nsqd-http-address a.example:4151
    """
)
def empty(cluster: Cluster, output: Output, confirm: Confirm, topic: str, channel: str) -> int:
    """This includes messages in flight and deferred messages. Other channels keep their messages. Consumers stay
    connected, but cannot finish their messages in flight."""
    return operate(cluster, output, Operation("empty", topic, channel), confirm)


@pattern_command(
    examples="""
        gnsqadmin channel delete orders billing --dry-run
        gnsqadmin channel delete orders billing --lookupd-http-address lookup.example:4161
        gnsqadmin channel delete orders billing --yes --json
    """
)
def delete(cluster: Cluster, output: Output, confirm: Confirm, topic: str, channel: str) -> int:
    """It is deleted on all nodes and nsqlookupds, and its consumers are disconnected. A consumer that reconnects
    creates the channel again: stop the consumers first."""
    return operate(cluster, output, Operation("delete", topic, channel), confirm)
