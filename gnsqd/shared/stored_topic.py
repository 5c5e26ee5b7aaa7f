"""The log of a topic in an object store (`--log-store`), read by number without its gnsqd: in *live* segments, which
that has on its disk, and in *dead* ones, which it has no more. These may overlap, as messages that are still needed are
copied out of segments."""

import os
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from operator import itemgetter
from sys import maxsize
from tempfile import TemporaryDirectory
from typing import NamedTuple

from gnsqd.shared import log_store
from gnsqd.shared.disk_format import Gap, decode_record, parse_segment_name, topic_of
from gnsqd.shared.errors import StorageError
from gnsqd.shared.journal import records
from gnsqd.shared.journal.replay import Replay
from gnsqd.shared.journal.segment import Segment, read_index
from gnsqd.shared.journal.spans import Spans
from gnsqd.shared.log_store import LogStore, ObjectMissing, Stored, StoredFile, StoredLog

_FRAME_HEAD = 8  # bytes of size and type

Note = Callable[[Gap], None]
Record = tuple[int, int, bytes, bytes]  # of a message, as `decode_record` returns it


def log_begin(log: StoredLog | None) -> int:
    """Returns behind which number `read_log` finds newer states, without a listing of all older objects."""
    return log.last.first - 1 if log and log.last else 0


def _file(stored: Stored) -> StoredFile:
    return StoredFile(stored.name, stored.size, stored)


class StoredRange(NamedTuple):
    """The messages from number `start` up to, not including, `end`, in the first of the `files` that has each; `wals`
    is what fetching these needs, and `after` where a newer state of the log is to be found. Methods raise StorageError,
    ObjectMissing if the log has gone on without a file."""

    start: int
    end: int
    files: tuple[StoredFile, ...]
    wals: dict[int, tuple[int, int, int]]
    after: int

    @classmethod
    def of(cls, log: StoredLog, files: Sequence[StoredFile], start: int = 0, end: int = 0) -> "StoredRange":
        numbers = {part.number for file in files for part in file.parts}
        return cls(start, end, tuple(files), {number: log.wals[number] for number in numbers}, log_begin(log))

    def fetch(self, store: LogStore, file: StoredFile) -> bytes:
        """Returns one of the files: 64 MiB at most."""
        try:
            with TemporaryDirectory(prefix="gnsqd.") as directory:
                log_store.restore(store, StoredLog(files={file.name: file}, wals=self.wals), directory)
                with open(os.path.join(directory, file.name), "rb") as opened:
                    return opened.read()
        except StorageError:  # the log may have gone on, so that other objects have it
            log = log_store.read_log(store, after=self.after)
            newer = log.files.get(file.name)
            if newer is None or newer == file:
                raise
            return StoredRange.of(log, [newer]).fetch(store, newer)

    def read(self, store: LogStore, file: StoredFile, note: Note) -> Iterator[tuple[int, bytes]]:
        """Yields type and payload of each record of a file; `note` gets damage."""
        data, path = self.fetch(store, file), file.stored.object if file.stored else file.name
        for item in records.read_records(path, data, records.parse_first_line(data)):
            if not isinstance(item, Gap):
                yield item.type, data[item.start : item.end]
            elif file.stored or item.end < len(data):  # else the write of its last record goes on
                note(item)

    def records(
        self, store: LogStore, epoch: str, unread: Spans, note: Note = lambda gap: None
    ) -> Iterator[tuple[int, int, memoryview]]:
        """Yields number of the first message, count and frames of what is `unread`, and takes it out of there."""
        missing, found = unread.between(self.start, self.end), []
        for file in self.files if missing else ():
            for type, payload in self.read(store, file, note):
                if type == records.EPOCH and payload.hex() != epoch:
                    break  # of a topic that was deleted, and made again under its name: this is before the messages
                if type != records.PUT:
                    continue
                first, count, _ = records.decode_put(payload)
                for begin, end in missing.between(first, first + count):
                    frames = memoryview(records.cut_put(payload, begin, end))[records.PUT_HEAD :]
                    found.append((begin, end - begin, frames))
                    missing.remove(begin, end)
            if not missing:
                break
        for begin, count, frames in sorted(found, key=itemgetter(0)):
            yield begin, count, frames
            unread.remove(begin, begin + count)


class StoredTopic:
    """The segments of a topic in a state of the log. Methods raise StorageError as those of a range; `note` gets what
    is damaged of that which they read."""

    def __init__(self, store: LogStore, log: StoredLog, topic: str, note: Note = lambda gap: None) -> None:
        self._store, self._log, self._topic, self._note = store, log, topic, note
        found = sorted((segment, name) for name in log.files if (segment := parse_segment_name(name)) is not None)
        self.live = [log.files[name] for segment, name in found if segment[0] == topic]  # in the order of messages

    @cached_property
    def dead(self) -> list[Stored]:
        return [each for each in log_store.dead_segments(self._store, self._log) if topic_of(each.name) == self._topic]

    @cached_property
    def _bounds(self) -> list[tuple[int, int, StoredFile]]:
        """The numbers of the messages that each file may have. Last are those of which only wal objects have the end:
        what these have is not known, but nothing that is before the segment before."""
        bounds, first = [(each.first, each.end, _file(each)) for each in self.dead], 0
        for file in self.live:
            first = file.stored.first if file.stored else first
            bounds.append((first, file.stored.end if file.stored and not file.parts else maxsize, file))
        return sorted(bounds, key=itemgetter(1))

    def epoch(self) -> str:
        """Returns the name of the log, as the newest segment that has it."""
        for file in reversed([*map(_file, self.dead), *self.live]):
            for type, payload in StoredRange.of(self._log, [file]).read(self._store, file, self._note):
                if type == records.EPOCH:
                    return payload.hex()
        return ""

    def _begins(self, start: int, end: int) -> list[int]:
        return sorted({start, *(first for first, _, _ in self._bounds if start < first < end)})

    def cut(self, start: int, end: int = maxsize) -> Iterator[StoredRange]:
        """Yields the range in parts, cut where segments begin, so that nearly always one file has all of a part."""
        for first, last in pairwise([*self._begins(start, end), end]):
            files = [file for at, stop, file in self._bounds if at < last and first < stop]
            yield StoredRange.of(self._log, files, first, last)

    def outline(self, directory: str) -> list[str]:
        """Writes the live segments to a directory, and returns their paths, for a replay: of those before the newest
        whole snapshot, sketches suffice."""
        paths: list[str] = []
        is_whole = False
        for file in reversed(self.live):
            paths.insert(0, os.path.join(directory, file.name))
            if not is_whole or not file.stored or file.parts or self._sketch(file.stored, paths[0]) is None:
                log_store.restore(self._store, self._log, directory, [file.name])
            if not is_whole:
                replay = Replay(self._topic)
                replay.read(paths[:1])
                is_whole = replay.whole
        return paths

    def _sketch(self, stored: Stored, path: str) -> Spans | None:
        """Writes a segment without its messages; returns the numbers of these, None if it has no index, as a copy."""
        end = self._store.read(stored.object, max(stored.size - records.FIRST_LINE_SIZE, 0), stored.size)
        begin = max(stored.size - records.index_size(end), 0)
        with open(path, "wb") as file:
            file.write(self._store.read(stored.object, 0, records.FIRST_LINE_SIZE))
            file.seek(begin)
            file.write(self._store.read(stored.object, begin, stored.size))
        index = read_index(path)
        return Segment.indexed(path, *index)[1] if index else None

    def numbers(self, stored: Stored) -> Spans:
        """Returns the numbers of the messages in a segment."""
        with TemporaryDirectory(prefix="gnsqd.") as directory:
            found = self._sketch(stored, os.path.join(directory, stored.name))
        if found is None:
            found, file = Spans(), _file(stored)
            for type, payload in StoredRange.of(self._log, [file]).read(self._store, file, self._note):
                if type == records.PUT:
                    first, count, _ = records.decode_put(payload)
                    found.add(first, first + count)
        return found

    def messages(
        self, epoch: str, start: int, end: int = maxsize, tries: int = log_store.TRIES
    ) -> Iterator[tuple[int, Record]]:
        """Yields the messages of a range that are there, with their numbers. Objects may go meanwhile: then the rest is
        that of a newer state, unless it lacks what is next again and again."""
        unread, reached = Spans(), start
        unread.add(start, end)
        try:
            for part in self.cut(start, end):
                for first, count, frames in part.records(self._store, epoch, unread, self._note):
                    reached = first + count
                    for number, frame in enumerate(records.split_frames(bytes(frames), 0, 0), first):
                        yield number, decode_record(frame[_FRAME_HEAD:])
        except ObjectMissing:
            tries = tries - 1 if reached == start else log_store.TRIES
            if not tries:
                raise
            newer = log_store.with_log(self._store, lambda log: StoredTopic(self._store, log, self._topic, self._note))
            yield from newer.messages(epoch, reached, end, tries)

    def published(self, epoch: str, start: int, end: int = maxsize) -> int:
        """Returns when the first message of a range was published (wall clock, ns), 0 if there is none."""
        return next((record[0] for _, record in self.messages(epoch, start, end)), 0)

    def number_at(self, epoch: str, time: int, start: int = 0, end: int = maxsize) -> int:
        """Returns the number of the first message of a range that was published at a time (wall clock, ns) or later,
        else `end`: times rise with numbers."""
        begins = self._begins(start, end)
        at = bisect_left(begins, time, key=lambda begin: self.published(epoch, begin, end) or maxsize)
        found = self.messages(epoch, begins[max(at - 1, 0)], end)
        return next((number for number, record in found if record[0] >= time), end)
