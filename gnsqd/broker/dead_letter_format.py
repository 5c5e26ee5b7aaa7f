"""Dead letters: the name of their topic, and the format of their bodies.

A dead letter is a message whose body begins with a header, a JSON object on one line that describes its origin and its
death. The original body follows the line feed. contrib/docs/dead-letters.md has an example.

Nothing here needs gevent: other programs also read dead letters.
"""

import json
from contextlib import suppress
from typing import Any, NamedTuple
from zlib import crc32

from gnsqd.shared.names import EPHEMERAL_SUFFIX, MAX_NAME_LENGTH, is_ephemeral, is_valid_name

REQUEUED = "requeued"
TIMED_OUT = "timed out"
MAX_HEADER = 512  # bytes, more than there can be of names, numbers and a reason

_SUFFIX = ".dead"
_HASH = 9  # characters: a hyphen and a CRC-32


def dead_letter_topic(topic: str, channel: str) -> str:
    """Returns `{topic}.{channel}.dead`, ephemeral if either is. If it is too long, a CRC-32 replaces its end."""
    name = f"{topic.removesuffix(EPHEMERAL_SUFFIX)}.{channel.removesuffix(EPHEMERAL_SUFFIX)}"
    end = _SUFFIX + (EPHEMERAL_SUFFIX if is_ephemeral(topic) or is_ephemeral(channel) else "")
    room = MAX_NAME_LENGTH - len(end)
    if len(name) > room:
        name = f"{name[: room - _HASH]}-{crc32(name.encode()):08x}"
    return name + end


def is_dead_letter_topic(name: str) -> bool:
    return name.removesuffix(EPHEMERAL_SUFFIX).endswith(_SUFFIX)


class DeadLetter(NamedTuple):
    """The content of a dead letter: id, topic, channel, time of publication and attempts of the message; the reason and
    time of its death; its body. Times are wall clock in ns."""

    id: str
    topic: str
    channel: str
    timestamp: int
    attempts: int
    reason: str
    died: int
    body: bytes

    def encode(self) -> bytes:
        header = {name: getattr(self, name) for name in _HEADER}
        return json.dumps(header, separators=(",", ":")).encode() + b"\n" + self.body

    @classmethod
    def parse(cls, data: bytes) -> "DeadLetter":
        """Parses the body of a message; raises ValueError, with a text for people, if it is not a dead letter."""
        header, line_feed, body = data.partition(b"\n")
        values: Any = None
        if line_feed and len(header) < MAX_HEADER:
            with suppress(ValueError, RecursionError):
                values = json.loads(header)
        if not isinstance(values, dict):
            raise ValueError("it does not begin with the header of a dead letter")
        for name, kind in _HEADER.items():
            if type(values.get(name)) is not kind:
                raise ValueError(f'its header has no "{name}"')
        if not is_valid_name(values["topic"]):
            raise ValueError('"topic" in its header is not a name of a topic')
        return cls(**{name: values[name] for name in _HEADER}, body=body)


_HEADER = {name: kind for name, kind in DeadLetter.__annotations__.items() if name != "body"}  # in order
