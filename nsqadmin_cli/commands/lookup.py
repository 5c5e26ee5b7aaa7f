"""`gnsqadmin lookup`: lists the topics of nsqlookupds, also those without a node."""

from dataclasses import dataclass
from functools import partial

import click

from nsqadmin_cli.api import Lookupd
from nsqadmin_cli.cluster import Cluster, errors_of, values_of
from nsqadmin_cli.command import command
from nsqadmin_cli.http_client import NodeError
from nsqadmin_cli.models import Producer
from nsqadmin_cli.output import Output, report
from nsqadmin_cli.table import ALWAYS, Cell, Form, Tone, as_json, described, shown, table_of, told


@dataclass(slots=True)
class Listed:
    """A topic as the nsqlookupds list it; nodes are `{broadcast address}:{HTTP port}`."""

    topic_name: str = shown("topic", key="topic")
    nodes: set[str] = told("where consumers are sent", default_factory=set)
    tombstoned: set[str] = told("nodes hidden from consumers", default_factory=set)
    channels: set[str] | None = told("null except for topics without a node", default_factory=set)
    node_count: int = shown("nodes", form=Form.COUNT, keep=ALWAYS, json=False)
    tombstoned_count: int = shown("tombstoned", "tomb", Form.COUNT, keep=6, json=False)
    state: Cell | None = shown("", keep=ALWAYS, json=False)

    @property
    def has_node(self) -> bool:
        return bool(self.nodes or self.tombstoned)

    def complete(self) -> None:
        """Derive the rest when all nodes and channels are known."""
        self.node_count, self.tombstoned_count = len(self.nodes), len(self.tombstoned)
        if not self.nodes:
            channels = f", channels {', '.join(sorted(self.channels))}" if self.channels else ""
            self.state = Cell("all tombstoned" if self.tombstoned else f"no node{channels}", Tone.NOTE)
        if self.has_node:
            self.channels = None


@command(
    "lookup",
    examples="""
        gnsqadmin lookup --lookupd-http-address lookup.example:4161
        gnsqadmin lookup --orphans --json | jq -r '.topics[].topic_name'
    """,
    document=described("topics", "list by name", Listed),
)
@click.option("--orphans", is_flag=True, help="Show only topics without a node.")
def lookup(cluster: Cluster, output: Output, orphans: bool) -> int:
    """List the topics of nsqlookupds, and the nodes that consumers are sent to.

    nsqlookupd keeps a topic without a node until it is deleted; its channels are shown, because the topic gets them if
    it is created again.
    """
    if not cluster.lookupds:
        raise click.UsageError("give an nsqlookupd by --lookupd-http-address or a saved context.")
    listed, errors = _listed(cluster)
    rows = [listed[name] for name in sorted(listed) if not (orphans and listed[name].has_node)]
    if len(errors) < len(cluster.lookupds):
        output.show(lambda: {"topics": as_json(rows)}, lambda: [table_of(Listed, rows, empty="No topics.")])
    return report(errors)


def _listed(cluster: Cluster) -> tuple[dict[str, Listed], list[NodeError]]:
    """All topics that any nsqlookupd lists; and one error for each that could not be queried."""

    def ask(lookupd: Lookupd) -> tuple[tuple[str, ...], tuple[Producer, ...]]:
        return lookupd.topics(), lookupd.nodes()

    answers = cluster.ask_lookupds(ask)
    found: dict[str, Listed] = {}
    for topics, producers in values_of(answers).values():
        for name in topics:
            found.setdefault(name, Listed(name))
        for producer in producers:
            at = f"{producer.broadcast_address}:{producer.http_port}"
            for name, hidden in zip(producer.topics, producer.tombstones, strict=False):
                topic = found.setdefault(name, Listed(name))
                (topic.tombstoned if hidden else topic.nodes).add(at)
    orphans = [name for name, topic in found.items() if not topic.has_node]
    if orphans:
        for channels in values_of(cluster.ask_lookupds(partial(_channels, topics=orphans))).values():
            for name, known in channels.items():
                found[name].channels |= known  # type: ignore[operator]
    for topic in found.values():
        topic.complete()
    return found, errors_of(answers)


def _channels(lookupd: Lookupd, topics: list[str]) -> dict[str, set[str]]:
    return {topic: set(lookupd.channels(topic)) for topic in topics}
