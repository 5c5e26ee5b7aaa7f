"""The HTTP API of one gnsqd, as far as it is about logs (gnsqd's documents: logs.md)."""

import http.client
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, NoReturn
from urllib.parse import urlencode

from pyspark_nsq.client import name_of
from pyspark_nsq.discovery import KnownNsqd
from pyspark_nsq.errors import NsqSourceError
from pyspark_nsq.http_api import ask, parse, refusal, request
from pyspark_nsq.options import Settings

_NAMES = 500  # topics in a request


class NoRanges(NsqSourceError):
    """The nsqd with this name has no logs: it is the real one, or has no --durability."""

    def __init__(self, text: str, nsqd: str = "") -> None:  # unpickling passes the text alone
        super().__init__(text)
        self.nsqd = nsqd


class RangeUnreadable(NsqSourceError):
    """Messages are not there: of another log, past the retention, or damaged. `readable` is the number of the next that
    is, 0 in another log."""

    def __init__(self, text: str, readable: int) -> None:
        super().__init__(text)
        self.readable = readable


class Extent(NamedTuple):
    """The messages of a log, from number `first` up to, not including, `next`; the position of the channel, and the
    number at a point in time, where they were asked for. The last message was published at `last_published` (ns).
    `process` is another one in each gnsqd and after each start."""

    epoch: str
    process: str
    first: int
    next: int
    bytes: int
    position: int = 0
    at: int = 0
    last_published: int | None = None


class LogNode:
    """One gnsqd. Every method may raise DiscoveryError if it does not answer."""

    def __init__(self, nsqd: KnownNsqd, settings: Settings) -> None:
        self.nsqd = nsqd
        self._who = f"nsqd {nsqd.name}"
        self._settings = settings

    def extents(self, topics: Iterable[str], **more: str) -> dict[str, Extent]:
        """Returns what each of the topics has; with `channel`, also its position, with `at`, the number there. Topics
        that are not there, or do not have the channel, are left out. Raises NoRanges if there are no logs."""
        left, extents = [*topics], dict[str, Extent]()
        while True:
            names, left = left[:_NAMES], left[_NAMES:]
            status, answer = self._ask("GET", "/topic/range", topics=",".join(names), **more)
            if status != 200:
                code = answer.get("message")
                if code == "MISSING_ARG_TOPIC":
                    raise NsqSourceError(
                        f"{self._who} is an older gnsqd: expected the release of pyspark_nsq, or a newer one"
                    )
                self._refuse(status, f"{code}", none=status == 404 or code == "NO_JOURNAL")
            for topic, row in answer["topics"].items():
                extents[topic] = Extent(**{name: row[name] for name in Extent._fields if name in row})
            if not left:
                return extents

    def extent(self, topic: str, **more: str) -> Extent | None:
        """Returns what one topic has, as `extents`; None if it is not there, or does not have the channel."""
        return self.extents([topic], **more).get(topic)

    def published(self, topic: str, epoch: str, number: int) -> int:
        """Returns when a message was published (ns), 0 if it is not there any more."""
        query = {"topic": topic, "epoch": epoch, "from": str(number), "to": str(number + 1)}
        status, answer = self._ask("GET", "/topic/messages", **query)
        if status not in (200, 404, 410):
            self._refuse(status, f"{answer.get('message')} to /topic/messages")
        return int(answer.get("timestamp", 0))

    def create_channel(self, topic: str, channel: str) -> None:
        self._expect("/channel/create", topic=topic, channel=channel)

    def advance(self, topic: str, epoch: str, channel: str, number: int) -> int:
        """Finishes everything before `number` in the channel, as far as the topic has handed it over; returns its
        position."""
        answer = self._expect("/channel/advance", topic=topic, channel=channel, epoch=epoch, to=str(number))
        return int(answer["position"])

    def _expect(self, path: str, **query: str) -> dict[str, Any]:
        status, answer = self._ask("POST", path, **query)
        if status != 200:
            self._refuse(status, f"{answer.get('message')} to {path}")
        return answer

    def _refuse(self, status: int, what: str, none: bool = False) -> NoReturn:
        text = f"{self._who} answered {status} {what} at HTTP address {name_of(self.nsqd.http)}"
        if none:
            raise NoRanges(f"{text}: ranges need gnsqd with --durability", self.nsqd.name)
        raise refusal(status, text)

    @contextmanager
    def messages(self, topic: str, epoch: str, start: int, end: int, **more: str) -> Iterator[http.client.HTTPResponse]:
        """Lends an answer with the records of a range, with `channel` without what that has finished. Raises
        RangeUnreadable if messages are missing."""
        query = {"topic": topic, "epoch": epoch, "from": str(start), "to": str(end), "format": "records", **more}
        path, timeout = f"/topic/messages?{urlencode(query)}", self._settings.read_timeout
        with request(self._who, self.nsqd.http, path, timeout, self._settings) as response:
            if response.status != 200:
                answer = parse(response.read())
                what = f"messages {start} to {end - 1} of topic {topic!r} at {self._who}"
                text = f"{what}: {response.status} {answer.get('message')}, {answer}"
                if response.status == 410 or answer.get("message") == "MESSAGES_DAMAGED":
                    if self._settings.fail_on_data_loss:
                        text += " ('failOnDataLoss' = 'false' leaves out what is missing)"
                    raise RangeUnreadable(text, int(answer.get("readable", 0)))
                raise refusal(response.status, text)
            yield response

    def _ask(self, method: str, path: str, **query: str) -> tuple[int, dict[str, Any]]:
        path, timeout = f"{path}?{urlencode(query)}", self._settings.discovery_timeout
        return ask(self._who, self.nsqd.http, path, timeout, self._settings, method)
