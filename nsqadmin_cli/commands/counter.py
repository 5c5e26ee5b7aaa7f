"""`gnsqadmin counter`: the number of messages that all topics received."""

from dataclasses import dataclass

from nsqadmin_cli.cluster import Cluster
from nsqadmin_cli.command import Watch, command, topic_option
from nsqadmin_cli.errors import ExitCode
from nsqadmin_cli.output import Output, report
from nsqadmin_cli.snapshot import Snapshot, every, require, take_snapshot
from nsqadmin_cli.table import ALWAYS, Form, shown, table_of


@dataclass(slots=True)
class Count:
    """One count of messages."""

    time: float = shown("time", form=Form.TIME)
    published: int = shown("published", form=Form.COUNT, keep=ALWAYS)
    delivered: int = shown("delivered", form=Form.COUNT, keep=ALWAYS)
    ingress_rate: float | None = shown("in/s", form=Form.RATE, keep=ALWAYS)
    egress_rate: float | None = shown("out/s", form=Form.RATE, keep=ALWAYS)


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
def counter(cluster: Cluster, output: Output, topic: str, watch: Watch) -> int:
    """Count the messages of all topics on all nodes since they started."""
    seen: Snapshot | None = None
    code = ExitCode.OK
    for number in every(*watch):
        seen = take_snapshot(cluster, topic=topic, before=seen)
        if number == 0:
            require(cluster, seen, topic)
        _show(output, seen, number if watch.interval else None)
        code = report(seen.errors)
    return code


def _show(output: Output, seen: Snapshot, number: int | None) -> None:
    """Print one count, the `number`th of many."""
    delivered = sum(channel.message_count for topic in seen.totals.topics for channel in topic.channels)
    row = Count(seen.clock, seen.totals.message_count, delivered)
    if seen.flows is not None:
        row.ingress_rate = sum(flow.ingress for (_, channel), flow in seen.flows.items() if not channel)
        row.egress_rate = sum(flow.egress for (_, channel), flow in seen.flows.items() if channel)
    without = ("ingress_rate", "egress_rate") if number is None else ()
    output.show(lambda: row, lambda: [table_of(Count, [row], without=without)], number=number)
