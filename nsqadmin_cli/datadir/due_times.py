"""Reads gnsqd's side file with the due times of deferred messages, and with messages it had deferred in memory."""

from struct import Struct
from typing import NamedTuple

from gnsqd.storage.disk.record import MIN_RECORD_SIZE
from nsqadmin_cli.datadir.directory import Queue, read_file, reason_of
from nsqadmin_cli.errors import AdminError

_FIRST_LINE = b"gnsqd due times 1\n"
_ENTRY = Struct(">18sqi")  # attempts and id, due time in ns, size of the payload that follows
_LARGEST = 1 << 30  # bytes


class DueTimes(NamedTuple):
    """The file of a queue, by attempts and id as in a payload.

    `due` has times in ns, of messages in the queue and of deferred ones; `held` the payloads of the latter, which the
    queue may also have. `whole` is the part of the file that could be read.
    """

    due: dict[bytes, int]
    held: dict[bytes, bytes]
    whole: bytes = b""
    size: int = 0


def key_of(payload: bytes) -> bytes:
    """Attempts and id of a message."""
    return payload[8:MIN_RECORD_SIZE]


def read_due_times(queue: Queue) -> DueTimes:
    """The due times of a queue, as far as the file is whole; empty without a file. AdminError if it cannot be read."""
    found = DueTimes({}, {})
    try:
        data = read_file(queue.due_times_path, _LARGEST)
    except FileNotFoundError:
        return found
    except OSError as error:
        raise AdminError(f"cannot read {queue.due_times_path}: {reason_of(error)}") from error
    position = len(_FIRST_LINE) if data.startswith(_FIRST_LINE) else 0
    while position and position + _ENTRY.size <= len(data):
        key, time, size = _ENTRY.unpack_from(data, position)
        begin = position + _ENTRY.size
        if size < 0 or begin + size > len(data):
            break
        found.due.pop(key, None)
        found.held.pop(key, None)
        if time:
            found.due[key] = time
        if size >= MIN_RECORD_SIZE:
            found.held[key] = data[begin : begin + size]
        position = begin + size
    return found._replace(whole=data[:position], size=len(data))
