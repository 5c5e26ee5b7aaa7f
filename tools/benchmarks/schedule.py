"""`python tools/benchmarks schedule`: what many deferred messages cost, in gnsqd with a journal and in the real nsqd.

Messages are deferred by 12 to 24 hours. Beside them others are deferred by some seconds, at a fixed rate, and a
consumer measures how late they come. Then the daemon exits and starts again.
"""

import argparse
import random
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from benchmarks.cli import positive, say
from benchmarks.lanes import DIRECTORY_PREFIX, resident
from benchmarks.lookupd import percentile
from kit.daemons import PEERS, Daemon, eventually
from kit.nsq_client import Client

HOUR = 3_600_000  # ms
WINDOW = 1000  # unanswered commands
SOON = 2000  # ms
RATE = 1000  # messages a second that are due soon
BODY = 200  # bytes
COMMANDS = {
    "gnsqd": [sys.executable, "-P", "-m", "gnsqd", "--durability=process", "--max-defer-time=24h"],
    "nsqd": [str(PEERS / "nsqd"), "--max-req-timeout=24h"],
}


@dataclass(frozen=True)
class Result:
    """Of one daemon: bytes of memory, sorted seconds that messages came late, and seconds until it had ended and until
    it answered again; `kept` messages were still deferred then."""

    empty: int
    full: int
    late: list[float]
    exit: float
    start: float
    restarted: int
    kept: int


def measure(nsqd: Daemon, messages: int, seconds: float) -> Result:
    empty = resident(nsqd)
    for what in ("topic", "channel"):
        assert nsqd.http("POST", f"/{what}/create?topic=t&channel=c")[0] == 200
    choose = random.Random(1)
    publish(nsqd, (choose.randrange(12 * HOUR, 24 * HOUR) for _ in range(messages)))
    eventually(lambda: nsqd.channel_stats("t", "c")["deferred_count"] == messages)
    full = resident(nsqd)
    late = sorted(lateness(nsqd, int(RATE * seconds)))
    began = time.perf_counter()
    nsqd.terminate()
    exited = time.perf_counter()
    nsqd.start()
    started = time.perf_counter()
    kept = nsqd.channel_stats("t", "c")["deferred_count"]
    return Result(empty, full, late, exited - began, started - exited, resident(nsqd), kept)


def publish(nsqd: Daemon, delays: Iterable[int]) -> None:
    """A message for each of the delays, in ms."""
    body = struct.pack(">i", BODY) + bytes(BODY)
    rest = iter(delays)
    with Client(nsqd.tcp_address) as client:
        client.identify(heartbeat_interval=-1)
        while window := [b"DPUB t %d\n%b" % (delay, body) for delay in islice(rest, WINDOW)]:
            client.send(b"".join(window))
            for _ in window:
                assert client.response() == b"OK"


def lateness(nsqd: Daemon, count: int) -> Iterator[float]:
    """The seconds between when each of `count` messages was due and came."""

    def defer() -> None:
        with Client(nsqd.tcp_address) as client:
            client.identify(heartbeat_interval=-1)
            begin = time.monotonic()
            for number in range(count):
                time.sleep(max(begin + number / RATE - time.monotonic(), 0))
                client.command(b"DPUB t %d" % SOON, b"%d" % (time.time_ns() + SOON * 1_000_000))
                assert client.response() == b"OK"

    publisher = threading.Thread(target=defer)
    with Client(nsqd.tcp_address) as client:
        client.identify(output_buffer_size=-1, heartbeat_interval=60_000)
        client.subscribe("t", "c", 2500)
        publisher.start()
        for _ in range(count):
            message = client.message()
            yield (time.time_ns() - int(message.body)) / 1e9
            client.command(b"FIN " + message.id)
        publisher.join()
        eventually(lambda: nsqd.channel_stats("t", "c")["in_flight_count"] == 0)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python tools/benchmarks schedule", description=__doc__)
    parser.add_argument("--messages", type=positive, default=1_000_000, help="that are deferred (default %(default)s)")
    parser.add_argument("--seconds", type=positive, default=10, help="that lateness is measured (default %(default)s)")
    arguments = parser.parse_args(argv)
    Daemon.preloaded = False
    for name, command in COMMANDS.items():
        if not Path(command[0]).exists():
            say(f"{name} is left out: make peers builds it")
            continue
        with (
            tempfile.TemporaryDirectory(prefix=DIRECTORY_PREFIX) as directory,
            Daemon(command, Path(directory, "data")) as nsqd,
        ):
            found = measure(nsqd, arguments.messages, arguments.seconds)
        memory = [size / 2**20 for size in (found.empty, found.full, found.restarted)]
        each = (found.full - found.empty) / arguments.messages
        median, p99 = (1000 * percentile(found.late, percent) for percent in (50, 99))
        say(f"{name}: {arguments.messages} deferred messages of {BODY} bytes")
        say(f"  memory {memory[0]:.0f} MiB empty, {memory[1]:.0f} with them ({each:.0f} bytes each)")
        say(f"  late: median {median:.1f} ms, p99 {p99:.1f} ms, longest {1000 * found.late[-1]:.1f} ms")
        say(f"  exit {found.exit:.1f} s, start {found.start:.1f} s; then {found.kept} deferred, {memory[2]:.0f} MiB")
    return 0
