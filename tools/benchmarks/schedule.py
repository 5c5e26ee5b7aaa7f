"""What many deferred messages cost, in gnsqd with a journal and in the real nsqd.

Messages are deferred by 12 to 24 hours. Beside them others are deferred by some seconds, at a fixed rate, and a
consumer measures how late they come. Then the daemon exits and starts again.
"""

import random
import threading
import time
from collections.abc import Iterable, Iterator
from itertools import islice

from benchmarks.latency import percentile
from benchmarks.queues import BODY_SIZE, CHANNEL, TOPIC, create_channel, wait_for_channel
from benchmarks.row import MEGABYTES, MILLISECONDS, SECONDS, Load, Measurement
from benchmarks.storage import end, start
from kit.daemons import Daemon
from kit.nsq_client import Client, sized
from kit.observers import resident_bytes

HOUR = 3_600_000  # ms
WINDOW = 1000  # unanswered commands
SOON = 2000  # ms
RATE = 1000  # messages a second that are due soon
FIGURES = {
    **dict.fromkeys(("memory without messages", "memory", "memory after the start"), MEGABYTES),
    **dict.fromkeys(("late p50", "late p99", "late longest"), MILLISECONDS),
    **dict.fromkeys(("exit", "start"), SECONDS),
}


def many_deferred(daemon: Daemon, load: Load) -> Measurement:
    """As many as a stored backlog has."""
    create_channel(daemon)
    empty = resident_bytes(daemon)
    choose = random.Random(1)
    publish(daemon, (choose.randrange(12 * HOUR, 24 * HOUR) for _ in range(load.stored)))
    wait_for_channel(daemon, deferred_count=load.stored)
    full = resident_bytes(daemon)
    late = list(lateness(daemon, int(RATE * load.seconds)))
    exited, started = end(daemon).value, start(daemon).value
    memory = [size / 1e6 for size in (empty, full, resident_bytes(daemon))]
    figures = [*memory, *(1000 * percentile(late, part) for part in (50, 99, 100)), exited, started]
    return Measurement(parts=dict(zip(FIGURES, figures, strict=True)))


def publish(daemon: Daemon, delays: Iterable[int]) -> None:
    """A message for each of the delays, in ms."""
    body = sized(bytes(BODY_SIZE))
    rest = iter(delays)
    with Client(daemon.tcp_address) as client:
        client.identify(heartbeat_interval=-1)
        while window := [b"DPUB %b %d\n%b" % (TOPIC.encode(), delay, body) for delay in islice(rest, WINDOW)]:
            client.send(b"".join(window))
            for _ in window:
                assert client.response() == b"OK"


def lateness(daemon: Daemon, count: int) -> Iterator[float]:
    """The seconds between when each of `count` messages was due and came."""

    def defer() -> None:
        with Client(daemon.tcp_address) as client:
            client.identify(heartbeat_interval=-1)
            begin = time.monotonic()
            for number in range(count):
                time.sleep(max(begin + number / RATE - time.monotonic(), 0))
                client.command(b"DPUB %b %d" % (TOPIC.encode(), SOON), b"%d" % (time.time_ns() + SOON * 1_000_000))
                assert client.response() == b"OK"

    publisher = threading.Thread(target=defer)
    with Client(daemon.tcp_address) as client:
        client.identify(output_buffer_size=-1, heartbeat_interval=60_000)
        client.subscribe(TOPIC, CHANNEL, 2500)
        publisher.start()
        for _ in range(count):
            message = client.message()
            yield (time.time_ns() - int(message.body)) / 1e9
            client.command(b"FIN " + message.id)
        publisher.join()
        wait_for_channel(daemon, in_flight_count=0)
