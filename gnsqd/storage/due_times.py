"""When the deferred messages in a disk queue are due: a side file, since the queue's records have no room for it.

A due time is a hint, kept by message id and attempts. It counts only for a record of the queue that has both, so a
stale one does no harm: the real nsqd, which knows nothing of this file, delivers such a message at once and counts an
attempt. The file is written at a clean exit: one line, then an entry for every message that is not due,

    uint16 attempts | 16 bytes id | int64 due time, wall clock in ns | int32 size | size bytes of payload

in big-endian order, without a payload, for that is in the queue. While a daemon runs it appends to the file: an entry
with its payload for a message that was on disk and is held back in memory now, before the queue forgets it, and one
with a due time of 0 when the message is on its way again. So a kill does not take what was safe on disk before.
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

_MIN_HINTS = 1000  # before those whose time has come are looked for
_MIN_WASTE = 1 << 20  # bytes of the file, before it is written anew


class DueTimes:
    """The due times of one queue, in memory: some 140 bytes a message. It is false when there is no hint."""

    def __init__(self, queue: str, path: str, log: Logger) -> None:
        self._queue = queue
        self._path = path
        self._log = log
        self._hints: dict[bytes, int] = {}
        self._max_hints = _MIN_HINTS
        self._held: dict[bytes, int] = {}  # size of the entry of each message whose payload is in the file
        self._unwritten: dict[bytes, bytes] = {}  # entries of those that are to follow
        self._size = 0  # of the file, 0 if there is none
        self.unsynced = False

    def __len__(self) -> int:
        return len(self._hints)

    @property
    def in_use(self) -> bool:
        """There is something to save, or a file."""
        return bool(self._hints or self._size)

    # Messages in the queue

    def add(self, id: bytes, attempts: int, due: int) -> None:
        """The message is in the queue now, and due at `due`, wall clock in ns."""
        key = _ATTEMPTS.pack(attempts) + id
        self._hints[key] = due
        self._held.pop(key, None)
        self._unwritten.pop(key, None)
        if len(self._hints) > self._max_hints:
            now = time_ns()
            self._hints = {key: due for key, due in self._hints.items() if due > now}
            self._max_hints = max(_MIN_HINTS, 2 * len(self._hints))

    def pop(self, id: bytes, attempts: int) -> int:
        """When the message is due that was just read from the queue; 0 if it is not held back."""
        return self._hints.pop(_ATTEMPTS.pack(attempts) + id, 0)

    def clear_hints(self) -> None:
        """The queue is empty."""
        self._hints.clear()

    # Messages that were in a queue on disk and are held back in memory

    def hold(self, messages: Iterable[tuple[bytes, int]]) -> None:
        """Messages, as (payload, due time), are held back from now on; `write_held` makes that survive a kill."""
        for payload, due in messages:
            key = payload_key(payload)
            self._unwritten[key] = _ENTRY.pack(key, due, len(payload)) + payload

    def write_held(self) -> None:
        """Append what is held back to the file; to be called before the queue forgets these messages."""
        if self._unwritten:
            entries, self._unwritten = self._unwritten, {}
            if self._append(b"".join(entries.values())):
                self._held.update((key, len(entry)) for key, entry in entries.items())

    def release(self, messages: Iterable[tuple[bytes, int]]) -> None:
        """Messages, as (id, attempts), are no longer held back, if they were."""
        if not self._held and not self._unwritten:
            return
        entries = []
        for id, attempts in messages:
            key = _ATTEMPTS.pack(attempts) + id
            self._unwritten.pop(key, None)
            if self._held.pop(key, None):
                entries.append(_ENTRY.pack(key, 0, 0))
        if entries:
            self._append(b"".join(entries))
            needed = sum(self._held.values()) if self._size > _MIN_WASTE else self._size
            if self._size - needed > max(needed, _MIN_WASTE):
                self.save(sync=False)

    def returned(self, payloads: Iterable[bytes]) -> None:
        """Messages that a killed daemon held back are in the queue again."""
        for payload in payloads:
            self._held.pop(payload_key(payload), None)

    def _append(self, entries: bytes) -> bool:
        data = entries if self._size else _FIRST_LINE + entries
        try:
            append_file(self._path, data)
        except StorageError as error:
            self._log.error("DISKQUEUE(%s) failed to write due times - %s", self._queue, error)
            return False
        self._size += len(data)
        self.unsynced = True
        return True

    # The file

    def load(self) -> dict[bytes, bytes]:
        """Read the file, if there is one. What a killed daemon held back comes back, by key: it may be in no queue.

        A damaged file is set aside, and counts as far as it can be read.
        """
        held_back: dict[bytes, bytes] = {}
        now = time_ns()
        try:
            for key, due, payload in self._read():
                self._hints.pop(key, None)
                held_back.pop(key, None)
                self._held.pop(key, None)
                if due > now:
                    self._hints[key] = due
                if payload:
                    held_back[key] = payload
                    self._held[key] = _ENTRY.size + len(payload)
        except StorageError as error:
            self._log.error("DISKQUEUE(%s) deferred messages may come early or be missing - %s", self._queue, error)
            self._log.warn("DISKQUEUE(%s) saving bad file as %s.bad", self._queue, self._path)
            with suppress(OSError):
                os.rename(self._path, f"{self._path}.bad")
            self._held.clear()
            self._size = 0
        return held_back

    def _read(self) -> Iterator[tuple[bytes, int, bytes]]:
        """(key, due time, payload) of all entries, as far as they are whole; StorageError."""
        try:
            with open(self._path, "rb") as file:
                data = file.read()
        except FileNotFoundError:
            return
        except OSError as error:
            raise StorageError(path_error("open", self._path, error)) from error
        self._size = len(data)
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

    def save(self, sync: bool = True) -> bool:
        """Replace the file by one with what is still to come, durably if `sync`, or remove it; whether that worked."""
        now = time_ns()
        entries = {key: _ENTRY.pack(key, due, 0) for key, due in self._hints.items() if due > now}
        temporary = f"{self._path}.{random.getrandbits(63)}.tmp"
        try:
            if self._held:
                for key, due, payload in self._read():
                    if payload and key in self._held:
                        entries[key] = _ENTRY.pack(key, due, len(payload)) + payload
            if not entries:
                self._unlink()
                return True
            data = b"".join([_FIRST_LINE, *entries.values()])
            write_file(temporary, data, sync)
            rename_file(temporary, self._path)
            self._size = len(data)
        except StorageError as error:
            self._log.error("DISKQUEUE(%s) failed to write due times - %s", self._queue, error)
            return False
        return True

    def remove(self) -> None:
        """Forget everything, the file included."""
        self._hints.clear()
        self._held.clear()
        self._unwritten.clear()
        self._unlink()

    def _unlink(self) -> None:
        if self._size:
            with suppress(OSError):
                os.unlink(self._path)
            self._size = 0


def payload_key(payload: bytes) -> bytes:
    """Attempts and id of a message, as they stand in the payload."""
    return payload[8:26]
