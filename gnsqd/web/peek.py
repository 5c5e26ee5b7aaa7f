"""What /topic/peek and /channel/peek show: messages that wait in a queue, without taking any of them.

Everything is bounded, so that a look keeps nobody waiting: how many messages come at once, how large they are together,
and how much of each body. Router gives everybody else their turns while it writes them out.
"""

from base64 import b64encode

from gnsqd.broker.channel import Channel
from gnsqd.broker.topic import Topic
from gnsqd.gotext import parse_int
from gnsqd.queues.message import Message
from gnsqd.web.routes import HTTPError

DEFAULT_LIMIT = 10
MAX_LIMIT = 1000  # messages
MAX_BYTES = 1024 * 1024  # of all messages, but for a single larger one
MAX_BODY = 32 * 1024  # bytes that are shown of one body


def show(queue: Topic | Channel, parameters: dict[str, str]) -> dict[str, object]:
    """The first `limit` messages: those that would come next from memory, then those from disk; HTTPError."""
    try:
        limit = parse_int(parameters.get("limit", str(DEFAULT_LIMIT)))
    except ValueError:
        limit = 0
    if not 1 <= limit <= MAX_LIMIT:
        raise HTTPError(400, "INVALID_LIMIT")
    return {
        "depth": queue.depth,
        "backend_depth": queue.backend_depth,
        "messages": [_row(message, on_disk) for message, on_disk in queue.peek(limit, MAX_BYTES)],
    }


def _row(message: Message, on_disk: bool) -> dict[str, object]:
    """One message; the body is text in `body` if it can be, else in `body_base64`."""
    body = message.body
    shown = body[:MAX_BODY]
    text, encoded = None, None
    try:
        text = shown.decode()
    except UnicodeDecodeError:
        encoded = b64encode(shown).decode()
    return {
        "id": message.id.decode("ascii", "backslashreplace"),
        "timestamp": message.timestamp,
        "attempts": message.attempts,
        "on_disk": on_disk,
        "size": len(body),
        "body": text,
        "body_base64": encoded,
    }
