"""What was appended to a journal and is not written yet.

Records of queues that come and go stand first, then messages, then what the queues record about their messages.
Messages that follow each other share a record, few enough that damage, which costs the whole record, costs little.
"""

from collections.abc import Iterator, Sequence
from sys import maxsize

from gnsqd.storage.journal import records

MAX_MESSAGES = 32  # in a record
MAX_RECORD = 32 * 1024  # bytes of the messages in a record, on average, except for a single larger one

Mark = tuple[int, int, int]  # of a record of messages: first number, count, offset among these records


class Batch:
    """Owns the records. `controls` and `lasts` are those before and behind all others."""

    def __init__(self, encoder: records.Encoder) -> None:
        self.controls: list[bytes] = []
        self.lasts: list[bytes] = []
        self.puts: list[bytes] = []  # head and payload of each record
        self.marks: list[Mark] = []
        self.puts_size = 0
        self._encoder = encoder
        self._frames: list[bytes] = []  # without due time, not yet a record
        self._frames_first = 0
        self._frames_size = 0

    @property
    def has_messages(self) -> bool:
        return bool(self._frames or self.puts)

    @property
    def first(self) -> int:
        """The number of the first message, behind all numbers if there is none."""
        if self.marks:
            return self.marks[0][0]
        return self._frames_first if self._frames else maxsize

    def put(self, first: int, frames: Sequence[bytes], due: int) -> int:
        """Messages with numbers from `first` on, which follows those before; how many bytes they are."""
        size = size_of(frames)
        full = self._frames_size + size > MAX_RECORD or len(self._frames) + len(frames) > MAX_MESSAGES
        if due or full:
            self.close_record()
        if due or size > MAX_RECORD or len(frames) > MAX_MESSAGES:
            for part in split(frames):
                self._add(first, part, due)
                first += len(part)
        else:
            if not self._frames:
                self._frames_first = first
            self._frames += frames
            self._frames_size += size
        return size

    def close_record(self) -> None:
        """Make a record of the messages that have none."""
        if self._frames:
            self._add(self._frames_first, self._frames, 0)
            self._frames, self._frames_size = [], 0

    def _add(self, first: int, frames: Sequence[bytes], due: int) -> None:
        head, payload = self._encoder.put(first, frames, due)
        self.puts.append(head)
        self.puts.append(payload)
        self.marks.append((first, len(frames), self.puts_size))
        self.puts_size += len(head) + len(payload)

    def prepend(self, written: Sequence[tuple[list[bytes], list[Mark]]]) -> None:
        """Take messages back that were written already: `puts` and `marks` as they were then, in order."""
        self.close_record()
        puts, marks, offset = [], [], 0
        for older_puts, older_marks in [*written, (self.puts, self.marks)]:
            for position, (first, count, _) in enumerate(older_marks):
                record = older_puts[2 * position : 2 * position + 2]
                puts += record
                marks.append((first, count, offset))
                offset += sum(map(len, record))
        self.puts, self.marks, self.puts_size = puts, marks, offset

    def clear(self) -> None:
        """All of it is written."""
        self.controls.clear()
        self.lasts.clear()
        self.puts, self.marks, self.puts_size = [], [], 0

    def drop(self) -> None:
        """Nothing of it is to be written."""
        self.clear()
        self._frames, self._frames_size = [], 0


def split(frames: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """The messages of each record."""
    # By the mean size: a loop over all messages would cost more than their records.
    step = max(min(MAX_RECORD * len(frames) // size_of(frames), MAX_MESSAGES), 1)
    for begin in range(0, len(frames), step):
        yield frames[begin : begin + step]


def size_of(frames: Sequence[bytes]) -> int:
    """Of all of them, in bytes."""
    size = 0
    for frame in frames:
        size += len(frame)
    return size
