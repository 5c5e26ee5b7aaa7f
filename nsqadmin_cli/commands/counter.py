"""`gnsqadmin counter`: the number of messages that all topics received."""

import time

import click

from nsqadmin_cli import units
from nsqadmin_cli.cluster import Cluster
from nsqadmin_cli.command import command
from nsqadmin_cli.errors import ExitCode
from nsqadmin_cli.look import Look, every, look, require
from nsqadmin_cli.options import Duration, cluster_options, output_options, topic_option
from nsqadmin_cli.output import Output, OutputFormat, report
from nsqadmin_cli.table import ALWAYS, Column, Form, Table


@command(
    "counter",
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
@topic_option
@click.option("--watch", type=Duration(), metavar="DURATION", help="Repeat at this interval, and show rates.")
@click.option("--count", type=click.IntRange(1), metavar="N", help="Stop after N counts. Without it, Ctrl-C stops.")
@cluster_options
@output_options
@click.pass_context
def counter(
    ctx: click.Context, cluster: Cluster, output: Output, topic: str, watch: float | None, count: int | None
) -> None:
    """Count the messages of all topics on all nodes since they started."""
    if count is not None and watch is None:
        raise click.UsageError("--count requires --watch.")
    seen: Look | None = None
    code = ExitCode.OK
    for number in every(watch, count):
        seen = look(cluster, topic=topic, before=seen)
        if number == 0:
            require(cluster, seen, topic)
        _show(output, seen, number if watch else None)
        code = report(seen.errors)
    ctx.exit(code)


def _show(output: Output, seen: Look, number: int | None) -> None:
    """Print one count, the `number`th of many."""
    delivered = sum(channel.message_count for topic in seen.totals.topics for channel in topic.channels)
    ingress = egress = None
    if seen.flows is not None:
        ingress = sum(flow.ingress for (_, channel), flow in seen.flows.items() if not channel)
        egress = sum(flow.egress for (_, channel), flow in seen.flows.items() if channel)
    document = {
        "time": seen.clock,
        "published": seen.totals.message_count,
        "delivered": delivered,
        "ingress_rate": ingress,
        "egress_rate": egress,
    }
    columns = [
        Column("time", "time"),
        Column("published", "published", form=Form.COUNT, keep=ALWAYS),
        Column("delivered", "delivered", form=Form.COUNT, keep=ALWAYS),
    ]
    row: list[object] = [units.iso_time(round(seen.clock * 1000) * 1_000_000), seen.totals.message_count, delivered]
    if number is not None:
        rates = ("ingress_rate", "in/s", ingress), ("egress_rate", "out/s", egress)
        columns += [Column(key, heading, form=Form.RATE, keep=ALWAYS) for key, heading, _ in rates]
        row += [value for _, _, value in rates]
    if output.format is OutputFormat.TABLE:
        row[0] = time.strftime("%H:%M:%S", time.localtime(seen.clock))
    table = Table(columns, [row])
    if number is None:
        output.show(lambda: document, lambda: [table])
    elif output.format is OutputFormat.TABLE:
        output.show_row(table, number)
    else:
        output.show_next(lambda: document, lambda: [table])
