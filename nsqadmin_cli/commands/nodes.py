"""`gnsqadmin nodes` and `lookup`: list nodes with their state, and the topics of nsqlookupds, also without nodes."""

from dataclasses import dataclass
from itertools import chain

import click

from nsqadmin_cli.api import Nsqd, located
from nsqadmin_cli.change import Shown
from nsqadmin_cli.cluster import Cluster, errors_of, values_of
from nsqadmin_cli.command_base import command, flag
from nsqadmin_cli.errors import AdminError
from nsqadmin_cli.http_client import Address, NodeError
from nsqadmin_cli.snapshot import ClusterSnapshot, take_snapshot
from nsqadmin_cli.stat_tables import LISTING, PROCESS, RATES, NodeRow, node_rows, node_table
from nsqadmin_cli.table import ALWAYS, Cell, Form, Tone, column, described, json_only, table_of


@command(
    examples="""
        gnsqadmin nodes
        gnsqadmin nodes --lookupd-http-address lookup-1.example:4161 --lookupd-http-address lookup-2.example:4161
        gnsqadmin nodes --json | jq -r '.nodes[] | select(.error) | .address'
    """,
    document=described("nodes", "list by address", NodeRow),
)
def nodes(cluster: Cluster) -> Shown:
    """ "daemon" is gnsqd with its own version, or nsqd. A draining node accepts no new messages and exits when it is
    empty. "listed" is the number of nsqlookupds that list a node. "tombstoned" is the number of topics for which
    nsqlookupds hide the node from consumers."""
    snapshot = take_snapshot(cluster)
    rows = rows_with_daemons(cluster, snapshot)
    without = (*RATES, *PROCESS, *(() if cluster.lookupds else LISTING))
    return Shown({"nodes": list(rows.values())}, [node_table(snapshot, rows, without)], errors=snapshot.errors)


def rows_with_daemons(cluster: Cluster, snapshot: ClusterSnapshot) -> dict[Address, NodeRow]:
    """Returns the rows of all nodes with their daemons, which are queried, and what nsqlookupds list."""
    rows = node_rows(snapshot)

    def kind(node: Nsqd) -> tuple[str, bool]:
        daemon = node.daemon()
        return daemon, daemon != "nsqd" and node.drain().draining

    kinds = cluster.ask(kind, [Nsqd(address, cluster.http) for address in snapshot.nodes])
    for address, (daemon, draining) in values_of(kinds).items():
        row = rows[address]
        row.daemon, row.draining = daemon, draining
        if draining and row.health == "OK":
            row.status = Cell("draining", Tone.NOTE)
    for lookupd, producers in cluster.listed.items():
        for address, producer in located(producers):
            if (listed := rows.get(address)) is not None:
                hidden = {topic for topic, dead in zip(producer.topics, producer.tombstones, strict=False) if dead}
                listed.lookupds = (*listed.lookupds, lookupd)
                listed.tombstoned_topics = tuple(sorted({*listed.tombstoned_topics, *hidden}))
    for row in rows.values():
        everywhere = len(row.lookupds) == len(cluster.lookupds)
        row.listed = Cell(f"{len(row.lookupds)}/{len(cluster.lookupds)}", None if everywhere else Tone.NOTE)
        row.tombstoned = len(row.tombstoned_topics)
    return rows


@dataclass(slots=True)
class ListedTopic:
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


@command(
    examples="""
        gnsqadmin lookup --lookupd-http-address lookup.example:4161
        gnsqadmin lookup --orphans --json | jq -r '.topics[].topic_name'
    """,
    document=described("topics", "list by name", ListedTopic),
)
def lookup(cluster: Cluster, orphans: bool = flag("Show only topics without a node.")) -> Shown:
    """nsqlookupd keeps a topic without a node until the topic is deleted. The channels of such a topic are shown,
    because a node that creates the topic also creates them."""
    if not cluster.lookupds:
        raise click.UsageError("give an nsqlookupd by --lookupd-http-address or a saved context.")
    topics, errors = listed_topics(cluster)
    if len(errors) == len(cluster.lookupds):
        raise AdminError(str(errors[-1]), causes=errors[:-1])
    rows = [topics[name] for name in sorted(topics) if not (orphans and topics[name].has_node)]
    return Shown({"topics": rows}, [table_of(ListedTopic, rows, empty="No topics.")], errors=errors)


def listed_topics(cluster: Cluster) -> tuple[dict[str, ListedTopic], list[NodeError]]:
    """Returns all topics that any nsqlookupd lists, and one error for each that could not be queried."""
    answers = cluster.ask_lookupds(lambda lookupd: (lookupd.topics(), lookupd.nodes()))
    listed: dict[str, ListedTopic] = {}
    for topics, producers in values_of(answers).values():
        for name in topics:
            listed.setdefault(name, ListedTopic(name))
        for producer in producers:
            for name, hidden in zip(producer.topics, producer.tombstones, strict=False):
                topic = listed.setdefault(name, ListedTopic(name))
                (topic.tombstoned if hidden else topic.nodes).add(producer.name)
    if alone := [name for name, topic in listed.items() if not topic.has_node]:
        known = cluster.ask_lookupds(lambda lookupd: [(name, lookupd.channels(name)) for name in alone])
        for name, channels in chain.from_iterable(values_of(known).values()):
            listed[name].channels.update(channels)  # type: ignore[union-attr]
    for topic in listed.values():
        topic.node_count, topic.tombstoned_count = len(topic.nodes), len(topic.tombstoned)
        if not topic.nodes:
            named = f", channels {', '.join(sorted(topic.channels))}" if topic.channels else ""
            topic.state = Cell("all tombstoned" if topic.tombstoned else f"no node{named}", Tone.NOTE)
        if topic.has_node:
            topic.channels = None
    return listed, errors_of(answers)
