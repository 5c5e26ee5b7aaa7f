"""The segments of a journal as those have them who write it, and the files that all journals have open.

Their number is bounded, because there may be thousands of topics: where there are too many, the file that was used the
longest ago is closed, and whoever needs it opens it again. A file that has messages no fsync has confirmed is held
open: an error of the disk could go unnoticed otherwise.
"""

import errno
import os
import resource
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from copy import copy

from gnsqd.log import Logger
from gnsqd.shared.errors import StorageError, failing_as_go, path_error
from gnsqd.shared.journal import records
from gnsqd.shared.journal.segment import Segment
from gnsqd.shared.journal.spans import Spans
from gnsqd.storage.files import rename_file, temporary_path, write_at

SHARE = 4  # of all descriptors that the process may have, journals get 1 / SHARE
MOST = 256
PIECE = 1000  # messages, or spans of them, that one step looks at


class OpenFiles:
    """Knows who has a file open, and closes those above the limit."""

    def __init__(self) -> None:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._limit = MOST if soft == resource.RLIM_INFINITY else min(max(soft // SHARE, 1), MOST)
        self._users: dict[AppendedFile | Segment, None] = {}  # the one whose file was used the longest ago first

    def open(self, path: str, flags: int) -> int:
        """Calls os.open, with mode 0600; raises OSError. Where the process may open no more, others are closed for
        it."""
        while True:
            try:
                return os.open(path, flags, 0o600)
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE) or not self._users:
                    raise
                self._close_first()

    def use(self, user: "AppendedFile | Segment") -> None:
        """Notes that the file of `user` is used now."""
        users = self._users
        users.pop(user, None)
        users[user] = None
        if len(users) > self._limit:
            self._close_first()

    def _close_first(self) -> None:
        user = next(iter(self._users))
        del self._users[user]
        user.close()

    def hold(self, user: "AppendedFile | Segment") -> None:
        """Notes that the file of `user` is closed, or has to stay open until the next `use`."""
        self._users.pop(user, None)


class AppendedFile:
    """Owns a new file, made by the first `write`, with another name than `target` until `finish`."""

    def __init__(self, target: str, files: OpenFiles) -> None:
        self.path = temporary_path(target)
        self.descriptor = -1  # closed
        self._target = target
        self._files = files
        self._flags = os.O_RDWR | os.O_CREAT | os.O_EXCL

    def open(self) -> None:
        """Opens it, not to be closed by others before `release`; raises OSError."""
        if self.descriptor < 0:
            self.descriptor = self._files.open(self.path, self._flags)
            self._flags = os.O_RDWR
        self._files.hold(self)

    def write(self, parts: list[bytes], position: int) -> int:
        """Writes all `parts` there, at the end of the file, or nothing; returns their size in bytes. Raises
        StorageError."""
        if self.descriptor < 0:
            with failing_as_go("open", self._target):
                self.open()
        try:
            return write_at(self.descriptor, parts, position)
        except OSError as error:
            with suppress(OSError):  # if this also fails, the next write goes over it
                os.ftruncate(self.descriptor, position)
            raise StorageError(path_error("write", self._target, error)) from error

    def finish(self) -> None:
        """Gives it its name; StorageError: it has the old one, or none."""
        rename_file(self.path, self._target)
        self.path = self._target

    def release(self) -> None:
        """Lets others close it."""
        if self.descriptor >= 0:
            self._files.use(self)

    def close(self) -> None:
        self._files.hold(self)
        if self.descriptor >= 0:
            descriptor, self.descriptor = self.descriptor, -1
            with suppress(OSError):
                os.close(descriptor)

    def discard(self) -> None:
        """Closes it and leaves no file."""
        self.close()
        with suppress(OSError):
            os.unlink(self.path)


def mark_continued(segment: Segment) -> None:
    """Has a segment record at its end that another follows, with its index. If that fails, a start takes longer, and
    does not notice if that is lost."""
    index = records.Encoder(segment.salt).continued(segment.index())
    with suppress(OSError):
        descriptor = os.open(segment.path, os.O_WRONLY)
        try:
            segment.size += write_at(descriptor, [index], segment.size)
        except OSError:
            os.ftruncate(descriptor, segment.size)
        finally:
            os.close(descriptor)


class Segments:
    """Owns the list of all segments, the oldest first. One of them may be open for reading, as long as `open_files`
    have room. `unlink` deletes files, and may free their blocks later."""

    def __init__(
        self,
        topic: str,
        segments: list[Segment],
        log: Logger,
        open_files: OpenFiles,
        unlink: Callable[[str], None] = os.unlink,
    ) -> None:
        self._topic = topic
        self._unlink = unlink
        self.all = segments
        self._log = log
        self._open_files = open_files
        self._reading: Segment | None = None

    def reader(self, group: Sequence[Segment]) -> "Segments":
        """Returns some of them once more, with descriptors of their own."""
        copies = [copy(segment) for segment in group]
        for segment in copies:
            segment._descriptor = -1
        return Segments(self._topic, copies, self._log, self._open_files)

    def read(self, number: int, end: int) -> tuple[int, list[bytes], int]:
        """Returns messages as `Segment.read`; (end, [], 0) if there is none in any."""
        while number < end and self.all:
            position = self._open_at(number)
            start, frames, due = self.all[position].read(number, end)
            if frames:
                return start, frames, due
            if position + 1 == len(self.all):
                break
            number = max(number, self.all[position + 1].first)
        return end, [], 0

    def read_records(self, number: int, end: int, size: int, skip: Callable[[int], int]) -> list[bytes]:
        """Returns payloads as `Segment.read_records`, of one segment at most."""
        return self.all[self._open_at(number)].read_records(number, end, size, skip) if self.all else []

    def _open_at(self, number: int) -> int:
        """Opens the segment with message `number`, or the first behind it; returns its position. Raises
        StorageError."""
        position = max(bisect_right(self.all, number, key=lambda segment: segment.first) - 1, 0)
        segment = self.all[position]
        if segment is not self._reading:
            self.end_reading()
            self._reading = segment
        segment.open(self._open_files.open)
        self._open_files.use(segment)
        return position

    def pieces(self, among: Spans, time: int) -> "Iterator[tuple[Spans, array[int], array[int]]]":
        """Iterates over some messages in pieces of at most PIECE spans, each with the numbers of those due later than
        `time` (wall clock, ns), and their due times; not all where an index can't be read. A piece has at most PIECE of
        these. Segments may come and go between two pieces."""
        start, end = among.begin, among.ceiling
        indexed: Segment | None = None
        of_segment = due_times = array("q")
        while start < end:
            stop = min(among.stretch(start, PIECE), end)
            numbers, times = array("q"), array("q")
            segment = next((segment for segment in self.all if segment.end > start), None)
            if segment is not None:
                stop = min(stop, segment.end)
                if segment.latest_due > time:
                    stop = min(stop, start + PIECE)
                    if segment is not indexed:
                        of_segment, due_times = segment.due_times()
                        indexed = segment
                    for begin, behind in among.between(start, stop):
                        first = bisect_left(of_segment, begin)
                        for position in range(first, bisect_left(of_segment, behind, first)):
                            if due_times[position] > time:
                                numbers.append(of_segment[position])
                                times.append(due_times[position])
            yield among.between(start, stop), numbers, times
            start = stop

    def end_reading(self) -> None:
        if self._reading is not None:
            self._open_files.hold(self._reading)
            self._reading.close()
            self._reading = None

    def replace(self, group: list[Segment], by: Segment | None) -> list[Segment]:
        """Replaces neighbours by `by`, which took the file of the last of them; returns the segments to be deleted."""
        position = self.all.index(group[0])
        if self._reading in group:
            self.end_reading()
        self.all[position : position + len(group)] = [] if by is None else [by]
        return group if by is None else group[:-1]

    def delete(self, segments: Sequence[Segment], at_once: bool = False) -> None:
        """Deletes the files, in the list or not, and logs what can't be; `at_once`: also their blocks are free then."""
        for segment in segments:
            if segment is self._reading:
                self.end_reading()
            segment.close()
            unlink = os.unlink if at_once else self._unlink
            try:
                unlink(segment.path)
            except FileNotFoundError:
                pass
            except OSError as error:
                with suppress(OSError):
                    os.truncate(segment.path, 0)  # the rest has no meaning
                self._log.error("JOURNAL(%s): %s", self._topic, path_error("remove", segment.path, error))
