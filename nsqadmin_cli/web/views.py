"""The pages to read. Each view is called in a thread and returns a template with its values."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gnsqd.broker.dead_letter_format import dead_letter_topic
from nsqadmin_cli import stat_tables, units
from nsqadmin_cli.api import TopicStats
from nsqadmin_cli.commands.nodes import Listed
from nsqadmin_cli.diagnosis.examination import Severity
from nsqadmin_cli.errors import AdminError, NotFound
from nsqadmin_cli.http_client import NodeError
from nsqadmin_cli.message import MOST, Peeked, PeekedQueue, clock, hex_lines, peek_at, pretty_lines
from nsqadmin_cli.snapshot import ClusterSnapshot, Flow, Key, backlog, through
from nsqadmin_cli.stat_tables import LISTING, RATES, NodeRow, Value, count
from nsqadmin_cli.table import Cell, Form, Grid, Table, Tone, column, table_of
from nsqadmin_cli.units import plural, printable, suggestion
from nsqadmin_cli.web.http import HTTPError, Redirect, Request, Response
from nsqadmin_cli.web.present import (
    AT_LEAST,
    RANGES,
    Charts,
    HTMLTable,
    View,
    add_sparklines,
    address_of,
    charts_of,
    facts,
    html_table,
    node_address,
    query,
)
from nsqadmin_cli.web.site import Exact, Lines, Page, Site
from nsqadmin_cli.web.tail import SHOWN, TEMPORARY

LAST_KNOWN = "last known"  # of what only nodes have that do not answer
_FINDINGS = 5  # on the overview
_LONGEST_BODY = 4096  # characters of a message that are shown


@dataclass(eq=False, repr=False)
class TopicRow:
    """A topic and all its channels, on all nodes."""

    name: Value = column("topic", key="topic", tone=Tone.STRONG)
    ingress_rate: Value = column("in/s", form=Form.RATE, keep=8)
    egress_rate: Value = column("finished/s", form=Form.RATE, keep=5)
    total_depth: Value = count("total depth", keep=9)
    depth: Value = count("depth", keep=6)
    channel_depth: Value = count("channel depth", keep=6)
    in_flight_count: Value = count("in flight", keep=5)
    deferred_count: Value = count("deferred", keep=3)
    message_count: Value = count("messages", keep=3)
    channel_count: Value = count("channels", keep=5)
    client_count: Value = count("clients", keep=5)
    state: Value = column("state", keep=9)


def _topic_row(topic: TopicStats, flow: Flow | None) -> TopicRow:
    channels = topic.channels
    depth = sum(channel.depth for channel in channels)
    clients = sum(channel.client_count for channel in channels)
    state = None
    if topic.paused:
        state = Cell("paused", Tone.NOTE)
    elif paused := sum(channel.paused for channel in channels):
        state = Cell(f"{plural(paused, 'channel')} paused", Tone.NOTE)
    elif unserved := sum(1 for channel in channels if backlog(channel) and not channel.client_count):
        state = Cell(f"{plural(unserved, 'channel')} not consumed", Tone.BAD)
    return TopicRow(
        topic.topic_name,
        flow.ingress if flow else None,
        flow.egress if flow else None,
        topic.depth + depth,
        topic.depth,
        depth,
        sum(channel.in_flight_count for channel in channels),
        sum(channel.deferred_count for channel in channels),
        topic.message_count,
        len(channels),
        clients,
        state,
    )


def _view(request: Request) -> View:
    given = request.query
    page = given.get("page", "1")
    names = {name: given[name] for name in ("topic", "channel", "node") if given.get(name)}
    path = f"{request.path}?{query(**names)}" if names else request.path
    number = int(page) if page.isdecimal() and len(page) < 6 else 1
    shown = given["range"] if given.get("range") in RANGES else "1h"
    return View(path, given.get("find", ""), given.get("sort", ""), number, shown)


def _common(site: Site, snapshot: ClusterSnapshot, topic: str = "", channel: str = "") -> dict[str, Any]:
    """What the live part of most pages shows at its end, or begins with; of the cluster, a topic or a channel."""
    return {
        "sums": _sums(snapshot, topic, channel),
        "errors": [str(error) for error in snapshot.errors],
        "taken": f"{units.clock(snapshot.clock)}",
        "has_rates": snapshot.flows is not None,
    }


def _sums(snapshot: ClusterSnapshot, topic: str = "", channel: str = "") -> tuple[str, str] | None:
    """What numbers of the cluster, a topic or a channel are if a node that has it, or may have it, did not answer: in
    two words, and in a sentence."""
    answered, missing = (look.places(topic, channel) for look in (snapshot, snapshot.last_known))
    if missing and not answered:
        ago = units.duration(snapshot.moment - max(snapshot.latest[address].moment for address in missing))
        nodes = units.shortened([*map(str, missing)], 3)
        return LAST_KNOWN, f"{LAST_KNOWN} {ago} ago, as {nodes} did not answer"
    unheard = snapshot.answers.keys() - snapshot.nodes.keys() - snapshot.last_known.nodes.keys()
    most = len(answered) + len(missing) + len(unheard)
    return (AT_LEAST, f"{AT_LEAST}, of {len(answered)} of {most} nodes") if most > len(answered) else None


def _add_history(
    site: Site, snapshot: ClusterSnapshot, view: View, table: HTMLTable, column: str, key_of: Callable[[Any], Key]
) -> HTMLTable:
    """`table` with the depths of topics or channels as lines in this column, and marks of rows that lack a node."""
    history = site.monitor.history
    if window := history.window(snapshot.moment, RANGES[view.range][0]):
        add_sparklines(table, column, lambda row: history.depths(window, *key_of(row)))
    for row in table.rows:
        key = key_of(row.values)
        if key in snapshot.partial_keys:
            row.mark = AT_LEAST if snapshot.places(*key) else LAST_KNOWN
    return table


def overview(site: Site, request: Request) -> Page:
    if request.names:
        return topic(site, request) if len(request.names) == 1 else channel(site, request)
    snapshot, view = site.snapshot(request), _view(request)
    known = {stats.topic_name: stats for look in (snapshot.last_known, snapshot) for stats in look.totals.topics}
    topics = [stats for _, stats in sorted(known.items()) if _matches(stats, view.find)]
    rows = [_topic_row(stats, snapshot.topic_flows.get(stats.topic_name)) for stats in topics]
    table = table_of(
        TopicRow, rows, empty="No topic matches." if view.find else "No topics yet: publishing creates one."
    )
    made = html_table("Topics", table, _topic_link, view)
    diagnosis = site.monitor.diagnosis.latest()
    findings = diagnosis.findings if diagnosis else ()
    urgent = [finding for finding in findings if finding.severity is not Severity.NOTE][:_FINDINGS]
    return Page(
        "overview.html",
        {
            **_common(site, snapshot),
            "title": "Overview",
            "totals": snapshot.totals,
            "flow": _rates(None if snapshot.flows is None else through(snapshot.flows)),
            "nodes_up": len(snapshot.nodes),
            "nodes": len(snapshot.answers),
            "charts": _charts(site, snapshot, view),
            "table": _add_history(site, snapshot, view, made, "total_depth", lambda row: (row["topic"], "")),
            "range": view.range,
            "find": view.find,
            "sort": view.sort,
            "examined": diagnosis is not None,
            "findings": urgent,
            "examined_ago": units.duration(round(max(0.0, snapshot.clock - diagnosis.clock))) if diagnosis else "",
            "more_findings": len(findings) - len(urgent),
        },
    )


def _matches(topic: TopicStats, find: str) -> bool:
    text = find.lower()
    return text in topic.topic_name.lower() or any(text in channel.channel_name.lower() for channel in topic.channels)


def _topic_link(key: str, row: dict[str, object]) -> str:
    return address_of(str(row["topic"])) if key == "topic" else ""


def _node_link(key: str, row: dict[str, object]) -> str:
    return node_address(row["node"]) if key == "node" else ""


def _listed(site: Site, name: str) -> Listed | None:
    return site.monitor.lookups.value().topics.get(name) if site.cluster.lookupds else None


def _unknown(snapshot: ClusterSnapshot, what: str, name: str, known: Sequence[str]) -> AdminError:
    """The error if no node that answered has it: it is not found only if all answered."""
    if snapshot.errors:
        return AdminError(f"no node that answered has {what}", causes=snapshot.errors)
    return NotFound(f"no node has {what}{suggestion(name, known)}")


def topic(site: Site, request: Request) -> Page:
    (name,) = request.names
    latest, listed, view = site.snapshot(request), _listed(site, name), _view(request)
    snapshot = latest if latest.places(name) else latest.last_known
    whole = snapshot.totals.topic(name)
    if whole is None and listed is None:
        raise _unknown(latest, f"the topic {name}", name, list(latest.topic_shares))
    rows: list[tuple[str, str, str]] = []
    shares = snapshot.topic_shares.get(name, {})
    hidden: list[str] = []
    if whole is not None:
        rows = facts(Grid.of(stat_tables.topic_facts(whole, shares)))
        if listed is not None:
            hidden = [str(at) for at in shares if str(at) not in listed.nodes]
    elif listed is not None:
        nodes = "no node that answered" if latest.errors else "no node"
        rows = [("nodes", f"{nodes} has it; nsqlookupd still lists it", "note")]
    if hidden:
        rows.append(("not found", f"nsqlookupd does not send consumers to {', '.join(hidden)}", "note"))
    channels = stat_tables.channel_table(snapshot, watched=True, with_topic=False, only=_keys(whole, name))
    if snapshot is latest:  # and channels of other nodes alone, as they were last known
        only = _keys(latest.last_known.totals.topic(name), name) - latest.channel_shares.keys()
        channels.rows += stat_tables.channel_table(latest.last_known, watched=True, with_topic=False, only=only).rows
    channels.empty = "No channels: messages are queued in the topic until there is one."

    def link(key: str, row: dict[str, object]) -> str:
        return address_of(name, str(row["channel"])) if key == "channel" else ""

    node_table = stat_tables.share_table(snapshot, shares, whole) if whole is not None else Table([])
    table = html_table("Channels", channels, link, view)
    return Page(
        "topic.html",
        {
            **_common(site, latest, name),
            "title": f"Topic {printable(name, 64)}",
            "topic": name,
            "whole": whole,
            "facts": rows,
            "flow": _rates(snapshot.topic_flows.get(name)),
            "paused": _paused(shares),
            "channel_depth": sum(channel.depth for channel in whole.channels) if whole is not None else 0,
            "charts": _charts(site, latest, view, name),
            "nodes_table": html_table("Nodes", node_table, _node_link),
            "table": _add_history(site, latest, view, table, "depth", lambda row: (name, row["channel"])),
            "tombstones": sorted(listed.nodes) if listed is not None else [],
            "tombstoned": sorted(listed.tombstoned) if listed is not None else [],
            "publish_to": [str(at) for at in latest.nodes],
        },
    )


def _keys(whole: TopicStats | None, name: str) -> set[tuple[str, str]]:
    return {(name, channel.channel_name) for channel in whole.channels} if whole is not None else set()


def _charts(site: Site, snapshot: ClusterSnapshot, view: View, topic: str = "", channel: str = "") -> Charts | None:
    depth = "depth with channels" if topic and not channel else "depth"
    window = site.monitor.history.window(snapshot.moment, RANGES[view.range][0], topic, channel)
    return charts_of(window, view, depth)


def _paused(shares: stat_tables.Shares) -> str:
    """Where a topic or channel is paused: on "all" nodes, on "some", or "" for none."""
    paused = sum(share.paused for share in shares.values())
    return ("all" if paused == len(shares) else "some") if paused else ""


def _rates(flow: Flow | None) -> tuple[str, str] | None:
    return None if flow is None else (units.rate(flow.ingress), units.rate(flow.egress))


def channel(site: Site, request: Request) -> Page:
    topic, name = request.names
    latest, view = site.snapshot(request), _view(request)
    snapshot = latest if latest.places(topic, name) else latest.last_known
    whole = snapshot.totals.topic(topic)
    channels = whole.channels if whole is not None else ()
    channel = next((stats for stats in channels if stats.channel_name == name), None)
    if channel is None:
        known = [channel_name for of, channel_name in latest.channel_shares if of == topic]
        raise _unknown(latest, f"the channel {name} in the topic {topic}", name, known)
    shares = snapshot.channel_shares[topic, name]
    rows = facts(Grid.of(stat_tables.common_facts(channel, shares)))
    flow = (snapshot.flows or {}).get((topic, name))
    seconds = None if flow is None or channel.paused else flow.drain_seconds(backlog(channel))
    if seconds is not None and seconds >= 1.0:
        rows.append(("empty in", units.duration(seconds), ""))
    clients = stat_tables.client_table(snapshot, with_places=False, of=(topic, name))
    clients.empty = "No clients."
    return Page(
        "channel.html",
        {
            **_common(site, latest, topic, name),
            "title": f"Channel {printable(name, 64)} of {printable(topic, 64)}",
            "topic": topic,
            "channel": name,
            "whole": channel,
            "facts": rows,
            "flow": _rates(flow),
            "has_dead_letters": dead_letter_topic(topic, name) in snapshot.topic_shares,
            "paused": _paused(shares),
            "charts": _charts(site, latest, view, topic, name),
            "nodes_table": html_table("Nodes", stat_tables.share_table(snapshot, shares, channel), _node_link),
            "table": html_table("Clients", clients, _node_link, view, below="remote_address"),
        },
    )


def nodes(site: Site, request: Request) -> Page:
    if request.names:
        return node(site, request)
    details = site.monitor.node_rows.value()
    snapshot = site.snapshot(request)
    rows = stat_tables.node_rows(snapshot)
    for at, row in rows.items():
        _add_details(row, details.get(at))
    without = RATES if site.cluster.lookupds else (*LISTING, *RATES)
    table = stat_tables.node_table(snapshot, rows, without)
    return Page(
        "nodes.html",
        {**_common(site, snapshot), "title": "Nodes", "table": html_table("Nodes", table, _node_link, _view(request))},
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


def node(site: Site, request: Request) -> Page:
    (name,) = request.names
    snapshot = site.snapshot(request)
    address = next((at for at in snapshot.answers if str(at) == name), None)
    if address is None:
        raise NotFound(f"no node has the address {printable(name)}; known are {_some(map(str, snapshot.answers))}")
    answer = snapshot.answers[address]
    alone = ClusterSnapshot({address: answer}, [])
    row = stat_tables.node_rows(alone)[address]
    _add_details(row, (site.monitor.node_rows.latest() or {}).get(address))
    rows: list[Sequence[Cell | str]] = [["status", row.status]]
    if row.daemon:
        rows.append(["daemon", str(row.daemon)])
    if not isinstance(answer, NodeError):
        rows += [["version", answer.version], ["up", units.duration(row.uptime_seconds)]]
    if site.cluster.lookupds and row.listed:
        rows.append(["listed", row.listed])
    if row.tombstoned_topics:
        rows.append(["tombstoned", Cell(", ".join(row.tombstoned_topics), Tone.NOTE)])
    clients = stat_tables.client_table(alone)
    clients.select([index for index, column in enumerate(clients.columns) if column.key != "node"])
    clients.empty = "No clients."
    channels = stat_tables.channel_table(alone)
    channels.empty = "No channels."

    def link(key: str, row: dict[str, object]) -> str:
        topic, channel = str(row["topic"]), row.get("channel")
        return address_of(topic) if key == "topic" else address_of(topic, str(channel)) if key == "channel" else ""

    return Page(
        "node.html",
        {
            **_common(site, snapshot),
            "sums": None,
            "title": f"Node {address}",
            "node": str(address),
            "facts": facts(Grid(rows)),
            "topics": html_table("Topics", stat_tables.topic_table(alone), link),
            "channels": html_table("Channels", channels, link),
            "table": html_table("Clients", clients, link, _view(request), below="remote_address"),
        },
    )


def options(site: Site, request: Request) -> Page:
    """All options of a node, as `gnsqadmin config get` shows them."""
    from nsqadmin_cli.commands.config import value_table
    from nsqadmin_cli.node_options import NODE_OPTIONS, options_of

    name = request.query.get("node", "")
    for node in site.cluster.nsqds():
        if str(node) == name:
            had = options_of(node, list(NODE_OPTIONS))
            return Page(
                "options.html",
                {"node": name, "table": html_table("Options", value_table(list(had), {node.address: had}))},
            )
    raise NotFound(f"no node has the address {printable(name, 100)}")


def _some(names: Any) -> str:
    return units.shortened(list(names), 5) or "none"


def lookup(site: Site, request: Request) -> Page:
    """What the nsqlookupds list."""
    values: dict[str, Any] = {"title": "Lookup", "errors": [], "taken": units.clock(time.time()), "has_rates": True}
    if not site.cluster.lookupds:
        return Page("lookup.html", values | {"lookupds": [], "table": None})
    lookups = site.monitor.lookups.value()
    rows = [lookups.topics[name] for name in sorted(lookups.topics)]
    registered = [
        (str(at), answer.reason, []) if isinstance(answer, NodeError) else (str(at), "", _registrations(answer))
        for at, answer in lookups.nodes.items()
    ]
    table = table_of(Listed, rows, empty="No topics.")
    return Page(
        "lookup.html",
        values
        | {
            "lookupds": registered,
            "table": html_table("Topics", table, _topic_link, _view(request)),
            "tombstoned": [(listed.topic_name, sorted(listed.tombstoned)) for listed in rows if listed.tombstoned],
        },
    )


def _registrations(producers: Any) -> list[dict[str, Any]]:
    """One row for each node that an nsqlookupd lists."""
    rows = []
    for producer in sorted(producers, key=lambda producer: producer.name):
        hidden = [topic for topic, dead in zip(producer.topics, producer.tombstones, strict=False) if dead]
        facts = {
            "name": producer.name,
            "hostname": producer.hostname,
            "version": producer.version,
            "topics": len(producer.topics),
        }
        rows.append(
            {key: printable(str(value), 100) for key, value in facts.items()}
            | {"tombstoned": _some(hidden) if hidden else ""}
        )
    return rows


def doctor(site: Site, request: Request) -> Page:
    """The findings, after an examination of some seconds if there are none yet."""
    diagnosis = site.monitor.diagnosis.value()
    return Page(
        "doctor.html",
        {
            "title": "Doctor",
            "findings": diagnosis.findings,
            "taken": units.clock(diagnosis.clock),
            "seconds": f"{diagnosis.seconds:.1f}",
            "errors": [],
            "has_rates": True,
        },
    )


def peek(site: Site, request: Request) -> Page:
    """The queued messages of a topic or channel, of every node that can show them."""
    given = request.query
    topic, channel = given.get("topic", ""), given.get("channel", "")
    number = given.get("count", "10")
    if not topic or not number.isdecimal() or not 0 < int(number[:9]) <= MOST:
        raise HTTPError(400, f"a topic is needed, and a count of 1 to {MOST}")
    answers = site.cluster.ask(lambda nsqd: peek_at(nsqd, topic, channel, int(number)))
    queues = {at: answer for at, answer in answers.items() if isinstance(answer, PeekedQueue)}
    errors = [error for error in answers.values() if isinstance(error, NodeError)]
    if not queues and not errors:
        raise NotFound(f"no node has the {f'channel {channel} in the topic {topic}' if channel else f'topic {topic}'}")
    return Page(
        "peek.html",
        {
            "title": "Queued messages",
            "topic": topic,
            "channel": channel,
            "count": number,
            "as_hex": given.get("hex", ""),
            "nodes": [
                (str(at), queue.depth, [_message(each, given.get("hex", "")) for each in queue.messages])
                for at, queue in queues.items()
            ],
            "errors": [str(error) for error in errors],
        },
    )


def _message(peeked: Peeked, as_hex: str) -> dict[str, Any]:
    message = peeked.message
    if as_hex:
        lines = hex_lines(message.body[:_LONGEST_BODY])
    else:
        lines = pretty_lines(message.body_text)
        if len(lines) == 1 or len(message.body_text) > _LONGEST_BODY:
            lines = message.body_text[:_LONGEST_BODY].splitlines()
    return {
        "time": clock(message.timestamp),
        "age": units.duration(time.time() - message.timestamp / 1e9),
        "id": printable(message.id_text, 64),
        "attempts": message.attempts,
        "size": units.size(peeked.size),
        "place": "on disk" if peeked.on_disk else "in memory",
        "cut": peeked.size > len(message.body) or len(message.body) > _LONGEST_BODY,
        "body": Lines("\n".join(lines)),
    }


def tail(site: Site, request: Request) -> Page:
    """The latest messages of a topic. They are only consumed for live pages, which no other site can load."""
    name = request.query.get("topic", "")
    if not name:
        raise HTTPError(400, "a topic is needed")
    if site.security.read_only:
        raise HTTPError(403, "This page is read-only, and live messages need a temporary channel.")
    snapshot = site.snapshot(request)
    whole = snapshot.totals.topic(name)
    if whole is None:
        raise _unknown(snapshot, f"the topic {name}", name, list(snapshot.topic_shares))
    values: dict[str, Any] = {"title": f"Live messages of {printable(name, 64)}", "topic": name, "messages": []}
    values |= {**_common(site, snapshot), "count": 0, "shown": SHOWN}
    # Its first channel, which this would be, would get all queued messages, and they would be lost with it.
    values["is_possible"] = any(not channel.channel_name.startswith(TEMPORARY) for channel in whole.channels)
    if request.is_live and values["is_possible"]:
        tail = site.tails.look(name)
        values["messages"] = [_message(each, "") | {"node": each.message.node} for each in list(tail.latest)]
        values["count"] = tail.count
        values["errors"] += tail.errors
    return Page("tail.html", values)


def publish(site: Site, request: Request) -> Page:
    snapshot = site.monitor.snapshot(10.0)
    return publish_page([str(at) for at in snapshot.nodes], request.query.get("topic", ""))


def publish_page(nodes: list[str], topic: str, **more: Any) -> Page:
    """The form to publish, with what was sent before."""
    values = {
        "title": "Publish",
        "nodes": nodes,
        "topic": topic,
        "node": "",
        "body": "",
        "defer": "",
        "result": "",
        "failed": False,
    }
    return Page("publish.html", values | more | {"body": Exact(more.get("body", ""))})


def login(site: Site, request: Request) -> Page | Response:
    if not site.security.has_tokens:
        return Redirect("/")
    return Page("login.html", {"title": "Log in", "next": request.query.get("next", "/"), "failed": False})
