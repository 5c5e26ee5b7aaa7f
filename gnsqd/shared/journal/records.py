"""The bytes of a journal: its files' names, its records, and how they are found again in a damaged file. No I/O.

A segment begins with a line, `gnsqd journal 1 {salt}`; records follow, big-endian:

    mark | uint32 size of the payload | uint32 CRC-32 of type and payload | uint8 type | payload

The salt is a random number. The mark, of 4 bytes, is made from it, and the CRC begins with the salt XOR the type. So no
body can look like a record where a damaged file is searched for the next one.

Payloads, where `queue` is a uint32 that names a channel of the topic for good, or 0 for the topic itself, `spans` are
pairs of int64, the first number and the one behind the last, and `number` is an int64 that each message of a topic
gets in turn:

    PUT        number of the first | uint32 count | int64 due time, 0 if none (wall clock, ns) | frames
    SNAPSHOT   number of the next message | uint32 next queue: the following records describe everything once more
    QUEUE      queue | uint16 size of name | name | spans: so much of it is finished, and nothing was delivered
    DELETED    queue
    FINISHED   queue | spans: done with; for the topic: handed over to its channels
    TAKEN      queue | spans: delivered once more; written for first deliveries only
    HELD       queue | entries: number, uint16 attempts (the total), int64 due time or 0
    COMPLETE   uint32 count: the snapshot is whole, with that many records since SNAPSHOT
    CONVERTING what is in the topic's disk queues from now on is a copy of what the journal has
    VOID       nothing up to here counts any more
    CONTINUED  the last of a segment: another one follows, or is lost. An index of the segment: int64 first number,
               number behind the last, count and bytes of the messages, count of gaps, count of marks | gaps: pairs of
               int64 as spans | number of each mark | offset of each | pairs of int64, number and due time, of messages
               with one | uint32 size of all this. It may be missing
    REWOUND    queue | spans: not done with any more, to be delivered as if for the first time
    RETENTION  int64 bytes | int64 ns | number of the first: what is kept when all are done with it
    EPOCH      8 random bytes, the name of this log for readers of ranges

A frame is what consumers get: int32 size, and that many bytes.
"""

import re
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from operator import itemgetter
from struct import Struct, pack
from sys import maxsize
from typing import NamedTuple

from gnsqd.shared.disk_format import Gap
from gnsqd.shared.errors import StorageError
from gnsqd.shared.journal.spans import Spans, decode_bounds, encode_bounds

try:
    from zlib_ng.zlib_ng import crc32  # many times as fast
except ImportError:  # executors of Spark have the standard library alone
    from zlib import crc32

FIRST_LINE_SIZE = 25
_FIRST_LINE = re.compile(rb"gnsqd journal 1 ([0-9a-f]{8})\n")
PUT, SNAPSHOT, QUEUE, DELETED, FINISHED, TAKEN, HELD, COMPLETE = range(1, 9)
CONVERTING, VOID, CONTINUED, REWOUND, RETENTION, EPOCH = range(9, 15)

_MARK = 0xF19B4A72
MARK_SIZE = 4
HEADER = Struct(">4sIIB")
_PUT = Struct(">qIq")
_SNAPSHOT = Struct(">qI")
_QUEUE = Struct(">IH")
_NUMBER = Struct(">I")
_RETENTION = Struct(">qqq")
_HELD = Struct(">qHq")
_SPAN = Struct(">Iqq")

PUT_HEAD = _PUT.size
PUT_SURPLUS = HEADER.size + PUT_HEAD  # bytes that the record of messages is larger than these
SNAPSHOT_HEAD_SIZE = FIRST_LINE_SIZE + HEADER.size + _SNAPSHOT.size
MAX_ATTEMPTS = 0xFFFF
MAX_HELD = 1000  # entries in a record
MAX_SPANS_BYTES = 1 << 16
MAX_MESSAGES = 32  # in a record
MAX_RECORD = 32 * 1024  # bytes of the messages in a record, on average, except for a single larger one


def mark_of(salt: int) -> bytes:
    """Returns what each record of a segment begins with."""
    return (salt ^ _MARK).to_bytes(MARK_SIZE, "big")


def first_line(salt: int) -> bytes:
    return b"gnsqd journal 1 %08x\n" % salt


class Encoder:
    """Makes records, all with one salt."""

    def __init__(self, salt: int) -> None:
        self.salt = salt
        self._mark = mark_of(salt)

    def record(self, type: int, payload: bytes = b"") -> bytes:
        head: bytes = HEADER.pack(self._mark, len(payload), crc32(payload, self.salt ^ type), type)
        return head + payload

    def put(self, first: int, frames: Sequence[bytes], due: int) -> tuple[bytes, bytes]:
        """Returns the record of messages with numbers from `first` on; in two parts, as a copy of them costs time.
        Raises StorageError if it could not be decoded."""
        if first <= 0 or not frames:
            raise StorageError("invalid numbers")
        payload = b"".join([_PUT.pack(first, len(frames), due), *frames])
        return HEADER.pack(self._mark, len(payload), crc32(payload, self.salt ^ PUT), PUT), payload

    def queue(self, queue: int, name: str, finished: Spans) -> list[bytes]:
        """Returns one record, and more where there are very many spans."""
        encoded_name = name.encode()
        spans = finished.encode()
        head = _QUEUE.pack(queue, len(encoded_name)) + encoded_name
        rest = [
            self.record(FINISHED, _NUMBER.pack(queue) + spans[position : position + MAX_SPANS_BYTES])
            for position in range(MAX_SPANS_BYTES, len(spans), MAX_SPANS_BYTES)
        ]
        return [self.record(QUEUE, head + spans[:MAX_SPANS_BYTES]), *rest]

    def retention(self, max_bytes: int, max_age: int, begin: int) -> bytes:
        return self.record(RETENTION, _RETENTION.pack(max_bytes, max_age, begin))

    def continued(self, numbers: Iterable[int]) -> bytes:
        """Returns CONTINUED with the index of a segment."""
        index = encode_bounds(numbers)
        return self.record(CONTINUED, index + _NUMBER.pack(len(index) + _NUMBER.size))

    def number(self, type: int, number: int) -> bytes:
        """Returns DELETED of that queue, or COMPLETE behind that many records of the queues."""
        return self.record(type, _NUMBER.pack(number))

    def spans(self, type: int, queue: int, spans: Sequence[tuple[int, int]]) -> bytes:
        """Returns FINISHED, TAKEN or REWOUND: start and end of each, in any order. Raises StorageError if it could not
        be decoded."""
        for start, end in spans:
            if not 0 <= start < end:
                raise StorageError("invalid span")
        if len(spans) == 1:  # as nearly always
            return self.record(type, _SPAN.pack(queue, *spans[0]))
        return self.record(type, _NUMBER.pack(queue) + encode_bounds(chain.from_iterable(spans)))

    def held(self, queue: int, entries: Sequence[tuple[int, int, int]]) -> list[bytes]:
        """Returns records of the entries (number, attempts, due)."""
        pieces = [entries[first : first + MAX_HELD] for first in range(0, len(entries), MAX_HELD)]
        payloads = [pack(f">I{'qHq' * len(piece)}", queue, *chain.from_iterable(piece)) for piece in pieces]
        return [self.record(HELD, payload) for payload in payloads]

    def snapshot_head(self, next_number: int, next_queue: int) -> bytes:
        """Returns what a segment has before the records of the queues: SNAPSHOT_HEAD_SIZE bytes."""
        return first_line(self.salt) + self.record(SNAPSHOT, _SNAPSHOT.pack(next_number, next_queue))


Mark = tuple[int, int, int, int]  # of a record of messages: first number, count, offset among these records, due time


class PutBatch:
    """Owns messages that are not written yet, and `lasts`, records behind them and what queues record about them.
    Messages in a row share a record, so few that damage, which costs the whole record, costs little."""

    def __init__(self, encoder: Encoder) -> None:
        self.lasts: list[bytes] = []
        self.puts: list[bytes] = []  # head and payload of each record
        self.marks: list[Mark] = []
        self.puts_size = 0
        self._encoder = encoder
        self._frames: list[bytes] = []  # without due time, not yet a record
        self._frames_first = 0
        self._frames_size = 0

    @property
    def first(self) -> int:
        """Returns the number of the first message, behind all numbers if there is none."""
        if self.marks:
            return self.marks[0][0]
        return self._frames_first if self._frames else maxsize

    def put(self, first: int, frames: list[bytes], due: int) -> int:
        """Adds messages with numbers from `first` on, which follows those before; returns their size in bytes."""
        size = 0
        for frame in frames:
            size += len(frame)
        full = self._frames_size + size > MAX_RECORD or len(self._frames) + len(frames) > MAX_MESSAGES
        if due or full:
            self.close_record()
        if due or size > MAX_RECORD or len(frames) > MAX_MESSAGES:
            # By the mean size: a loop over all messages would cost more than their records.
            step = max(min(MAX_RECORD * len(frames) // size, MAX_MESSAGES), 1)
            for begin in range(0, len(frames), step):
                self._add(first + begin, frames[begin : begin + step], due)
        else:
            if not self._frames:
                self._frames_first = first
            self._frames += frames
            self._frames_size += size
        return size

    def close_record(self) -> None:
        """Makes a record of the messages that have none."""
        if self._frames:
            self._add(self._frames_first, self._frames, 0)
            self._frames, self._frames_size = [], 0

    def clear_messages(self) -> None:
        self.puts, self.marks, self.puts_size = [], [], 0
        self._frames, self._frames_size = [], 0

    def _add(self, first: int, frames: list[bytes], due: int) -> None:
        head, payload = self._encoder.put(first, frames, due)
        self.puts.append(head)
        self.puts.append(payload)
        self.marks.append((first, len(frames), self.puts_size, due))
        self.puts_size += len(head) + len(payload)

    def read(self, number: int, end: int) -> tuple[int, list[bytes], int]:
        """Returns messages as `Segment.read`; (end, [], 0) if there is none."""
        self.close_record()
        position = max(bisect_right(self.marks, number, key=itemgetter(0)) - 1, 0)
        for at in range(position, min(position + 2, len(self.marks))):
            first, count, _, due = self.marks[at]
            start = max(number, first)
            if start < min(first + count, end):
                return start, split_frames(self.puts[2 * at + 1], PUT_HEAD, start - first)[: end - start], due
        return end, [], 0

    def prepend(self, written: Sequence[tuple[list[bytes], list[Mark]]]) -> None:
        """Takes back messages that were written already: `puts` and `marks` as they were then, in order."""
        self.close_record()
        puts, marks, offset = [], [], 0
        for older_puts, older_marks in [*written, (self.puts, self.marks)]:
            for position, (first, count, _, due) in enumerate(older_marks):
                record = older_puts[2 * position : 2 * position + 2]
                puts += record
                marks.append((first, count, offset, due))
                offset += sum(map(len, record))
        self.puts, self.marks, self.puts_size = puts, marks, offset


# Reading: each takes a payload; StorageError if it is something else.


def decode_queue(payload: bytes) -> tuple[int, str, Spans]:
    queue, size = _unpack(_QUEUE, payload)
    end = _QUEUE.size + size
    return queue, payload[_QUEUE.size : end].decode("utf-8", "replace"), Spans.decode(payload[end:])


def decode_number(payload: bytes) -> int:
    return int(_unpack(_NUMBER, payload)[0])


def decode_spans(payload: bytes) -> tuple[int, Spans]:
    return decode_number(payload), Spans.decode(payload[_NUMBER.size :])


def decode_held(payload: bytes) -> tuple[int, list[tuple[int, int, int]]]:
    queue = decode_number(payload)
    entries = payload[_NUMBER.size :]
    if len(entries) % _HELD.size:
        raise StorageError("invalid entries")
    return queue, list(_HELD.iter_unpack(entries))


def index_size(end: bytes) -> int:
    """Returns the size of the record with the index of a segment that ends like this, if it has one, in bytes."""
    return HEADER.size + int.from_bytes(end[-_NUMBER.size :], "big")


def decode_index(data: bytes, salt: int) -> "array[int] | None":
    """Returns the numbers of the record with an index; None if this is something else."""
    type, size, crc = parse_header(data, 0, mark_of(salt))
    payload = memoryview(data)[HEADER.size :]  # without a copy of millions of numbers
    if type != CONTINUED or len(payload) != size or not is_whole(type, payload, crc, salt):
        return None
    return decode_bounds(payload[: -_NUMBER.size])


def split_frames(payload: bytes, position: int, skip: int) -> list[bytes]:
    """Returns the frames of a PUT record that begin at `position`, without the first `skip`; raises StorageError."""
    frames = []
    data = payload  # compiled, a pointer
    end = len(payload)
    while position < end:
        if position + 4 > end:
            raise StorageError("invalid frames")
        begin = position
        size = data[begin] << 24 | data[begin + 1] << 16 | data[begin + 2] << 8 | data[begin + 3]
        position += 4 + size
        if not begin + 4 <= position <= end:
            raise StorageError("invalid frames")
        if skip:
            skip -= 1
        else:
            frames.append(data[begin:position])
    return frames


def cut_put(payload: bytes, start: int, end: int) -> bytes:
    """Returns a PUT payload without the messages before number `start` and from `end` on; raises StorageError."""
    first, count, due = decode_put(payload)
    if start <= first and first + count <= end:
        return payload
    frames = split_frames(payload, PUT_HEAD, max(start - first, 0))[: end - max(start, first)]
    return b"".join([_PUT.pack(max(start, first), len(frames), due), *frames])


def decode_range(parts: Iterable[bytes]) -> Iterator[tuple[int, list[bytes]]]:
    """Yields (number of the first message, frames) of each record of `/topic/messages?format=records`, which arrives in
    parts of any size, as soon as it is whole; raises StorageError."""
    data = bytearray()
    for part in parts:
        data += part
        begin = 0
        while (start := begin + _NUMBER.size) <= len(data):
            end = start + _NUMBER.unpack_from(data, begin)[0]
            if end > len(data):
                break
            payload = bytes(data[start:end])
            first, count, _ = decode_put(payload)
            frames = split_frames(payload, PUT_HEAD, 0)
            if len(frames) != count:
                raise StorageError("invalid record")
            yield first, frames
            begin = end
        del data[:begin]
    if data:
        raise StorageError("ends in the middle of a record")


def _unpack(layout: Struct, payload: bytes | memoryview) -> tuple[int, ...]:
    if len(payload) < layout.size:
        raise StorageError("record too short")
    return layout.unpack_from(payload)


decode_snapshot = partial(_unpack, _SNAPSHOT)  # (next number, next queue)
decode_put = partial(_unpack, _PUT)  # (number of the first, count, due time)
decode_retention = partial(_unpack, _RETENTION)  # (bytes, ns, number of the first)


def parse_header(data: bytes, position: int, expected_mark: bytes) -> tuple[int, int, int]:
    """Returns (type, size of the payload, CRC) of the record there, all 0 if none can begin there."""
    if len(data) < position + HEADER.size:
        return 0, 0, 0
    mark, size, crc, type = HEADER.unpack_from(data, position)
    return (type, size, crc) if mark == expected_mark and PUT <= type <= EPOCH else (0, 0, 0)


def parse_first_line(data: bytes) -> int | None:
    """Returns the salt, None if it is damaged."""
    match = _FIRST_LINE.match(data)
    return int(match[1], 16) if match else None


def is_whole(type: int, payload: bytes | memoryview, crc: int, salt: int) -> bool:
    return crc32(payload, salt ^ type) == crc


class JournalRecord(NamedTuple):
    """A whole record: its payload has the bytes from `start` to `end` of the file, `begin` is before its header."""

    type: int
    begin: int
    start: int
    end: int


def read_records(path: str, data: bytes, salt: int | None) -> Iterator[JournalRecord | Gap]:
    """Yields all that a segment has behind its first line, `data` being its content: records, and gaps where there is
    none, the search for the next going on byte by byte. The gap at the end may be a write that a kill cut off. Without
    a `salt` all is a gap: nothing in the file can be distinguished from the content of bodies."""
    if salt is None:
        if data:
            yield Gap(path, 0, len(data), "not a segment of a journal")
        return
    view = memoryview(data)
    mark = mark_of(salt)
    position = known = FIRST_LINE_SIZE  # all before `known` was yielded
    while 0 <= position < len(data):
        type, size, crc = parse_header(data, position, mark)
        start = position + HEADER.size
        end = start + size
        if type and end <= len(data) and is_whole(type, view[start:end], crc, salt):
            if known < position:
                yield Gap(path, known, position, "damaged")
            yield JournalRecord(type, position, start, end)
            position = known = end
        else:
            position = data.find(mark, position + 1)
    if known < len(data):
        yield Gap(path, known, len(data), "damaged")
