"""What a journal knows of the queues whose messages it keeps."""

from typing import Protocol

from gnsqd.storage.journal_records import Encoder
from gnsqd.storage.spans import Spans


class Queue(Protocol):
    """What a journal asks of a topic or channel; `index` names it for good."""

    index: int
    name: str
    finished: Spans

    def note_finished_span(self, start: int, end: int) -> None:
        """It is done with these messages."""

    def notes(self, encoder: Encoder) -> list[bytes]:
        """Records of what has happened since `forget_notes`."""

    def forget_notes(self) -> None: ...

    def held(self) -> list[tuple[int, int, int]]:
        """(number, attempts, due or 0) of all messages of which one of the latter is not 0."""
