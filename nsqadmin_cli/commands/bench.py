"""`gnsqadmin bench`: messages per second that nodes accept and deliver, and latencies."""

from collections.abc import Iterator
from typing import Any

import click

from nsqadmin_cli import units
from nsqadmin_cli.bench_load import SMALLEST, Bar, Histogram, Load, Plan, Report
from nsqadmin_cli.cluster import Cluster, errors_of
from nsqadmin_cli.command import Duration, command, option
from nsqadmin_cli.consumer import auth_option, ephemeral_channel
from nsqadmin_cli.errors import AdminError
from nsqadmin_cli.output import Output, note, report
from nsqadmin_cli.table import ALWAYS, Block, Cell, Column, Form, Grid, Line, Paragraph, Table, Tone, table_of
from nsqadmin_cli.units import plural

_QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999}
_BAR = 36  # columns of the longest one
_BUSY = 0.85  # of a core: then it is this program that is measured


@command(
    "bench",
    examples="""
        gnsqadmin bench
        gnsqadmin bench --nsqd-http-address a.example:4151 --duration 30 --size 1000
        gnsqadmin bench --rate 500 --duration 1m
        gnsqadmin bench --publishers 8 --batch 1 --durable
        gnsqadmin bench --json | jq .delivery_latency.p99
    """,
    document="""
        seconds           duration of the measurement
        nodes             list of addresses
        topic             the topic that was created and deleted
        size, batch, publishers, consumers, window, rate
                          the options; rate is null without --rate
        published, received
                          messages accepted by nodes, and consumed meanwhile
        publish_rate, receive_rate
                          the same per second
        lost, redelivered messages that never arrived, and that arrived again
        own_cpu           fraction of a core that gnsqadmin itself used
        publish_latency   of requests, in seconds: count, mean,
                          p50, p90, p99, p999, max
        delivery_latency  of messages, from publishing to receipt: the same keys
        histogram         of delivery_latency: list of least, most (seconds), count
        errors            list of texts; the first one ends the run
    """,
)
@option("--duration", type=Duration(86400), default="5", help="Duration of the measurement.")
@option(
    "--size",
    type=click.IntRange(SMALLEST, 64 * 1024 * 1024),
    default=200,
    metavar="BYTES",
    help="Size of each message.",
)
@option(
    "--batch",
    type=click.IntRange(1, 10_000),
    help="Messages per request. [default: 100; fewer with --rate, to spread them over time]",
)
@option(
    "--rate",
    type=click.FloatRange(0, min_open=True),
    help="Messages to publish per second, in total. Without it, as many as possible.",
)
@option(
    "--publishers",
    type=click.IntRange(1, 256),
    help="Connections that publish, over HTTP. [default: 2, but at least one per node]",
)
@option(
    "--consumers",
    type=click.IntRange(0, 256),
    default=2,
    help="Connections that consume, at least one per node; 0: measure publishing only.",
)
@option(
    "--window",
    type=click.IntRange(1, 1_000_000),
    default=1000,
    help="Maximum number of published messages that are not yet received. Nodes must be able to store them in "
    "memory: see --mem-queue-size.",
)
@option("--durable", is_flag=True, help="Use a topic and channel that are not ephemeral, which overflow to disk.")
@auth_option
def bench(
    cluster: Cluster,
    output: Output,
    duration: float,
    size: int,
    batch: int | None,
    rate: float | None,
    publishers: int | None,
    consumers: int,
    window: int,
    durable: bool,
    auth_secret: str,
) -> int:
    """Measure messages per second that nodes accept and deliver, and latencies.

    Publishes to a temporary topic on every node, consumes it, and deletes it at the end. Without --rate it generates as
    much load as it can: take care with nodes in production. Publishing latency is measured per request, delivery
    latency per message, from just before publishing to receipt. Without --rate, most of the delivery latency is the
    time in the queue after up to --window other messages.

    gnsqadmin uses at most one core. If that limits the result, the last line reports it: the nodes can handle more.
    """
    nodes = cluster.nsqds()
    if not nodes:
        raise AdminError("nsqlookupd lists no nodes")
    publishers = publishers or max(2, len(nodes))
    if batch is None:
        batch = max(1, min(100, int(rate / publishers / 20))) if rate else 100
    topic = ephemeral_channel("bench")  # a name that is as good for a topic
    plan = Plan(
        topic.removesuffix("#ephemeral") if durable else topic,
        "bench" if durable else "bench#ephemeral",
        duration,
        size,
        batch,
        publishers,
        consumers,
        max(window, batch),
        rate or 0.0,
        auth_secret,
    )
    load = Load(nodes, plan, timeout=cluster.timeout, tls=cluster.http.tls)
    try:
        load.connect()
        from nsqadmin_cli.render.progress import countdown  # what it needs loads slowly

        with countdown(f"load for {plan.seconds:g} s", plan.seconds) as say:
            measured = load.run(lambda so_far: say(f"{so_far.published:,} published  {so_far.received:,} received"))
    finally:
        left = load.close()
        if durable:  # nsqlookupd keeps such a topic when its last node has deleted it
            left += errors_of(cluster.ask_lookupds(lambda lookupd: lookupd.act("delete", plan.topic)))
        for error in left:
            note(f"Warning: {error}; the topic {plan.topic} may still exist there")
    output.show(
        lambda: _document(measured, plan, [str(node) for node in nodes]),
        lambda: list(_blocks(measured, plan, len(nodes))),
        lambda: _table(measured, plan),
    )
    return report([*cluster.lookupd_errors, *measured.errors])


def _rate(count: int, measured: Report) -> float:
    return count / measured.seconds if measured.seconds else 0.0


def _latencies(histogram: Histogram) -> dict[str, float | None]:
    """Seconds; None without measurements."""
    if not histogram.count:
        return dict.fromkeys(("mean", *_QUANTILES, "max"))
    found = {key: histogram.quantile(part) for key, part in _QUANTILES.items()}
    return {"mean": histogram.mean, **found, "max": histogram.largest / 1e9}


def _document(measured: Report, plan: Plan, nodes: list[str]) -> dict[str, Any]:
    return {
        "seconds": measured.seconds,
        "nodes": nodes,
        "topic": plan.topic,
        "size": plan.size,
        "batch": plan.batch,
        "publishers": plan.publishers,
        "consumers": max(plan.consumers, len(nodes)) if plan.consumers else 0,
        "window": plan.window,
        "rate": plan.rate or None,
        "published": measured.published,
        "received": measured.received,
        "publish_rate": _rate(measured.published, measured),
        "receive_rate": _rate(measured.received, measured),
        "lost": measured.lost if plan.consumers else 0,
        "redelivered": measured.twice,
        "own_cpu": measured.cpu / measured.seconds if measured.seconds else 0.0,
        "publish_latency": {"count": measured.publishing.count, **_latencies(measured.publishing)},
        "delivery_latency": {"count": measured.delivery.count, **_latencies(measured.delivery)},
        "histogram": list(measured.delivery.bars()),
        "errors": list(map(str, measured.errors)),
    }


def _table(measured: Report, plan: Plan) -> Table:
    """A row for publishing and one for delivery."""
    columns = [
        Column("what", ""),
        Column("messages", "messages", form=Form.COUNT, keep=ALWAYS),
        Column("rate", "messages/s", "msgs/s", Form.RATE, keep=ALWAYS),
        Column("bytes_rate", "bytes/s", form=Form.BYTES, keep=6),
        Column("mean", "mean", form=Form.LATENCY, keep=3),
        *(Column(key, f"{part * 100:g} %", form=Form.LATENCY, keep=7) for key, part in _QUANTILES.items()),
        Column("max", "longest", "max", Form.LATENCY, keep=5),
    ]
    table = Table(columns)
    for what, count, histogram in (
        ("published", measured.published, measured.publishing),
        ("delivered", measured.received, measured.delivery),
    ):
        if what == "published" or plan.consumers:
            rate = _rate(count, measured)
            table.rows.append([what, count, rate, int(rate * plan.size), *_latencies(histogram).values()])
    return table


def _blocks(measured: Report, plan: Plan, nodes: int) -> Iterator[Block]:
    consumers = plural(max(plan.consumers, nodes), "consumer") if plan.consumers else "no consumer"
    pace = f"{units.rate(plan.rate)}/s" if plan.rate else "as fast as possible"
    facts = (
        ("nodes", f"{plural(nodes, 'node')}, {plural(plan.publishers, 'publisher')}, {consumers}"),
        ("messages", f"{units.size(plan.size)} each, {plan.batch:,} per request, {pace}"),
        ("measured", f"{measured.seconds:.1f} s"),
    )
    yield Grid([[Cell(name, Tone.FAINT), text] for name, text in facts])
    yield _table(measured, plan)
    if measured.delivery.count:
        yield Line.of("Latency from publishing to receipt", Tone.STRONG)
        yield _histogram(measured.delivery)
    if plan.consumers and measured.lost:
        where = "its --mem-queue-size is smaller than --window, or it failed" if not plan.durable else "a node failed"
        yield Paragraph(("", Tone.PLAIN), f"{plural(measured.lost, 'message')} lost: {where}.", Tone.BAD)
    if measured.twice:
        text = f"{plural(measured.twice, 'message')} delivered again, after the node's --msg-timeout."
        yield Paragraph(("", Tone.PLAIN), text, Tone.NOTE)
    busy = measured.cpu / measured.seconds if measured.seconds else 0.0
    if busy > _BUSY:
        text = f"gnsqadmin itself was busy {busy:.0%} of the time: the nodes can handle more than this."
        yield Paragraph(("", Tone.PLAIN), text, Tone.NOTE)


def _histogram(histogram: Histogram) -> Table:
    bars = list(histogram.bars())
    highest = max(bar.count for bar in bars)
    for bar in bars:
        bar.share = f"{bar.count / histogram.count:6.1%}"
        bar.bar = "█" * max(round(_BAR * bar.count / highest), bool(bar.count))
    return table_of(Bar, bars)
