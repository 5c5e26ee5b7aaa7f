"""Great numbers of channels: how late messages in flight time out, and what the daemon takes at rest."""

import itertools
import selectors
import threading
import time
from contextlib import ExitStack
from functools import partial

from benchmarks.lanes import cpu_share
from faults.attacks.figures import Attack, Figure, Setting, attempts, running
from kit.nsq_client import NSQClient

PER_TOPIC = 100  # channels
INTERVAL = 0.05  # s between the messages of two topics, each of which goes to PER_TOPIC channels
TIMEOUT = 1.0  # s
PATIENCE = 30.0  # s
REST = 5.0  # s
LATE_LIMIT, REST_LIMIT = 100.0, 1.0  # ms, % of a core


def time_out(number: int, command: list[str], setting: Setting) -> list[Figure]:
    number, rests = setting.scaled(number), []
    topics, channels = -(-number // PER_TOPIC), min(number, PER_TOPIC)
    flag = f"--msg-timeout={TIMEOUT}s"

    def latest() -> float:
        with running(command, flag, topics=topics, channels=channels) as daemon, ExitStack() as stack:
            consumers = []
            for topic, channel in itertools.product(range(topics), range(channels)):
                consumers.append(stack.enter_context(NSQClient(daemon.tcp_address)))
                consumers[-1].identify(heartbeat_interval=3_600_000, output_buffer_size=-1)
                consumers[-1].subscribe(f"t{topic}", f"c{channel}", rdy=1)

            def publish() -> None:
                with NSQClient(daemon.tcp_address) as client:
                    for number in range(topics):
                        client.publish(f"t{number}", b"x")
                        time.sleep(INTERVAL)

            publisher = threading.Thread(target=publish)
            publisher.start()
            late = 1000 * lateness(consumers)
            publisher.join()
            time.sleep(1.0)
            rests.append(100 * cpu_share(daemon, setting.seconds(REST)))
            return late

    return [
        Figure("latest time-out", "ms", attempts(latest, LATE_LIMIT), at_most=LATE_LIMIT),
        Figure("CPU at rest", "%", [min(rests)], at_most=REST_LIMIT),
    ]


def lateness(consumers: list[NSQClient]) -> float:
    """Returns the most seconds from the time-out of a message that is due until it came again, or PATIENCE."""
    first: dict[NSQClient, float] = {}
    latest, last = 0.0, time.monotonic()
    with selectors.DefaultSelector() as selector:
        for consumer in consumers:
            selector.register(consumer.sock, selectors.EVENT_READ, consumer)
        while selector.get_map():
            ready, now = selector.select(1.0), time.monotonic()
            if now > last + PATIENCE:
                return PATIENCE
            for key, _ in ready:
                message = key.data.message()
                if message.attempts == 1:
                    first[key.data] = last = now
                    continue
                key.data.command(b"FIN " + message.id)
                selector.unregister(key.fileobj)
                latest = max(latest, now - first[key.data] - TIMEOUT)
    return latest


COUNTS = (100, 1_000, 10_000)
ATTACKS = tuple(Attack(f"time-outs in {count:,} channels", partial(time_out, count), real=True) for count in COUNTS)
