"""Answers the planner as a gnsqd (`LogNode`), from the store of its log: how far back that goes, and all while the
gnsqd is away."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime
from tempfile import TemporaryDirectory

from gnsqd.shared.disk_format import topic_of
from gnsqd.shared.durations import parse_duration
from gnsqd.shared.errors import StorageError
from gnsqd.shared.journal.replay import Replay
from gnsqd.shared.journal.spans import Spans
from gnsqd.shared.log_store import THREADS, LogStore, Stored, StoredLog, read_log, wal_path
from gnsqd.shared.stored_topic import StoredRange, StoredTopic, log_begin
from pyspark_nsq.errors import DiscoveryError
from pyspark_nsq.ranges.node import Extent


class StoredNode:
    """The logs of one gnsqd in a store. Every method may raise DiscoveryError if the store does not answer."""

    def __init__(self, url: str) -> None:
        self._store = LogStore(url)
        self.log: StoredLog | None = None  # as it was read last
        self._extents: dict[tuple[str, str, str], Extent] = {}
        self._dead: dict[Stored, Spans] = {}  # the messages in dead segments, which never change

    @contextmanager
    def _reading(self) -> Iterator[StoredLog]:
        """Lends the state of the log. It is read again once there is another wal object, or its last has gone."""
        try:
            number = self.log.number if self.log else 0
            if self.log is None or not self._size(number + 1) < 0 <= self._size(number):
                self.log, self._extents = read_log(self._store, after=log_begin(self.log)), {}
            if not self.log.number:
                raise StorageError(f"{self._store.url} has no log")
            yield self.log
        except StorageError as error:
            self.log = None  # it may have gone on, and deleted what was asked for
            raise DiscoveryError(str(error)) from None

    def _size(self, number: int) -> int:
        return self._store.size(wal_path(number))

    def topics(self) -> set[str]:
        with self._reading() as log:
            return {*map(topic_of, log.files)} - {""}

    def extent(self, topic: str, channel: str = "", at: str = "") -> Extent | None:
        """Returns what one topic has, as `LogNode.extent`, also in dead segments. A channel that is not there is where
        it would begin if it was created."""
        with self._reading() as log:
            key = topic, channel, at
            if key not in self._extents and topic in self.topics():
                self._extents[key] = self._extent(log, *key)
            return self._extents.get(key)

    def _extent(self, log: StoredLog, topic: str, channel: str, at: str) -> Extent:
        replay, stored = Replay(topic), StoredTopic(self._store, log, topic)
        with TemporaryDirectory(prefix="pyspark_nsq.") as directory:
            replay.read(stored.outline(directory))
        with ThreadPoolExecutor(THREADS) as pool:
            new = [each for each in stored.dead if each not in self._dead]
            self._dead |= zip(new, pool.map(stored.numbers, new), strict=True)
        present, end, epoch = replay.present, replay.next_number, replay.epoch.hex()
        for each in stored.dead:
            present.update(self._dead[each])
        first = max(present.gaps(0, end).ceiling, 1)  # from there on, all are there
        number = stored.number_at(epoch, _nanoseconds(at), first, end) if at else 0
        queues = {state.name: state for _, state in sorted(replay.queues.items())}
        floor = queues.get(f"{topic}:{channel}", replay.queues[0]).finished.floor
        position = min(max(floor, 1), end) if channel else 0
        size = sum(each.size for each in replay.segments) + sum(each.size for each in stored.dead)
        return Extent(epoch, "", first, end, size, position, number, stored.published(epoch, end - 1, end) or None)

    def published(self, topic: str, epoch: str, number: int) -> int:
        """Returns when a message was published (ns), 0 if it is not there any more."""
        with self._reading() as log:
            return StoredTopic(self._store, log, topic).published(epoch, number, number + 1)

    def cut(self, topic: str, start: int, end: int) -> list[StoredRange]:
        """Returns a range in parts, as tasks fetch them."""
        with self._reading() as log:
            return [*StoredTopic(self._store, log, topic).cut(start, end)]


def _nanoseconds(at: str) -> int:
    """Returns a time as `option_values.MOMENT` has it, wall clock in ns."""
    if at.startswith("-"):
        return time.time_ns() - int(parse_duration(at[1:]) * 1e9)
    return int(datetime.fromisoformat(at.upper()).timestamp() * 1e6) * 1000
