"""Actions that must not stop a daemon for more than 50 ms: each with how the daemon is prepared, and what is done.

The figure of a row is the longest wait of a ping while the action is under way and for two seconds after it, less the
median of the waits before it; `probes` has how that is measured.
"""

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from random import Random
from statistics import median
from typing import Any

from faults.attacks.figures import PAGE, Attack, Figure, Setting, attempts, look_at_page, running
from faults.attacks.probes import INTERVAL, batches, pings
from kit.daemons import DEADLINE, Instance, eventually
from kit.lookupds import EMBEDDED, LookupdInside, Registrant
from kit.nsq_client import NSQClient, mpub_body, sized
from kit.traffic import create, post

SETTLED = 2.0  # s, in which what an action has set off comes to its end
USUAL = 1.0  # s, in which nothing is done
HOUR = 3_600_000  # ms
BODY = 200_000  # bytes, of a backlog
WINDOW = 2500  # messages in flight
PLACE = "topic=t&channel=c"

Prepare = Callable[[Instance, int], object]
Action = Callable[[Instance, Any], object]


def with_channel(daemon: Instance, size: int = 0) -> int:
    create(daemon, "t", "c")
    return size


def wait_for_all(daemon: Instance, figure: str, count: int) -> None:
    eventually(lambda: daemon.channel_stats("t", "c")[figure] == count, f"{figure} {count}", 10 * DEADLINE)


def publish(daemon: Instance, count: int, body: bytes, batch: int) -> None:
    with NSQClient(daemon.tcp_address, timeout=10 * DEADLINE) as client:
        client.identify(heartbeat_interval=-1)
        for first in range(0, count, batch):
            client.command(b"MPUB t", mpub_body(*[body] * min(batch, count - first)))
            assert client.response() == b"OK"


def backlog_of_topic(daemon: Instance, megabytes: int) -> None:
    create(daemon, "t")
    publish(daemon, megabytes * 1_048_576 // BODY, bytes(BODY), 20)


def backlog_of_channel(daemon: Instance, megabytes: int) -> None:
    with_channel(daemon)
    backlog_of_topic(daemon, megabytes)
    wait_for_all(daemon, "depth", megabytes * 1_048_576 // BODY)


def in_memory(daemon: Instance, count: int) -> None:
    with_channel(daemon)
    publish(daemon, count, b"x", 100_000)
    wait_for_all(daemon, "depth", count)


def deferred_and_dropped(daemon: Instance, count: int) -> None:
    with_channel(daemon)
    for first in range(0, count, 10_000):
        post(daemon, f"/mpub?topic=t&defer={HOUR}", b"x\n" * min(10_000, count - first))
    wait_for_all(daemon, "deferred_count", count)
    post(daemon, f"/channel/empty?{PLACE}")


def answer_all(daemon: Instance, count: int, command: bytes) -> None:
    with NSQClient(daemon.tcp_address, timeout=10 * DEADLINE) as client:
        client.identify(heartbeat_interval=HOUR)
        client.subscribe("t", "c", WINDOW)
        for first in range(0, count, WINDOW):
            client.send(b"".join(command % client.message().id for _ in range(min(WINDOW, count - first))))
        wait_for_all(daemon, "in_flight_count", 0)


def requeued_in_order(daemon: Instance, count: int) -> None:
    """Requeues all messages for an hour, and then makes the channel ordered."""
    in_memory(daemon, count)
    answer_all(daemon, count, b"REQ %%b %d\n" % HOUR)
    post(daemon, f"/channel/rules?{PLACE}&ordered=true")


def scattered(daemon: Instance, count: int) -> None:
    """Finishes every second message, and defers the others."""
    with_channel(daemon)
    pair = b"PUB t\n" + sized(b"x") + b"DPUB t %d\n" % HOUR + sized(b"x")
    with NSQClient(daemon.tcp_address, timeout=10 * DEADLINE) as client:
        client.identify(heartbeat_interval=-1)
        for first in range(0, count, 500):
            pairs = min(500, count - first)
            client.send(pair * pairs)
            assert {client.response() for _ in range(2 * pairs)} == {b"OK"}
    answer_all(daemon, count, b"FIN %b\n")


def registrant(daemon: Instance, topics: int) -> Registrant:
    """Returns a client of nsqlookupd that has registered all these."""
    nsqd = Registrant(LookupdInside(daemon))
    for first in range(0, topics, 1000):
        numbers = range(first, min(first + 1000, topics))
        nsqd.sock.sendall(b"".join(b"REGISTER r%d\n" % number for number in numbers))
        assert {nsqd.reply() for _ in numbers} == {b"OK"}
    return nsqd


def request(path: str) -> Action:
    return lambda daemon, _: post(daemon, path)


def cancel(daemon: Instance, _: object) -> None:
    listed = json.loads(daemon.http("GET", f"/channel/deferred?{PLACE}&limit=1")[2])
    post(daemon, f"/channel/deferred/cancel?{PLACE}&id={listed['messages'][0]['id']}")


def scrape(daemon: Instance, _: object) -> None:
    assert daemon.http("GET", "/metrics")[0] == 200


def view_pages(daemon: Instance, topics: int) -> None:
    """Opens 40 views at the same time."""
    with ThreadPoolExecutor(40) as threads:
        assert set(threads.map(lambda _: look_at_page(daemon, "/topics"), range(40))) == {200}


def publish_large(daemon: Instance, clients: int) -> None:
    """Publishes a body of 20,000 messages by each, all at the same time."""
    body = Random(1).randbytes(5_000_000)
    with ThreadPoolExecutor(clients) as threads:
        list(threads.map(lambda _: post(daemon, "/mpub?topic=t", body), range(clients)))


def create_channels(daemon: Instance, topics: int) -> None:
    """Creates channels in up to 300 of the topics, eight at a time."""
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda number: create(daemon, f"t{number}", "c"), range(min(topics, 300))))


EMPTY_TOPIC, DELETE_TOPIC = request(f"/topic/empty?{PLACE}"), request(f"/topic/delete?{PLACE}")
ORDER = request(f"/channel/rules?{PLACE}&ordered=true")
REWIND = request(f"/channel/rewind?{PLACE}&to=first")
CREATE_FROM = request("/channel/create?topic=t&channel=past&from=first")
MPUB = partial(publish, body=b"x", batch=1_000_000)
JOURNAL, RETENTION = "--durability=process", "--retention-bytes=4000000000"
ON_DISK, IN_MEMORY = "--mem-queue-size=0", "--mem-queue-size=3000000"
GIB = 1024


def freeze(
    name: str, full_size: int, prepare: Prepare, act: Action, *flags: str, real: bool = False, topics: bool = False
) -> Attack:
    """Returns an attack: `prepare` gets the size, and `act` the result of that; with `topics`, the daemon starts with
    that many topics of a channel each. Others may publish beside it."""

    def measure(command: list[str], setting: Setting) -> list[Figure]:
        size = setting.scaled(full_size)

        def longest_wait() -> float:
            """Returns the ms by which it was longer than usual."""
            with running(command, *flags, topics=size if topics else 0) as daemon, ExitStack() as stack:
                prepared = prepare(daemon, size)
                if setting.beside:
                    stack.enter_context(batches(daemon, setting.beside))
                probe = stack.enter_context(pings(daemon))
                time.sleep(setting.seconds(USUAL))
                begin = time.monotonic() - 2 * INTERVAL  # the ping before the action may wait for its end
                act(daemon, prepared)
                time.sleep(setting.seconds(SETTLED))
                probe.wait_for_one_after(time.monotonic())
                return 1000 * (max(probe.since(begin)) - median(probe.since(0.0, begin)))

        return [Figure("longest wait", "ms", attempts(longest_wait, setting.limit), at_most=setting.limit)]

    return Attack(name, measure, real)


ATTACKS = (
    freeze("topic/empty, 2 GiB", 2 * GIB, backlog_of_topic, EMPTY_TOPIC, ON_DISK, real=True),
    freeze("topic/delete, 2 GiB", 2 * GIB, backlog_of_topic, DELETE_TOPIC, ON_DISK, real=True),
    freeze("channel/empty, 2 GiB", 2 * GIB, backlog_of_channel, request(f"/channel/empty?{PLACE}"), ON_DISK, real=True),
    freeze("topic/empty, 2 GiB, journal", 2 * GIB, backlog_of_topic, EMPTY_TOPIC, JOURNAL),
    freeze("topic/delete, 2 GiB, journal", 2 * GIB, backlog_of_topic, DELETE_TOPIC, JOURNAL),
    freeze("ordered=true, 2,000,000 in memory", 2_000_000, in_memory, ORDER, IN_MEMORY),
    freeze("rewind, 500,000 scattered finished", 500_000, scattered, REWIND, JOURNAL, RETENTION),
    freeze("rewind, 1,000,000 deferred", 1_000_000, deferred_and_dropped, REWIND, JOURNAL, RETENTION),
    freeze("create?from, 1,000,000 deferred", 1_000_000, deferred_and_dropped, CREATE_FROM, JOURNAL, RETENTION),
    freeze("cancel, ordered, 500,000 requeued", 500_000, requeued_in_order, cancel),
    freeze("cancel, ordered, 500,000 requeued, journal", 500_000, requeued_in_order, cancel, JOURNAL),
    freeze("40 views of the page, 3,000 topics", 3_000, with_channel, view_pages, PAGE, topics=True),
    freeze("/metrics, 10,000 topics", 10_000, with_channel, scrape, topics=True),
    freeze("channel/create, 10,000 topics", 10_000, with_channel, create_channels, real=True, topics=True),
    freeze("MPUB, 1,000,000 tiny messages", 1_000_000, with_channel, MPUB, ON_DISK, real=True),
    freeze(
        "/mpub, 2,600,000 lines",
        2_600_000,
        with_channel,
        lambda daemon, count: post(daemon, "/mpub?topic=t", b"x\n" * count),
        real=True,
    ),
    freeze("/mpub, 20 clients, 20,000 lines each", 20, with_channel, publish_large, real=True),
    freeze("registrant leaves, 200,000 topics", 200_000, registrant, lambda _, nsqd: nsqd.close(), *EMBEDDED),
)
