"""Procedures that time single messages at a rate which leaves the daemon idle for most of the time: p50 and p99, ms."""

import contextlib
import http.client
import time
from collections.abc import Iterator, Sequence

from benchmarks.lanes import BenchmarkError
from benchmarks.programs import ON_CHANNEL, Loaded, generate, neighbour
from benchmarks.queues import CHANNEL, TOPIC, create_channel, topic_stats
from benchmarks.row import Load, Measurement, procedure
from kit.daemons import DEADLINE, Daemon
from kit.traffic import create

RATE = 500  # messages per second
TOPICS = 1000
WARM_UP = 0.5  # seconds

# MPUBs, some of them always waiting in the daemon's receive buffer.
NEIGHBOUR = ("-publishers=1", "-batch=20", "-window=50")


def trip(daemon: Daemon, load: Load) -> Measurement:
    """From sending a PUB to its answer."""
    create_channel(daemon)
    return timed(generate(daemon, "trip", load.seconds, f"-rate={RATE}", f"-warmup={WARM_UP}s"))


def trip_beside_neighbour(daemon: Daemon, load: Load) -> Measurement:
    """The same while another client publishes to that topic as fast as it can."""
    with neighbour(daemon, *NEIGHBOUR):
        measurement = trip(daemon, load)
    others = topic_stats(daemon)["message_count"] - RATE * (load.seconds + WARM_UP)
    if others < RATE:
        raise BenchmarkError("the neighbour published next to nothing")
    return measurement


@procedure
def end_to_end(
    daemon: Daemon, load: Load, rate: int = RATE, channels: int = 1, flags: Sequence[str] = ()
) -> Measurement:
    """From sending a PUB to receiving the message on every channel, where a consumer waits for it."""
    at = (f"-rate={rate}", f"-warmup={WARM_UP}s", f"-channels={channels}", "-rdy=100")
    return timed(generate(daemon, "latency", load.seconds, ON_CHANNEL, *at, *flags))


def trip_to_topics(daemon: Daemon, load: Load) -> Measurement:
    """PUBs to TOPICS topics in turn, each of which has a channel and gets one message a second."""
    for number in range(TOPICS):
        create(daemon, f"{TOPIC}{number}", CHANNEL)
    return timed(generate(daemon, "trip", load.seconds, f"-rate={TOPICS}", f"-warmup={WARM_UP}s", f"-topics={TOPICS}"))


def timed(loaded: Loaded) -> Measurement:
    return Measurement(
        messages=loaded.published,
        cpu_seconds=loaded.after - loaded.before,
        load_seconds=loaded.cpu_seconds,
        parts={"p50": loaded.p50 * 1000, "p99": loaded.p99 * 1000},
    )


def percentile(values: Sequence[float], percent: int) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) * percent // 100, len(ordered) - 1)]


def get_times(address: str, path: str, **headers: str) -> Iterator[float]:
    """ms of one GET after the other, over one connection, without end."""
    with contextlib.closing(http.client.HTTPConnection(address, timeout=DEADLINE)) as connection:
        while True:
            begin = time.perf_counter()
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            body = answer.read()
            assert answer.status == 200, body
            yield 1000 * (time.perf_counter() - begin)
