"""The messages of one batch, in flight to this process from when they are received until they are finished.

nsqd limits what may be in flight to a connection (--max-rdy-count, by default 2500), so a batch has as many connections
as its messages need. RDY limits what is in flight: as nothing is finished before the batch ends, it is the share of the
quota that a connection has.

While Spark works on the batch, a thread answers heartbeats and sends TOUCH before messages time out.
"""

import logging
import select
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from gnsqd.shared.client import Frames
from pyspark_nsq.client import SourceClient
from pyspark_nsq.columns import Messages, pack, rows_of, split_ids, unpack
from pyspark_nsq.discovery import KnownNsqd
from pyspark_nsq.errors import ConnectionLost, NsqSourceError, Refused
from pyspark_nsq.nodes import Key
from pyspark_nsq.options import Settings
from pyspark_nsq.ranges.positions import pieces

_BYTES = 64 << 20  # of bodies in a batch, unless 'maxBytesPerTrigger' is given
_MOST_BYTES = 1 << 30  # of bodies in a batch, whatever the option: a column of Arrow has less than twice as much
_TASK_BYTES = 8 << 20  # of rows in a task: what Spark sends to an executor is limited (spark.rpc.message.maxSize)
_MESSAGE_BYTES = 1 << 20  # of a message, until some have come: nsqd's default for the largest
_QUIET = 1.0  # seconds without a message that end a batch; nsqd may keep some for --output-buffer-timeout
_PART = 3  # of a message's timeout: how long receiving may take, and the time until TOUCH

_log = logging.getLogger(__name__)


class DeliveryPartition(NamedTuple):
    """The rows of one task, packed."""

    rows: bytes

    def read(self) -> Iterator[pa.RecordBatch]:
        """Yields the rows."""
        yield unpack(self.rows)


@dataclass(eq=False)
class _BatchConnection:
    """One of the connections, which may take up to `most` messages, and has taken `count` of `size` bytes."""

    client: SourceClient
    topic: str
    nsqd: str
    most: int = 0
    ready: int = 0
    count: int = 0
    size: int = 0
    frames: list[Frames] = field(default_factory=list)
    ids: bytes = b""  # of the messages in hand, one behind the other, once all have come

    def allow(self, more: int) -> None:
        """Lets up to that many more messages come, within `most`."""
        ready = min(self.most, self.count + more) if more else 0
        if self.ready != ready:
            self.client.ready(ready)
            self.ready = ready

    def read(self) -> None:
        """Takes what has come."""
        frames = self.client.receive_frames(0.0)
        self.frames += frames
        self.count += sum(map(len, frames))
        self.size += sum(each.body_bytes for each in frames)

    def give_back(self) -> None:
        """Requeues what was on its way when enough had come. An nsqd that cannot send does not heed TOUCH."""
        self.client.listen()
        while self.client.poll():
            pass
        self.client.requeue([id for frames in self.client.receive_frames(0.0) for id in frames.ids()])


class DeliveryBatch:
    """Owns the connections and the messages in hand: `counts` of them by topic and nsqd, and `tasks` with their rows.

    A message is in flight until `finish` or `release`. If a connection breaks, nsqd delivers its messages again.
    """

    def __init__(self, settings: Settings, quotas: Mapping[Key, int], nsqds: Mapping[str, KnownNsqd]) -> None:
        """Receives up to that many messages of each topic of each nsqd. Raises Refused if one refuses them."""
        self._settings = settings
        self._connections: list[_BatchConnection] = []
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._touch_at = 0.0  # (monotonic)
        self.missed: dict[str, str] = {}  # nsqds that cannot be reached, and why
        try:
            for (topic, name), quota in quotas.items():
                if quota and name not in self.missed:
                    self._connect(nsqds[name], topic, quota)
            self._receive()
            held = list(self._connections)  # of which `_keep` removes what breaks
            self.counts: dict[Key, int] = {}
            for one in held:
                one.ids = b"".join([id for frames in one.frames for id in frames.ids()])
                key = one.topic, one.nsqd
                self.counts[key] = self.counts.get(key, 0) + one.count
            threading.Thread(target=self._keep, name="messages in flight", daemon=True).start()
            self.tasks = self._cut(self._take(held))  # which takes seconds for 1 GiB
        except BaseException:
            self.close()
            raise

    def _connect(self, nsqd: KnownNsqd, topic: str, quota: int) -> None:
        """Opens as many connections as that many messages in flight need; none if nobody listens there."""
        first, needed = len(self._connections), 1
        while len(self._connections) < first + needed:
            try:
                client = SourceClient.connect(nsqd.tcp, self._settings)
            except ConnectionLost as error:
                self._miss(nsqd, error)
                break
            self._connections.append(_BatchConnection(client, topic, nsqd.name))
            try:
                client.subscribe(topic, self._settings.channel)
            except (ConnectionLost, Refused) as error:
                self._connections.pop().client.close()
                if isinstance(error, ConnectionLost):
                    self._miss(nsqd, error)
                elif needed == 1:
                    raise
                break  # if refused, perhaps because of a limit to the consumers of the channel
            if not client.max_rdy_count:
                raise NsqSourceError(f"nsqd {nsqd.name} has --max-rdy-count=0: it sends messages to no consumer")
            needed = -(-quota // client.max_rdy_count)
        connections = self._connections[first:]
        for number, one in enumerate(connections):
            share = quota // len(connections) + (number < quota % len(connections))
            one.most = min(share, one.client.max_rdy_count)

    def _miss(self, nsqd: KnownNsqd, error: ConnectionLost) -> None:
        _log.warning("%s; its messages are read when it is back", error)
        self.missed[nsqd.name] = str(error)

    # Receiving

    def _receive(self) -> None:
        """Takes what comes, until the quotas or the limit of bytes are reached, or no more comes."""
        limit = min(self._settings.max_bytes_per_trigger or _BYTES, _MOST_BYTES)
        self._touch_at = end = time.monotonic() + self._pause()
        came = True
        while came and self._connections and (left := end - time.monotonic()) > 0:
            count, size = self._received()
            if size >= limit or count == sum(one.most for one in self._connections):
                break
            # No more is sent than is allowed, as far as the messages so far show how large they are.
            room = (limit - size) // (max(size // count, 1) if count else _MESSAGE_BYTES) // len(self._connections)
            self._each(partial(_BatchConnection.allow, more=max(room, 1)))
            self._each(_BatchConnection.read)
            # What came may be a part of a message.
            came = self._received() != (count, size) or self._wait(min(_QUIET, left))
        self._each(partial(_BatchConnection.allow, more=0))

    def _received(self) -> tuple[int, int]:
        return sum(one.count for one in self._connections), sum(one.size for one in self._connections)

    def _wait(self, timeout: float) -> bool:
        """Waits up to `timeout` seconds until something comes; returns False if nothing does."""
        poll = select.poll()
        for one in self._connections:
            poll.register(one.client, select.POLLIN)
        return bool(poll.poll(timeout * 1000))

    def _take(self, held: list[_BatchConnection]) -> list[pa.RecordBatch]:
        batches = []
        for one in held:
            if one.frames:
                messages = Messages.of(one.frames)
                one.frames = []
                batches.append(rows_of(messages, topic=one.topic, channel=self._settings.channel, nsqd=one.nsqd))
        return batches

    def _cut(self, batches: list[pa.RecordBatch]) -> list[DeliveryPartition]:
        """Returns the rows in parts of about one size, at least 'minPartitions' of them."""
        if not batches:
            return []
        (rows,) = pa.Table.from_batches(batches).combine_chunks().to_batches()
        ends = pc.cumulative_sum(pc.add(pc.binary_length(rows.column("value")).cast(pa.int64()), 100)).to_pylist()
        parts = min(max(self._settings.min_partitions or 1, -(-ends[-1] // _TASK_BYTES)), len(ends))
        edges = [0]
        for part in range(1, parts):
            edge = bisect_left(ends, ends[-1] * part // parts)
            edges.append(min(max(edge, edges[-1] + 1), len(ends) - (parts - part)))  # each has a row
        most = self._settings.max_records_per_partition
        return [
            DeliveryPartition(pack(rows.slice(first, last - first)))
            for begin, end in pairwise([*edges, len(ends)])
            for first, last in pieces(begin, end, -(-(end - begin) // (most or end - begin)))
        ]

    # In flight

    def _pause(self) -> float:
        return min((one.client.msg_timeout for one in self._connections), default=60.0) / _PART

    def _keep(self) -> None:
        pause = self._pause()
        while not self._over.wait(min(pause / 2, 1.0)):
            with self._lock:
                if self._over.is_set():
                    break
                self._each(_BatchConnection.give_back)
                if time.monotonic() >= self._touch_at:
                    self._touch_at = time.monotonic() + pause
                    self._each(lambda one: one.client.touch_joined(one.ids, within=pause / 2))

    def finish(self) -> None:
        """Sends FIN for all messages, and closes when nsqd has processed that."""
        within = self._pause() / 2  # as long as others' messages can wait for their FIN
        self._end(lambda one: one.client.finish_joined(one.ids, within=within))

    def release(self) -> None:
        """Gives all messages back, and closes."""
        self._end(lambda one: one.client.requeue(split_ids(one.ids)))

    def _end(self, command: Callable[[_BatchConnection], None]) -> None:
        self._over.set()
        with self._lock:
            self._each(command)
            self._each(lambda one: one.client.finish_confirmed())
        if late := sum(len(one.client.unfinished) for one in self._connections):
            _log.warning("%d messages timed out before Spark had committed their batch: they come again", late)

    def close(self) -> None:
        """Closes at once; messages in flight go to other consumers when they have timed out."""
        self._over.set()
        with self._lock:
            for one in self._connections:
                one.client.close()

    def _each(self, do: Callable[[_BatchConnection], object]) -> None:
        """Does that, and closes a connection that breaks; of an nsqd that hangs all: it is waited for once."""
        for one in list(self._connections):
            if one in self._connections:
                try:
                    do(one)
                except NsqSourceError as error:
                    _log.warning("%s: what was in flight to this stream comes again", error)
                    for other in list(self._connections):
                        if other is one or (one.client.hangs and other.nsqd == one.nsqd):
                            other.client.close()
                            self._connections.remove(other)
