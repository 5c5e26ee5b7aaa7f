"""Copies what is wanted of some neighbouring segments of a journal into one that takes the place of the last of them.

Should the daemon be killed in between, the others are still there; a replay counts messages where it meets them last.
"""

import os
import random
from contextlib import suppress
from time import perf_counter

from gevent import sleep

from gnsqd.errors import StorageError
from gnsqd.storage import journal_records as records
from gnsqd.storage.files import failing_as_go, path_error, rename_file, sync_path, write_at
from gnsqd.storage.segment import Segment
from gnsqd.storage.spans import Spans
from gnsqd.storage.syncer import Syncer

TURN_SECONDS = 0.003


def plan(segments: list[Segment], wanted: Spans, segment_size: int) -> list[list[Segment]]:
    """Groups of neighbouring segments, each to become one or none; never the last, which is written."""
    old = segments[:-1]
    live = {segment: segment.estimate(wanted) for segment in old}
    needed = sum(live.values()) + segments[-1].size
    too_large = sum(segment.size for segment in segments) > max(4 * segment_size, 2 * needed)
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
    chosen = []
    for group in groups:
        group_live = sum(live[segment] for segment in group)
        saves = too_large and sum(segment.size for segment in group) >= 2 * group_live
        if not group_live or saves or (too_many and len(group) > 1):
            chosen.append(group)
        else:
            chosen += [[segment] for segment in group if not live[segment]]
    return chosen


class Rewriting:
    """`run`, then `finish` or `discard`; the former gives what has replaced the group, None if nothing was left."""

    def __init__(self, group: list[Segment], wanted: Spans, encoder: records.Encoder) -> None:
        self._sources = [Segment.reader(segment) for segment in group]
        self._wanted = wanted
        self._encoder = encoder
        self._target = Segment(group[-1].path, group[-1].number, encoder.salt, group[0].first)
        self._temporary = f"{group[-1].path}.{random.getrandbits(63)}.tmp"

    def run(self, syncer: Syncer) -> None:
        """Write the copy; StorageError, and nothing is left of it. Yields."""
        with failing_as_go("open", self._temporary):
            descriptor = os.open(self._temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            self._append(descriptor, records.first_line(self._encoder.salt))
            for source in self._sources:
                self._copy(descriptor, source)
            syncer.run(sync_path, self._temporary)
        except BaseException:
            self.discard()
            raise
        finally:
            os.close(descriptor)
            for source in self._sources:
                source.close()

    def _copy(self, descriptor: int, source: Segment) -> None:
        turn = perf_counter() + TURN_SECONDS
        for start, end in self._wanted:
            number, end = max(start, source.first), min(end, source.end)
            while number < end:
                number, frames, due = source.read(number, end)
                if not frames:
                    break
                self._target.note_put(number, len(frames), self._target.size)
                self._append(descriptor, *self._encoder.put(number, frames, due))
                number += len(frames)
                if perf_counter() >= turn:
                    sleep(1e-6)
                    turn = perf_counter() + TURN_SECONDS

    def _append(self, descriptor: int, *parts: bytes) -> None:
        try:
            self._target.size += write_at(descriptor, list(parts), self._target.size)
        except OSError as error:
            raise StorageError(path_error("write", self._temporary, error)) from error

    def finish(self) -> Segment | None:
        """Put the copy in place; StorageError. Never yields."""
        if not self._target.count:
            self.discard()
            return None
        rename_file(self._temporary, self._target.path)
        return self._target

    def discard(self) -> None:
        with suppress(OSError):
            os.unlink(self._temporary)
