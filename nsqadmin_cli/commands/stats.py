"""`gnsqadmin stats`: statistics of topics, channels, clients and nodes, once or at an interval."""

from collections.abc import Callable, Sequence

import click

from nsqadmin_cli import stat_tables, units
from nsqadmin_cli.cluster import Cluster
from nsqadmin_cli.command import Watch, channel_option, command, topic_option
from nsqadmin_cli.errors import ExitCode
from nsqadmin_cli.output import Output, report
from nsqadmin_cli.snapshot import Snapshot, every, require, stats_document, take_snapshot
from nsqadmin_cli.table import Block, Line, Table


@command(
    "stats",
    examples="""
        gnsqadmin stats
        gnsqadmin stats --nsqd-http-address a.example:4151 --nsqd-http-address b.example:4151
        gnsqadmin stats --lookupd-http-address lookup.example:4161 --by channel -o csv
        gnsqadmin stats --topic orders --channel billing --by channel --watch 2
        gnsqadmin stats --topic orders --json | jq .totals.depth
    """,
    document="""
        time     unix seconds
        nodes    list, in the order asked: address, error (null, or why this node
                 has no numbers), version, health ("OK" or "NOK - ..."; both null
                 after an error), start_time (unix seconds or null), topics, producers
        totals   the sums over all nodes: topic_count, channel_count, depth,
                 backend_depth, in_flight_count, deferred_count, message_count,
                 message_bytes, requeue_count, timeout_count, client_count, topics
        topics   list by name: topic_name, depth, backend_depth, message_count,
                 message_bytes, paused, e2e_processing_latency, channels
        channels list by name: channel_name, depth, backend_depth,
                 in_flight_count, deferred_count, message_count, requeue_count,
                 timeout_count, client_count, paused, e2e_processing_latency, clients
        clients  null without --by client and in totals, else as in /stats
        flows    null, or with --watch since the last document: list of topic,
                 channel (empty: the topic itself), ingress_rate, egress_rate
        Other keys are those of nsqd's /stats. In totals, paused means on any
        node, and latencies are those of the slowest node.
        With --watch there is one document per line.
    """,
)
@topic_option
@channel_option
@click.option(
    "--by",
    type=click.Choice(["tree", "topic", "channel", "client", "node"]),
    default="tree",
    show_default=True,
    help="Rows: topics with their channels on each node, or only one of these.",
)
def stats(
    cluster: Cluster,
    output: Output,
    topic: str,
    channel: str,
    by: str,
    watch: Watch,
) -> int:
    """Show the depths, counts and clients of topics and channels.

    A topic's depth counts messages that it has not passed to its channels yet; a channel's depth counts messages not
    sent to clients yet, without messages in flight and deferred messages. "In memory" and "on disk" are the two parts
    of depth. If several nodes have a topic or channel, its line is the sum, and a line for each node follows. The last
    line is the sum of the depths of topics and channels, and of messages published to topics.

    With --watch, in/s is the rate of published messages, and out/s that of messages finished by a channel's clients, or
    passed to all channels of a topic.

    On a narrow terminal, headings are those of nsq_stat and numbers are rounded down (12.3k).

    A node that does not answer causes one line on standard error and exit code 1; the others are still shown.
    """
    seen: Snapshot | None = None
    code = ExitCode.OK
    for number in every(*watch):
        seen = take_snapshot(cluster, topic=topic, channel=channel, clients=by == "client", before=seen)
        if number == 0:
            require(cluster, seen, topic, channel)
        code = _show(output, seen, by, number if watch.interval else None)
    return code


def _show(output: Output, seen: Snapshot, by: str, number: int | None) -> ExitCode:
    """Print one snapshot; `number` counts those of a watch."""
    watched = number is not None
    tables: dict[str, Callable[[], Table]] = {
        "tree": lambda: stat_tables.tree_table(seen, watched=watched),
        "topic": lambda: stat_tables.topic_table(seen, watched=watched),
        "channel": lambda: stat_tables.channel_table(seen, watched=watched),
        "client": lambda: stat_tables.client_table(seen),
        "node": lambda: stat_tables.node_table(seen),
    }

    def blocks() -> Sequence[Block]:
        if not seen.nodes and by != "node":
            return ()
        table = tables[by]()
        if not table.rows and not seen.totals.topics:
            table.empty = "No topics."
        if watched and by in ("topic", "channel") and len(table.rows) == 1:
            return [table]
        head = [Line(), Line.of(units.clock(seen.clock))] if watched else []
        return [*head, *([stat_tables.node_grid(seen.answers)] if by == "tree" else []), table]

    output.show(lambda: stats_document(seen), blocks, tables["channel" if by == "tree" else by], number=number)
    return report(seen.errors)
