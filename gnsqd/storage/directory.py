"""The directory of the data path: the lock that keeps a second daemon, ours or the real one, off it, the free and the
reserved space on its disk, and the removal of files that a killed daemon left and nobody will ever read."""

import fcntl
import os
import stat
from collections.abc import Iterable
from contextlib import suppress

from gevent import get_hub
from gevent.event import AsyncResult

from gnsqd.log import Logger
from gnsqd.shared.disk_format import Meta, meta_file_name, parse_queue_file, parse_segment_name, parse_temporary_name
from gnsqd.shared.errors import StartError, StorageError, path_error, reason_of
from gnsqd.shared.names import EPHEMERAL_SUFFIX, is_valid_queue
from gnsqd.storage.disk.opening import DataFiles
from gnsqd.storage.metadata import FILE_NAME, RULES_NAME
from gnsqd.storage.syncer import Syncer

CHECK_EVERY = 1 << 20  # bytes that may come between two looks at the disk
DISK_SECONDS = 1.0  # to query the disk
RESERVE_NAME = "gnsqd.reserve.dat"
RESERVE_STEP = 16 * 1024  # bytes
# The file of a link has another owner, and a pipe would stop the daemon.
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK


class DirLock:
    """Holds a flock from `acquire` to `release`, or until the process ends. An empty path is the working directory."""

    def __init__(self, path: str) -> None:
        self._path = path or os.getcwd()
        self._descriptor = -1

    def acquire(self) -> None:
        """Locks the directory; raises StartError, beginning with `failed to lock data-path: `, if that fails."""
        try:
            self._descriptor = os.open(self._path, os.O_RDONLY)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            text = path_error("open", self._path, error)
            if self._descriptor >= 0:
                where = f"cannot flock directory {self._path} - {reason_of(error)}"
                text = f"{where} (possibly in use by another instance of nsqd)"
            self.release()
            raise StartError(f"failed to lock data-path: {text}") from error

    def release(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class FreeDisk:
    """Sets `low` while fewer than `minimum` bytes are free for users without privileges, and logs changes."""

    def __init__(self, data_path: str, minimum: int, log: Logger) -> None:
        self.low = False
        self.minimum = minimum
        self._path = data_path or "."
        self._log = log
        self._check_every = min(CHECK_EVERY, minimum // 4)
        self._unseen = self._check_every  # bytes since the last look
        self._failing = False

    def is_low(self, size: int) -> bool:
        """Returns `low`, with `size` more bytes to come; checks the disk again from time to time."""
        self._unseen += size
        if self._unseen >= self._check_every:
            self.check()
        return self.low

    def check(self) -> None:
        """Checks the disk. If that fails, `low` stays."""
        self._unseen = 0
        try:
            status = os.statvfs(self._path)
        except OSError as error:
            if not self._failing:
                self._failing = True
                self._log.error("NSQ: free disk space is unknown - %s", path_error("statvfs", self._path, error))
            return
        self._failing = False
        free = status.f_bavail * status.f_frsize
        if self.low != (free < self.minimum):
            self.low = not self.low
            if self.low:
                self._log.warn("NSQ: %d bytes of disk are free, publishers are refused below %d", free, self.minimum)
            else:
                self._log.info("NSQ: %d bytes of disk are free, publishers are no longer refused", free)


class DiskFigures:
    """Queries the disk of the data path. As one in the network may not answer, this is done in a thread, by one call at
    a time."""

    def __init__(self, data_path: str, syncer: Syncer) -> None:
        self._path = data_path or "."
        self._syncer = syncer
        self._call: AsyncResult[os.statvfs_result | None] | None = None

    def __call__(self) -> dict[str, float]:
        """Returns the age of the oldest fsync under way, and the size of the disk and the bytes that are free for users
        without privileges, unless it does not answer in time. Yields."""
        figures = {"sync_lag_seconds": self._syncer.lag}
        if self._call is None or self._call.ready():
            self._call = get_hub().threadpool.spawn(_statvfs, self._path)
        self._call.wait(DISK_SECONDS)
        if disk := self._call.value:
            figures |= {"disk_bytes": disk.f_blocks * disk.f_frsize, "free_disk_bytes": disk.f_bavail * disk.f_frsize}
        return figures


def _statvfs(path: str) -> os.statvfs_result | None:
    with suppress(OSError):
        return os.statvfs(path)
    return None


class Reserve:
    """Owns a file that holds `size` bytes of the disk for the records that free more of it.

    On a full disk, a record that messages are dropped or finished has no room, and nor has the new segment that lets an
    old one go. They get the space of this file, bit by bit. Messages do not. `is_needed` from when the disk was full
    until a message is written again."""

    def __init__(self, data_path: str, size: int) -> None:
        self.is_needed = False
        self.is_whole = False
        self._has_given = False  # since it took something
        self._path = os.path.join(data_path, RESERVE_NAME)
        self._size = size

    def fill(self) -> None:
        """Takes the space that is missing, as far as the disk has it; without any, there is no file."""
        self._has_given = False
        if self.is_whole:
            return
        with suppress(OSError):
            if not self._size:
                self.is_whole = True
                os.unlink(self._path)
                return
            descriptor, missing = os.open(self._path, _FLAGS, 0o600), 0
            try:
                missing = self._size - os.fstat(descriptor).st_size
                while missing > 0:
                    missing -= os.write(descriptor, os.urandom(min(missing, RESERVE_STEP)))  # zeros may take no space
                self.is_whole = True
            finally:
                if missing == self._size:
                    os.unlink(self._path)  # it has nothing to give
                os.close(descriptor)

    def take_back(self) -> None:
        """Takes what was given and is left; does nothing if nothing was, as publishers are refused again and again."""
        if self._has_given:
            self.fill()

    def give(self) -> bool:
        """Frees some of the space; False if there is none."""
        self.is_whole = False
        try:
            if (size := os.lstat(self._path).st_size) > RESERVE_STEP:
                os.truncate(self._path, size - RESERVE_STEP)
            else:
                os.unlink(self._path)
        except OSError:
            return False
        self._has_given = True
        return True


def find_unserved(data_files: DataFiles) -> list[str]:
    """Returns the sorted names of queues not opened that have messages by their files; none of ephemeral topics."""
    unserved = []
    for queue, numbers in data_files.unopened().items():
        if is_valid_queue(queue) and EPHEMERAL_SUFFIX not in queue:
            meta_path = os.path.join(data_files.data_path, meta_file_name(queue))
            with suppress(OSError, StorageError), open(meta_path, "rb") as file:
                meta = Meta.parse(file.read(200))
                if meta.read_position == meta.write_position and max(numbers) <= meta.write_file:
                    continue
            unserved.append(queue)
    return sorted(unserved)


def clean_up(data_files: DataFiles, names: Iterable[str], log: Logger) -> None:
    """Removes the leftovers among `names`, all files in the data path, under its lock and before any queue is opened.

    They are files on their way to becoming nsqd.dat, the file of rules, a meta file, a segment or a file of due times,
    removed files whose blocks were not yet free, and due times of a queue that has neither meta nor data files, because
    the real nsqd, which does not know them, has deleted it."""
    removed = 0
    errors = []
    for name in names:
        path = os.path.join(data_files.data_path, name)
        unfinished = parse_temporary_name(name)
        file = parse_queue_file(unfinished or name)
        if file is not None and is_valid_queue(file.queue):
            is_alone = file.kind == "due_times" and not file.is_bad and file.queue not in data_files
            is_leftover = bool(unfinished) or is_alone
        else:
            is_leftover = unfinished in (FILE_NAME, RULES_NAME) or parse_segment_name(unfinished) is not None
        try:
            if is_leftover and stat.S_ISREG(os.lstat(path).st_mode):
                os.unlink(path)
                removed += 1
        except OSError as error:
            errors.append(path_error("remove", path, error))
    if removed:
        log.info("NSQ: removed %d files that an nsqd before this one left unfinished or without their queue", removed)
    if errors:
        log.warn("NSQ: failed to remove %d files that nobody needs - %s", len(errors), errors[0])
