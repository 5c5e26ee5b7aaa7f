"""Procedures that move messages as fast as the daemon allows. What a consumer needs is published beforehand and costs
the measurement nothing."""

from collections.abc import Callable, Sequence

from benchmarks.lanes import cpu_seconds
from benchmarks.programs import ON_CHANNEL, Loaded, bench_program, generate
from benchmarks.queues import (
    CHANNEL,
    SETTLE_SECONDS,
    channel_stats,
    connections,
    create_channel,
    fetch_memory,
    fill,
    topic_stats,
    wait_for_channel,
    wait_for_topic,
)
from benchmarks.row import Load, Measurement, RanDry
from kit.daemons import Daemon

Procedure = Callable[[Daemon, Load], Measurement]


def writer(batch_size: int) -> Procedure:
    """bench_writer sends MPUBs of `batch_size`, one unanswered per connection (also with 1: it knows no PUB)."""

    def measure(daemon: Daemon, load: Load) -> Measurement:
        create_channel(daemon)
        fetch_memory(load.seconds, connections() * batch_size)
        before = cpu_seconds(daemon)
        return published(
            daemon, before, *bench_program(daemon, "bench_writer", load.seconds, f"--batch-size={batch_size}")
        )

    return measure


def reader(rdy: int) -> Procedure:
    """bench_reader takes from a backlog in memory that outlasts it; RanDry if it did not."""

    def measure(daemon: Daemon, load: Load) -> Measurement:
        fill(daemon, load.backlog)
        before = cpu_seconds(daemon)
        found = bench_program(daemon, "bench_reader", load.seconds, f"--channel={CHANNEL}", f"--rdy={rdy}")
        # More than every connection's window left: the queue never was empty.
        if load.backlog - found[1] <= rdy * connections():
            raise RanDry(f"bench_reader took {found[1]} of {load.backlog} messages")
        return published(daemon, before, *found)

    return measure


def publisher(*flags: str, http: int = 0) -> Procedure:
    """The load generator publishes: over TCP, with one command unanswered on each connection, or over `http`
    connections. PUB without a `-batch`."""

    def measure(daemon: Daemon, load: Load) -> Measurement:
        create_channel(daemon)
        publishers = http or connections()
        to = [f"-publishers={publishers}"]
        if http:
            to.append("-http={}:{}".format(*daemon.http_address))
        fetch_memory(load.seconds, publishers * unanswered(flags))
        loaded = generate(daemon, "move", load.seconds, *to, *flags)
        rate = loaded.published / loaded.seconds
        return published(daemon, loaded.before, rate, loaded.published, loaded.cpu_seconds)

    return measure


def unanswered(flags: Sequence[str]) -> int:
    """Messages that a connection publishes before it waits, with these flags of the load generator."""
    numbers = (flag.partition("=")[::2] for flag in flags)
    return max((int(number) for name, number in numbers if name in ("-batch", "-window")), default=1)


def published(daemon: Daemon, before: float, rate: float, messages: int, load_seconds: float) -> Measurement:
    behind = topic_stats(daemon)["depth"]
    wait_for_topic(daemon)
    spent = cpu_seconds(daemon) - before
    return Measurement(rate, messages, spent, channel_stats(daemon)["backend_depth"], behind, load_seconds)


def consumer(rdy: int, *flags: str) -> Procedure:
    """The load generator takes what is stored, from memory, until only the last windows are left or time is up."""

    def measure(daemon: Daemon, load: Load) -> Measurement:
        create_channel(daemon)
        # Published by it too, for bodies that compress like real ones.
        to = ["-publishers=1", "-batch=200", f"-count={load.stored}"]
        filled = generate(daemon, "move", SETTLE_SECONDS, *to).published
        wait_for_channel(daemon, depth=filled)
        on_disk = channel_stats(daemon)["backend_depth"]
        until = max(filled - 2 * rdy * connections(), 1)
        to = [ON_CHANNEL, f"-consumers={connections()}", f"-rdy={rdy}", f"-count={until}"]
        return consumed(generate(daemon, "move", load.seconds, *to, *flags), on_disk)

    return measure


def consumed(loaded: Loaded, on_disk: int = 0) -> Measurement:
    rate = loaded.consumed / loaded.seconds
    return Measurement(rate, loaded.consumed, loaded.after - loaded.before, on_disk, load_seconds=loaded.cpu_seconds)


def both(publishers: int, consumers: int, *flags: str) -> Procedure:
    """Publishers and consumers at once, until everything that was published has been finished: messages finished per
    second, which are several of each one that was published where there are several channels. 0 is one connection per
    CPU."""

    def measure(daemon: Daemon, load: Load) -> Measurement:
        publishing = publishers or connections()
        to = [ON_CHANNEL, f"-publishers={publishing}", f"-consumers={consumers or connections()}"]
        fetch_memory(load.seconds, publishing * unanswered(flags))
        return consumed(generate(daemon, "move", load.seconds, *to, *flags))

    return measure
