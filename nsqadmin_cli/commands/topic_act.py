"""`gnsqadmin topic create`, `pause`, `unpause`, `empty`, `delete` and `tombstone`."""

import click

from nsqadmin_cli.address import Address
from nsqadmin_cli.api import Nsqd
from nsqadmin_cli.carry_out import DOCUMENT, ask_consent, carry_out, failures, show
from nsqadmin_cli.cluster import Cluster, producer_address
from nsqadmin_cli.command import command
from nsqadmin_cli.consent import Consent, consent_options
from nsqadmin_cli.errors import AdminError, NotFound
from nsqadmin_cli.models import Producer
from nsqadmin_cli.options import cluster_options, output_options, topic_argument
from nsqadmin_cli.order import Order, Outcome, Result, do_on_nodes, do_planned, plan_for_nodes
from nsqadmin_cli.order_options import lookupd_only_option
from nsqadmin_cli.output import Output, report
from nsqadmin_cli.text import printable


@command(
    "create",
    examples="""
        gnsqadmin topic create orders
        gnsqadmin topic create orders --nsqd-http-address a.example:4151 --nsqd-http-address b.example:4151
        gnsqadmin topic create orders --lookupd-only --lookupd-http-address lookup.example:4161
    """,
    document=DOCUMENT,
)
@topic_argument
@lookupd_only_option
@cluster_options
@output_options
@click.pass_context
def create(ctx: click.Context, cluster: Cluster, output: Output, topic: str, lookupd_only: bool) -> None:
    """Create a topic on all nodes and at nsqlookupds.

    A topic comes into being by itself when something is published to it. To create it before is useful for its
    channels, or for a topic that is to be paused from the beginning.
    """
    carry_out(ctx, cluster, output, Order("create", topic), lookupd_only=lookupd_only)


@command("pause", examples="gnsqadmin topic pause orders\ngnsqadmin topic pause orders --json", document=DOCUMENT)
@topic_argument
@cluster_options
@output_options
@click.pass_context
def pause(ctx: click.Context, cluster: Cluster, output: Output, topic: str) -> None:
    """Stop a topic from passing messages on to its channels.

    Publishers are not held up: messages gather in the topic. Channels go on with what they have. It stays paused when
    its nodes are restarted.
    """
    carry_out(ctx, cluster, output, Order("pause", topic))


@command("unpause", examples="gnsqadmin topic unpause orders\ngnsqadmin topic unpause orders --json", document=DOCUMENT)
@topic_argument
@cluster_options
@output_options
@click.pass_context
def unpause(ctx: click.Context, cluster: Cluster, output: Output, topic: str) -> None:
    """Let a paused topic pass messages on to its channels again."""
    carry_out(ctx, cluster, output, Order("unpause", topic))


@command(
    "empty",
    examples="""
        gnsqadmin topic empty orders --dry-run
        gnsqadmin topic empty orders --with-channels
        gnsqadmin topic empty orders --yes --nsqd-http-address a.example:4151
    """,
    document=DOCUMENT,
)
@topic_argument
@click.option("--with-channels", is_flag=True, help="Empty all its channels, too.")
@consent_options
@cluster_options
@output_options
@click.pass_context
def empty(
    ctx: click.Context, cluster: Cluster, output: Output, consent: Consent, topic: str, with_channels: bool
) -> None:
    """Throw away the messages that wait in a topic itself.

    These are those of a topic that is paused or has no channel; what its channels were given already they keep. See
    also gnsqadmin channel empty.
    """
    carry_out(ctx, cluster, output, Order("empty", topic, with_channels=with_channels), consent)


@command(
    "delete",
    examples="""
        gnsqadmin topic delete orders --dry-run
        gnsqadmin topic delete orders --lookupd-http-address lookup.example:4161
        gnsqadmin topic delete orders --yes --nsqd-http-address a.example:4151
    """,
    document=DOCUMENT,
)
@topic_argument
@consent_options
@cluster_options
@output_options
@click.pass_context
def delete(ctx: click.Context, cluster: Cluster, output: Output, consent: Consent, topic: str) -> None:
    """Delete a topic with its channels and all messages.

    It goes from all nodes and nsqlookupds, and its consumers are disconnected. A publisher that goes on creates the
    topic anew, and so does a consumer that connects to a node again: stop these first. To take it from one node alone,
    see gnsqadmin topic tombstone.
    """
    carry_out(ctx, cluster, output, Order("delete", topic), consent)


@command(
    "tombstone",
    examples="""
        gnsqadmin topic tombstone orders a.example:4151 --lookupd-http-address lookup.example:4161
        gnsqadmin topic tombstone orders a.example:4151 --delete --lookupd-http-address lookup.example:4161
    """,
    document=DOCUMENT,
)
@topic_argument
@click.argument("node")
@click.option(
    "--delete", "with_delete", is_flag=True, help="Then delete the topic on the node, as nsqadmin's Tombstone does."
)
@consent_options
@cluster_options
@output_options
@click.pass_context
def tombstone(
    ctx: click.Context,
    cluster: Cluster,
    output: Output,
    consent: Consent,
    topic: str,
    node: str,
    with_delete: bool,
) -> None:
    """Hide one node from the consumers of a topic.

    nsqlookupds then send them there no more. Publishers have to stop first. With --delete the topic is then deleted on
    the node with all that it holds there; without, consumers that are connected go on. A node is told as nsqlookupd
    lists it, {broadcast address}:{HTTP port}.

    After a while (--tombstone-lifetime of nsqlookupd, 45 seconds) nsqlookupd forgets that it has to hide the node; if
    that still has the topic then, consumers are sent there again.
    """
    if not cluster.lookupds:
        raise click.UsageError("tombstones are kept by nsqlookupd: tell it by --lookupd-http-address.")
    found = _find(cluster.producers(), node, topic)
    name = f"{found.broadcast_address}:{found.http_port}"
    order = Order("delete", topic)
    nodes = [_node(cluster, found)] if with_delete else []
    outcomes = plan_for_nodes(cluster, order, nodes)
    hidden = [Outcome(lookupd, Result.PLANNED) for lookupd in cluster.lookupds]
    errors = cluster.lookupd_errors
    if not consent.dry_run:
        if with_delete:
            ask_consent(consent, order, outcomes, [])
        do_planned(cluster, hidden, lambda lookupd: lookupd.tombstone(topic, name))
        do_on_nodes(cluster, order, outcomes)
    show(output, order, outcomes, hidden, dry_run=consent.dry_run, lookupd_action="tombstone")
    ctx.exit(report([*errors, *failures(outcomes, hidden, errors)]))


def _find(producers: list[Producer], node: str, topic: str) -> Producer:
    """The node that is meant, which has the topic; NotFound."""
    matching = [producer for producer in producers if node in _names(producer)]
    if not matching:
        known = ", ".join(f"{one.broadcast_address}:{one.http_port}" for one in producers) or "none"
        raise NotFound(f"nsqlookupd lists no node {printable(node)}; there: {printable(known, 1000)}")
    if topic not in matching[0].topics:
        raise NotFound(f"the node {printable(node)} has not registered the topic {topic} at nsqlookupd")
    return matching[0]


def _node(cluster: Cluster, producer: Producer) -> Nsqd:
    try:
        return Nsqd(producer_address(producer), cluster.http)
    except ValueError as error:
        raise AdminError(f"nsqlookupd lists a node at {error}") from None


def _names(producer: Producer) -> set[str]:
    """How a node may be told."""
    names = {f"{producer.broadcast_address}:{producer.http_port}"}
    try:
        address: Address = producer_address(producer)
    except ValueError:
        return names
    return names | {str(address), f"http://{address}"}
