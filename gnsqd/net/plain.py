"""Replaces `native` for modules that are not compiled."""

from struct import Struct
from typing import Any

from gnsqd.shared.protocol import FRAME_TYPE_MESSAGE

_pack_head = Struct(">iiqH").pack
_FIRST_ATTEMPT = 1
_LAST_DIGITS = [b"%03x" % number for number in range(1 << 12)]


def new_frames(id: int, timestamp: int, bodies: list[bytes]) -> list[bytes]:
    """Returns the frames (`queues.message`) of messages that were never delivered. They have consecutive ids from `id`
    on, of which only the last three of the 16 digits differ; `timestamp` is the wall clock in ns."""
    digits = b"%013x" % (id >> 12)
    first = id & 0xFFF
    frames = []
    size = -1
    head = b""
    for last_digits, body in zip(_LAST_DIGITS[first : first + len(bodies)], bodies, strict=True):
        if len(body) != size:
            size = len(body)
            head = _pack_head(30 + size, FRAME_TYPE_MESSAGE, timestamp, _FIRST_ATTEMPT) + digits
        frames.append(b"".join((head, last_digits, body)))
    return frames


def new_by_id() -> dict[bytes, Any]:
    """Returns an empty dict of messages by their ids, of 16 bytes. That of `native` has `get`, `pop`, `setdefault`,
    `values` and a length, and must not be changed while its values are iterated over."""
    return {}
