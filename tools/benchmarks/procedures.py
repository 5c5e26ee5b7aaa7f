"""The procedures of the rows that move messages as fast as the daemon allows, of latency, memory and starts.

What a consumer needs is published beforehand and costs the measurement nothing.
"""

import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks import queues
from benchmarks.lanes import DIRECTORY_PREFIX, BenchmarkError, cpu_seconds
from benchmarks.programs import ON_CHANNEL, Loaded, drain, fill, generate, holding, run_to_end
from benchmarks.row import KILOBYTES, MEGABYTES, MILLISECONDS, RATE, BenchmarkLoad, Measurement, procedure
from kit.daemons import Instance, interpreter
from kit.observers import resident_bytes

CONNECTORS = 8


@procedure
def publisher(daemon: Instance, load: BenchmarkLoad, *flags: str, batch: int = 1, http: int = 0) -> Measurement:
    """Publishes over TCP, with one command unanswered on each connection, or over `http` connections: PUB, or MPUBs of
    `batch` messages."""
    queues.create_channel(daemon)
    publishers = http or queues.connections()
    to = [f"-publishers={publishers}", *_batches(batch)]
    if http:
        to.append("-http={}:{}".format(*daemon.http_address))
    queues.fetch_memory(load.seconds, publishers * batch)
    loaded = generate(daemon, "move", load.seconds, *to, *flags)
    queues.wait_for_topic(daemon)
    spent = cpu_seconds(daemon) - loaded.before
    if on_disk := queues.channel_stats(daemon)["backend_depth"]:
        raise BenchmarkError(f"{on_disk} messages went to disk")
    return Measurement(loaded.published / loaded.seconds, loaded.published, spent, loaded.cpu_seconds)


@procedure
def consumer(daemon: Instance, load: BenchmarkLoad, rdy: int, *flags: str) -> Measurement:
    """Takes a backlog from memory, for `load.seconds` at most."""
    fill(daemon, load.stored)
    # Less than an output buffer's load waits up to output-buffer-timeout for the next tick, which is not a speed.
    count = max(load.stored - 2 * rdy * queues.connections(), 1)
    return _consumed(drain(daemon, count, rdy, load.seconds, *flags))


@procedure
def both(daemon: Instance, load: BenchmarkLoad, connections: int = 0, batch: int = 1) -> Measurement:
    """Publishes and consumes at the same time, until everything that was published has been finished; on that many
    connections each, or on one per CPU."""
    connections = connections or queues.connections()
    to = [ON_CHANNEL, f"-publishers={connections}", f"-consumers={connections}", *_batches(batch)]
    queues.fetch_memory(load.seconds, connections * batch)
    return _consumed(generate(daemon, "move", load.seconds, *to))


def connector(daemon: Instance, load: BenchmarkLoad) -> Measurement:
    """Opens consumers and closes them, CONNECTORS at a time, and waits until the daemon has forgotten the last."""
    queues.create_channel(daemon)
    loaded = generate(daemon, "connect", load.seconds, ON_CHANNEL, f"-consumers={CONNECTORS}")
    queues.wait_for_channel(daemon, client_count=0)
    spent = cpu_seconds(daemon) - loaded.before
    return Measurement(loaded.connected / loaded.seconds, loaded.connected, spent, loaded.cpu_seconds)


def _batches(batch: int) -> list[str]:
    return [f"-batch={batch}"] if batch > 1 else []


def _consumed(loaded: Loaded) -> Measurement:
    rate = loaded.consumed / loaded.seconds
    return Measurement(rate, loaded.consumed, loaded.after - loaded.before, loaded.cpu_seconds)


NODES = {"one daemon": RATE, "two daemons": RATE}


def nodes(daemon: Instance, load: BenchmarkLoad) -> Measurement:
    """Publishes and consumes at the same time, as `both` with MPUB 20: on one daemon, and then on it and a second one,
    which have half of the connections each."""
    with (
        tempfile.TemporaryDirectory(prefix=DIRECTORY_PREFIX) as directory,
        Instance(daemon.command, Path(directory, "data"), *daemon.flags) as second,
    ):
        figures = [sum(_rates(daemons, load)) for daemons in ([daemon], [daemon, second])]
        second.kill()  # a clean exit would write its messages to disk
    return Measurement(parts=dict(zip(NODES, figures, strict=True)))


def _rates(daemons: Sequence[Instance], load: BenchmarkLoad) -> list[float]:
    publish_and_consume = both(queues.connections() // len(daemons), batch=20)
    with ThreadPoolExecutor(len(daemons)) as threads:
        return [measured.value for measured in threads.map(publish_and_consume, daemons, [load] * len(daemons))]


TRIPS = 500  # per second, which leaves the daemon idle for most of the time
TIMES = {"p50": MILLISECONDS, "p99": MILLISECONDS}


def trip(daemon: Instance, load: BenchmarkLoad) -> Measurement:
    """Times PUBs, from sending one to its answer."""
    queues.create_channel(daemon)
    loaded = generate(daemon, "trip", load.seconds, f"-rate={TRIPS}", "-warmup=500ms")
    times = {"p50": loaded.p50 * 1000, "p99": loaded.p99 * 1000}
    spent = loaded.after - loaded.before
    return Measurement(messages=loaded.published, cpu_seconds=spent, load_seconds=loaded.cpu_seconds, parts=times)


IDLE_CONSUMERS = 1000
IDLE_WITH_DEFLATE = 100
MEMORY = {
    "after the start": MEGABYTES, "per 100,000 messages": MEGABYTES, "per idle consumer": KILOBYTES,
    "per idle consumer, deflate": KILOBYTES,
}  # fmt: skip


def memory(daemon: Instance, load: BenchmarkLoad) -> Measurement:
    """Measures resident memory, with as many messages in the memory of a channel as a backlog has, and then consumers
    of another channel."""
    resident = [resident_bytes(daemon)]
    queues.create_channel(daemon)
    resident.append(resident_bytes(daemon))
    fill(daemon, load.stored)
    resident.append(resident_bytes(daemon))
    idle = "-channel=idle", "-rdy=1"
    with holding(daemon, *idle, f"-consumers={IDLE_CONSUMERS}"):
        resident.append(resident_bytes(daemon))
        with holding(daemon, *idle, f"-consumers={IDLE_WITH_DEFLATE}", "-deflate"):
            resident.append(resident_bytes(daemon))
    started, empty, filled, connected, compressed = resident
    messages, consumers = (filled - empty) / load.stored, (connected - filled) / IDLE_CONSUMERS
    deflate = (compressed - connected) / IDLE_WITH_DEFLATE
    figures = (started / 1e6, messages * 100_000 / 1e6, consumers / 1e3, deflate / 1e3)
    return Measurement(parts=dict(zip(MEMORY, figures, strict=True)))


STARTS = {"by its command": MILLISECONDS, "as the fixtures do": MILLISECONDS}
MOST_SECONDS = 200.0  # more than all starts take

# Arguments: the number of daemons, and a command, or none for that of the fixtures.
START = """
import json, sys, tempfile, time
from pathlib import Path
from gnsqd.testing import GNSQD, Daemon
milliseconds = []
with tempfile.TemporaryDirectory() as directory:
    for number in range(int(sys.argv[1])):
        daemon = Daemon(Path(directory) / str(number), command=sys.argv[2:] or GNSQD)
        began = time.perf_counter()
        daemon.start()
        milliseconds.append(1000 * (time.perf_counter() - began))
        daemon.stop()
print(json.dumps(milliseconds))
"""


def starts(daemon: Instance, load: BenchmarkLoad) -> Measurement:
    """Times how long a test waits for a daemon of `gnsqd.testing`, from the call to the answer to /ping: other daemons
    than the one that runs meanwhile, which determines what to start. nsqd is always started by its command."""
    is_ours = daemon.http("GET", "/metrics")[0] == 200
    python = interpreter(daemon.command) if is_ours else [sys.executable]

    def median(count: int, *command: str) -> float:
        """Leaves out the first, for which the fixtures import gnsqd, and nsqd is read from the disk."""
        run = run_to_end([*python, "-P", "-c", START, str(count + 1), *command], MOST_SECONDS)
        milliseconds: list[float] = json.loads(run.stdout)
        return statistics.median(milliseconds[1:])

    figures = (median(10, *daemon.command), median(100, *([] if is_ours else daemon.command)))
    return Measurement(parts=dict(zip(STARTS, figures, strict=True)))
