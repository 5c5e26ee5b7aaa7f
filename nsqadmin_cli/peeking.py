"""Queries nodes for queued messages without consuming them. Only gnsqd supports this."""

from typing import Any, NamedTuple

from nsqadmin_cli.api import Nsqd
from nsqadmin_cli.http_client import NodeError, Refused
from nsqadmin_cli.message import Message, body_of
from nsqadmin_cli.models import ModelError

MOST = 1000  # messages that a node shows at once


class Peeked(NamedTuple):
    """A message in its queue. `size` is that of its body, which the node may truncate."""

    message: Message
    on_disk: bool
    size: int


class Found(NamedTuple):
    """The messages that a node or directory shows of a queue with `depth` messages, `on_disk` of them on disk."""

    depth: int
    backend_depth: int
    messages: list[Peeked]


def peek_at(node: Nsqd, topic: str, channel: str, count: int) -> Found | None:
    """The queued messages of a channel, or, if that is "", of the topic. None if it does not exist; NodeError."""

    def read(data: object) -> Found:
        try:
            assert isinstance(data, dict)
            rows = [_peeked(row, topic, str(node.address)) for row in data["messages"]]
            return Found(int(data["depth"]), int(data["backend_depth"]), rows)
        except (AssertionError, LookupError, TypeError, ValueError, AttributeError, OverflowError):
            raise ModelError("it is not a list of messages") from None

    query = {"topic": topic, "limit": str(count)} | ({"channel": channel} if channel else {})
    try:
        return node.ask("/channel/peek" if channel else "/topic/peek", read, query)
    except Refused as error:
        if error.code in ("TOPIC_NOT_FOUND", "CHANNEL_NOT_FOUND"):
            return None
        if error.status != 404:
            raise
        reason = "only gnsqd supports peek; for messages that nsqd has on disk, use gnsqadmin peek --data-path"
        raise NodeError(node.program, node.address, reason) from None


def _peeked(row: dict[str, Any], topic: str, node: str) -> Peeked:
    id = str(row["id"]).encode("utf-8", "surrogatepass")
    message = Message(topic, int(row["timestamp"]), int(row["attempts"]), id, body_of(row), node)
    return Peeked(message, bool(row["on_disk"]), int(row["size"]))
