"""A topic with channels on a journal, for the tests of journals."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import gevent

from gnsqd.log import Logger
from gnsqd.options import Options
from gnsqd.queues.backend import Backend
from gnsqd.queues.journal.journal import Journal
from gnsqd.queues.journal.journals import Journals
from gnsqd.queues.journal.states import QueueNotes
from gnsqd.queues.queue import Queue
from gnsqd.storage.syncer import Syncer

SEGMENT = 100_000  # bytes
BODY = 80


def journal_options(directory: Path, segment_size: int, durable: bool) -> Options:
    durability = "disk" if durable else "process"
    return Options(data_path=os.fspath(directory), max_bytes_per_file=segment_size, durability=durability)


class JournaledTopic:
    """A topic as a daemon has it, on segments of `size` bytes; `start` begins the loops that a daemon runs."""

    kind = QueueNotes  # the class of what each queue notes

    def __init__(self, directory: Path, syncer: Syncer, log: Logger, channels: int, durable: bool, size: int) -> None:
        self.directory = directory
        names = os.listdir(directory)
        self.journals = Journals(journal_options(directory, size, durable), names, log, syncer, lambda error: None)
        self.journal = self.journals.open("t")
        self.topic, *self.channels = (
            notes(name, self.journal, log, self.kind) for name in ["t", *(f"t:{number}" for number in range(channels))]
        )
        states = self.journal.replay.queues
        self.topic.finished = states[0].finished
        self.journal.states.add(self.topic, 0)
        for index, channel in enumerate(self.channels, 1):
            channel.finished = states[index].finished if index in states else self.topic.finished.copy()
            self.journal.states.add(channel, index if index in states else -1)
        self._greenlets: list[gevent.Greenlet[[], None]] = []

    def start(self) -> None:
        self._greenlets = [gevent.spawn(self.journals.journal_loop), gevent.spawn(self.journals.compaction_loop)]

    def put(self, number_of_messages: int) -> range:
        """Publishes as many, and hands them over to the channels; returns their numbers."""
        first = self.journal.log.next_number
        numbers = range(first, first + number_of_messages)
        for start in range(first, numbers.stop, 500):
            stop = min(start + 500, numbers.stop)
            self.journal.log.append([frame(number, BODY) for number in range(start, stop)])
            self.topic.note_finished_span(start, stop)
            self.journal.commit()
        return numbers

    def put_and_keep_few(self) -> range:
        """Publishes 10,000, and finishes all but each 50th; returns the numbers of those."""
        kept = self.put(10_000)[::50]
        self.finish(*((number + 1, number + 50) for number in kept))
        return kept

    def finish(self, *spans: tuple[int, int]) -> None:
        for channel in self.channels:
            for start, end in spans:
                channel.note_finished_span(start, end)

    def size(self) -> int:
        return sum(path.stat().st_size for path in self.directory.iterdir())

    def names(self) -> set[str]:
        return set(os.listdir(self.directory))

    def has(self, number: int) -> bool:
        return self.journal.log.read(number, number + 1) == (number, [frame(number, BODY)], 0)

    def close(self) -> None:
        self.journals.stop()
        gevent.joinall(self._greenlets)
        self.journal.close()


def notes(name: str, journal: Journal, log: Logger, kind: type[QueueNotes] = QueueNotes) -> QueueNotes:
    """Returns the notes of a queue that has no messages in memory."""
    made = kind(name, journal.states)
    made.queue = Queue(name, Options(), log, Backend())
    return made


def frame(number: int, size: int = 20) -> bytes:
    body = b"%d" % number
    return (size).to_bytes(4, "big") + body.ljust(size, b".")


def read_all(journal: Journal, start: int = 1) -> dict[int, bytes]:
    found = {}
    while start < journal.log.next_number:
        start, frames, _ = journal.log.read(start, journal.log.next_number)
        for data in frames:
            found[start] = data
            start += 1
    return found


def failing(code: int) -> Callable[..., NoReturn]:
    """Returns a call of the system that does not work."""

    def fail(*arguments: object) -> NoReturn:
        raise OSError(code, os.strerror(code))

    return fail
