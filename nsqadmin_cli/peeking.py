"""Asking nodes for the messages that wait in a queue, which stay there. Only gnsqd can be asked."""

from typing import Any, NamedTuple

from nsqadmin_cli.api import Nsqd
from nsqadmin_cli.http_client import NodeError, Refused
from nsqadmin_cli.message import Message, body_of
from nsqadmin_cli.models import ModelError

MOST = 1000  # messages that a node shows at once


class Peeked(NamedTuple):
    """A message in its queue. `size` is that of its body, of which a node shows no more than it wants to."""

    message: Message
    on_disk: bool
    size: int


class Found(NamedTuple):
    """What a node, or a directory, shows of a queue that holds `depth` messages, `on_disk` of them there."""

    depth: int
    backend_depth: int
    messages: list[Peeked]


def peek_at(node: Nsqd, topic: str, channel: str, count: int) -> Found | None:
    """What waits in a channel, or, if that is "", in the topic. None where there is no such topic or channel;
    NodeError."""

    def read(data: object) -> Found:
        try:
            assert isinstance(data, dict)
            rows = [_peeked(row, topic, str(node.address)) for row in data["messages"]]
            return Found(int(data["depth"]), int(data["backend_depth"]), rows)
        except (AssertionError, LookupError, TypeError, ValueError, AttributeError, OverflowError):
            raise ModelError("it is no list of messages") from None

    query = {"topic": topic, "limit": str(count)} | ({"channel": channel} if channel else {})
    try:
        return node.ask("/channel/peek" if channel else "/topic/peek", read, query)
    except Refused as error:
        if error.code in ("TOPIC_NOT_FOUND", "CHANNEL_NOT_FOUND"):
            return None
        if error.status != 404:
            raise
        reason = "only gnsqd shows what waits; what nsqd has on disk can be seen with gnsqadmin peek --data-path"
        raise NodeError(node.program, node.address, reason) from None


def _peeked(row: dict[str, Any], topic: str, node: str) -> Peeked:
    id = str(row["id"]).encode("utf-8", "surrogatepass")
    message = Message(topic, int(row["timestamp"]), int(row["attempts"]), id, body_of(row), node)
    return Peeked(message, bool(row["on_disk"]), int(row["size"]))
