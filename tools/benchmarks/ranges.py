"""How fast one reader gets a backlog by ranges over HTTP, and how long a publisher beside it waits.

The reader counts messages by the heads of their records. It reads all of the backlog again and again, while the load
generator times PUBs at a steady rate. So two of three processes work at a time, which needs two cores without other
load.
"""

import contextlib
import http.client
import struct
import threading
from statistics import median
from time import monotonic

from benchmarks.lanes import cpu_seconds
from benchmarks.latency import WARM_UP, timed
from benchmarks.programs import fill, generate
from benchmarks.queues import TOPIC
from benchmarks.row import MILLISECONDS, RATE, Load, Measurement, Unit
from kit.daemons import DEADLINE, Daemon

PUB_RATE = 1000  # messages per second
PIECE = 1 << 20  # bytes
CPU = Unit("s of CPU per million messages", ".3f", speed=False)
FIGURES = {"messages/s": RATE, "CPU": CPU, "PUB p50": MILLISECONDS, "PUB p99": MILLISECONDS}
PROMISED = {"PUB p99": 5.0}  # ms
_HEAD = struct.Struct(">IqI")


def read_ranges(daemon: Daemon, load: Load) -> Measurement:
    """The reader's rate, the daemon's CPU time for it and for the PUBs, and how long these take."""
    fill(daemon, load.stored)
    rates: list[float] = []
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            began = monotonic()
            rates.append(count(daemon) / (monotonic() - began))

    count(daemon)
    before = cpu_seconds(daemon)
    count(daemon)
    spent = (cpu_seconds(daemon) - before) / load.stored * 1_000_000
    thread = threading.Thread(target=read)
    thread.start()
    try:
        trip = timed(generate(daemon, "trip", load.seconds, f"-rate={PUB_RATE}", f"-warmup={WARM_UP}s")).parts
    finally:
        stop.set()
        thread.join()
    figures = (median(rates), spent, *trip.values())
    return Measurement(parts=dict(zip(FIGURES, figures, strict=True)))


def count(daemon: Daemon) -> int:
    """Returns the number of messages in the log, which it reads to its end."""
    address = "{}:{}".format(*daemon.http_address)
    messages = at = 0
    data = b""
    with contextlib.closing(http.client.HTTPConnection(address, timeout=DEADLINE)) as connection:
        connection.request("GET", f"/topic/messages?topic={TOPIC}&format=records")
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        while piece := answer.read(PIECE):
            data = data[at:] + piece
            at = 0
            while len(data) - at >= _HEAD.size:
                size, _, number = _HEAD.unpack_from(data, at)
                if at + 4 + size > len(data):
                    break
                messages += number
                at += 4 + size
    assert at == len(data)
    return messages
