"""`gnsqadmin nodes` and `lookup`: list nodes with their state, and the topics of nsqlookupds, also without nodes."""

from dataclasses import dataclass
from functools import partial

import click

from nsqadmin_cli.api import Lookupd, Nsqd, Producer, located
from nsqadmin_cli.cluster import Cluster, errors_of, values_of
from nsqadmin_cli.command import command, option
from nsqadmin_cli.http_client import Address, NodeError
from nsqadmin_cli.output import Output, report
from nsqadmin_cli.snapshot import take_snapshot
from nsqadmin_cli.stat_tables import LISTING, RATES, NodeRow, node_rows, node_table
from nsqadmin_cli.table import ALWAYS, Cell, Form, Tone, column, described, json_only, table_of


@command(
    "nodes",
    examples="""
        gnsqadmin nodes
        gnsqadmin nodes --lookupd-http-address lookup-1.example:4161 --lookupd-http-address lookup-2.example:4161
        gnsqadmin nodes --json | jq -r '.nodes[] | select(.error) | .address'
    """,
    document=described("nodes", "list by address", NodeRow),
)
def nodes(cluster: Cluster, output: Output) -> int:
    """List the nodes: version, health, uptime, topics and messages.

    "daemon" is gnsqd with its own version, or nsqd. A draining node accepts no new messages and exits when it is empty.
    "listed" is the number of nsqlookupds that list a node. "tombstoned" is the number of topics for which nsqlookupds
    hide the node from consumers.
    """
    seen = take_snapshot(cluster)
    rows = node_rows(seen)
    kinds = cluster.ask(_kind, [Nsqd(address, cluster.http) for address in seen.nodes])
    for address, (daemon, draining) in values_of(kinds).items():
        row = rows[address]
        row.daemon, row.draining = daemon, draining
        if draining and row.health == "OK":
            row.status = Cell("draining", Tone.NOTE)
    _add_listings(cluster, rows)
    without = RATES if cluster.lookupds else (*LISTING, *RATES)
    output.show(lambda: {"nodes": list(rows.values())}, lambda: [node_table(seen, rows, without)])
    return report(seen.errors)


def _kind(node: Nsqd) -> tuple[str, bool]:
    """`nsqd`, or `gnsqd` and its version; and whether it drains."""
    daemon = node.daemon()
    return daemon, daemon != "nsqd" and node.drain("GET")["draining"]


def _add_listings(cluster: Cluster, rows: dict[Address, NodeRow]) -> None:
    """The nsqlookupds that list each node, and the topics for which any of them hides it."""
    for lookupd, producers in cluster.listed.items():
        for address, producer in located(producers):
            if (row := rows.get(address)) is None:
                continue
            hidden = {topic for topic, dead in zip(producer.topics, producer.tombstones, strict=False) if dead}
            row.lookupds = (*row.lookupds, lookupd)
            row.tombstoned_topics = tuple(sorted({*row.tombstoned_topics, *hidden}))
    for row in rows.values():
        everywhere = len(row.lookupds) == len(cluster.lookupds)
        row.listed = Cell(f"{len(row.lookupds)}/{len(cluster.lookupds)}", None if everywhere else Tone.NOTE)
        row.tombstoned = len(row.tombstoned_topics)


@dataclass(slots=True)
class Listed:
    """A topic as the nsqlookupds list it; nodes are `{broadcast address}:{HTTP port}`."""

    topic_name: str = column("topic", key="topic")
    nodes: set[str] = json_only("where consumers are sent", default_factory=set)
    tombstoned: set[str] = json_only("nodes hidden from consumers", default_factory=set)
    channels: set[str] | None = json_only("null except for topics without a node", default_factory=set)
    node_count: int = column("nodes", form=Form.COUNT, keep=ALWAYS, json=False)
    tombstoned_count: int = column("tombstoned", "tomb", Form.COUNT, keep=6, json=False)
    state: Cell | None = column("", keep=ALWAYS, json=False)

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
@option("--orphans", is_flag=True, help="Show only topics without a node.")
def lookup(cluster: Cluster, output: Output, orphans: bool) -> int:
    """List the topics of nsqlookupds, and the nodes that they return to consumers.

    nsqlookupd keeps a topic without a node until the topic is deleted. The channels of such a topic are shown, because
    a node that creates the topic also creates them.
    """
    if not cluster.lookupds:
        raise click.UsageError("give an nsqlookupd by --lookupd-http-address or a saved context.")
    listed, errors = _listed(cluster)
    rows = [listed[name] for name in sorted(listed) if not (orphans and listed[name].has_node)]
    if len(errors) < len(cluster.lookupds):
        output.show(lambda: {"topics": rows}, lambda: [table_of(Listed, rows, empty="No topics.")])
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
            for name, hidden in zip(producer.topics, producer.tombstones, strict=False):
                topic = found.setdefault(name, Listed(name))
                (topic.tombstoned if hidden else topic.nodes).add(producer.name)
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
