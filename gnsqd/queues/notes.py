"""The notes of a queue for the journal of its topic: which messages its owner has taken, held back, and finished (a
topic: handed over). The journal writes them with its next record, and all of them to a snapshot."""

from collections.abc import Iterable, Iterator
from copy import deepcopy
from itertools import chain, islice, starmap
from time import monotonic_ns, time_ns
from typing import TypeVar

from gnsqd.queues.message import Message
from gnsqd.queues.queue import Queue
from gnsqd.queues.schedule import Schedule
from gnsqd.shared.journal.records import FINISHED, MAX_ATTEMPTS, MAX_HELD, TAKEN, Encoder
from gnsqd.shared.journal.spans import Spans
from gnsqd.storage.journal.journal import Journal
from gnsqd.storage.journal.queue_states import Held

T = TypeVar("T")


class QueueNotes:
    """The state of one queue in a journal, the topic's own queue if `index` is 0, and the notes not yet written.

    `finished` has the numbers of finished messages, `attempts` those of stored messages that were delivered before,
    `deferred` those held back and not in memory. `logs` are sets that also receive what is finished."""

    queue: Queue  # whose state this is

    def __init__(self, name: str, journal: Journal) -> None:
        self.name = name
        self.index = 0
        self.finished = Spans()
        self.attempts: dict[int, int] = {}
        self.deferred = Schedule()
        self.logs: list[Spans] = []
        self._journal = journal
        self._noted = False
        self._finished: list[tuple[int, int]] = []
        self._taken: list[tuple[int, int]] = []
        self._held: dict[int, tuple[int, int, int]] = {}  # number, attempts and due time; the last of each message

    def note_finished_span(self, start: int, end: int) -> None:
        if start >= end:
            return
        self.finished.add(start, end)
        for log in self.logs:
            log.add(start, end)
        notes = self._finished
        if notes and notes[-1][1] == start:
            start = notes.pop()[0]
        notes.append((start, end))
        self._note()

    def forget_from(self, first: int, end: int) -> None:
        """Forgets the messages from number `first` to `end`, the last ones: others will get these numbers."""
        self.finished.remove(first, end)
        for spans in (self._finished, self._taken):
            spans[:] = [(start, min(behind, first)) for start, behind in spans if start < first]
        for number in range(first, end):
            self._held.pop(number, None)
            self.attempts.pop(number, None)

    def note_taken(self, messages: list[Message]) -> None:
        """Notes that these messages are about to be delivered once more."""
        # A redelivery is noted as a total: spans would merge several into one.
        again = False
        for message in messages:
            if message.attempts:
                self._held[message.number] = (message.number, min(message.attempts + 1, MAX_ATTEMPTS), 0)
                again = True
        if again:
            messages = [message for message in messages if not message.attempts]
        self._taken += runs_of(messages)
        self._note()

    def note_held(self, message: Message, due: int) -> None:
        """Notes that a message is held back until `due` (wall clock, ns); 0 if it is not."""
        self._held[message.number] = (message.number, message.attempts, due)
        self._note()

    def _note(self) -> None:
        if not self._noted:
            self._noted = True
            self._journal.states.note(self)

    def notes(self, encoder: Encoder, total: bool) -> list[bytes]:
        """Returns the notes as records; if `total`, each has all that is known of a message."""
        records = []
        if total:
            numbers = chain.from_iterable(starmap(range, self._taken))
            records += encoder.held(self.index, [(number, 1, 0) for number in numbers])
        elif self._taken:
            records.append(encoder.spans(TAKEN, self.index, self._taken))
        if self._held:
            records += encoder.held(self.index, [*self._held.values()])
        if self._finished:
            records.append(encoder.spans(FINISHED, self.index, self._finished))
        return records

    def forget_notes(self) -> None:
        """Drops the notes: they were written, or do not matter any more."""
        self._noted = False
        self._taken.clear()
        self._held.clear()
        self._finished.clear()

    @property
    def held_count(self) -> int:
        """About how many messages `held` has to copy."""
        return len(self.attempts) + len(self.deferred)

    def held(self) -> Iterator[Held]:
        """Yields what is known of all messages when this is called, in pieces of MAX_HELD."""
        wall = time_ns() - monotonic_ns()
        attempts = self.attempts.copy()
        held = deepcopy(self.deferred) if attempts else ()  # without attempts the due time is where the message is
        queue = self.queue
        in_memory, deferred = [*queue.memory, *queue.outside()], [*queue.deferred] if queue.deferred is not None else []

        def known() -> Iterator[Held]:
            for piece in _pieces(held):
                yield [(n, attempts.pop(n), wall + due) for due, n in piece if n in attempts]
            for rest in _pieces(attempts.items()):
                yield [(n, count, 0) for n, count in rest]

        return chain(  # of two entries of a message the later counts
            [[*self._held.values()]],
            known(),
            ([(each.number, each.attempts, 0) for each in piece if each.attempts] for piece in _pieces(in_memory)),
            ([(each.number, each.attempts, wall + each.deadline) for each in piece] for piece in _pieces(deferred)),
        )


def _pieces(items: Iterable[T]) -> Iterator[list[T]]:
    rest = iter(items)
    while piece := list(islice(rest, MAX_HELD)):
        yield piece


def runs_of(messages: list[Message]) -> list[tuple[int, int]]:
    """Returns the numbers of messages as runs: the first of each, and the one behind its last."""
    runs: list[tuple[int, int]] = []
    start = end = -1
    for message in messages:
        number = message.number
        if number != end:
            if end > start:
                runs.append((start, end))
            start = number
        end = number + 1
    if end > start:
        runs.append((start, end))
    return runs
