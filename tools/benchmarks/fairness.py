"""Procedures about how a daemon shares a backlog between the consumers of a channel."""

import contextlib
import selectors
import time
from collections.abc import Iterator

from benchmarks.clients import Consumer
from benchmarks.lanes import BenchmarkError
from benchmarks.queues import BODY_SIZE, CHANNEL, TOPIC, channel_stats, fill
from benchmarks.row import Load, Measurement, RanDry
from kit.daemons import Daemon

CONSUMERS = 4
RDY = 2500


def sharing(daemon: Daemon, load: Load) -> Measurement:
    """How much less the worst served of equal consumers gets than the best, in %."""
    fill(daemon, load.backlog)
    with consumers(daemon, CONSUMERS) as all_of_them:
        counts = consume(daemon, all_of_them, load.seconds)
    return Measurement(100 * (1 - min(counts) / max(counts)))


def stalling(daemon: Daemon, load: Load) -> Measurement:
    """How much less three consumers get beside a fourth that takes its window and then reads nothing, in %."""
    fill(daemon, load.backlog)
    with consumers(daemon, CONSUMERS - 1) as good:
        alone = sum(consume(daemon, good, load.seconds / 2))
        with consumers(daemon, 1) as (stalled,):
            stalled.socket.sendall(b"RDY %d\n" % RDY)
            beside = sum(consume(daemon, good, load.seconds / 2))
    return Measurement(max(100 * (1 - beside / alone), 0.0))


@contextlib.contextmanager
def consumers(daemon: Daemon, count: int) -> Iterator[list[Consumer]]:
    with contextlib.ExitStack() as stack:
        made = [Consumer(daemon.tcp_address, TOPIC, CHANNEL, BODY_SIZE) for _ in range(count)]
        for consumer in made:
            stack.enter_context(consumer.socket)
        yield made


def consume(daemon: Daemon, some: list[Consumer], seconds: float) -> list[int]:
    """How many messages each of them gets and finishes in that time; RanDry if that was all there is."""
    counts = dict.fromkeys(some, 0)
    with selectors.DefaultSelector() as selector:
        for consumer in some:
            selector.register(consumer.socket, selectors.EVENT_READ, consumer)
            consumer.socket.sendall(b"RDY %d\n" % RDY)
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                counts[key.data] += key.data.consume()
    if channel_stats(daemon)["depth"] <= RDY * CONSUMERS:
        raise RanDry("the consumers took all there was")
    if not all(counts.values()):
        raise BenchmarkError(f"a consumer got nothing: {list(counts.values())}")
    return list(counts.values())
