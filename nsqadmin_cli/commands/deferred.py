"""`gnsqadmin channel deferred`: deferred messages are listed, counted and cancelled."""

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from operator import itemgetter

import click
from msgspec import Struct

from nsqadmin_cli.api import Count, Nsqd
from nsqadmin_cli.change import Change, Shown, ending
from nsqadmin_cli.cluster import Cluster, errors_of, failures_of, rows_of, values_of
from nsqadmin_cli.command_base import change_command, option
from nsqadmin_cli.errors import AdminError
from nsqadmin_cli.http_client import NodeRefused
from nsqadmin_cli.message import MOST, QueuedMessage
from nsqadmin_cli.output import not_found
from nsqadmin_cli.snapshot import ask_holders
from nsqadmin_cli.table import ALWAYS, Cell, Form, Table, Tone, column, described, json_only, table_of
from nsqadmin_cli.units import LONGEST, iso_time, parse_duration, printable

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
    """One message."""

    node: str = column("node", tone=Tone.NODE)
    due: float = column("due", form=Form.TIME, keep=8, help="unix seconds")
    id: str = column("id", keep=ALWAYS)
    attempts: int = column("attempts", "att", Form.COUNT, keep=2)
    size: int = column("size", form=Form.BYTES, keep=3, help="of the body, which is truncated to 32 KiB")
    text: str = column("body", keep=7, key="body", json=False, default="")
    body: str | None = json_only("text, or null if it is not UTF-8")
    body_base64: str | None = json_only("the body in base64 if it is not UTF-8, else null")
    result: Cell | None = column("result", keep=ALWAYS, sparse=True, json=False)


@dataclass(slots=True)
class DeferredNode:
    """How many deferred messages a node has, and the first of them; None after an error."""

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
    answers = ask_holders(cluster, partial(_look, query), topic, channel)
    rows = sorted((row for node in values_of(answers).values() for row in node.first), key=lambda row: row.due)[:limit]

    def show(dry_run: bool) -> Shown:
        counts = rows_of(DeferredNode, answers)
        counted = [] if cancel is not None else [table_of(DeferredNode, counts, total="all")]
        document = {**place, "dry_run": None if cancel is None else dry_run, "nodes": counts, "messages": rows}
        errors = [*cluster.lookupd_errors, *failures_of(answers)]
        return Shown(document, [*counted, _table(rows), *ending(dry_run)], _table(rows, LONGEST), errors)

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


def _table(rows: Sequence[DeferredRow], longest: int = 24) -> Table:
    """Returns the rows with the first characters of each body, as they are printed."""
    shown = [replace(row, text=printable(printable(row.text), longest)) for row in rows]
    return table_of(DeferredRow, shown, empty="No deferred messages to show.")


def _moment(text: str) -> str:
    """Returns a time as nodes read it. They check it, unless it is a time from now."""
    try:
        return iso_time(round((time.time() + parse_duration(text)) * 1000) * 1_000_000)
    except (ValueError, OverflowError):
        return text


def _look(query: Mapping[str, str], node: Nsqd) -> DeferredNode:
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
