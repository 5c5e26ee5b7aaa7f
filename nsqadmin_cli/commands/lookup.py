"""`gnsqadmin lookup`: lists the topics of nsqlookupds, also those without a node."""

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import click

from nsqadmin_cli.api import Lookupd
from nsqadmin_cli.cluster import Cluster, errors_of, values_of
from nsqadmin_cli.command import command
from nsqadmin_cli.http_client import NodeError
from nsqadmin_cli.models import Producer
from nsqadmin_cli.options import cluster_options, output_options
from nsqadmin_cli.output import Output, report
from nsqadmin_cli.table import ALWAYS, Cell, Column, Form, Table, Tone


@dataclass(slots=True)
class Listed:
    """A topic as the nsqlookupds list it; nodes are `{broadcast address}:{HTTP port}`."""

    nodes: set[str] = field(default_factory=set)
    tombstoned: set[str] = field(default_factory=set)
    channels: set[str] = field(default_factory=set)


@command(
    "lookup",
    examples="""
        gnsqadmin lookup --lookupd-http-address lookup.example:4161
        gnsqadmin lookup --orphans --json | jq -r '.topics[].topic_name'
    """,
    document="""
        topics   list by name: topic_name, nodes (where consumers are sent),
                 tombstoned (nodes hidden from consumers), channels (null except
                 for topics without a node)
    """,
)
@click.option("--orphans", is_flag=True, help="Show only topics without a node.")
@cluster_options
@output_options
@click.pass_context
def lookup(ctx: click.Context, cluster: Cluster, output: Output, orphans: bool) -> None:
    """List the topics of nsqlookupds, and the nodes that consumers are sent to.

    nsqlookupd keeps a topic without a node until it is deleted; its channels are shown, because the topic gets them if
    it is created again.
    """
    if not cluster.lookupds:
        raise click.UsageError("give an nsqlookupd by --lookupd-http-address or a saved context.")
    listed, errors = _listed(cluster)
    shown = {name: listed[name] for name in sorted(listed) if not (orphans and _has_node(listed[name]))}
    if len(errors) < len(cluster.lookupds):
        output.show(lambda: {"topics": [_document(*one) for one in shown.items()]}, lambda: [_table(shown)])
    ctx.exit(report(errors))


def _has_node(topic: Listed) -> bool:
    return bool(topic.nodes or topic.tombstoned)


def _listed(cluster: Cluster) -> tuple[dict[str, Listed], list[NodeError]]:
    """All topics that any nsqlookupd lists; and one error for each that could not be queried."""

    def ask(lookupd: Lookupd) -> tuple[tuple[str, ...], tuple[Producer, ...]]:
        return lookupd.topics(), lookupd.nodes()

    answers = cluster.ask_lookupds(ask)
    found: dict[str, Listed] = {}
    for topics, producers in values_of(answers).values():
        for name in topics:
            found.setdefault(name, Listed())
        for producer in producers:
            at = f"{producer.broadcast_address}:{producer.http_port}"
            for name, hidden in zip(producer.topics, producer.tombstones, strict=False):
                topic = found.setdefault(name, Listed())
                (topic.tombstoned if hidden else topic.nodes).add(at)
    orphans = [name for name, topic in found.items() if not _has_node(topic)]
    if orphans:
        for channels in values_of(cluster.ask_lookupds(partial(_channels, topics=orphans))).values():
            for name, known in channels.items():
                found[name].channels |= known
    return found, errors_of(answers)


def _channels(lookupd: Lookupd, topics: list[str]) -> dict[str, set[str]]:
    return {topic: set(lookupd.channels(topic)) for topic in topics}


def _document(name: str, topic: Listed) -> dict[str, Any]:
    return {
        "topic_name": name,
        "nodes": sorted(topic.nodes),
        "tombstoned": sorted(topic.tombstoned),
        "channels": None if _has_node(topic) else sorted(topic.channels),
    }


def _table(topics: dict[str, Listed]) -> Table:
    table = Table(
        (
            Column("topic", "topic"),
            Column("node_count", "nodes", form=Form.COUNT, keep=ALWAYS),
            Column("tombstoned_count", "tombstoned", "tomb", Form.COUNT, keep=6),
            Column("state", "", keep=ALWAYS),
        ),
        empty="No topics.",
    )
    for name, topic in topics.items():
        note: Cell | None = None
        if not topic.nodes:
            channels = f", channels {', '.join(sorted(topic.channels))}" if topic.channels else ""
            note = Cell("all tombstoned" if topic.tombstoned else f"no node{channels}", Tone.NOTE)
        table.rows.append([name, len(topic.nodes), len(topic.tombstoned), note])
    return table
