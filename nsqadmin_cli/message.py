"""Messages as gnsqadmin shows and saves them, and their lossless form in JSON.

A body can be any bytes. In JSON, it is the string `body` if it is UTF-8, else `body` is null and `body_base64` has it.
"""

import base64
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# What --json has of a message, for the help of commands.
DOCUMENT = """
        topic, timestamp (ns since 1970, when it was published), attempts, id
        body     text, or null if it is not UTF-8
        body_base64
                 the body in base64 if it is not UTF-8, else null"""


@dataclass(frozen=True, slots=True)
class Message:
    """One message; `timestamp` in ns, `node` where it was found."""

    topic: str
    timestamp: int
    attempts: int
    id: bytes
    body: bytes
    node: str = ""

    def document(self) -> dict[str, Any]:
        """Its form in JSON."""
        return {
            "topic": self.topic,
            "timestamp": self.timestamp,
            "attempts": self.attempts,
            "id": self.id_text,
        } | body_document(self.body)

    @property
    def id_text(self) -> str:
        return self.id.decode("ascii", "backslashreplace")

    @property
    def body_text(self) -> str:
        """The body as readable text."""
        return self.body.decode("utf-8", "backslashreplace")

    @property
    def clock(self) -> str:
        """When it was published, in local time."""
        return clock(self.timestamp)


def clock(timestamp: int) -> str:
    """A time in ns since 1970, in local time."""
    seconds, rest = divmod(timestamp, 1_000_000_000)
    try:
        return f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(seconds))}.{rest // 1_000_000:03}"
    except (OverflowError, ValueError, OSError):  # a year that a lying node made up
        return f"{timestamp} ns"


def body_document(body: bytes) -> dict[str, str | None]:
    """`body` and `body_base64`."""
    try:
        return {"body": body.decode(), "body_base64": None}
    except UnicodeDecodeError:
        return {"body": None, "body_base64": base64.b64encode(body).decode()}


def body_of(document: Mapping[str, Any]) -> bytes:
    """The body from its form in JSON; ValueError with a readable text."""
    text, encoded = document.get("body"), document.get("body_base64")
    match text, encoded:
        case str(), None:
            try:
                return text.encode()
            except UnicodeEncodeError:
                raise ValueError('"body" has half a surrogate pair') from None
        case None, str():
            try:
                return base64.b64decode(encoded, validate=True)
            except ValueError:
                raise ValueError('"body_base64" is not base64') from None
    raise ValueError('expected one string, "body" or "body_base64"')


def field_of(body: bytes, path: str) -> object:
    """The value at `path` of a body that is a JSON object, as in `customer.id`; KeyError."""
    try:
        found: Any = json.loads(body)
    except (ValueError, RecursionError):
        raise KeyError(path) from None
    for name in path.split("."):
        if not isinstance(found, dict):
            raise KeyError(path)
        found = found[name]
    return found


def hex_lines(body: bytes) -> list[str]:
    """The body as `hexdump -C` shows it: sixteen bytes a line."""
    lines = []
    for start in range(0, len(body), 16):
        part = body[start : start + 16]
        digits = f"{part[:8].hex(' '):<23}  {part[8:].hex(' '):<23}"
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        lines.append(f"{start:08x}  {digits}  |{text}|")
    return lines
