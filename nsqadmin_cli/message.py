"""Messages as gnsqadmin shows and saves them, and their lossless form in JSON.

A body can be any bytes. In JSON, it is the string `body` if it is UTF-8, else `body` is null and `body_base64` has it.
"""

import base64
import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from msgspec import Struct

from nsqadmin_cli import units
from nsqadmin_cli.api import Count, Nsqd
from nsqadmin_cli.http_client import NodeLacks, NodeRefused
from nsqadmin_cli.table import Block, Column, Line, Paragraph, Table, Tone

# What --json has of a message, for the help of commands.
DOCUMENT = """
        topic, timestamp (ns since 1970, when it was published), attempts, id
        body     text, or null if it is not UTF-8
        body_base64
                 the body in base64 if it is not UTF-8, else null"""


@dataclass(frozen=True, slots=True)
class MessageRow:
    """One message; `timestamp` in ns, `node` where it was found."""

    topic: str
    timestamp: int
    attempts: int
    id: bytes
    body: bytes
    node: str = ""

    def document(self) -> dict[str, Any]:
        about = {"topic": self.topic, "timestamp": self.timestamp, "attempts": self.attempts, "id": self.id_text}
        try:
            return about | {"body": self.body.decode(), "body_base64": None}
        except UnicodeDecodeError:
            return about | {"body": None, "body_base64": base64.b64encode(self.body).decode()}

    @property
    def id_text(self) -> str:
        return self.id.decode("ascii", "backslashreplace")

    @property
    def body_text(self) -> str:
        return self.body.decode("utf-8", "backslashreplace")


def clock(timestamp: int) -> str:
    """Formats a time in ns since 1970 as local time."""
    seconds, rest = divmod(timestamp, 1_000_000_000)
    try:
        return f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(seconds))}.{rest // 1_000_000:03}"
    except (OverflowError, ValueError, OSError):  # a year that a lying node made up
        return f"{timestamp} ns"


def body_of(document: Mapping[str, Any]) -> bytes:
    """Returns the body from its form in JSON; raises ValueError with a readable text."""
    match document.get("body"), document.get("body_base64"):
        case str(text), None:
            try:
                return text.encode()
            except UnicodeEncodeError:
                raise ValueError('"body" has half a surrogate pair') from None
        case None, str(encoded):
            try:
                return base64.b64decode(encoded, validate=True)
            except ValueError:
                raise ValueError('"body_base64" is not base64') from None
    raise ValueError('expected one string, "body" or "body_base64"')


_TOKENS = re.compile(r'"(?:[^"\\]|\\.)*"|[][{},:]|[^][{},:"\s]+')


def pretty_lines(text: str) -> list[str]:
    """Returns an indented line for each value of a JSON object or list, unchanged; any other text as it is."""
    try:
        if len(text) > _MOST_PRETTY or not isinstance(json.loads(text), dict | list):
            return [text]
    except (ValueError, RecursionError):
        return [text]
    lines, depth, before = [""], 0, ""
    for token in _TOKENS.findall(text):
        depth -= token in "]}"
        if (before in ("[", "{", ",") and token not in "]}") or (token in "]}" and before not in "[{"):
            lines.append("  " * depth)
        lines[-1] += f"{token} " if token == ":" else token
        depth += token in "[{"
        before = token
    return lines


def hex_lines(body: bytes) -> list[str]:
    """Returns the body as `hexdump -C` shows it: sixteen bytes a line."""
    lines = []
    for start in range(0, len(body), 16):
        part = body[start : start + 16]
        digits = f"{part[:8].hex(' '):<23}  {part[8:].hex(' '):<23}"
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        lines.append(f"{start:08x}  {digits}  |{text}|")
    return lines


Part = tuple[str, Tone]

_MOST_HEX = 4096  # bytes of a body
_MOST_PRETTY = 32768  # characters of a body


def message_blocks(message: MessageRow, facts: Sequence[Part], *, as_hex: bool = False) -> Iterator[Block]:
    """Yields a line with the time of publishing, its day unless that is today, `facts` and metadata; the body below."""
    day, _, time_of_day = (published := clock(message.timestamp)).partition(" ")
    parts: list[Part] = [(time_of_day if day == time.strftime("%Y-%m-%d") else published, Tone.FAINT), *facts]
    parts += [(message.id_text, Tone.FAINT), (units.size(len(message.body)), Tone.FAINT)]
    if message.attempts > 1:
        parts.append((f"attempt {message.attempts}", Tone.NOTE))
    gap = ("  ", Tone.PLAIN)
    yield Line(tuple(piece for part in parts for piece in (part, gap))[:-1])
    if not as_hex:
        yield from (Paragraph(gap, line) for line in pretty_lines(message.body_text))
        return
    for line in hex_lines(message.body[:_MOST_HEX]):
        yield Line((gap, (line, Tone.PLAIN)))
    if len(message.body) > _MOST_HEX:
        yield Line((gap, (f"and {len(message.body) - _MOST_HEX:,} bytes more", Tone.FAINT)))


def message_table(messages: Sequence[MessageRow]) -> Table:
    """Returns a row for each, for CSV; bodies are made printable, and are whole in JSON only."""
    table = Table([Column(name, name) for name in ("time", "topic", "node", "id", "attempts", "size", "body")])
    for message in messages:
        about = units.iso_time(message.timestamp), message.topic, message.node, message.id_text, message.attempts
        table.rows.append((*about, len(message.body), message.body_text))
    return table


MOST = 1000  # messages that a node shows at once


class QueuedMessage(Struct, frozen=True, gc=False):
    """A message as a node shows it. `size` is that of its body, which the node may truncate."""

    id: str
    timestamp: Count
    attempts: Count
    size: Count
    body: str | None = None
    body_base64: bytes | None = None  # if it is not UTF-8
    on_disk: bool = False
    due: Count = 0  # of a deferred message; ns since 1970

    def row(self, topic: str, node: object) -> MessageRow:
        """Returns it as a message of this topic at this node, with what the node showed of its body."""
        body = (self.body_base64 or b"") if self.body is None else self.body.encode()
        return MessageRow(topic, self.timestamp, self.attempts, self.id.encode(), body, str(node))


class _PeekedMessages(Struct, frozen=True, gc=False):
    depth: Count
    backend_depth: Count
    messages: tuple[QueuedMessage, ...]


class Peeked(NamedTuple):
    """A message in its queue. `size` is that of its body, which the node may truncate."""

    message: MessageRow
    on_disk: bool
    size: int


class PeekedQueue(NamedTuple):
    """The messages that a node or directory shows of a queue with `depth` messages, `backend_depth` of them on disk."""

    depth: int
    backend_depth: int
    messages: list[Peeked]


def peek_at(node: Nsqd, topic: str, channel: str, count: int) -> PeekedQueue | None:
    """Returns queued messages of a channel, or, for "", of the topic; None if it does not exist. Raises NodeError."""
    query = {"topic": topic, "limit": str(count)} | ({"channel": channel} if channel else {})
    try:
        queue = node.ask("/channel/peek" if channel else "/topic/peek", _PeekedMessages, query)
    except NodeRefused as error:
        if error.code in ("TOPIC_NOT_FOUND", "CHANNEL_NOT_FOUND"):
            return None
        if error.status != 404:
            raise
        reason = "only gnsqd supports peek; for messages that nsqd has on disk, use gnsqadmin peek --data-path"
        raise NodeLacks(node.program, node.address, reason) from None
    messages = [Peeked(message.row(topic, node), message.on_disk, message.size) for message in queue.messages]
    return PeekedQueue(queue.depth, queue.backend_depth, messages)
