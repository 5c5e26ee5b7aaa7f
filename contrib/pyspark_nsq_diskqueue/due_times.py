"""The side file in which gnsqd notes when deferred messages are due (data-directory.md, "Delays").

A due time counts for the record of the queue with the same attempts and id. An entry with a payload is a message that
was on disk and is held back in memory now; the queue may have forgotten it, or not yet. So that each comes once, the
task of the side file gives all that are held back, and those of the data files leave them out.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from struct import Struct

from gnsqd.storage.disk.record import MIN_RECORD_SIZE
from pyspark_nsq_diskqueue.opening import open_file

_FIRST_LINE = b"gnsqd due times 1\n"
_ENTRY = Struct(">18sqi")  # attempts and id, due time in ns, size of the payload that follows
_BUFFER = 1 << 20  # bytes


@dataclass
class DueTimes:
    """By attempts and id, as they stand in a payload: due times in ns, and where the payloads of messages that are
    held back stand in the file, as (position, size). `damage` is why the file was read no further than to `end`.
    """

    due: dict[bytes, int] = field(default_factory=dict)
    held: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    damage: str = ""
    end: int = 0


def key_of(payload: bytes) -> bytes:
    """Attempts and id of a message."""
    return payload[8:MIN_RECORD_SIZE]


def read_due_times(path: str) -> DueTimes:
    """As far as the file is whole, without payloads; nothing where there is none any more. OSError."""
    found = DueTimes()
    try:
        descriptor = open_file(path)
    except FileNotFoundError:
        return found
    with os.fdopen(descriptor, "rb", _BUFFER) as file:
        size = os.fstat(descriptor).st_size
        if file.read(len(_FIRST_LINE)) != _FIRST_LINE:
            found.damage = "not a file of due times"
            return found
        found.end = len(_FIRST_LINE)
        while found.end < size:
            head = file.read(_ENTRY.size)
            key, due, length = _ENTRY.unpack(head) if len(head) == _ENTRY.size else (b"", 0, -1)
            begin = found.end + _ENTRY.size
            if length < 0 or begin + length > size:
                found.damage = "an end in the middle of an entry"
                return found
            found.due.pop(key, None)
            found.held.pop(key, None)
            if due:
                found.due[key] = due
            if length >= MIN_RECORD_SIZE:
                found.held[key] = begin, length
            found.end = begin + length
            file.seek(found.end)
    return found


def read_held(path: str, due_times: DueTimes) -> Iterator[tuple[int, bytes]]:
    """Position and payload of the messages that are held back, in the order of the file; OSError."""
    if not due_times.held:
        return
    descriptor = open_file(path)
    try:
        for position, size in sorted(due_times.held.values()):
            yield position, os.pread(descriptor, size, position)
    finally:
        os.close(descriptor)
