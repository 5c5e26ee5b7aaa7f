"""`gnsqadmin pub`: publishes messages from arguments, a file or standard input."""

import os
import re
import sys
from dataclasses import replace
from itertools import chain, repeat

import click

from nsqadmin_cli.archive import DASH, InputError, read_pieces, size_of, split
from nsqadmin_cli.change import Shown
from nsqadmin_cli.cluster import Cluster
from nsqadmin_cli.command_base import Parsed, argument, command, duration, flag, option
from nsqadmin_cli.output import explained, is_terminal, note, progress
from nsqadmin_cli.publisher import PUBLISHED, Sender, rate_option, shown_published
from nsqadmin_cli.units import plural

_LONGEST = 64 * 1024 * 1024  # bytes of one message
_ESCAPES = {r"\n": b"\n", r"\t": b"\t", r"\0": b"\0", r"\r": b"\r"}


def _byte(text: str) -> bytes:
    """Returns a single byte, given as it is or as an escape sequence."""
    byte = _ESCAPES.get(text) or os.fsencode(text)
    if match := re.fullmatch(r"\\x([0-9a-fA-F]{2})", text):
        byte = bytes.fromhex(match[1])
    if len(byte) != 1:
        raise ValueError(rf"{text!r} is not a single byte, as in ',', '\0' or '\x1e'.")
    return byte


@command(
    examples=r"""
        gnsqadmin pub orders '{"id": 1}'
        tail -F app.log | gnsqadmin pub logs
        gnsqadmin pub orders --file orders.txt --rate 500
        gnsqadmin pub orders --file picture.png --whole
        gnsqadmin pub reminders 'call back' --defer 30m
        find . -print0 | gnsqadmin pub files --delimiter '\0'
    """,
    document=PUBLISHED,
)
def pub(
    cluster: Cluster,
    topic: str,
    messages: tuple[str, ...] = argument(nargs=-1, metavar="[MESSAGE]..."),
    file: str | None = option("Publish each line of a file.", click.Path(dir_okay=False)),
    whole: bool = flag("Publish the whole file, or standard input, as one message."),
    delimiter: bytes = option(
        r"Byte that ends a message in a file or in standard input; also \0, \t, \x1e.",
        Parsed("byte", _byte),
        default=r"\n",
    ),
    times: int = option("Publish each MESSAGE N times.", click.IntRange(1), "--repeat", default=1),
    defer: float | None = option("Defer the messages for this time.", duration(30 * 86400)),
    rate: float = rate_option,
) -> Shown:
    """Empty lines are skipped, because NSQ does not accept empty messages. The topic is created if it does not exist.

    Each message goes to one node. With several nodes, batches are sent to the nodes in turn, and a failed node is
    skipped. If the answer of a node is lost, its batch is published again, so there may be duplicates. --timeout
    applies to each batch.
    """
    if messages and (file or whole):
        raise click.UsageError("Give messages or a file, not both.")
    if times > 1 and not messages:
        raise click.UsageError("--repeat requires a MESSAGE.")
    if "" in messages:
        raise click.UsageError("A message cannot be empty.")
    path = file or DASH
    if not messages and path == DASH and is_terminal(sys.stdin):
        note("Type one message per line; Ctrl-D ends.")
    publisher = Sender(cluster.nsqds(), rate=rate)
    defer_ms = max(1, round(defer * 1000)) if defer else 0

    def done() -> str:
        return f"{plural(publisher.total, 'message')} {'was' if publisher.total == 1 else 'were'} published"

    with explained(done):
        if messages:
            bodies = [os.fsencode(message) for message in messages]
            with progress("publishing", len(bodies) * times, shown=times > 1) as advance:
                for count in publisher.publish(topic, chain.from_iterable(repeat(bodies, times)), defer_ms):
                    advance(count)
        else:
            _publish_file(publisher, topic, path, None if whole else delimiter, defer_ms)
    return replace(shown_published(publisher, topic), errors=cluster.lookupd_errors)


def _publish_file(publisher: Sender, topic: str, path: str, delimiter: bytes | None, defer_ms: int) -> None:
    """Publishes each part between delimiters as it arrives, or everything as one message."""
    is_typed = path == DASH and is_terminal(sys.stdin)
    with progress("publishing", size_of(path), "bytes", shown=not is_typed) as advance:
        pieces = ((piece, len(piece)) for piece in read_pieces(path))
        for messages, size in split(pieces, delimiter, _LONGEST, path) if delimiter else [_all(path)]:
            bodies = [body for body in messages if body]
            share = size / (len(bodies) + 1)  # of a message, and of empty lines
            for count in publisher.publish(topic, bodies, defer_ms):
                advance(share * count)
            advance(share)


def _all(path: str) -> tuple[list[bytes], int]:
    """Returns the whole content as the one message, and its size; raises InputError."""
    pieces, size = [], 0
    for piece in read_pieces(path):
        pieces.append(piece)
        size += len(piece)
        if size > _LONGEST:
            raise InputError(f"{path} is larger than {plural(_LONGEST, 'byte')}, the maximum for one message")
    return [b"".join(pieces)], size
