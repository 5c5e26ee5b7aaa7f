"""`gnsqadmin peek`: shows the messages of a queue without consuming them."""

import time
from collections.abc import Iterator
from itertools import islice
from typing import Any

import click

from gnsqd.storage.disk.record import decode_record
from nsqadmin_cli import units
from nsqadmin_cli.cluster import Cluster, errors_of
from nsqadmin_cli.command import Name, command, topic_argument
from nsqadmin_cli.completion import complete_channels
from nsqadmin_cli.datadir.directory import Queue, list_directory
from nsqadmin_cli.datadir.queue import Plan, make_plan, read_queue
from nsqadmin_cli.datadir.records import DEFAULT_MAX_MSG_SIZE, Record
from nsqadmin_cli.errors import NotFound
from nsqadmin_cli.http_client import NodeError
from nsqadmin_cli.message import DOCUMENT, Message
from nsqadmin_cli.message_view import message_blocks, message_table
from nsqadmin_cli.output import Output, report
from nsqadmin_cli.peeking import MOST, Found, Peeked, peek_at
from nsqadmin_cli.snapshot import no_such
from nsqadmin_cli.table import Block, Line, Tone
from nsqadmin_cli.text import plural


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
@topic_argument
@click.argument("channel", type=Name("channel"), default=None, required=False, shell_complete=complete_channels)
@click.option(
    "-n",
    "--count",
    type=click.IntRange(1, MOST),
    default=10,
    show_default=True,
    metavar="N",
    help="Show at most N messages of each node.",
)
@click.option("--hex", "as_hex", is_flag=True, help="Show bodies as a hex dump.")
@click.option(
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

    Without CHANNEL, shows the messages in the topic's own queue, because it has no channel or is paused. Messages in
    memory come first, then those on disk. Messages in flight and deferred messages are not shown.

    Only gnsqd supports this over HTTP. --data-path reads the queues on disk of gnsqd or nsqd, also while it runs. All
    other messages are written there when the daemon exits.
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
        lambda: _document(answers),
        lambda: list(_blocks(found, topic, channel, as_hex)),
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
    for payload in islice(_payloads(queue, plan), count):
        timestamp, attempts, id, body = decode_record(payload)
        messages.append(Peeked(Message(topic, timestamp, attempts, id, body, path), True, len(body)))
    depth = len(messages) if plan.meta is None else plan.meta.depth
    return Found(depth, depth, messages)


def _payloads(queue: Queue, plan: Plan) -> Iterator[bytes]:
    for _, item in read_queue(queue, plan, DEFAULT_MAX_MSG_SIZE):
        if isinstance(item, Record):
            yield item.payload


def _blocks(found: dict[str, Found], topic: str, channel: str | None, as_hex: bool) -> Iterator[Block]:
    for number, (address, answer) in enumerate(found.items()):
        if number:
            yield Line()
        waiting = f"{plural(answer.depth, 'message')} waiting" if answer.depth else "nothing waits"
        if len(answer.messages) < answer.depth:
            waiting += f", {len(answer.messages):,} shown"
        name = f"{topic} {channel}" if channel else topic
        yield Line(((name, Tone.STRONG), (" at ", Tone.FAINT), (address, Tone.NODE), (f": {waiting}", Tone.PLAIN)))
        for one in answer.messages:
            yield from message_blocks(one.message, [(_age(one.message), Tone.FAINT), _place(one)], as_hex=as_hex)


def _age(message: Message) -> str:
    return f"{units.duration(max(0.0, time.time() - message.timestamp / 1e9))} ago"


def _place(peeked: Peeked) -> tuple[str, Tone]:
    if peeked.size > len(peeked.message.body):
        return f"the beginning of {units.size(peeked.size)}", Tone.NOTE
    return "on disk" if peeked.on_disk else "in memory", Tone.FAINT


def _document(answers: dict[str, Found | NodeError | None]) -> dict[str, Any]:
    nodes, messages = [], []
    for address, answer in answers.items():
        match answer:
            case Found(depth, backend_depth, peeked):
                nodes.append({"address": address, "error": None, "depth": depth, "backend_depth": backend_depth})
                messages += [
                    {"node": address, "on_disk": one.on_disk, "size": one.size} | one.message.document()
                    for one in peeked
                ]
            case NodeError(reason=reason):
                nodes.append({"address": address, "error": reason, "depth": None, "backend_depth": None})
    return {"nodes": nodes, "messages": messages}
