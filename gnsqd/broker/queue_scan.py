"""Finds timed-out and due messages.

Each channel has at most one alarm, at the first time-out of its messages in flight or the first due time of its
deferred messages. The loop waits for the earliest alarm of all channels, and workers process the channels whose alarm
is due: so those also wait for their disks together.

The real daemon instead looks at a random selection of channels every 100 ms (NSQD-COMPAT section 3).
"""

from collections import deque
from heapq import heapify, heappop, heappush
from sys import maxsize
from time import monotonic_ns

from gevent import Greenlet
from gevent.event import Event

from gnsqd.broker.channel import Channel
from gnsqd.hub.cooperative import Spawn, Turns
from gnsqd.hub.doorbell import Doorbell
from gnsqd.log import Logger
from gnsqd.options import SECOND

_STOP_SECONDS = 1.0
_STEP = 0.01  # seconds between two rounds of alarms, at least
_SWEEP_FROM = 64


class QueueScan:
    """Owns the alarms, the loop and 1 to `max_workers` workers."""

    def __init__(self, max_workers: int, log: Logger, spawn: Spawn) -> None:
        self._max_workers = max_workers
        self._log = log
        self._spawn = spawn
        self._due: deque[Channel] = deque()
        self._bell = Event()  # wakes workers when something is due, and at the end
        self._alarms: dict[int, tuple[int, Channel]] = {}  # by id(); monotonic ns
        self._heap: list[tuple[int, int]] = []
        self._doorbell = Doorbell()
        self._exiting = False
        self._loop: Greenlet[..., object] | None = None
        self._workers = self._idle = 0

    def start(self) -> None:
        self._loop = self._spawn("queueScanLoop", self.queueScanLoop)
        self._start_worker()

    def stop(self) -> None:
        """Ends the loop and the workers. Yields."""
        self._exiting = True
        self._doorbell.ring()
        if self._loop is not None:
            self._loop.join(_STOP_SECONDS)

    def _start_worker(self) -> None:
        self._workers += 1
        self._spawn("queueScanWorker", self.queueScanWorker)

    def wake_at(self, channel: Channel, due: int) -> None:
        """Sets the alarm of `channel` to `due` (monotonic ns), unless it has an earlier one; maxsize removes it."""
        key = id(channel)
        if due == maxsize:
            self._alarms.pop(key, None)
        elif key not in self._alarms or due < self._alarms[key][0]:
            self._alarms[key] = (due, channel)
            heappush(self._heap, (due, key))
            if self._heap[0] == (due, key):
                self._doorbell.ring()
            if len(self._heap) > 2 * len(self._alarms) + _SWEEP_FROM:
                self._heap = [(due, key) for key, (due, _) in self._alarms.items()]
                heapify(self._heap)

    def queueScanLoop(self) -> None:
        turns = Turns()
        while not self._exiting:
            now = monotonic_ns()
            while self._heap and self._heap[0][0] <= now:
                due, key = heappop(self._heap)
                if key in self._alarms and self._alarms[key][0] == due:
                    self._due.append(self._alarms.pop(key)[1])
                    self._bell.set()
                    if len(self._due) > self._idle and self._workers < self._max_workers:
                        self._start_worker()
                turns.give()
            self._doorbell.wait(max((self._heap[0][0] - now) / SECOND, _STEP) if self._heap else -1.0)
        self._log.info("QUEUESCAN: closing")
        self._bell.set()

    def queueScanWorker(self) -> None:
        turns = Turns()
        while True:
            while not self._due:
                if self._exiting:
                    return
                self._idle += 1
                self._bell.clear()
                self._bell.wait()
                self._idle -= 1
            channel = self._due.popleft()
            if not channel.exiting:
                channel.process_due(monotonic_ns())
                channel.queue.backend.wait_synced()
            turns.give()
