"""`gnsqadmin channel create`, `pause`, `unpause`, `empty` and `delete`."""

import click

from nsqadmin_cli.carry_out import DOCUMENT, carry_out
from nsqadmin_cli.cluster import Cluster
from nsqadmin_cli.command import command
from nsqadmin_cli.consent import Consent, consent_options
from nsqadmin_cli.options import channel_argument, cluster_options, output_options, topic_argument
from nsqadmin_cli.order import Order
from nsqadmin_cli.order_options import lookupd_only_option
from nsqadmin_cli.output import Output


@command(
    "create",
    examples="""
        gnsqadmin channel create orders billing
        gnsqadmin channel create orders billing --lookupd-http-address lookup.example:4161
        gnsqadmin channel create orders billing --lookupd-only --lookupd-http-address lookup.example:4161
    """,
    document=DOCUMENT,
)
@topic_argument
@channel_argument
@lookupd_only_option
@cluster_options
@output_options
@click.pass_context
def create(ctx: click.Context, cluster: Cluster, output: Output, topic: str, channel: str, lookupd_only: bool) -> None:
    """Create a channel on every node that has the topic, and at nsqlookupds.

    From then on the channel keeps what is published, though nobody consumes it yet. An nsqlookupd tells it to nodes
    that get the topic later.
    """
    carry_out(ctx, cluster, output, Order("create", topic, channel), lookupd_only=lookupd_only)


@command(
    "pause",
    examples="gnsqadmin channel pause orders billing\ngnsqadmin channel pause orders billing --json",
    document=DOCUMENT,
)
@topic_argument
@channel_argument
@cluster_options
@output_options
@click.pass_context
def pause(ctx: click.Context, cluster: Cluster, output: Output, topic: str, channel: str) -> None:
    """Stop a channel from sending messages to its consumers.

    Messages go on to gather in it, and consumers stay connected. What is in flight can be finished. It stays paused
    when its nodes are restarted.
    """
    carry_out(ctx, cluster, output, Order("pause", topic, channel))


@command(
    "unpause",
    examples="gnsqadmin channel unpause orders billing\ngnsqadmin channel unpause orders billing --json",
    document=DOCUMENT,
)
@topic_argument
@channel_argument
@cluster_options
@output_options
@click.pass_context
def unpause(ctx: click.Context, cluster: Cluster, output: Output, topic: str, channel: str) -> None:
    """Let a paused channel send messages again."""
    carry_out(ctx, cluster, output, Order("unpause", topic, channel))


@command(
    "empty",
    examples="""
        gnsqadmin channel empty orders billing --dry-run
        gnsqadmin channel empty orders billing
        gnsqadmin channel empty orders billing --yes --nsqd-http-address a.example:4151
    """,
    document=DOCUMENT,
)
@topic_argument
@channel_argument
@consent_options
@cluster_options
@output_options
@click.pass_context
def empty(ctx: click.Context, cluster: Cluster, output: Output, consent: Consent, topic: str, channel: str) -> None:
    """Throw away all messages of a channel.

    These are those that wait, those in flight and deferred ones. Other channels keep theirs, and consumers stay
    connected; what they have in flight they cannot finish any more.
    """
    carry_out(ctx, cluster, output, Order("empty", topic, channel), consent)


@command(
    "delete",
    examples="""
        gnsqadmin channel delete orders billing --dry-run
        gnsqadmin channel delete orders billing --lookupd-http-address lookup.example:4161
        gnsqadmin channel delete orders billing --yes --json
    """,
    document=DOCUMENT,
)
@topic_argument
@channel_argument
@consent_options
@cluster_options
@output_options
@click.pass_context
def delete(ctx: click.Context, cluster: Cluster, output: Output, consent: Consent, topic: str, channel: str) -> None:
    """Delete a channel with all its messages.

    It goes from all nodes and nsqlookupds, and its consumers are disconnected. A consumer that connects again creates
    the channel anew: stop the consumers first.
    """
    carry_out(ctx, cluster, output, Order("delete", topic, channel), consent)
