"""Copies the live messages of neighbouring segments of a journal into one that takes the place of the last of them.

Should the daemon be killed in between, the others are still there; a replay counts messages where it meets them last.

A journal may have a million scattered live messages. They are gone through in pieces, with turns for others
in between, and each byte of a segment is read about once.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

from gnsqd.hub.cooperative import BACKGROUND_SECONDS, Turns
from gnsqd.storage.files import sync_path
from gnsqd.storage.journal import records
from gnsqd.storage.journal.open_files import AppendedFile, OpenFiles
from gnsqd.storage.journal.segment import Segment, Segments
from gnsqd.storage.journal.spans import Spans
from gnsqd.storage.syncer import Syncer

WRITE_SIZE = 64 * 1024  # bytes that are written at once, at least

Wanted = Callable[[int, int], Iterator[Spans]]  # `Journal.wanted`


def plan(segments: list[Segment], wanted: Wanted, segment_size: int) -> list[list[Segment]]:
    """Groups of neighbouring segments, each to become one or none; never the last, which is written. First come those
    of which nothing is live, because a copy needs room: without them the others are neighbours. Yields."""
    old = segments[:-1]
    last_size = segments[-1].size
    size = sum(segment.size for segment in segments)
    # Below these bounds nothing is copied, so it is enough to know of which segments nothing is live.
    exact = size > 4 * segment_size or len(old) > 16
    turns = Turns(BACKGROUND_SECONDS)
    live = {segment: _live_size(segment, wanted, exact, turns) for segment in old}
    chosen = [list(group) for is_dead, group in groupby(old, lambda segment: not live[segment]) if is_dead]
    old = [segment for segment in old if live[segment]]
    size = sum(segment.size for segment in old) + last_size
    needed = sum(live.values()) + last_size
    too_large = size > max(4 * segment_size, 2 * needed)
    too_many = len(old) > 16 + 4 * needed // segment_size
    groups: list[list[Segment]] = []
    room = 0
    for segment in old:
        if groups and live[segment] <= room:
            groups[-1].append(segment)
            room -= live[segment]
        else:
            groups.append([segment])
            room = segment_size - live[segment]
    for group in groups:
        saves = sum(segment.size for segment in group) >= 2 * sum(live[segment] for segment in group)
        if (too_large and saves) or (too_many and len(group) > 1):
            chosen.append(group)
    return chosen


def _live_size(segment: Segment, wanted: Wanted, exact: bool, turns: Turns) -> int:
    """How many bytes the live messages in it take; 0 exactly when there is none. Yields."""
    count = 0
    for piece in wanted(segment.first, segment.end):
        count += piece.count()
        if count and not exact:
            return segment.size
        turns.give()
    return segment.size_of(count)


class Rewriting:
    """Of `group`, which `sources` reads. `run`, then `finish` or `discard`; the former gives what has replaced the
    group, None if nothing was left."""

    def __init__(
        self, group: list[Segment], sources: Segments, wanted: Wanted, encoder: records.Encoder, files: OpenFiles
    ) -> None:
        self._sources = sources
        self._end = group[-1].end
        self._pieces = wanted(group[0].first, self._end)
        self._encoder = encoder
        self._target = Segment(group[-1].path, encoder.salt, group[0].first)
        self._file = AppendedFile(self._target.path, files)
        self._parts = [records.first_line(encoder.salt)]  # not yet written
        self._parts_size = records.FIRST_LINE_SIZE
        self._turns = Turns(BACKGROUND_SECONDS)

    def run(self, syncer: Syncer) -> None:
        """Write the copy, if anything is still live; StorageError, and nothing is left of it. Yields."""
        try:
            self._copy()
            if self._target.count:
                self._parts.append(self._encoder.continued(self._target.index()))
                self._write()
                syncer.run(sync_path, self._file.path)
                self._file.close()
        except BaseException:
            self.discard()
            raise
        finally:
            self._sources.end_reading()

    def _copy(self) -> None:
        frames: list[bytes] = []  # read, `first` being the number of the first
        first = due = 0
        for piece in self._pieces:
            self._turns.give()
            for start, end in piece:
                while start < end:
                    if not first <= start < first + len(frames):
                        first, frames, due = self._sources.read(start, self._end)
                        if not frames:
                            return
                        start = first
                    else:
                        for found in records.split(frames[start - first : end - first]):
                            self._put(start, found, due)
                            start += len(found)
                    self._turns.give()

    def _put(self, first: int, frames: Sequence[bytes], due: int) -> None:
        self._target.note_put(first, len(frames), self._target.size + self._parts_size, due)
        self._target.body_size += records.size_of(frames)
        head, payload = self._encoder.put(first, frames, due)
        self._parts += (head, payload)
        self._parts_size += len(head) + len(payload)
        if self._parts_size >= WRITE_SIZE:
            self._write()

    def _write(self) -> None:
        self._target.size += self._file.write(self._parts, self._target.size)
        self._parts, self._parts_size = [], 0

    def finish(self) -> Segment | None:
        """Put the copy in place; StorageError. Never yields."""
        if not self._target.count:
            return None
        self._file.finish()
        return self._target

    def discard(self) -> None:
        self._file.discard()
