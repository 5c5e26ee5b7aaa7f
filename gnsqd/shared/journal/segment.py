"""A file of a journal, a segment, and where in it a message is.

A sparse index, an entry for some 16 KiB of records, leads near to a message; from there the records are read. Numbers
rise within a segment; some may be missing.
"""

import os
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import compress
from sys import maxsize

from gnsqd.shared.errors import StorageError, failing_as_go
from gnsqd.shared.journal import records
from gnsqd.shared.journal.records import HEADER, PUT, decode_put, is_whole, parse_header, split_frames
from gnsqd.shared.journal.spans import Spans

INDEX_STEP = 16 * 1024  # bytes
CHUNK = 64 * 1024  # bytes that are read at once, at least


class Segment:
    """Knows the messages from `first` up to, not including, `end`. Owns a descriptor while it is read."""

    def __init__(self, path: str, salt: int, first: int) -> None:
        self.path = path
        self.salt = salt
        self._mark = records.mark_of(salt)
        self.first = self.end = first
        self.size = 0
        self.count = 0  # of messages
        self.body_size = 0  # bytes of these
        self.newest = 0  # when the last of them was published (wall clock, ns), once somebody has read it
        self._numbers = array("q")
        self._offsets = array("q")
        self._gaps = array("q")  # spans of numbers that are not in it
        self.due = array("q")  # number and due time of messages with one, for its index
        self.latest_due = 0  # no message in it is due later (wall clock, ns)
        self._descriptor = -1

    def note_put(self, first: int, count: int, offset: int, due: int) -> None:
        """Notes that a record with these messages is at `offset`; until `due` (wall clock, ns) they are held back."""
        if not self.count:
            self.first = first
        elif first != self.end:
            self._gaps.extend((self.end, first))
        if due:
            self.latest_due = max(self.latest_due, due)
            for number in range(first, first + count):
                self.due.extend((number, due))
        if not self._offsets or offset - self._offsets[-1] >= INDEX_STEP:
            self._numbers.append(first)
            self._offsets.append(offset)
        self.count += count
        self.end = first + count

    def note_batch(self, batch: records.PutBatch, offset: int, size: int) -> None:
        """Notes that `size` bytes were appended, in which the records of a batch begin at `offset` of the file."""
        for first, count, position, due in batch.marks:
            self.note_put(first, count, offset + position, due)
        self.body_size += batch.puts_size - len(batch.marks) * records.PUT_SURPLUS
        self.size += size

    def cut(self, end: int) -> None:
        """Drops messages from `end` on: they are also in a later segment, which counts."""
        self.first = min(self.first, end)
        self.end = min(self.end, end)
        before = self.count
        self.count = min(before, self.end - self.first)
        self.body_size = self.body_size * self.count // max(before, 1)

    def index(self) -> "array[int]":
        """Returns all that a start has to know of it, as numbers for its last record. It can be asked for once."""
        gaps = array("q", [bound for bound in self._gaps if bound < self.end])
        if len(gaps) % 2:
            gaps.append(self.end)
        head = (self.first, self.end, self.count, self.body_size, len(gaps), len(self._numbers))
        numbers = array("q", head) + gaps + self._numbers + self._offsets + self.due
        self.forget_index()
        return numbers

    def forget_index(self) -> None:
        """Frees what only `index` needs."""
        self._gaps, self.due = array("q"), array("q")

    def due_later(self, time: int) -> "tuple[array[int], array[int]]":
        """Returns the numbers of messages that are due later than `time` (wall clock, ns), and these due times."""
        numbers, times = self.due[::2], self.due[1::2]
        if min(times, default=maxsize) > time:
            return numbers, times
        pending = [due > time for due in times]
        return array("q", compress(numbers, pending)), array("q", compress(times, pending))

    @classmethod
    def indexed(cls, path: str, size: int, salt: int, numbers: "array[int]") -> "tuple[Segment, Spans]":
        """Returns a segment with that index, and the numbers of its messages; raises StorageError."""
        due_at = _due_at(numbers)
        first, end, count, body_size, gaps_size, marks = numbers[:6]
        gaps_end = 6 + gaps_size
        segment = cls(path, salt, first)
        segment.size, segment.end, segment.count, segment.body_size = size, end, count, body_size
        segment._numbers, segment._offsets = numbers[gaps_end : gaps_end + marks], numbers[gaps_end + marks : due_at]
        segment.due = numbers[due_at:]
        segment.latest_due = max(segment.due[1::2], default=0)
        present = Spans()
        present.add(first, end)
        for start, stop in zip(numbers[6:gaps_end:2], numbers[7:gaps_end:2], strict=True):
            present.remove(start, stop)
        return segment, present

    def due_times(self) -> "tuple[array[int], array[int]]":
        """Returns numbers of its messages with a due time, and these; none if its index is needed and can't be read."""
        pairs, start = self.due, 0
        if not self.due and self.latest_due:
            with suppress(OSError, StorageError):
                if found := read_index(self.path):
                    pairs, start = found[2], _due_at(found[2])
        return pairs[start::2], pairs[start + 1 :: 2]

    def open(self, open_file: Callable[[str, int], int]) -> None:
        """Opens it to be read, by `open_file` as os.open does; raises StorageError."""
        if self._descriptor < 0:
            with failing_as_go("open", self.path):
                self._descriptor = open_file(self.path, os.O_RDONLY)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def read(self, number: int, end: int) -> tuple[int, list[bytes], int]:
        """Returns (number, frames, due time) of messages in a row, from the first undamaged one at `number` or later
        and before `end`; no frames if there is none. It must be open; raises StorageError if the file can't be read."""
        start = next_number = number
        end = min(end, self.end)
        frames: list[bytes] = []
        due = 0
        with failing_as_go("read", self.path):
            for payload in self._puts(number, end, CHUNK):
                if not payload:
                    if frames:
                        break
                    continue
                first, count, record_due = decode_put(payload)
                if first >= end or (frames and (first != next_number or record_due != due)):
                    break
                if not frames:
                    start, due = max(first, number), record_due
                found = split_frames(payload, records.PUT_HEAD, max(next_number - first, 0))
                frames += found[: end - max(first, next_number)]
                next_number = first + count
                if next_number >= end:
                    break
        return start, frames, due

    def read_records(self, number: int, end: int, size: int, skip: Callable[[int], int]) -> list[bytes]:
        """Returns the PUT payloads with messages in a row from `number` on and before `end`, whole, of about `size`
        bytes; empty if the first is damaged or missing. `skip(number)` returns the number with which the row goes on if
        the message `number` is missing. It must be open; raises StorageError if the file can't be read."""
        payloads: list[bytes] = []
        end = min(end, self.end)
        with failing_as_go("read", self.path):
            for payload in self._puts(number, end, size):
                if not payload:
                    continue
                first, count, _ = decode_put(payload)
                if first >= end or (first > number and first > skip(number)):
                    break
                payloads.append(payload)
                number = first + count
                size -= len(payload)
                if size <= 0 or number >= end:
                    break
        return payloads

    def _puts(self, number: int, end: int, size: int) -> Iterator[bytes]:
        """Yields the payloads of PUT records, from the one with message `number` or a later one on, and b"" before each
        read, of `size` bytes at least, and at each damage. Raises OSError."""
        entry = bisect_right(self._numbers, number) - 1
        position = self._offsets[entry] if entry >= 0 else records.FIRST_LINE_SIZE
        chunk, base = b"", position
        while position < self.size and number < end:
            begin = position - base + HEADER.size
            type, payload_size, crc = parse_header(chunk, begin - HEADER.size, self._mark)
            record_size = HEADER.size + payload_size
            if begin + payload_size > len(chunk) and position + record_size <= self.size:
                yield b""
                chunk = os.pread(self._descriptor, max(record_size, min(size, self.size - position)), position)
                base = position
                if len(chunk) < record_size:
                    break
                continue
            payload = chunk[begin : begin + payload_size]
            if not type or len(payload) < payload_size or not is_whole(type, payload, crc, self.salt):
                yield b""
                position = self._next_mark(position + 1)
                chunk, base = b"", position
                continue
            position += record_size
            if type != PUT:
                continue
            first, count, _ = decode_put(payload)
            if first + count > number:
                yield payload

    def _next_mark(self, position: int) -> int:
        """Returns where the next record may begin."""
        while position < self.size:
            data = os.pread(self._descriptor, CHUNK, position)
            found = data.find(self._mark)
            if found >= 0:
                return position + found
            if len(data) <= records.MARK_SIZE:
                break
            position += len(data) - records.MARK_SIZE + 1
        return self.size


def _due_at(numbers: "array[int]") -> int:
    """Returns where the due times begin in an index; raises StorageError."""
    if len(numbers) >= 6:
        gaps_size, marks = numbers[4:6]
        due_at = 6 + gaps_size + 2 * marks
        due_size = len(numbers) - due_at
        if min(gaps_size, marks, due_size) >= 0 and not (gaps_size % 2 or due_size % 2):
            return due_at
    raise StorageError("invalid index")


def read_index(path: str) -> "tuple[int, int, array[int]] | None":
    """Returns the size, the salt and the index of a segment, None if it has no index; raises OSError."""
    with open(path, "rb") as file:
        salt = records.parse_first_line(file.read(records.FIRST_LINE_SIZE))
        size = file.seek(0, os.SEEK_END)
        if salt is None or size < 2 * records.FIRST_LINE_SIZE:
            return None
        file.seek(-records.FIRST_LINE_SIZE, os.SEEK_END)
        begin = size - records.index_size(file.read())
        if begin < records.FIRST_LINE_SIZE:
            return None
        file.seek(begin)
        numbers = records.decode_index(file.read(), salt)
    return None if numbers is None else (size, salt, numbers)
