"""`gnsqadmin copy`: publishes the messages of a topic to another one, in this or another cluster."""

import time
from collections.abc import Sequence

import click

from nsqadmin_cli.address import Address
from nsqadmin_cli.cluster import Cluster
from nsqadmin_cli.command import AdminOption, command
from nsqadmin_cli.completion import complete_contexts, complete_topics
from nsqadmin_cli.consumer import Consumer
from nsqadmin_cli.consuming import Source, source_options
from nsqadmin_cli.context import Context
from nsqadmin_cli.errors import AdminError
from nsqadmin_cli.options import AddressType, Name, cluster_options, output_options
from nsqadmin_cli.output import Output, report
from nsqadmin_cli.publisher import PUBLISHED, Publisher, rate_option, show_published
from nsqadmin_cli.render.progress import progress
from nsqadmin_cli.settings import ClusterSettings
from nsqadmin_cli.subscription import Received
from nsqadmin_cli.text import plural
from nsqadmin_cli.transfer import look_at_rest, transfer

_PATIENCE = 20.0  # seconds that the destination may be away; a message in flight times out after 60
_TO = "Where to"


@command(
    "copy",
    examples="""
        gnsqadmin copy orders orders_test --follow
        gnsqadmin copy orders --channel move --create --to-context new_cluster
        gnsqadmin copy orders --channel billing --to-nsqd-http-address b.example:4151
    """,
    document=f"{PUBLISHED}\n        source, channel\n                 the topic and channel they were consumed from",
)
@click.argument("topic", type=Name("topic"), shell_complete=complete_topics)
@click.argument("destination", type=Name("topic"), default=None, required=False, shell_complete=complete_topics)
@click.option(
    "--to-nsqd-http-address",
    "to_nsqds",
    cls=AdminOption,
    section=_TO,
    multiple=True,
    type=AddressType(),
    metavar="ADDRESS",
    help="HTTP address of an nsqd to publish to. Without this and the next two options, publish to the source nodes.",
)
@click.option(
    "--to-lookupd-http-address",
    "to_lookupds",
    cls=AdminOption,
    section=_TO,
    multiple=True,
    type=AddressType(),
    metavar="ADDRESS",
    help="HTTP address of an nsqlookupd, to publish to all nodes that it lists.",
)
@click.option(
    "--to-context",
    "to_context",
    cls=AdminOption,
    section=_TO,
    default="",
    metavar="NAME",
    shell_complete=complete_contexts,
    help="A saved context to publish to.",
)
@rate_option
@source_options("copy")
@cluster_options
@output_options
@click.pass_context
def copy(
    ctx: click.Context,
    cluster: Cluster,
    output: Output,
    topic: str,
    destination: str | None,
    to_nsqds: tuple[Address, ...],
    to_lookupds: tuple[Address, ...],
    to_context: str,
    rate: float,
    source: Source,
) -> None:
    """Publish the messages of TOPIC to DESTINATION, by default a topic of the same name.

    With --channel, the messages of that channel are moved until it is empty. Each is finished only after a node of the
    destination has accepted it. Messages in flight when a run ends are requeued, so there may be duplicates, but none
    is lost.

    Without --channel, messages published from now on are copied, until Ctrl-C; other channels are not affected.
    If messages arrive faster than they can be copied, some may be missing in the copy.

    A destination that cannot be reached is retried for 20 seconds. Messages get a new id and timestamp there.
    """
    target = cluster
    if to_nsqds or to_lookupds or to_context:
        told = Context(nsqd_http_address=_texts(to_nsqds), lookupd_http_address=_texts(to_lookupds))
        target = ClusterSettings(told, context_name=to_context).cluster()
    name = destination or topic
    nodes = target.nsqds()
    lookupd_errors = [] if target is cluster else target.lookupd_errors
    if name == topic and {node.address for node in nodes} & {node.address for node in cluster.nsqds()}:
        raise click.UsageError(
            "source and destination are the same: give another DESTINATION, or another cluster, as with --to-context."
        )
    publisher = Publisher(nodes, patience=_PATIENCE, rate=rate)
    channel = source.wish.channel
    started = time.monotonic()

    def deliver(messages: Sequence[Received]) -> None:
        for count in publisher.publish(name, [message.body for message in messages]):
            advance(count)

    total = source.count or (None if source.follow else look_at_rest(cluster, topic, channel).waiting or None)
    interrupted = False
    with Consumer(cluster, [topic], source.wish) as consumer:
        consumer.start(create_channel=source.create, yes=source.yes)
        with progress("copying", total) as advance:
            try:
                transfer(consumer, cluster, topic, channel, deliver, count=source.count, follow=source.follow)
            except KeyboardInterrupt:
                interrupted = True
            except AdminError as error:
                told_so_far = f"{plural(publisher.total, 'message')} copied to {name}"
                raise AdminError(f"{error}; {told_so_far}") from None
    consumer.warn()
    document = {"source": topic, "channel": channel}
    show_published(output, publisher, name, time.monotonic() - started, document)
    if interrupted:
        raise KeyboardInterrupt
    ctx.exit(report([*cluster.lookupd_errors, *lookupd_errors, *consumer.errors]))


def _texts(addresses: tuple[Address, ...]) -> tuple[str, ...]:
    return tuple(map(str, addresses))
