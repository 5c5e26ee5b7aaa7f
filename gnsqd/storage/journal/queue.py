"""What a journal knows of the queues whose messages it keeps."""

from collections.abc import Iterator
from typing import Protocol

from gnsqd.storage.journal.records import Encoder
from gnsqd.storage.journal.spans import Spans

Held = list[tuple[int, int, int]]  # (number, attempts, due or 0) of messages of which one of the latter is not 0


class Queue(Protocol):
    """What a journal asks of a topic or channel; `index` names it for good."""

    index: int
    name: str
    finished: Spans

    def note_finished_span(self, start: int, end: int) -> None:
        """It is done with these messages."""

    def notes(self, encoder: Encoder, total: bool) -> list[bytes]:
        """Records of what has happened since `forget_notes`; if `total`, each has all that is known of a message."""

    def forget_notes(self) -> None: ...

    @property
    def held_count(self) -> int:
        """How many messages `held` has to copy, about."""

    def held(self) -> Iterator[Held]:
        """All that it holds when this is called, in pieces of MAX_HELD."""
