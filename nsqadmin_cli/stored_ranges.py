"""Reads the log of a topic from an object store by number, also what the daemon has no more on its disk."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from sys import maxsize

import click

from gnsqd.queues.moment import parse_moment
from gnsqd.shared import log_store
from gnsqd.shared.disk_format import Gap
from gnsqd.shared.log_store import LogStore, StoredLog
from gnsqd.shared.stored_topic import StoredTopic
from nsqadmin_cli.errors import AdminError, NotOnNode
from nsqadmin_cli.message import MessageRow
from nsqadmin_cli.output import note
from nsqadmin_cli.units import plural, printable

_BATCH = 1 << 20  # bytes of bodies

Point = tuple[int, int]  # a number and 0, or -1 and a time (wall clock, ns)


def _parse_point(text: str, name: str) -> Point:
    """Raises UsageError if `text`, the value of the option `name`, is something else."""
    try:
        if text.isdecimal() and len(text) < 16:  # an id has 16 digits
            return int(text), 0
        return {"first": (0, 0), "next": (maxsize, 0)}.get(text) or (-1, parse_moment(text))
    except ValueError:
        what = 'a number, a time ago (-15m), a time with its zone (2026-11-23T14:00:00Z), "first" or "next"'
        raise click.UsageError(f"{name}: {printable(repr(text), 100)} is not {what}.") from None


class StoreConsumer(AbstractContextManager["StoreConsumer"]):
    """The messages of a topic in the log at a URL. It is used like a ClusterConsumer, but nothing is consumed."""

    def __init__(self, url: str, topic: str, begin: str, end: str) -> None:
        """Raises AdminError if the log has nothing of the topic, StorageError if it cannot be read."""
        points = _parse_point(begin, "--from"), _parse_point(end, "--to")
        self._topic, self._url = topic, url
        self.errors: dict[object, AdminError] = {}  # damage
        self._finished = self._missing = 0
        self._received: list[tuple[int, MessageRow]] | None = None  # what was returned last, with numbers
        self._store = LogStore(url)
        self._messages = self._read(*log_store.with_log(self._store, self._find), *points)

    def _find(self, log: StoredLog) -> tuple[StoredTopic, str]:
        """Returns what the log has of the topic, and its name."""
        stored = StoredTopic(self._store, log, self._topic, self._note_damage)
        if not stored.live and not stored.dead:
            raise NotOnNode(f"the log at {self._url} has nothing of the topic {self._topic}")
        return stored, stored.epoch()

    def waiting(self) -> int:
        return 0  # nobody has counted them

    def start(self, **_: bool) -> None:
        """Does nothing: it reads when it is asked."""

    def receive(self, _: float) -> list[MessageRow]:
        self._received, size = [], 0
        while size < _BATCH and (found := next(self._messages, None)):
            self._received.append(found)
            size += len(found[1].body)
        return [message for _, message in self._received]

    def is_over(self, *_: float) -> bool:
        return self._received == []

    def finish(self, messages: Sequence[MessageRow]) -> None:
        if self._received:
            self._finished = self._received[len(messages) - 1][0] + 1

    def warn(self) -> None:
        """Prints, at the end, how many messages are missing, and the number to continue from."""
        if self._missing:
            note(f"Warning: the store has {plural(self._missing, 'message')} among these no more")
        if self._finished:
            note(f"{self._topic} at {self._url}: continue with --from {self._finished}")

    def __exit__(self, *error: object) -> None:
        """Does nothing: between two messages, it has nothing open."""

    def _read(self, stored: StoredTopic, epoch: str, *points: Point) -> Iterator[tuple[int, MessageRow]]:
        """Yields the messages with their numbers."""
        expected, end = (number if number >= 0 else stored.number_at(epoch, time) for number, time in points)
        for number, record in stored.messages(epoch, expected, end):
            self._missing += number - (expected or number)  # 0 is for the first, whichever that is
            expected = number + 1
            yield number, MessageRow(self._topic, *record, self._url)

    def _note_damage(self, gap: Gap) -> None:
        text = f"{gap.path} from {gap.begin:,} to {gap.end:,}"
        self.errors[text] = AdminError(f"{self._url}: {text}: {gap.reason}")
