"""A journal with any one byte wrong, or any of its files cut at any length: all that the damage spares comes, nothing
comes that was never published, and there is a line about it (contrib/docs/data-directory.md)."""

from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import pytest
from gevent import killall

from faults.test_every_byte import Damage
from gnsqd.log import Level, Logger
from gnsqd.options import Options
from gnsqd.queues.journal.backend import backend_of, deferred_of
from gnsqd.queues.journal.store import JournalStore
from gnsqd.queues.message import Message
from gnsqd.shared.journal.replay import Replay
from gnsqd.storage.syncer import Syncer
from unit.broker.fakes import MINUTE, FakeConsumer, Fakes, settle

OPTIONS = Options(durability="process")
HALF_AN_HOUR = 30 * MINUTE
BODIES = [b"<body %d>" % number for number in range(10)]
FINISHED = {BODIES[0], BODIES[5]}
FIRST_LINE = len(b"gnsqd journal 1 01234567\n")
BEFORE_FRAME = 4 + 4 + 4 + 1 + 8 + 4 + 8  # mark, size, CRC, type, number, count, due time
BEFORE_BODY = 4 + 4 + 8 + 2 + 16  # size, type, timestamp, attempts, id


@pytest.fixture
def syncer() -> Iterator[Syncer]:
    syncer = Syncer()
    yield syncer
    syncer.stop()


def lay_out(directory: Path, syncer: Syncer, daemons: int) -> None:
    """Leaves what several killed daemons do: messages that are finished, put back, in flight, deferred and waiting in
    channel `t:c`, in this order and each in a record of its own."""
    for first in range(0, 5 * daemons, 5):
        around = Fakes(directory, OPTIONS, syncer)
        journals = around.stores.journals
        around.registry.load([], journals.topics)
        consumer = FakeConsumer(1)
        topic = around.registry.get_topic("t")
        channel = topic.get_channel("c")
        finished, put_back, in_flight, deferred, waiting = BODIES[first : first + 5]
        for body in (finished, put_back, in_flight):
            topic.publish([body])
            topic.commit()
        settle()
        taken: dict[bytes, bytes] = {}
        while messages := channel.take(consumer, 10, MINUTE, 0):
            taken |= {message.body: message.id for message in messages}
        channel.finish(consumer.id, taken[finished])
        channel.requeue(consumer.id, taken[put_back], HALF_AN_HOUR)
        topic.publish([deferred], HALF_AN_HOUR)
        topic.commit()
        topic.publish([waiting])
        topic.commit()
        settle()
        journals.flush_dirty()
        killall(around.greenlets)


class Files:
    """The files of a journal, the oldest first, and where in them each message is."""

    def __init__(self, directory: Path) -> None:
        self.data = {path.name: path.read_bytes() for path in sorted(directory.glob("t.journal.*.dat"))}
        self.last = max(self.data)
        self.frames: dict[bytes, bytes] = {}  # by body
        self._records: dict[bytes, tuple[str, int, int]] = {}
        for name, data in self.data.items():
            for body in BODIES:
                if body in data:
                    at = data.index(body)
                    end = at + len(body)
                    self.frames[body] = data[at - BEFORE_BODY : end]
                    self._records[body] = name, at - BEFORE_BODY - BEFORE_FRAME, end

    def damages(self) -> list[Damage]:
        return [
            Damage(name, at, mask)
            for name, data in self.data.items()
            for at in range(len(data))
            for mask in (0, 0x01 if at % 2 else 0xFF)
        ]

    def put(self, directory: Path, damage: Damage) -> None:
        for name, data in self.data.items():
            (directory / name).write_bytes(damage.apply(data) if name == damage.file else data)

    def spared(self, damage: Damage) -> set[bytes]:
        """Returns the bodies that are not finished and not hit. Without its first line nothing in a file counts."""
        return {body for body, record in self._records.items() if not self._hits(damage, *record)} - FINISHED

    @staticmethod
    def _hits(damage: Damage, name: str, begin: int, end: int) -> bool:
        if damage.file != name:
            return False
        if damage.mask:
            return damage.at < FIRST_LINE or begin <= damage.at < end
        return damage.at < end


def replay(directory: Path, syncer: Syncer) -> tuple[set[bytes], str]:
    """Returns the frames of all messages that topic and channel have to give, and the log."""
    around = Fakes(directory, OPTIONS, syncer)
    store = around.stores.open_store("t")
    assert isinstance(store, JournalStore)
    messages: list[Message] = []
    channel = store.channel_queue("c")
    for queue in (channel, store.queue):
        while batch := queue.backend.read(100, 1 << 20):
            messages += batch
    messages += deferred_of(channel).stored_messages()
    backend_of(store.queue).journal.close()
    return {message.frame for message in messages}, around.log.getvalue()


def everything_read(directory: Path) -> str:
    """Returns what `data verify` reports of the journal, as a log."""
    log = StringIO()
    paths = sorted(directory.glob("t.journal.*.dat"))
    Replay("t", Logger("", Level.DEBUG, log), checks=True).read([str(path) for path in paths])
    return log.getvalue()


@pytest.mark.parametrize("segments", [1, 2])
def test_what_damage_spares_is_kept_and_nothing_else_comes(segments: int, directory: Path, syncer: Syncer) -> None:
    lay_out(directory, syncer, segments)
    files = Files(directory)
    assert (len(files.data), len(files.frames)) == (segments, 5 * segments)
    finished = {files.frames[body] for body in FINISHED & set(files.frames)}
    assert replay(directory, syncer)[0] == set(files.frames.values()) - finished
    for damage in files.damages():
        for path in directory.iterdir():
            path.unlink()
        files.put(directory, damage)
        frames, log = replay(directory, syncer)
        assert frames <= set(files.frames.values()), damage
        assert frames >= {files.frames[body] for body in files.spared(damage)}, damage
        if damage.file != files.last:  # what was finished is recorded once more after it
            assert not frames & finished, damage
        if damage.mask:
            reported = [line for line in log.split("\n") if damage.file in line]
            if damage.file != files.last and not reported:  # a start has read its index
                assert set(files.frames.values()) == frames | finished or " lost" in log, damage
                reported = [line for line in everything_read(directory).split("\n") if damage.file in line]
            assert len(reported) == 1, (damage, reported)
            assert " ERROR: " in reported[0] or " WARNING: " in reported[0], (damage, reported)
