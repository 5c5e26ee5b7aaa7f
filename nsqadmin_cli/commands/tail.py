"""`gnsqadmin tail` and `peek`: show messages as they are published, and those of a queue without consuming them."""

import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import click

from gnsq_shared.directory import list_directory, make_plan
from gnsqd.storage.disk.record import decode_record
from nsqadmin_cli import units
from nsqadmin_cli.cluster import Cluster, errors_of
from nsqadmin_cli.command import Duration, Name, command, option
from nsqadmin_cli.completion import complete_channels, complete_topics
from nsqadmin_cli.consumer import Consumer, auth_option, count_option, ephemeral_channel
from nsqadmin_cli.datadir.records import DEFAULT_MAX_MSG_SIZE, Record, read_queue
from nsqadmin_cli.errors import NotFound
from nsqadmin_cli.http_client import NodeError
from nsqadmin_cli.message import (
    DOCUMENT,
    MOST,
    Found,
    Message,
    Peeked,
    field_of,
    message_blocks,
    message_table,
    peek_at,
)
from nsqadmin_cli.output import Output, OutputFormat, report
from nsqadmin_cli.snapshot import no_such
from nsqadmin_cli.subscription import ConsumerOptions, Received
from nsqadmin_cli.table import Block, Line, Tone
from nsqadmin_cli.units import plural, printable

_TICK = 0.25  # seconds
_WINDOW = 200  # messages
_LONGEST = 100_000  # characters of a body on a terminal


class Pattern(click.ParamType[re.Pattern[bytes]]):
    """A regular expression for bytes."""

    name = "regex"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> re.Pattern[bytes]:
        try:
            return re.compile(os.fsencode(str(value)))
        except (re.error, OverflowError, RecursionError) as error:
            self.fail(f"{printable(repr(value), 100)} is not a regular expression: {error}.", param, ctx)


class Condition(click.ParamType[tuple[str, str]]):
    """`path=value`."""

    name = "condition"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        path, equals, wanted = str(value).partition("=")
        if not path or not equals:
            self.fail(f"{printable(repr(value), 100)} is not a condition, expected KEY=VALUE.", param, ctx)
        return path, wanted


@command(
    "tail",
    examples="""
        gnsqadmin tail orders
        gnsqadmin tail orders payments -n 10 --details
        gnsqadmin tail orders --where customer.country=DE --grep express
        gnsqadmin tail orders --json | jq .body
        gnsqadmin tail pictures --hex -n 1
        gnsqadmin tail clicks --sample 1 --for 10s -o csv > clicks.csv
    """,
    document=f"""
        One document per line, for each message:
        node     address of the node that had it{DOCUMENT}
    """,
)
@click.argument(
    "topics", nargs=-1, required=True, type=Name("topic"), shell_complete=complete_topics, metavar="TOPIC..."
)
@count_option
@option("--for", "seconds", type=Duration(), help="Stop after this time.")
@option(
    "--grep",
    "patterns",
    type=Pattern(),
    multiple=True,
    metavar="REGEX",
    help="Show only bodies that match. May be repeated: all must match.",
)
@option(
    "--where",
    "conditions",
    type=Condition(),
    multiple=True,
    metavar="KEY=VALUE",
    help="Show only JSON bodies with this value, as in customer.country=DE. May be repeated: all must match.",
)
@option(
    "--sample",
    type=click.IntRange(1, 99),
    default=None,
    metavar="PERCENT",
    help="Receive only this percentage of messages, chosen by the nodes.",
)
@option("--details", is_flag=True, help="Show the time, node and attempts of each message.")
@option("--hex", "as_hex", is_flag=True, help="Show bodies as a hex dump.")
@auth_option
@option("--yes", is_flag=True, help="Consume messages queued in a topic without channels, without confirmation.")
def tail(
    cluster: Cluster,
    output: Output,
    topics: tuple[str, ...],
    count: int | None,
    seconds: float | None,
    patterns: tuple[re.Pattern[bytes], ...],
    conditions: tuple[tuple[str, str], ...],
    sample: int | None,
    details: bool,
    as_hex: bool,
    auth_secret: str,
    yes: bool,
) -> int:
    """Show messages as they are published, on all nodes that have the topic, until Ctrl-C.

    Uses a temporary channel, so other consumers are not affected. If a topic has no channel, the temporary channel
    receives all its queued messages, and they are lost when it is deleted: tail asks for confirmation, or needs --yes.

    In a pipe, each body is printed unchanged, followed by a line feed; with several topics, the name of the topic comes
    first. On a terminal, unprintable bytes are shown as escape sequences.
    """
    options = ConsumerOptions(ephemeral_channel("tail"), min(_WINDOW, count or _WINDOW), sample or 0, auth_secret)
    show = _printer(output, details=details, as_hex=as_hex, several=len(set(topics)) > 1)
    shown = 0
    with Consumer(cluster, topics, options) as consumer:
        consumer.start(yes=yes)
        deadline = None if seconds is None else time.monotonic() + seconds
        while (count is None or shown < count) and (deadline is None or time.monotonic() < deadline):
            patience = _TICK if deadline is None else max(0.0, min(_TICK, deadline - time.monotonic()))
            batch = consumer.receive(patience)
            chosen = [message for message in batch if _fits(message, patterns, conditions)]
            chosen = chosen[: None if count is None else count - shown]
            if chosen:
                show(chosen)
                sys.stdout.flush()
                shown += len(chosen)
            consumer.finish(batch)
        errors = consumer.errors
    return report(errors)


def _fits(message: Message, patterns: Sequence[re.Pattern[bytes]], conditions: Sequence[tuple[str, str]]) -> bool:
    return all(pattern.search(message.body) for pattern in patterns) and all(
        _has(message.body, path, wanted) for path, wanted in conditions
    )


def _has(body: bytes, path: str, wanted: str) -> bool:
    """Whether the value at `path`, or its text form, is `wanted`."""
    try:
        found = field_of(body, path)
    except KeyError:
        return False
    return found == wanted or (not isinstance(found, str) and json.dumps(found, ensure_ascii=False) == wanted)


def _printer(output: Output, *, details: bool, as_hex: bool, several: bool) -> Callable[[Sequence[Received]], None]:
    """How to print some messages."""
    if output.format is OutputFormat.JSON:
        return lambda messages: sys.stdout.writelines(
            f"{json.dumps({'node': one.node} | one.document())}\n" for one in messages
        )
    if output.format is OutputFormat.CSV:
        return lambda messages: output.show(dict, tuple, lambda: message_table(messages), number=0)
    if details or as_hex:
        return lambda messages: output.show(dict, lambda: list(_blocks(messages, as_hex)), number=0)
    return lambda messages: _print_bodies(messages, several)


def _blocks(messages: Sequence[Received], as_hex: bool) -> Iterator[Block]:
    for one in messages:
        yield from message_blocks(one, [(one.topic, Tone.STRONG), (one.node, Tone.NODE)], as_hex=as_hex)


def _print_bodies(messages: Sequence[Received], several: bool) -> None:
    """With the name of the topic where there are `several`."""
    if sys.stdout.isatty():
        texts = [printable(one.body_text, _LONGEST) for one in messages]
        lines = [
            f"{one.topic} | {text}\n" if several else f"{text}\n" for one, text in zip(messages, texts, strict=True)
        ]
        sys.stdout.write("".join(lines))
    else:
        heads = [one.topic.encode() + b" | " if several else b"" for one in messages]
        sys.stdout.buffer.write(b"".join([head + one.body + b"\n" for one, head in zip(messages, heads, strict=True)]))


@command(
    "peek",
    examples="""
        gnsqadmin peek orders billing
        gnsqadmin peek orders billing -n 100 --json | jq -r '.messages[].body'
        gnsqadmin peek orders --hex
        gnsqadmin peek orders billing --data-path /var/lib/nsqd
    """,
    document=f"""
        nodes    list: address (or the data path), error (null, or the reason),
                 depth, backend_depth (of them on disk; null after an error)
        messages list, node by node: node, on_disk, size (of the body, which is truncated to
                 32 KiB), and{DOCUMENT}
    """,
)
@click.argument("channel", type=Name("channel"), default=None, required=False, shell_complete=complete_channels)
@option("-n", "--count", type=click.IntRange(1, MOST), default=10, help="Show at most N messages of each node.")
@option("--hex", "as_hex", is_flag=True, help="Show bodies as a hex dump.")
@option(
    "--data-path",
    type=click.Path(exists=True, file_okay=False),
    metavar="DIRECTORY",
    help="Read the files of an nsqd, running or not, instead of querying nodes.",
)
def peek(
    cluster: Cluster,
    output: Output,
    topic: str,
    channel: str | None,
    count: int,
    as_hex: bool,
    data_path: str | None,
) -> int:
    """Show the queued messages of a channel, without consuming them.

    Without CHANNEL, shows the messages in the topic's own queue. A topic has such messages if it is paused or has no
    channel. Messages in memory come first, then those on disk. Messages in flight and deferred messages are not shown.

    Only gnsqd supports this over HTTP. --data-path reads the queues on disk of gnsqd or nsqd, also while it runs. The
    daemon writes all other messages to disk when it exits.
    """
    answers: dict[str, Found | NodeError | None]
    if data_path is not None:
        answers, errors = {data_path: _look_at_files(data_path, topic, channel or "", count)}, []
    else:
        asked = cluster.ask(lambda node: peek_at(node, topic, channel or "", count))
        answers = {str(address): answer for address, answer in asked.items()}
        errors = [*cluster.lookupd_errors, *errors_of(asked)]
    if not any(isinstance(answer, Found) for answer in answers.values()):
        if not errors or None in answers.values():
            raise no_such(cluster, errors, topic, channel or "")
        return report(errors)
    found = {address: answer for address, answer in answers.items() if isinstance(answer, Found)}
    output.show(
        lambda: _peek_document(answers),
        lambda: list(_peek_blocks(found, topic, channel, as_hex)),
        lambda: message_table([one.message for answer in found.values() for one in answer.messages]),
    )
    return report(errors)


def _look_at_files(path: str, topic: str, channel: str, count: int) -> Found:
    """The unread messages in the files of the queue."""
    found = list_directory(path).select(topic, channel)
    queue = next((queue for queue in found if queue.channel == channel), None)
    if queue is None:
        raise NotFound(f"{path} does not have the {f'channel {channel} of {topic}' if channel else f'topic {topic}'}")
    plan = make_plan(queue)
    messages = []
    records = (item for _, item in read_queue(queue, plan, DEFAULT_MAX_MSG_SIZE) if isinstance(item, Record))
    for payload in (record.payload for record in islice(records, count)):
        timestamp, attempts, id, body = decode_record(payload)
        messages.append(Peeked(Message(topic, timestamp, attempts, id, body, path), True, len(body)))
    depth = len(messages) if plan.meta is None else plan.meta.depth
    return Found(depth, depth, messages)


def _peek_blocks(found: dict[str, Found], topic: str, channel: str | None, as_hex: bool) -> Iterator[Block]:
    for number, (address, answer) in enumerate(found.items()):
        if number:
            yield Line()
        queued = f"{plural(answer.depth, 'message')} queued" if answer.depth else "no messages"
        if len(answer.messages) < answer.depth:
            queued += f", {len(answer.messages):,} shown"
        name = f"{topic} {channel}" if channel else topic
        yield Line(((name, Tone.STRONG), (" at ", Tone.FAINT), (address, Tone.NODE), (f": {queued}", Tone.PLAIN)))
        for one in answer.messages:
            age = f"{units.duration(time.time() - one.message.timestamp / 1e9)} ago"
            yield from message_blocks(one.message, [(age, Tone.FAINT), _place(one)], as_hex=as_hex)


def _place(peeked: Peeked) -> tuple[str, Tone]:
    if peeked.size > len(peeked.message.body):
        return f"the beginning of {units.size(peeked.size)}", Tone.NOTE
    return "on disk" if peeked.on_disk else "in memory", Tone.FAINT


def _peek_document(answers: dict[str, Found | NodeError | None]) -> dict[str, Any]:
    nodes, messages = [], []
    for address, answer in answers.items():
        match answer:
            case Found(depth, backend_depth, peeked):
                nodes.append({"address": address, "error": None, "depth": depth, "backend_depth": backend_depth})
                for one in peeked:
                    place = {"node": address, "on_disk": one.on_disk, "size": one.size}
                    messages.append(place | one.message.document())
            case NodeError(reason=reason):
                nodes.append({"address": address, "error": reason, "depth": None, "backend_depth": None})
    return {"nodes": nodes, "messages": messages}
