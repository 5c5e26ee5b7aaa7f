"""Reads the records of one data file through a buffer.

The file may be written to at the same time: bytes before the `end` given by the caller never change, and nothing behind
it is read, so the buffer is never stale.

A record may be larger than messages may be now, if --max-msg-size was larger when it was written. Its length alone does
not prove it valid then: other records, or the end, must follow it.
"""

import os
import re
from bisect import bisect_right
from functools import partial

from gnsqd.shared.disk_format import LENGTH, is_followed
from gnsqd.shared.errors import StorageError

BUFFER_SIZE = 64 * 1024  # bytes; every queue with a backlog holds one
_ID = re.compile(rb"[0-9a-f]{16}")
_ID_AT = 14  # in a record
MAX_JOINED = 16 * 1024  # bytes; beyond that reading them back costs less than copying them again and again


class RecordReader:
    """Owns the file descriptor and the buffer; raises OSError if the file can't be opened. Payloads have `min_size`
    bytes or more; of those with more than `max_size`, see above."""

    def __init__(self, path: str, min_size: int, max_size: int) -> None:
        self._min_size = min_size
        self._max_size = max_size
        self._descriptor = os.open(path, os.O_RDONLY)
        self._buffer = b""
        self._start = 0  # where in the file the buffer begins

    def file_size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def close(self) -> None:
        os.close(self._descriptor)

    def feed(self, pos: int, data: bytes) -> None:
        """Adds `data`, which the file has at `pos` from now on: what keeps up with writing needs no disk."""
        held = len(self._buffer)
        if not held and len(data) <= BUFFER_SIZE:
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
            if size < min_size or (size > max_size and not self._is_followed(start + body + size, end)):
                raise StorageError(f"invalid message read size ({size})")
            room -= size
            if room < 0 and payloads:
                return 0
            offset = body + size
            if offset > available:
                return LENGTH.size + size
            payloads.append(buffer[body:offset])
            ends.append(start + offset)
        return 0

    def _is_followed(self, pos: int, end: int) -> bool:
        """Returns what `is_followed` does; raises OSError."""
        return is_followed(partial(os.pread, self._descriptor), pos, end, self._min_size)

    def _fill(self, pos: int, needed: int, end: int) -> None:
        """Fills the buffer with `needed` bytes or more from `pos` on."""
        length = min(max(needed, BUFFER_SIZE), end - pos)
        self._buffer = os.pread(self._descriptor, length, pos) if length > 0 else b""
        self._start = pos
        if len(self._buffer) < needed:
            # Go's io.ReadFull: EOF when the length, or the payload, is missing altogether
            raise StorageError("EOF" if len(self._buffer) in (0, LENGTH.size) else "unexpected EOF")
