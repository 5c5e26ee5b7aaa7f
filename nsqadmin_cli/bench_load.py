"""Generates load on nodes and measures it: messages are published over HTTP and received by consumers.

Publishers are threads, because each waits for its answers; consumers share the calling thread. A message contains the
time at which it was sent. At most `window` messages are published and not yet received: otherwise the faster side would
determine the result, and an ephemeral topic would lose messages.
"""

import math
import selectors
import threading
import time
from bisect import bisect
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import cycle, islice
from struct import Struct

from nsqadmin_cli.api import Nsqd
from nsqadmin_cli.cluster import ask_all, errors_of
from nsqadmin_cli.http_client import TLS, NodeError, timed_out
from nsqadmin_cli.subscription import ConsumerOptions, Subscription
from nsqadmin_cli.table import ALWAYS, Form, Tone, column

_GROWTH = math.log(1.04)  # of buckets: a quantile is at most 2 % off
_BOUNDS = [digit * 10**power for power in range(3, 14) for digit in (1, 2, 5)]  # ns; the last ones are hours


@dataclass(slots=True)
class Bar:
    """The number of durations between two, in seconds."""

    least: float = column("from", form=Form.LATENCY)
    most: float = column("to", form=Form.LATENCY, keep=ALWAYS)
    count: int = column("messages", form=Form.COUNT, keep=ALWAYS)
    share: str = column("share", keep=ALWAYS, json=False)
    bar: str = column("", keep=ALWAYS, tone=Tone.NODE, json=False)


class Histogram:
    """Owns the counts. Durations are in nanoseconds; those below 1 count as 1."""

    def __init__(self) -> None:
        self.count = 0
        self.sum = 0
        self.largest = 0
        self._buckets: Counter[int] = Counter()

    def add(self, duration: int, count: int = 1) -> None:
        duration = max(1, duration)
        self._buckets[int(math.log(duration) / _GROWTH)] += count
        self.count += count
        self.sum += duration * count
        if duration > self.largest:
            self.largest = duration

    @property
    def mean(self) -> float:
        """Seconds; 0 if there are none."""
        return self.sum / self.count / 1e9 if self.count else 0.0

    def quantile(self, part: float) -> float:
        """Seconds that the part `part` of the durations does not exceed; 0 if there are none."""
        wanted = max(1, math.ceil(part * self.count))
        seen = 0
        for bucket in sorted(self._buckets):
            seen += self._buckets[bucket]
            if seen >= wanted:
                return min(self.largest, math.exp((bucket + 0.5) * _GROWTH)) / 1e9
        return 0.0

    def bars(self) -> Iterator[Bar]:
        """The durations between 1, 2, 5, 10 and so on microseconds, without gaps from the smallest to the largest."""
        found: Counter[int] = Counter()
        for bucket, count in self._buckets.items():
            found[bisect(_BOUNDS, math.exp((bucket + 0.5) * _GROWTH))] += count
        for place in range(min(found), max(found) + 1) if found else ():
            least, most = (_BOUNDS[place - 1] if place else 0), _BOUNDS[min(place, len(_BOUNDS) - 1)]
            yield Bar(least / 1e9, most / 1e9, found[place])


_STAMP = Struct(">q")  # time.monotonic_ns() at which a message was sent
SMALLEST = _STAMP.size  # bytes of a body
_TICK = 0.1  # seconds between two looks at the clock
_PATIENCE = 2.0  # seconds without any message until those under way are given up


@dataclass(frozen=True, slots=True)
class Plan:
    """The load: `rate` in messages per second of all publishers together, 0: as fast as possible."""

    topic: str
    channel: str
    seconds: float
    size: int  # bytes of a body
    batch: int  # messages in one request
    publishers: int
    consumers: int  # 0: only publish
    window: int
    rate: float = 0.0
    auth_secret: str = ""

    @property
    def durable(self) -> bool:
        return not self.topic.endswith("#ephemeral")


@dataclass
class Report:
    """The measurements. `published` counts messages accepted by nodes, `received` those received meanwhile."""

    seconds: float = 0.0
    published: int = 0
    received: int = 0
    late: int = 0  # messages that came after the last was published
    twice: int = 0  # messages that were delivered again
    cpu: float = 0.0  # seconds of this program
    publishing: Histogram = field(default_factory=Histogram)  # of requests, until their answer
    delivery: Histogram = field(default_factory=Histogram)  # of messages, from their request until they were here
    errors: list[NodeError] = field(default_factory=list)

    @property
    def lost(self) -> int:
        return max(0, self.published - self.received - self.late)


class Load:
    """Owns the threads and connections of one measurement."""

    def __init__(self, nodes: Sequence[Nsqd], plan: Plan, *, timeout: float, tls: TLS) -> None:
        self.report = Report()
        self._nodes = nodes
        self._plan = plan
        self._timeout = timeout
        self._tls = tls
        self._lock = threading.Condition()  # of those below and of the report's publishing side
        self._under_way = 0  # messages
        # What threads do at each node that is not complete. Thread.join is of no use here: Ctrl-C in it may make it
        # return at once the next time (bpo-45274), and in Thread.start it is unknown whether the thread runs.
        self._requests: Counter[Nsqd] = Counter()
        self._connected = False
        self._stopped = False
        self._failure: Exception | None = None  # to connect
        self._subscriptions: list[Subscription] = []
        self._selector = selectors.DefaultSelector()

    def connect(self) -> None:
        """Create the topic and its channel on all nodes, with at least one consumer on each; NodeError."""
        # On another thread, because Ctrl-C interrupts this one. A node might handle a request that was given up after
        # it has deleted the topic, and create it again.
        threading.Thread(target=self._connect, daemon=True).start()
        with self._lock:
            while not self._lock.wait_for(lambda: self._connected, _TICK):
                pass  # without a timeout, Ctrl-C just before the wait would come to notice after it
        if self._failure is not None:
            raise self._failure

    def _connect(self) -> None:
        try:
            self._make_topic()
            self._subscribe()
        except Exception as error:
            self._failure = error
        with self._lock:
            self._connected = True
            self._lock.notify_all()

    @contextmanager
    def _request(self, node: Nsqd) -> Iterator[bool]:
        """Guards requests that create the topic at a node; False: the run has ended, and no more may be sent."""
        with self._lock:
            may = not self._stopped
            self._requests[node] += may
        try:
            yield may
        finally:
            with self._lock:
                self._requests[node] -= may
                self._lock.notify_all()

    def _make_topic(self) -> None:
        plan = self._plan
        for node in self._nodes:
            with self._request(node) as may:
                if may:
                    node.act("create", plan.topic)
            with self._request(node) as may:
                if may and plan.consumers:
                    node.act("create", plan.topic, plan.channel)

    def _subscribe(self) -> None:
        plan = self._plan
        count = max(plan.consumers, len(self._nodes)) if plan.consumers else 0
        options = ConsumerOptions(plan.channel, max(1, plan.window // max(1, count)), 0, plan.auth_secret)
        for node in islice(cycle(self._nodes), count):
            with self._request(node) as may:
                if not may:
                    return
                subscription = Subscription(node, plan.topic, options, timeout=self._timeout, tls=self._tls)
                self._subscriptions.append(subscription)
                self._selector.register(subscription, selectors.EVENT_READ, subscription)

    def run(self, say: Callable[[Report], None]) -> Report:
        """Publish and receive messages; `say` is called some times per second."""
        report = self.report
        plan = self._plan
        cpu, started = time.process_time(), time.monotonic()
        for number in range(plan.publishers):
            threading.Thread(target=self._publish, args=(number,), daemon=True).start()
        end = started + plan.seconds
        heard = started
        while (now := time.monotonic()) < end and not report.errors:
            if self._receive(min(_TICK, end - now)):
                heard = now
            elif now > heard + _PATIENCE:
                self._settle(self._under_way)  # they are lost, and no reason not to go on
            say(report)
        report.seconds, report.cpu = time.monotonic() - started, time.process_time() - cpu
        received = report.received
        self._stop()
        self._receive_the_rest()
        report.late, report.received = report.received - received, received
        return report

    def close(self) -> list[NodeError]:
        """Stop, and delete the topic; returns the errors of nodes where it may be left.

        All nodes are asked at once, so that if one hangs and Ctrl-C ends the wait, the topic is deleted on the others.
        """
        self._stop()
        answers = ask_all(self._nodes, self._delete, 2 * self._timeout)
        self._selector.close()
        hangs = timed_out(self._timeout), timed_out(2 * self._timeout)
        return [error for error in errors_of(answers) if error.reason in hangs]

    def _delete(self, node: Nsqd) -> None:
        with self._lock:  # what is published after the topic was deleted creates it again
            self._lock.wait_for(lambda: not self._requests[node], self._timeout)
        for subscription in self._subscriptions:
            if subscription.node is node:
                subscription.drop()
        node.act("delete", self._plan.topic)

    def _stop(self) -> None:
        with self._lock:
            self._stopped = True
            self._lock.notify_all()

    # Publishing, on a thread for each publisher

    def _publish(self, number: int) -> None:
        plan = self._plan
        node = self._nodes[number % len(self._nodes)]
        padding = bytes(plan.size - SMALLEST)
        pause = plan.batch * plan.publishers / plan.rate if plan.rate else 0.0
        due = time.monotonic() + pause * number / plan.publishers
        while self._may_publish(node, due):
            sent = time.monotonic_ns()
            try:
                if plan.batch == 1:
                    node.pub(plan.topic, _STAMP.pack(sent) + padding)
                else:
                    node.mpub(plan.topic, [_STAMP.pack(sent) + padding] * plan.batch)
            except NodeError as error:
                with self._lock:
                    self.report.errors.append(error)
                    self._requests[node] -= 1
                    self._lock.notify_all()
                return
            with self._lock:
                self._requests[node] -= 1
                self._lock.notify_all()
                self.report.publishing.add(time.monotonic_ns() - sent)
                self.report.published += plan.batch
            due = max(due + pause, time.monotonic() - 1)  # what was missed is caught up with, but not for long

    def _may_publish(self, node: Nsqd, due: float) -> bool:
        """Wait until a batch is due and fits into the window; False: the run has ended."""
        plan = self._plan
        with self._lock:
            while not self._stopped:
                early = due - time.monotonic()
                if early <= 0 and (not plan.consumers or self._under_way + plan.batch <= plan.window):
                    self._under_way += plan.batch
                    self._requests[node] += 1
                    return True
                self._lock.wait(early if early > 0 else None)
        return False

    # Consuming, on the calling thread

    def _receive(self, timeout: float) -> int:
        """Receive messages for up to `timeout` seconds; returns their number."""
        if not self._subscriptions:
            time.sleep(timeout)
            return 0
        count = 0
        report = self.report
        waiting = [one for one in self._subscriptions if one.has_messages]
        ready = [key.data for key, _ in self._selector.select(0 if waiting else timeout)]
        for subscription in dict.fromkeys([*waiting, *ready]):
            try:
                messages = subscription.receive()
                now = time.monotonic_ns()
                for message in messages:
                    message.finish()
                    if message.attempts > 1:
                        report.twice += 1
                        continue
                    count += 1
                    if len(message.body) >= SMALLEST:
                        report.delivery.add(now - _STAMP.unpack_from(message.body)[0])
                subscription.flush()
            except NodeError as error:
                with self._lock:
                    report.errors.append(error)
                self._selector.unregister(subscription)
        if count:
            report.received += count
            self._settle(count)
        return count

    def _settle(self, count: int) -> None:
        """Remove this number of messages from the window."""
        with self._lock:
            self._under_way -= count
            self._lock.notify_all()

    def _receive_the_rest(self) -> None:
        """Receive the remaining messages."""
        report = self.report
        patient = time.monotonic() + _PATIENCE
        while time.monotonic() < patient and not report.errors:
            if self._receive(_TICK):
                patient = time.monotonic() + _PATIENCE
            if not self._requests.total() and (not self._subscriptions or report.received >= report.published):
                return
