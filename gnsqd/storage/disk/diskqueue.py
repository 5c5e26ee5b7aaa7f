"""The disk queue: files of at most max-bytes-per-file each, written at one end and read at the other (NSQD-COMPAT 4).

Positions are a file number and bytes into that file. A file is *finished* when writing has moved on to the next one;
its size is then its end. Reading consumes files: a finished file is deleted with its last record. If a record cannot be
read, its file is set aside as `.bad`.

Everything runs on the hub's thread and nothing that moves records yields. In the Syncer's threads the blocks of large
removed files are freed, and fsync happens, in three steps: note the positions, fsync the files written to and a new
meta file (thread), rename that over the old meta file (hub again). Writing goes on meanwhile, and meta only has records
that are safe on disk. One thing cannot wait: a change of file numbers is written to meta at once, without fsync, as is
the first meta file ahead of the first record. Otherwise, after a kill, the real nsqd would begin to write a file that
holds records.

Messages that were read are lost at a kill, unless meta has an older read position. That is why the position in meta,
the *saved* one, moves no more often than in the real nsqd: every sync-every operations, to the byte, with a change of
file numbers, and by time-out. Written records are synced more often.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import accumulate

from gevent.event import AsyncResult

from gnsqd.log import Logger
from gnsqd.options import Options
from gnsqd.shared.disk_format import MAX_RECORD_SIZE, MIN_RECORD_SIZE, Meta, frame_records, message_key
from gnsqd.shared.disk_queue import RecordReader
from gnsqd.shared.errors import NO_SPACE, StorageError, path_error
from gnsqd.storage.disk.due_times import DueTimes
from gnsqd.storage.disk.opening import SHORTAGES, DataFiles, QueueFiles, open_queue
from gnsqd.storage.files import rename_file, replace_file, sync_path, temporary_path, write_file
from gnsqd.storage.syncer import GroupCommit, Syncer, begin_in_greenlet

PUT_BACK_BATCH = 256  # messages
HEAD_SIZE = 8  # bytes, of a timestamp


class DiskQueue:
    """Owns the files `{name}.diskqueue.*` of a data path; raises StorageError if a listing of that is needed and fails.
    Payloads have `min_size` bytes or more. Larger ones than max-msg-size allows are also read (`reader`)."""

    def __init__(
        self,
        name: str,
        options: Options,
        data_files: DataFiles,
        log: Logger,
        syncer: Syncer,
        min_size: int = MIN_RECORD_SIZE,
    ) -> None:
        self.name = name
        self.sync_timeout = options.sync_timeout
        self._files = QueueFiles(name, data_files, min_size, options.max_msg_size + min_size)
        self._max_bytes_per_file = options.max_bytes_per_file
        self._sync_every = options.sync_every
        # A sync runs while the other half of the operations that may be unsynced comes in.
        self._sync_at = max(1, options.sync_every // 2)
        self._save_every = max(1, options.sync_every)
        self._log = log
        self._syncer = syncer
        self._opening = open_queue(self._files, log)
        self._depth, self._read_file, self._read_pos, self._write_file, self._write_pos = self._opening.meta
        self._safe_write_pos = self._write_pos  # the highest write position that meta may have
        self._finished = self._files.sizes_between(self._read_file, self._write_file - 1)  # bytes of finished files
        self._finished_size = sum(self._finished.values())
        self._files.data_files.note_opened(name)
        self._reader: RecordReader | None = None
        self._read_end = 0  # of the file being read, if it is finished
        self._head: dict[tuple[int, int], bytes] = {}  # where `peek_head` was last, and what is there
        self._peeked_ends: list[int] = []  # positions behind the records of the last peek_many
        self._write_descriptor = -1
        self._is_disk_full = False  # by the last write
        self._unsynced_files: set[int] = set()
        self._saved_pos = self._read_pos  # in the file being read
        self._operations = self._synced_operations = 0
        self._saved_operations = 0  # when `_saved_pos` was the read position
        self._unsaved_reads = 0  # records consumed behind it
        self._save_pending = False  # no sync has written it yet
        self._meta_changes = 0  # those the hub made, past a sync that may be under way
        self._syncs = GroupCommit(partial(begin_in_greenlet, f"sync:{name}", self._sync))
        self._closed = False
        self.due_times = DueTimes(name, self._files.due_times_path, log, syncer)
        if self._opening.corrected:
            self._change_meta()
        else:
            with suppress(OSError):  # until one is not there: a killed daemon could not remove what was read or dropped
                for number in range(self._read_file - 1, -1, -1):
                    self._syncer.remove(self._files.path(number))
        self._check_tail()
        if held_back := self.due_times.load():
            self._put_back(held_back)

    @property
    def depth(self) -> int:
        # With a wrong depth in meta the count may reach 0 early, and the rest would never be asked for.
        return self._depth if self._depth > 0 else 1 if self._readable() else 0

    @property
    def size(self) -> int:
        return max(self._finished_size + self._write_pos - self._read_pos, 0) if self._readable() else 0

    @property
    def file_size(self) -> int:
        """The bytes of the files, except for the meta file."""
        return self._finished_size + self._write_pos + self.due_times.size

    def _readable(self) -> bool:
        return self._read_file < self._write_file or self._read_pos < self._write_pos

    def hold(self, messages: Iterable[tuple[bytes, int]]) -> None:
        """Keeps messages, as (payload, due time in ns), that were on disk and are held back from now on."""
        self._ensure_meta()  # a side file by itself is one of a queue that was deleted
        self.due_times.hold(messages)

    def _put_back(self, held_back: dict[bytes, bytes]) -> None:
        """Puts the messages back that a killed daemon held back, except ones that are also in the queue. Messages that
        cannot be written stay in the side file until the next start."""
        for payloads in self.read_all():
            self.due_times.returned(payloads)
            for payload in payloads:
                held_back.pop(message_key(payload), None)
        missing = list(held_back.values())
        if missing:
            self._log.info("DISKQUEUE(%s) putting %d deferred messages back", self.name, len(missing))
        while missing:
            batch = missing[:PUT_BACK_BATCH]
            try:
                self.put_many(batch)
            except StorageError as error:
                self._log.error("DISKQUEUE(%s) failed to put a deferred message back - %s", self.name, error)
                batch = batch[: error.written]
                del missing[error.written]
            self.due_times.returned(batch)
            del missing[: len(batch)]

    def put_many(self, payloads: Sequence[bytes]) -> None:
        if self._closed:
            raise StorageError("exiting")
        min_size, max_size = self._files.min_size, MAX_RECORD_SIZE
        first = 0  # of the records that go to the present write file together
        pos = self._write_pos
        try:
            for i, payload in enumerate(payloads):
                size = len(payload)
                if not min_size <= size <= max_size:
                    self._append(payloads[first:i])
                    first = i
                    raise StorageError(
                        f"invalid message write size ({size}) minMsgSize={min_size} maxMsgSize={max_size}"
                    )
                if pos > 0 and pos + 4 + size > self._max_bytes_per_file:
                    self._append(payloads[first:i])
                    first = i
                    self._roll()
                    pos = 0
                pos += 4 + size
            self._append(payloads[first:])
        except StorageError as error:
            error.written += first
            raise

    def _append(self, payloads: Sequence[bytes]) -> None:
        """Appends payloads to the present write file; raises StorageError, and keeps the ones that did fit."""
        if not payloads:
            return
        written = 0
        failure = None
        self._is_disk_full = False
        try:
            if self._write_descriptor < 0:
                self._ensure_meta()
                path = self._files.path(self._write_file)
                self._write_descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
                self._log.info("DISKQUEUE(%s): writeOne() opened %s", self.name, path)
            records = frame_records(payloads)
            written = os.pwrite(self._write_descriptor, records, self._write_pos)
            while written < len(records):
                written += os.pwrite(self._write_descriptor, records[written:], self._write_pos + written)
            if self._reader is not None and self._read_file == self._write_file:
                self._reader.feed(self._write_pos, records)
        except OSError as error:
            self._is_disk_full = error.errno in NO_SPACE
            if self._give_up_read_file():
                self._append(payloads)
                return
            ends = [end for end in accumulate([4 + len(payload) for payload in payloads]) if end <= written]
            payloads = payloads[: len(ends)]
            written = ends[-1] if ends else 0
            is_open = self._write_descriptor >= 0
            if is_open:
                with suppress(OSError):  # should this fail too, the next write goes over the torn record
                    os.ftruncate(self._write_descriptor, self._write_pos + written)
            text = path_error("write" if is_open else "open", self._files.path(self._write_file), error)
            failure = StorageError(text, written=len(ends))
        if payloads:
            self._write_pos += written
            self._depth += len(payloads)
            self._unsynced_files.add(self._write_file)
            self._note(len(payloads))
        if failure is not None:
            raise failure

    def _give_up_read_file(self) -> bool:
        """Deletes the write file if the disk is full and all of it was read; False if not."""
        if not self._is_disk_full or self._readable() or not self._write_pos:
            return False
        self._roll(at_once=True)
        return True

    def _roll(self, at_once: bool = False) -> None:
        """Finishes the write file and goes on in the next one; `at_once`: if it was read, its blocks are free then."""
        read_all = not self._readable()
        if self._read_file == self._write_file:
            self._read_end = self._write_pos
        self._set_finished(self._write_file, self._write_pos)
        self._start_write_file(self._write_file + 1)
        if read_all:
            self._finish_read_file(at_once)
        else:
            self._change_meta()

    def _start_write_file(self, number: int) -> None:
        self._close_write_file()
        self._write_file = number
        self._write_pos = self._safe_write_pos = 0

    def _set_finished(self, number: int, size: int) -> None:
        """Sets the bytes of a finished file; 0 if it is gone."""
        self._finished_size += size - self._finished.pop(number, 0)
        if size:
            self._finished[number] = size

    def _close_write_file(self) -> None:
        if self._write_descriptor >= 0:
            with suppress(OSError):
                os.close(self._write_descriptor)
            self._write_descriptor = -1

    def peek_many(self, limit: int, max_bytes: int) -> list[bytes]:
        while self._readable() and not self._closed:
            try:
                reader = self._reader or self._open_reader()
                end = self._read_end if self._read_file < self._write_file else self._write_pos
                if self._read_pos != end:
                    payloads, self._peeked_ends = reader.read(self._read_pos, end, limit, max_bytes)
                    return payloads
            except (OSError, StorageError) as error:
                path, text = self._files.path(self._read_file), str(error)
                if isinstance(error, OSError):
                    text = path_error("read" if self._reader else "open", path, error)
                self._log.error("DISKQUEUE(%s) reading at %d of %s - %s", self.name, self._read_pos, path, text)
                if isinstance(error, OSError) and error.errno in SHORTAGES:
                    break
                self._abandon_read_file(missing=isinstance(error, FileNotFoundError))
            else:
                self._finish_read_file()
            self._check_tail()
        return []

    def peek_head(self) -> bytes:
        """Returns the first HEAD_SIZE bytes of the next payload, fewer if they can't be read. This keeps no file open
        and logs nothing, and takes three system calls, or none if that payload is the same as the last time."""
        place = (self._read_file, self._read_pos)
        if place not in self._head:
            with suppress(OSError), open(self._files.path(self._read_file), "rb", buffering=0) as file:
                self._head = {place: os.pread(file.fileno(), HEAD_SIZE, self._read_pos + 4)}
        return self._head.get(place, b"")

    def read_all(self) -> Iterator[list[bytes]]:
        """Yields all payloads in batches, as far as they can be read, and keeps them; raises StorageError."""
        for number in self._files.existing_between(self._read_file, self._write_file):
            yield from self._files.read_all(number, self._read_pos if number == self._read_file else 0)

    def _open_reader(self) -> RecordReader:
        self._reader = reader = self._files.open_reader(self._read_file)
        self._log.info("DISKQUEUE(%s): readOne() opened %s", self.name, self._files.path(self._read_file))
        is_short = self._read_file == self._opening.short_file
        self._read_end = self._opening.promised_end if is_short else reader.file_size()
        return reader

    def _abandon_read_file(self, missing: bool) -> None:
        """Goes on in the next file; the rest of this one stays in `.bad`."""
        self._log.damages += 1
        number = self._read_file
        self._close_reader()
        self._unsynced_files.discard(number)
        if number == self._write_file:
            self._start_write_file(number + 1)
        self._read_pos = 0
        if missing:
            try:
                later = self._files.existing_between(number + 1, self._write_file)
            except StorageError:
                later = [number + 1]
            self._read_file = min(later, default=self._write_file)
        else:
            self._read_file = number + 1
            path = self._files.path(number)
            self._log.warn("DISKQUEUE(%s) jump to next file and saving bad file as %s.bad", self.name, path)
            try:
                os.rename(path, f"{path}.bad")
            except OSError:
                self._log.error("DISKQUEUE(%s) failed to rename bad diskqueue file %s to %s.bad", self.name, path, path)
        for gone in [gone for gone in self._finished if gone < self._read_file]:
            self._set_finished(gone, 0)
        self._change_meta()

    def advance(self, count: int) -> None:
        if count > len(self._peeked_ends):
            raise ValueError(f"cannot consume {count} records of {len(self._peeked_ends)}")
        if not count:
            return
        ends = self._peeked_ends
        self._peeked_ends = ends[count:]
        self._read_pos = ends[count - 1]
        self._depth -= count
        self._unsaved_reads += count
        self._note(count, ends)
        if self._read_file < self._write_file and self._read_pos == self._read_end:
            self._finish_read_file()
        elif self._read_file == self._opening.short_file and not self._peeked_ends:
            self.peek_many(1, 1)  # if that was the last record, depth should not promise one more
        self._check_tail()
        self._give_up_read_file()

    def _finish_read_file(self, at_once: bool = False) -> None:
        """Deletes a finished file that was read, after meta names the next: else a kill would make it look lost."""
        path = self._files.path(self._read_file)
        self._close_reader()
        self._unsynced_files.discard(self._read_file)
        self._set_finished(self._read_file, 0)
        self._read_file += 1
        self._read_pos = 0
        self._change_meta()
        try:
            if at_once:
                os.unlink(path)
            else:
                self._syncer.remove(path)
        except OSError as error:
            text = path_error("remove", path, error)
            self._log.error("DISKQUEUE(%s) failed to Remove(%s) - %s", self.name, path, text)

    def _close_reader(self) -> None:
        self._peeked_ends = []
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _check_tail(self) -> None:
        """Sets the depth to 0 at the tail, where a wrong depth in meta shows."""
        if self._readable() or not self._depth:
            return
        if self._depth < 0:
            text = "DISKQUEUE(%s) negative depth at tail (%d), metadata corruption, resetting 0..."
        else:
            text = "DISKQUEUE(%s) positive depth at tail (%d), data loss, resetting 0..."
        self._log.error(text, self.name, self._depth)
        self._depth = 0
        self._note(1)

    def _note(self, operations: int, ends: Sequence[int] = ()) -> None:
        """Counts operations; if they are reads, `ends` are the positions behind each."""
        self._operations += operations
        self._syncer.note(self)
        unsaved = self._operations - self._saved_operations
        if unsaved >= self._save_every:
            behind = unsaved % self._save_every
            self._save(ends[operations - behind - 1] if ends else self._read_pos, behind, behind if ends else 0)
        if self._save_pending or self._operations - self._synced_operations >= self._sync_at:
            self._syncs.begin()

    def _save(self, read_pos: int, operations: int = 0, reads: int = 0) -> None:
        """Saves in meta a read position that is that many operations ago, `reads` of them reads."""
        self._saved_pos = read_pos
        self._saved_operations = self._operations - operations
        self._unsaved_reads = reads
        self._save_pending = True

    def is_behind(self) -> bool:
        """True if more than sync-every operations are not fsynced: `wait_synced` has to wait."""
        return self._operations - self._synced_operations > self._sync_every

    def wait_synced(self) -> None:
        """Returns when at most sync-every operations are not fsynced, or when a sync fails, which is logged. May
        yield."""
        while self.is_behind() and self._syncs.start().get() is None:
            pass

    def start_sync(self) -> "AsyncResult[StorageError | None]":
        self._save(self._read_pos)
        return self._syncs.start()

    def _sync(self) -> StorageError | None:
        try:
            while self._unsynced():
                self._sync_once()
                if not self._save_pending and self._operations - self._synced_operations < self._sync_at:
                    break
        except StorageError as error:
            self._log.error("DISKQUEUE(%s) failed to sync - %s", self.name, error)
            return error
        finally:
            if not self._unsynced() and self._saved_operations == self._operations:
                self._syncer.forget(self)
            elif not self._closed:
                self._syncer.note(self)
        return None

    def _unsynced(self) -> bool:
        return self._save_pending or self._operations != self._synced_operations

    def _sync_once(self) -> None:
        operations, meta_changes, meta = self._operations, self._meta_changes, self._meta(self._write_pos)
        numbers, self._unsynced_files = self._unsynced_files, set()
        self._save_pending = False
        temporary = temporary_path(self._files.meta_path)
        try:
            paths = [self._files.path(number) for number in numbers]
            if self.due_times.unsynced:
                self.due_times.unsynced = False
                paths.append(self._files.due_times_path)
            self._syncer.run(_make_durable, paths, temporary, meta.format())
            if meta.write_file == self._write_file:
                self._safe_write_pos = meta.write_pos
            if meta_changes == self._meta_changes:
                rename_file(temporary, self._files.meta_path)
            else:
                with suppress(OSError):
                    os.unlink(temporary)
        except StorageError:
            self._unsynced_files |= numbers
            self._save_pending = self.due_times.unsynced = True
            raise
        self._synced_operations = max(operations, self._synced_operations)

    def _change_meta(self) -> None:
        """Writes new file numbers to meta at once; the sync that follows makes it durable."""
        self._save(self._read_pos)
        self._write_meta()
        self._note(1)

    def _write_meta(self) -> None:
        self._meta_changes += 1
        try:
            replace_file(self._files.meta_path, self._meta(self._safe_write_pos).format(), sync=False)
        except StorageError as error:
            self._log.error("DISKQUEUE(%s) failed to sync - %s", self.name, error)

    def _ensure_meta(self) -> None:
        if not os.path.exists(self._files.meta_path):
            self._write_meta()

    def _meta(self, write_pos: int) -> Meta:
        depth = self.depth + self._unsaved_reads
        return Meta(depth, self._read_file, self._saved_pos, self._write_file, write_pos)

    def empty(self) -> None:
        if self._closed:
            raise StorageError("exiting")
        self._log.info("DISKQUEUE(%s): emptying", self.name)
        self._remove_files()

    def delete(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._log_exit("deleting")
        self._remove_files()
        self._files.data_files.note_deleted(self.name)

    def _log_exit(self, doing: str) -> None:
        self._log.info("DISKQUEUE(%s): %s", self.name, doing)
        self._log.info("DISKQUEUE(%s): closing ... ioLoop", self.name)  # nothing else reports that it has ended

    def _remove_files(self) -> None:
        self._close_reader()
        numbers = self._files.existing_between(self._read_file, self._write_file)
        self._start_write_file(self._write_file + 1)
        self._read_file, self._read_pos, self._depth = self._write_file, 0, 0
        self._finished, self._finished_size = {}, 0
        self._unsynced_files.clear()
        self._synced_operations = self._operations
        self.due_times.remove()
        self._save(0)
        self._save_pending = False
        self._meta_changes += 1  # a sync that is under way must not bring the meta file back
        if numbers:
            self._write_meta()  # should a kill come before all files are gone, the others must not look lost
        self._syncer.forget(self)
        failure = None
        for path in [*map(self._files.path, numbers), self._files.meta_path]:
            try:
                self._syncer.remove(path)
            except FileNotFoundError:
                pass
            except OSError as error:
                failure = StorageError(path_error("remove", path, error))
                kind = "metadata" if path == self._files.meta_path else "data"
                self._log.error("DISKQUEUE(%s) failed to remove %s file - %s", self.name, kind, failure)
        if failure is not None:
            raise failure

    def close(self) -> bool:
        if self._closed:
            return True
        self._closed = True
        self._log_exit("closing")
        self._syncs.close()
        if self._operations != self._saved_operations:
            self._save(self._read_pos)
        while self._unsynced() and self._syncs.start().get() is None:
            pass
        self._syncs.close()
        self._ensure_meta()
        saved = self.due_times.close(is_empty=not self.depth)
        self._close_reader()
        self._close_write_file()
        self._syncer.forget(self)
        return saved and not self._unsynced()


def _make_durable(paths: list[str], temporary: str, meta: bytes) -> None:
    """Calls fsync for the data files, except those read and deleted meanwhile, and then writes a new meta file."""
    for path in paths:
        sync_path(path)
    write_file(temporary, meta, sync=True)
