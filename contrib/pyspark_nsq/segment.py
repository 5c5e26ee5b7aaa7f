"""The bytes of an entry of the spool's chains: messages, or a mark that no more may follow.

A header of 96 bytes, the topics, 16 bytes for each message id, and the payload (see columns). The topics are JSON, with
how many of the messages each has, in order: `{"clicks": 3, "views": 2}`. Integers are big-endian:

    8 magic "GNSQSEG2"   1 kind   3 zero   4 part (number of the task)   4 messages   8 start time of the nsqd
    16 lowest id   16 highest id   8 bytes of payload   4 CRC-32 of topics and ids   4 CRC-32 of the payload
    4 bytes of topics   12 zero   4 CRC-32 of the header before it

In the end of a task, the start time is the number of messages that the task has dropped, since they were read before.
The ids stand apart from the messages, since they are looked at long after those are forgotten.
"""

import json
import zlib
from collections.abc import Mapping
from enum import IntEnum
from struct import Struct
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_nsq.errors import SpoolError
from pyspark_nsq.files import place

ID_LENGTH = 16
_MAGIC = b"GNSQSEG2"
_HEADER = Struct(">8sB3xIIq16s16sQIII12x")
_CRC = Struct(">I")
HEADER_SIZE = _HEADER.size + _CRC.size
_NONE: Mapping[str, bytes] = {}


class EntryKind(IntEnum):
    """What an entry of a chain is."""

    LOST = 0  # unreadable, where that is to be survived
    SEGMENT = 1  # messages
    END = 2  # its task is through; nothing of that task may follow


class Entry(NamedTuple):
    """One entry of a chain, without its ids and payload; `messages` is their number, `topics` and `size` are bytes."""

    path: str
    slot: int
    kind: EntryKind
    part: int
    messages: int
    started: int
    low: bytes
    high: bytes
    ids_crc: int
    payload_crc: int
    topics: int
    size: int


class Damaged(SpoolError):
    """A file of the spool is not what was written."""


def split_ids(joined: bytes) -> list[bytes]:
    """The single ids of what `read_ids` gives."""
    return [joined[at : at + ID_LENGTH] for at in range(0, len(joined), ID_LENGTH)]


def fixed_size_ids(joined: bytes) -> pa.FixedSizeBinaryArray:
    """The same as a column."""
    return pa.Array.from_buffers(pa.binary(ID_LENGTH), len(joined) // ID_LENGTH, [None, pa.py_buffer(joined)])


def pack_entry(
    kind: EntryKind,
    part: int = 0,
    started: int = 0,
    ids: Mapping[str, bytes] = _NONE,
    payload: bytes | memoryview = b"",
) -> list[bytes | memoryview]:
    """Returns the pieces of an entry's file; the ids of each topic are one behind the other."""
    low, high, joined = b"", b"", b"".join(ids.values())
    if joined:
        low, high = pc.min_max(fixed_size_ids(joined)).as_py().values()
    topics = json.dumps({topic: len(one) // ID_LENGTH for topic, one in ids.items()}).encode()
    sums = zlib.crc32(topics + joined), zlib.crc32(payload), len(topics)
    header = _HEADER.pack(_MAGIC, kind, part, len(joined) // ID_LENGTH, started, low, high, len(payload), *sums)
    return [header, _CRC.pack(zlib.crc32(header)), topics, joined, payload]


def read_entry(path: str, slot: int) -> Entry:
    """The header of an entry; Damaged if it or the length of the file is wrong."""
    return parse_header(path, slot, *place(path).begin(path, HEADER_SIZE))


def parse_header(path: str, slot: int, header: bytes, size: int) -> Entry:
    """The header of an entry whose file has that many bytes; Damaged as `read_entry`."""
    if len(header) < HEADER_SIZE or not header.startswith(_MAGIC):
        raise Damaged(f"{path} is not a segment of a spool")
    if _CRC.unpack_from(header, _HEADER.size)[0] != zlib.crc32(header[: _HEADER.size]):
        raise Damaged(f"{path} is damaged: checksum of its header")
    _, kind, part, count, started, low, high, length, ids_crc, payload_crc, topics = _HEADER.unpack_from(header)
    if size != (expected := HEADER_SIZE + topics + ID_LENGTH * count + length):
        raise Damaged(f"{path} is damaged: {size} bytes, expected {expected}")
    return Entry(path, slot, EntryKind(kind), part, count, started, low, high, ids_crc, payload_crc, topics, size)


def read_ids(entry: Entry) -> dict[str, bytes]:
    """Returns the ids of a segment by topic, one behind the other; Damaged if they are not what was written."""
    return _by_topic(entry, place(entry.path).read(entry.path, HEADER_SIZE, entry.topics + ID_LENGTH * entry.messages))


def read_segment(entry: Entry) -> tuple[dict[str, bytes], memoryview]:
    """Returns the ids by topic, and the payload; Damaged if they are not what was written."""
    file = memoryview(place(entry.path).read(entry.path))
    end_of_ids = HEADER_SIZE + entry.topics + ID_LENGTH * entry.messages
    if zlib.crc32(file[end_of_ids:]) != entry.payload_crc:
        raise Damaged(f"{entry.path} is damaged: checksum of its messages")
    return _by_topic(entry, bytes(file[HEADER_SIZE:end_of_ids])), file[end_of_ids:]


def _by_topic(entry: Entry, data: bytes) -> dict[str, bytes]:
    if zlib.crc32(data) != entry.ids_crc:
        raise Damaged(f"{entry.path} is damaged: checksum of its ids")
    at = entry.topics
    return {topic: data[at : (at := at + ID_LENGTH * count)] for topic, count in json.loads(data[:at]).items()}
