"""A task: the rows of one range of a log.

Records are cut out of the answer as they come. If the connection breaks, the rest of the range is asked for again; what
is not there any more ends the task, or is left out with a warning if 'failOnDataLoss' is false.
"""

import logging
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse

import pyarrow as pa
import pyarrow.compute as pc

from gnsqd.shared.client import FRAME_HEAD
from pyspark_nsq.columns import ARROW_SCHEMA, Messages, batch_of, columns_of, cut
from pyspark_nsq.discovery import Nsqd
from pyspark_nsq.errors import DiscoveryError, plain_errors
from pyspark_nsq.options import Settings
from pyspark_nsq.ranges.node import Node, Unreadable
from pyspark_nsq.read_task import mute_broken_sockets

_ROWS = 10_000  # of an Arrow batch, about
_BYTES = 8 << 20  # of an Arrow batch, about
_PIECE = 1 << 20  # bytes read at once
_RETRIES = 5  # of a request in a row without a message
_PAUSE = 0.5  # seconds before the first of these, and twice as long before each other
_HEAD = struct.Struct(">IqIq")  # of a record: size of the rest, number of the first message, count, due time
_SIZE = struct.Struct(">I")  # in front of a frame

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RangePartition:
    """The messages from number `start` up to, not including, `end` of a topic at one gnsqd."""

    settings: Settings
    nsqd: Nsqd
    topic: str
    epoch: str
    start: int
    end: int

    def read(self) -> Iterator[pa.RecordBatch]:
        """Yields the rows; Unreadable, DiscoveryError."""
        try:
            with plain_errors():
                yield from self._read()
        except GeneratorExit:
            mute_broken_sockets()
            raise

    def _read(self) -> Iterator[pa.RecordBatch]:
        number, failures = self.start, 0
        node = Node(self.nsqd, self.settings)
        while number < self.end:
            try:
                with node.messages(self.topic, self.epoch, number, self.end) as response:
                    for first, frames in _gathered(response):
                        yield self._rows(first, frames)
                        number, failures = first + len(frames), 0
                if number < self.end:
                    raise DiscoveryError(f"nsqd {self.nsqd.name} ends topic {self.topic!r} at message {number}")
            except Unreadable as error:
                if self.settings.fail_on_data_loss:
                    raise
                _log.warning("%s: left out", error)
                number = max(error.readable or self.end, number)
            except DiscoveryError as error:
                failures += 1
                if failures > _RETRIES:
                    raise
                _log.warning("%s; messages from number %d on are asked for again", error, number)
                time.sleep(_PAUSE * 2 ** (failures - 1))

    def _rows(self, first: int, frames: "_Frames") -> pa.RecordBatch:
        messages: Messages = cut(b"".join(frames.parts), frames.edges, FRAME_HEAD, 8)
        columns = columns_of(messages)
        columns["offset"] = pc.cumulative_sum(pa.repeat(1, len(frames)), start=first - 1)
        same = {"topic": self.topic, "channel": self.settings.channel or None, "nsqd": self.nsqd.name}
        return batch_of(ARROW_SCHEMA, len(frames), columns, **same)


class _Frames:
    """Frames in a row, and where each begins in the joined `parts`, and where the last ends."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.edges = [0]

    def __len__(self) -> int:
        return len(self.edges) - 1

    def add(self, data: bytes, count: int) -> None:
        """Adds `count` frames, which are `data`."""
        self.parts.append(data)
        base, at, unpack = self.edges[-1], 0, _SIZE.unpack_from
        for _ in range(count):
            at += 4 + unpack(data, at)[0]
            self.edges.append(base + at)


def _gathered(response: HTTPResponse) -> Iterator[tuple[int, _Frames]]:
    """Yields the frames of an answer in batches, and the number of the first of each."""
    frames, first = _Frames(), 0
    try:
        for number, count, data in _records(response):
            if not frames.parts:
                first = number
            frames.add(data, count)
            if len(frames) >= _ROWS or frames.edges[-1] >= _BYTES:
                yield first, frames
                frames = _Frames()
    except (HTTPException, OSError):
        if frames.parts:
            yield first, frames
        raise
    if frames.parts:
        yield first, frames


def _records(response: HTTPResponse) -> Iterator[tuple[int, int, bytes]]:
    """Yields number of the first message, count and frames of each record; HTTPException if the answer breaks off."""
    data, at = b"", 0
    while piece := response.read1(_PIECE):
        data, at = data[at:] + piece, 0
        while len(data) - at >= _HEAD.size:
            size, number, count, _ = _HEAD.unpack_from(data, at)
            end = at + 4 + size
            if end > len(data):
                break
            yield number, count, data[at + _HEAD.size : end]
            at = end
