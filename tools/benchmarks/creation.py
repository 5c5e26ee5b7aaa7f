"""`python tools/benchmarks creation`: what creating topics and channels costs, one after the other over HTTP, and what
memory they take; then the same of ephemeral channels, each with a consumer.

Beside it a ping every 10 ms shows for how long the daemon answers nobody. Times include those of the disk: compare
daemons of one run.
"""

import argparse
import http.client
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from statistics import median
from time import perf_counter

from benchmarks.cli import add_lane_options, exit_code_of, find_lanes, positive
from benchmarks.lanes import BenchmarkError, Lane, cpu_seconds, resident
from kit.daemons import Daemon
from kit.nsq_client import Client

PING_SECONDS = 0.01
HEADINGS = ("what", "number", "daemon", "ms each", "ms, last 100", "CPU s", "longest ping", "MB")


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code, as of `exit_code_of`."""
    arguments = parser().parse_args(argv)

    def measure_all() -> None:
        print_line(HEADINGS)
        for lane in find_lanes(arguments):
            measure(lane, arguments.number, arguments.ephemeral)

    return exit_code_of(measure_all)


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(
        prog="python tools/benchmarks creation",
        description="Time, CPU time and memory that creating topics, channels and ephemeral channels costs.",
    )
    result.add_argument("--number", type=positive, default=10_000, metavar="N", help="of topics (%(default)s)")
    result.add_argument("--ephemeral", type=positive, default=5000, metavar="N", help="channels (%(default)s)")
    add_lane_options(result)
    return result


def measure(lane: Lane, number: int, ephemeral: int) -> None:
    with lane.running() as daemon:
        connection = http.client.HTTPConnection(*daemon.http_address)

        def post(path: str) -> None:
            connection.request("POST", path)
            if (status := connection.getresponse()).read() or status.status != 200:
                raise BenchmarkError(f"{path}: {status.status}")

        row(lane, daemon, "topics", number, lambda each: post(f"/topic/create?topic=topic{each}"))
        row(lane, daemon, "channels", number, lambda each: post(f"/channel/create?topic=topic{each}&channel=c"))
        connection.close()
    with lane.running() as daemon, ExitStack() as clients:

        def subscribe(each: int) -> None:
            client = clients.enter_context(Client(daemon.tcp_address))
            client.subscribe("t", f"c{each}#ephemeral", rdy=1)

        row(lane, daemon, "ephemeral", ephemeral, subscribe)


def row(lane: Lane, daemon: Daemon, what: str, number: int, create: Callable[[int], None]) -> None:
    times = []
    spent, memory = cpu_seconds(daemon), resident(daemon)
    with pinging(daemon) as pings:
        for each in range(number):
            begin = perf_counter()
            create(each)
            times.append(1000 * (perf_counter() - begin))
    spent, memory = cpu_seconds(daemon) - spent, resident(daemon) - memory
    figures = (f"{median(times):.2f}", f"{median(times[-100:]):.2f}", f"{spent:.1f}", f"{1000 * max(pings):.0f} ms")
    print_line((what, f"{number:,}", lane.name, *figures, f"{memory / 1e6:,.0f}"))


@contextmanager
def pinging(daemon: Daemon) -> Iterator[list[float]]:
    """How long each ping took, in seconds."""
    pings: list[float] = []
    stop = threading.Event()

    def ping() -> None:
        connection = http.client.HTTPConnection(*daemon.http_address)
        while not stop.wait(PING_SECONDS if pings else 0):
            begin = perf_counter()
            connection.request("GET", "/ping")
            connection.getresponse().read()
            pings.append(perf_counter() - begin)
        connection.close()

    thread = threading.Thread(target=ping)
    thread.start()
    try:
        yield pings
    finally:
        stop.set()
        thread.join()


def print_line(cells: Sequence[str]) -> None:
    print("  ".join(f"{cell:<14}" for cell in cells).rstrip(), flush=True)
