"""Procedures that time single messages at a rate which leaves the daemon idle for most of the time: p50 and p99, ms."""

import contextlib
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from benchmarks.clients import Consumer, Requeuer, consuming, publish
from benchmarks.lanes import BenchmarkError
from benchmarks.programs import ON_CHANNEL, Loaded, generate, neighbour
from benchmarks.queues import BODY_SIZE, CHANNEL, TOPIC, create_channel, topic_stats
from benchmarks.row import Load, Measurement
from kit.daemons import Daemon
from kit.traffic import create

RATE = 500  # messages per second
TOPICS = 1000
WARM_UP = 0.5  # seconds
RDY = 2500

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


def trip_beside_requeues(daemon: Daemon, load: Load) -> Measurement:
    """The longest while two channels of another topic each requeue a random share of a backlog for an hour later."""
    create_channel(daemon)
    done = threading.Event()

    def longest_trip() -> float:
        longest = 0.0
        while not done.is_set():
            longest = max(longest, generate(daemon, "trip", load.seconds, "-rate=50").longest)
        return longest

    topic, channels = "scattered", ("a", "b")
    with contextlib.ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(1))
        stack.callback(done.set)
        consumers: list[Consumer] = [Requeuer(daemon.tcp_address, topic, channel, BODY_SIZE) for channel in channels]
        for consumer in consumers:
            stack.enter_context(consumer.socket)
        longest = pool.submit(longest_trip)
        publish(daemon.tcp_address, topic, load.stored, BODY_SIZE)
        left = dict.fromkeys(consumers, load.stored)
        for consumer, received in consuming(consumers, RDY):
            left[consumer] -= received
            if not any(left.values()):
                break
        done.set()
        return Measurement(longest.result() * 1000)


def end_to_end(rate: int = RATE, channels: int = 1, flags: Sequence[str] = ()) -> Callable[[Daemon, Load], Measurement]:
    """From sending a PUB to receiving the message on every channel, where a consumer waits for it."""

    def measure(daemon: Daemon, load: Load) -> Measurement:
        at = (f"-rate={rate}", f"-warmup={WARM_UP}s", f"-channels={channels}", "-rdy=100")
        return timed(generate(daemon, "latency", load.seconds, ON_CHANNEL, *at, *flags))

    return measure


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
