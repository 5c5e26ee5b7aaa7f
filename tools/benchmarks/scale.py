"""`python tools/benchmarks scale`: what a message costs against the number of topics, channels, consumers, connections,
and of messages in flight and deferred; and what the daemon takes at rest with that many of them.

Cost is the daemon's CPU time, which a busy machine disturbs less than a rate. Each point is a fresh daemon and a fixed
number of messages, so all of it takes a known time: less than 15 minutes for three daemons.
"""

import argparse
import contextlib
import json
import os
import platform
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.cli import add_lane_options, find_lanes, positive, say
from benchmarks.clients import publish
from benchmarks.footprint import cpu_share
from benchmarks.lanes import DIRECTORY_PREFIX, BenchmarkError, Lane, cpu_seconds, resident
from benchmarks.programs import Loaded, generate, holding, on_channel
from benchmarks.queues import BODY_SIZE, CHANNEL, SETTLE_SECONDS, TOPIC, create_channel, wait_for_depth
from benchmarks.scrape import write_topics
from kit.daemons import Daemon, eventually

MESSAGES = 200_000
REST_SECONDS = 0.5
HEADINGS = ("number of", "", "daemon", "µs/message", "% CPU at rest", "MB")


@dataclass(frozen=True)
class Point:
    """One daemon with `count` of something."""

    dimension: str
    count: int
    lane: str
    microseconds: float  # of CPU time that a message costs
    rest: float  # % of one CPU, at rest
    megabytes: float  # resident


@contextlib.contextmanager
def nothing(daemon: Daemon, count: int) -> Iterator[None]:
    create_channel(daemon)
    yield


@dataclass(frozen=True)
class Dimension:
    """Something there can be many of. `present` provides them; `work` then moves about that many messages, returns
    once the daemon is done with them, with their number and the CPU time that the daemon took."""

    name: str
    what: str  # the messages that are moved
    counts: tuple[int, ...]
    work: Callable[[Daemon, int, int], tuple[int, float]]
    present: Callable[[Daemon, int], contextlib.AbstractContextManager[None]] = nothing
    topics: Callable[[int], list[str]] = lambda count: [TOPIC]
    channels: Callable[[int], list[str]] = lambda count: [CHANNEL]


def numbered(name: str, count: int) -> list[str]:
    """The names that the load generator uses."""
    return [name] if count == 1 else [f"{name}{number}" for number in range(count)]


def generate_all(daemon: Daemon, messages: int, *flags: str) -> Loaded:
    return generate(daemon, "move", SETTLE_SECONDS, f"-count={messages}", *flags)


def to_topics(daemon: Daemon, count: int, messages: int) -> tuple[int, float]:
    loaded = generate_all(daemon, messages, "-publishers=1", "-window=100", f"-topics={count}")
    wait_until_moved(daemon, numbered(TOPIC, count)[-1])
    return loaded.published, cpu_seconds(daemon) - loaded.before


def to_channels(daemon: Daemon, count: int, messages: int) -> tuple[int, float]:
    loaded = generate_all(daemon, messages // count, "-publishers=1", "-batch=20")
    wait_until_moved(daemon, TOPIC)
    return loaded.published * count, cpu_seconds(daemon) - loaded.before


def wait_until_moved(daemon: Daemon, topic: str) -> None:
    """Until the topic, the last one that was published to, has handed over what it had."""
    eventually(lambda: daemon.stats(topic)["topics"][0]["depth"] == 0, "topic is empty", SETTLE_SECONDS)


def to_consumers(daemon: Daemon, count: int, messages: int) -> tuple[int, float]:
    """RDY 1, so that every message is sent by itself however many consumers there are."""
    flags = ("-publishers=1", "-batch=20", f"-consumers={count}", "-rdy=1")
    loaded = generate_all(daemon, messages // 4, on_channel(), *flags)
    return loaded.consumed, loaded.after - loaded.before


def through(daemon: Daemon, count: int, messages: int) -> tuple[int, float]:
    loaded = generate_all(daemon, messages, on_channel(), "-publishers=1", "-batch=20", "-consumers=1")
    return loaded.consumed, loaded.after - loaded.before


def defer(daemon: Daemon, count: int, messages: int) -> tuple[int, float]:
    """More of them."""
    before = deferred(daemon)
    loaded = generate_all(daemon, messages // 4, "-publishers=1", "-window=100", "-defer=1h")
    wait_until_deferred(daemon, before + loaded.published)
    return loaded.published, cpu_seconds(daemon) - loaded.before


def deferred(daemon: Daemon) -> int:
    count: int = daemon.channel_stats(TOPIC, CHANNEL)["deferred_count"]
    return count


def wait_until_deferred(daemon: Daemon, count: int) -> None:
    eventually(lambda: deferred(daemon) == count, "all are deferred", SETTLE_SECONDS)


@contextlib.contextmanager
def with_connections(daemon: Daemon, count: int) -> Iterator[None]:
    """Consumers of another topic, which nothing is published to."""
    with holding(daemon, "-topic=idle", on_channel(), f"-consumers={count}", "-rdy=1"):
        yield


@contextlib.contextmanager
def with_in_flight(daemon: Daemon, count: int) -> Iterator[None]:
    """They are all another consumer's."""
    create_channel(daemon)
    publish(daemon.tcp_address, TOPIC, count, BODY_SIZE)
    wait_for_depth(daemon, count)
    with holding(daemon, on_channel(), "-consumers=1", f"-rdy={count}", f"-count={count}"):
        yield


@contextlib.contextmanager
def with_deferred(daemon: Daemon, count: int) -> Iterator[None]:
    create_channel(daemon)
    generate_all(daemon, count, "-publishers=1", "-window=100", "-defer=1h")
    wait_until_deferred(daemon, count)
    yield


DECADES = (1, 10, 100, 1000)
MILLION = (1, 100, 10_000, 100_000, 1_000_000)

DIMENSIONS = (
    Dimension(
        "topics", "PUBs to topics in turn", (*DECADES, 10_000), to_topics, topics=lambda count: numbered(TOPIC, count)
    ),
    Dimension(
        "channels",
        "each channel's copy of a message",
        DECADES,
        to_channels,
        channels=lambda count: numbered(CHANNEL, count),
    ),
    Dimension("consumers", "to consumers of one channel, RDY 1", (*DECADES, 5000), to_consumers),
    Dimension("connections", "beside idle connections", (*DECADES, 5000), through, with_connections),
    Dimension("in flight", "beside messages in flight", MILLION, through, with_in_flight),
    Dimension("deferred", "DPUBs beside deferred messages", MILLION, defer, with_deferred),
)


def measure(dimension: Dimension, count: int, lane: Lane, messages: int) -> Point:
    """BenchmarkError if a daemon or a client fails."""
    topics, channels = dimension.topics(count), dimension.channels(count)
    flags = [
        # Everything in memory, but no more of it than that: nsqd makes its queues at full size.
        f"--mem-queue-size={2 * messages // len(topics) + (count if len(topics) == 1 else 100)}",
        f"--max-rdy-count={max(MILLION)}",
        "--msg-timeout=15m",
    ]
    try:
        with tempfile.TemporaryDirectory(prefix=DIRECTORY_PREFIX) as directory:
            stored = Path(directory) / "data"
            write_topics(stored, topics, channels)
            with lane.running(*flags, stored=stored) as daemon, dimension.present(daemon, count):
                rest = min(cpu_share(daemon, REST_SECONDS) for _ in range(2))
                megabytes = resident(daemon) / 1e6
                moved, spent = dimension.work(daemon, count, messages)
    except (AssertionError, BenchmarkError) as error:  # the former from tests/kit/daemons.py
        raise BenchmarkError(f"{count:,} {dimension.name}, {lane.name}: {error}") from error
    return Point(dimension.name, count, lane.name, spent / moved * 1e6, 100 * rest, megabytes)


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0, 1 with a line on stderr when a daemon fails or the plot cannot be drawn, 130 on Ctrl-C."""
    arguments = parser().parse_args(argv)
    try:
        draw = load_plot() if arguments.plot else None
        lanes = find_lanes(arguments)
        print_line(HEADINGS)
        points = []
        for dimension in DIMENSIONS:
            for count in dimension.counts:
                if dimension.name in arguments.of and count <= arguments.most:
                    for lane in lanes:
                        points.append(measure(dimension, count, lane, arguments.messages))
                        print_point(points[-1])
        if arguments.json:
            write_json(arguments.json, points)
        if draw:
            draw(points, {dimension.name: dimension.what for dimension in DIMENSIONS}, arguments.plot)
    except (BenchmarkError, OSError) as error:
        say(f"benchmarks: {error}")
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def parser() -> argparse.ArgumentParser:
    names = [dimension.name for dimension in DIMENSIONS]
    result = argparse.ArgumentParser(
        prog="python tools/benchmarks scale",
        description="CPU time per message, and CPU time and memory at rest, against the number of something.",
    )
    result.add_argument(
        "--of", nargs="+", choices=names, default=names, metavar="NAME", help=f"{', '.join(names)} (all)"
    )
    result.add_argument("--most", type=positive, default=max(MILLION), metavar="N", help="no greater numbers")
    result.add_argument("--messages", type=positive, default=MESSAGES, metavar="N", help="for a point (%(default)s)")
    result.add_argument("--json", type=Path, metavar="FILE", help="write the points to FILE")
    result.add_argument("--plot", type=Path, metavar="FILE", help="draw the points to FILE, a PNG; needs matplotlib")
    add_lane_options(result)
    return result


def load_plot() -> Callable[[Sequence[Point], dict[str, str], Path], None]:
    try:
        from benchmarks.plot import draw  # here, because only this needs matplotlib
    except ImportError as error:
        raise BenchmarkError(f"a plot needs matplotlib: {error}") from None
    return draw


def print_point(point: Point) -> None:
    figures = (f"{point.microseconds:.2f}", f"{point.rest:.1f}", f"{point.megabytes:,.0f}")
    print_line((point.dimension, f"{point.count:,}", point.lane, *figures))


def print_line(cells: Sequence[str]) -> None:
    print("  ".join(f"{cell:<14}" for cell in cells).rstrip(), flush=True)


def write_json(path: Path, points: Sequence[Point]) -> None:
    """Raises OSError."""
    document: dict[str, Any] = {
        "cpus": len(os.sched_getaffinity(0)),
        "machine": platform.machine(),
        "system": platform.system(),
        "python": platform.python_version(),
        "points": [asdict(point) for point in points],
    }
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
