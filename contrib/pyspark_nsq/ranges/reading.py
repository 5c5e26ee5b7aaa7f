"""A task: the rows of one range of a log.

Records are cut out of the answer as they come. If the connection breaks, the rest of the range is asked for again. What
the gnsqd does not have any more, or all if it does not answer, may be in the store of its log. What is not there either
ends the task, or is left out with a warning if 'failOnDataLoss' is false.
"""

import logging
import struct
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse

import pyarrow as pa
import pyarrow.compute as pc

from gnsqd.shared.client import FRAME_HEAD
from gnsqd.shared.errors import StorageError
from gnsqd.shared.journal.spans import Spans
from gnsqd.shared.log_store import LogStore, read_log
from gnsqd.shared.stored_topic import StoredRange, StoredTopic
from pyspark_nsq.columns import ARROW_SCHEMA, batch_of, columns_of, cut
from pyspark_nsq.discovery import KnownNsqd
from pyspark_nsq.errors import DiscoveryError
from pyspark_nsq.options import Settings
from pyspark_nsq.ranges.node import LogNode, RangeUnreadable

_ROWS = 10_000  # of an Arrow batch, about
_BYTES = 8 << 20  # of an Arrow batch, about
_PIECE = 1 << 20  # bytes read at once
_PAUSES = 0.5, 8.0  # seconds before a request is sent again: at first, and at most
_HEAD = struct.Struct(">IqIq")  # of a record: size of the rest, number of the first message, count, due time
_SIZE = struct.Struct(">I")  # in front of a frame

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RangePartition:
    """The messages from number `start` up to, not including, `end` of a topic at one gnsqd."""

    settings: Settings
    nsqd: KnownNsqd
    topic: str
    epoch: str
    start: int
    end: int
    follows: bool  # skips what others have finished in the channel, and nothing keeps
    stored: tuple[StoredRange, ...] = ()  # what the driver has found in the store
    after: int = 0  # where `read_log` finds the log in the store, if the driver has read that
    is_away: bool = False  # the gnsqd did not answer: the store has all of the range that is kept

    def read(self) -> Iterator[pa.RecordBatch]:
        """Yields the rows. Raises RangeUnreadable if messages are missing, DiscoveryError if nsqd does not answer."""
        unread, skipped, stored = Spans(), 0, self.stored
        unread.add(self.start, self.end)
        pause, deadline = _PAUSES[0], time.monotonic() + self.settings.retry_timeout
        node, url = LogNode(self.nsqd, self.settings), dict(self.settings.log_stores).get(self.nsqd.tcp)
        store = LogStore(url) if url else None
        in_store, is_store_read = self.is_away, store is None
        more = {"channel": self.settings.channel} if self.follows else {}
        while unread:
            number, end = next(iter(unread))
            try:
                if in_store and store is not None:
                    stored = stored or (
                        *StoredTopic(store, read_log(store, after=self.after), self.topic).cut(self.start, self.end),
                    )
                    for part in stored:
                        for rows in _gathered(part.records(store, self.epoch, unread)):
                            yield self._rows(*rows)
                    in_store, is_store_read = False, True
                    if self.is_away and (count := unread.count()):
                        end = unread.ceiling
                        text = (
                            f"{url} lacks {count} of the messages {unread.begin} to {end - 1} of topic {self.topic!r}"
                        )
                        raise RangeUnreadable(text, end)
                    continue
                begin = number
                with node.messages(self.topic, self.epoch, number, end, **more) as response:
                    for first, count, frames in _gathered(_records(response)):
                        yield self._rows(first, count, frames)
                        skipped += first - number
                        number = first + count
                        unread.remove(begin, number)
                        pause, deadline = _PAUSES[0], time.monotonic() + self.settings.retry_timeout
                if number > begin:
                    continue  # a proxy may cut an answer without an error: only one without messages is an end
                if not self.follows:
                    raise DiscoveryError(f"nsqd {self.nsqd.name} ends topic {self.topic!r} at message {number}")
                skipped += end - number  # the next plan notices if the log went back
                unread.remove(number, end)
            except RangeUnreadable as error:
                if not is_store_read:
                    in_store = True
                    continue
                if self.follows and self.is_away:
                    skipped += unread.count()
                elif self.settings.fail_on_data_loss:
                    raise
                else:
                    _log.warning("%s: left out", error)
                unread.remove(number, max(error.readable or end, number))
            except (DiscoveryError, StorageError) as error:
                if time.monotonic() >= deadline:
                    if in_store or is_store_read:
                        raise DiscoveryError(str(error)) from None
                    in_store = True
                    continue
                _log.warning("%s; messages from number %d on are asked for again", error, number)
                if in_store:
                    stored = ()  # the log has gone on without objects that were found
                time.sleep(min(pause, max(0.0, deadline - time.monotonic())))
                pause = min(2 * pause, _PAUSES[1])
        if skipped:
            _log.warning("skipped %d messages of %r at %s, which others finished", skipped, self.topic, self.nsqd.name)

    def _rows(self, first: int, count: int, frames: bytes) -> pa.RecordBatch:
        columns = columns_of(cut(frames, _edges(frames, count), FRAME_HEAD, 8))
        columns["offset"] = pc.cumulative_sum(pa.repeat(1, count), start=first - 1)
        same = {"topic": self.topic, "channel": self.settings.channel or None, "nsqd": self.nsqd.name}
        return batch_of(ARROW_SCHEMA, count, columns, **same)


def _edges(frames: bytes, count: int) -> Sequence[int]:
    """Returns where each of `count` frames begins, and where the last ends."""
    step = 4 + _SIZE.unpack_from(frames)[0]
    if len(frames) == step * count and all(frames[at::step] == frames[at : at + 1] * count for at in range(4)):
        return range(0, len(frames) + 1, step)  # all have one size
    edges, at, unpack = [0], 0, _SIZE.unpack_from
    for _ in range(count):
        at += 4 + unpack(frames, at)[0]
        edges.append(at)
    return edges


def _gathered(records: Iterable[tuple[int, int, memoryview]]) -> Iterator[tuple[int, int, bytes]]:
    """Yields the frames of records in batches: the number of the first, their count, and them."""
    parts: list[memoryview] = []
    first = count = size = 0
    try:
        for number, more, data in records:
            if parts and (count >= _ROWS or size >= _BYTES or number != first + count):
                yield first, count, b"".join(parts)
                parts, count, size = [], 0, 0
            if not parts:
                first = number
            parts.append(data)
            count += more
            size += len(data)
    except (HTTPException, OSError, StorageError):
        if parts:
            yield first, count, b"".join(parts)
        raise
    if parts:
        yield first, count, b"".join(parts)


def _records(response: HTTPResponse) -> Iterator[tuple[int, int, memoryview]]:
    """Yields number of the first message, count and frames of each record; HTTPException if the answer breaks off."""
    data, at = memoryview(b""), 0
    while piece := response.read1(_PIECE):
        data, at = memoryview(b"".join((data[at:], piece))), 0
        while len(data) - at >= _HEAD.size:
            size, number, count, _ = _HEAD.unpack_from(data, at)
            end = at + 4 + size
            if end > len(data):
                break
            yield number, count, data[at + _HEAD.size : end]
            at = end
