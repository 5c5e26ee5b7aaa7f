"""The messages of a topic that can be delivered again; finds among them a time or a message.

Messages are searched by time of publication, which rises with their numbers. If a clock was set back, or disk queues
were moved to the journal, the result is near that time; a message with an id is found in any case.
"""

import re
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from sys import maxsize
from time import time_ns
from typing import TYPE_CHECKING

from gnsqd.broker.guid import time_of
from gnsqd.gotext import parse_duration
from gnsqd.hub.cooperative import Turns
from gnsqd.options import SECOND
from gnsqd.queues.message import Message
from gnsqd.shared.errors import BrokerError

if TYPE_CHECKING:
    from gnsqd.storage.journal.compactor import Retention
    from gnsqd.storage.journal.spans import Spans

_NEAR = SECOND // 10  # between when the id of a message was made and when it was published
_UNIX_EPOCH = datetime.fromtimestamp(0, UTC)
_DAY = 86400 * SECOND
_AGO = re.compile(r"-(?:([0-9]{1,9})d)?(.*)", re.DOTALL)
# datetime checks the numbers, but reads more of ISO 8601.
_RFC_3339 = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:[0-5]\d)", re.ASCII | re.IGNORECASE)


class MessageNotFound(BrokerError):
    """No message that can be delivered again has this id."""


def parse_moment(text: str) -> int:
    """Parses a time ago such as `-15m` or `-1d12h`, where a day has 24 hours, or a time of RFC 3339; returns wall clock
    in ns. Raises ValueError."""
    if ago := _AGO.fullmatch(text):
        days, rest = int(ago[1] or 0) * _DAY, ago[2]
        return time_ns() - days + (parse_duration(f"-{rest}") if rest or not ago[1] else 0)
    if not _RFC_3339.fullmatch(text):
        raise ValueError("not a time of RFC 3339")
    since = datetime.fromisoformat(text.upper()) - _UNIX_EPOCH
    return since.days * _DAY + since.seconds * SECOND + since.microseconds * 1000


class History:
    """Searches the part of a log that is retained. Each method may raise StorageError."""

    def __init__(self, retention: "Retention") -> None:
        self._log = retention.log
        self._retention = retention
        self._begin = retention.begin

    @property
    def retention(self) -> tuple[int, int]:
        """Limits for messages that all channels have finished: the kept bytes (0: none), and their age in ns (0: no
        limit)."""
        return self._retention.max_bytes, self._retention.max_age

    def retain(self, max_bytes: int, max_age: int) -> None:
        """Sets `retention`, also for later starts. May yield."""
        self._retention.retain(max_bytes, max_age)

    @property
    def count(self) -> int:
        """Returns the number of messages, finished or not."""
        return max(self._log.next_number - self._begin - self._retention.absent.count(), 0)

    @property
    def size(self) -> int:
        """The bytes of the segments with these messages that have been written."""
        return sum(segment.size for segment in self._log.segments.all if segment.end > self._begin)

    @property
    def oldest(self) -> int | None:
        """The time of publication of the first message (wall clock, ns), None if there is none."""
        return self._published(self._begin)

    def published(self, spans: "Spans") -> tuple[int | None, int | None]:
        """Returns when the first and the last message of `spans` were published, None for one that is missing."""
        return (self._published(spans.begin), self._published(spans.ceiling - 1)) if spans else (None, None)

    def position(self, text: str) -> int:
        """Returns the number of the message at `first`, at a time ago such as `-15m`, at a time of RFC 3339, or with an
        id. A time may be after the last message. Raises ValueError if `text` is none of these, MessageNotFound. May
        yield."""
        if text == "first":
            return self._begin
        if len(text) == 16:
            with suppress(ValueError):
                return self._number_of(text, self._begin)
        return self._number_at(parse_moment(text), self._begin)

    def find(self, id: str) -> tuple[int, int]:
        """Returns the number of an unfinished message, and the due time with which it was published (wall clock, ns; 0
        without). Raises ValueError if `id` is not an id, MessageNotFound. May yield."""
        number = self._number_of(id, self._retention.floor())
        return number, self._log.read(number, number + 1)[2]

    def _published(self, number: int) -> int | None:
        frames = self._log.read(number, self._log.next_number)[1]
        return Message(frames[0], 0, 0).timestamp if frames else None

    def _number_at(self, time: int, first: int) -> int:
        """Returns the number of the first message published at `time` or later, from number `first` on."""
        end = self._log.next_number
        while first < end:
            middle = (first + end) // 2
            number, frames, _ = self._log.read(middle, end)
            if frames and Message(frames[0], 0, 0).timestamp < time:
                first = number + 1
            else:
                end = middle
        return first

    def _number_of(self, id: str, first: int) -> int:
        published = time_of(id)
        near = self._number_at(published - _NEAR, first)
        for begin, latest in ((near, published + _NEAR), (first, maxsize)):  # the clock may have been set back
            for number, message in self._messages(begin):
                if message.id == id.encode():
                    return number
                if message.timestamp > latest:
                    break
        raise MessageNotFound("message does not exist")

    def _messages(self, number: int) -> Iterator[tuple[int, Message]]:
        turns = Turns()
        while True:
            number, frames, _ = self._log.read(number, self._log.next_number)
            if not frames:
                return
            for frame in frames:
                yield number, Message(frame, 0, 0)
                number += 1
            turns.give()
