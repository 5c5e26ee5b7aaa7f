"""`gnsqadmin topic show`: one topic on all nodes, with its channels."""

from typing import Any

import click

from nsqadmin_cli import stat_tables
from nsqadmin_cli.api import Lookupd
from nsqadmin_cli.cluster import Cluster, producer_address, values_of
from nsqadmin_cli.command import command
from nsqadmin_cli.documents import model_document
from nsqadmin_cli.http_client import NodeError, Refused
from nsqadmin_cli.look import Look, look, no_such
from nsqadmin_cli.models import Producer
from nsqadmin_cli.options import cluster_options, output_options, topic_argument
from nsqadmin_cli.output import Output, not_found, report
from nsqadmin_cli.table import Block, Cell, Grid, Line, Tone
from nsqadmin_cli.text import plural


@command(
    "show",
    examples="""
        gnsqadmin topic show orders
        gnsqadmin topic show orders --lookupd-http-address lookup.example:4161
        gnsqadmin topic show orders --json | jq '.channels[] | {channel_name, depth}'
    """,
    document="""
        topic_name, depth, backend_depth, message_count, message_bytes, paused (on
        any node), e2e_processing_latency, channels: summed over nodes
        nodes    list: address, error (null, or why it has no numbers), found (whether
                 an nsqlookupd sends consumers there; null where none was named),
                 topic (the keys above, or null where the node does not have it)
    """,
)
@topic_argument
@cluster_options
@output_options
@click.pass_context
def show(ctx: click.Context, cluster: Cluster, output: Output, topic: str) -> None:
    """Show one topic: how much it holds and took, on which nodes, and its channels.

    With nsqlookupds, a node that these do not send consumers to, because the topic is tombstoned there or the node did
    not register, is marked.
    """
    seen = look(cluster, topic=topic)
    found, errors = _found(cluster, topic)
    if topic not in seen.topic_shares:
        known = found is not None and not errors and _is_listed(cluster, topic)
        more = ", but nsqlookupd still lists it: gnsqadmin topic delete takes it from there"
        if known:
            raise not_found(f"the topic {topic}{more}", seen.errors)
        raise no_such(cluster, [*seen.errors, *errors], topic)
    output.show(
        lambda: _document(seen, topic, found),
        lambda: _blocks(seen, topic, found),
        lambda: stat_tables.share_table(seen, seen.topic_shares[topic], seen.totals.topics[0]),
    )
    ctx.exit(report([*seen.errors, *errors]))


def _found(cluster: Cluster, topic: str) -> tuple[set[str] | None, list[NodeError]]:
    """The addresses that nsqlookupds send consumers of the topic to, None where there is none; and their errors."""
    if not cluster.lookupds:
        return None, []
    found: set[str] = set()
    errors: list[NodeError] = []
    for answer in cluster.ask_lookupds(lambda lookupd: lookupd.lookup(topic)).values():
        if not isinstance(answer, NodeError):
            found |= {_address(producer) for producer in answer}
        elif not (isinstance(answer, Refused) and answer.code == "TOPIC_NOT_FOUND"):
            errors.append(answer)
    return found, errors


def _address(producer: Producer) -> str:
    try:
        return str(producer_address(producer))
    except ValueError:
        return ""


def _is_listed(cluster: Cluster, topic: str) -> bool:
    return any(topic in topics for topics in values_of(cluster.ask_lookupds(Lookupd.topics)).values())


def _blocks(seen: Look, topic: str, found: set[str] | None) -> list[Block]:
    whole = seen.totals.topics[0]
    shares = seen.topic_shares[topic]
    facts = Grid([[Cell("topic", Tone.FAINT), Cell(topic, Tone.STRONG)]])
    facts.rows += stat_tables.topic_facts(whole, shares)
    lost = [str(address) for address in shares if found is not None and str(address) not in found]
    if lost:
        text = f"nsqlookupd does not send consumers to {', '.join(lost)}"
        facts.rows.append([Cell("not found", Tone.FAINT), Cell(text, Tone.NOTE)])
    blocks: list[Block] = [facts, stat_tables.share_table(seen, shares, whole)]
    channels = stat_tables.channel_table(seen, with_topic=False)
    channels.empty = "No channels: messages wait in the topic until there is one."
    return [*blocks, Line.of(plural(len(channels.rows), "channel"), Tone.STRONG), channels]


def _document(seen: Look, topic: str, found: set[str] | None) -> dict[str, Any]:
    nodes = []
    for address, answer in seen.answers.items():
        share = seen.topic_shares[topic].get(address)
        nodes.append(
            {
                "address": str(address),
                "error": answer.reason if isinstance(answer, NodeError) else None,
                "found": None if found is None else str(address) in found,
                "topic": share and model_document(share),
            }
        )
    return model_document(seen.totals.topics[0]) | {"nodes": nodes}
