"""`gnsqadmin stats`: the topics and channels of some nodes, as a table or as JSON."""

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from functools import partial

import click

from nsqadmin_cli import render
from nsqadmin_cli.api import Address, NodeError, ask_all, fetch_stats
from nsqadmin_cli.models import NodeStats, Totals
from nsqadmin_cli.options import ExitCode, json_option, node_options


@click.command()
@node_options
@click.option("--topic", default="", metavar="NAME", help="Show only this topic.")
@click.option("--channel", default="", metavar="NAME", help="Show only this channel, and the topics that have it.")
@json_option
@click.pass_context
def stats(
    ctx: click.Context, addresses: tuple[Address, ...], timeout: float, topic: str, channel: str, as_json: bool
) -> None:
    """Show topics and channels: what waits, where, and who takes it.

    A topic's depth is what its channels have not been given yet; a channel's depth is what its clients have not been
    given yet, and counts neither messages in flight nor deferred ones. "In memory" and "on disk" are the two parts of
    depth. When several nodes have a topic or channel, its line is the sum and a line for each node follows. The last
    line sums up the depths of topics and channels; its messages are those published to topics.

    On a narrow terminal the headings are those of nsq_stat and numbers are rounded down (12.3k).

    \b
    Examples:
      gnsqadmin stats
      gnsqadmin stats --nsqd-http-address a.example:4151 --nsqd-http-address b.example:4151
      gnsqadmin stats --topic orders --json | jq .totals.depth

    \b
    The document of --json, its keys always present:
      nodes    list, in the order asked: address, error (null, or why this node
               has no numbers), version, health ("OK" or "NOK - ..."; both null
               after an error), start_time (unix seconds or null), topics
      totals   the sums over all nodes: topic_count, channel_count, depth,
               backend_depth, in_flight_count, deferred_count, message_count,
               message_bytes, requeue_count, timeout_count, client_count, topics
      topics   list by name: topic_name, depth, backend_depth, message_count,
               message_bytes, paused, channels
      channels list by name: channel_name, depth, backend_depth,
               in_flight_count, deferred_count, message_count, requeue_count,
               timeout_count, client_count, paused
    Keys mean what they mean in the /stats of nsqd. In totals, paused says "on any node".

    A node that cannot be asked gives one line on standard error and exit code 1; the others are shown nevertheless.
    """
    answers = ask_all(addresses, timeout, partial(fetch_stats, topic=topic, channel=channel))
    nodes = [answer for answer in answers.values() if isinstance(answer, NodeStats)]
    errors = [answer for answer in answers.values() if isinstance(answer, NodeError)]
    totals = Totals.over(nodes)
    if as_json:
        click.echo(json.dumps(_document(answers, totals), indent=2))
    elif nodes:
        render.show_stats(answers, totals)
        if not totals.topics:
            click.echo(f"\n{_nothing(topic, channel)}")
    for error in errors:
        click.echo(f"Error: {error}", err=True)
    ctx.exit(ExitCode.FAILED if errors else ExitCode.OK)


def _document(answers: Mapping[Address, NodeStats | NodeError], totals: Totals) -> dict[str, object]:
    nodes = []
    for address, answer in answers.items():
        if isinstance(answer, NodeStats):
            nodes.append({"address": str(address), "error": None} | asdict(answer))
        else:
            unknown = dict.fromkeys((field.name for field in fields(NodeStats)), None)
            nodes.append({"address": str(address), "error": answer.reason} | unknown | {"topics": []})
    return {"nodes": nodes, "totals": asdict(totals)}


def _nothing(topic: str, channel: str) -> str:
    if channel:
        return f"No channel {channel!r} in {f'topic {topic!r}' if topic else 'any topic'}."
    return f"No topic {topic!r}." if topic else "No topics."
