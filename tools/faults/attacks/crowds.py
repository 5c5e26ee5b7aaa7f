"""Great numbers of channels: how late messages in flight time out, and what the daemon takes at rest."""

import itertools
import resource
import select
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from statistics import median

from benchmarks.lanes import cpu_seconds
from faults.attacks.figures import Attack, Figure, Setting, attempts, running, spread
from kit.daemons import Daemon
from kit.nsq_client import MESSAGE, Client, parse_message

PER_TOPIC = 100  # channels
INTERVAL = 0.05  # s between the messages of two topics, each of which goes to PER_TOPIC channels
TIMEOUT = 1.0  # s
PATIENCE = 30.0  # s
REST = 5.0  # s

LATE_LIMIT = 100.0  # ms
REST_LIMIT = 1.0  # % of a core


def time_out(number: int, command: list[str], setting: Setting) -> list[Figure]:
    rests: list[float] = []

    def latest() -> float:
        late, rest = time_out_once(setting.scaled(number), command, setting.seconds(REST))
        rests.append(rest)
        return late

    late = attempts(latest, setting, LATE_LIMIT)
    return [
        Figure("latest time-out", median(late), "ms", at_most=LATE_LIMIT),
        *spread(late, "ms"),
        Figure("CPU at rest", min(rests), "%", at_most=REST_LIMIT),
    ]


def time_out_once(number: int, command: list[str], rest: float) -> tuple[float, float]:
    """ms, and % of a core."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # the daemon inherits it
    topics, channels = -(-number // PER_TOPIC), min(number, PER_TOPIC)
    try:
        flags = [f"--msg-timeout={TIMEOUT}s", "--max-heartbeat-interval=1h"]
        with running(command, *flags, topics=topics, channels=channels) as daemon, ExitStack() as stack:
            consumers = []
            for topic, channel in itertools.product(range(topics), range(channels)):
                consumer = stack.enter_context(Client(daemon.tcp_address))
                consumer.identify(heartbeat_interval=3_600_000, output_buffer_size=-1)
                consumer.subscribe(f"t{topic}", f"c{channel}", rdy=1)
                consumers.append(consumer)
            publisher = threading.Thread(target=publish, args=(daemon, topics))
            publisher.start()
            latest = max(lateness(consumers))
            publisher.join()
            time.sleep(1.0)
            before, began = cpu_seconds(daemon), time.monotonic()
            time.sleep(rest)
            return 1000 * latest, 100 * (cpu_seconds(daemon) - before) / (time.monotonic() - began)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def publish(daemon: Daemon, topics: int) -> None:
    with Client(daemon.tcp_address) as client:
        for number in range(topics):
            client.publish(f"t{number}", b"x")
            time.sleep(INTERVAL)


def lateness(consumers: list[Client]) -> Iterator[float]:
    """Seconds from when the message of each consumer should have timed out until it came again, or PATIENCE ended."""
    poll = select.epoll()
    by_descriptor = {consumer.sock.fileno(): consumer for consumer in consumers}
    for descriptor in by_descriptor:
        poll.register(descriptor, select.EPOLLIN)
    first: dict[int, float] = {}
    again: set[int] = set()
    while len(again) < len(consumers):
        ready = poll.poll(1.0)
        now = time.monotonic()
        if len(first) == len(consumers) and now > max(first.values()) + PATIENCE:
            yield from (now - at - TIMEOUT for descriptor, at in first.items() if descriptor not in again)
            return
        for descriptor, _ in ready:
            consumer = by_descriptor[descriptor]
            frame = consumer.frame()
            assert frame.type == MESSAGE, frame
            message = parse_message(frame.data)
            if message.attempts == 1:
                first[descriptor] = now
                continue
            consumer.command(b"FIN " + message.id)
            again.add(descriptor)
            yield now - first[descriptor] - TIMEOUT


ATTACKS = tuple(
    Attack(f"time-outs in {number:,} channels", partial(time_out, number), real=True) for number in (100, 1_000, 10_000)
)
