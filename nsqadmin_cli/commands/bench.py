"""`gnsqadmin bench`: messages per second that nodes accept and deliver, and latencies.

Messages are published over HTTP and received by consumers. Publishers are threads, because each waits for its answers;
consumers share the calling thread. A message contains the time at which it was sent. At most `window` messages are
published and not yet received: otherwise the faster side would determine the result, and an ephemeral topic would lose
messages.
"""

import math
import selectors
import threading
import time
from bisect import bisect
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import cycle, islice
from struct import Struct

import click

from gnsqd.shared.names import EPHEMERAL_SUFFIX, is_ephemeral
from nsqadmin_cli import units
from nsqadmin_cli.api import Nsqd
from nsqadmin_cli.change import Shown
from nsqadmin_cli.cluster import Cluster, answer, ask_all, errors_of
from nsqadmin_cli.command_base import command, duration, flag, option
from nsqadmin_cli.consumer import ConsumerOptions, Subscription, auth_option, ephemeral_channel, wait_readable
from nsqadmin_cli.errors import AdminError
from nsqadmin_cli.http_client import NodeError, TLSSettings, timed_out
from nsqadmin_cli.output import note
from nsqadmin_cli.table import ALWAYS, Block, Form, Grid, Line, Paragraph, Table, Tone, column, json_only, table_of
from nsqadmin_cli.units import plural

_GROWTH = math.log(1.04)  # of buckets: a quantile is at most 2 % off
_BAR = 36  # columns of the longest one
_BOUNDS = [digit * 10**power for power in range(3, 14) for digit in (1, 2, 5)]  # ns; the last ones are hours


@dataclass(slots=True)
class Bar:
    """The number of durations between two, in seconds."""

    least: float = column("from", form=Form.LATENCY)
    most: float = column("to", form=Form.LATENCY, keep=ALWAYS)
    count: int = column("messages", form=Form.COUNT, keep=ALWAYS)
    share: str = column("share", keep=ALWAYS, json=False)
    bar: str = column("", keep=ALWAYS, tone=Tone.NODE, json=False)


@dataclass(slots=True)
class Histogram:
    """Owns the counts. Durations are in nanoseconds; those below 1 count as 1."""

    count: int = 0
    sum: int = 0
    largest: int = 0
    _buckets: Counter[int] = field(default_factory=Counter)

    def add(self, duration: int, count: int = 1) -> None:
        duration = max(1, duration)
        self._buckets[int(math.log(duration) / _GROWTH)] += count
        self.count += count
        self.sum += duration * count
        self.largest = max(self.largest, duration)

    @property
    def mean(self) -> float:
        return self.sum / self.count / 1e9 if self.count else 0.0

    def quantile(self, part: float) -> float:
        """Returns the seconds that the part `part` of the durations does not exceed; 0 if there are none."""
        remaining = max(1, math.ceil(part * self.count))
        for bucket, count in sorted(self._buckets.items()):
            remaining -= count
            if remaining <= 0:
                return min(self.largest, math.exp((bucket + 0.5) * _GROWTH)) / 1e9
        return 0.0

    def bars(self) -> Iterator[Bar]:
        """Yields the durations between 1, 2, 5, 10 and so on microseconds, without gaps, from the smallest to the
        largest."""
        counts: Counter[int] = Counter()
        for bucket, count in self._buckets.items():
            counts[bisect(_BOUNDS, math.exp((bucket + 0.5) * _GROWTH))] += count
        for place in range(min(counts), max(counts) + 1) if counts else ():
            least, most = (_BOUNDS[place - 1] if place else 0), _BOUNDS[min(place, len(_BOUNDS) - 1)]
            count, length = counts[place], round(_BAR * counts[place] / max(counts.values()))
            bar = "█" * max(length, bool(count))
            yield Bar(least / 1e9, most / 1e9, count, f"{count / self.count:6.1%}", bar)


_STAMP = Struct(">q")  # time.monotonic_ns() at which a message was sent
SMALLEST = _STAMP.size  # bytes of a body
_TICK = 0.1  # seconds between two looks at the clock
_PATIENCE = 2.0  # seconds without any message until those under way are given up


@dataclass
class Measurements:
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


@dataclass(eq=False)
class BenchLoad:
    """Owns the threads and connections of one measurement. `rate` is in messages per second of all publishers together,
    0: as fast as possible."""

    nodes: Sequence[Nsqd]
    topic: str
    channel: str
    seconds: float
    size: int  # bytes of a body
    batch: int  # messages in one request
    publishers: int
    consumers: int  # 0: only publish
    window: int
    timeout: float
    tls: TLSSettings
    rate: float = 0.0
    auth_secret: str = ""
    report: Measurements = field(default_factory=Measurements)

    def __post_init__(self) -> None:
        self._lock = threading.Condition()  # of those below and of the report's publishing side
        self._under_way = 0  # messages
        # What threads do at each node that is not complete. Thread.join is of no use here: Ctrl-C in it may make it
        # return at once the next time (bpo-45274), and in Thread.start it is unknown whether the thread runs.
        self._requests: Counter[Nsqd] = Counter()
        self._stopped = False
        self._subscriptions: list[Subscription] = []
        self._selector = selectors.DefaultSelector()

    def connect(self) -> None:
        """Creates the topic and its channel on all nodes, and at least one consumer on each; raises NodeError."""
        # On another thread, because Ctrl-C interrupts this one. A node might handle a request that was given up after
        # it has deleted the topic, and create it again.
        connected: Future[None] = Future()
        threading.Thread(target=answer, args=(connected, BenchLoad._connect, self), daemon=True).start()
        while not wait([connected], _TICK).done:
            pass  # without a timeout, Ctrl-C just before the wait would come to notice after it
        connected.result()

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

    def _connect(self) -> None:
        for node in self.nodes:
            for channel in ("", self.channel) if self.consumers else ("",):
                with self._request(node) as may:
                    if may:
                        node.act("create", self.topic, channel)
        options = ConsumerOptions(self.channel, max(1, self.window // max(1, self.consumers)), 0, self.auth_secret)
        for node in islice(cycle(self.nodes), self.consumers):
            with self._request(node) as may:
                if not may:
                    return
                subscription = Subscription(node, self.topic, options, timeout=self.timeout, tls=self.tls)
                self._subscriptions.append(subscription)
                self._selector.register(subscription, selectors.EVENT_READ, subscription)

    def run(self, show: Callable[[Measurements], None]) -> Measurements:
        """Publishes and receives messages; `show` is called some times per second."""
        report = self.report
        cpu, started = time.process_time(), time.monotonic()
        for number in range(self.publishers):
            threading.Thread(target=self._publish, args=(number,), daemon=True).start()
        end = started + self.seconds
        heard = started
        while (now := time.monotonic()) < end and not report.errors:
            if self._receive(min(_TICK, end - now)):
                heard = now
            elif now > heard + _PATIENCE:
                self._settle(self._under_way)  # they are lost, and no reason not to go on
            show(report)
        report.seconds, report.cpu = time.monotonic() - started, time.process_time() - cpu
        received = report.received
        self._stop()
        heard = time.monotonic()
        while time.monotonic() < heard + _PATIENCE and not report.errors:  # receives the rest
            if self._receive(_TICK):
                heard = time.monotonic()
            if not self._requests.total() and (not self._subscriptions or report.received >= report.published):
                break
        report.late, report.received = report.received - received, received
        return report

    def close(self) -> list[NodeError]:
        """Stops, and deletes the topic; returns the errors of nodes where it may be left. All nodes are asked together,
        so that if one hangs and Ctrl-C ends the wait, the topic is deleted on the others."""
        self._stop()
        answers = ask_all(self.nodes, self._delete, 2 * self.timeout)
        self._selector.close()
        hangs = timed_out(self.timeout), timed_out(2 * self.timeout)
        return [error for error in errors_of(answers) if error.reason in hangs]

    def _delete(self, node: Nsqd) -> None:
        with self._lock:  # what is published after the topic was deleted creates it again
            self._lock.wait_for(lambda: not self._requests[node], self.timeout)
        for subscription in self._subscriptions:
            if subscription.node is node:
                subscription.close()
        node.act("delete", self.topic)

    def _stop(self) -> None:
        with self._lock:
            self._stopped = True
            self._lock.notify_all()

    def _publish(self, number: int) -> None:
        """Publishes a batch whenever it is due and fits into the window, on a thread for each publisher."""
        node = self.nodes[number % len(self.nodes)]
        padding = bytes(self.size - SMALLEST)
        pause = self.batch * self.publishers / self.rate if self.rate else 0.0
        due = time.monotonic() + pause * number / self.publishers
        while True:
            with self._request(node):
                with self._lock:
                    while not self._stopped:
                        early = due - time.monotonic()
                        if early <= 0 and (not self.consumers or self._under_way + self.batch <= self.window):
                            break
                        self._lock.wait(early if early > 0 else None)
                    if self._stopped:
                        return
                    self._under_way += self.batch
                sent = time.monotonic_ns()
                try:
                    node.publish(self.topic, [_STAMP.pack(sent) + padding] * self.batch)
                except NodeError as error:
                    self.report.errors.append(error)
                    return
                with self._lock:
                    self.report.publishing.add(time.monotonic_ns() - sent)
                    self.report.published += self.batch
            due = max(due + pause, time.monotonic() - 1)  # what was missed is caught up with, but not for long

    def _receive(self, timeout: float) -> int:
        """Receives messages for up to `timeout` seconds, on the calling thread; returns their number."""
        if not self._subscriptions:
            time.sleep(timeout)
            return 0
        count = 0
        report = self.report
        for subscription in wait_readable(self._selector, timeout):
            try:
                messages = subscription.take()
                now = time.monotonic_ns()
                for message in messages:
                    if message.attempts > 1:
                        report.twice += 1
                        continue
                    count += 1
                    if len(message.body) >= SMALLEST:
                        report.delivery.add(now - _STAMP.unpack_from(message.body)[0])
                subscription.finish(message.id for message in messages)
            except NodeError as error:
                report.errors.append(error)
                self._selector.unregister(subscription)
        if count:
            report.received += count
            self._settle(count)
        return count

    def _settle(self, count: int) -> None:
        with self._lock:
            self._under_way -= count
            self._lock.notify_all()


@dataclass(slots=True)
class BenchSide:
    """The messages that were published, or delivered, and their latencies in seconds, None without any."""

    what: str = column("", json=False)
    messages: int = column("messages", form=Form.COUNT, keep=ALWAYS, json=False)
    rate: float = column("messages/s", "msgs/s", Form.RATE, ALWAYS, json=False)
    bytes_rate: int = column("bytes/s", form=Form.BYTES, keep=6, json=False)
    count: int = json_only()
    mean: float | None = column("mean", form=Form.LATENCY, keep=3)
    p50: float | None = column("50 %", form=Form.LATENCY, keep=7)
    p90: float | None = column("90 %", form=Form.LATENCY, keep=7)
    p99: float | None = column("99 %", form=Form.LATENCY, keep=7)
    p999: float | None = column("99.9 %", form=Form.LATENCY, keep=7)
    max: float | None = column("longest", "max", Form.LATENCY, keep=5)

    @classmethod
    def of(cls, what: str, messages: int, latencies: Histogram, seconds: float, size: int) -> "BenchSide":
        rate = messages / seconds
        side = cls(what, messages, rate, int(rate * size), latencies.count)
        if latencies.count:
            side.mean, side.max = latencies.mean, latencies.largest / 1e9
            side.p50, side.p90, side.p99, side.p999 = map(latencies.quantile, (0.5, 0.9, 0.99, 0.999))
        return side


_BUSY = 0.85  # of a core: then it is this program that is measured


@command(
    examples="""
        gnsqadmin bench
        gnsqadmin bench --nsqd-http-address a.example:4151 --duration 30 --size 1000
        gnsqadmin bench --rate 500 --duration 1m
        gnsqadmin bench --publishers 8 --batch 1 --durable
        gnsqadmin bench --json | jq .delivery_latency.p99
    """,
    document="""
        seconds           duration of the measurement
        nodes             list of addresses
        topic             the topic that was created and deleted
        size, batch, publishers, consumers, window, rate
                          the options; rate is null without --rate
        published, received
                          messages accepted by nodes, and consumed meanwhile
        publish_rate, receive_rate
                          the same per second
        lost, redelivered messages that never arrived, and that arrived again
        own_cpu           fraction of a core that gnsqadmin itself used
        publish_latency   of requests, in seconds: count, mean,
                          p50, p90, p99, p999, max
        delivery_latency  of messages, from publishing to receipt: the same keys
        histogram         of delivery_latency: list of least, most (seconds), count
        errors            list of texts; the first one ends the run
    """,
)
def bench(
    cluster: Cluster,
    duration: float = option("Duration of the measurement.", duration(86400), default="5"),
    size: int = option(
        "Size of each message.", click.IntRange(SMALLEST, 64 * 1024 * 1024), default=200, metavar="BYTES"
    ),
    batch: int | None = option(
        "Messages per request. [default: 100; fewer with --rate, to spread them over time]", click.IntRange(1, 10_000)
    ),
    rate: float | None = option(
        "Messages to publish per second, in total. Without it, as many as possible.", click.FloatRange(0, min_open=True)
    ),
    publishers: int | None = option(
        "Connections that publish, over HTTP. [default: 2, but at least one per node]", click.IntRange(1, 256)
    ),
    consumers: int = option(
        "Connections that consume, at least one per node; 0: measure publishing only.",
        click.IntRange(0, 256),
        default=2,
    ),
    window: int = option(
        "Maximum number of published messages that are not yet received. Nodes must be able to store them in "
        "memory: see --mem-queue-size.",
        click.IntRange(1, 1_000_000),
        default=1000,
    ),
    durable: bool = flag("Use a topic and channel that are not ephemeral, which overflow to disk."),
    auth_secret: str = auth_option,
) -> Shown:
    """Publishes to a temporary topic on every node, consumes it, and deletes it at the end. Without --rate it generates
    as much load as it can: take care with nodes in production. Publishing latency is measured per request, delivery
    latency per message, from just before publishing to receipt. Without --rate, most of the delivery latency is the
    time in the queue after up to --window other messages.

    gnsqadmin uses at most one core. If that limits the result, the last line reports it: the nodes can handle more.
    """
    nodes = cluster.nsqds()
    if not nodes:
        raise AdminError("nsqlookupd lists no nodes")
    publishers = publishers or max(2, len(nodes))
    if batch is None:
        batch = max(1, min(100, int(rate / publishers / 20))) if rate else 100
    consumers = max(consumers, len(nodes)) if consumers else 0
    topic, channel = ephemeral_channel("bench"), f"bench{EPHEMERAL_SUFFIX}"  # a name that is as good for a topic
    if durable:
        topic, channel = topic.removesuffix(EPHEMERAL_SUFFIX), "bench"
    window, pace = max(window, batch), rate or 0.0
    plan = topic, channel, duration, size, batch, publishers, consumers, window
    load = BenchLoad(nodes, *plan, cluster.timeout, cluster.http.tls, pace, auth_secret)
    try:
        load.connect()
        from nsqadmin_cli.render.progress import countdown  # what it needs loads slowly

        with countdown(f"load for {duration:g} s", duration) as show:
            measured = load.run(lambda so_far: show(f"{so_far.published:,} published  {so_far.received:,} received"))
    finally:
        left = load.close()
        if durable:  # nsqlookupd keeps such a topic when its last node has deleted it
            left += errors_of(cluster.ask_lookupds(lambda lookupd: lookupd.act("delete", topic)))
        for error in left:
            note(f"Warning: {error}; the topic {topic} may still exist there")
    published = BenchSide.of("published", measured.published, measured.publishing, measured.seconds, size)
    delivered = BenchSide.of("delivered", measured.received, measured.delivery, measured.seconds, size)
    document = {"seconds": measured.seconds, "nodes": [str(node) for node in nodes], "topic": topic, "size": size}
    document |= {"batch": batch, "publishers": publishers, "consumers": consumers, "window": window, "rate": rate}
    document |= {"published": measured.published, "received": measured.received}
    document |= {"publish_rate": published.rate, "receive_rate": delivered.rate}
    document |= {"lost": measured.lost if consumers else 0, "redelivered": measured.twice}
    document |= {"own_cpu": measured.cpu / measured.seconds, "publish_latency": published}
    document |= {"delivery_latency": delivered, "histogram": list(measured.delivery.bars()), "errors": measured.errors}
    table = table_of(BenchSide, [published, delivered] if consumers else [published])
    return Shown(document, [*_blocks(load, table)], table, [*cluster.lookupd_errors, *measured.errors])


def _blocks(load: BenchLoad, table: Table) -> Iterator[Block]:
    measured = load.report
    consumers = plural(load.consumers, "consumer") if load.consumers else "no consumer"
    pace = f"{units.rate(load.rate)}/s" if load.rate else "as fast as possible"
    facts = {"nodes": f"{plural(len(load.nodes), 'node')}, {plural(load.publishers, 'publisher')}, {consumers}"}
    facts["messages"] = f"{units.size(load.size)} each, {load.batch:,} per request, {pace}"
    yield Grid.of(facts | {"measured": f"{measured.seconds:.1f} s"})
    yield table
    if measured.delivery.count:
        yield Line.of("Latency from publishing to receipt", Tone.STRONG)
        yield table_of(Bar, list(measured.delivery.bars()))
    no_label = ("", Tone.PLAIN)
    if load.consumers and measured.lost:
        where = "a node failed"
        if is_ephemeral(load.topic):
            where = "its --mem-queue-size is smaller than --window, or it failed"
        yield Paragraph(no_label, f"{plural(measured.lost, 'message')} lost: {where}.", Tone.BAD)
    if measured.twice:
        text = f"{plural(measured.twice, 'message')} delivered again, after the node's --msg-timeout."
        yield Paragraph(no_label, text, Tone.NOTE)
    if (busy := measured.cpu / measured.seconds) > _BUSY:
        text = f"gnsqadmin itself was busy {busy:.0%} of the time: the nodes can handle more than this."
        yield Paragraph(no_label, text, Tone.NOTE)
