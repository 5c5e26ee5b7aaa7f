"""The files of disk queues, and where a queue begins to read and to write: by its meta file, corrected if it is wrong.

One listing of the data path is enough, so a queue that is opened lists nothing: the lock keeps other daemons out. A
queue that was not in the listing and has not been opened since has no files.

The real nsqd starts an empty queue when there is no meta file or an unreadable one, and so overwrites what the data
files hold. Here every data file is read from its beginning: records may come twice, but none is lost. Like there,
writing goes on in a new file when the write file is longer than in meta, because meta is older than the last
records; also when it is shorter, because writing behind its end would leave a hole in it, and when there are files
behind it, because a full disk took records but no newer meta file.

Where the read position is inside a record, the real nsqd finds no length there and sets the whole file aside. Here
reading goes on with that record.
"""

import errno
import os
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from typing import NamedTuple

from gnsqd.log import Logger
from gnsqd.shared.disk_format import Gap, Meta, data_file_name, due_times_file_name, meta_file_name, parse_queue_file
from gnsqd.shared.disk_queue import RecordReader
from gnsqd.shared.errors import StorageError, failing_as_go, path_error
from gnsqd.storage.files import list_names

# Not the files' fault: trying again later may help.
SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})


class DataFiles:
    """The queues that have a meta or data files in `data_path`, whose files are `names`; no queue is open."""

    def __init__(self, data_path: str, names: Iterable[str]) -> None:
        self.data_path = data_path
        self._numbers: dict[str, list[int] | None] = {}  # of data files; None: only a listing would show
        for name in names:
            file = parse_queue_file(name)
            if file is not None and not file.is_bad and (file.kind == "meta" or file.number is not None):
                numbers = self._numbers.setdefault(file.queue, [])
                if file.number is not None and numbers is not None:
                    numbers.append(file.number)

    def __contains__(self, queue: str) -> bool:
        return queue in self._numbers

    def numbers(self, queue: str) -> list[int]:
        """Returns the numbers of all data files of a queue, ascending; raises StorageError."""
        numbers = self._numbers.get(queue, [])
        if numbers is not None:
            return sorted(numbers)
        return DataFiles(self.data_path, list_names(self.data_path)).numbers(queue)

    def unopened(self) -> dict[str, list[int]]:
        """Returns the listed numbers of data files of all queues that have some and have not been opened."""
        return {queue: numbers for queue, numbers in self._numbers.items() if numbers}

    def note_opened(self, queue: str) -> None:
        """Reports that the queue's files change from now on."""
        self._numbers[queue] = None

    def note_deleted(self, queue: str) -> None:
        """Reports that all files of the queue are gone."""
        self._numbers.pop(queue, None)


class QueueFiles:
    """The names of a queue's files, and the sizes that its records may have."""

    def __init__(self, name: str, data_files: DataFiles, min_size: int, max_size: int) -> None:
        self.name = name
        self.data_files = data_files
        self.meta_path = os.path.join(data_files.data_path, meta_file_name(name))
        self.due_times_path = os.path.join(data_files.data_path, due_times_file_name(name))
        self.min_size = min_size
        self.max_size = max_size

    def path(self, number: int) -> str:
        return os.path.join(self.data_files.data_path, data_file_name(self.name, number))

    def existing_between(self, first: int, last: int) -> list[int]:
        """Returns the numbers from `first` to `last` of existing files; raises StorageError."""
        if last - first < 1000:
            return [number for number in range(first, last + 1) if os.path.lexists(self.path(number))]
        # After damage to meta, millions may be missing in between.
        return [number for number in self.data_files.numbers(self.name) if first <= number <= last]

    def sizes_between(self, first: int, last: int) -> dict[int, int]:
        """Returns the sizes in bytes of those files, by number; raises StorageError."""
        sizes = {}
        for number in self.existing_between(first, last):
            with suppress(OSError):
                sizes[number] = os.path.getsize(self.path(number))
        return sizes

    def read_all(self, number: int, pos: int = 0) -> Iterator[list[bytes]]:
        """Yields the payloads of a file from a position on in batches, as far as they can be read."""
        # Errors are reported when the file is read for good.
        with suppress(OSError, StorageError), closing(self.open_reader(number)) as reader:
            for run in reader.runs(pos, reader.file_size()):
                if not isinstance(run, Gap):
                    yield run.payloads()

    def open_reader(self, number: int) -> RecordReader:
        """Opens a file; raises OSError if that fails."""
        path = self.path(number)
        return RecordReader(path, os.open(path, os.O_RDONLY), self.min_size, self.max_size)


class Opening(NamedTuple):
    """The positions to start from; `corrected`: meta has others. `short_file` ends before meta's `promised_end`."""

    meta: Meta
    corrected: bool = True
    short_file: int = -1
    promised_end: int = 0


def open_queue(files: QueueFiles, log: Logger) -> Opening:
    """Logs errors and goes on; raises StorageError if data could be destroyed, as the existing files are unknown."""
    try:
        with open(files.meta_path, "rb") as file:
            meta = Meta.parse(file.read(200))
        if meta.read_position > meta.write_position:
            raise StorageError(f"read position {meta.read_position} > write position {meta.write_position}")
    except FileNotFoundError:
        return _recover(files, log)
    except (OSError, StorageError) as error:
        text = path_error("open", files.meta_path, error) if isinstance(error, OSError) else str(error)
        log.error("DISKQUEUE(%s) failed to retrieveMetaData - %s", files.name, text)
        if isinstance(error, OSError) and error.errno in SHORTAGES:
            raise StorageError(text) from error
        log.damages += 1
        return _recover(files, log)
    begin = meta.read_pos
    if begin and meta.read_position < meta.write_position:
        with suppress(OSError, StorageError), closing(files.open_reader(meta.read_file)) as reader:
            begin = reader.record_at(begin)
    opening = _check_write_file(files, meta._replace(read_pos=begin), log)
    if begin == meta.read_pos:
        return opening
    text = "DISKQUEUE(%s) %s metadata readPos %d is inside the record at %d, reading from there"
    log.warn(text, files.name, files.path(meta.read_file), meta.read_pos, begin)
    return opening._replace(corrected=True)


def _recover(files: QueueFiles, log: Logger) -> Opening:
    numbers = files.data_files.numbers(files.name)
    if not numbers:
        return Opening(Meta(), corrected=False)
    depth = _count_records(files, numbers)
    text = "DISKQUEUE(%s) no usable metadata, reading all %d messages in %d files from %s on"
    log.warn(text, files.name, depth, len(numbers), files.path(numbers[0]))
    return Opening(Meta(depth, numbers[0], 0, numbers[-1] + 1, 0))


def _count_records(files: QueueFiles, numbers: list[int]) -> int:
    return sum(len(payloads) for number in numbers for payloads in files.read_all(number))


def _check_write_file(files: QueueFiles, meta: Meta, log: Logger) -> Opening:
    path = files.path(meta.write_file)
    size = 0
    with failing_as_go("stat", path), suppress(FileNotFoundError):
        size = os.stat(path).st_size
    if size == meta.write_pos and not os.path.lexists(files.path(meta.write_file + 1)):
        return Opening(meta, corrected=False)
    later = [number for number in files.data_files.numbers(files.name) if number > meta.write_file]
    if size != meta.write_pos:
        text = "DISKQUEUE(%s) %s metadata writePos %d %s file size of %d, skipping to new file"
        log.warn(text, files.name, path, meta.write_pos, "<" if meta.write_pos < size else ">", size)
    if later:
        log.warn("DISKQUEUE(%s) metadata ends at %s, reading %d later files too", files.name, path, len(later))
    added = _count_records(files, later)
    next_file = max(later, default=meta.write_file) + 1
    if size <= meta.write_pos and meta.read_position == meta.write_position:
        with suppress(OSError):  # everything in it has been read
            os.unlink(path)
        return Opening(Meta(added, min(later, default=next_file), 0, next_file, 0))
    corrected = Meta(meta.depth + added, meta.read_file, meta.read_pos, next_file, 0)
    if size < meta.write_pos:
        return Opening(corrected, short_file=meta.write_file, promised_end=meta.write_pos)
    return Opening(corrected)
