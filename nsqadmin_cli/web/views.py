"""The pages to read. Each view is called in a thread and returns a template with its values."""

import enum
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from gnsqd.broker.dead_letter_format import DeadLetter, dead_letter_topic, is_dead_letter_topic
from nsqadmin_cli import stat_tables, units
from nsqadmin_cli.api import ChannelStats, Producer, TopicStats
from nsqadmin_cli.cluster import failures_of
from nsqadmin_cli.commands.nodes import Listed
from nsqadmin_cli.errors import AdminError, NotFound
from nsqadmin_cli.http_client import NodeError
from nsqadmin_cli.message import MOST, Peeked, PeekedQueue, clock, hex_lines, peek_at, pretty_lines
from nsqadmin_cli.snapshot import ClusterSnapshot, Flow, Key, ask_holders, backlog, oldest_age, through
from nsqadmin_cli.stat_tables import LISTING, PROCESS, RATES, NodeRow, Value, count
from nsqadmin_cli.table import Cell, Form, Grid, Table, Tone, column, columns_of, shown, table_of
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
    tone_class,
    with_query,
)
from nsqadmin_cli.web.site import Exact, Lines, Page, Site
from nsqadmin_cli.web.tail import SHOWN, TEMPORARY

LAST_KNOWN = "last known"  # of what only nodes have that do not answer
_CHANNELS = 20  # whose names contain a text, on the overview
_OF_A_KIND = 50  # findings on one page
_BACKLOG = 10.0  # seconds of what arrives that are queued where a queue grows, so that no burst counts
_ON_NODE = ("version", "topic_count", "backend_depth", "in_flight_count", "message_count")  # of a node, on its own page
_LONGEST_BODY = 20_480  # characters of a message that are shown
_COMPLETED = 300  # topics that a form completes
VIEWS = {"": "formatted", "raw": "as it is", "hex": "in hexadecimal"}  # of bodies


@dataclass(eq=False, repr=False)
class TopicRow:
    """A topic and all its channels, on all nodes."""

    name: Value = column("topic", key="topic", tone=Tone.STRONG)
    ingress_rate: Value = column("in/s", form=Form.RATE, keep=8)
    egress_rate: Value = column("finished/s", form=Form.RATE, keep=5)
    total_depth: Value = count("total depth", keep=9)
    depth: Value = count("depth", keep=6)
    channel_depth: Value = count("channel depth", keep=6)
    oldest_message_age_seconds: Value = column("oldest", form=Form.DURATION, keep=6)
    in_flight_count: Value = count("in flight", keep=5)
    deferred_count: Value = count("deferred", keep=3)
    message_count: Value = count("messages", keep=3)
    channel_count: Value = count("channels", keep=5)
    client_count: Value = count("clients", keep=5)
    trouble: Value = column("trouble", form=Form.RANK, keep=9)


class Trouble(enum.IntEnum):
    """The trouble of a topic or its channels, the worst last."""

    PAUSED = 1
    DEAD_LETTERS = 2
    NO_CHANNEL = 3  # but messages
    GROWING = 4
    REQUEUE_STORM = 5  # more is requeued than finished
    NO_CONSUMER = 6  # but messages
    LOW_ON_DISK = 7  # a node, where it has messages on disk

    def __str__(self) -> str:
        return self.name.lower().replace("_", " ")


def _troubles(snapshot: ClusterSnapshot, topic: TopicStats) -> Iterator[Trouble]:
    name, channels, rows = topic.topic_name, topic.channels, _queues(topic)
    for address, share in snapshot.topic_shares[name].items():
        process = snapshot.nodes[address].process
        if process is not None and process.is_low_on_disk and any(row.backend_depth for row in _queues(share)):
            yield Trouble.LOW_ON_DISK
    if is_dead_letter_topic(name) and not any(channel.client_count for channel in channels):
        if any(map(backlog, rows)):
            yield Trouble.DEAD_LETTERS
        return  # nobody needs to consume them
    if any(backlog(channel) and not channel.client_count for channel in channels):
        yield Trouble.NO_CONSUMER
    for row in rows:
        key = name, row.channel_name if isinstance(row, ChannelStats) else ""
        flow = (snapshot.flows or {}).get(key, Flow())
        if flow.requeues >= 1.0 and flow.requeues > flow.egress:
            yield Trouble.REQUEUE_STORM
        if flow.is_growing and row.depth > _BACKLOG * flow.ingress:
            yield Trouble.GROWING
    if topic.depth and not channels:
        yield Trouble.NO_CHANNEL
    if any(row.paused for row in rows):
        yield Trouble.PAUSED


def _queues(topic: TopicStats) -> list[TopicStats | ChannelStats]:
    return [topic, *topic.channels]


def _topic_row(snapshot: ClusterSnapshot, topic: TopicStats) -> TopicRow:
    flow, trouble = snapshot.topic_flows.get(topic.topic_name), max(_troubles(snapshot, topic), default=None)

    def total(name: str) -> int | None:  # without channels, there is none
        return sum(getattr(channel, name) for channel in topic.channels) if topic.channels else None

    return TopicRow(
        topic.topic_name,
        flow.ingress if flow else None,
        flow.egress if flow and topic.channels else None,
        topic.depth + (total("depth") or 0),
        topic.depth,
        total("depth"),
        oldest_age(_queues(topic)),
        total("in_flight_count"),
        total("deferred_count"),
        topic.message_count,
        len(topic.channels),
        total("client_count"),
        trouble and Cell(trouble, Tone.BAD if trouble > Trouble.DEAD_LETTERS else Tone.NOTE),
    )


def _view(request: Request, sort: str = "") -> View:
    """What the address selects; `sort` is the column to sort by if it selects none."""
    given = request.query
    page = given.get("page", "1")
    names = {name: given[name] for name in ("topic", "channel", "node") if given.get(name)}
    path = f"{request.path}?{query(**names)}" if names else request.path
    return View(
        path,
        given.get("find", ""),
        given.get("sort") or sort,
        int(page) if page.isdecimal() and len(page) < 6 else 1,
        given["range"] if given.get("range") in RANGES else "1h",
        "only" if given.get("trouble") else "",
    )


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
    snapshot, view = site.snapshot(request), _view(request, sort="trouble")
    known = {
        stats.topic_name: (look, stats) for look in (snapshot.last_known, snapshot) for stats in look.totals.topics
    }
    rows = [_topic_row(look, stats) for _, (look, stats) in sorted(known.items()) if _matches(stats, view.find)]
    # Of one trouble, the fullest first; by the order of magnitude, so that rows do not change places all the time.
    troubled = [row for row in rows if row.trouble]
    troubled.sort(key=lambda row: -len(str(row.total_depth)))
    chosen = troubled if view.trouble else troubled + [row for row in rows if not row.trouble]
    nothing = "No topic matches." if view.find else "No topics yet: publishing creates one."
    table = table_of(TopicRow, chosen, empty="No topic is in trouble." if view.trouble else nothing)
    made = html_table("Topics", table, _topic_link, view)
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
            "channels": _found_channels(snapshot, view.find),
            "view": view,
            "range": view.range,
            "sort": request.query.get("sort", ""),
            "found": len(rows),
            "in_trouble": len(troubled),
            "diagnosis": site.monitor.diagnosis.latest(),
        },
    )


def _found_channels(snapshot: ClusterSnapshot, find: str) -> HTMLTable | None:
    """The first channels whose own name contains a text, if there is one to find."""
    keys = [key for key in snapshot.channel_shares if find and find.lower() in key[1].lower()]
    if not keys:
        return None
    table = stat_tables.channel_table(snapshot, watched=True, only=set(keys[:_CHANNELS]))
    caption = "Channels" if len(keys) <= _CHANNELS else f"The first {_CHANNELS} of {len(keys):,} channels"
    return html_table(caption, table, _queue_link)


def _matches(topic: TopicStats, find: str) -> bool:
    text = find.lower()
    return text in topic.topic_name.lower() or any(text in channel.channel_name.lower() for channel in topic.channels)


def _topic_link(key: str, row: dict[str, object]) -> str:
    return address_of(str(row["topic"])) if key == "topic" else ""


def _queue_link(key: str, row: dict[str, object]) -> str:
    topic, channel = str(row["topic"]), row.get("channel")
    return address_of(topic) if key == "topic" else address_of(topic, str(channel)) if key == "channel" else ""


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
            "is_dead": is_dead_letter_topic(name),
            "channel_depth": sum(channel.depth for channel in whole.channels) if whole and whole.channels else None,
            "charts": _charts(site, latest, view, name),
            "nodes_table": html_table("Nodes", node_table, _node_link),
            "table": _add_history(site, latest, view, table, "depth", lambda row: (name, row["channel"])),
            "tombstones": sorted(listed.nodes) if listed is not None else [],
            "tombstoned": sorted(listed.tombstoned) if listed is not None else [],
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
    without = [*_ON_NODE, *(() if site.cluster.lookupds else LISTING)]
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
    row = stat_tables.node_rows(snapshot)[address]
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
    counts = {"topics": row.topic_count, "channels": row.channel_count, "clients": row.client_count}
    chosen = given if (given := request.query.get("show", "")) in counts else "topics"
    if chosen == "clients":
        table = stat_tables.client_table(alone)
        table.select([index for index, column in enumerate(table.columns) if column.key != "node"])
    else:
        table = stat_tables.channel_table(alone) if chosen == "channels" else stat_tables.topic_table(alone)
    view = _view(request)
    view = view._replace(path=with_query(view.path, show=chosen))
    return Page(
        "node.html",
        {
            **_common(site, snapshot),
            "sums": None,
            "title": f"Node {address}",
            "node": str(address),
            "numbers": [_number(row, name) for name in (*RATES, *PROCESS, "depth", *_ON_NODE[2:])],
            "facts": facts(Grid(rows)),
            "counts": counts,
            "chosen": chosen,
            "table": html_table(chosen.capitalize(), table, _queue_link, view, below="remote_address"),
        },
    )


def _number(row: NodeRow, name: str) -> tuple[str, str, str]:
    """Heading, text and class of a figure of a node."""
    its = columns_of(NodeRow)[name]
    text, tone = shown(getattr(row, name), its)
    return its.heading, text or "–", tone_class(tone)


def options(site: Site, request: Request) -> Page:
    """All options of a node, as `gnsqadmin config get` shows them."""
    from nsqadmin_cli.commands.config import value_table
    from nsqadmin_cli.node_options import NODE_OPTIONS, options_of

    node = site.node(request.query.get("node", ""))
    had = options_of(node, list(NODE_OPTIONS))
    table = html_table("Options", value_table(list(had), {node.address: had}))
    return Page("options.html", {"node": str(node), "table": table})


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


def _registrations(producers: Sequence[Producer]) -> list[tuple[Producer, str]]:
    """The nodes that an nsqlookupd lists, each with the topics that it hides there."""
    return [
        (it, units.shortened([topic for topic, dead in zip(it.topics, it.tombstones, strict=False) if dead], 5))
        for it in sorted(producers, key=lambda producer: producer.name)
    ]


def doctor(site: Site, request: Request) -> Page:
    """The latest findings by kind, or those of one kind; after an examination of some seconds if there are none yet."""
    diagnosis = site.monitor.diagnosis.value(math.inf)
    view, kind = _view(request), request.query.get("kind", "")
    findings = [finding for finding in diagnosis.findings if finding.code == kind]
    pages = view._replace(path=f"/doctor?{query(kind=kind)}").pages(len(findings), _OF_A_KIND)
    return Page(
        "doctor.html",
        {
            "title": "Doctor",
            "diagnosis": diagnosis,
            "taken": units.clock(diagnosis.clock),
            "kind": kind,
            "findings": findings[pages.rows],
            "found": len(findings),
            "pages": pages,
        },
    )


def peek(site: Site, request: Request) -> Page:
    """The queued messages of a topic or channel, of every node that can show them."""
    given, number, find = request.query, request.query.get("count", "10"), request.query.get("find", "")
    topic, channel = given.get("topic", ""), given.get("channel", "")
    if not topic or not number.isdecimal() or not 0 < int(number[:9]) <= MOST:
        raise HTTPError(400, f"a topic is needed, and a count of 1 to {MOST}")
    count, page = int(number), min(_view(request).page, MOST)
    most = MOST if find else min(page * count, MOST)
    answers = ask_holders(site.cluster, lambda nsqd: peek_at(nsqd, topic, channel, most), topic, channel)
    queues = {at: answer for at, answer in answers.items() if isinstance(answer, PeekedQueue)}
    nodes, longest = [], 0
    for at, queue in queues.items():
        found = _found(queue.messages, find)
        longest = max(longest, len(found) if find else min(queue.depth, MOST))
        shown = [_message(each, given) for each in found[(page - 1) * count : page * count]]
        nodes.append((str(at), queue.depth, len(found) if find else None, shown))
    return Page(
        "peek.html",
        {
            "title": "Queued messages",
            "topic": topic,
            "channel": channel,
            "count": number,
            "most": MOST,
            **_bodies(topic, given),
            "nodes": nodes,
            "pages": View(f"/peek?{query(**given | {'page': ''})}", page=page).pages(longest, count),
            "errors": [str(error) for error in failures_of(answers)],
        },
    )


def _bodies(topic: str, given: Mapping[str, str]) -> dict[str, Any]:
    """What the form of a page with messages needs."""
    values = {"find": given.get("find", ""), "views": VIEWS, "view": given.get("view", "")}
    return values | {"is_dead": is_dead_letter_topic(topic)}


def _found(messages: Iterable[Peeked], find: str) -> list[Peeked]:
    """Returns those with this text in the body, in any case, or in the id; all for ""."""
    text = find.lower()
    return [each for each in messages if text in f"{each.message.id_text} {each.message.body_text}".lower()]


def _message(peeked: Peeked, given: Mapping[str, str]) -> dict[str, Any]:
    """The values of a message for the template. The body of a dead letter is the original one, unless it is shown as
    it is."""
    message, view, letter = peeked.message, given.get("view", ""), None
    if not view and is_dead_letter_topic(message.topic):
        with suppress(ValueError):
            letter = DeadLetter.parse(message.body)
            message = replace(message, body=letter.body)
    lines = hex_lines(message.body) if view == "hex" else message.body_text.splitlines()
    if not view and len(pretty := pretty_lines(message.body_text)) > 1:
        lines = pretty
    text = "\n".join(lines)
    return {
        "letter": letter,
        "failed": plural(letter.attempts, "time") if letter else "",
        "published": clock(letter.timestamp) if letter else "",
        "died": clock(letter.died) if letter else "",
        "time": clock(message.timestamp),
        "age": units.duration(time.time() - message.timestamp / 1e9),
        "id": printable(message.id_text, 64),
        "attempts": message.attempts,
        "size": units.size(peeked.size),
        "place": "on disk" if peeked.on_disk else "in memory",
        "cut": peeked.size > len(peeked.message.body) or len(text) > _LONGEST_BODY,
        "body": Lines(text[:_LONGEST_BODY]),
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
    values |= {**_common(site, snapshot), **_bodies(name, request.query), "count": 0, "shown": SHOWN}
    # Its first channel, which this would be, would get all queued messages, and they would be lost with it.
    values["is_possible"] = any(not channel.channel_name.startswith(TEMPORARY) for channel in whole.channels)
    if request.is_live and values["is_possible"]:
        tail = site.tails.look(name)
        found = _found(list(tail.latest), request.query.get("find", ""))
        values["messages"] = [_message(each, request.query) | {"node": each.message.node} for each in found]
        values["count"] = tail.count
        values["errors"] += tail.errors
    return Page("tail.html", values)


def publish(site: Site, request: Request) -> Page:
    return publish_page(site, request.query.get("topic", ""))


def publish_page(site: Site, topic: str, **more: Any) -> Page:
    """The form to publish, with what was sent before. It completes the topics with the most messages."""
    snapshot = site.monitor.snapshot(10.0)
    topics = sorted(snapshot.totals.topics, key=lambda stats: stats.message_count, reverse=True)
    values = {
        "title": "Publish",
        "nodes": [str(at) for at in snapshot.nodes],
        "topics": [stats.topic_name for stats in topics[:_COMPLETED]],
        "topic": topic,
        "new": "",
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
