"""Bytes of a disk queue's files, and the names of all files of the data path (NSQD-COMPAT 4.2 to 4.4).

A data file is a row of records, each an int32 length and that many bytes of payload. A payload is a message: int64
timestamp in ns, uint16 attempts, 16 bytes of id, body. All integers are big-endian. Beside the data files lies a meta
file, five numbers in text: how many records there are, and where reading and writing go on. Beside them may lie a file
of due times (`storage.disk.due_times`).
"""

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from struct import Struct
from typing import BinaryIO, NamedTuple, Self

from gnsqd.shared.errors import StorageError
from gnsqd.shared.names import is_ephemeral, is_valid_name

MIN_RECORD_SIZE = 26  # bytes of a payload with an empty body
MAX_RECORD_SIZE = 2**31 - 1  # bytes, as the length is an int32
LENGTH = Struct(">i")
DUE_TIMES_FIRST_LINE = b"gnsqd due times 1\n"
DUE_TIMES_ENTRY = Struct(">18sqi")  # attempts and id, due time in ns, size of the payload that follows
# Patterns are compiled when they are first used, by the functions of re.
_SEGMENT = r"(.+)\.journal\.([0-9]{6,})\.dat"
_QUEUE_FILE = r"(?s)(.+)\.diskqueue\.(?:([0-9]{6,})|(meta|due_times))\.dat(\.bad)?"
_TEMPORARY = r"(?s)(.+\.dat)\.[0-9]+\.tmp"
_HEAD = Struct(">qH16s")
# A meta file that was cut short in its last number cannot be distinguished from a whole one; nsqd also accepts it.
_META = rb"([+-]?\d{1,18})\n(\d{1,18}),(\d{1,18})\n(\d{1,18}),(\d{1,18})(?:\n|\Z)"
_META_BEGINNING = rb"[+-]?\d*(?:\n\d*(?:,\d*(?:\n\d*,?)?)?)?"


class Gap(NamedTuple):
    """Bytes of a file of messages that hold none that can be read: of a data file, or of a segment of a journal."""

    path: str
    begin: int
    end: int
    reason: str


class RecordRun(NamedTuple):
    """Whole records one behind the other, from `begin` of the file on. `edges` are the places in `data` where each
    begins, and where the last one ends."""

    begin: int
    data: bytes
    edges: list[int]

    def payloads(self) -> list[bytes]:
        return [self.data[begin + LENGTH.size : end] for begin, end in pairwise(self.edges)]


class StoredRecord(NamedTuple):
    """A message, from `begin` to `end` of the file. `flaw` is the reason if nsqd treats it as damage: `too_large`,
    which gnsqd delivers, or a bad length."""

    begin: int
    end: int
    payload: bytes
    flaw: str = ""
    too_large: bool = False


def decode_record(payload: bytes) -> tuple[int, int, bytes, bytes]:
    """Returns (timestamp in ns, attempts, id, body); raises StorageError if the payload is shorter than 26 bytes."""
    if len(payload) < MIN_RECORD_SIZE:
        raise StorageError(f"invalid message buffer size ({len(payload)})")
    timestamp, attempts, id = _HEAD.unpack_from(payload)
    return timestamp, attempts, id, payload[MIN_RECORD_SIZE:]


def frame_records(payloads: Sequence[bytes]) -> bytes:
    """Returns the bytes of these payloads in a data file."""
    return b"".join([part for payload in payloads for part in (LENGTH.pack(len(payload)), payload)])


class Meta(NamedTuple):
    """The content of the meta file. Positions are (file number, bytes), of the next record to read and to write."""

    depth: int = 0
    read_file: int = 0
    read_pos: int = 0
    write_file: int = 0
    write_pos: int = 0

    @classmethod
    def parse(cls, text: bytes) -> Self:
        """Parses a meta file; raises StorageError, with Go's text, if it is invalid."""
        match = re.match(_META, text)
        if match is None:
            raise StorageError("EOF" if re.fullmatch(_META_BEGINNING, text) else "expected integer")
        return cls(*map(int, match.groups()))

    @property
    def read_position(self) -> tuple[int, int]:
        return self.read_file, self.read_pos

    @property
    def write_position(self) -> tuple[int, int]:
        return self.write_file, self.write_pos

    def format(self) -> bytes:
        return b"%d\n%d,%d\n%d,%d\n" % self


def message_key(payload: bytes) -> bytes:
    """Returns attempts and id of a message, by which due times are kept, from its payload or the beginning of it."""
    return payload[8:MIN_RECORD_SIZE]


def read_due_times_entries(file: BinaryIO, position: int, end: int) -> Iterator[tuple[bytes, int, int, int]]:
    """Yields (key, due time in ns, position and size of the payload) of the entries between two positions of a file of
    due times; raises StorageError if the last is cut off."""
    while position < end:
        file.seek(position)
        head = file.read(DUE_TIMES_ENTRY.size)
        key, due, size = DUE_TIMES_ENTRY.unpack(head) if len(head) == DUE_TIMES_ENTRY.size else (b"", 0, -1)
        position += DUE_TIMES_ENTRY.size
        if size < 0 or position + size > end:
            raise StorageError("ends in the middle of an entry")
        yield key, due, position, size
        position += size


def segment_name(topic: str, number: int) -> str:
    return f"{topic}.journal.{number:06d}.dat"


def parse_segment_name(name: str) -> tuple[str, int] | None:
    """Returns (topic, number); None if `name` is not that of a segment."""
    match = re.fullmatch(_SEGMENT, name)
    if match is None or name != segment_name(match[1], int(match[2])):
        return None
    return (match[1], int(match[2])) if is_valid_name(match[1]) and not is_ephemeral(match[1]) else None


def topic_of(name: str) -> str:
    """Returns the topic of a segment's file name, "" if `name` is another."""
    return (parse_segment_name(name) or ("", 0))[0]


def meta_file_name(queue: str) -> str:
    return f"{queue}.diskqueue.meta.dat"


def due_times_file_name(queue: str) -> str:
    return f"{queue}.diskqueue.due_times.dat"


def data_file_name(queue: str, number: int) -> str:
    return f"{queue}.diskqueue.{number:06d}.dat"


class QueueFile(NamedTuple):
    """The name of a disk queue's file. A data file has a `number`, other files have a `kind`, `meta` or
    `due_times`; neither if its number is not written as nsqd writes it. `is_bad`: the file was set aside."""

    queue: str
    number: int | None
    kind: str
    is_bad: bool


def parse_queue_file(name: str) -> QueueFile | None:
    """Returns None if `name` is not the name of a disk queue's file."""
    match = re.fullmatch(_QUEUE_FILE, name)
    if match is None:
        return None
    queue, digits, kind, bad = match.groups()
    number = int(digits) if digits and f"{int(digits):06d}" == digits else None
    return QueueFile(queue, number, kind or "", bad is not None)


def parse_temporary_name(name: str) -> str:
    """Returns the name of the file that the temporary file `name` was to replace, or had before it was removed; empty
    if `name` is not the name of a temporary file."""
    match = re.fullmatch(_TEMPORARY, name)
    return match[1] if match else ""
