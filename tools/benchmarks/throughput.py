"""Procedures that move messages as fast as the daemon allows. What a consumer needs is published beforehand and costs
the measurement nothing."""

from collections.abc import Sequence

from benchmarks import queues
from benchmarks.lanes import BenchmarkError, cpu_seconds
from benchmarks.programs import ON_CHANNEL, Loaded, bench_program, drain, fill, generate
from benchmarks.queues import CHANNEL
from benchmarks.row import Load, Measurement, procedure
from kit.daemons import Daemon

READ = 2_000_000  # messages per second, more than bench_reader takes


@procedure
def writer(daemon: Daemon, load: Load, batch_size: int) -> Measurement:
    """bench_writer sends MPUBs of `batch_size`, one unanswered per connection (also with 1: it knows no PUB)."""
    queues.create_channel(daemon)
    queues.fetch_memory(load.seconds, queues.connections() * batch_size)
    before = cpu_seconds(daemon)
    return published(daemon, before, *bench_program(daemon, "bench_writer", load.seconds, f"--batch-size={batch_size}"))


@procedure
def reader(daemon: Daemon, load: Load, rdy: int) -> Measurement:
    """bench_reader takes from a backlog in memory that outlasts it; BenchmarkError if it did not."""
    backlog = int(load.seconds * READ)
    fill(daemon, backlog)
    before = cpu_seconds(daemon)
    found = bench_program(daemon, "bench_reader", load.seconds, f"--channel={CHANNEL}", f"--rdy={rdy}")
    # More than every connection's window left: the queue never was empty.
    if backlog - found[1] <= rdy * queues.connections():
        raise BenchmarkError(f"bench_reader took {found[1]} of {backlog} messages")
    return published(daemon, before, *found)


@procedure
def publisher(daemon: Daemon, load: Load, *flags: str, http: int = 0) -> Measurement:
    """The load generator publishes: over TCP, with one command unanswered on each connection, or over `http`
    connections. PUB without a `-batch`."""
    queues.create_channel(daemon)
    publishers = http or queues.connections()
    to = [f"-publishers={publishers}"]
    if http:
        to.append("-http={}:{}".format(*daemon.http_address))
    queues.fetch_memory(load.seconds, publishers * unanswered(flags))
    loaded = generate(daemon, "move", load.seconds, *to, *flags)
    rate = loaded.published / loaded.seconds
    return published(daemon, loaded.before, rate, loaded.published, loaded.cpu_seconds)


def unanswered(flags: Sequence[str]) -> int:
    """Messages that a connection publishes before it waits, with these flags of the load generator."""
    numbers = (flag.partition("=")[::2] for flag in flags)
    return max((int(number) for name, number in numbers if name in ("-batch", "-window")), default=1)


def published(daemon: Daemon, before: float, rate: float, messages: int, load_seconds: float) -> Measurement:
    behind = queues.topic_stats(daemon)["depth"]
    queues.wait_for_topic(daemon)
    spent = cpu_seconds(daemon) - before
    return Measurement(rate, messages, spent, queues.channel_stats(daemon)["backend_depth"], behind, load_seconds)


@procedure
def consumer(daemon: Daemon, load: Load, rdy: int, *flags: str) -> Measurement:
    """The load generator takes a backlog from memory, for `load.seconds` at most."""
    fill(daemon, load.stored)
    on_disk = queues.channel_stats(daemon)["backend_depth"]
    return consumed(drain(daemon, but_last_windows(load, rdy), rdy, *flags, seconds=load.seconds), on_disk)


def but_last_windows(load: Load, rdy: int) -> int:
    """How much of what is stored is measured: less than an output buffer's load waits up to output-buffer-timeout for
    the next tick, which is not a speed."""
    return max(load.stored - 2 * rdy * queues.connections(), 1)


def consumed(loaded: Loaded, on_disk: int = 0) -> Measurement:
    rate = loaded.consumed / loaded.seconds
    return Measurement(rate, loaded.consumed, loaded.after - loaded.before, on_disk, load_seconds=loaded.cpu_seconds)


@procedure
def both(daemon: Daemon, load: Load, publishers: int, consumers: int, *flags: str) -> Measurement:
    """Publishers and consumers at once, until everything that was published has been finished: messages finished per
    second, which are several of each one that was published where there are several channels. 0 is one connection per
    CPU."""
    publishing = publishers or queues.connections()
    to = [ON_CHANNEL, f"-publishers={publishing}", f"-consumers={consumers or queues.connections()}"]
    queues.fetch_memory(load.seconds, publishing * unanswered(flags))
    return consumed(generate(daemon, "move", load.seconds, *to, *flags))
