"""The files to be read, and from where: the driver finds that out before the job.

A path is a data directory, a pattern that matches some, or one for single files of queues. A queue is read as gnsqd
would when it starts: from the read position in the meta file to the real end, or everything when there is no usable
meta file. What is listed here stays: a task reads up to the size that its file had now, so that a task that runs again
gives the same rows, whatever a daemon adds meanwhile.

Of a journal each segment with messages to be read is a task (`journals`). In a log store, the driver fetches indexes,
and a task its segment.

Files are opened for reading only, and no lock is kept; a warning is logged if a daemon holds the directory's lock.
"""

import glob
import itertools
import logging
import os
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from tempfile import TemporaryDirectory

from gnsqd.shared.directory import NotADataDirectory, ReadPlan, StoredQueue, is_held, list_directory, plan_of
from gnsqd.shared.disk_format import Meta, due_times_file_name, parse_queue_file, parse_segment_name
from gnsqd.shared.errors import StorageError, reason_of
from gnsqd.shared.log_store import SCHEMES, LogStore, StoredLog, restore, with_log
from gnsqd.shared.stored_topic import StoredRange, StoredTopic
from pyspark_nsq.errors import NsqSourceError
from pyspark_nsq_diskqueue.journals import SegmentPlan, plan_journal, replay_journals

_BAD = ".bad"
_ATTEMPTS = 5
_log = logging.getLogger(__name__)
_PAUSE = 0.05  # seconds; a daemon that deletes a file records it in meta right afterwards


class DataDirectoryError(NsqSourceError):
    """A path cannot be read at all: it is not a data directory, or a file cannot be opened."""


@dataclass(frozen=True)
class FileTask:
    """The part of a file that one task reads. `channel` is None for the queue of a topic; positions in bytes.

    `end` is where the file ended when it was listed, `promised` how far it goes at least, according to meta. A piece of
    a record at the end, from `unfinished_from` on, is being written, or was when the daemon was killed. `missing` is
    how many files are not there, of which this is the first. `due_times` is the path of the queue's side file, if that
    is also to be read; `is_due_times` if that file itself is to be read. For a segment of a journal, `segment` is what
    to read of it, and `queue` the topic. If `directory` is a log store, `stored` has the file.
    """

    directory: str
    queue: str
    file: str
    start: int = 0
    end: int = 0
    promised: int = 0
    unfinished_from: int | None = None
    missing: int = 0
    due_times: str | None = None
    is_due_times: bool = False
    segment: SegmentPlan | None = None
    stored: StoredRange | None = None

    @property
    def path(self) -> str:
        return os.path.join(self.directory, self.file)

    @property
    def topic(self) -> str:
        return self.queue.partition(":")[0]

    @property
    def channel(self) -> str | None:
        return self.queue.partition(":")[2] or None

    def was_read_meanwhile(self) -> bool:
        """Returns True if a daemon has read the file to its end since, and deleted it."""
        file = parse_queue_file(self.file)
        meta = _read_meta(StoredQueue(self.directory, self.queue))
        if meta is None or file is None or file.number is None or file.is_bad:
            return False
        return meta.read_file > file.number


def plan(
    paths: Iterable[str], *, everything: bool = False, topics: Collection[str] = (), channels: Collection[str] = ()
) -> list[FileTask]:
    """Returns the files to read, each once. Empty `topics` and `channels` mean all; `everything`: all that is in the
    data files, not only what is unread. Raises DataDirectoryError if something cannot be read."""
    found: dict[str, FileTask] = {}
    try:
        for url in filter(is_store, paths):
            store = LogStore(url)
            tasks = with_log(store, partial(_plan_store, store, everything, topics, channels))
            found |= {task.path: task for task in tasks}
        for directory, names in itertools.chain.from_iterable(map(_expand, itertools.filterfalse(is_store, paths))):
            for task in _plan_directory(directory, everything, topics, channels):
                if chosen := _choose(task, names):
                    found.setdefault(os.path.realpath(task.path), chosen)
    except StorageError as error:
        raise DataDirectoryError(str(error)) from error
    return sorted(found.values(), key=lambda task: (task.directory, task.queue, task.is_due_times, task.file))


def is_store(path: str) -> bool:
    """Returns True for the URL of a log store; a file: URL may also be that of a data directory."""
    scheme, _, rest = path.partition("://")
    return scheme in SCHEMES and (scheme != "file" or os.path.isdir(os.path.join(rest, "wal")))


def _plan_store(
    store: LogStore, everything: bool, topics: Collection[str], channels: Collection[str], log: StoredLog
) -> list[FileTask]:
    if not log.number:
        raise DataDirectoryError(f"{store.url} has no log")
    names = {name: (parse_segment_name(name) or ("",))[0] for name in log.files}
    with TemporaryDirectory(prefix="pyspark_nsq.") as directory:
        restore(store, log, directory, [name for name, topic in names.items() if not topic])
        for topic in {*filter(None, names.values())}:
            if _is_any_of(topic, topics):
                StoredTopic(store, log, topic).outline(directory)
        return [
            replace(task, directory=store.url, stored=StoredRange.of(log, [log.files[task.file]]))
            for task in _plan_directory(directory, everything, topics, channels)
        ]


def _is_any_of(name: str | None, names: Collection[str]) -> bool:
    return not names or name in names


def _choose(task: FileTask, names: Collection[str] | None) -> FileTask | None:
    """Returns the task if it is needed. Messages that the side file holds back count only if that file is also read."""
    if names is None:
        return None if task.file.endswith(_BAD) else task
    if task.file not in names:
        return None
    side_file = task.due_times and os.path.basename(task.due_times)
    return task if side_file in names else replace(task, due_times=None)


def _expand(path: str) -> Iterator[tuple[str, Collection[str] | None]]:
    """Yields the directories under a path or that match it, each with the names of the files to take from it, None for
    all except files that were set aside. Raises DataDirectoryError if there are none."""
    local = os.path.abspath(path.removeprefix("file://").removeprefix("file:"))  # tasks may run in another directory
    if os.path.isdir(local):
        yield local, None
        return
    matches = [local] if os.path.lexists(local) else sorted(glob.glob(local))
    if not matches:
        raise DataDirectoryError(f"{path}: there is no such directory, nor anything that matches it")
    directories = [match for match in matches if os.path.isdir(match) and _is_data_directory(match)]
    files: dict[str, list[str]] = {}
    for match in matches:
        directory, name = os.path.split(match)
        if _is_of_queue(name) and not os.path.isdir(match):
            files.setdefault(directory, []).append(name)
    if not directories and not files:
        raise DataDirectoryError(f"{path} matches no data directory of an nsqd and no file of a queue")
    yield from ((directory, None) for directory in directories)
    yield from files.items()


def _is_data_directory(path: str) -> bool:
    try:
        list_directory(path)
    except NotADataDirectory:
        return False
    return True


def _is_of_queue(name: str) -> bool:
    """Returns True if a file belongs to a queue, also if it was set aside."""
    file = parse_queue_file(name)
    return parse_segment_name(name) is not None or (file is not None and (file.number is not None or file.kind != ""))


def _read_meta(queue: StoredQueue) -> Meta | None:
    """Returns None if there is none that makes sense: then every message counts as unread."""
    try:
        return queue.read_meta()
    except StorageError:
        return None
    except OSError as error:
        raise DataDirectoryError(f"cannot read {queue.meta_path}: {reason_of(error)}") from error


def _plan_directory(
    directory: str, everything: bool, topics: Collection[str], channels: Collection[str]
) -> Iterator[FileTask]:
    names = list(list_directory(directory).queues)
    if is_held(directory):
        _log.warning(
            "%s is the data directory of a running nsqd: what it has only in memory is not read, and what is read may "
            "be delivered meanwhile",
            directory,
        )
    for attempt in range(_ATTEMPTS):
        if attempt:
            time.sleep(_PAUSE)
        # In this order: a running daemon writes records first and then meta, so no file seems to be too short.
        metas = {name: _read_meta(StoredQueue(directory, name)) for name in names}
        found = list_directory(directory)
        # It also reads and deletes files; then meta soon has it.
        listed = {name: found.queues.get(name, StoredQueue(directory, name)) for name in names}
        plans = [(queue, plan_of(queue, metas[name])) for name, queue in listed.items()]
        replays = replay_journals(found, topics)
        if replays is not None and not any(plan.missing for _, plan in plans):
            break
    if replays is None:
        raise DataDirectoryError(f"the journals in {directory} change too fast to be read; the daemon must be stopped")
    for topic, replay in replays.items():
        for segment in plan_journal(found.journals[topic], replay, everything, channels):
            yield FileTask(directory, topic, os.path.basename(segment.path), end=segment.end, segment=segment)
    for queue, plan in plans:
        is_copy = queue.topic in replays and replays[queue.topic].converting
        if _is_any_of(queue.topic, topics) and _is_any_of(queue.channel or None, channels) and not is_copy:
            yield from _plan_queue(queue, plan, everything)


def _plan_queue(queue: StoredQueue, plan: ReadPlan, everything: bool) -> Iterator[FileTask]:
    make = partial(FileTask, queue.directory, queue.name)
    due_times = None
    if queue.due_times_size is not None:
        side_file = make(due_times_file_name(queue.name), end=queue.due_times_size, is_due_times=True)
        due_times = side_file.path
        yield side_file
    for number, count in plan.missing:
        yield make(queue.file_name(number), missing=count)
    for number, size in queue.bad.items():
        yield make(queue.file_name(number, bad=True), end=size)
    last, meta = max(queue.numbers, default=0), plan.meta
    for number, size in queue.numbers.items():
        if number in plan.read and not everything:
            continue
        start = 0 if everything else plan.start(number)
        task = make(queue.file_name(number), start, size, due_times=due_times)
        if meta is not None:
            if number == meta.read_file:
                task = replace(task, promised=meta.read_pos)
            if number == meta.write_file:
                task = replace(task, promised=meta.write_pos)
            if number == last and number >= meta.write_file:
                task = replace(task, unfinished_from=task.promised)
        if task.start < size or size < task.promised:
            yield task
