"""`gnsqadmin config get` and `config set`: options of running nodes."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click
from click.shell_completion import CompletionItem

from gnsqd.options import OPTIONS
from nsqadmin_cli.api import Nsqd
from nsqadmin_cli.cluster import Answers, Cluster, ask_all, by_node, errors_of, values_of
from nsqadmin_cli.command import command, option
from nsqadmin_cli.http_client import Address, NodeError, Refused
from nsqadmin_cli.node_options import NODE_OPTIONS, UNKNOWN, options_of, parse, shown
from nsqadmin_cli.output import Output, not_found, report
from nsqadmin_cli.table import ALWAYS, Cell, Column, Table, Tone
from nsqadmin_cli.units import plural, printable, shortened, suggestion

_SHOWN = 3  # nodes in a row
_PATIENCE = 4  # timeouts for all options of a node, each of which has one


CHANGEABLE = [option.cfg for option in OPTIONS if option.reload]  # while it runs


class _Key(click.ParamType[str]):
    """The key of an option, which may be given like its flag; a shell completes `keys`."""

    name = "option"

    def __init__(self, keys: Iterable[str]) -> None:
        self.keys = keys

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,100}", value):
            self.fail(f"{printable(repr(value), 100)} is not a valid option name.", param, ctx)
        return str(value).replace("-", "_")

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(key) for key in self.keys if key.startswith(incomplete)]


@command(
    "get",
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
@click.argument("option", nargs=-1, type=_Key(NODE_OPTIONS))
@option("--different", is_flag=True, help="Show only options whose values differ between nodes.")
def get(cluster: Cluster, output: Output, option: tuple[str, ...], different: bool) -> int:
    """Show all or the given options of running nodes.

    Options are named by their keys in the config file (max_msg_size) or as flags (max-msg-size). Nodes with the same
    value share a row.
    """
    keys = list(dict.fromkeys(option)) or list(NODE_OPTIONS)
    answers = ask_all(cluster.nsqds(), lambda node: options_of(node, keys), cluster.timeout * _PATIENCE)
    errors = [*cluster.lookupd_errors, *errors_of(answers)]
    found = values_of(answers)
    missing = [key for key in keys if not any(key in options for options in found.values())]
    if option and missing and (found or not errors):
        raise not_found(f"the option {missing[0]}{suggestion(missing[0], NODE_OPTIONS)}", errors)
    kept = [key for key in keys if key not in missing]
    if different:
        kept = [
            key for key in kept if len({json.dumps(told[key]) if key in told else "" for told in found.values()}) > 1
        ]
    output.show(
        lambda: {
            "nodes": by_node(
                answers, lambda had: {"options": {key: had[key] for key in kept if key in had}}, {"options": {}}
            )
        },
        lambda: [_value_table(kept, found)],
        lambda: _flat_table(kept, found),
    )
    return report(errors)


@command(
    "set",
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
@click.argument("option", type=_Key(CHANGEABLE))
@click.argument("value", nargs=-1, required=True)
def set_option(cluster: Cluster, output: Output, option: str, value: tuple[str, ...]) -> int:
    """Change an option of running nodes, until they are restarted.

    Two options can be changed: log_level (debug, info, warn, error, fatal), and nsqlookupd_tcp_addresses, with several
    values or a JSON list. The config file is not changed.
    """
    text = _text(option, value)
    answers = cluster.ask(lambda node: _changed(node, option, text))
    found = values_of(answers)
    errors = [*cluster.lookupd_errors, *errors_of(answers)]
    if not found and any(isinstance(error, Refused) and error.code == UNKNOWN for error in errors):
        others = [error for error in errors if not (isinstance(error, Refused) and error.code == UNKNOWN)]
        raise not_found(f"the option {option}{suggestion(option, NODE_OPTIONS)}", others)
    table = _change_table(option, answers)
    nodes = by_node(answers, lambda pair: {"before": pair[0], "after": pair[1]}, {"before": None, "after": None})
    # Where nothing was changed, the errors are enough.
    output.show(lambda: {"option": option, "nodes": nodes}, lambda: [table] if found else [], lambda: table)
    return report(errors)


def _changed(node: Nsqd, key: str, text: str) -> tuple[object, object]:
    """The values before and after."""
    before = parse(key, node.get_config(key))
    try:
        return before, parse(key, node.set_config(key, text))
    except Refused as error:
        if error.code == UNKNOWN:
            reason = f"{key} cannot be changed while nsqd runs, only {' and '.join(CHANGEABLE)} can"
        elif error.code == "INVALID_VALUE":
            expected = {"log_level": ", expected debug, info, warn, error or fatal"}.get(key, "")
            reason = f"{printable(text, 100)!r} is not a value for {key}{expected}"
        else:
            raise
        raise NodeError(node.program, node.address, reason) from None


def _text(key: str, values: Sequence[str]) -> str:
    """What to send to nodes for the values that were typed; UsageError."""
    if key != "nsqlookupd_tcp_addresses":
        if len(values) > 1:
            raise click.UsageError(f"{key} takes one value.")
        return values[0]
    if len(values) == 1 and values[0].lstrip().startswith("["):
        return values[0]
    for value in values:
        try:
            address = Address.parse(value)
        except ValueError:
            address = None
        if address is None or address.path or "://" in value:
            raise click.UsageError(f"{printable(repr(value), 100)} is not a host:port of an nsqlookupd.")
    return json.dumps(values)


def _value_table(keys: Sequence[str], found: Mapping[Address, Mapping[str, object]]) -> Table:
    """One row for each value of each option, with the nodes that have it where these are not all."""
    several = len(found) > 1
    node = (Column("node", "nodes", keep=ALWAYS, tone=Tone.NODE),) if several else ()
    empty = "No option differs." if found else ""
    table = Table((Column("option", "option"), Column("value", "value", keep=ALWAYS), *node), empty=empty)
    for key in keys:
        places: dict[str, list[str]] = {}
        for address, options in found.items():
            places.setdefault(shown(key, options[key]) if key in options else "", []).append(str(address))
        name: object = Cell(key, Tone.STRONG)
        for value, nodes in places.items():
            where = plural(len(nodes), "node") if len(nodes) == len(found) else shortened(nodes, _SHOWN)
            text = Cell(value or "has no such option", Tone.FAINT if value in ("", "none") else None)
            table.rows.append([name, text, *([where] if several else [])])
            name = ""
    return table


def _flat_table(keys: Sequence[str], found: Mapping[Address, Mapping[str, object]]) -> Table:
    """One row for each option of each node, with the value as it is in JSON."""
    table = Table((Column("option", "option"), Column("node", "node"), Column("value", "value")))
    for key in keys:
        for address, options in found.items():
            if key in options:
                value = options[key]
                table.rows.append([key, str(address), value if isinstance(value, str) else json.dumps(value)])
    return table


def _change_table(key: str, answers: Answers[tuple[object, object]]) -> Table:
    table = Table(
        (
            Column("node", "node", tone=Tone.NODE),
            Column("before", f"{key} before", "before", keep=ALWAYS),
            Column("after", "after", keep=ALWAYS),
        ),
        empty="No nodes.",
    )
    for address, answer in answers.items():
        if isinstance(answer, NodeError):
            table.rows.append([str(address), None, Cell(f"failed: {answer.reason}", Tone.BAD)])
        else:
            before, after = answer
            table.rows.append([str(address), shown(key, before), Cell(shown(key, after), Tone.GOOD)])
    return table
