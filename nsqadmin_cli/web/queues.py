"""The overview, and the pages of topics and channels. Each view is called in a thread and returns a template with its
values."""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any

from gnsqd.broker.dead_letter_format import dead_letter_topic, is_dead_letter_topic
from nsqadmin_cli import stat_tables, units
from nsqadmin_cli.api import ChannelStats, TopicStats
from nsqadmin_cli.diagnosis.examination import troubled
from nsqadmin_cli.errors import AdminError
from nsqadmin_cli.output import not_found
from nsqadmin_cli.snapshot import ClusterSnapshot, Key, backlog, oldest_age, through
from nsqadmin_cli.stat_tables import Value, count
from nsqadmin_cli.table import Cell, Form, Grid, Table, Tone, column, table_of
from nsqadmin_cli.units import printable, suggestion
from nsqadmin_cli.web.history import add_sparklines, charts_of
from nsqadmin_cli.web.http import PageRequest
from nsqadmin_cli.web.monitor import Diagnosis
from nsqadmin_cli.web.present import AT_LEAST, LAST_KNOWN, RANGES, HTMLTable, View, common, facts, html_table, link_of
from nsqadmin_cli.web.site import Page, PageSite

_CHANNELS = 20  # whose names contain a text, on the overview


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


class Trouble(int):
    """The place of a kind of findings, shown as its code in words; the worst is 0, and the others are below."""

    code = ""

    def __str__(self) -> str:
        return self.code.replace("-", " ")


def _troubles(diagnosis: Diagnosis | None) -> dict[str, Trouble]:
    """Returns the trouble of each topic, the worst of it and its channels."""
    codes = troubled(diagnosis.findings) if diagnosis else {}
    places = {code: -place for place, code in enumerate(dict.fromkeys(codes.values()))}
    troubles: dict[str, Trouble] = {}
    for (topic, _), code in codes.items():
        trouble = troubles.setdefault(topic, Trouble(places[code]))
        trouble.code = trouble.code or code
    return troubles


def _queues(topic: TopicStats) -> list[TopicStats | ChannelStats]:
    return [topic, *topic.channels]


def _topic_row(snapshot: ClusterSnapshot, topic: TopicStats, trouble: Trouble | None) -> TopicRow:
    flow = snapshot.topic_flows.get(topic.topic_name)

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
        None if trouble is None else Cell(trouble, Tone.BAD),
    )


def overview(site: PageSite, request: PageRequest) -> Page:
    if request.names:
        return topic(site, request) if len(request.names) == 1 else channel(site, request)
    snapshot, view = site.snapshot(request), View.of(request, sort="trouble")
    known = {
        stats.topic_name: (look, stats) for look in (snapshot.last_known, snapshot) for stats in look.totals.topics
    }
    diagnosis = site.monitor.diagnosis.latest()
    troubles = _troubles(diagnosis)
    found = [(look, stats) for _, (look, stats) in sorted(known.items()) if _matches(stats, view.find)]
    rows = [_topic_row(look, stats, troubles.get(stats.topic_name)) for look, stats in found]
    # Of one trouble, the fullest first; by the order of magnitude, so that rows do not change places all the time.
    in_trouble = [row for row in rows if row.trouble is not None]
    in_trouble.sort(key=lambda row: -len(str(row.total_depth)))
    chosen = in_trouble if view.trouble else in_trouble + [row for row in rows if row.trouble is None]
    no_trouble = "No topic is in trouble." if diagnosis else "Doctor examines the nodes."
    nothing = "No topic matches." if view.find else "No topics yet: publishing creates one."
    table = table_of(TopicRow, chosen, empty=no_trouble if view.trouble else nothing)
    made = html_table("Topics", table, view=view)
    return Page(
        "overview.html",
        **common(snapshot),
        title="Overview",
        snapshot=snapshot,
        flow=None if snapshot.flows is None else through(snapshot.flows),
        charts=charts_of(site.monitor.history, snapshot.moment, view),
        table=_add_history(site, snapshot, view, made, "total_depth", lambda row: (row["topic"], "")),
        channels=_found_channels(snapshot, view.find),
        view=view,
        sort=request.query.get("sort", ""),
        found=len(rows),
        in_trouble=len(in_trouble) if diagnosis else None,
        diagnosis=diagnosis,
    )


def _found_channels(snapshot: ClusterSnapshot, find: str) -> HTMLTable | None:
    """Lists the first channels whose own name contains a text, if there is one to find."""
    keys = [key for key in snapshot.channel_shares if find and find.lower() in key[1].lower()]
    if not keys:
        return None
    table = stat_tables.channel_table(snapshot, watched=True, only=set(keys[:_CHANNELS]))
    caption = "Channels" if len(keys) <= _CHANNELS else f"The first {_CHANNELS} of {len(keys):,} channels"
    return html_table(caption, table)


def _matches(topic: TopicStats, find: str) -> bool:
    text = find.lower()
    return text in topic.topic_name.lower() or any(text in channel.channel_name.lower() for channel in topic.channels)


def topic(site: PageSite, request: PageRequest) -> Page:
    (name,) = request.names
    latest = site.snapshot(request)
    listed = site.monitor.listed.value().get(name) if site.cluster.lookupds else None
    snapshot = latest if latest.places(name) else latest.last_known
    whole, shares = snapshot.totals.topic(name), snapshot.topic_shares.get(name, {})
    if whole is not None:
        rows = facts(Grid.of(stat_tables.topic_facts(whole, shares)))
        if hidden := [str(at) for at in shares if listed is not None and str(at) not in listed.nodes]:
            rows.append(("not found", f"nsqlookupd does not send consumers to {', '.join(hidden)}", "note"))
    elif listed is not None:
        nodes = "no node that answered" if latest.errors else "no node"
        rows = [("nodes", f"{nodes} has it; nsqlookupd still lists it", "note")]
    else:
        raise unknown(latest, f"the topic {name}", name, latest.topic_shares)

    def rows_of_channels(look: ClusterSnapshot, without: Collection[Key] = ()) -> Table:
        keys = {key for key in look.channel_shares if key[0] == name and key not in without}
        return stat_tables.channel_table(look, watched=True, with_topic=False, only=keys)

    channels = rows_of_channels(snapshot)
    if snapshot is latest:  # and channels of other nodes alone, as they were last known
        channels.rows += rows_of_channels(latest.last_known, latest.channel_shares).rows
    channels.empty = "No channels: messages are queued in the topic until there is one."
    view = View.of(request)
    table = html_table("Channels", channels, lambda key, row: link_of(key, {"topic": name} | row), view)
    return Page(
        "topic.html",
        **_about_queue(site, latest, view, shares, name),
        title=f"Topic {printable(name, 64)}",
        whole=whole,
        facts=rows,
        flow=snapshot.topic_flows.get(name),
        is_dead=is_dead_letter_topic(name),
        channel_depth=sum(channel.depth for channel in whole.channels) if whole and whole.channels else None,
        nodes_table=whole and html_table("Nodes", stat_tables.share_table(snapshot, shares, whole)),
        table=_add_history(site, latest, view, table, "depth", lambda row: (name, row["channel"])),
        tombstones=sorted(listed.nodes) if listed is not None else [],
        tombstoned=sorted(listed.tombstoned) if listed is not None else [],
    )


def channel(site: PageSite, request: PageRequest) -> Page:
    topic, name = request.names
    latest, view = site.snapshot(request), View.of(request)
    snapshot = latest if latest.places(topic, name) else latest.last_known
    whole = snapshot.totals.topic(topic)
    channels = whole.channels if whole is not None else ()
    channel = next((stats for stats in channels if stats.channel_name == name), None)
    if channel is None:
        known = [channel_name for of, channel_name in latest.channel_shares if of == topic]
        raise unknown(latest, f"the channel {name} in the topic {topic}", name, known)
    shares = snapshot.channel_shares[topic, name]
    rows = facts(Grid.of(stat_tables.common_facts(channel, shares)))
    flow = (snapshot.flows or {}).get((topic, name))
    seconds = None if flow is None or channel.paused else flow.drain_seconds(backlog(channel))
    if seconds is not None and seconds >= 1.0:
        rows.append(("empty in", units.duration(seconds), ""))
    clients = stat_tables.client_table(snapshot, with_places=False, of=(topic, name))
    return Page(
        "channel.html",
        **_about_queue(site, latest, view, shares, topic, name),
        title=f"Channel {printable(name, 64)} of {printable(topic, 64)}",
        channel=name,
        whole=channel,
        facts=rows,
        flow=flow,
        has_dead_letters=dead_letter_topic(topic, name) in snapshot.topic_shares,
        nodes_table=html_table("Nodes", stat_tables.share_table(snapshot, shares, channel)),
        table=html_table("Clients", clients, view=view),
    )


def _about_queue(
    site: PageSite, latest: ClusterSnapshot, view: View, shares: stat_tables.Shares, topic: str, channel: str = ""
) -> dict[str, Any]:
    """Returns what the pages of topics and of channels show alike. `paused` is "all" or "some" nodes, or ""."""
    paused = sum(share.paused for share in shares.values())
    return {
        **common(latest, topic, channel),
        "topic": topic,
        "paused": ("all" if paused == len(shares) else "some") if paused else "",
        "charts": charts_of(site.monitor.history, latest.moment, view, topic, channel),
    }


def unknown(snapshot: ClusterSnapshot, what: str, name: str, known: Iterable[str]) -> AdminError:
    """Returns the error if no node that answered has it: it is not found only if all answered."""
    return not_found(what if snapshot.errors else what + suggestion(name, known), snapshot.errors)


def _add_history(
    site: PageSite, snapshot: ClusterSnapshot, view: View, table: HTMLTable, column: str, key_of: Callable[[Any], Key]
) -> HTMLTable:
    """Adds the depths of topics or channels as lines in this column, and marks of rows that lack a node."""
    history = site.monitor.history
    if window := history.window(snapshot.moment, RANGES[view.range][0]):
        add_sparklines(table, column, lambda row: history.depths(window, *key_of(row)))
    for row in table.rows:
        key = key_of(row.values)
        if key in snapshot.partial_keys:
            row.mark = AT_LEAST if snapshot.places(*key) else LAST_KNOWN
    return table
