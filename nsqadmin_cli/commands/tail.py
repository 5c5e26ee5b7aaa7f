"""`gnsqadmin tail` and `peek`: show messages as they are published, and those of a queue without consuming them."""

import json
import os
import re
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from math import inf
from typing import Any

import click

from gnsqd.shared.directory import list_directory, make_plan
from gnsqd.shared.disk_format import StoredRecord, decode_record
from nsqadmin_cli import units
from nsqadmin_cli.change import Shown
from nsqadmin_cli.cluster import Cluster, by_node, failures_of
from nsqadmin_cli.command_base import Name, Parsed, argument, command, duration, flag, option
from nsqadmin_cli.consumer import ClusterConsumer, ConsumerOptions, auth_option, count_option, ephemeral_channel
from nsqadmin_cli.datadir.records import DEFAULT_MAX_MSG_SIZE, read_queue
from nsqadmin_cli.errors import AdminError, NotOnNode
from nsqadmin_cli.http_client import NodeError
from nsqadmin_cli.message import (
    DOCUMENT,
    MOST,
    MessageRow,
    Peeked,
    PeekedQueue,
    message_blocks,
    message_table,
    peek_at,
    pretty_lines,
)
from nsqadmin_cli.output import Output, OutputFormat, report, standard_output
from nsqadmin_cli.ranges import LogConsumer, begin_option
from nsqadmin_cli.snapshot import ask_holders, no_such
from nsqadmin_cli.table import Block, Line, Tone
from nsqadmin_cli.units import plural, printable

_TICK = 0.25  # seconds
_WINDOW = 200  # messages
_LONGEST = 100_000  # characters of a body on a terminal


def _pattern(text: str) -> re.Pattern[bytes]:
    try:
        return re.compile(os.fsencode(text))
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"{printable(repr(text), 100)} is not a regular expression: {error}.") from None


def _condition(text: str) -> tuple[str, str]:
    path, equals, expected = text.partition("=")
    if not path or not equals:
        raise ValueError(f"{printable(repr(text), 100)} is not a condition, expected KEY=VALUE.")
    return path, expected


@command(
    examples="""
        gnsqadmin tail orders
        gnsqadmin tail orders payments -n 10 --details
        gnsqadmin tail orders --where customer.country=DE --grep express
        gnsqadmin tail orders --from -15m --json | jq .body
        gnsqadmin tail pictures --hex -n 1
        gnsqadmin tail clicks --sample 1 --for 10s -o csv > clicks.csv
    """,
    document=f"""
        One document per line, for each message:
        node     address of the node that had it{DOCUMENT}
    """,
)
def tail(
    cluster: Cluster,
    output: Output,
    topics: tuple[str, ...] = argument(Name("topic"), nargs=-1, required=True, metavar="TOPIC..."),
    begin: str | None = begin_option,
    count: int | None = count_option,
    seconds: float | None = option("Stop after this time.", duration(), "--for"),
    patterns: tuple[re.Pattern[bytes], ...] = option(
        "Show only bodies that match. May be repeated: all must match.",
        Parsed("regex", _pattern),
        "--grep",
        multiple=True,
    ),
    conditions: tuple[tuple[str, str], ...] = option(
        "Show only JSON bodies with this value, as in customer.country=DE. May be repeated: all must match.",
        Parsed("key=value", _condition),
        "--where",
        multiple=True,
    ),
    sample: int | None = option(
        "Receive only this percentage of messages, chosen by the nodes.", click.IntRange(1, 99), metavar="PERCENT"
    ),
    details: bool = flag("Show the time, node and attempts of each message."),
    as_hex: bool = flag("Show bodies as a hex dump.", "--hex"),
    auth_secret: str = auth_option,
    yes: bool = flag("Consume messages queued in a topic without channels, without confirmation."),
) -> int:
    """Uses a temporary channel, so other consumers are not affected. If a topic has no channel, the temporary channel
    receives all its queued messages, and they are lost when it is deleted: tail asks for confirmation, or needs --yes.

    With --from, there is no channel, and nothing is consumed: the logs of gnsqd nodes with --durability are read from
    POINT on, and then as they grow. POINT is as for gnsqadmin topic range.

    In a pipe, each body is printed unchanged, followed by a line feed; with several topics, the name of the topic comes
    first. On a terminal, JSON is indented, and unprintable bytes are shown as escape sequences.
    """
    options = ConsumerOptions(ephemeral_channel("tail"), min(_WINDOW, count or _WINDOW), sample or 0, auth_secret)
    if begin is not None and sample is not None:
        raise click.UsageError("--sample needs a channel, which --from does not have.")
    consumer: Any = ClusterConsumer(cluster, topics, options)
    if begin is not None:
        consumer = LogConsumer(cluster, topics, begin)
    out = standard_output()
    shown, several = 0, len(set(topics)) > 1
    with consumer:
        consumer.start(yes=yes)
        deadline = inf if seconds is None else time.monotonic() + seconds
        while (count is None or shown < count) and (left := deadline - time.monotonic()) > 0:
            batch = consumer.receive(min(_TICK, left))
            matching = [message for message in batch if all(pattern.search(message.body) for pattern in patterns)]
            chosen = [message for message in matching if all(_has(message.body, *each) for each in conditions)]
            if chosen := chosen[: None if count is None else count - shown]:
                _show(output, chosen, details=details, as_hex=as_hex, several=several)
                out.flush()
                shown += len(chosen)
            consumer.finish(batch)
        errors = [*consumer.errors.values()]
    return report(errors)


def _has(body: bytes, path: str, expected: str) -> bool:
    """Returns whether the value at `path`, or its text form, is `expected`."""
    try:
        value: Any = json.loads(body)
        for name in path.split("."):
            value = value[name]
    except (ValueError, RecursionError, LookupError, TypeError):
        return False
    return value == expected or (not isinstance(value, str) and json.dumps(value, ensure_ascii=False) == expected)


def _show(output: Output, messages: Sequence[MessageRow], *, details: bool, as_hex: bool, several: bool) -> None:
    """Prints messages, bodies behind the name of the topic if there are `several`."""
    if output.format is OutputFormat.JSON:
        documents = ({"node": message.node} | message.document() for message in messages)
        sys.stdout.writelines(f"{json.dumps(document)}\n" for document in documents)
    elif output.format is OutputFormat.CSV:
        output.show({}, (), message_table(messages), number=0)
    elif details or as_hex:
        facts = [[(message.topic, Tone.STRONG), (message.node, Tone.NODE)] for message in messages]
        blocks = [message_blocks(message, each, as_hex=as_hex) for message, each in zip(messages, facts, strict=True)]
        output.show({}, [*chain.from_iterable(blocks)], number=0)
    else:
        is_terminal = sys.stdout.isatty()
        for message in messages:
            head = f"{message.topic} | " if several else ""
            if is_terminal:
                lines = (printable(line, _LONGEST) for line in pretty_lines(message.body_text))
                sys.stdout.write(head + "\n".join(lines) + "\n")
            else:
                sys.stdout.buffer.write(head.encode() + message.body + b"\n")


@command(
    examples="""
        gnsqadmin peek orders billing
        gnsqadmin peek orders billing -n 100 --json | jq -r '.messages[].body'
        gnsqadmin peek orders --hex
        gnsqadmin peek orders billing --data-path /var/lib/nsqd
    """,
    document=f"""
        nodes    list: address (or the data path), error (null, or the reason),
                 depth, backend_depth (of them on disk; null after an error)
        messages list, node by node: node, on_disk, size (of the body, which is
                 truncated to 32 KiB), and{DOCUMENT}
    """,
)
def peek(
    cluster: Cluster,
    topic: str,
    channel: str | None = argument(Name("channel"), required=False),
    count: int = option("Show at most N messages of each node.", click.IntRange(1, MOST), "-n", "--count", default=10),
    as_hex: bool = flag("Show bodies as a hex dump.", "--hex"),
    data_path: str | None = option(
        "Read the files of an nsqd, running or not, instead of querying nodes.",
        click.Path(exists=True, file_okay=False),
    ),
) -> Shown:
    """Without CHANNEL, shows the messages in the topic's own queue. A topic has such messages if it is paused or has no
    channel. Messages in memory come first, then those on disk. Messages in flight and deferred messages are not shown.

    Only gnsqd supports this over HTTP. --data-path reads the queues on disk of gnsqd or nsqd, also while it runs. The
    daemon writes all other messages to disk when it exits.
    """
    answers: dict[str, PeekedQueue | NodeError | None]
    if data_path is not None:
        answers, errors = {data_path: _look_at_files(data_path, topic, channel or "", count)}, []
    else:
        asked = ask_holders(cluster, lambda node: peek_at(node, topic, channel or "", count), topic, channel or "")
        answers = {str(address): answer for address, answer in asked.items()}
        errors = [*cluster.lookupd_errors, *failures_of(asked)]
    queues = {address: answer for address, answer in answers.items() if isinstance(answer, PeekedQueue)}
    if not queues:
        if not errors:  # it has been deleted meanwhile
            raise no_such(cluster, errors, topic, channel or "")
        raise AdminError(str(errors[-1]), causes=errors[:-1])
    table = message_table([peeked.message for queue in queues.values() for peeked in queue.messages])
    return Shown(_peek_document(answers), [*_peek_blocks(queues, topic, channel, as_hex)], table, errors)


def _look_at_files(path: str, topic: str, channel: str, count: int) -> PeekedQueue:
    queues = list_directory(path).select(topic, channel)
    if (queue := next((queue for queue in queues if queue.channel == channel), None)) is None:
        raise NotOnNode(f"{path} does not have the {f'channel {channel} of {topic}' if channel else f'topic {topic}'}")
    plan = make_plan(queue)
    records = (item for _, item in read_queue(queue, plan, DEFAULT_MAX_MSG_SIZE) if isinstance(item, StoredRecord))
    messages = [MessageRow(topic, *decode_record(record.payload), path) for record in islice(records, count)]
    depth = len(messages) if plan.meta is None else plan.meta.depth
    return PeekedQueue(depth, depth, [Peeked(message, True, len(message.body)) for message in messages])


def _peek_blocks(queues: dict[str, PeekedQueue], topic: str, channel: str | None, as_hex: bool) -> Iterator[Block]:
    for number, (address, queue) in enumerate(queues.items()):
        if number:
            yield Line()
        none = "no messages" if channel else "no messages outside its channels"
        queued = f"{plural(queue.depth, 'message')} queued" if queue.depth else none
        if len(queue.messages) < queue.depth:
            queued += f", {len(queue.messages):,} shown"
        name = f"{topic} {channel}" if channel else topic
        yield Line(((name, Tone.STRONG), (" at ", Tone.FAINT), (address, Tone.NODE), (f": {queued}", Tone.PLAIN)))
        for peeked in queue.messages:
            age = f"{units.duration(time.time() - peeked.message.timestamp / 1e9)} ago"
            place = "on disk" if peeked.on_disk else "in memory", Tone.FAINT
            if peeked.size > len(peeked.message.body):
                place = f"the beginning of {units.size(peeked.size)}", Tone.NOTE
            yield from message_blocks(peeked.message, [(age, Tone.FAINT), place], as_hex=as_hex)


def _peek_document(answers: dict[str, PeekedQueue | NodeError | None]) -> dict[str, Any]:
    known = {address: answer for address, answer in answers.items() if answer is not None}
    failed = {"depth": None, "backend_depth": None}
    nodes = by_node(known, lambda queue: {"depth": queue.depth, "backend_depth": queue.backend_depth}, failed)
    messages = [
        {"node": address, "on_disk": peeked.on_disk, "size": peeked.size} | peeked.message.document()
        for address, answer in known.items()
        for peeked in (answer.messages if isinstance(answer, PeekedQueue) else ())
    ]
    return {"nodes": nodes, "messages": messages}
