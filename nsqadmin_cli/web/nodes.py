"""The pages of nodes, of nsqlookupds and of doctor. Each view is called in a thread and returns a template with its
values."""

import math
import time
from collections.abc import Sequence
from typing import Any

from nsqadmin_cli import stat_tables, units
from nsqadmin_cli.api import Listing
from nsqadmin_cli.commands.nodes import ListedTopic
from nsqadmin_cli.errors import NotOnNode
from nsqadmin_cli.http_client import NodeError
from nsqadmin_cli.snapshot import ClusterSnapshot
from nsqadmin_cli.stat_tables import LISTING, PROCESS, RATES, NodeRow
from nsqadmin_cli.table import Cell, Grid, Tone, columns_of, shown, table_of
from nsqadmin_cli.units import printable
from nsqadmin_cli.web.http import PageRequest
from nsqadmin_cli.web.present import View, common, facts, html_table, query, tone_class, with_query
from nsqadmin_cli.web.site import Page, PageSite

_ON_NODE = ("version", "topic_count", "backend_depth", "in_flight_count", "message_count")  # of a node, on its own page
_OF_A_KIND = 50  # findings on one page


def nodes(site: PageSite, request: PageRequest) -> Page:
    if request.names:
        return node(site, request)
    details = site.monitor.node_rows.value()
    snapshot = site.snapshot(request)
    rows = stat_tables.node_rows(snapshot)
    for at, row in rows.items():
        _add_details(row, details.get(at))
    without = [*_ON_NODE, *(() if site.cluster.lookupds else LISTING)]
    table = stat_tables.node_table(snapshot, rows, without)
    return Page(
        "nodes.html", **common(snapshot), title="Nodes", table=html_table("Nodes", table, view=View.of(request))
    )


def _add_details(row: NodeRow, details: NodeRow | None) -> None:
    """Completes a row with what changes rarely, and may be a minute older than its counts: the daemon, whether it
    drains, and what nsqlookupds list."""
    if details is None:
        return
    row.daemon, row.draining = details.daemon, details.draining
    if row.error is None and row.draining and row.health == "OK":
        row.status = details.status
    row.listed, row.tombstoned = details.listed, details.tombstoned
    row.tombstoned_topics = details.tombstoned_topics


def node(site: PageSite, request: PageRequest) -> Page:
    (name,) = request.names
    snapshot = site.snapshot(request)
    address = next((at for at in snapshot.answers if str(at) == name), None)
    if address is None:
        known = units.shortened([*map(str, snapshot.answers)], 5) or "none"
        raise NotOnNode(f"no node has the address {printable(name)}; known are {known}")
    alone = ClusterSnapshot({address: snapshot.answers[address]}, [])
    row = stat_tables.node_rows(snapshot)[address]
    _add_details(row, (site.monitor.node_rows.latest() or {}).get(address))
    about: dict[str, Any] = {"status": row.status, "daemon": row.daemon, "version": row.version}
    about["up"] = "" if row.uptime_seconds is None else units.duration(row.uptime_seconds)
    about["listed"] = row.listed if site.cluster.lookupds else ""
    about["tombstoned"] = row.tombstoned_topics and Cell(", ".join(row.tombstoned_topics), Tone.NOTE)
    counts = {"topics": row.topic_count, "channels": row.channel_count, "clients": row.client_count}
    chosen = given if (given := request.query.get("show", "")) in counts else "topics"
    if chosen == "clients":
        table = stat_tables.client_table(alone)
        table.select([index for index, column in enumerate(table.columns) if column.key != "node"])
    else:
        table = stat_tables.channel_table(alone) if chosen == "channels" else stat_tables.topic_table(alone)
    view = View.of(request)
    view = view._replace(path=with_query(view.path, show=chosen))
    return Page(
        "node.html",
        **common(snapshot) | {"sums": None},
        title=f"Node {address}",
        node=str(address),
        numbers=[_number(row, name) for name in (*RATES, *PROCESS, "depth", *_ON_NODE[2:])],
        facts=facts(Grid([[name, value] for name, value in about.items() if value])),
        counts=counts,
        chosen=chosen,
        table=html_table(chosen.capitalize(), table, view=view),
    )


def _number(row: NodeRow, name: str) -> tuple[str, str, str]:
    its = columns_of(NodeRow)[name]
    text, tone = shown(getattr(row, name), its)
    return its.heading, text or "–", tone_class(tone)


def options(site: PageSite, request: PageRequest) -> Page:
    """Shows all options of a node, as `gnsqadmin config get` does."""
    from nsqadmin_cli.commands.config import value_table
    from nsqadmin_cli.node_options import NODE_OPTIONS, options_of

    node = site.node(request.query.get("node", ""))
    had = options_of(node, list(NODE_OPTIONS))
    table = html_table("Options", value_table(list(had), {node.address: had}))
    return Page("options.html", node=str(node), table=table)


def lookup(site: PageSite, request: PageRequest) -> Page:
    if not site.cluster.lookupds:
        return Page("lookup.html", title="Lookup", table=None)
    rows = [listed for _, listed in sorted(site.monitor.listed.value().items())]
    registered = [
        (str(at), answer.reason, []) if isinstance(answer, NodeError) else (str(at), "", _registrations(answer))
        for at, answer in site.monitor.registered.value().items()
    ]
    return Page(
        "lookup.html",
        title="Lookup",
        lookupds=registered,
        table=html_table("Topics", table_of(ListedTopic, rows, empty="No topics."), view=View.of(request)),
        tombstoned=[(listed.topic_name, sorted(listed.tombstoned)) for listed in rows if listed.tombstoned],
        taken=units.clock(time.time()),
    )


def _registrations(producers: Sequence[Listing]) -> list[tuple[Listing, str]]:
    """Returns the nodes that an nsqlookupd lists, each with the topics that it hides there."""
    return [
        (it, units.shortened([topic for topic, dead in zip(it.topics, it.tombstones, strict=False) if dead], 5))
        for it in sorted(producers, key=lambda producer: producer.name)
    ]


def doctor(site: PageSite, request: PageRequest) -> Page:
    """Shows the latest findings by kind, or of one kind; after an examination of some seconds if there are none yet."""
    diagnosis = site.monitor.diagnosis.value(math.inf)
    view, kind = View.of(request), request.query.get("kind", "")
    findings = [finding for finding in diagnosis.findings if finding.code == kind]
    pages = view._replace(path=f"/doctor?{query(kind=kind)}").pages(len(findings), _OF_A_KIND)
    return Page(
        "doctor.html",
        title="Doctor",
        diagnosis=diagnosis,
        taken=units.clock(diagnosis.clock),
        kind=kind,
        findings=findings[pages.rows],
        found=len(findings),
        pages=pages,
    )
