"""`gnsqadmin topic show`, `create`, `pause`, `unpause`, `empty`, `delete` and `tombstone`."""

from dataclasses import dataclass
from functools import partial

import click
from msgspec import Struct

from nsqadmin_cli import operations, stat_tables
from nsqadmin_cli.api import Count, Nsqd, located
from nsqadmin_cli.change import Change, Shown
from nsqadmin_cli.cluster import Cluster, errors_of, values_of
from nsqadmin_cli.command_base import Name, argument, change_command, command, flag, option
from nsqadmin_cli.http_client import NodeError, NodeRefused
from nsqadmin_cli.output import not_found
from nsqadmin_cli.ranges import RangeRow, get_range
from nsqadmin_cli.snapshot import ask_holders, no_such, shown_rows, take_snapshot
from nsqadmin_cli.table import Block, Cell, Form, Grid, Line, Tone, as_json, column, described, table_of
from nsqadmin_cli.units import plural, seconds_of


class _Retention(Struct, frozen=True, gc=False):
    bytes: Count
    time: Count  # ns, 0 without a limit
    messages: Count
    since: Count | None  # ns
    used: Count | None = None  # an older gnsqd has no such key


@dataclass(slots=True)
class RetentionRow:
    """The messages that a node keeps of a topic, so that channels can be rewound."""

    address: str = column("node", key="node", tone=Tone.NODE)
    bytes: int = column("at most", form=Form.BYTES, help="limit of finished messages")
    time: float | None = column("for at most", form=Form.DURATION, help="limit in seconds, or null")
    messages: int = column("messages", form=Form.COUNT)
    used: int | None = column("used", form=Form.BYTES, help="bytes of the journal that has them, or null")
    since: float | None = column("since", form=Form.TIME, help="unix seconds when the first was published, or null")


@command(
    examples="""
        gnsqadmin topic show orders
        gnsqadmin topic show orders --lookupd-http-address lookup.example:4161
        gnsqadmin topic show orders --json | jq '.channels[] | {channel_name, depth}'
    """,
    document=(
        """
        topic_name, depth, backend_depth, message_count, message_bytes, paused (on
        any node), e2e_processing_latency, channels: summed over nodes
        nodes    list: address, error (null, or why it has no numbers), found (whether
                 an nsqlookupd sends consumers there; null without nsqlookupds),
                 topic (the keys above, or null where the node does not have it)
        """,
        described("kept", "list, of nodes that keep messages for a rewind", RetentionRow),
    ),
)
def show(cluster: Cluster, topic: str) -> Shown:
    """With nsqlookupds, a node is marked if they do not return it to consumers: the topic is tombstoned there, or the
    node is not registered. If gnsqd keeps the messages of the topic for a rewind, a table shows how many, and the
    limits."""
    snapshot = take_snapshot(cluster, topic=topic)
    listed, errors = _listed_addresses(cluster, topic)
    if topic not in snapshot.topic_shares:
        if listed is not None and not errors and operations.is_listed(cluster, topic):
            more = "but nsqlookupd still lists it: gnsqadmin topic delete removes it there"
            raise not_found(f"the topic {topic}, {more}", snapshot.errors)
        raise no_such(cluster, [*snapshot.errors, *errors], topic)
    whole, shares = snapshot.totals.topics[0], snapshot.topic_shares[topic]
    facts = {"topic": Cell(topic, Tone.STRONG), **stat_tables.topic_facts(whole, shares)}
    if lost := [str(address) for address in shares if listed is not None and str(address) not in listed]:
        facts["not found"] = Cell(f"nsqlookupd does not send consumers to {', '.join(lost)}", Tone.NOTE)
    channels = stat_tables.channel_table(snapshot, with_topic=False)
    channels.empty = "No channels: messages are queued in the topic until there is one."
    count = Line.of(plural(len(channels.rows), "channel"), Tone.STRONG)
    nodes = stat_tables.share_documents(
        snapshot, shares, "topic", found=lambda at: None if listed is None else str(at) in listed
    )
    table = stat_tables.share_table(snapshot, shares, whole)
    kept, failures = _retention(cluster, topic, [Nsqd(address, cluster.http) for address in shares])
    blocks: list[Block] = [Grid.of(facts), table, count, channels]
    if kept:
        blocks += [Line.of("Kept for a rewind", Tone.STRONG), table_of(RetentionRow, kept, total="all")]
    document = {**as_json(whole), "nodes": nodes, "kept": kept}
    return Shown(document, blocks, table, [*snapshot.errors, *errors, *failures])


def _retention(cluster: Cluster, topic: str, nodes: list[Nsqd]) -> tuple[list[RetentionRow], list[NodeError]]:
    """Returns what these nodes keep, without nodes that keep nothing or cannot, and errors of the others."""
    asked = cluster.ask(lambda node: node.ask("/topic/retention", _Retention, {"topic": topic}), nodes)
    errors = [error for error in errors_of(asked) if not isinstance(error, NodeRefused)]
    rows = [
        RetentionRow(str(at), kept.bytes, kept.time / 1e9 or None, kept.messages, kept.used, seconds_of(kept.since))
        for at, kept in values_of(asked).items()
        if kept.bytes
    ]
    return rows, errors


@command(
    examples="""
        gnsqadmin topic range orders
        gnsqadmin topic range orders --at -15m
        gnsqadmin topic range orders --channel billing --json | jq '.nodes[].lag'
    """,
    document=("topic, channel (or null), at (or null)", described("nodes", "list, in the order queried", RangeRow)),
)
def range_(
    cluster: Cluster,
    topic: str,
    at: str | None = option("Also show the number at this POINT.", metavar="POINT"),
    channel: str | None = option("Also show how far this channel has read.", Name("channel")),
) -> Shown:
    """A gnsqd with --durability numbers the messages of each topic, in the order in which they were published, and any
    program can read those it has kept as often as it likes. POINT is a number, a time ago (-15m), a time with its zone
    (2026-11-23T14:00:00Z), the id of a message, "first" or "next"."""
    question = partial(get_range, topic=topic, at=at, channel=channel)
    answers = ask_holders(cluster, question, topic, channel or "", at or "")
    return shown_rows(cluster, {"topic": topic, "channel": channel, "at": at}, RangeRow, answers, "all")


def _listed_addresses(cluster: Cluster, topic: str) -> tuple[set[str] | None, list[NodeError]]:
    """Returns the addresses that nsqlookupds send consumers to, None without nsqlookupds, and the errors of these."""
    if not cluster.lookupds:
        return None, []
    addresses: set[str] = set()
    errors: list[NodeError] = []
    for answer in cluster.ask_lookupds(lambda lookupd: lookupd.lookup(topic)).values():
        if not isinstance(answer, NodeError):
            addresses |= {str(address) for address, _ in located(answer)}
        elif not (isinstance(answer, NodeRefused) and answer.code == "TOPIC_NOT_FOUND"):
            errors.append(answer)
    return addresses, errors


create, pause, unpause, empty, delete = operations.commands_of("topic")


@change_command(
    document=operations.DOCUMENT,
    examples="""
        gnsqadmin topic tombstone orders a.example:4151 --lookupd-http-address lookup.example:4161
        gnsqadmin topic tombstone orders a.example:4151 --delete --lookupd-http-address lookup.example:4161
    """,
)
def tombstone(
    cluster: Cluster,
    topic: str,
    node: str = argument(),
    with_delete: bool = flag("Also delete the topic on the node, as nsqadmin's Tombstone does.", "--delete"),
) -> Change:
    """nsqlookupds no longer send consumers there. Stop publishers first. With --delete, the topic and all its messages
    on the node are then deleted. Without --delete, connected consumers continue. NODE is {broadcast address}:{HTTP
    port}, as nsqlookupd lists it.

    A tombstone expires (--tombstone-lifetime of nsqlookupd, 45 seconds); if the node still has the topic then,
    consumers are sent there again.
    """
    if not cluster.lookupds:
        raise click.UsageError("tombstones are kept by nsqlookupd: give it by --lookupd-http-address.")
    return operations.tombstone(cluster, topic, node, with_delete=with_delete)
