"""Procedures about how a daemon shares a backlog between the consumers of a channel."""

import contextlib
import selectors
import struct
import time
from collections.abc import Iterator

from benchmarks.lanes import BenchmarkError
from benchmarks.programs import fill
from benchmarks.queues import BODY_SIZE, CHANNEL, TOPIC, channel_stats
from benchmarks.row import Load, Measurement, RanDry
from kit.daemons import Daemon
from kit.nsq_client import Client

CONSUMERS = 4
RDY = 2500
RECEIVE_BYTES = 1 << 18
HEARTBEAT = struct.pack(">ii", 15, 0) + b"_heartbeat_"
HEAD = struct.pack(">ii", 30 + BODY_SIZE, 2)
MESSAGE = struct.Struct(f">18x16s{BODY_SIZE}x")  # only the id is looked at


class Consumer:
    """One connection that finishes messages as they come: those of a `recv` together. As all bodies have one size, this
    costs the machine next to nothing."""

    def __init__(self, daemon: Daemon) -> None:
        client = Client(daemon.tcp_address)
        client.subscribe(TOPIC, CHANNEL)
        self.socket = client.sock
        self._rest = client.buffer

    def consume(self) -> int:
        """Receives once and finishes every whole message; returns their number. Raises BenchmarkError at anything
        else."""
        received = self.socket.recv(RECEIVE_BYTES)
        if not received:
            raise BenchmarkError("the daemon closed the connection")
        # No id and no body looks like a heartbeat, and finished messages are answer enough.
        data = (self._rest + received).replace(HEARTBEAT, b"")
        end = len(data) - len(data) % MESSAGE.size
        self._rest = data[end:]
        if not end:
            return 0
        if not data.startswith(HEAD):
            raise BenchmarkError(f"the daemon sent {data[:100]!r}")
        ids = [id for (id,) in MESSAGE.iter_unpack(memoryview(data)[:end])]
        self.socket.sendall(b"FIN " + b"\nFIN ".join(ids) + b"\n")
        return len(ids)


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
        made = [Consumer(daemon) for _ in range(count)]
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
