"""`gnsqadmin events`: what changes in a cluster, as it happens."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass

import click

from nsqadmin_cli import units
from nsqadmin_cli.api import NodeStats
from nsqadmin_cli.cluster import Cluster
from nsqadmin_cli.command_base import command, duration, option
from nsqadmin_cli.http_client import Address, NodeError
from nsqadmin_cli.output import Output, is_terminal, note, report
from nsqadmin_cli.snapshot import ClusterSnapshot, by_key, snapshots
from nsqadmin_cli.table import ALWAYS, Form, Line, Tone, column, described, table_of
from nsqadmin_cli.units import plural

_EVENTS = "connected, disconnected, created, vanished, paused, unpaused, failed, answers, restarted"
_TONES = {"disconnected": Tone.NOTE, "vanished": Tone.NOTE, "paused": Tone.NOTE, "failed": Tone.BAD}

Answer = NodeStats | NodeError | None  # None: the node is not listed


@dataclass(slots=True)
class ClusterEvent:
    """One change. `time` is that of the snapshot which found it."""

    time: float = column("time", form=Form.TIME)
    event: str = column("event", keep=ALWAYS, help=_EVENTS)
    topic: str = column("topic", null=True, keep=ALWAYS)
    channel: str = column("channel", null=True, keep=ALWAYS)
    node: str = column("node", keep=ALWAYS, tone=Tone.NODE)
    detail: str = column("detail", null=True, keep=ALWAYS, help="the consumer, or the reason")

    def line(self) -> Line:
        """Returns 13:45:07  connected  orders/billing  a.example:4151  worker-1 (10.0.0.7:51234)."""
        place = "/".join(filter(None, (self.topic, self.channel)))
        tone = _TONES.get(self.event, Tone.GOOD)
        parts = [(units.clock(self.time), Tone.FAINT), (self.event.ljust(12), tone), (place, Tone.STRONG)]
        parts += [(self.node, Tone.NODE), (self.detail, Tone.PLAIN)]
        return Line(tuple(part for text, tone in parts if text for part in ((text, tone), ("  ", Tone.PLAIN)))[:-1])


@command(
    examples="""
        gnsqadmin events
        gnsqadmin events --topic orders --interval 0.5
        gnsqadmin events --json | jq -c 'select(.event == "disconnected")'
    """,
    document=(described("(a line)", "for each event", ClusterEvent),),
)
def events(
    cluster: Cluster,
    output: Output,
    topic: str = "",
    channel: str = "",
    interval: float = option("Time between two snapshots.", duration(3600), default="1"),
    count: int | None = option("Stop after N snapshots. Without it, Ctrl-C stops.", click.IntRange(1)),
) -> None:
    """Consumers connect and disconnect; topics and channels are created, paused, unpaused or vanish; nodes fail, answer
    again or were restarted. Snapshots are compared, so something that comes and goes between two of them is not
    seen."""
    before: ClusterSnapshot | None = None
    number = 0
    for snapshot in snapshots(cluster, interval, count, topic, channel, clients=True):
        if before is None:
            report(snapshot.errors)
            if is_terminal(sys.stderr):
                note(f"Watching {plural(len(snapshot.nodes), 'node')}. Ctrl-C ends it.")
        then = before.answers if before else snapshot.answers
        for address in {**then, **snapshot.answers}:
            for event in _of_node(snapshot.clock, address, then.get(address), snapshot.answers.get(address)):
                output.show(event, [event.line()], table_of(ClusterEvent, [event]), number=number)
                number += 1
        before = snapshot


def _of_node(clock: float, address: Address, then: Answer, now: Answer) -> Iterator[ClusterEvent]:
    name = str(address)
    if not isinstance(now, NodeStats):
        if isinstance(then, NodeStats):
            yield ClusterEvent(clock, "failed", "", "", name, "not listed any more" if now is None else now.reason)
        return
    if not isinstance(then, NodeStats):
        yield ClusterEvent(clock, "answers", "", "", name, f"nsqd {now.version}")
        return
    if now.start_time != then.start_time:
        yield ClusterEvent(clock, "restarted", "", "", name, f"nsqd {now.version}")
    old, new = ({key: row.paused for key, row in by_key(node).items()} for node in (then, now))
    for topic, channel in sorted({*old, *new}):
        key = topic, channel
        if key not in new:
            yield ClusterEvent(clock, "vanished", *key, name)
        elif key not in old:
            yield ClusterEvent(clock, "created", *key, name, "paused" if new[key] else "")
        elif old[key] != new[key]:
            yield ClusterEvent(clock, "paused" if new[key] else "unpaused", *key, name)
    gone, come = then.connections(), now.connections()
    for event, these, others in (("disconnected", gone, come), ("connected", come, gone)):
        for at in sorted(these.keys() - others.keys()):
            client = these[at]
            yield ClusterEvent(clock, event, at[0], at[1], name, client.full_name)
