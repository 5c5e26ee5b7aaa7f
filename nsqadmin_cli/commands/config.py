"""`gnsqadmin config get` and `config set`: options of running nodes."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click

from gnsqd.options import OPTIONS
from nsqadmin_cli.api import Nsqd
from nsqadmin_cli.change import Change, Shown
from nsqadmin_cli.cluster import Answers, Cluster, ask_all, by_node, errors_of, values_of
from nsqadmin_cli.command_base import Parsed, argument, change_command, command, flag
from nsqadmin_cli.http_client import Address, NodeError, NodeRefused
from nsqadmin_cli.node_options import NODE_OPTIONS, UNKNOWN, options_of, parse, shown
from nsqadmin_cli.output import not_found
from nsqadmin_cli.table import ALWAYS, Cell, Column, Row, Table, Tone, failed
from nsqadmin_cli.units import grouped, plural, printable, shortened, suggestion

_SHOWN = 3  # nodes in a row
_PATIENCE = 4  # timeouts for all options of a node, each of which has one
CHANGEABLE = [option.cfg for option in OPTIONS if option.reload]  # while it runs


def _key(keys: Iterable[str], **more: Any) -> Any:
    """Returns an argument, the key of an option, which may be given like its flag; a shell completes `keys`."""

    def parse(text: str) -> str:
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,100}", text):
            raise ValueError(f"{printable(repr(text), 100)} is not a valid option name.")
        return text.replace("-", "_")

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
        return [key for key in keys if key.startswith(incomplete)]

    kind = Parsed("option", parse)
    kind.choices = () if "nargs" in more else tuple(keys)  # of the page
    return argument(kind, shell_complete=complete, **more)


@command(
    examples="""
        gnsqadmin config get
        gnsqadmin config get log_level max_msg_size
        gnsqadmin config get --different --lookupd-http-address lookup.example:4161
        gnsqadmin config get --json | jq '.nodes[0].options.mem_queue_size'
    """,
    document="""
        nodes    list, in the order queried: address, error (null, or why it has no
                 options), options (by key: values as in /config, durations
                 in ns; options that the node does not have are missing)
    """,
)
def get(
    cluster: Cluster,
    option: tuple[str, ...] = _key(NODE_OPTIONS, nargs=-1),
    different: bool = flag("Show only options whose values differ between nodes."),
) -> Shown:
    """Options are named by their keys in the config file (max_msg_size) or as flags (max-msg-size). Nodes with the same
    value share a row."""
    keys = list(dict.fromkeys(option)) or list(NODE_OPTIONS)
    answers = ask_all(cluster.nsqds(), lambda node: options_of(node, keys), cluster.timeout * _PATIENCE)
    errors = [*cluster.lookupd_errors, *errors_of(answers)]
    answered = values_of(answers)
    missing = [key for key in keys if not any(key in options for options in answered.values())]
    if option and missing and (answered or not errors):
        raise not_found(f"the option {missing[0]}{suggestion(missing[0], NODE_OPTIONS)}", errors)
    kept = [key for key in keys if key not in missing]
    if different:
        texts = {key: {json.dumps(had[key]) if key in had else "" for had in answered.values()} for key in kept}
        kept = [key for key in kept if len(texts[key]) > 1]
    nodes = by_node(answers, lambda had: {"options": {key: had[key] for key in kept if key in had}}, {"options": {}})
    values = [(key, str(node), had[key]) for key in kept for node, had in answered.items() if key in had]
    rows: list[Row] = [(*place, value if isinstance(value, str) else json.dumps(value)) for *place, value in values]
    flat = Table((Column("option", "option"), Column("node", "node"), Column("value", "value")), rows)
    return Shown({"nodes": nodes}, [value_table(kept, answered)], flat, errors)


@change_command(
    asks=False,
    examples="""
        gnsqadmin config set log_level debug --nsqd-http-address a.example:4151
        gnsqadmin config set nsqlookupd_tcp_addresses lookup-1.example:4160 lookup-2.example:4160
        gnsqadmin config set nsqlookupd_tcp_addresses '[]'
    """,
    document="""
        option
        nodes    list, in the order queried: address, error (null, or why nothing was
                 changed), before, after (values as in /config)
    """,
)
def set_(
    cluster: Cluster, option: str = _key(CHANGEABLE), value: tuple[str, ...] = argument(nargs=-1, required=True)
) -> Change:
    """Two options can be changed: log_level (debug, info, warn, error, fatal), and nsqlookupd_tcp_addresses, with
    several values or a JSON list. The config file is not changed."""
    text = _text(option, value)
    reasons = {UNKNOWN: f"{option} cannot be changed while nsqd runs, only {' and '.join(CHANGEABLE)} can"}
    expected = {"log_level": ", expected debug, info, warn, error or fatal"}.get(option, "")
    reasons["INVALID_VALUE"] = f"{printable(text, 100)!r} is not a value for {option}{expected}"
    before = cluster.ask(lambda node: parse(option, node.config(option)))
    errors = [*cluster.lookupd_errors, *errors_of(before)]
    others = [error for error in errors if not (isinstance(error, NodeRefused) and error.code == UNKNOWN)]
    if not values_of(before) and others != errors:
        raise not_found(f"the option {option}{suggestion(option, NODE_OPTIONS)}", others)
    after: Answers[object] = dict(before)

    def do() -> None:
        nodes = [Nsqd(address, cluster.http) for address in values_of(before)]
        after.update(cluster.ask(lambda node: parse(option, node.config(option, text, reasons)), nodes))

    def show(dry_run: bool) -> Shown:
        columns = Column("node", "node", tone=Tone.NODE), Column("before", f"{option} before", "before", keep=ALWAYS)
        table = Table((*columns, Column("after", "after", keep=ALWAYS)), empty="No nodes.")
        pairs = {at: answer if isinstance(answer, NodeError) else (before[at], answer) for at, answer in after.items()}
        for address, pair in pairs.items():
            if isinstance(pair, NodeError):
                table.rows.append([str(address), None, failed(pair.reason)])
            else:
                was, becomes = (shown(option, value) for value in pair)
                table.rows.append([str(address), was, Cell(becomes, Tone.GOOD)])
        nodes = by_node(pairs, lambda pair: {"before": pair[0], "after": pair[1]}, {"before": None, "after": None})
        errors = [*cluster.lookupd_errors, *errors_of(after)]
        # Where nothing was changed, the errors are enough.
        return Shown({"option": option, "nodes": nodes}, [table] if values_of(after) else [], table, errors)

    return Change(show, do)


def _text(key: str, values: Sequence[str]) -> str:
    """Returns the value that nodes get for the typed ones; raises UsageError."""
    if key != "nsqlookupd_tcp_addresses":
        if len(values) > 1:
            raise click.UsageError(f"{key} takes one value.")
        return values[0]
    if len(values) == 1 and values[0].lstrip().startswith("["):
        return values[0]
    for value in values:
        try:
            is_valid = not Address.parse(value).path and "://" not in value
        except ValueError:
            is_valid = False
        if not is_valid:
            raise click.UsageError(f"{printable(repr(value), 100)} is not a host:port of an nsqlookupd.")
    return json.dumps(values)


def value_table(keys: Sequence[str], answered: Mapping[Address, Mapping[str, object]]) -> Table:
    """Returns one row for each value of each option, with the nodes that have it where these are not all."""
    several = len(answered) > 1
    node = (Column("node", "nodes", keep=ALWAYS, tone=Tone.NODE),) if several else ()
    empty = "No option differs." if answered else ""
    table = Table((Column("option", "option"), Column("value", "value", keep=ALWAYS), *node), empty=empty)
    for key in keys:
        values = ((shown(key, had[key]) if key in had else "", str(address)) for address, had in answered.items())
        name: object = Cell(key, Tone.STRONG)
        for value, nodes in grouped(values).items():
            where = plural(len(nodes), "node") if len(nodes) == len(answered) else shortened(nodes, _SHOWN)
            text = Cell(value or "has no such option", Tone.FAINT if value in ("", "none") else None)
            table.rows.append([name, text, *([where] if several else [])])
            name = ""
    return table
