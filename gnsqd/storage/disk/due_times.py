"""The due times of the deferred messages in a disk queue: a side file, since the queue's records have no room for them.

A due time is a hint, kept by message id and attempts. It counts only for a record of the queue that has both, so a
stale one does no harm: the real nsqd, which knows nothing of this file, delivers such a message at once and counts an
attempt. The file is written at a clean exit: one line, then an entry for every message that is not due,

    uint16 attempts | 16 bytes id | int64 due time, wall clock in ns | int32 size | size bytes of payload

in big-endian order, without a payload, which is in the queue. While a daemon runs it appends to the file: an entry with
its payload for a message that was on disk and is now deferred in memory, before the queue forgets it, and one with a
due time of 0 when the message is in a queue again. So a kill does not lose messages that were on disk before. When most
of the file is not needed any more, a greenlet copies the rest to a new one, in small steps.
"""

import os
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, suppress
from struct import Struct
from time import time_ns
from typing import BinaryIO

from gevent import Greenlet, spawn

from gnsqd.hub.cooperative import yield_turn
from gnsqd.log import Logger
from gnsqd.shared.disk_format import DUE_TIMES_ENTRY, DUE_TIMES_FIRST_LINE, message_key
from gnsqd.shared.errors import StorageError
from gnsqd.storage.files import append_file, failing_as_go, rename_file, sync_path, temporary_path
from gnsqd.storage.syncer import Syncer

_ATTEMPTS = Struct(">H")

_MIN_HINTS = 1000  # before those whose time has come are looked for
_MIN_WASTE = 1 << 20  # bytes of the file, before it is compacted
_STEP = 64 * 1024  # bytes that are copied at once, except for a single larger message


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
        self._unwritten: dict[bytes, bytes] = {}  # entries of messages that are to follow
        self.size = 0  # of the file, 0 if there is none
        self._waste = 0  # bytes of it that are of no use, without what a compaction under way may drop
        self._enough = _MIN_WASTE  # to compact it
        self._compaction: Greenlet[[], None] | None = None
        self._endings = 0  # of the file, or of all work on it: a compaction that began before one has to end
        self.unsynced = False

    def __len__(self) -> int:
        return len(self._hints)

    # Messages in the queue

    def add(self, id: bytes, attempts: int, due: int) -> None:
        """Adds a message that is in the queue now, and due at `due`, wall clock in ns."""
        key = _ATTEMPTS.pack(attempts) + id
        self._hints[key] = due
        self._drop(key)
        self._unwritten.pop(key, None)
        if len(self._hints) > self._max_hints:
            now = time_ns()
            self._hints = {key: due for key, due in self._hints.items() if due > now}
            self._max_hints = max(_MIN_HINTS, 2 * len(self._hints))

    def pop(self, id: bytes, attempts: int) -> int:
        """Returns the due time of a message that was just read from the queue; 0 if it is not held back."""
        return self._hints.pop(_ATTEMPTS.pack(attempts) + id, 0)

    # Messages that were in a queue on disk and are held back in memory

    def hold(self, messages: Iterable[tuple[bytes, int]]) -> None:
        """Adds messages, as (payload, due time), that are held back; `write_held` makes that survive a kill."""
        for payload, due in messages:
            key = message_key(payload)
            self._unwritten[key] = DUE_TIMES_ENTRY.pack(key, due, len(payload)) + payload

    def write_held(self) -> None:
        """Appends held messages to the file; must be called before the queue forgets them."""
        if self._unwritten:
            entries, self._unwritten = self._unwritten, {}
            if self._append(b"".join(entries.values())):
                self._held.update((key, len(entry)) for key, entry in entries.items())

    def release(self, messages: Iterable[tuple[bytes, int]]) -> None:
        """Removes messages, as (id, attempts), that are no longer held back, if they were."""
        if not self._held and not self._unwritten:
            return
        entries = []
        for id, attempts in messages:
            key = _ATTEMPTS.pack(attempts) + id
            self._unwritten.pop(key, None)
            if self._drop(key):
                entries.append(DUE_TIMES_ENTRY.pack(key, 0, 0))
        if entries:
            self._append(b"".join(entries))
            self._waste += DUE_TIMES_ENTRY.size * len(entries)
            if self._waste > max(self.size - self._waste, self._enough) and self._compaction is None:
                self._compaction = spawn(self._compact)
                self._compaction.name = f"compact:{self._queue}.due_times"

    def returned(self, payloads: Iterable[bytes]) -> None:
        """Removes messages that a killed daemon held back and that are in the queue again."""
        for payload in payloads:
            self._drop(message_key(payload))

    def _drop(self, key: bytes) -> bool:
        """Marks the entry with a message's payload as waste; returns True if there was one."""
        size = self._held.pop(key, 0)
        self._waste += size
        return size > 0

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

    # The file

    def load(self) -> dict[bytes, bytes]:
        """Reads the file, if there is one; returns by key the payloads that a killed daemon held back: they may be in
        no queue. A damaged file is set aside, and counts as far as it can be read."""
        held_back: dict[bytes, bytes] = {}
        now = time_ns()
        try:
            self.size = self._find()
            for key, due, payload in self._read(len(DUE_TIMES_FIRST_LINE)):
                self._hints.pop(key, None)
                held_back.pop(key, None)
                self._held.pop(key, None)
                if due > now:
                    self._hints[key] = due
                if payload:
                    held_back[key] = payload
                    self._held[key] = DUE_TIMES_ENTRY.size + len(payload)
            self._waste = self.size - sum(self._held.values()) - DUE_TIMES_ENTRY.size * len(self._hints)
        except StorageError as error:
            self._log.error("DISKQUEUE(%s) deferred messages may come early or be missing - %s", self._queue, error)
            self._log.warn("DISKQUEUE(%s) saving bad file as %s.bad", self._queue, self._path)
            with suppress(OSError):
                os.rename(self._path, f"{self._path}.bad")
            self._held.clear()
            self.size = 0
        return held_back

    def _find(self) -> int:
        """Returns the size of the file, 0 if there is none; raises StorageError."""
        with failing_as_go("open", self._path), suppress(FileNotFoundError), open(self._path, "rb") as file:
            if file.read(len(DUE_TIMES_FIRST_LINE)) != DUE_TIMES_FIRST_LINE:
                raise StorageError(f"{self._path} is not a file of due times")
            return os.fstat(file.fileno()).st_size
        return 0

    def _read(self, position: int) -> Iterator[tuple[bytes, int, bytes]]:
        """Yields (key, due time, payload) of all entries from there on, also of later ones; raises StorageError."""
        if position >= self.size:
            return
        with failing_as_go("read", self._path), suppress(FileNotFoundError), open(self._path, "rb") as file:
            file.seek(position)
            while position < self.size:
                head = file.read(DUE_TIMES_ENTRY.size)
                key, due, size = DUE_TIMES_ENTRY.unpack(head) if len(head) == DUE_TIMES_ENTRY.size else (b"", 0, -1)
                position += DUE_TIMES_ENTRY.size + size
                if size < 0 or position > self.size:
                    raise StorageError(f"{self._path} ends in the middle of an entry")
                yield key, due, file.read(size)

    def save(self) -> bool:
        """Replaces the file, durably, by one with the entries still needed, or removes it; returns False on failure."""
        return all(self._replace(sync_path))

    def close(self, is_empty: bool) -> bool:
        """Ends a running compaction, and calls `save`, without hints if the queue is empty. Yields."""
        if self._compaction is not None:
            self._endings += 1
            self._compaction.join()
        if is_empty:
            self._hints.clear()
        return not (self._hints or self.size) or self._syncer.run(self.save)

    def _compact(self) -> None:
        endings = self._endings
        try:
            sync = lambda path: self._syncer.run(sync_path, path)  # noqa: E731
            with self._syncer.keeping(self._path), closing(self._replace(sync)) as steps:
                for _ in steps:
                    yield_turn()
                    if self._endings != endings:
                        break
        finally:
            self._compaction = None

    def _replace(self, sync: Callable[[str], None]) -> Generator[bool, None, None]:
        """Saves step by step, and yields True after each, False if it failed. Closed early, it changes nothing."""
        waste, self._waste, self._enough = self._waste, 0, _MIN_WASTE
        old_size, now = self.size, time_ns()
        hints = [hint for hint in self._hints.items() if hint[1] > now]
        if not hints and not self._held:
            self._unlink()
            return
        temporary = temporary_path(self._path)
        try:
            with failing_as_go("open", temporary):
                file = os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
            with file, failing_as_go("write", temporary):
                file.write(DUE_TIMES_FIRST_LINE)
                for first in range(0, len(hints), _STEP // DUE_TIMES_ENTRY.size):
                    some = hints[first : first + _STEP // DUE_TIMES_ENTRY.size]
                    file.write(b"".join([DUE_TIMES_ENTRY.pack(key, due, 0) for key, due in some]))
                    yield True
                position = yield from self._copy(file, len(DUE_TIMES_FIRST_LINE), old_size)
                sync(temporary)
                yield True
                yield from self._copy(file, position, old_size)
                size = file.tell()
            rename_file(temporary, self._path)
        except StorageError as error:
            self._log.error("DISKQUEUE(%s) failed to write due times - %s", self._queue, error)
            self._waste += waste
            self._enough = self._waste + _MIN_WASTE
            yield False
        else:
            self.size = size
            self.unsynced = True  # what was appended during `sync`
        finally:
            with suppress(OSError):
                os.unlink(temporary)

    def _copy(self, target: BinaryIO, position: int, old_size: int) -> Generator[bool, None, int]:
        """Appends to `target` the needed entries from a position on; returns where they ended. Entries without a
        payload are hints, which `target` has, or, behind `old_size`, undo one that it may have."""
        pause_at = position + _STEP
        for key, due, payload in self._read(position):
            position += DUE_TIMES_ENTRY.size + len(payload)
            if key in self._held if payload else position > old_size:
                target.write(DUE_TIMES_ENTRY.pack(key, due, len(payload)) + payload)
            if position >= pause_at:
                yield True
                pause_at = position + _STEP
        target.flush()
        return position

    def remove(self) -> None:
        """Removes all entries, and the file."""
        self._hints.clear()
        self._held.clear()
        self._unwritten.clear()
        self._endings += 1
        with self._syncer.keeping(self._path):
            self._unlink()

    def _unlink(self) -> None:
        if self.size:
            with suppress(OSError):
                os.unlink(self._path)
            self.size = self._waste = 0
