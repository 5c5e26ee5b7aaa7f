"""When the deferred messages in a disk queue are due: a side file, since the queue's records have no room for it.

A due time is a hint, kept by message id and attempts. It counts only for a record of the queue that has both, so a
stale one does no harm: the real nsqd, which knows nothing of this file, delivers such a message at once and counts an
attempt. The file is written at a clean exit: one line, then an entry for every message that is not due,

    uint16 attempts | 16 bytes id | int64 due time, wall clock in ns | int32 size | size bytes of payload

in big-endian order, without a payload, for that is in the queue. While a daemon runs, entries are appended: with the
payload when the message was read and is held back in memory now, and with a due time of 0 when it no longer is. So a
kill does not take what was safe on disk before.
"""

import os
import random
from collections.abc import Iterable, Iterator
from contextlib import suppress
from struct import Struct
from time import time_ns

from gnsqd.errors import StorageError
from gnsqd.log import Logger
from gnsqd.storage.files import append_file, path_error, rename_file, write_file

_FIRST_LINE = b"gnsqd due times 1\n"
_ENTRY = Struct(">18sqi")
_ATTEMPTS = Struct(">H")


class DueTimes:
    """The due times of one queue, in memory: some 200 bytes a message. It is false when there are none."""

    def __init__(self, queue: str, path: str, log: Logger) -> None:
        self._queue = queue
        self._path = path
        self._log = log
        self._due: dict[bytes, int] = {}
        self._held: set[bytes] = set()  # keys of messages whose payloads are in the file
        self._filed = False  # there may be a file

    def __len__(self) -> int:
        return len(self._due)

    def add(self, id: bytes, attempts: int, due: int) -> None:
        """The message is in the queue now, and due at `due`, wall clock in ns."""
        self._due[_ATTEMPTS.pack(attempts) + id] = due

    def pop(self, id: bytes, attempts: int) -> int:
        """When the message is due that was just read from the queue; 0 if it is not held back."""
        return self._due.pop(_ATTEMPTS.pack(attempts) + id, 0)

    def hold(self, messages: Iterable[tuple[bytes, int]]) -> None:
        """Messages, as (payload, due time), that are read from the queue are held back in memory from now on."""
        entries = []
        for payload, due in messages:
            key = payload_key(payload)
            self._due[key] = due
            self._held.add(key)
            entries.append(_ENTRY.pack(key, due, len(payload)) + payload)
        self._append(entries)

    def release(self, messages: Iterable[tuple[bytes, int]]) -> None:
        """Messages, as (id, attempts), are no longer held back."""
        entries = []
        for id, attempts in messages:
            key = _ATTEMPTS.pack(attempts) + id
            if key in self._held:
                self._held.remove(key)
                self._due.pop(key, None)
                entries.append(_ENTRY.pack(key, 0, 0))
        if entries:
            self._append(entries)

    def _append(self, entries: list[bytes]) -> None:
        try:
            append_file(self._path, b"".join(entries if self._filed else [_FIRST_LINE, *entries]))
            self._filed = True
        except StorageError as error:
            self._log.error("DISKQUEUE(%s) failed to write due times - %s", self._queue, error)

    def load(self) -> dict[bytes, bytes]:
        """Read the file, if there is one. What a killed daemon held back comes back, by key: it is in no queue."""
        held: dict[bytes, bytes] = {}
        now = time_ns()
        try:
            for key, due, payload in self._read():
                self._due.pop(key, None)
                held.pop(key, None)
                if due > now:
                    self._due[key] = due
                if payload:
                    held[key] = payload
        except StorageError as error:
            self._log.warn("DISKQUEUE(%s) some deferred messages will not be held back - %s", self._queue, error)
            if not held:
                self.save()  # entries behind a broken one would not be found
        return held

    def _read(self) -> Iterator[tuple[bytes, int, bytes]]:
        """(key, due time, payload) of all entries, as far as they are whole; StorageError."""
        try:
            with open(self._path, "rb") as file:
                data = file.read()
        except FileNotFoundError:
            return
        except OSError as error:
            raise StorageError(path_error("open", self._path, error)) from error
        self._filed = True
        if not data.startswith(_FIRST_LINE):
            raise StorageError(f"{self._path} is not a file of due times")
        position = len(_FIRST_LINE)
        while position < len(data):
            begin = position + _ENTRY.size
            key, due, size = _ENTRY.unpack_from(data, position) if begin <= len(data) else (b"", 0, -1)
            position = begin + size
            if size < 0 or position > len(data):
                raise StorageError(f"{self._path} ends in the middle of an entry")
            yield key, due, data[begin:position]

    def save(self) -> None:
        """Replace the file, durably: all messages that are not due are in the queue."""
        now = time_ns()
        entries = [_ENTRY.pack(key, due, 0) for key, due in self._due.items() if due > now]
        temporary = f"{self._path}.{random.getrandbits(63)}.tmp"
        try:
            write_file(temporary, b"".join([_FIRST_LINE, *entries]), sync=True)
            rename_file(temporary, self._path)
            self._filed = True
        except StorageError as error:
            self._log.error("DISKQUEUE(%s) failed to write due times - %s", self._queue, error)

    def remove(self) -> None:
        """Forget everything, the file included."""
        self._due.clear()
        self._held.clear()
        if self._filed:
            with suppress(OSError):
                os.unlink(self._path)
            self._filed = False


def payload_key(payload: bytes) -> bytes:
    """Attempts and id of a message, as they stand in the payload."""
    return payload[8:26]
