"""Publishes over HTTP, in batches, to the nodes of a cluster in turn; options and summary of publishing commands.

A batch that a node does not accept, because it is down, full or exiting, goes to the next one. If an answer is lost, it
is unknown whether the node has the batch: it also goes to the next one, so there may be duplicates.
"""

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import click

from nsqadmin_cli import units
from nsqadmin_cli.api import Nsqd
from nsqadmin_cli.change import Shown
from nsqadmin_cli.cluster import ask_all
from nsqadmin_cli.command_base import option
from nsqadmin_cli.errors import AdminError
from nsqadmin_cli.http_client import Address, NodeError, NodeRefused
from nsqadmin_cli.output import note
from nsqadmin_cli.table import Form, Line, Table, column, described, table_of
from nsqadmin_cli.units import plural

MOST_MESSAGES = 2000  # in one request
MOST_BYTES = 1024 * 1024

# What is wrong with the messages, whatever node is asked. Codes of the others mean that another node may do.
_TOO_BIG = {"MSG_TOO_BIG", "BODY_TOO_BIG", "BAD_MESSAGE", "BAD_BODY"}
_WRONG = _TOO_BIG | {"MSG_EMPTY", "INVALID_TOPIC", "INVALID_DEFER"}
PATIENCE = 20.0  # seconds that a destination may be away; a message in flight times out after 60
_RESTING = 5.0  # seconds that a node which failed is left alone, if there is another


@dataclass(slots=True)
class NodeCount:
    address: str = column("node", key="node")
    messages: int = column("messages", form=Form.COUNT, help="that it accepted")


@dataclass(slots=True)
class TopicCount:
    topic: str = column("topic")
    messages: int = column("messages", form=Form.COUNT, help="published to it; with --dry-run: to publish")


class Sender:
    """Publishes to `nodes`, at most `rate` messages per second; if all fail, retries for `patience` seconds. With None
    as nodes it is dry: it only counts."""

    def __init__(self, nodes: Sequence[Nsqd] | None, *, patience: float = 0.0, rate: float = 0.0) -> None:
        self.is_dry = nodes is None
        if not nodes and not self.is_dry:
            raise AdminError("there are no nodes to publish to")
        self.sent: Counter[Address] = Counter()  # messages
        self.topics: Counter[str] = Counter()  # messages to each
        self.bytes = 0
        self._nodes = list(nodes or ())
        self._patience = patience
        self._rate = 0.0 if self.is_dry else rate
        self.started = self._free_at = time.monotonic()  # when the next message may go, by the rate
        self._resting: dict[Address, float] = {}  # node -> until when

    @property
    def total(self) -> int:
        return self.topics.total()

    def counts(self) -> list[NodeCount]:
        return [NodeCount(str(address), number) for address, number in sorted(self.sent.items())]

    def publish(self, topic: str, bodies: Iterable[bytes], defer_ms: int = 0) -> Iterator[int]:
        """Publishes all of `bodies`; yields the number of messages published by each request. Raises AdminError if none
        of the nodes accepts a message, or it is invalid."""
        most = max(1, min(MOST_MESSAGES, int(self._rate / 10))) if self._rate else MOST_MESSAGES
        for batch in _batches(bodies, 1 if defer_ms else most):
            if self._rate:
                now = time.monotonic()
                time.sleep(max(0.0, self._free_at - now))
                self._free_at = max(self._free_at, now - 1) + len(batch) / self._rate
            yield from self._send(topic, batch, defer_ms)

    def _send(self, topic: str, batch: list[bytes], defer_ms: int) -> Iterator[int]:
        try:
            if not self.is_dry:
                self._send_somewhere(topic, batch, defer_ms)
        except NodeRefused as error:
            if error.code not in _TOO_BIG:
                raise
            if len(batch) == 1:
                size = plural(len(batch[0]), "byte")
                raise AdminError(f"a message of {size} is larger than nsqd at {error.address} accepts") from None
            # The node may take less at once than others; or one message is too big, and the others are not.
            for half in (batch[: len(batch) // 2], batch[len(batch) // 2 :]):
                yield from self._send(topic, half, defer_ms)
            return
        self.topics[topic] += len(batch)
        self.bytes += sum(map(len, batch))
        yield len(batch)

    def _send_somewhere(self, topic: str, batch: list[bytes], defer_ms: int) -> None:
        """Sends one request to the nodes in turn until one accepts it. Raises NodeRefused if the messages are wrong,
        AdminError if no node accepts them in time."""
        send = partial(Nsqd.publish, topic=topic, bodies=batch, defer_ms=defer_ms)
        deadline = time.monotonic() + self._patience
        is_reported = False
        while True:
            errors: list[NodeError] = []
            now = time.monotonic()
            self._nodes.append(self._nodes.pop(0))  # each time, the next node is the first; failed ones are the last
            for node in sorted(self._nodes, key=lambda node: self._resting.get(node.address, 0) > now):
                error = ask_all([node], send, node.timeout)[node.address]
                if error is None:
                    self._resting.pop(node.address, None)
                    self.sent[node.address] += len(batch)
                    return
                if isinstance(error, NodeRefused) and error.code in _WRONG:
                    raise error
                errors.append(error)
                self._resting[node.address] = time.monotonic() + _RESTING
            if time.monotonic() >= deadline:
                raise AdminError("; ".join(map(str, errors)))
            if not is_reported:
                is_reported = True
                note(f"Warning: {'; '.join(map(str, errors))}; trying again")
            time.sleep(0.5)


def _batches(bodies: Iterable[bytes], most: int) -> Iterator[list[bytes]]:
    """Yields `bodies` in order, in batches that fit into one request."""
    batch: list[bytes] = []
    size = 0
    for body in bodies:
        if batch and (len(batch) >= most or size + len(body) + 4 > MOST_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(body)
        size += len(body) + 4
    if batch:
        yield batch


# The document of `shown_published`, for the help of commands.
PUBLISHED = """
        topic    destination
        messages, bytes, seconds
                 what was published, and the duration
        nodes    list: address, messages that it accepted"""


# Parameter `rate`, 0 for no limit.
rate_option = option(
    "Publish at most N messages per second.",
    click.FloatRange(0, min_open=True),
    callback=lambda ctx, param, value: value or 0.0,
    on_page=False,
)


def shown_published(publisher: Sender, topic: str, source: Mapping[str, object] = {}) -> Shown:
    """Returns the messages published per node; `source` is added to the document."""
    nodes, total, size = publisher.counts(), publisher.total, publisher.bytes
    seconds = time.monotonic() - publisher.started
    document = {"topic": topic, "messages": total, "bytes": size, "seconds": round(seconds, 3), "nodes": nodes}
    table = table_of(NodeCount, nodes)
    where = f" at {nodes[0].address}" if len(nodes) == 1 else ""
    summary = _summary("Published", total, size, f" to {topic}{where}" if total else "", seconds)
    return Shown({**document, **source}, [Line.of(summary), *([table] if len(nodes) > 1 else [])], table)


# The document of `shown_by_topic`.
BY_TOPIC = (
    described("topics", "list", TopicCount),
    "messages, bytes, seconds\n         what was published, and the duration",
    described("nodes", "list", NodeCount),
)


def shown_by_topic(publisher: Sender, more: Mapping[str, object] = {}, detail: Table | None = None) -> Shown:
    """Returns the messages published to several topics, with `more` in the document, and `detail` before them."""
    rows = [TopicCount(name, number) for name, number in sorted(publisher.topics.items())]
    total, size, seconds = publisher.total, publisher.bytes, time.monotonic() - publisher.started
    document = {**more, "topics": rows, "messages": total, "bytes": size, "seconds": round(seconds, 3)}
    document["nodes"] = publisher.counts()
    where = f" to {rows[0].topic}" if len(rows) == 1 else ""
    doing, seconds = ("Would publish", 0.0) if publisher.is_dry else ("Published", seconds)
    table = table_of(TopicCount, rows)
    tables = [*([detail] if detail and detail.rows else []), *([table] if len(rows) > 1 else [])]
    return Shown(document, [*tables, Line.of(_summary(doing, total, size, where, seconds))], detail or table)


def _summary(doing: str, messages: int, size: int, where: str, seconds: float) -> str:
    """Returns `Published 1,234 messages (56 kB) to orders in 12s, 345/s`; the rate only if it took long enough."""
    pace = f" in {units.latency(seconds)}, {units.rate(messages / seconds)}/s" if seconds >= 1 else ""
    return f"{doing} {plural(messages, 'message')} ({units.size(size)}){where}{pace}"
