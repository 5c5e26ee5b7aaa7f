"""Reads the records of a data file, for the daemon, and for programs that only look at a data directory.

What a record is, is decided here alone. Its length is from `min_size` to `max_size`; or larger, if --max-msg-size was
larger when it was written. Its length alone does not prove a larger one valid: other records, or the end, must follow
it. Where nsqd and gnsqd find no record, they abandon the rest of the file. There are three ways to read one:

`read`     as the daemon does, some messages at a time, from a file that is written to meanwhile
`runs`     everything up to the first damage, in bulk
`salvage`  also what is behind damage, which the daemon does not deliver

Bytes before the `end` given by the caller never change, and `read` and `runs` read nothing behind it, so their buffer
is never stale.
"""

import errno
import os
import re
from bisect import bisect_right
from collections.abc import Iterator

from gnsqd.shared.disk_format import LENGTH, MIN_RECORD_SIZE, Gap, RecordRun, StoredRecord
from gnsqd.shared.errors import StorageError, reason_of

BUFFER_SIZE = 64 * 1024  # bytes; every queue with a backlog holds one
_ID = re.compile(rb"[0-9a-f]{16}")
_ID_AT = 14  # in a record
MAX_JOINED = 16 * 1024  # bytes; beyond that reading them back costs less than copying them again and again
FOLLOWERS = 4  # records that must follow a large one; a damaged length leads to that many only by a rare accident

LARGE_BUFFER = 1 << 20  # bytes, where whole files are read
_LARGEST = 64 << 20  # bytes of a payload: anything longer than this and the limit is not a message
_HEAD = LENGTH.size + MIN_RECORD_SIZE
# length below 2**27, time between 2000 and 2100 in ns, attempts, id
_HEAD_PATTERN = re.compile(rb"[\x00-\x07](?=.{3}[\x0d-\x38].{9}[0-9a-f]{16})", re.DOTALL)
_MESSAGE_PATTERN = re.compile(rb"[\x0d-\x38].{9}[0-9a-f]{16}", re.DOTALL)


class RecordReader:
    """Owns the `descriptor` of the file `path`, and the buffer. Payloads have `min_size` bytes or more; of those with
    more than `max_size`, see above."""

    def __init__(
        self, path: str, descriptor: int, min_size: int, max_size: int, buffer_size: int = BUFFER_SIZE
    ) -> None:
        self._path = path
        self._descriptor = descriptor
        self._min_size = min_size
        self._max_size = max_size
        self._buffer_size = buffer_size
        self._buffer = b""
        self._start = 0  # where in the file the buffer begins

    def file_size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def close(self) -> None:
        os.close(self._descriptor)

    def feed(self, pos: int, data: bytes) -> None:
        """Adds `data`, which the file has at `pos` from now on: what keeps up with writing needs no disk."""
        held = len(self._buffer)
        if not held and len(data) <= self._buffer_size:
            self._buffer = data
            self._start = pos
        elif self._start + held == pos and held + len(data) <= MAX_JOINED:
            self._buffer += data

    def read(self, pos: int, end: int, limit: int, max_bytes: int) -> tuple[list[bytes], list[int]]:
        """Returns payloads of the records between `pos` and `end`, and the position behind each: at most `limit`,
        together at most `max_bytes` except for a single larger one. Stops before a damaged record; raises StorageError,
        with Go's text, if that is the first one, OSError if the file can't be read."""
        payloads: list[bytes] = []
        ends: list[int] = []
        try:
            while pos != end and len(payloads) < limit:
                needed = self._parse(pos, end, limit, max_bytes, payloads, ends)
                if ends:
                    pos = ends[-1]
                if not needed or pos == end:
                    break
                self._fill(pos, needed, end)
        except StorageError:
            if not payloads:
                raise
        if ends and ends[-1] == self._start + len(self._buffer):
            self._buffer = b""
        return payloads, ends

    def record_at(self, pos: int) -> int:
        """Returns where the record begins that has `pos` inside it; `pos` if one begins there, or if damage hides that.
        Raises OSError. Only if no message seems to begin there is the file read, from its beginning."""
        end = self.file_size()
        if self._is_followed(pos, end) and _ID.match(os.pread(self._descriptor, 16, pos + _ID_AT)):
            return pos
        begin = 0
        while begin < pos < end:
            try:
                ends = self.read(begin, end, 1000, 1 << 20)[1]
            except StorageError:
                break
            if pos < ends[-1]:
                begins = [begin, *ends]
                return begins[bisect_right(begins, pos) - 1]
            begin = ends[-1]
        return pos

    def runs(self, pos: int, end: int) -> Iterator[RecordRun | Gap]:
        """Yields the records between `pos` and `end`, in order, and at the first damage a gap up to `end`, with Go's
        text as its reason; so the reason of a record that is cut off ends in EOF."""
        needed = LENGTH.size
        while pos < end:
            try:
                self._fill(pos, needed, end)
                edges, needed = self._edges(end)
            except (OSError, StorageError) as error:
                yield Gap(self._path, pos, end, reason_of(error) if isinstance(error, OSError) else str(error))
                return
            if len(edges) > 1:
                yield RecordRun(pos, self._buffer, edges)
                pos += edges[-1]

    def _edges(self, end: int) -> tuple[list[int], int]:
        """Returns where in the buffer, which begins with a record, each record begins, and where the last whole one
        ends; and the bytes needed there to go on. Raises StorageError if the first one is damaged."""
        buffer, available = self._buffer, len(self._buffer)
        min_size, max_size, unpack_length = self._min_size, self._max_size, LENGTH.unpack_from
        edges = [0]
        offset = 0
        while offset + 4 <= available:
            size: int = unpack_length(buffer, offset)[0]
            offset += 4 + size
            if not min_size <= size <= max_size:
                try:
                    self._check_size(size, self._start + offset, end)
                except StorageError:
                    if len(edges) > 1:
                        break
                    raise
            if offset > available:
                return edges, 4 + size
            edges.append(offset)
        return edges, LENGTH.size

    def _parse(self, pos: int, end: int, limit: int, max_bytes: int, payloads: list[bytes], ends: list[int]) -> int:
        """Appends the records in the buffer from `pos` on; returns the bytes needed there to go on, 0 to stop."""
        buffer, start, available = self._buffer, self._start, len(self._buffer)
        offset = pos - start
        if offset < 0:
            return LENGTH.size
        min_size, max_size, unpack_length = self._min_size, self._max_size, LENGTH.unpack_from
        room = max_bytes - sum(map(len, payloads))
        while len(payloads) < limit:
            body = offset + 4
            if body > available:
                return LENGTH.size
            size: int = unpack_length(buffer, offset)[0]
            if not min_size <= size <= max_size:
                self._check_size(size, start + body + size, end)
            room -= size
            if room < 0 and payloads:
                return 0
            offset = body + size
            if offset > available:
                return LENGTH.size + size
            payloads.append(buffer[body:offset])
            ends.append(start + offset)
        return 0

    def _check_size(self, size: int, behind: int, end: int) -> None:
        """Raises StorageError, with Go's text, if no record has a size that is not within the bounds."""
        if size < self._min_size or not self._is_followed(behind, end):
            raise StorageError(f"invalid message read size ({size})")

    def _is_followed(self, pos: int, end: int) -> bool:
        """True if records, or the `end`, are at `pos`; raises OSError. That is the case behind a record that is larger
        than --max-msg-size allows now; else its length is damaged."""
        for _ in range(FOLLOWERS):
            if pos >= end:
                break
            length = os.pread(self._descriptor, LENGTH.size, pos)
            size: int = LENGTH.unpack(length)[0] if len(length) == LENGTH.size else -1
            if size < self._min_size:
                return False
            pos += LENGTH.size + size
        return pos <= end

    def _fill(self, pos: int, needed: int, end: int) -> None:
        """Fills the buffer with `needed` bytes or more from `pos` on."""
        length = min(max(needed, self._buffer_size), end - pos)
        self._buffer = os.pread(self._descriptor, length, pos) if length > 0 else b""
        self._start = pos
        if len(self._buffer) < needed:
            # Go's io.ReadFull: EOF when the length, or the payload, is missing altogether
            raise StorageError("EOF" if len(self._buffer) in (0, LENGTH.size) else "unexpected EOF")

    def salvage(self, pos: int) -> Iterator[StoredRecord | Gap]:
        """Yields everything from `pos` on, in order, without holes; raises OSError, except for a bad disk.

        At an impossible length the daemon abandons the rest of the file. There usually are whole messages behind it:
        the next header of a message is searched for, a time of this century and an id of 16 hexadecimal digits, behind
        a length that leads to another header or to the end. If the bytes between are one message with an impossible
        length, it is also read."""
        end = self.file_size()
        while pos < end:
            try:
                item = self._salvage_one(pos, end)
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                item = Gap(self._path, pos, end, "a read error of the disk")
            yield item
            pos = item.end

    def _salvage_one(self, pos: int, end: int) -> StoredRecord | Gap:
        """Returns the message at `pos`; where nsqd finds damage, what there is up to the next message or the end."""
        field = self._at(pos, LENGTH.size)
        length: int = LENGTH.unpack(field)[0] if len(field) == LENGTH.size else -1
        behind = pos + LENGTH.size + length
        if self._min_size <= length <= self._max_size and behind <= end:
            payload = self._at(pos + LENGTH.size, length)
            # If nothing valid follows where the length indicates, the length may be damaged.
            if len(payload) == length and (
                self._leads_on(behind, end) or (_ID.match(payload, 10) and self._find(pos + 1, behind, end) >= behind)
            ):
                return StoredRecord(pos, behind, payload)
        is_delivered = length > self._max_size and self._is_followed(behind, end)
        if is_delivered or (length > self._max_size and self._is_record(pos, end)):
            flaw = f"a message of {length - self._min_size:,} bytes, more than --max-msg-size"
            return StoredRecord(pos, behind, self._at(pos + LENGTH.size, length), flaw, too_large=is_delivered)
        is_possible = self._min_size <= length <= self._largest
        if end - pos < LENGTH.size or (is_possible and behind > end):
            reason = "a truncated message"
        else:
            reason = "bytes that are not a message" if is_possible else f"a length of {length} bytes"
        following = self._find(pos + 1, end, end)
        size = following - pos - LENGTH.size
        # A length that is possible may be right, and bytes of the message lost: then it must not be delivered.
        is_length_damaged = length < self._min_size or length > self._max_size
        if is_length_damaged and following < end and self._min_size <= size <= self._largest:
            payload = self._at(pos + LENGTH.size, size)
            if _MESSAGE_PATTERN.match(payload) and not _HEAD_PATTERN.search(payload, 1):
                return StoredRecord(pos, following, payload, reason)
        return Gap(self._path, pos, following, reason)

    @property
    def _largest(self) -> int:
        return max(_LARGEST, self._max_size)

    def _find(self, pos: int, limit: int, end: int) -> int:
        """Returns where the next record begins, from `pos` on and before `limit`; the `end` if there is none."""
        while pos < limit:
            chunk = self._at(pos, min(LARGE_BUFFER, limit - pos + _HEAD))
            for match in _HEAD_PATTERN.finditer(chunk):
                if self._is_record(pos + match.start(), end):
                    return pos + match.start()
            if len(chunk) <= _HEAD:
                break
            pos += len(chunk) - _HEAD + 1
        return end

    def _is_record(self, pos: int, end: int) -> bool:
        """True if a whole message of any size is there, followed by something valid or a torn message."""
        head = self._peek(pos)
        if len(head) < _HEAD or not _HEAD_PATTERN.match(head):
            return False
        length: int = LENGTH.unpack_from(head)[0]
        behind = pos + LENGTH.size + length
        if not self._min_size <= length <= self._largest or behind > end:
            return False
        return end - behind < _HEAD or self._leads_on(behind, end)

    def _leads_on(self, pos: int, end: int) -> bool:
        """True if the file ends at `pos`, or a message begins."""
        head = self._peek(pos)
        if len(head) < _HEAD:
            return pos == end
        return bool(LENGTH.unpack_from(head)[0] >= self._min_size and _HEAD_PATTERN.match(head))

    def _peek(self, pos: int) -> bytes:
        """Returns the bytes that the header of a record would have there, and leaves the buffer as it is."""
        offset = pos - self._start
        if 0 <= offset <= len(self._buffer) - _HEAD:
            return self._buffer[offset : offset + _HEAD]
        return os.pread(self._descriptor, _HEAD, pos)

    def _at(self, pos: int, count: int) -> bytes:
        """Returns up to `count` bytes at `pos`, fewer at the end of the file."""
        offset = pos - self._start
        if offset < 0 or offset + count > len(self._buffer):
            self._buffer = os.pread(self._descriptor, max(count, self._buffer_size), pos)
            self._start, offset = pos, 0
        return self._buffer[offset : offset + count]
