"""Shows messages as text, and as rows of CSV."""

import time
from collections.abc import Iterator, Sequence

from nsqadmin_cli import units
from nsqadmin_cli.message import Message, hex_lines
from nsqadmin_cli.table import Block, Column, Form, Line, Paragraph, Table, Tone

Part = tuple[str, Tone]

_MOST_HEX = 4096  # bytes of a body


def message_blocks(message: Message, facts: Sequence[Part], *, as_hex: bool = False) -> Iterator[Block]:
    """A line with the time of publishing, `facts` and other metadata, and the body below."""
    parts: list[Part] = [(_clock(message), Tone.FAINT), *facts]
    parts += [(message.id_text, Tone.FAINT), (units.size(len(message.body)), Tone.FAINT)]
    if message.attempts > 1:
        parts.append((f"attempt {message.attempts}", Tone.NOTE))
    gap = ("  ", Tone.PLAIN)
    yield Line(tuple(one for part in parts for one in (part, gap))[:-1])
    if not as_hex:
        yield Paragraph(gap, message.body_text)
        return
    for line in hex_lines(message.body[:_MOST_HEX]):
        yield Line((gap, (line, Tone.PLAIN)))
    if len(message.body) > _MOST_HEX:
        yield Line((gap, (f"and {len(message.body) - _MOST_HEX:,} bytes more", Tone.FAINT)))


def _clock(message: Message) -> str:
    """The time of publishing, with the day if that is not today."""
    day, _, clock = message.clock.partition(" ")
    return clock if day == time.strftime("%Y-%m-%d") else message.clock


def message_table(messages: Sequence[Message]) -> Table:
    """A row for each; bodies are made printable, and are whole in JSON only."""
    columns = [
        Column("time", "published"),
        Column("topic", "topic"),
        Column("node", "node", tone=Tone.NODE),
        Column("id", "id"),
        Column("attempts", "attempts", form=Form.COUNT),
        Column("size", "size", form=Form.BYTES),
        Column("body", "body"),
    ]
    rows = [
        [units.iso_time(one.timestamp), one.topic, one.node, one.id_text, one.attempts, len(one.body), one.body_text]
        for one in messages
    ]
    return Table(columns, list(rows))
