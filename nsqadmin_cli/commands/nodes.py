"""`gnsqadmin nodes`: lists nodes and their state."""

from nsqadmin_cli.address import Address
from nsqadmin_cli.api import Nsqd
from nsqadmin_cli.cluster import Cluster, producer_address, values_of
from nsqadmin_cli.command import command
from nsqadmin_cli.output import Output, report
from nsqadmin_cli.snapshot import take_snapshot
from nsqadmin_cli.stat_tables import LISTING, NodeRow, node_rows, node_table
from nsqadmin_cli.table import Cell, Tone, as_json, described


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
    With nsqlookupds, "listed" is the number of them that list a node, and "tombstoned" the number of topics that it is
    hidden for.
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
    without = () if cluster.lookupds else LISTING
    output.show(lambda: {"nodes": as_json(list(rows.values()))}, lambda: [node_table(seen, rows, without)])
    return report(seen.errors)


def _kind(node: Nsqd) -> tuple[str, bool]:
    """`nsqd`, or `gnsqd` and its version; and whether it drains."""
    daemon = node.daemon()
    return daemon, daemon != "nsqd" and node.drain("GET")["draining"]


def _add_listings(cluster: Cluster, rows: dict[Address, NodeRow]) -> None:
    """What the nsqlookupds report of each node: those that list it, and topics that it is hidden for on any of them."""
    for lookupd, producers in cluster.listed.items():
        for producer in producers:
            try:
                row = rows[producer_address(producer)]
            except (ValueError, KeyError):
                continue  # it has been reported by who asked for the nodes
            hidden = {topic for topic, dead in zip(producer.topics, producer.tombstones, strict=False) if dead}
            row.lookupds = (*row.lookupds, lookupd)
            row.tombstoned_topics = tuple(sorted({*row.tombstoned_topics, *hidden}))
    for row in rows.values():
        everywhere = len(row.lookupds) == len(cluster.lookupds)
        row.listed = Cell(f"{len(row.lookupds)}/{len(cluster.lookupds)}", None if everywhere else Tone.NOTE)
        row.tombstoned = len(row.tombstoned_topics)
