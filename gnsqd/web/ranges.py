"""The handlers that read the log of a topic by number, and let a channel follow such a reader.

A range is sent in steps, each of some messages, and others run in between. What cannot be read ends the answer, and the
connection with it, without its last chunk; asked for by itself it is an error that names the next number to go on with.
"""

import os
from binascii import b2a_base64
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from sys import maxsize
from time import monotonic
from typing import TYPE_CHECKING

from gevent import sleep

from gnsqd.broker.channel import Channel
from gnsqd.broker.registry import Registry
from gnsqd.broker.topic import Topic
from gnsqd.gotext import dumps, parse_duration, parse_int
from gnsqd.hub.cooperative import Line, Turns, stand_in_line
from gnsqd.hub.doorbell import Doorbell
from gnsqd.log import Logger
from gnsqd.net.stream import StreamError
from gnsqd.options import MINUTE, SECOND
from gnsqd.queues.message import Message
from gnsqd.queues.queue import Queue
from gnsqd.shared.errors import NotFound, StorageError
from gnsqd.shared.names import is_ephemeral
from gnsqd.web.http11 import Request
from gnsqd.web.routes import HTTPError, StreamedContent, parsed, read_parameters, required, topic_and_channel

if TYPE_CHECKING:
    from gnsqd.queues.journal.history import LogRange

STEP_BYTES = 64 * 1024  # that are read and sent at once
JSON_STEP_BYTES = 16 * 1024  # the same: many small messages take ms to encode
HAND_OVER_SECONDS = 1.0  # for what a topic is about to hand over to its channels
POLL_SECONDS = 0.005

Read = Callable[[int, int, int], tuple[list[bytes], int]]  # `LogRange.read` of one log


class Ranges:
    """The endpoints for the logs of one registry."""

    def __init__(self, registry: Registry, log: Logger) -> None:
        self._registry = registry
        self._log = log
        self._waiting: set[Doorbell] = set()
        self._stopped = False
        self._line: Line = []  # of readers
        self._process = os.urandom(8).hex()

    def stop(self) -> None:
        """Ends the waiting of all readers."""
        self._stopped = True
        for bell in self._waiting:
            bell.ring()

    def get_range(self, request: Request) -> dict[str, object]:
        """Returns what there is in a log, and the position of a channel, or where a point in time is. With `topics`,
        returns that by topic, without topics that are absent or have no such channel. Two nodes with the same epoch and
        another `process` have copies of one log."""
        parameters = read_parameters(request)
        if "topics" not in parameters:
            return self._range(required(parameters, "topic"), parameters)
        if not self._registry.has_journal(""):
            raise HTTPError(400, "NO_JOURNAL")
        rows = {}
        for name in Turns().over(filter(None, parameters["topics"].split(","))):
            with suppress(NotFound):
                rows[name] = self._range(name, parameters)
        return {"topics": rows}

    def _range(self, topic_name: str, parameters: Mapping[str, str]) -> dict[str, object]:
        topic, log = self._find_log(topic_name)
        row: dict[str, object] = {}
        if "at" in parameters:
            row["at"] = parsed(log.position, parameters["at"], "INVALID_ARG_AT")
        if "channel" in parameters:
            row["position"] = log.channel_position(_find_channel(topic, parameters["channel"]).queue)
        epoch = log.epoch  # may yield, so that what follows is of one moment
        first, end = log.first, log.next
        times = {"first_published": log.published(first, end), "last_published": log.published(end - 1, end)}
        names = {"epoch": epoch, "process": self._process}
        return {**names, "first": first, "next": end, **times, "bytes": log.size, **row}

    def get_messages(self, request: Request) -> StreamedContent:
        parameters = read_parameters(request)
        topic, log = self._find_log(required(parameters, "topic"))
        number = parsed(log.position, parameters.get("from", "first"), "INVALID_ARG_FROM", 0)
        end = parsed(log.position, parameters["to"], "INVALID_ARG_TO", 0) if "to" in parameters else maxsize
        channel = _find_channel(topic, parameters["channel"]) if "channel" in parameters else None
        queue = None if channel is None else channel.queue
        max_bytes = parsed(parse_int, parameters.get("max_bytes", str(1 << 62)), "INVALID_ARG_MAX_BYTES", 1)
        seconds = parsed(parse_duration, parameters.get("wait", "0"), "INVALID_ARG_WAIT", 0, MINUTE) / SECOND
        encode, content_type, step = _FORMS.get(parameters.get("format", "json"), (None, "", 0))
        if encode is None:
            raise HTTPError(400, "INVALID_ARG_FORMAT")
        _check_epoch(log, parameters.get("epoch"), number)
        if seconds and queue is not None and number < log.next and not _read(log, number, log.next, 1, queue)[0]:
            number = log.next  # a reader that has nothing to read until there waits as well
        if seconds and log.next <= number < end:
            with _reading(channel):
                self._wait(log, number, seconds)
                stand_in_line(self._line)  # with all who waited for the same message
            if topic.exiting:
                self._registry.get_existing_topic(topic.name)
        steps = self._steps(partial(_read, log, queue=queue), number, min(end, log.next), max_bytes, step, encode)
        beginning = [*islice(steps, 1)]  # an error of it has a status
        return StreamedContent(content_type, self._parts(topic.name, channel, beginning, steps))

    def _wait(self, log: "LogRange", number: int, seconds: float) -> None:
        bell = Doorbell()
        self._waiting.add(bell)
        end = monotonic() + seconds
        try:
            while not self._stopped and log.next <= number and (left := end - monotonic()) > 0 and log.is_open:
                log.wait(bell, left)
        finally:
            self._waiting.discard(bell)

    def _steps(
        self, read: Read, number: int, end: int, max_bytes: int, step: int, encode: Callable[[list[bytes]], bytes]
    ) -> Iterator[bytes]:
        """Yields messages of a range, and to others in between; raises HTTPError if some cannot be read. While the
        client is slow, no copies of earlier messages are kept."""
        while number < end and max_bytes > 0:
            payloads, number = read(number, end, min(step, max_bytes))
            if not payloads:
                break
            max_bytes -= sum(map(len, payloads))
            encoded = [encode(payloads)]
            payloads.clear()
            yield encoded.pop()
            stand_in_line(self._line)

    def _parts(
        self, topic: str, channel: Channel | None, beginning: list[bytes], steps: Iterator[bytes]
    ) -> Generator[bytes]:
        try:
            with _reading(channel):
                while beginning:
                    yield beginning.pop()
                yield from steps
        except (HTTPError, StorageError) as error:
            self._log.error("TOPIC(%s): a range ends early - %s", topic, error.__cause__ or error)
            raise StreamError("the range ends early") from error

    def advance(self, request: Request) -> dict[str, object]:
        """Finishes everything before `to` in a channel that somebody reads by ranges."""
        parameters = read_parameters(request)
        topic_name, name = topic_and_channel(parameters)
        topic, log = self._find_log(topic_name)
        _find_channel(topic, name)
        end = parsed(parse_int, required(parameters, "to"), "INVALID_ARG_TO", 0)
        _check_epoch(log, parameters.get("epoch"), end)
        last = monotonic() + HAND_OVER_SECONDS
        while log.channel_position(topic.queue) < end and monotonic() < last and not (topic.exiting or topic.paused):
            sleep(POLL_SECONDS)
        channel = topic.get_existing_channel(name)
        count = log.advance(channel.queue, min(end, log.channel_position(topic.queue)))
        channel.finish_count += count
        topic.commit()
        return {"messages": count, "position": log.channel_position(channel.queue)}

    def _find_log(self, topic_name: str) -> "tuple[Topic, LogRange]":
        if not self._registry.has_journal(topic_name):  # for a reader, a node without the topic could have a log
            raise HTTPError(400, "NO_JOURNAL")
        topic = self._registry.get_existing_topic(topic_name)
        assert topic.write_ahead is not None
        return topic, topic.write_ahead.range


def _find_channel(topic: Topic, name: str) -> Channel:
    channel = topic.get_existing_channel(name)
    if is_ephemeral(name):
        raise HTTPError(400, "CHANNEL_EPHEMERAL")
    channel.mark_used()  # whoever reads by ranges is a consumer
    return channel


@contextmanager
def _reading(channel: Channel | None) -> Iterator[None]:
    """Keeps the channel, if there is one, from being idle."""
    if channel is None:
        yield
        return
    channel.readers += 1
    try:
        yield
    finally:
        channel.readers -= 1
        channel.mark_used()


def _extent(log: "LogRange") -> dict[str, object]:
    return {"epoch": log.epoch, "first": log.first, "next": log.next}


def _check_epoch(log: "LogRange", epoch: str | None, number: int) -> None:
    """Raises HTTPError if this is not the log that a reader knows, or not so much of it any more."""
    if (epoch is not None and epoch != log.epoch) or number > log.next:
        raise HTTPError(410, "LOG_CHANGED", _extent(log))


def _read(log: "LogRange", number: int, end: int, size: int, queue: Queue | None) -> tuple[list[bytes], int]:
    from gnsqd.queues.journal.history import UnreadableRange

    try:
        return log.read(number, end, size, queue)
    except UnreadableRange as error:
        details = {**_extent(log), "readable": error.readable}
        status, code = (410, "MESSAGES_GONE") if error.gone else (500, "MESSAGES_DAMAGED")
        raise HTTPError(status, code, details) from error


def _encode_records(payloads: list[bytes]) -> bytes:
    """Returns records: uint32 size of what follows | int64 number of the first message | uint32 count | int64 due time
    (wall clock, ns), 0 if there is none | that many frames, as consumers get them."""
    return b"".join([part for payload in payloads for part in (len(payload).to_bytes(4, "big"), payload)])


def _encode_lines(payloads: list[bytes]) -> bytes:
    from gnsqd.shared.journal.records import PUT_HEAD, decode_put, split_frames

    lines = []
    for payload in payloads:
        number, _, due = decode_put(payload)
        for frame in split_frames(payload, PUT_HEAD, 0):
            message = Message(frame, 0, 0)
            row: dict[str, object] = {"number": number, "id": message.id.decode("ascii", "backslashreplace")}
            row["timestamp"] = message.timestamp
            if due:
                row["due"] = due
            try:
                row["body"] = message.body.decode()
            except UnicodeDecodeError:
                row["body_base64"] = b2a_base64(message.body, newline=False).decode()
            lines.append(f"{dumps(row)}\n")
            number += 1
    return "".join(lines).encode()


_FORMS = {
    "json": (_encode_lines, "application/x-ndjson; charset=utf-8", JSON_STEP_BYTES),
    "records": (_encode_records, "application/octet-stream", STEP_BYTES),
}
