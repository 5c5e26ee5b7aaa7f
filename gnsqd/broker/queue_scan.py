"""The scan that finds timed-out and due messages.

Looking at every channel every 100 ms would cost too much where there are thousands, so each round looks at a random
few, and goes on at once with another few as long as many of those looked at had something to do: where messages time
out, the scan works until they are through; elsewhere it costs next to nothing (the way Redis expires keys; NSQD-COMPAT
section 3). A small pool of workers does the looking, so that the channels of one round wait for their disks together.

Messages that are held back need no luck: an alarm has the workers look at their channel when the first of them is due.
"""

from heapq import heapify, heappop, heappush
from random import sample
from sys import maxsize
from time import monotonic, monotonic_ns

from gevent import Greenlet
from gevent.event import Event
from gevent.queue import SimpleQueue

from gnsqd.broker.channel import Channel
from gnsqd.broker.environment import Spawn
from gnsqd.broker.registry import Registry
from gnsqd.hub.cooperative import give_way
from gnsqd.hub.doorbell import Doorbell
from gnsqd.log import Logger
from gnsqd.options import Options

_POOL_SHARE = 0.25
_NS = 1e9
_STOP_SECONDS = 1.0  # a worker that died of a defect leaves the loop waiting
_ALARM_STEP = 0.01  # seconds between two rounds of alarms, at least
_SWEEP_FROM = 64


class QueueScan:
    """Owns the scan's loop and workers. `spawn` starts a greenlet whose death by a bug ends the daemon."""

    def __init__(self, registry: Registry, options: Options, log: Logger, spawn: Spawn) -> None:
        self._registry = registry
        self._options = options
        self._log = log
        self._spawn = spawn
        self._work: SimpleQueue[tuple[Channel, bool] | None] = SimpleQueue()  # with whether a result is awaited
        self._results: SimpleQueue[bool] = SimpleQueue()
        self._exit = Event()
        self._loop: Greenlet[..., object] | None = None
        self._alarms: dict[int, tuple[int, Channel]] = {}  # by id(); monotonic ns
        self._alarm_heap: list[tuple[int, int]] = []
        self._alarm_bell = Doorbell()
        self.pool_size = 0

    def start(self) -> None:
        """Begin; the first scan comes after one interval."""
        self._loop = self._spawn("queueScanLoop", self.queueScanLoop)
        self._spawn("alarms", self.alarm_loop)

    def stop(self) -> None:
        """End the loops. Yields."""
        self._exit.set()
        self._alarm_bell.ring()
        if self._loop is not None:
            self._loop.join(_STOP_SECONDS)

    def queueScanLoop(self) -> None:
        """Scan every queue-scan interval, resize the pool every refresh interval, until `stop`."""
        options = self._options
        self._resize_pool()
        next_refresh = monotonic() + options.queue_scan_refresh_interval / _NS
        while not self._exit.wait(options.queue_scan_interval / _NS):
            if monotonic() >= next_refresh:
                self._resize_pool()
                next_refresh = monotonic() + options.queue_scan_refresh_interval / _NS
            while self._scan() > options.queue_scan_dirty_percent and not self._exit.is_set():
                give_way()
        self._log.info("QUEUESCAN: closing")
        for _ in range(self.pool_size):
            self._work.put(None)

    def _scan(self) -> float:
        """Look at one random selection; the share of it that had something to do."""
        channels = self._registry.channels()
        count = min(self._options.queue_scan_selection_count, len(channels))
        if not count:
            return 0.0
        for channel in sample(channels, count):
            self._work.put((channel, True))
        dirty = 0
        for _ in range(count):
            dirty += self._results.get()
        return dirty / count

    def _resize_pool(self) -> None:
        size = int(len(self._registry.channels()) * _POOL_SHARE)
        size = max(1, min(size, self._options.queue_scan_worker_pool_max))
        for _ in range(self.pool_size, size):
            self._spawn("queueScanWorker", self.queueScanWorker)
        for _ in range(size, self.pool_size):
            self._work.put(None)
        self.pool_size = size

    def queueScanWorker(self) -> None:
        """Look at the channels it is handed, until it is handed None."""
        while True:
            work = self._work.get()
            if work is None:
                return
            channel, is_awaited = work
            now = monotonic_ns()
            dirty = False
            while not channel.exiting and channel.process_in_flight(now) | channel.process_deferred(now):
                dirty = True
                channel.queue.wait_synced()
                give_way()
            if is_awaited:
                self._results.put(dirty)

    # Alarms

    def wake_at(self, channel: Channel, due: int) -> None:
        """Look at `channel` at `due` (monotonic ns), or earlier if that was asked for before; maxsize: never."""
        key = id(channel)
        if due == maxsize:
            self._alarms.pop(key, None)
        elif key not in self._alarms or due < self._alarms[key][0]:
            self._alarms[key] = (due, channel)
            heappush(self._alarm_heap, (due, key))
            if self._alarm_heap[0] == (due, key):
                self._alarm_bell.ring()
            if len(self._alarm_heap) > 2 * len(self._alarms) + _SWEEP_FROM:
                self._alarm_heap = [(due, key) for key, (due, _) in self._alarms.items()]
                heapify(self._alarm_heap)

    def alarm_loop(self) -> None:
        """Hand each channel to the workers when its alarm is due, until `stop`."""
        while not self._exit.is_set():
            now = monotonic_ns()
            while self._alarm_heap and self._alarm_heap[0][0] <= now:
                due, key = heappop(self._alarm_heap)
                if key in self._alarms and self._alarms[key][0] == due:
                    self._work.put((self._alarms.pop(key)[1], False))
            heap = self._alarm_heap
            self._alarm_bell.wait(max((heap[0][0] - now) / _NS, _ALARM_STEP) if heap else -1.0)
