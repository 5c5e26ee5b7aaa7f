"""`gnsqadmin nodes`: lists nodes and their state."""

from dataclasses import dataclass
from typing import Any

import click

from nsqadmin_cli import stat_tables
from nsqadmin_cli.address import Address
from nsqadmin_cli.api import Nsqd
from nsqadmin_cli.cluster import Cluster, producer_address, values_of
from nsqadmin_cli.command import command
from nsqadmin_cli.http_client import NodeError
from nsqadmin_cli.look import Look, look
from nsqadmin_cli.models import NodeStats, Producer
from nsqadmin_cli.options import cluster_options, output_options
from nsqadmin_cli.output import Output, report
from nsqadmin_cli.table import Cell, Column, Form, Table, Tone
from nsqadmin_cli.totals import Totals


@dataclass(frozen=True, slots=True)
class Kind:
    """Properties of a node: `daemon` is "nsqd", or "gnsqd" and its version; None is unknown."""

    daemon: str | None = None
    draining: bool | None = None


def _kind(node: Nsqd) -> Kind:
    daemon = node.daemon()
    return Kind(daemon, daemon != "nsqd" and node.drain("GET")["draining"])


@dataclass(frozen=True, slots=True)
class Listing:
    """What the nsqlookupds report of one node."""

    lookupds: tuple[str, ...]  # the nsqlookupds that list it
    tombstones: tuple[str, ...]  # topics that it is hidden for on any of them


@command(
    "nodes",
    examples="""
        gnsqadmin nodes
        gnsqadmin nodes --lookupd-http-address lookup-1.example:4161 --lookupd-http-address lookup-2.example:4161
        gnsqadmin nodes --json | jq -r '.nodes[] | select(.error) | .address'
    """,
    document="""
        nodes    list by address: address, error (null, or why it has no numbers),
                 version, daemon ("nsqd", or "gnsqd" and its own version), draining,
                 health, start_time, topic_count, channel_count, depth,
                 backend_depth, in_flight_count, message_count, client_count (all
                 null after an error), lookupds (that list it),
                 tombstoned_topics
    """,
)
@cluster_options
@output_options
@click.pass_context
def nodes(ctx: click.Context, cluster: Cluster, output: Output) -> None:
    """List the nodes: version, health, uptime, topics and messages.

    "daemon" is gnsqd with its own version, or nsqd. A draining node accepts no new messages and exits when it is empty.
    "listed" is the number of nsqlookupds that list a node, "tombstoned" the number of topics for which they hide it.
    """
    seen = look(cluster)
    kinds = values_of(cluster.ask(_kind, [Nsqd(address, cluster.http) for address in seen.nodes]))
    listed = _listings(cluster.listed)
    output.show(
        lambda: {"nodes": [_document(seen, address, kinds.get(address, Kind()), listed) for address in seen.answers]},
        lambda: [_table(seen, kinds, listed, len(cluster.lookupds))],
    )
    ctx.exit(report(seen.errors))


def _listings(known: dict[Address, tuple[Producer, ...]]) -> dict[Address, Listing]:
    found: dict[Address, Listing] = {}
    for lookupd, producers in known.items():
        for producer in producers:
            try:
                address = producer_address(producer)
            except ValueError:
                continue  # it has been reported by who asked for the nodes
            hidden = {topic for topic, dead in zip(producer.topics, producer.tombstones, strict=False) if dead}
            before = found.get(address, Listing((), ()))
            tombstones = tuple(sorted({*before.tombstones, *hidden}))
            found[address] = Listing((*before.lookupds, str(lookupd)), tombstones)
    return found


_NONE = Listing((), ())
_KIND = ("daemon", "draining")
_SUMS = (
    "topic_count",
    "channel_count",
    "depth",
    "backend_depth",
    "in_flight_count",
    "message_count",
    "client_count",
)


def _document(seen: Look, address: Address, kind: Kind, listed: dict[Address, Listing]) -> dict[str, Any]:
    answer = seen.answers[address]
    listing = listed.get(address, _NONE)
    if isinstance(answer, NodeError):
        told: dict[str, Any] = {"error": answer.reason} | dict.fromkeys(("version", *_KIND, "health", "start_time"))
        told |= dict.fromkeys(_SUMS)
    else:
        told = {"error": None, "version": answer.version} | {name: getattr(kind, name) for name in _KIND}
        told |= {"health": answer.health, "start_time": answer.start_time}
        sums = Totals.over([answer])
        told |= {name: getattr(sums, name) for name in _SUMS}
    more = {"lookupds": list(listing.lookupds), "tombstoned_topics": list(listing.tombstones)}
    return {"address": str(address)} | told | more


def _table(seen: Look, kinds: dict[Address, Kind], listed: dict[Address, Listing], lookupds: int) -> Table:
    table = stat_tables.node_table(seen)
    table.columns = (*table.columns[:2], Column("daemon", "daemon", keep=8), *table.columns[2:])
    for row, (address, answer) in zip(table.rows, seen.answers.items(), strict=True):
        kind = kinds.get(address, Kind())
        assert isinstance(row, list)
        row.insert(2, kind.daemon)
        if kind.draining and isinstance(answer, NodeStats) and answer.health == "OK":
            row[1] = Cell("draining", Tone.NOTE)
    if table.total is not None:
        table.total = [table.total[0], None, *table.total[1:]]
    if not lookupds:
        return table
    table.columns = (
        *table.columns,
        Column("listed", "listed", keep=6),
        Column("tombstoned", "tombstoned", "tomb", Form.COUNT, keep=4, tone=Tone.NOTE),
    )
    for index, address in enumerate(seen.answers):
        listing = listed.get(address, _NONE)
        count = f"{len(listing.lookupds)}/{lookupds}"
        cell = Cell(count, None if len(listing.lookupds) == lookupds else Tone.NOTE)
        table.rows[index] = [*table.rows[index], cell, len(listing.tombstones)]
    if table.total is not None:
        table.total = [*table.total, None, None]
    return table
