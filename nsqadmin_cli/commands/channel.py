"""`gnsqadmin channel`: shows, changes and empties channels, delivers messages again, and cancels deferred ones."""

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from operator import itemgetter
from typing import Literal

import click
from msgspec import Struct

from gnsqd.options import IDLE_POLICIES
from nsqadmin_cli import stat_tables
from nsqadmin_cli.api import ChannelStats, Count, Nsqd
from nsqadmin_cli.change import Change, Shown, ending
from nsqadmin_cli.cluster import Cluster, errors_of, failures_of, rows_of, values_of
from nsqadmin_cli.command_base import change_command, command, option
from nsqadmin_cli.errors import AdminError
from nsqadmin_cli.http_client import NodeRefused
from nsqadmin_cli.message import MOST, QueuedMessage
from nsqadmin_cli.operations import commands_of
from nsqadmin_cli.output import not_found
from nsqadmin_cli.snapshot import ask_holders, client_document, no_such, shown_rows, take_snapshot
from nsqadmin_cli.table import ALWAYS, Cell, Form, Grid, Line, Tone, as_json, column, described, json_only, table_of
from nsqadmin_cli.units import LONGEST, iso_time, parse_duration, plural, printable, seconds_of


@command(
    examples="""
        gnsqadmin channel show orders billing
        gnsqadmin channel show orders billing -o csv
        gnsqadmin channel show orders billing --json | jq '.clients[] | select(.ready_count == 0)'
    """,
    document=(
        "topic_name",
        described("(others)", "counts are summed over nodes, paused is of any node", ChannelStats),
        """
        clients  list: node, and the keys of a client in the /stats of nsqd
        nodes    list: address, error (null, or why it has no numbers), channel (the
                 keys above, or null where the node does not have it)
        """,
    ),
)
def show(cluster: Cluster, topic: str, channel: str) -> Shown:
    """CSV output has one row per consumer."""
    snapshot = take_snapshot(cluster, topic=topic, channel=channel, clients=True)
    if (topic, channel) not in snapshot.channel_shares:
        raise no_such(cluster, snapshot.errors, topic, channel)
    whole, shares = snapshot.totals.topics[0].channels[0], snapshot.channel_shares[topic, channel]
    clients = [client_document(client, address) for address, share in shares.items() for client in share.clients or ()]
    document = {"topic_name": topic, **as_json(whole), "clients": clients}
    facts = {"channel": Cell(channel, Tone.STRONG), "topic": topic, **stat_tables.common_facts(whole, shares)}
    table = stat_tables.client_table(snapshot, with_places=False)
    table.empty = "No consumers." if not whole.depth else "No consumers: its messages are not consumed."
    count = Line.of(plural(len(table.rows), "consumer"), Tone.STRONG)
    document["nodes"] = stat_tables.share_documents(snapshot, shares, "channel")
    nodes = stat_tables.share_table(snapshot, shares, whole)
    clients_of_all = partial(stat_tables.client_table, snapshot)
    return Shown(document, [Grid.of(facts), nodes, count, table], clients_of_all, snapshot.errors)


create, pause, unpause, empty, delete = commands_of("channel")


class _Rewind(Struct, frozen=True, gc=False):
    """A plan, or what was done, which has only the number of messages; times in ns."""

    messages: Count
    in_flight: Count | None = None
    depth: Count | None = None
    deferred: Count | None = None
    first: Count | None = None
    last: Count | None = None


@dataclass(slots=True)
class RewindRow:
    """The messages that come again on a node, planned or done."""

    address: str = column("node", key="node", keep=ALWAYS, tone=Tone.NODE)
    messages: int | None = column("messages", form=Form.COUNT, keep=ALWAYS, tone=Tone.NOTE, help="that come again")
    first: float | None = column("first", form=Form.TIME, keep=7, help="unix seconds when it was published, or null")
    last: float | None = column("last", form=Form.TIME, keep=6, help="the same")
    in_flight: int | None = column("in flight", "inflt", Form.COUNT, help="not changed, as are depth and deferred")
    result: Cell | None = column("result", keep=ALWAYS, sparse=True, json=False)
    depth: int | None = json_only()
    deferred: int | None = json_only()
    error: str | None = json_only("null, or why it failed")


@change_command(
    examples="""
        gnsqadmin channel rewind orders billing --to -15m --dry-run
        gnsqadmin channel rewind orders billing --to 2026-11-23T14:00:00Z --until 2026-11-23T14:10:00Z
        gnsqadmin channel rewind orders billing --to 0ea4d0c3b5a6f000 --yes
        gnsqadmin channel rewind orders billing --to first --dry-run --json | jq .messages
    """,
    document=(
        "topic, channel, dry_run\nmessages the sum over all nodes",
        described("nodes", "list, in the order queried", RewindRow),
    ),
)
def rewind(
    cluster: Cluster,
    topic: str,
    channel: str,
    to: str = option("The first message that comes again.", metavar="POINT", required=True),
    until: str | None = option("The first message that does not come again.", metavar="POINT"),
) -> Change:
    """POINT is a time ago (-15m), a time with its zone (2026-11-23T14:00:00Z), the id of a message, or "first": the
    oldest message that a node has kept. Only gnsqd keeps finished messages, with --retention-bytes.

    The messages come with attempts 1, in the order in which they were published. Queued, in-flight and deferred
    messages do not change.
    """
    query = {"topic": topic, "channel": channel, "to": to} | ({"until": until} if until is not None else {})
    point = to if until is None else f"{to} or {until}"
    answers = ask_holders(cluster, partial(_rewind_at, "GET", query), topic, channel, point)
    plans = values_of(answers)

    def messages() -> int:
        return sum(row.messages or 0 for row in values_of(answers).values())

    def show(dry_run: bool) -> Shown:
        about = {"topic": topic, "channel": channel, "dry_run": dry_run, "messages": messages()}
        return shown_rows(cluster, about, RewindRow, answers, "all")

    def rewound(node: Nsqd) -> RewindRow:
        done = _rewind_at("POST", query, node)
        return replace(plans[node.address], messages=done.messages, result=Cell("rewound", Tone.GOOD))

    def do() -> None:
        answers.update(cluster.ask(rewound, [Nsqd(address, cluster.http) for address in plans]))

    warning = f"{plural(messages(), 'message')} will be delivered again to the channel {channel} in the topic {topic}."
    return Change(show, do if plans else None, warning, "Rewind it?")


def _rewind_at(method: Literal["GET", "POST"], query: Mapping[str, str], node: Nsqd) -> RewindRow:
    """Returns the plan, or what was done; raises UsageError for a point that is none."""
    to, until = query["to"], query.get("until", "")
    expected = 'a time ago (-15m), a time with its zone (2026-11-23T14:00:00Z), the id of a message, or "first"'
    reasons: dict[str, str | Exception] = {
        "NOT_FOUND": "cannot rewind channels: it is not gnsqd, or an older one",
        "NO_JOURNAL": "keeps no finished messages: that needs --durability and --retention-bytes",
        "NO_RETENTION": "keeps no finished messages: that needs --retention-bytes",
        "CHANNEL_EPHEMERAL": "cannot rewind an ephemeral channel",
        "INVALID_ARG_TO": click.UsageError(f"--to: {printable(repr(to), 100)} is not {expected}."),
        "INVALID_ARG_UNTIL": click.UsageError(f"--until: {printable(repr(until), 100)} is not {expected}."),
        "UNTIL_BEFORE_TO": click.UsageError(f"--until: {printable(until, 100)} is before --to."),
    }
    answer = node.ask("/channel/rewind", _Rewind, query, method, reasons)
    row = RewindRow(str(node), answer.messages, seconds_of(answer.first), seconds_of(answer.last))
    row.in_flight, row.depth, row.deferred = answer.in_flight, answer.depth, answer.deferred
    return row


_WITHIN = (60, 3600, 86400, 604800)  # seconds


class _Due(Struct, frozen=True, gc=False):
    within: Count  # ns
    messages: Count


class _Deferred(Struct, frozen=True, gc=False):
    deferred: Count
    due: tuple[_Due, ...]
    messages: tuple[QueuedMessage, ...]


@dataclass(slots=True)
class DeferredRow:
    node: str = column("node", tone=Tone.NODE)
    due: float = column("due", form=Form.TIME, keep=8, help="unix seconds")
    id: str = column("id", keep=ALWAYS)
    attempts: int = column("attempts", "att", Form.COUNT, keep=2)
    size: int = column("size", form=Form.BYTES, keep=3, help="of the body, which is truncated to 32 KiB")
    text: str = column("body", keep=7, key="body", json=False, default="")
    body: str | None = json_only("text, or null if it is not UTF-8")
    body_base64: str | None = json_only("the body in base64 if it is not UTF-8, else null")
    result: Cell | None = column("result", keep=ALWAYS, sparse=True, json=False)

    def shortened(self, longest: int) -> "DeferredRow":
        """Returns it with the first characters of the body, as they are printed."""
        return replace(self, text=printable(printable(self.text), longest))


@dataclass(slots=True)
class DeferredNode:
    """The number of deferred messages on a node, and the first of them; None after an error."""

    address: str = column("node", key="node", tone=Tone.NODE)
    minute: int | None = column("within 1m", "1m", Form.COUNT)
    hour: int | None = column("within 1h", "1h", Form.COUNT)
    day: int | None = column("within 1d", "1d", Form.COUNT)
    week: int | None = column("within 7d", "7d", Form.COUNT, help="messages due within these times")
    deferred: int | None = column("deferred", "def", Form.COUNT, keep=ALWAYS, help="all messages")
    result: Cell | None = column("result", keep=ALWAYS, sparse=True, json=False)
    error: str | None = json_only("null, or why it failed")
    first: list[DeferredRow] = field(default_factory=list, metadata={"json": False})


@change_command(
    examples="""
        gnsqadmin channel deferred reminders mail
        gnsqadmin channel deferred reminders mail --from 7d --limit 100 -o csv
        gnsqadmin channel deferred reminders mail --cancel 0ea4d0c3b5a6f000
        gnsqadmin channel deferred reminders mail --json | jq '.nodes[].day'
    """,
    document=(
        "topic, channel\ndry_run  null without --cancel",
        described("nodes", "list, in the order queried, as before --cancel", DeferredNode),
        described("messages", "list, the first due first, or the cancelled message", DeferredRow),
    ),
)
def deferred(
    cluster: Cluster,
    topic: str,
    channel: str,
    limit: int = option("Show the first N messages.", click.IntRange(1, MOST), default=10),
    since: str | None = option("Leave out messages that are due earlier.", None, "--from", metavar="TIME"),
    cancel: str | None = option("Drop this message from the channel.", metavar="ID"),
) -> Change:
    """These are messages published with a delay, and messages requeued with a delay. TIME is a time with its zone
    (2026-12-01T00:00:00Z) or a time from now (1h, 7d). Only gnsqd supports this.

    --cancel shows the message before it asks for confirmation.
    """
    if cancel is not None and not re.fullmatch("[0-9a-f]{16}", cancel):
        raise click.UsageError(f"--cancel: {printable(repr(cancel), 100)} is not the id of a message.")
    place = {"topic": topic, "channel": channel}
    query = place | {"limit": str(limit)} | ({"from": _moment(since)} if since else {})
    query |= {"id": cancel} if cancel is not None else {}
    answers = ask_holders(cluster, partial(_deferred_of, query), topic, channel)
    rows = sorted((row for node in values_of(answers).values() for row in node.first), key=lambda row: row.due)[:limit]

    def show(dry_run: bool) -> Shown:
        counts = rows_of(DeferredNode, answers)
        counted = [] if cancel is not None else [table_of(DeferredNode, counts, total="all")]
        document = {**place, "dry_run": None if cancel is None else dry_run, "nodes": counts, "messages": rows}
        errors = [*cluster.lookupd_errors, *failures_of(answers)]
        table, whole = (
            table_of(DeferredRow, [row.shortened(longest) for row in rows], empty="No deferred messages to show.")
            for longest in (24, LONGEST)
        )
        return Shown(document, [*counted, table, *ending(dry_run)], whole, errors)

    def none_left() -> AdminError:
        return not_found(f"the deferred message {cancel}", [*cluster.lookupd_errors, *errors_of(answers)])

    def do() -> None:
        holders = [Nsqd(at, cluster.http) for at, node in values_of(answers).items() if node.first]
        done = cluster.ask(lambda node: node.request("POST", "/channel/deferred/cancel", query=query), holders)
        answers.update({error.address: error for error in errors_of(done)})
        rows[:] = [row for row in rows if row.node in {str(at) for at in values_of(done)}]
        if not rows:
            raise none_left()
        for row in rows:
            row.result = Cell("cancelled", Tone.GOOD)

    if cancel is None:
        return Change(show, None)
    if not rows:
        raise none_left()
    for row in rows:
        row.result = Cell("to be cancelled", Tone.NOTE)
    warning = f"The message {cancel} will not be delivered to the channel {channel} in the topic {topic}."
    return Change(show, do, warning, "Cancel it?")


def _moment(text: str) -> str:
    """Returns a time as nodes read it. They check it, unless it is a time from now."""
    try:
        return iso_time(round((time.time() + parse_duration(text)) * 1000) * 1_000_000)
    except (ValueError, OverflowError):
        return text


def _deferred_of(query: Mapping[str, str], node: Nsqd) -> DeferredNode:
    """Returns the row of a node; raises UsageError for an invalid time."""
    reasons = {"NOT_FOUND": "cannot list deferred messages: it is not gnsqd, or an older one"}
    try:
        answer = node.ask("/channel/deferred", _Deferred, query, reasons=reasons)
    except NodeRefused as error:
        if error.code == "MESSAGE_NOT_FOUND":
            return DeferredNode(str(node))
        if error.code == "INVALID_ARG_FROM":
            expected = "a time with its zone (2026-12-01T00:00:00Z) or a time from now (1h, 7d)"
            raise click.UsageError(f"--from: {printable(repr(query['from']), 100)} is not {expected}.") from None
        raise
    within = {count.within: count.messages for count in answer.due}
    row = DeferredNode(str(node), deferred=answer.deferred)
    row.minute, row.hour, row.day, row.week = (within.get(seconds * 10**9) for seconds in _WITHIN)
    for listed in answer.messages:
        message = listed.row(query["topic"], node)
        about = listed.due / 1e9, listed.id, listed.attempts, listed.size, message.body_text
        body, body_base64 = itemgetter("body", "body_base64")(message.document())
        row.first.append(DeferredRow(str(node), *about, body, body_base64))
    return row


class _Rules(Struct, frozen=True, gc=False):
    rate: Count | float
    burst: Count
    ordered: bool
    idle_timeout: Count | None = None  # ns
    idle_policy: str | None = None


@dataclass(slots=True)
class RulesRow:
    address: str = column("node", key="node", keep=ALWAYS, tone=Tone.NODE)
    rate: float | None = column("rate", keep=ALWAYS, help="messages a second, 0 without a limit")
    burst: int | None = column("burst", keep=ALWAYS, form=Form.COUNT, help="messages that may come at once")
    ordered: bool | None = column("ordered", keep=ALWAYS, form=Form.FLAG)
    idle_timeout: float | None = column(
        "idle timeout", sparse=True, form=Form.DURATION, help="seconds, 0: never, null: that of the node"
    )
    idle_policy: str | None = column("idle policy", sparse=True, help="null: that of the node")
    result: Cell | None = column("result", keep=ALWAYS, sparse=True, json=False)
    error: str | None = json_only("null, or why it failed")


@change_command(
    examples="""
        gnsqadmin channel rules orders billing
        gnsqadmin channel rules orders billing --rate 100 --burst 20 --yes
        gnsqadmin channel rules orders billing --ordered --dry-run
        gnsqadmin channel rules orders billing --rate 0 --no-ordered --yes
        gnsqadmin channel rules orders billing --idle-timeout 72h --idle-policy delete --yes
    """,
    document=("topic, channel, dry_run", described("nodes", "list, in the order queried", RulesRow)),
)
def rules(
    cluster: Cluster,
    topic: str,
    channel: str,
    rate: float | None = option("Messages a second on each node; 0 removes the limit.", click.FLOAT),
    burst: int | None = option("Messages that may come at once.", click.INT),
    ordered: bool | None = option("One message at a time, oldest first.", None, "--ordered/--no-ordered", default=None),
    idle_timeout: str | None = option("Time without consumers, as in 72h; 0: never, '': the node's.", click.STRING),
    idle_policy: str | None = option("What is done to it then.", click.Choice(IDLE_POLICIES)),
) -> Change:
    """Without options, show them. A rule that is not given does not change. Each node limits the rate, keeps the order
    of its own messages, and knows its own consumers; only gnsqd has rules."""
    given: dict[str, object] = {"rate": rate, "burst": burst, "ordered": ordered}
    given |= {"idle_timeout": idle_timeout, "idle_policy": idle_policy}
    changes = {name: str(value).lower() for name, value in given.items() if value is not None}
    query = {"topic": topic, "channel": channel}
    answers = ask_holders(cluster, partial(_rules_of, "GET", query), topic, channel)
    nodes = [Nsqd(address, cluster.http) for address in values_of(answers)]

    def show(dry_run: bool) -> Shown:
        return shown_rows(cluster, query | {"dry_run": dry_run}, RulesRow, answers)

    def do() -> None:
        answers.update(cluster.ask(partial(_rules_of, "POST", query | changes), nodes))

    shown = ", ".join(f"{name.replace('_', ' ')} {value or 'of the node'}" for name, value in changes.items())
    warning = f"The channel {channel} in the topic {topic} gets {shown}."
    return Change(show, do if changes and nodes else None, warning, "Change it?")


def _rules_of(method: Literal["GET", "POST"], query: Mapping[str, str], node: Nsqd) -> RulesRow:
    """Returns the rules of a node; raises UsageError for a rule that it does not accept."""
    reasons: dict[str, str | Exception] = {"NOT_FOUND": "has no delivery rules: it is not gnsqd, or older"}
    reasons["MISSING_ARG_RATE"] = "has no rules about idleness: it is an older gnsqd"
    for name, value in query.items():
        invalid = click.UsageError(f"--{name.replace('_', '-')}: {value} is not valid; see contrib/docs/rules.md.")
        reasons[f"INVALID_ARG_{name.upper()}"] = invalid
    rules = node.ask("/channel/rules", _Rules, query, method, reasons)
    row = RulesRow(str(node), rules.rate, rules.burst, rules.ordered, seconds_of(rules.idle_timeout), rules.idle_policy)
    row.result = Cell("changed", Tone.GOOD) if method == "POST" else None
    return row
