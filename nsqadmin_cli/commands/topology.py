"""`gnsqadmin topology export`, `import` and `diff`: the topics and channels of a cluster as a file."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import click

from gnsqd.shared.names import is_ephemeral, is_valid_name
from nsqadmin_cli.api import NodeStats, Nsqd
from nsqadmin_cli.archive import name_of, read_pieces
from nsqadmin_cli.change import Change, Shown
from nsqadmin_cli.cluster import Cluster, errors_of
from nsqadmin_cli.command_base import ON_PAGE, argument, change_command, command
from nsqadmin_cli.errors import AdminError, ExitCode
from nsqadmin_cli.output import report
from nsqadmin_cli.snapshot import ClusterSnapshot, by_key, take_snapshot
from nsqadmin_cli.table import ALWAYS, Table, Tone, column, described, table_of
from nsqadmin_cli.units import plural, printable


class Typed(str):
    """The text of a file, which was typed into a form."""

    __slots__ = ()


class _File(click.Path):
    """The path of a file; on the page, whose machine is not the user's, its text."""

    is_text = True

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return Typed(value) if ctx is not None and ctx.obj is ON_PAGE else super().convert(value, param, ctx)


file_argument = argument(_File(exists=True, dir_okay=False, allow_dash=True))
Entry = tuple[str, str]  # topic, and channel or "" for the topic itself


@dataclass(slots=True)
class TopologyDifference:
    """A topic or channel that a node has otherwise than the file."""

    topic: str = column("topic", tone=Tone.STRONG)
    channel: str = column("channel", null=True, keep=ALWAYS, help="null for the topic itself")
    node: str = column("node", keep=ALWAYS, tone=Tone.NODE)
    difference: str = column("difference", keep=ALWAYS, help="missing, extra, paused or unpaused")


@command(
    examples="""
        gnsqadmin topology export > topology.ndjson
        gnsqadmin topology export --lookupd-http-address lookup.example:4161 | ssh b gnsqadmin topology import -
    """
)
def export(cluster: Cluster) -> int:
    """A line has the keys topic, channel (null for the topic itself) and paused (on all nodes that have it). Ephemeral
    topics and channels are left out."""
    snapshot = take_snapshot(cluster)
    entries: dict[Entry, bool] = {}
    for node in snapshot.nodes.values():
        for entry, paused in _topology(node).items():
            entries[entry] = paused and entries.get(entry, True)
    for (topic, channel), paused in sorted(entries.items()):
        click.echo(json.dumps({"topic": topic, "channel": channel or None, "paused": paused}))
    return report(snapshot.errors)


@command(
    examples="""
        gnsqadmin topology diff topology.ndjson
        gnsqadmin topology diff topology.ndjson --json | jq '.differences[] | select(.difference == "missing")'
    """,
    document=described("differences", "list, by topic and channel", TopologyDifference),
)
def diff(cluster: Cluster, file: str = file_argument) -> Shown:
    """ "extra" is what a node has and the file does not. "paused" and "unpaused" are the states of the node. A file has
    the topics of all nodes together: right after an export, a topic that is not on all nodes is missing on the
    others."""
    expected = _read(file)
    snapshot = take_snapshot(cluster)
    differences = list(_differences(snapshot, expected))
    blocks, code = [_table(snapshot, differences, "No differences")], ExitCode.FAILED if differences else ExitCode.OK
    return Shown({"differences": differences}, blocks, errors=snapshot.errors, code=code)


@change_command(
    examples="""
        gnsqadmin topology import topology.ndjson --dry-run
        gnsqadmin topology import topology.ndjson --yes --nsqd-http-address b.example:4151
    """,
    document=described("differences", "list of what was changed", TopologyDifference),
)
def import_(cluster: Cluster, file: str = file_argument) -> Change:
    """The changes are shown, and made after confirmation. Nothing is deleted: topics and channels that are not in the
    file are left as they are."""
    expected = _read(file)
    snapshot = take_snapshot(cluster)
    changes = [change for change in _differences(snapshot, expected) if change.difference != "extra"]
    errors: list[AdminError] = list(snapshot.errors)

    def show(dry_run: bool) -> Shown:
        return Shown({"differences": changes}, [_table(snapshot, changes, "Nothing to change")], errors=errors)

    def apply(node: Nsqd) -> None:
        for change in (change for change in changes if change.node == str(node)):
            if change.difference == "missing":
                node.act("create", change.topic, change.channel)
            if expected[change.topic, change.channel]:
                node.act("pause", change.topic, change.channel)
            elif change.difference != "missing":
                node.act("unpause", change.topic, change.channel)

    def do() -> None:
        changed = [Nsqd(address, cluster.http) for address in snapshot.nodes if str(address) in nodes]
        errors.extend(errors_of(cluster.ask(apply, changed)))

    nodes = {change.node for change in changes}
    warning = f"{plural(len(changes), 'change')} on {plural(len(nodes), 'node')}."
    return Change(show, do if changes else None, warning)


def _table(snapshot: ClusterSnapshot, differences: Sequence[TopologyDifference], none: str) -> Table:
    where = " on the nodes that answered" if snapshot.errors else ""
    return table_of(TopologyDifference, differences, empty=f"{none}{where}." if snapshot.nodes else "")


def _topology(node: NodeStats) -> dict[Entry, bool]:
    """Returns the topics and channels that stay, with whether they are paused."""
    return {key: row.paused for key, row in by_key(node).items() if not any(map(is_ephemeral, key))}


def _differences(snapshot: ClusterSnapshot, expected: dict[Entry, bool]) -> Iterator[TopologyDifference]:
    """Yields them in the order in which they can be changed: a topic before its channels."""
    by_node = {address: _topology(node) for address, node in snapshot.nodes.items()}
    for entry in sorted({*expected, *(entry for topology in by_node.values() for entry in topology)}):
        for address, topology in by_node.items():
            paused = topology.get(entry)
            if paused != expected.get(entry):
                state = "missing" if paused is None else "paused" if paused else "unpaused"
                yield TopologyDifference(*entry, str(address), state if entry in expected else "extra")


def _read(path: str) -> dict[Entry, bool]:
    """Returns the entries of a file; raises AdminError. Each channel adds its topic."""
    name = "the text" if isinstance(path, Typed) else name_of(path)
    entries: dict[Entry, bool] = {}
    try:
        text = path if isinstance(path, Typed) else b"".join(read_pieces(path)).decode()
    except UnicodeDecodeError:
        raise AdminError(f"{name} is not UTF-8") from None
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            entry, paused = _entry(line, f"{name}, line {number}")
            entries.setdefault((entry[0], ""), False)
            entries[entry] = paused
    return entries


def _entry(line: str, where: str) -> tuple[Entry, bool]:
    try:
        document: Any = json.loads(line)
        topic, channel, paused = document["topic"], document.get("channel") or "", document.get("paused", False)
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError):
        reason = 'expected a JSON object with "topic", "channel" and "paused"'
        raise AdminError(f"{where}: {printable(line.strip(), 100)!r}: {reason}") from None
    for name in (topic, *([channel] if channel else [])):
        if not isinstance(name, str) or not is_valid_name(name):
            raise AdminError(f"{where}: {printable(repr(name), 100)} is not a valid name")
    if not isinstance(paused, bool):
        raise AdminError(f'{where}: "paused" is {printable(repr(paused), 100)}, expected true or false')
    return (topic, channel), paused
