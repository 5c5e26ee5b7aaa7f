"""What the commands that publish have in common: options, and what they say at their end."""

from collections.abc import Callable, Mapping
from typing import Any

import click

from nsqadmin_cli import units
from nsqadmin_cli.output import Output
from nsqadmin_cli.publisher import Publisher
from nsqadmin_cli.table import Column, Form, Line, Table
from nsqadmin_cli.text import plural

Function = Callable[..., Any]

# The document of `show_published`, for the help of commands.
PUBLISHED = """
        topic    where to
        messages, bytes, seconds
                 what was published, and how long it took
        nodes    list: address, messages that it took"""


def rate_option(function: Function) -> Function:
    """`--rate`: parameter `rate`, 0 for no limit."""
    return click.option(
        "--rate",
        type=click.FloatRange(0, min_open=True),
        default=None,
        callback=lambda ctx, param, value: value or 0.0,
        metavar="N",
        help="Publish N messages a second at most.",
    )(function)


def show_published(
    output: Output, publisher: Publisher, topic: str, seconds: float, source: Mapping[str, str] | None = None
) -> None:
    """How many messages went where, and what they came from."""
    nodes = sorted(publisher.sent.items())
    document = {
        "topic": topic,
        "messages": publisher.total,
        "bytes": publisher.bytes,
        "seconds": round(seconds, 3),
        "nodes": [{"address": str(address), "messages": count} for address, count in nodes],
    }
    document |= source or {}
    columns = [Column("node", "node"), Column("messages", "messages", form=Form.COUNT)]
    table = Table(columns, [[str(address), count] for address, count in nodes])
    where = f" at {nodes[0][0]}" if len(nodes) == 1 else ""
    told = f"Published {amount(publisher.total, publisher.bytes)} to {topic}{where}{pace(publisher.total, seconds)}"
    output.show(lambda: document, lambda: [Line.of(told), *([table] if len(nodes) > 1 else [])], lambda: table)


def amount(messages: int, size: int) -> str:
    """`1,234 messages (56 kB)`."""
    return f"{plural(messages, 'message')} ({units.size(size)})"


def pace(messages: int, seconds: float) -> str:
    """` in 12s, 345/s`, of what took long enough."""
    return f" in {units.latency(seconds)}, {units.rate(messages / seconds)}/s" if seconds >= 1 else ""
