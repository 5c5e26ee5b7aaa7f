"""Reads the logs of topics on gnsqd nodes by number: nothing is consumed, and there is no channel.

A request is for about a megabyte, and `--timeout` limits it. It is repeated from the number reached if it fails, unless
the node refuses it: then messages are missing, or the log is another one.
"""

import queue
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import partial
from math import inf
from threading import Thread
from typing import Any

import click
from msgspec import Struct

from gnsqd.shared.disk_format import decode_record
from gnsqd.shared.errors import StorageError
from gnsqd.shared.journal.records import decode_range
from nsqadmin_cli.api import Count, Nsqd
from nsqadmin_cli.cluster import Cluster, errors_of, values_of
from nsqadmin_cli.command_base import option
from nsqadmin_cli.errors import AdminError
from nsqadmin_cli.http_client import NodeError, NodeRefused
from nsqadmin_cli.message import MessageRow
from nsqadmin_cli.output import note
from nsqadmin_cli.publisher import PATIENCE
from nsqadmin_cli.snapshot import ask_holders
from nsqadmin_cli.table import ALWAYS, Cell, Form, Tone, column, json_only
from nsqadmin_cli.units import printable, seconds_of

_POINT = (
    'a number, a time ago (-15m), a time with its zone (2026-11-23T14:00:00Z), the id of a message, "first" or "next"'
)
_REASONS = {
    "NOT_FOUND": "cannot read ranges: it is not gnsqd, or an older one",
    "NO_JOURNAL": "has no log of the topic: that needs --durability, and a topic that is not ephemeral",
    "CHANNEL_EPHEMERAL": "an ephemeral channel has no position in the log",
}
_REFUSALS = {
    "MESSAGES_GONE": "messages of {0} from {1} on are not kept any more; continue with --from {2}",
    "MESSAGES_DAMAGED": "messages of {0} from {1} on are damaged; continue with --from {2}",
    "LOG_CHANGED": "its log of {0} is another one, or does not reach {1}: the topic was deleted, or data replaced",
}
_BATCH = 1 << 20  # bytes
_LONGEST_WAIT = 10.0  # seconds that a request waits for new messages
_RETRY = 0.5  # seconds
_FRAME_HEAD = 8  # bytes of size and type

begin_option = option("Read logs from this POINT on, without consuming.", None, "--from", metavar="POINT")


class _Range(Struct, frozen=True, gc=False):
    epoch: str
    first: Count
    next: Count
    first_published: Count | None  # ns
    last_published: Count | None
    bytes: Count
    at: Count = 0  # if it was asked for, as is the next one
    position: Count = 0


@dataclass(slots=True)
class RangeRow:
    address: str = column("node", key="node", keep=ALWAYS, tone=Tone.NODE)
    epoch: str | None = column("epoch", keep=4, help="random name of this log")
    first: Any = column("first", keep=ALWAYS, help="number of the first message")
    next: Any = column("next", keep=ALWAYS, help="number behind the last message")
    first_published: float | None = column("from", form=Form.TIME, keep=6, help="unix seconds, or null")
    last_published: float | None = column("to", form=Form.TIME, keep=7, help="the same")
    bytes: int | None = column("bytes", form=Form.BYTES, help="of the files that have these messages")
    at: Any = column("at", keep=ALWAYS, tone=Tone.NOTE, sparse=True, help="the number at --at, or null")
    position: Any = column(
        "position", keep=ALWAYS, sparse=True, help="the first number that --channel has not finished, or null"
    )
    lag: int | None = column("lag", "", Form.COUNT, ALWAYS, sparse=True, help="numbers from there to next, or null")
    result: Cell | None = column("result", keep=ALWAYS, sparse=True, json=False)
    error: str | None = json_only("null, or why there is no answer")


def get_range(
    node: Nsqd, topic: str, *, at: str | None = None, channel: str | None = None, name: str = "--at"
) -> RangeRow:
    """Returns what the node has. Raises NodeError; raises UsageError if `at`, the value of the option `name`, is not a
    POINT."""
    query = {key: value for key, value in (("topic", topic), ("at", at), ("channel", channel)) if value is not None}
    invalid = click.UsageError(f"{name}: {printable(repr(at), 100)} is not {_POINT}.")
    log = node.ask("/topic/range", _Range, query, reasons=_REASONS | {"INVALID_ARG_AT": invalid})
    row = RangeRow(str(node), log.epoch, log.first, log.next, bytes=log.bytes, at=None if at is None else log.at)
    row.first_published, row.last_published = seconds_of(log.first_published), seconds_of(log.last_published)
    if channel is not None:
        row.position, row.lag = log.position, log.next - log.position
    return row


class RangeReader:
    """The messages of a topic on one node. `number` is the next one to read, and `end` the one behind the last, None to
    follow the log; the caller counts `finished`. `error` is why the last request failed, and where to continue."""

    error: AdminError | None = None

    def __init__(self, node: Nsqd, topic: str, begin: str, end: str | None) -> None:
        """Asks the node for the numbers of both points. Errors as `get_range`."""
        self.node = node
        self.topic = topic
        log = get_range(node, topic, at=begin, name="--from")
        self.number = self.finished = int(log.at)
        self.end: int | None = None
        if log.at > log.next:
            raise self._failure(f"its log of {topic} ends at {log.next}, before --from {log.at}")
        self._query = {"topic": topic, "epoch": str(log.epoch), "max_bytes": str(_BATCH), "format": "records"}
        if end is None:
            self._query["wait"] = f"{min(node.timeout / 2, _LONGEST_WAIT):.3f}s"
            return
        self.end = min(get_range(node, topic, at=end, name="--to").at, log.next)
        if self.end < self.number:
            raise click.UsageError(f"--to: {printable(end, 100)} is before --from.")
        self._query["to"] = str(self.end)

    def run(self, batches: "queue.Queue[list[MessageRow]]") -> None:
        """Puts messages there as they come. Repeats a request that fails, for PATIENCE if there is an end."""
        until = inf
        while self.end is None or self.number < self.end:
            batch: list[MessageRow] = []
            query = self._query | {"from": str(self.number)}
            failure: NodeError | None = None
            try:
                self.node.read("GET", "/topic/messages", None, query, None, partial(self._take, batch))
            except NodeError as error:
                failure = error
            if batch or failure is None:  # the next request repeats the failure
                self.error = None
                batches.put(batch)
                continue
            is_final = isinstance(failure, NodeRefused) and failure.status != 503
            if self.error is None and not is_final:
                note(f"Warning: {failure}; trying again")
                until = inf if self.end is None else time.monotonic() + PATIENCE
            reason = f"{failure.reason}; continue with --from {self.number}"
            if isinstance(failure, NodeRefused) and failure.code in _REFUSALS:
                readable = failure.document.get("readable")
                reason = _REFUSALS[failure.code].format(self.topic, self.number, readable)
            self.error = self._failure(reason)
            if is_final or time.monotonic() > until:
                return
            time.sleep(_RETRY)

    def _take(self, batch: list[MessageRow], parts: Iterator[bytes]) -> None:
        """Adds messages as they arrive: those before a failure are whole."""
        try:
            for number, frames in decode_range(parts):
                if number != self.number:
                    raise StorageError(f"message {number} instead of {self.number}")
                records = [decode_record(frame[_FRAME_HEAD:]) for frame in frames]
                batch += [MessageRow(self.topic, *record, str(self.node)) for record in records]
                self.number += len(frames)
            if not batch and self.end is not None:
                raise StorageError("no message")
        except StorageError as error:
            raise self._failure(f"did not answer messages from {self.number} on: {error}") from None

    def _failure(self, reason: str) -> NodeError:
        return NodeError(self.node.program, self.node.address, reason)


class LogConsumer(AbstractContextManager["LogConsumer"]):
    """Reads the logs of topics on all nodes that have them at the start, each on its own thread. It is used like a
    ClusterConsumer, but nothing is consumed."""

    def __init__(self, cluster: Cluster, topics: Sequence[str], begin: str, end: str | None = None) -> None:
        """Finds the nodes; raises AdminError if there is none. Without `end`, it follows the logs."""
        self._follows = end is None
        self._errors: list[AdminError] = []
        self._readers: dict[tuple[str, str], RangeReader] = {}
        self._batches: queue.Queue[list[MessageRow]] = queue.Queue(1)
        for topic in topics:
            question = partial(RangeReader, topic=topic, begin=begin, end=end)
            answers = ask_holders(cluster, question, topic, message=begin)
            self._readers |= {(topic, str(at)): reader for at, reader in values_of(answers).items()}
            self._errors += errors_of(answers)
        if not self._readers:
            raise AdminError("; ".join(map(str, self._errors)) or "there are no nodes to read")
        self._threads = [Thread(target=self._run, args=(reader,), daemon=True) for reader in self._readers.values()]

    def _run(self, reader: RangeReader) -> None:
        reader.run(self._batches)
        if reader.error and self._follows and sum(thread.is_alive() for thread in self._threads) > 1:
            note(f"Warning: {reader.error}")

    @property
    def errors(self) -> dict[object, AdminError]:
        """Returns the errors of nodes that are not read, or cannot be read at present."""
        failures = [reader.error for reader in self._readers.values()]
        return dict(enumerate([*self._errors, *filter(None, failures)]))

    def waiting(self) -> int:
        return sum((reader.end or 0) - reader.number for reader in self._readers.values())

    def start(self, **_: bool) -> None:
        for error in self._errors:
            note(f"Warning: {error}")
        for thread in self._threads:
            thread.start()

    def receive(self, timeout: float) -> list[MessageRow]:
        """Returns messages of one node that come within `timeout` seconds; raises AdminError if none can be
        followed."""
        if self._follows and self.is_over():
            raise AdminError("; ".join(map(str, self.errors.values())))
        with suppress(queue.Empty):
            return self._batches.get(timeout=timeout)
        return []

    def is_over(self, *_: float) -> bool:
        return not any(thread.is_alive() for thread in self._threads) and self._batches.empty()

    def finish(self, messages: Sequence[MessageRow]) -> None:
        for message in messages:
            self._readers[message.topic, message.node].finished += 1

    def warn(self) -> None:
        """Prints, at the end, the numbers to continue from."""
        for (topic, node), reader in self._readers.items():
            if reader.error is None or reader.finished < reader.number:
                note(f"{topic} at {node}: continue with --from {reader.finished}")

    def __exit__(self, *error: object) -> None:
        """Does nothing: the threads end with the program."""
