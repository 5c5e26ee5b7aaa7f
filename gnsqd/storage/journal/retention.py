"""What a journal keeps of messages that every queue has finished: the newest segments, as far as two bounds allow.

Only whole segments go. One has at most an eighth of the bytes, and messages of an eighth of the time.
"""

from contextlib import suppress
from struct import Struct
from sys import maxsize
from time import monotonic, time_ns

from gnsqd.options import SECOND
from gnsqd.shared.errors import StorageError
from gnsqd.storage.journal.segment import Segment, Segments

PARTS = 8
_TIMESTAMP = Struct(">8xq")  # of a frame, behind size and type


class Retention:
    """Of one journal: at most `max_bytes`, none if 0, of messages that are at most `max_age` ns old, or of any age if
    that is 0."""

    def __init__(self, max_bytes: int, max_age: int, begin: int) -> None:
        self.begin = begin if max_bytes else maxsize  # messages from this number on are kept; never goes back
        self.max_segment = max_bytes // PARTS if max_bytes else maxsize  # bytes
        self.max_bytes = max_bytes
        self.max_age = max_age

    def age(self, segments: Segments) -> float:
        """Of the first message in the last segment, in seconds; 0 if ages do not matter."""
        if not self.max_age or not segments:
            return 0.0
        with suppress(StorageError):
            if published := _published(segments.all[-1].first, segments):
                return (time_ns() - published) / SECOND
        return 0.0

    def is_aged(self, begun: float) -> bool:
        """Whether a segment that was begun at that time (monotonic) is to be followed by another."""
        return self.max_age > 0 and monotonic() - begun > self.max_age / PARTS / SECOND

    def advance(self, segments: Segments, growth: int) -> None:
        """Keep the oldest segments no longer, as far as they exceed a bound once the last has grown by `growth` bytes;
        StorageError."""
        if not self.max_bytes or not segments:
            return
        horizon = time_ns() - self.max_age if self.max_age else 0
        room = self.max_bytes - growth - segments.all[-1].size
        kept = segments.all[-1]
        for segment in reversed(segments.all[:-1]):
            room -= segment.size
            if room < 0 or (horizon and _newest(segment, segments) < horizon):
                break
            kept = segment
        self.begin = max(self.begin, kept.first)


def _newest(segment: Segment, segments: Segments) -> int:
    """When the last message of a segment that does not grow any more was published (wall clock, ns)."""
    if not segment.newest:
        segment.newest = _published(segment.end - 1, segments) or 1
    return segment.newest


def _published(number: int, segments: Segments) -> int:
    """When the first message from `number` on was published (wall clock, ns), 0 if there is none."""
    frames = segments.read(number, maxsize)[1]
    return int(_TIMESTAMP.unpack_from(frames[0])[0]) if frames else 0
