"""`gnsqadmin channel rewind`: finished messages are delivered again."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import click
from msgspec import Struct

from nsqadmin_cli.api import Count, Nsqd
from nsqadmin_cli.change import Change, Shown
from nsqadmin_cli.cluster import Cluster, values_of
from nsqadmin_cli.command_base import change_command, option
from nsqadmin_cli.snapshot import ask_holders, shown_rows
from nsqadmin_cli.table import ALWAYS, Cell, Form, Tone, column, described, json_only
from nsqadmin_cli.units import plural, printable, seconds_of


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
    """What is planned for a node, or was done there."""

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
    answers = ask_holders(cluster, partial(_rewind, "GET", query), topic, channel, point)
    plans = values_of(answers)

    def messages() -> int:
        return sum(row.messages or 0 for row in values_of(answers).values())

    def show(dry_run: bool) -> Shown:
        about = {"topic": topic, "channel": channel, "dry_run": dry_run, "messages": messages()}
        return shown_rows(cluster, about, RewindRow, answers, "all")

    def rewound(node: Nsqd) -> RewindRow:
        done = _rewind("POST", query, node)
        return replace(plans[node.address], messages=done.messages, result=Cell("rewound", Tone.GOOD))

    def do() -> None:
        answers.update(cluster.ask(rewound, [Nsqd(address, cluster.http) for address in plans]))

    warning = f"{plural(messages(), 'message')} will be delivered again to the channel {channel} in the topic {topic}."
    return Change(show, do if plans else None, warning, "Rewind it?")


def _rewind(method: Literal["GET", "POST"], query: Mapping[str, str], node: Nsqd) -> RewindRow:
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
