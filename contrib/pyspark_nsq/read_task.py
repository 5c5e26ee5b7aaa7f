"""What a task does for its partition: take its quotas from one nsqd into the spool, and deliver what the spool has.

    pull     SUB, RDY; messages come, until the quota is reached or no more come
    seal     a segment with the new ones among them is made durable in the chain
    finish   only then FIN
    deliver  the chain's segments of this task, in order, as Arrow batches
    confirm  RDY 0, CLS, and the answer shows that the nsqd has processed every FIN; a marker notes it
    end      nothing of this task may follow in the chain; what is not delivered yet is delivered

A task may die after any step and be run again, here or on another machine, even while its first run goes on. A message
without FIN is delivered again by nsqd, and dropped (but finished) if it is in the spool already; a message with FIN is
in the spool. A run delivers all segments of its task that are in the chain before its end, so all runs deliver the
same. If Spark takes long for some rows, the others are delivered after the end, when nothing is in flight: a slow sink
lets no message time out.

A segment is sealed when half of what may be in flight has come, so that nsqd goes on sending meanwhile.
"""

import contextlib
import logging
import time
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa

from pyspark_nsq.columns import Messages, pack, rows_of
from pyspark_nsq.discovery import Nsqd, depths
from pyspark_nsq.errors import ConnectionLost, DiscoveryError, SpoolError
from pyspark_nsq.known_ids import KnownIds
from pyspark_nsq.offsets import Offset
from pyspark_nsq.options import Settings
from pyspark_nsq.segment import ID_LENGTH, Damaged, EntryKind, pack_entry, read_segment, split_ids
from pyspark_nsq.spool import Spool
from pyspark_nsq.subscription import Subscription

_SEGMENT_BYTES = 16 << 20  # of bodies; a segment is sealed when it has that many
_QUIET = 0.1  # seconds without a message until those in hand are sealed
_BATCH_ROWS = 5_000  # rows of an Arrow batch, at least
_SLOW = 1.0  # seconds that Spark may take for rows while messages are in flight
_RECONNECT = 5.0  # seconds to try, when an nsqd went away

_log = logging.getLogger(__name__)

Taken = dict[str, Messages]  # by topic


@dataclass(frozen=True)
class ReadPartition:
    """The part of a batch that one task reads: of each topic of one nsqd, at most that many messages. Parts with the
    same `chain` read the same topic."""

    settings: Settings
    stream: str
    batch: int
    chain: int
    nsqd: Nsqd
    part: int
    quotas: Mapping[str, int]

    def read(self) -> Iterator[pa.RecordBatch]:
        """Yields the rows. ConnectionLost only without a spool; Refused, SpoolError. What is in flight is released when
        the iterator is closed before its end."""
        take = peek if self.settings.peek else read if self.settings.spool else _read_without_spool
        with contextlib.closing(take(self)) as messages:
            yield from _rows(self, messages)

    def __str__(self) -> str:
        return f"batch {self.batch}, part {self.part} of topic {', '.join(self.quotas)} at nsqd {self.nsqd.name}"


def tasks_of(batch: Offset, settings: Settings) -> list[ReadPartition]:
    """The tasks that a batch has been split into."""
    return [
        ReadPartition(settings, batch.stream, batch.batch, chain, batch.nsqds[name], part, quotas)
        for chain, (name, tasks) in enumerate(batch.chains)
        for part, quotas in enumerate(tasks)
    ]


def read(partition: ReadPartition) -> Generator[Taken, None, None]:
    """The task's messages in the chain, each segment when it is there, until the task's end is in the chain.

    An nsqd that is away also ends the task: what it has not sent stays with it, for later batches.
    """
    task = _Task(partition)
    if not task.is_over():
        yield from task.fill()
    yield from task.new()


class _Task:
    """One run of a task, as far as it fills the chain."""

    def __init__(self, partition: ReadPartition) -> None:
        self.partition = partition
        self.settings = partition.settings
        self.spool = Spool.of(partition.settings, partition.stream)
        if not self.spool.exists():
            raise SpoolError(
                f"{self.spool.directory} is not there: 'spoolLocation' must be a directory that the driver and all "
                "executors share, under the same path, and must be kept as long as the checkpoint"
            )
        self.chain = self.spool.chain(partition.batch, partition.chain, partition.nsqd.name)
        self.chain.open()
        self._sealed: dict[int, bytes] = {}  # by slot: ids that this connection has sealed
        self._delivered = 0  # segments
        self._dropped = 0  # messages that were read before
        self._fresh: dict[int, Taken] | None = {}  # by slot: sealed and not delivered; None once Spark is slow

    def taken(self) -> int:
        """How many messages the chain has of this task."""
        return sum(entry.messages for entry in self.chain.segments(self.partition.part))

    def is_through(self) -> bool:
        """Whether the chain has everything that this task is to deliver, but perhaps for the end. A task of several
        topics that was interrupted leaves to later batches what it has not taken."""
        least = 1 if len(self.partition.quotas) > 1 else sum(self.partition.quotas.values())
        return self.chain.ended(self.partition.part) or self.taken() >= least

    def is_over(self) -> bool:
        """Whether the chain is to be delivered as it is; SpoolError if it lacks what was in it."""
        if self.chain.ended(self.partition.part):
            return True
        committed = self.spool.committed()
        if self.partition.batch > committed:
            return False
        what = f"{self.partition}: its messages are no longer in the spool, since batch {committed} is committed"
        if self.settings.fail_on_data_loss:
            raise SpoolError(what)
        _log.warning("%s", what)
        return True

    def fill(self) -> Iterator[Taken]:
        """Take messages into the chain until the task's end is in it, and deliver them, unless that takes too long."""
        taken, deadline = -1, 0.0
        while not self.is_through():
            try:
                yield from self.pull()
                break
            except ConnectionLost as error:
                now, before, taken = time.monotonic(), taken, self.taken()
                if taken > before:
                    deadline = now + _RECONNECT
                if now > deadline:
                    _log.warning("%s: ends with %d messages: %s", self.partition, taken, error)
                    break
                time.sleep(0.2)
            except OSError as error:
                raise SpoolError(f"{self.partition}: cannot read the spool: {error}") from None
        self.chain.end(self.partition.part, self._dropped)

    def pull(self) -> Iterator[Taken]:
        """Take what the nsqd gives; ConnectionLost if a connection breaks."""
        partition, taken = self.partition, self.taken()
        with _subscribe(partition, {topic: quota - taken for topic, quota in partition.quotas.items()}) as subscription:
            self._started = self._start_time()
            known = self.spool, partition.batch, partition.nsqd.name, self._started, self.chain
            self._known = KnownIds(*known, self.settings.deliver_rewound)
            self._sealed.clear()
            try:
                through = yield from self._pull(subscription)
            except BaseException:
                subscription.release()
                raise
            if through:  # a connection that breaks in here has nothing to release
                self.confirm(subscription)

    def _start_time(self) -> int:
        """When the nsqd was started to which a connection is open; 0 if it does not report that."""
        try:
            topic = next(iter(self.partition.quotas))
            return depths(self.settings, self.partition.nsqd, [topic])[topic].start_time
        except DiscoveryError as error:
            _log.warning("%s", error)
            return 0

    def _pull(self, subscription: Subscription) -> Generator[Taken, None, bool]:
        while subscription.left > 0:
            if subscription.receive(_QUIET if subscription.count else self.settings.idle_timeout):
                if not subscription.is_half_full and subscription.size < _SEGMENT_BYTES:
                    continue
            elif not subscription.count:
                break
            if not self.seal(subscription.take()):  # another run of this task has ended it: nothing may be finished
                subscription.release()
                return False
            subscription.finish()
            if self._fresh is not None:
                began = time.monotonic()
                yield from self.new()
                if time.monotonic() - began > _SLOW:
                    self._fresh = None
        return True

    def seal(self, taken: Taken) -> bool:
        """Make the new ones of the messages durable in the chain; False if that may take no more of this task."""
        part = self.partition.part
        while True:
            left = {topic: found.without(self._known.among(topic, found)) for topic, found in taken.items()}
            new = {topic: found for topic, found in left.items() if found.ids}
            if self.chain.ended(part):
                return False
            if not new:
                break
            slot = len(self.chain.entries)
            ids, (joined, batch) = {topic: new[topic].ids for topic in new}, Messages.joined(list(new.values()))
            if self.chain.append(pack_entry(EntryKind.SEGMENT, part, self._started, ids, pack(batch))):
                self._sealed[slot] = joined
                if self._fresh is not None:
                    self._fresh[slot] = new
                break
        self._dropped += sum(len(found.ids) - len(left[topic].ids) for topic, found in taken.items()) // ID_LENGTH
        return True

    def confirm(self, subscription: Subscription) -> None:
        """Close so that every FIN is processed; segments of which none was refused are confirmed."""
        unfinished = subscription.confirm()
        sealed = self._sealed.items()
        if sure := [slot for slot, ids in sealed if not unfinished or unfinished.isdisjoint(split_ids(ids))]:
            self.chain.confirm(self.partition.part, sure)

    def new(self) -> Iterator[Taken]:
        """The messages of the task that came into the chain since the last call."""
        partition = self.partition
        for entry in self.chain.segments(partition.part)[self._delivered :]:
            self._delivered += 1
            if self._fresh and entry.slot in self._fresh:
                yield self._fresh.pop(entry.slot)
                continue
            try:
                yield Messages.unpacked(*read_segment(entry))
            except (Damaged, OSError) as error:
                if partition.settings.fail_on_data_loss:
                    raise SpoolError(f"{partition}: {entry.messages} messages are lost: {error}") from None
                _log.warning("%s: %d messages are lost: %s", partition, entry.messages, error)


def _subscribe(partition: ReadPartition, quotas: Mapping[str, int]) -> contextlib.closing[Subscription]:
    return contextlib.closing(Subscription(partition.settings, partition.nsqd.tcp, quotas))


def _rows(partition: ReadPartition, parts: Iterable[Taken]) -> Iterator[pa.RecordBatch]:
    """The rows of the messages, in batches of a size that Spark likes."""
    same = {"channel": partition.settings.channel, "nsqd": partition.nsqd.name}
    gathered: list[pa.RecordBatch] = []
    for part in parts:
        gathered += [rows_of(messages, topic=topic, **same) for topic, messages in part.items()]
        rows, size = sum(batch.num_rows for batch in gathered), sum(batch.nbytes for batch in gathered)
        if rows >= _BATCH_ROWS or size >= _SEGMENT_BYTES:
            yield from pa.Table.from_batches(gathered).combine_chunks().to_batches()
            gathered = []
    if gathered:
        yield from pa.Table.from_batches(gathered).combine_chunks().to_batches()


def _read_without_spool(partition: ReadPartition) -> Generator[Taken, None, None]:
    """FIN on reading: what is lost behind this task is lost for good."""
    with _subscribe(partition, partition.quotas) as subscription:
        try:
            while subscription.left > 0 and subscription.receive(partition.settings.idle_timeout):
                messages = subscription.take()
                subscription.finish()
                yield messages
        except GeneratorExit:
            subscription.release()
            raise
        subscription.confirm()


def peek(partition: ReadPartition) -> Generator[Taken, None, None]:
    """At most as many messages as the quotas, which are requeued before Spark gets them."""
    with _subscribe(partition, partition.quotas) as subscription:
        while subscription.count < subscription.left and subscription.receive(partition.settings.idle_timeout):
            pass
        messages = subscription.take() if subscription.count else None
        subscription.release()
    if messages:
        yield messages
