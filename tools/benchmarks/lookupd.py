"""`python tools/benchmarks lookupd`: what many nsqds cost nsqlookupd, ours and the real one.

Each nsqd registers for the topic that all have, for a topic and channel that it shares with some others, and for a
topic of its own: four registrations. Then one client asks over HTTP, while all nsqds ping as often as nsqd does.
"""

import argparse
import http.client
import resource
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks.cli import positive, say
from benchmarks.lanes import DIRECTORY_PREFIX, resident
from kit.daemons import DEADLINE, PEERS, eventually
from kit.lookupds import IDENTITY, REAL_COMMAND, Lookupd, Nsqd

GROUP = 10  # nsqds that share a topic
PING_SECONDS = 15.0  # of nsqd
QUERIES = {"/lookup?topic=group-0": 1000, "/lookup?topic=all": 200, "/topics": 100, "/nodes": 20}
_BATCHES = 50  # of pings in an interval


@dataclass(frozen=True)
class Result:
    """Of one nsqlookupd: bytes of memory, and by query the sorted seconds until its answer was read."""

    empty: int
    registered: int
    queried: int
    seconds: dict[str, list[float]]


def measure(lookupd: Lookupd, nsqds: int) -> Result:
    """Of an nsqlookupd that runs and has no nsqds yet."""
    empty = resident(lookupd)
    with ExitStack() as stack:
        connected = [
            stack.enter_context(Nsqd(lookupd, {**IDENTITY, "broadcast_address": f"nsqd-{number}.example.com"}))
            for number in range(nsqds)
        ]
        for number, nsqd in enumerate(connected):
            nsqd.register("all", f"group-{number // GROUP} c", f"own-{number}")
        registered = resident(lookupd)
        stop = threading.Event()
        pinging = threading.Thread(target=ping, args=(connected, stop))
        pinging.start()
        try:
            seconds = {path: sorted(ask(lookupd, path, count)) for path, count in QUERIES.items()}
        finally:
            stop.set()
            pinging.join()
        queried = resident(lookupd)
    eventually(lambda: lookupd.producers() == [], "all gone")
    return Result(empty, registered, queried, seconds)


def ping(nsqds: Sequence[Nsqd], stop: threading.Event) -> None:
    """Until `stop`."""
    batch = 0
    while not stop.wait(PING_SECONDS / _BATCHES):
        for nsqd in nsqds[batch::_BATCHES]:
            nsqd.command(b"PING\n")
        batch = (batch + 1) % _BATCHES


def ask(lookupd: Lookupd, path: str, count: int) -> list[float]:
    """The seconds of each of `count` requests on one connection."""
    connection = http.client.HTTPConnection(lookupd.http_address, timeout=DEADLINE)
    seconds = []
    for _ in range(count):
        started = time.perf_counter()
        connection.request("GET", path)
        answer = connection.getresponse()
        answer.read()
        seconds.append(time.perf_counter() - started)
        assert answer.status == 200, path
    connection.close()
    return seconds


def percentile(values: Sequence[float], percent: int) -> float:
    return values[min(len(values) * percent // 100, len(values) - 1)]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python tools/benchmarks lookupd", description=__doc__)
    parser.add_argument("--nsqds", type=positive, default=5000, help="number of nsqds (default %(default)s)")
    nsqds: int = parser.parse_args(argv).nsqds
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    commands = {"gnsqlookupd": [sys.executable, "-P", "-m", "gnsqd.lookupd"]}
    if PEERS.joinpath("nsqlookupd").exists():
        commands["nsqlookupd"] = REAL_COMMAND
    for name, command in commands.items():
        with (
            tempfile.TemporaryDirectory(prefix=DIRECTORY_PREFIX) as directory,
            Lookupd(command, Path(directory)) as lookupd,
        ):
            result = measure(lookupd, nsqds)
        memory = [f"{size / 2**20:.0f}" for size in (result.empty, result.registered, result.queried)]
        say(f"{name}: {nsqds} nsqds, memory {memory[0]} MiB empty, {memory[1]} registered, {memory[2]} after queries")
        for path, seconds in result.seconds.items():
            median, p99 = (1000 * percentile(seconds, percent) for percent in (50, 99))
            say(f"  {path}: median {median:.2f} ms, p99 {p99:.2f} ms")
    return 0
