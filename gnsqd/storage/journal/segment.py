"""The files of a journal, its segments, and where in them a message is.

A sparse index, an entry for some 16 KiB of records, leads near to a message; from there the records are read. Numbers
rise within a segment; some may be missing.
"""

import os
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from copy import copy

from gnsqd.log import Logger
from gnsqd.shared.errors import StorageError
from gnsqd.storage.files import failing_as_go, path_error, write_at
from gnsqd.storage.journal import records
from gnsqd.storage.journal.open_files import OpenFiles
from gnsqd.storage.journal.records import HEADER, PUT, decode_put, is_whole, parse_header, split_frames
from gnsqd.storage.journal.spans import Spans

INDEX_STEP = 16 * 1024  # bytes
CHUNK = 64 * 1024  # bytes that are read at once, at least
PIECE = 1000  # messages, or spans of them, that one step looks at


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

    def note_batch(self, batch: records.Batch, offset: int, size: int) -> None:
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

    @classmethod
    def indexed(cls, path: str, size: int, salt: int, numbers: "array[int]") -> "tuple[Segment, Spans]":
        """Returns a segment with that index, and the numbers of its messages; StorageError."""
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

    def mark_continued(self) -> None:
        """Records at its end that another segment follows, with its index. If that fails, a start takes longer, and
        does not notice if that is lost."""
        index = records.Encoder(self.salt).continued(self.index())
        with suppress(OSError):
            descriptor = os.open(self.path, os.O_WRONLY)
            try:
                self.size += write_at(descriptor, [index], self.size)
            except OSError:
                os.ftruncate(descriptor, self.size)
            finally:
                os.close(descriptor)

    def open(self, files: OpenFiles) -> None:
        """Opens it to be read, as long as `files` have room; StorageError."""
        if self._descriptor < 0:
            with failing_as_go("open", self.path):
                self._descriptor = files.open(self.path, os.O_RDONLY)
        files.use(self)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def remove(self, unlink: Callable[[str], None]) -> None:
        """Deletes the file, by `unlink`; StorageError."""
        self.close()
        try:
            unlink(self.path)
        except FileNotFoundError:
            pass
        except OSError as error:
            with suppress(OSError):
                os.truncate(self.path, 0)  # the rest has no meaning
            raise StorageError(path_error("remove", self.path, error)) from error

    def read(self, number: int, end: int) -> tuple[int, list[bytes], int]:
        """Returns (number, frames, due time) of messages in a row, from the first undamaged one at `number` or later
        and before `end`; no frames if there is none. It must be open; StorageError if the file can't be read."""
        with failing_as_go("read", self.path):
            return self._read(number, min(end, self.end))

    def _read(self, number: int, end: int) -> tuple[int, list[bytes], int]:
        entry = bisect_right(self._numbers, number) - 1
        position = self._offsets[entry] if entry >= 0 else records.FIRST_LINE_SIZE
        start = next_number = number
        frames: list[bytes] = []
        due = 0
        chunk, base = b"", position
        while position < self.size and next_number < end:
            begin = position - base + HEADER.size
            type, size, crc = parse_header(chunk, begin - HEADER.size, self._mark)
            record_size = HEADER.size + size
            if begin + size > len(chunk) and position + record_size <= self.size:
                if frames:
                    break
                chunk = os.pread(self._descriptor, max(record_size, min(CHUNK, self.size - position)), position)
                base = position
                if len(chunk) < record_size:
                    break
                continue
            payload = chunk[begin : begin + size]
            if not type or len(payload) < size or not is_whole(type, payload, crc, self.salt):
                if frames:
                    break
                position = self._next_mark(position + 1)
                chunk, base = b"", position
                continue
            position += record_size
            if type != PUT:
                continue
            first, count, record_due = decode_put(payload)
            if first + count <= next_number:
                continue
            if first >= end or (frames and (first != next_number or record_due != due)):
                break
            if not frames:
                start, due = max(first, number), record_due
            found = split_frames(payload, records.PUT_HEAD, max(next_number - first, 0))
            frames += found[: end - max(first, next_number)]
            next_number = first + count
        return start, frames, due

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
    """Returns where the due times begin in an index; StorageError."""
    if len(numbers) >= 6:
        gaps_size, marks = numbers[4:6]
        due_at = 6 + gaps_size + 2 * marks
        due_size = len(numbers) - due_at
        if min(gaps_size, marks, due_size) >= 0 and not (gaps_size % 2 or due_size % 2):
            return due_at
    raise StorageError("invalid index")


def read_index(path: str) -> "tuple[int, int, array[int]] | None":
    """Returns the size, the salt and the index of a segment, None if it has no index; OSError."""
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


class Segments:
    """Owns the list of all segments, the oldest first. One of them may be open for reading, as long as `open_files`
    have room. `unlink` deletes files, and may free their blocks later."""

    def __init__(
        self,
        topic: str,
        segments: list[Segment],
        log: Logger,
        open_files: OpenFiles,
        unlink: Callable[[str], None] = os.unlink,
    ) -> None:
        self._topic = topic
        self._unlink = unlink
        self.all = segments
        self._log = log
        self._open_files = open_files
        self._reading: Segment | None = None

    def __len__(self) -> int:
        return len(self.all)

    def reader(self, group: Sequence[Segment]) -> "Segments":
        """Returns some of them once more, with descriptors of their own."""
        copies = [copy(segment) for segment in group]
        for segment in copies:
            segment._descriptor = -1
        return Segments(self._topic, copies, self._log, self._open_files)

    def read(self, number: int, end: int) -> tuple[int, list[bytes], int]:
        """Returns messages as `Segment.read`; (end, [], 0) if there is none in any."""
        while number < end and self.all:
            position = max(bisect_right(self.all, number, key=lambda segment: segment.first) - 1, 0)
            segment = self.all[position]
            if segment is not self._reading:
                self.end_reading()
                self._reading = segment
            segment.open(self._open_files)
            start, frames, due = segment.read(number, end)
            if frames:
                return start, frames, due
            if position + 1 == len(self.all):
                break
            number = max(number, self.all[position + 1].first)
        return end, [], 0

    def pieces(self, among: Spans, time: int) -> "Iterator[tuple[Spans, array[int], array[int]]]":
        """Iterates over some messages in pieces of at most PIECE spans, each with the numbers of those due later than
        `time` (wall clock, ns), and their due times; not all where an index can't be read. A piece has at most PIECE of
        these. Segments may come and go between two pieces."""
        start, end = among.begin, among.ceiling
        indexed: Segment | None = None
        of_segment = due_times = array("q")
        while start < end:
            stop = min(among.stretch(start, PIECE), end)
            numbers, times = array("q"), array("q")
            segment = next((segment for segment in self.all if segment.end > start), None)
            if segment is not None:
                stop = min(stop, segment.end)
                if segment.latest_due > time:
                    stop = min(stop, start + PIECE)
                    if segment is not indexed:
                        of_segment, due_times = segment.due_times()
                        indexed = segment
                    for begin, behind in among.between(start, stop):
                        first = bisect_left(of_segment, begin)
                        for position in range(first, bisect_left(of_segment, behind, first)):
                            if due_times[position] > time:
                                numbers.append(of_segment[position])
                                times.append(due_times[position])
            yield among.between(start, stop), numbers, times
            start = stop

    def end_reading(self) -> None:
        if self._reading is not None:
            self._open_files.hold(self._reading)
            self._reading.close()
            self._reading = None

    def replace(self, group: list[Segment], by: Segment | None) -> list[Segment]:
        """Replaces neighbours by `by`, which took the file of the last of them; returns the segments to be deleted."""
        position = self.all.index(group[0])
        if self._reading in group:
            self.end_reading()
        self.all[position : position + len(group)] = [] if by is None else [by]
        return group if by is None else group[:-1]

    def delete(self, segments: Sequence[Segment], at_once: bool = False) -> None:
        """Deletes the files, in the list or not, and logs what can't be; `at_once`: also their blocks are free then."""
        for segment in segments:
            if segment is self._reading:
                self.end_reading()
            try:
                segment.remove(os.unlink if at_once else self._unlink)
            except StorageError as error:
                self._log.error("JOURNAL(%s): %s", self._topic, error)
