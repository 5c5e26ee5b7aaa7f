"""The due times of the deferred messages in a disk queue: a side file, since the queue's records have no room for them.

A due time is a hint, kept by message id and attempts. It counts only for a record of the queue that has both, so a
stale one does no harm: the real nsqd, which knows nothing of this file, delivers such a message at once and counts an
attempt. The file is written at a clean exit: one line, then an entry for every message that is not due,

    uint16 attempts | 16 bytes id | int64 due time, wall clock in ns | int32 size | size bytes of payload

in big-endian order, without a payload, for that is in the queue. While a daemon runs it appends to the file: an entry
with its payload for a message that was on disk and is held back in memory now, before the queue forgets it, and one
without a payload when the message is in the queue again or, with a due time of 0, on its way. So a kill does not take
what was safe on disk before. When most of the file is of no use any more, a greenlet copies the rest to a new one.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from struct import Struct
from time import time_ns

from gevent import Greenlet, spawn

from gnsqd.hub.cooperative import Turns
from gnsqd.log import Logger
from gnsqd.shared.disk_format import DUE_TIMES_ENTRY, DUE_TIMES_FIRST_LINE, message_key, read_due_times_entries
from gnsqd.shared.errors import StorageError, failing_as_go
from gnsqd.storage.files import append_file, rename_file, sync_path, temporary_path
from gnsqd.storage.syncer import Syncer

_ATTEMPTS = Struct(">H")

_MIN_HINTS = 1000  # before those whose time has come are looked for
_MIN_WASTE = 1 << 20  # bytes of the file, before it is compacted
_STEP = 64 * 1024  # bytes that are copied at once


class DueTimes:
    """The due times of one queue, in memory: some 140 bytes a message. It is false when there is no hint."""

    def __init__(self, queue: str, path: str, log: Logger, syncer: Syncer) -> None:
        self._queue = queue
        self._path = path
        self._log = log
        self._syncer = syncer
        self._hints: dict[bytes, int] = {}
        self._max_hints = _MIN_HINTS
        self._held: dict[bytes, int] = {}  # size of the entry of each message whose payload is in the file
        self._held_size = 0  # bytes of these entries
        self.size = 0  # of the file, 0 if there is none
        self.unsynced = False
        self._min_waste = _MIN_WASTE
        self._removals = 0
        self._compaction: Greenlet[[], None] | None = None

    def __len__(self) -> int:
        return len(self._hints)

    # Messages in the queue

    def add(self, id: bytes, attempts: int, due: int) -> None:
        """Adds a message that is in the queue now, and due at `due`, wall clock in ns."""
        key = _ATTEMPTS.pack(attempts) + id
        self._hints[key] = due
        self._drop(key)
        if len(self._hints) > self._max_hints:
            now = time_ns()
            self._hints = {key: due for key, due in self._hints.items() if due > now}
            self._max_hints = max(_MIN_HINTS, 2 * len(self._hints))

    def pop(self, id: bytes, attempts: int) -> int:
        """Returns the due time of a message that was just read from the queue; 0 if it is not held back."""
        return self._hints.pop(_ATTEMPTS.pack(attempts) + id, 0)

    # Messages that were in a queue on disk and are held back in memory

    def hold(self, messages: Iterable[tuple[bytes, int]]) -> None:
        """Writes messages that are held back, as (payload, due time), to the file, before their queue forgets them."""
        entries = {}
        for payload, due in messages:
            key = message_key(payload)
            entries[key] = DUE_TIMES_ENTRY.pack(key, due, len(payload)) + payload
        if self._append(b"".join(entries.values())):
            for key, entry in entries.items():
                self._drop(key)
                self._held[key] = len(entry)
                self._held_size += len(entry)

    def release(self, messages: Iterable[tuple[bytes, int]]) -> None:
        """Removes messages, as (id, attempts), that are no longer held back, if they were."""
        if self._held:
            self._release(_ATTEMPTS.pack(attempts) + id for id, attempts in messages)

    def returned(self, payloads: Iterable[bytes]) -> None:
        """Removes messages that a killed daemon held back and that are in the queue again."""
        self._release(map(message_key, payloads))

    def _release(self, keys: Iterable[bytes]) -> None:
        entries = [DUE_TIMES_ENTRY.pack(key, self._hints.get(key, 0), 0) for key in keys if self._drop(key)]
        if entries:
            self._append(b"".join(entries))
            if self._is_wasteful:
                self._start_compaction()

    def _drop(self, key: bytes) -> bool:
        """Counts the entry with the payload of that message as of no use; returns True if there was one."""
        size = self._held.pop(key, 0)
        self._held_size -= size
        return size > 0

    @property
    def _waste(self) -> int:
        """Bytes of the file that are of no use."""
        return self.size - self._held_size - DUE_TIMES_ENTRY.size * len(self._hints)

    @property
    def _is_wasteful(self) -> bool:
        waste = self._waste
        return waste > max(self.size - waste, self._min_waste)

    def _append(self, entries: bytes) -> bool:
        data = entries if self.size else DUE_TIMES_FIRST_LINE + entries
        try:
            append_file(self._path, data)
        except StorageError as error:
            self._log.error("DISKQUEUE(%s) failed to write due times - %s", self._queue, error)
            return False
        self.size += len(data)
        self.unsynced = True
        return True

    def load(self) -> dict[bytes, bytes]:
        """Reads the file, if there is one. Returns by key the payloads that a killed daemon held back: they may be in
        no queue. A damaged file is set aside, and counts as far as it can be read."""
        held_back: dict[bytes, bytes] = {}
        now = time_ns()
        try:
            for key, due, payload in self._read():
                self._hints.pop(key, None)
                held_back.pop(key, None)
                if due > now:
                    self._hints[key] = due
                if payload:
                    held_back[key] = payload
            self._held = {key: DUE_TIMES_ENTRY.size + len(payload) for key, payload in held_back.items()}
            self._held_size = sum(self._held.values())
        except StorageError as error:
            self._log.error("DISKQUEUE(%s) deferred messages may come early or be missing - %s", self._queue, error)
            self._log.warn("DISKQUEUE(%s) saving bad file as %s.bad", self._queue, self._path)
            self._log.damages += 1
            with suppress(OSError):
                os.rename(self._path, f"{self._path}.bad")
            self.size = 0
            self._start_compaction()
        return held_back

    def _read(self) -> Iterator[tuple[bytes, int, bytes]]:
        """Yields (key, due time, payload) of all entries that the file has when this begins; raises StorageError."""
        if not os.path.exists(self._path):
            return
        with failing_as_go("open", self._path):
            file = open(self._path, "rb")  # noqa: SIM115
        with file, failing_as_go("read", self._path):
            if file.read(len(DUE_TIMES_FIRST_LINE)) != DUE_TIMES_FIRST_LINE:
                raise StorageError(f"{self._path} is not a file of due times")
            self.size = end = os.fstat(file.fileno()).st_size
            try:
                for key, due, _, size in read_due_times_entries(file, len(DUE_TIMES_FIRST_LINE), end):
                    yield key, due, file.read(size)
            except StorageError as error:
                raise StorageError(f"{self._path} {error}") from None

    def close(self, is_empty: bool) -> bool:
        """Replaces the file by one with what is still to come, durably, or removes it. No hints are kept if the queue
        `is_empty`. Returns False if that fails. Yields."""
        if is_empty:
            self._hints.clear()
        if self._compaction is not None:
            self._compaction.kill()
        return not (self._hints or self.size) or self._rewrite()

    def _start_compaction(self) -> None:
        if self._compaction is None or self._compaction.ready():
            self._compaction = spawn(self._compact)
            self._compaction.name = f"compact:{self._queue}.due_times"

    def _compact(self) -> None:
        """Rewrites the file, and once more if most of it is of no use by then. Yields."""
        while self._rewrite() and self._is_wasteful:
            pass

    def _rewrite(self) -> bool:
        """Works as `close`; also returns False if the file was removed meanwhile. Yields."""
        now = time_ns()
        hints = [(key, due) for key, due in self._hints.items() if due > now]
        if not hints and not self._held:
            self._unlink()
            return True
        removals, end = self._removals, max(self.size, len(DUE_TIMES_FIRST_LINE))
        temporary = temporary_path(self._path)
        try:
            append_file(temporary, DUE_TIMES_FIRST_LINE)
            with failing_as_go("write", temporary), open(temporary, "ab") as file:
                for entry in Turns().over(self._needed_entries(hints)):
                    file.write(entry)
                file.flush()
                self._syncer.run(sync_path, temporary)
                for piece in Turns().over(self._appended_behind(end)):
                    file.write(piece)
                size = file.tell()
            if self._removals != removals:
                return False
            with self._syncer.keeping(self._path):
                rename_file(temporary, self._path)
        except StorageError as error:
            self._log.error("DISKQUEUE(%s) failed to write due times - %s", self._queue, error)
            self._min_waste = self._waste + _MIN_WASTE
            return False
        finally:
            with suppress(OSError):
                os.unlink(temporary)
        self.size = size
        self.unsynced = True  # what was appended during the sync
        self._min_waste = _MIN_WASTE
        return True

    def _needed_entries(self, hints: list[tuple[bytes, int]]) -> Iterator[bytes]:
        """Yields the entries of hints, and those with payloads that are still held back; b"" for others."""
        for first in range(0, len(hints), _STEP // DUE_TIMES_ENTRY.size):
            some = hints[first : first + _STEP // DUE_TIMES_ENTRY.size]
            yield b"".join([DUE_TIMES_ENTRY.pack(key, due, 0) for key, due in some])
        for key, due, payload in self._read() if self._held else ():
            is_needed = payload and key in self._held
            yield DUE_TIMES_ENTRY.pack(key, due, len(payload)) + payload if is_needed else b""

    def _appended_behind(self, position: int) -> Iterator[bytes]:
        """Yields the bytes of the file behind `position`, also those appended meanwhile."""
        if position < self.size:
            with open(self._path, "rb") as file:
                file.seek(position)
                yield from iter(partial(file.read, _STEP), b"")

    def remove(self) -> None:
        """Removes all entries, and the file."""
        self._hints.clear()
        self._held.clear()
        self._held_size = 0
        self._removals += 1
        self._unlink()

    def _unlink(self) -> None:
        if self.size:
            with suppress(OSError):
                self._syncer.remove(self._path)
            self.size = 0
