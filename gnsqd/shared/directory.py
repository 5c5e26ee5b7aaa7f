"""A data directory as observers read it: the files of each queue, meta files, nsqd.dat, due times, and the lock.

gnsqadmin and the Spark side share it. Nothing is opened except for reading, and nothing of gevent is needed, so it also
works beside a running daemon: files may appear and vanish meanwhile.
"""

import fcntl
import json
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from gnsqd.shared.disk_format import (
    DUE_TIMES_FIRST_LINE,
    MIN_RECORD_SIZE,
    Meta,
    data_file_name,
    due_times_file_name,
    meta_file_name,
    parse_queue_file,
    parse_segment_name,
    parse_temporary_name,
    read_due_times_entries,
    segment_name,
)
from gnsqd.shared.errors import StorageError, reason_of

METADATA = "nsqd.dat"
_LARGEST_METADATA = 64 << 20  # bytes; a cluster of thousands of topics has some 100 kB
_BUFFER = 1 << 20  # bytes


class NotADataDirectory(StorageError):
    """The directory has no file of nsqd."""


@dataclass
class StoredFiles:
    """The numbered files of one name when they were listed, number -> size in bytes."""

    directory: str
    name: str
    numbers: dict[int, int] = field(default_factory=dict)

    @property
    def topic(self) -> str:
        return self.name.partition(":")[0]

    @property
    def size(self) -> int:
        return sum(self.numbers.values())


@dataclass
class StoredQueue(StoredFiles):
    """The files of one queue; `numbers` are its data files. `channel` is empty for the queue of a topic."""

    bad: dict[int, int] = field(default_factory=dict)  # the same of files that were set aside
    has_meta: bool = False
    due_times_size: int | None = None
    bad_due_times: bool = False

    @property
    def channel(self) -> str:
        return self.name.partition(":")[2]

    def file_name(self, number: int, *, bad: bool = False) -> str:
        return data_file_name(self.name, number) + ".bad" * bad

    def path(self, number: int, *, bad: bool = False) -> str:
        return os.path.join(self.directory, self.file_name(number, bad=bad))

    @property
    def meta_path(self) -> str:
        return os.path.join(self.directory, meta_file_name(self.name))

    @property
    def due_times_path(self) -> str:
        return os.path.join(self.directory, due_times_file_name(self.name))

    def read_meta(self) -> Meta:
        """Returns the content of the meta file; raises StorageError if it is unusable, OSError if it can't be read."""
        try:
            meta = Meta.parse(read_file(self.meta_path, 200))
        except FileNotFoundError:
            raise StorageError("no meta file") from None
        except StorageError:
            raise StorageError("the meta file does not hold five numbers") from None
        if meta.read_position > meta.write_position:
            raise StorageError("the meta file reads behind where it writes")
        return meta

    def read_due_times(self) -> "DueTimesFile":
        return read_due_times(self.due_times_path)


class StoredJournal(StoredFiles):
    """The segments of the journal of a topic, which has its name."""

    def path(self, number: int) -> str:
        return os.path.join(self.directory, segment_name(self.name, number))


@dataclass(frozen=True)
class ListedQueue:
    """A topic or channel that nsqd.dat lists."""

    topic: str
    channel: str  # empty: the topic itself
    paused: bool

    @property
    def queue(self) -> str:
        return f"{self.topic}:{self.channel}" if self.channel else self.topic


@dataclass
class DataDirectory:
    """One data directory. `listed` is the content of nsqd.dat by name of the queue, None with `metadata_error`."""

    path: str
    queues: dict[str, StoredQueue] = field(default_factory=dict)
    journals: dict[str, StoredJournal] = field(default_factory=dict)  # by topic
    listed: dict[str, ListedQueue] | None = None
    metadata_error: str = ""
    temporary: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)  # with the name of a queue's file, but no files
    unknown: list[str] = field(default_factory=list)  # other files
    passed_over: list[str] = field(default_factory=list)  # directories and such

    def is_listed(self, queue: StoredQueue) -> bool:
        """Returns True if nsqd.dat lists the queue, or cannot be read."""
        return self.listed is None or queue.name in self.listed

    def is_paused(self, queue: StoredQueue) -> bool:
        return self.listed is not None and queue.name in self.listed and self.listed[queue.name].paused

    def select(self, topic: str, channel: str) -> list[StoredQueue]:
        """Returns the queues of that topic and channel, or of all, sorted."""
        queues = sorted(self.queues.values(), key=lambda queue: (queue.topic, queue.channel))
        return [queue for queue in queues if topic in ("", queue.topic) and channel in ("", queue.channel)]

    def select_journals(self, topic: str) -> list[StoredJournal]:
        """Returns the journal of the topic, or all, sorted."""
        return [self.journals[name] for name in sorted(self.journals) if not topic or name == topic]


def list_directory(path: str) -> DataDirectory:
    """Lists a directory; raises StorageError if that fails, NotADataDirectory if it has no files of nsqd."""
    directory = DataDirectory(path)
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                _sort_in(directory, entry)
    except OSError as error:
        raise StorageError(f"cannot list {path}: {reason_of(error)}") from error
    try:
        directory.listed = _read_metadata(os.path.join(path, METADATA))
    except (StorageError, OSError) as error:
        directory.metadata_error = reason_of(error)
        if not directory.queues and not directory.journals and isinstance(error, FileNotFoundError):
            text = f"{path} is not a data directory: it has neither {METADATA} nor files of queues"
            raise NotADataDirectory(text) from error
    for listed in (directory.listed or {}).values():
        directory.queues.setdefault(listed.queue, StoredQueue(path, listed.queue))
    directory.temporary.sort()
    return directory


def _sort_in(directory: DataDirectory, entry: "os.DirEntry[str]") -> None:
    name = entry.name
    file = parse_queue_file(name)
    if file is None:
        if parse_temporary_name(name):
            directory.temporary.append(name)
        elif entry.is_file() and (segment := parse_segment_name(name)):
            journal = directory.journals.setdefault(segment[0], StoredJournal(directory.path, segment[0]))
            with suppress(OSError):  # it has gone meanwhile
                journal.numbers[segment[1]] = entry.stat().st_size
        elif not entry.is_file():
            directory.passed_over.append(name)
        elif name != METADATA:
            directory.unknown.append(name)
        return
    try:
        status = entry.stat()
    except OSError:
        return  # it has gone meanwhile
    if not stat.S_ISREG(status.st_mode) or (file.number is None and not file.kind):
        directory.others.append(name)
        return
    queue = directory.queues.setdefault(file.queue, StoredQueue(directory.path, file.queue))
    if file.number is not None:
        (queue.bad if file.is_bad else queue.numbers)[file.number] = status.st_size
    elif file.kind == "due_times" and file.is_bad:
        queue.bad_due_times = True
    elif file.kind == "due_times":
        queue.due_times_size = status.st_size
    elif not file.is_bad:
        queue.has_meta = True


def _read_metadata(path: str) -> dict[str, ListedQueue]:
    """Returns the content of nsqd.dat; raises OSError, or StorageError with a readable text."""
    data = read_file(path, _LARGEST_METADATA)
    if not data.strip(b" \t\r\n\0"):
        raise StorageError("it is empty")
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        place = f" at byte {error.pos}" if isinstance(error, json.JSONDecodeError) else ""
        raise StorageError(f"it is not JSON{place}") from error
    listing: dict[str, ListedQueue] = {}
    for topic in _entries(document, "topics"):
        entries = [("", topic), *((_name(channel), channel) for channel in _entries(topic, "channels"))]
        for channel, value in entries:
            listed = ListedQueue(_name(topic), channel, _get(value, "paused") is True)
            if listed.paused or listed.queue not in listing or not listing[listed.queue].paused:
                listing[listed.queue] = listed
    return listing


def _get(value: Any, key: str) -> Any:
    """Returns the last value of a key in any case, like Go's decoder."""
    if not isinstance(value, dict):
        raise StorageError(f"expected an object, found {type(value).__name__}")
    return next((item for name, item in reversed(value.items()) if name.lower() == key), None)


def _entries(value: Any, key: str) -> list[Any]:
    entries = _get(value, key)
    if entries is not None and not isinstance(entries, list):
        raise StorageError(f'its "{key}" is not a list')
    return entries or []


def _name(value: Any) -> str:
    name = _get(value, "name")
    if not isinstance(name, str):
        raise StorageError("a topic or channel has no name")
    return name


def open_file(path: str) -> int:
    """Returns a descriptor to read a file; raises OSError also for anything but a regular file, such as a pipe."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(f"{path} is not a file")
    return descriptor


def read_file(path: str, most: int) -> bytes:
    """Returns the first `most` bytes; raises OSError."""
    with os.fdopen(open_file(path), "rb") as file:
        return file.read(most)


@dataclass
class DueTimesFile:
    """The side file of a queue, in which gnsqd notes when deferred messages are due (data-directory.md, "Delays"). By
    attempts and id, as in a payload: `due` has times in ns, of messages in the queue and of deferred ones; `held` the
    position and size of the payloads of the latter, which the queue may also have. Damage is at `end`."""

    due: dict[bytes, int] = field(default_factory=dict)
    held: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    damage: str = ""
    end: int = 0
    size: int = 0


def read_due_times(path: str) -> DueTimesFile:
    """Reads a file up to its first damage, without payloads; empty without a file. May raise StorageError."""
    due_times = DueTimesFile()
    try:
        with os.fdopen(open_file(path), "rb", _BUFFER) as file:
            due_times.size = os.fstat(file.fileno()).st_size
            if file.read(len(DUE_TIMES_FIRST_LINE)) != DUE_TIMES_FIRST_LINE:
                due_times.damage = "not a file of due times"
                return due_times
            due_times.end = len(DUE_TIMES_FIRST_LINE)
            for key, due, begin, length in read_due_times_entries(file, due_times.end, due_times.size):
                due_times.due.pop(key, None)
                due_times.held.pop(key, None)
                if due:
                    due_times.due[key] = due
                if length >= MIN_RECORD_SIZE:
                    due_times.held[key] = begin, length
                due_times.end = begin + length
    except FileNotFoundError:
        return due_times
    except StorageError:
        due_times.damage = "an end in the middle of an entry"
    except OSError as error:
        raise StorageError(f"cannot read {path}: {reason_of(error)}") from error
    return due_times


def read_held(path: str, due_times: DueTimesFile) -> Iterator[tuple[int, bytes]]:
    """Yields position and payload of deferred messages, in the order of the file; raises OSError."""
    if due_times.held:
        with os.fdopen(open_file(path), "rb") as file:
            for position, size in sorted(due_times.held.values()):
                file.seek(position)
                yield position, file.read(size)


@dataclass
class ReadPlan:
    """The files of a queue with unread messages, as gnsqd reads them when it starts: `numbers`, the first of them from
    `position` on. If `meta` is unusable, for the reason `meta_error`, everything counts as unread. `missing` are files
    that meta names and that are not there, as (first, count); `read` are files from before the read position."""

    meta: Meta | None = None
    meta_error: str = ""
    numbers: list[int] = field(default_factory=list)
    position: int = 0
    missing: list[tuple[int, int]] = field(default_factory=list)
    read: list[int] = field(default_factory=list)

    def start(self, number: int) -> int:
        """Returns the position of a file's first unread message."""
        return self.position if self.numbers[:1] == [number] else 0

    def oldest(self, queue: StoredQueue) -> float | None:
        """Returns when the first unread message was published, in unix seconds; None without one."""
        for number in self.numbers:
            start = self.start(number)
            if queue.numbers[number] >= start + 12:
                with suppress(OSError), os.fdopen(open_file(queue.path(number)), "rb") as file:
                    file.seek(start + 4)
                    return int.from_bytes(file.read(8), "big") / 1e9
                break
        return None


def make_plan(queue: StoredQueue) -> ReadPlan:
    """Returns the plan that follows from the present meta file and the list of files."""
    try:
        return plan_of(queue, queue.read_meta())
    except StorageError as error:
        return plan_of(queue, None, str(error))
    except OSError as error:
        return plan_of(queue, None, f"the meta file cannot be read: {reason_of(error)}")


def plan_of(queue: StoredQueue, meta: Meta | None, meta_error: str = "") -> ReadPlan:
    """Returns the plan that follows from `meta` and the list of files."""
    numbers = sorted(queue.numbers)
    if meta is None:
        return ReadPlan(None, meta_error, numbers)
    unread = [number for number in numbers if number >= meta.read_file]
    position = meta.read_pos if unread[:1] == [meta.read_file] else 0
    plan = ReadPlan(meta, "", unread, position, read=[number for number in numbers if number < meta.read_file])
    if meta.read_position != meta.write_position:
        first, last = meta.read_file, meta.write_file if meta.write_pos else meta.write_file - 1
        borders = [first - 1, *(number for number in unread if number <= last), last + 1]
        plan.missing = [(left + 1, right - left - 1) for left, right in pairwise(borders) if right > left + 1]
    return plan


def is_held(path: str) -> bool:
    """Returns True if a running nsqd, or a repair, has locked the directory; False where that cannot be tried. The lock
    is not kept: a daemon may start."""
    with suppress(StorageError):
        descriptor = _open_directory(path)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            return isinstance(error, BlockingIOError)  # else a file system without locks
        finally:
            os.close(descriptor)
    return False


@contextmanager
def locked(path: str, instead: str = "") -> Iterator[None]:
    """Prevents nsqd from starting on the directory; raises StorageError if one runs, with the alternative `instead`."""
    descriptor = _open_directory(path)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            text = f"{path} is in use by {describe_holder(path)}, which must be stopped first{instead}"
            raise StorageError(f"{text}; nothing was changed") from None
        yield
    finally:
        os.close(descriptor)


def describe_holder(path: str) -> str:
    """Returns `a running nsqd (process 123)`, without the number if it is unknown."""
    number = ""
    with suppress(OSError, ValueError):
        status = os.stat(path)
        place = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
        with open("/proc/locks", encoding="ascii") as file:
            if match := re.search(rf"FLOCK +ADVISORY +WRITE (\d+) {place} ", file.read()):
                number = f" (process {match[1]})"
    return f"a running nsqd{number}"


def _open_directory(path: str) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise StorageError(f"cannot open {path}: {reason_of(error)}") from error
