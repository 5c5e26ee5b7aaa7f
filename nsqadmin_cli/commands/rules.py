"""`gnsqadmin channel rules`: the rate limit, the order and the idle timeout of a channel."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

import click
from msgspec import Struct

from gnsqd.options import IDLE_POLICIES
from nsqadmin_cli.api import Count, Nsqd
from nsqadmin_cli.change import Change, Shown
from nsqadmin_cli.cluster import Cluster, values_of
from nsqadmin_cli.command_base import change_command, option
from nsqadmin_cli.snapshot import ask_holders, shown_rows
from nsqadmin_cli.table import ALWAYS, Cell, Form, Tone, column, described, json_only
from nsqadmin_cli.units import seconds_of


class _Rules(Struct, frozen=True, gc=False):
    rate: Count | float
    burst: Count
    ordered: bool
    idle_timeout: Count | None = None  # ns
    idle_policy: str | None = None


@dataclass(slots=True)
class RulesRow:
    """The rules on one node."""

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
    answers = ask_holders(cluster, partial(_ask, "GET", query), topic, channel)
    nodes = [Nsqd(address, cluster.http) for address in values_of(answers)]

    def show(dry_run: bool) -> Shown:
        return shown_rows(cluster, query | {"dry_run": dry_run}, RulesRow, answers)

    def do() -> None:
        answers.update(cluster.ask(partial(_ask, "POST", query | changes), nodes))

    shown = ", ".join(f"{name.replace('_', ' ')} {value or 'of the node'}" for name, value in changes.items())
    warning = f"The channel {channel} in the topic {topic} gets {shown}."
    return Change(show, do if changes and nodes else None, warning, "Change it?")


def _ask(method: Literal["GET", "POST"], query: Mapping[str, str], node: Nsqd) -> RulesRow:
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
