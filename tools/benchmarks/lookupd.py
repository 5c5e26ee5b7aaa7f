"""What many nsqds cost nsqlookupd: that of the daemon which runs meanwhile, ours or the real one.

Each nsqd registers for the topic that all have, for a topic and channel that it shares with some others, and for a
topic of its own: four registrations. Then one client asks over HTTP, while all nsqds ping as often as nsqd does.
"""

import tempfile
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import cycle, islice
from pathlib import Path

from benchmarks.lanes import DIRECTORY_PREFIX, is_ours
from benchmarks.latency import get_times, percentile
from benchmarks.row import MEGABYTES, MILLISECONDS, Load, Measurement
from kit.daemons import Daemon, eventually, interpreter
from kit.lookupds import IDENTITY, REAL_COMMAND, Lookupd, Registrant
from kit.observers import resident_bytes

GROUP = 10  # nsqds that share a topic
PING_SECONDS = 15.0  # of nsqd
QUERIES = {"/lookup?topic=group-0": 1000, "/lookup?topic=all": 200, "/topics": 100, "/nodes": 20}
FIGURES = {
    **dict.fromkeys(("memory without nsqds", "memory", "memory after the queries"), MEGABYTES),
    **{f"{path} {part}": MILLISECONDS for path in QUERIES for part in ("p50", "p99")},
}


def many_nsqds(daemon: Daemon, load: Load) -> Measurement:
    """5,000 of them where a backlog has its usual size."""
    command = [*interpreter(daemon.command), "-P", "-m", "gnsqd.lookupd"] if is_ours(daemon) else REAL_COMMAND
    with (
        tempfile.TemporaryDirectory(prefix=DIRECTORY_PREFIX) as directory,
        Lookupd(command, Path(directory)) as lookupd,
        ExitStack() as stack,
    ):
        memory = [resident_bytes(lookupd)]
        nsqds = [
            stack.enter_context(Registrant(lookupd, {**IDENTITY, "broadcast_address": f"nsqd-{number}.example.com"}))
            for number in range(load.stored // 200)
        ]
        for number, nsqd in enumerate(nsqds):
            nsqd.register("all", f"group-{number // GROUP} c", f"own-{number}")
        memory.append(resident_bytes(lookupd))
        stop = threading.Event()
        pinging = threading.Thread(target=ping, args=(nsqds, stop))
        pinging.start()
        try:
            times = [list(islice(get_times(lookupd.http_address, path), count)) for path, count in QUERIES.items()]
        finally:
            stop.set()
            pinging.join()
        memory.append(resident_bytes(lookupd))
        stack.close()
        eventually(lambda: lookupd.producers() == [], "all gone")
    figures = [size / 1e6 for size in memory] + [percentile(each, part) for each in times for part in (50, 99)]
    return Measurement(parts=dict(zip(FIGURES, figures, strict=True)))


def ping(nsqds: Sequence[Registrant], stop: threading.Event) -> None:
    """Each of them every PING_SECONDS, until `stop`."""
    for nsqd in cycle(nsqds):
        if stop.wait(PING_SECONDS / len(nsqds)):
            return
        nsqd.command(b"PING\n")
