"""Bytes and names of a disk queue (NSQD-COMPAT 4.2 to 4.4), without any I/O.

A data file is a row of records, each an int32 length and that many bytes of payload. A payload is a message: int64
timestamp in ns, uint16 attempts, 16 bytes of id, body. All integers are big-endian. Beside the data files lies a meta
file, five numbers in text: how many records there are, and where reading and writing go on. The names of journal
segments are here too, for readers of data directories that need nothing outside the standard library.
"""

import re
from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple, Self

from gnsqd.shared.errors import StorageError

MIN_RECORD_SIZE = 26  # bytes of a payload with an empty body
MAX_RECORD_SIZE = 2**31 - 1  # bytes, as the length is an int32
LENGTH = Struct(">i")
DUE_TIMES_FIRST_LINE = b"gnsqd due times 1\n"
DUE_TIMES_ENTRY = Struct(">18sqi")  # attempts and id, due time in ns, size of the payload that follows
_SEGMENT = re.compile(r"([.a-zA-Z0-9_-]{1,64})\.journal\.([0-9]{6,})\.dat")
_HEAD = Struct(">qH16s")
# A meta file that was cut short in its last number cannot be distinguished from a whole one; nsqd also accepts it.
_META = re.compile(rb"([+-]?\d{1,18})\n(\d{1,18}),(\d{1,18})\n(\d{1,18}),(\d{1,18})(?:\n|\Z)")
_META_BEGINNING = re.compile(rb"[+-]?\d*(?:\n\d*(?:,\d*(?:\n\d*,?)?)?)?")


def encode_record(timestamp: int, attempts: int, id: bytes, body: bytes) -> bytes:
    """Returns the payload of a message; `timestamp` in ns, `id` of 16 bytes, `attempts` up to 65535."""
    return _HEAD.pack(timestamp, attempts, id) + body


def decode_record(payload: bytes) -> tuple[int, int, bytes, bytes]:
    """Returns (timestamp in ns, attempts, id, body); raises StorageError if the payload is shorter than 26 bytes."""
    if len(payload) < MIN_RECORD_SIZE:
        raise StorageError(f"invalid message buffer size ({len(payload)})")
    timestamp, attempts, id = _HEAD.unpack_from(payload)
    return timestamp, attempts, id, payload[MIN_RECORD_SIZE:]


def message_key(payload: bytes) -> bytes:
    """Returns attempts and id of a message, as they are in the payload."""
    return payload[8:MIN_RECORD_SIZE]


def frame_records(payloads: Sequence[bytes]) -> bytes:
    """Returns the bytes of these payloads in a data file."""
    parts = []
    for payload in payloads:
        parts.append(LENGTH.pack(len(payload)))
        parts.append(payload)
    return b"".join(parts)


class Meta(NamedTuple):
    """The content of the meta file. Positions are (file number, bytes), of the next record to read and to write."""

    depth: int = 0
    read_file: int = 0
    read_pos: int = 0
    write_file: int = 0
    write_pos: int = 0

    @classmethod
    def parse(cls, text: bytes) -> Self:
        """Parses a meta file, or its beginning; raises StorageError, with Go's text, if it is invalid."""
        match = _META.match(text)
        if match is None:
            raise StorageError("EOF" if _META_BEGINNING.fullmatch(text) else "expected integer")
        return cls(*map(int, match.groups()))

    @property
    def read_position(self) -> tuple[int, int]:
        return self.read_file, self.read_pos

    @property
    def write_position(self) -> tuple[int, int]:
        return self.write_file, self.write_pos

    def format(self) -> bytes:
        return b"%d\n%d,%d\n%d,%d\n" % self


def segment_name(topic: str, number: int) -> str:
    return f"{topic}.journal.{number:06d}.dat"


def parse_segment_name(name: str) -> tuple[str, int] | None:
    """Returns (topic, number); None if `name` is not that of a segment."""
    match = _SEGMENT.fullmatch(name)
    if match is None or name != segment_name(match[1], int(match[2])):
        return None
    return match[1], int(match[2])


def meta_file_name(queue: str) -> str:
    return f"{queue}.diskqueue.meta.dat"


def due_times_file_name(queue: str) -> str:
    """Returns the name of a file that only gnsqd has (`storage.due_times`)."""
    return f"{queue}.diskqueue.due_times.dat"


def data_file_name(queue: str, number: int) -> str:
    return f"{queue}.diskqueue.{number:06d}.dat"


def data_file_number(queue: str, name: str) -> int | None:
    """Returns the number of a data file of that queue; None if `name` is not that of one."""
    head = f"{queue}.diskqueue."
    digits = name[len(head) : -len(".dat")]
    if name.startswith(head) and digits.isdecimal() and name == data_file_name(queue, int(digits)):
        return int(digits)
    return None
