"""The cost of a message against the number of topics, channels and connections, and of the daemon at rest with that
many of them.

Cost is the daemon's CPU time, which a busy machine disturbs less than a rate. Each row is a fixed number of messages,
so all of them take a known time: less than 8 minutes for three daemons.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from benchmarks import queues
from benchmarks.lanes import cpu_seconds, cpu_share
from benchmarks.programs import ON_CHANNEL, generate_all, holding
from benchmarks.queues import CHANNEL, TOPIC
from benchmarks.row import MEGABYTES, MICROSECONDS, PERCENT, BenchmarkLoad, BenchmarkRow, Measurement, write_topics
from kit.daemons import Instance
from kit.observers import resident_bytes

REST_SECONDS = 0.5
FIGURES = {"cost": MICROSECONDS, "rest": PERCENT, "memory": MEGABYTES}

Work = Callable[[Instance, int, int], tuple[int, float]]
Present = Callable[[Instance, int], contextlib.AbstractContextManager[None]]


@contextlib.contextmanager
def alone(daemon: Instance, count: int) -> Iterator[None]:
    queues.create_channel(daemon)
    yield


@dataclass(frozen=True)
class Dimension:
    """Something there can be many of. `present` provides them; `work` then moves about that many messages, returns
    once the daemon is done with them, with their number and the CPU time that the daemon took."""

    name: str
    what: str  # the messages that are moved
    counts: tuple[int, ...]
    work: Work
    present: Present = alone
    of_topics: bool = False
    of_channels: bool = False

    def row(self, count: int) -> BenchmarkRow:
        topics = numbered(TOPIC, count if self.of_topics else 1)
        channels = numbered(CHANNEL, count if self.of_channels else 1)

        def mem_queue_size(load: BenchmarkLoad) -> int:
            """Returns room for everything in memory, and no more than that: nsqd makes its queues at full size."""
            return 2 * messages(load) // len(topics) + (count if len(topics) == 1 else 100)

        def measure(daemon: Instance, load: BenchmarkLoad) -> Measurement:
            with self.present(daemon, count):
                rest = min(cpu_share(daemon, REST_SECONDS) for _ in range(2))
                memory = resident_bytes(daemon)
                moved, spent = self.work(daemon, count, messages(load))
            parts = dict(zip(FIGURES, (spent / moved * 1e6, 100 * rest, memory / 1e6), strict=True))
            return Measurement(parts=parts)

        return BenchmarkRow(
            f"scale-{self.name.replace(' ', '-')}-{count}",
            f"{self.what}, {count:,} {self.name}",
            measure,
            mem_queue_size,
            parts=FIGURES,
            prepare=partial(write_topics, topics=topics, channels=channels),
            apart=True,
        )


def messages(load: BenchmarkLoad) -> int:
    """Returns the number of messages that a row moves: 200,000 where a backlog has its usual size."""
    return load.stored // 5


def numbered(name: str, count: int) -> list[str]:
    """Returns the names that the load generator uses."""
    return [name] if count == 1 else [f"{name}{number}" for number in range(count)]


def to_topics(daemon: Instance, count: int, messages: int) -> tuple[int, float]:
    loaded = generate_all(daemon, messages, "-publishers=1", "-window=100", f"-topics={count}")
    queues.wait_for_topic(daemon, numbered(TOPIC, count)[-1])
    return loaded.published, cpu_seconds(daemon) - loaded.before


def to_channels(daemon: Instance, count: int, messages: int) -> tuple[int, float]:
    loaded = generate_all(daemon, messages // count, "-publishers=1", "-batch=20")
    queues.wait_for_topic(daemon)
    return loaded.published * count, cpu_seconds(daemon) - loaded.before


def through(daemon: Instance, count: int, messages: int) -> tuple[int, float]:
    loaded = generate_all(daemon, messages, ON_CHANNEL, "-publishers=1", "-batch=20", "-consumers=1")
    return loaded.consumed, loaded.after - loaded.before


@contextlib.contextmanager
def with_connections(daemon: Instance, count: int) -> Iterator[None]:
    """Connects consumers of another topic, which nothing is published to."""
    with holding(daemon, "-topic=idle", ON_CHANNEL, f"-consumers={count}", "-rdy=1"):
        yield


DECADES = (1, 10, 100, 1000)

DIMENSIONS = (
    Dimension("topics", "PUBs to topics in turn", (*DECADES, 10_000), to_topics, of_topics=True),
    Dimension("channels", "each channel's copy of a message", DECADES, to_channels, of_channels=True),
    Dimension("connections", "beside idle connections", (*DECADES, 5000), through, with_connections),
)
SCALE = tuple(dimension.row(count) for dimension in DIMENSIONS for count in dimension.counts)
