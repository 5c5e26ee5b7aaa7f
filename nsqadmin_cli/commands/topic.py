"""`gnsqadmin topic show`, `create`, `pause`, `unpause`, `empty`, `delete` and `tombstone`."""

from typing import Any

import click

from nsqadmin_cli import stat_tables
from nsqadmin_cli.api import Nsqd, Producer, located
from nsqadmin_cli.cluster import Cluster
from nsqadmin_cli.command import command, option
from nsqadmin_cli.errors import AdminError, NotFound
from nsqadmin_cli.http_client import NodeError, Refused
from nsqadmin_cli.operations import (
    Operation,
    Outcome,
    Result,
    Work,
    do_on_nodes,
    do_planned,
    is_listed,
    lookupd_only_option,
    operate,
    operation_command,
    pattern_command,
    plan_for_nodes,
)
from nsqadmin_cli.output import Confirm, Output, not_found, report
from nsqadmin_cli.snapshot import Snapshot, no_such, take_snapshot
from nsqadmin_cli.table import Block, Cell, Grid, Line, Tone, as_json
from nsqadmin_cli.units import plural, printable


@command(
    "show",
    examples="""
        gnsqadmin topic show orders
        gnsqadmin topic show orders --lookupd-http-address lookup.example:4161
        gnsqadmin topic show orders --json | jq '.channels[] | {channel_name, depth}'
    """,
    document="""
        topic_name, depth, backend_depth, message_count, message_bytes, paused (on
        any node), e2e_processing_latency, channels: summed over nodes
        nodes    list: address, error (null, or why it has no numbers), found (whether
                 an nsqlookupd sends consumers there; null without nsqlookupds),
                 topic (the keys above, or null where the node does not have it)
    """,
)
def show(cluster: Cluster, output: Output, topic: str) -> int:
    """Show one topic: its counts, nodes and channels.

    With nsqlookupds, a node is marked if they do not return it to consumers: the topic is tombstoned there, or the node
    is not registered.
    """
    seen = take_snapshot(cluster, topic=topic)
    found, errors = _found(cluster, topic)
    if topic not in seen.topic_shares:
        known = found is not None and not errors and is_listed(cluster, topic)
        more = ", but nsqlookupd still lists it: gnsqadmin topic delete removes it there"
        if known:
            raise not_found(f"the topic {topic}{more}", seen.errors)
        raise no_such(cluster, [*seen.errors, *errors], topic)
    output.show(
        lambda: _document(seen, topic, found),
        lambda: _blocks(seen, topic, found),
        lambda: stat_tables.share_table(seen, seen.topic_shares[topic], seen.totals.topics[0]),
    )
    return report([*seen.errors, *errors])


def _found(cluster: Cluster, topic: str) -> tuple[set[str] | None, list[NodeError]]:
    """The addresses that nsqlookupds send consumers of the topic to, None without nsqlookupds; and their errors."""
    if not cluster.lookupds:
        return None, []
    found: set[str] = set()
    errors: list[NodeError] = []
    for answer in cluster.ask_lookupds(lambda lookupd: lookupd.lookup(topic)).values():
        if not isinstance(answer, NodeError):
            found |= {str(address) for address, _ in located(answer)}
        elif not (isinstance(answer, Refused) and answer.code == "TOPIC_NOT_FOUND"):
            errors.append(answer)
    return found, errors


def _blocks(seen: Snapshot, topic: str, found: set[str] | None) -> list[Block]:
    whole = seen.totals.topics[0]
    shares = seen.topic_shares[topic]
    facts = Grid([[Cell("topic", Tone.FAINT), Cell(topic, Tone.STRONG)]])
    facts.rows += stat_tables.topic_facts(whole, shares)
    lost = [str(address) for address in shares if found is not None and str(address) not in found]
    if lost:
        text = f"nsqlookupd does not send consumers to {', '.join(lost)}"
        facts.rows.append([Cell("not found", Tone.FAINT), Cell(text, Tone.NOTE)])
    blocks: list[Block] = [facts, stat_tables.share_table(seen, shares, whole)]
    channels = stat_tables.channel_table(seen, with_topic=False)
    channels.empty = "No channels: messages are queued in the topic until there is one."
    return [*blocks, Line.of(plural(len(channels.rows), "channel"), Tone.STRONG), channels]


def _document(seen: Snapshot, topic: str, found: set[str] | None) -> dict[str, Any]:
    nodes = stat_tables.share_documents(
        seen, seen.topic_shares[topic], "topic", found=lambda at: None if found is None else str(at) in found
    )
    return {**as_json(seen.totals.topics[0]), "nodes": nodes}


@operation_command(
    "create",
    examples="""
        gnsqadmin topic create orders
        gnsqadmin topic create orders --nsqd-http-address a.example:4151 --nsqd-http-address b.example:4151
        gnsqadmin topic create orders --lookupd-only --lookupd-http-address lookup.example:4161
    """,
)
@lookupd_only_option
def create(cluster: Cluster, output: Output, topic: str, lookupd_only: bool) -> int:
    """Create a topic on all nodes and at nsqlookupds.

    Publishing creates a topic automatically. Create it explicitly to add channels or pause it before the first message.
    """
    return operate(cluster, output, Operation("create", topic), lookupd_only=lookupd_only)


@pattern_command("pause", examples="gnsqadmin topic pause orders\ngnsqadmin topic pause 'orders*'")
def pause(cluster: Cluster, output: Output, confirm: Confirm, topic: str) -> int:
    """Stop a topic from passing messages to its channels.

    Publishers are not affected: messages are queued in the topic. Channels continue with the messages they have. The
    topic stays paused across restarts.
    """
    return operate(cluster, output, Operation("pause", topic), confirm)


@pattern_command("unpause", examples="gnsqadmin topic unpause orders\ngnsqadmin topic unpause orders --json")
def unpause(cluster: Cluster, output: Output, confirm: Confirm, topic: str) -> int:
    """Let a paused topic pass messages to its channels again."""
    return operate(cluster, output, Operation("unpause", topic), confirm)


@pattern_command(
    "empty",
    examples="""
        gnsqadmin topic empty orders --dry-run
        gnsqadmin topic empty orders --with-channels
        gnsqadmin topic empty orders --yes --nsqd-http-address a.example:4151
    """,
)
@option("--with-channels", is_flag=True, help="Also empty all its channels.")
def empty(cluster: Cluster, output: Output, confirm: Confirm, topic: str, with_channels: bool) -> int:
    """Discard the messages in a topic's own queue.

    A topic has such messages if it is paused or has no channel. Its channels keep their messages; see also gnsqadmin
    channel empty.
    """
    return operate(cluster, output, Operation("empty", topic, with_channels=with_channels), confirm)


@pattern_command(
    "delete",
    examples="""
        gnsqadmin topic delete orders --dry-run
        gnsqadmin topic delete orders --lookupd-http-address lookup.example:4161
        gnsqadmin topic delete orders --yes --nsqd-http-address a.example:4151
    """,
)
def delete(cluster: Cluster, output: Output, confirm: Confirm, topic: str) -> int:
    """Delete a topic with its channels and all messages.

    It is deleted on all nodes and nsqlookupds, and its consumers are disconnected. Publishers, and consumers that
    reconnect, create the topic again: stop them first. To delete it on one node only, see gnsqadmin topic tombstone.
    """
    return operate(cluster, output, Operation("delete", topic), confirm)


@operation_command(
    "tombstone",
    examples="""
        gnsqadmin topic tombstone orders a.example:4151 --lookupd-http-address lookup.example:4161
        gnsqadmin topic tombstone orders a.example:4151 --delete --lookupd-http-address lookup.example:4161
    """,
)
@click.argument("node")
@option(
    "--delete", "with_delete", is_flag=True, help="Also delete the topic on the node, as nsqadmin's Tombstone does."
)
def tombstone(
    cluster: Cluster,
    output: Output,
    confirm: Confirm,
    topic: str,
    node: str,
    with_delete: bool,
) -> int:
    """Hide one node from the consumers of a topic.

    nsqlookupds no longer send consumers there. Stop publishers first. With --delete, the topic and all its messages on
    the node are then deleted. Without --delete, connected consumers continue. NODE is {broadcast address}:{HTTP port},
    as nsqlookupd lists it.

    A tombstone expires (--tombstone-lifetime of nsqlookupd, 45 seconds); if the node still has the topic then,
    consumers are sent there again.
    """
    if not cluster.lookupds:
        raise click.UsageError("tombstones are kept by nsqlookupd: give it by --lookupd-http-address.")
    found = _find(cluster.producers(), node, topic)
    operation = Operation("delete", topic)
    nodes = [_node(cluster, found)] if with_delete else []
    hidden = [Outcome(lookupd, Result.PLANNED) for lookupd in cluster.lookupds]
    work = Work(operation, plan_for_nodes(cluster, operation, nodes), hidden, "tombstone")
    errors = cluster.lookupd_errors
    if not confirm.dry_run:
        if with_delete:
            Work(operation, work.nodes, ()).confirm(confirm)
        do_planned(cluster, hidden, lambda lookupd: lookupd.tombstone(topic, found.name))
        do_on_nodes(cluster, operation, work.nodes)
    work.show(output, dry_run=confirm.dry_run)
    return report([*errors, *work.failures(errors)])


def _find(producers: list[Producer], node: str, topic: str) -> Producer:
    """The node with this name, which must have the topic; NotFound."""
    matching = [producer for producer in producers if node in _names(producer)]
    if not matching:
        known = ", ".join(one.name for one in producers) or "none"
        raise NotFound(f"nsqlookupd does not list the node {printable(node)}; it lists: {printable(known, 1000)}")
    if topic not in matching[0].topics:
        raise NotFound(f"the node {printable(node)} has not registered the topic {topic} at nsqlookupd")
    return matching[0]


def _node(cluster: Cluster, producer: Producer) -> Nsqd:
    try:
        return Nsqd(producer.http_address, cluster.http)
    except ValueError as error:
        raise AdminError(f"nsqlookupd lists a node at {error}") from None


def _names(producer: Producer) -> set[str]:
    """The names of a node."""
    return {producer.name} | {
        name for address, _ in located([producer]) for name in (str(address), f"http://{address}")
    }
