"""All segments of a journal, the oldest first: where a message is read, and what is deleted or replaced."""

from bisect import bisect_right
from collections.abc import Sequence

from gnsqd.errors import StorageError
from gnsqd.log import Logger
from gnsqd.storage.journal.open_files import OpenFiles
from gnsqd.storage.journal.segment import Segment


class Segments:
    """Owns the list. One of the segments may be open for reading, as long as `open_files` have room."""

    def __init__(self, topic: str, segments: list[Segment], log: Logger, open_files: OpenFiles) -> None:
        self._topic = topic
        self.all = segments  # not to be changed by others
        self._log = log
        self._open_files = open_files
        self._firsts: list[int] = []
        self._reading: Segment | None = None
        self._index()

    def __len__(self) -> int:
        return len(self.all)

    def _index(self) -> None:
        self._firsts = [segment.first for segment in self.all]

    def append(self, segment: Segment) -> None:
        self.all.append(segment)
        self._firsts.append(segment.first)

    def cut(self, end: int) -> None:
        """Messages from `end` on will also be in a later segment, which counts."""
        for segment in self.all:
            segment.cut(end)
        self._index()

    def read(self, number: int, end: int) -> tuple[int, list[bytes], int]:
        """As `Segment.read`; (end, [], 0) if there is none in any."""
        while number < end:
            position = max(bisect_right(self._firsts, number) - 1, 0)
            if position >= len(self.all):
                break
            segment = self.all[position]
            if segment is not self._reading:
                self.end_reading()
                self._reading = segment
            segment.open(self._open_files)
            start, frames, due = segment.read(number, end)
            if frames:
                return start, frames, due
            if position + 1 == len(self.all):
                break
            number = max(number, self._firsts[position + 1])
        return end, [], 0

    def end_reading(self) -> None:
        if self._reading is not None:
            self._open_files.hold(self._reading)
            self._reading.close()
            self._reading = None

    def have(self, group: Sequence[Segment]) -> bool:
        return all(segment in self.all for segment in group)

    def drop_below(self, floor: int) -> None:
        """Delete the oldest as far as they have no message from `floor` on, except for the last of all."""
        gone = 0
        while gone < len(self.all) - 1 and self.all[gone].end <= floor:
            gone += 1
        if gone:
            self.delete(self.all[:gone])
            del self.all[:gone]
            del self._firsts[:gone]

    def replace(self, group: list[Segment], by: Segment | None) -> list[Segment]:
        """Replace neighbours by `by`, which took the file of the last of them; returns the segments to be deleted."""
        position = self.all.index(group[0])
        if self._reading in group:
            self.end_reading()
        self.all[position : position + len(group)] = [] if by is None else [by]
        self._index()
        return group if by is None else group[:-1]

    def delete(self, segments: Sequence[Segment]) -> None:
        """Delete the files, whether they are in the list or not; what can't be deleted is logged."""
        for segment in segments:
            if segment is self._reading:
                self.end_reading()
            try:
                segment.remove()
            except StorageError as error:
                self._log.error("JOURNAL(%s): %s", self._topic, error)
