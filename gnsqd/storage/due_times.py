"""When the deferred messages in a disk queue are due: a side file, since the queue's records have no room for it.

A due time is a hint, kept by message id and attempts. It counts only for a record of the queue that has both, so a
stale one does no harm: the real nsqd, which knows nothing of this file, delivers such a message at once and counts an
attempt. The file is written at a clean exit and holds, behind its first line, for every message:

    uint16 attempts | 16 bytes id | int64 due time, wall clock in ns

in big-endian order. It is replaced as a whole, or removed if there is nothing to hold back.
"""

import os
import random
from contextlib import suppress
from struct import Struct
from time import time_ns

from gnsqd.errors import StorageError
from gnsqd.storage.files import path_error, rename_file, write_file

_FIRST_LINE = b"gnsqd due times 1\n"
_ENTRY = Struct(">18sq")
_ATTEMPTS = Struct(">H")


class DueTimes:
    """The due times of one queue, in memory: some 200 bytes a message. `path` is the file. It is false when empty."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._due: dict[bytes, int] = {}
        self._filed = False  # there may be a file

    def __len__(self) -> int:
        return len(self._due)

    def add(self, id: bytes, attempts: int, due: int) -> None:
        """The message is in the queue now, and due at `due`, wall clock in ns."""
        self._due[_ATTEMPTS.pack(attempts) + id] = due

    def pop(self, id: bytes, attempts: int) -> int:
        """When the message is due that was just read from the queue; 0 if it is not held back."""
        return self._due.pop(_ATTEMPTS.pack(attempts) + id, 0)

    def load(self) -> None:
        """Read the file, if there is one, and leave out what is due; StorageError."""
        try:
            with open(self._path, "rb") as file:
                data = file.read()
        except FileNotFoundError:
            return
        except OSError as error:
            raise StorageError(path_error("open", self._path, error)) from error
        self._filed = True
        entries = data[len(_FIRST_LINE) :]
        if not data.startswith(_FIRST_LINE) or len(entries) % _ENTRY.size:
            raise StorageError(f"{self._path} is not a file of due times")
        now = time_ns()
        self._due = {key: due for key, due in _ENTRY.iter_unpack(entries) if due > now}

    def save(self) -> None:
        """Write the file, durably, with what is still to come; StorageError."""
        now = time_ns()
        entries = [_ENTRY.pack(key, due) for key, due in self._due.items() if due > now]
        temporary = f"{self._path}.{random.getrandbits(63)}.tmp"
        write_file(temporary, b"".join([_FIRST_LINE, *entries]), sync=True)
        rename_file(temporary, self._path)

    def remove(self) -> None:
        """Forget everything, the file included."""
        self._due.clear()
        if self._filed:
            with suppress(OSError):
                os.unlink(self._path)
            self._filed = False
