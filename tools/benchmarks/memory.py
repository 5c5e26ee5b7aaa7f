"""`python tools/benchmarks memory`: how much memory a daemon takes while a backlog is filled and drained.

contrib/docs/memory.md describes what bounds it; `bound` is that formula. The peaks come from /proc, so this needs
Linux.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.cli import add_lane_options, exit_code_of, find_lanes, positive
from benchmarks.clients import MPUB_BYTES, drain, publish
from benchmarks.lanes import BenchmarkError, Lane, resident
from benchmarks.queues import CHANNEL, TOPIC, channel_stats, connections, create_channel
from kit.daemons import Daemon, eventually

MB = 1_000_000
RDY = 100
MEM_QUEUE_SIZE = 10_000  # nsqd's default
SETTLE_SECONDS = 120.0

# contrib/docs/memory.md explains them.
DAEMON = 60 * MB
PER_MESSAGE = 300  # bytes besides the body
PER_PUBLISHED_BYTE = 3
PER_PUBLISHED_MESSAGE = 64  # bytes besides that
PER_CONSUMER = 1 * MB
FRAGMENTATION = 1.1

HEADINGS = ("body", "daemon", "started", "filled", "drained", "bound")


def bound(body_size: int, mem_queue_size: int) -> int:
    """The bytes that gnsqd takes at most in `fill_and_drain`."""
    in_memory = 2 * mem_queue_size + connections() * RDY  # one topic, one channel, and what is in flight
    batch = max(MPUB_BYTES // body_size, 1)
    publisher = PER_PUBLISHED_BYTE * batch * body_size + PER_PUBLISHED_MESSAGE * batch
    messages = round(FRAGMENTATION * in_memory * (body_size + PER_MESSAGE))
    return DAEMON + publisher + connections() * PER_CONSUMER + messages


@dataclass(frozen=True)
class Peaks:
    """The most that was resident until then, in bytes."""

    started: int
    filled: int
    drained: int


def fill_and_drain(daemon: Daemon, body_size: int, count: int) -> Peaks:
    """Publish `count` messages of `body_size` bytes, then consume all of them from the one channel.

    The second half comes while the topic is paused: then its memory queue fills too, not only the channel's.
    """
    create_channel(daemon)
    started = resident(daemon, "VmHWM")
    publish(daemon.tcp_address, TOPIC, count // 2, body_size)
    settle(daemon, count // 2)
    set_topic(daemon, "pause")
    publish(daemon.tcp_address, TOPIC, count - count // 2, body_size)
    filled = resident(daemon, "VmHWM")
    set_topic(daemon, "unpause")
    settle(daemon, count)
    drain(daemon.tcp_address, TOPIC, CHANNEL, count, body_size, rdy=RDY, connections=connections(), until=count)
    eventually(lambda: channel_stats(daemon)["in_flight_count"] == 0, "all is finished", SETTLE_SECONDS)
    return Peaks(started, filled, resident(daemon, "VmHWM"))


def settle(daemon: Daemon, count: int) -> None:
    eventually(lambda: channel_stats(daemon)["depth"] == count, "all is in the channel", SETTLE_SECONDS)


def set_topic(daemon: Daemon, how: str) -> None:
    status, _, body = daemon.http("POST", f"/topic/{how}?topic={TOPIC}")
    if status != 200:
        raise BenchmarkError(f"/topic/{how}: {status} {body.decode(errors='replace')}")


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0, 1 with a line on stderr when a daemon fails or gnsqd takes more than its bound, 130 on Ctrl-C."""
    arguments = parser().parse_args(argv)

    def measure_all() -> None:
        lanes = find_lanes(arguments)
        print_line(HEADINGS)
        for size in arguments.sizes:
            for lane in lanes:
                measure(lane, size, arguments.megabytes * MB // size, arguments.mem_queue_size, ours=lane != lanes[0])

    return exit_code_of(measure_all)


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(
        prog="python tools/benchmarks memory",
        description="Peak memory of gnsqd and the real nsqd after a backlog was filled and after it was drained.",
    )
    result.add_argument("--megabytes", type=positive, default=2000, metavar="N", help="of bodies (%(default)s)")
    result.add_argument("--sizes", type=positive, nargs="+", default=[1000, 100_000], metavar="N", help="of a body")
    result.add_argument("--mem-queue-size", type=positive, default=MEM_QUEUE_SIZE, metavar="N", help="(%(default)s)")
    add_lane_options(result)
    return result


def measure(lane: Lane, body_size: int, count: int, mem_queue_size: int, ours: bool) -> None:
    """Print the line of one daemon; BenchmarkError if it is ours and takes too much."""
    with lane.running(f"--mem-queue-size={mem_queue_size}") as daemon:
        peaks = fill_and_drain(daemon, body_size, count)
    limit = bound(body_size, mem_queue_size)
    figures = [peaks.started, peaks.filled, peaks.drained, *([limit] if ours else [])]
    print_line((f"{body_size:,} B", lane.name, *(f"{figure / MB:,.0f} MB" for figure in figures)))
    if ours and peaks.drained > limit:
        raise BenchmarkError(f"{lane.name} took {peaks.drained / MB:,.0f} MB, more than {limit / MB:,.0f} MB")


def print_line(cells: Sequence[str]) -> None:
    print("  ".join(f"{cell:<14}" for cell in cells).rstrip(), flush=True)
