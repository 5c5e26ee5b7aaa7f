"""Actions that must not stop a daemon for more than 50 ms: each with how the daemon is prepared, and what is done.

The figure of a row is the longest wait of a ping while the action is under way and for two seconds after it, less the
median of the waits before it; `stalls` has how that is measured. A row whose limit is broken is run again, and the
median of the attempts counts: a disk that others keep busy can also stop a daemon.
"""

import json
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from http.client import HTTPConnection
from statistics import median
from typing import Any, NamedTuple

from benchmarks.clients import Consumer, consuming, publish
from faults.attacks.figures import Figure, Setting, address, attempts, post, running, spread
from faults.attacks.stalls import ANSWER, INTERVAL, Probe, receive
from kit.daemons import DEADLINE, Daemon, eventually, free_port, last_flag, open_socket
from kit.nsq_client import sized

LIMIT = 50.0  # ms
SETTLED = 2.0  # s, in which what an action has set off comes to its end
USUAL = 1.0  # s, in which nothing is done
HOUR = 3_600_000  # ms
BODY = 200_000  # bytes, of a backlog
BATCH = 10_000  # messages
PLACE = "topic=t&channel=c"
JOURNAL = ("--durability=process",)
RETENTION = (*JOURNAL, "--retention-bytes=4000000000")
ADMIN = ("--admin-http-address={}",)
LOOKUPD = ("--embedded-lookupd-tcp-address={}", "--embedded-lookupd-http-address={}")

Action = Callable[[Daemon, Any], object]


class Requeuer(Consumer):
    """Requeues everything for an hour."""

    def answers(self, ids: list[bytes]) -> bytes:
        return b"".join([b"REQ %b %d\n" % (id, HOUR) for id in ids])


class Freeze(NamedTuple):
    """`prepare` gets `size`, and `act` what that returned; with `topics`, the daemon starts with `size` topics of a
    channel each. A `{}` in a flag becomes an address."""

    name: str
    size: int
    prepare: Callable[[Daemon, int], object]
    act: Action
    flags: tuple[str, ...] = ()
    real: bool = False  # the real nsqd has the action
    topics: bool = False


def measure(freeze: Freeze, command: list[str], setting: Setting) -> list[Figure]:
    size = setting.scaled(freeze.size)
    waits = attempts(lambda: 1000 * longest_wait(freeze, command, size, setting), setting, LIMIT)
    return [Figure("longest wait", median(waits), "ms", at_most=LIMIT), *spread(waits, "ms")]


def longest_wait(freeze: Freeze, command: list[str], size: int, setting: Setting) -> float:
    """Seconds by which it was longer than usual; others publish beside it."""
    flags = [flag.format(f"127.0.0.1:{free_port()}") for flag in freeze.flags]
    with running(command, *flags, topics=size if freeze.topics else 0, channels=1) as daemon, ExitStack() as stack:
        prepared = freeze.prepare(daemon, size)
        if setting.beside:
            stack.enter_context(Probe("stalls", "publish", address(daemon.tcp_address), daemon.pid, setting.beside))
        pings = stack.enter_context(Probe("stalls", "ping", address(daemon.http_address), daemon.pid))
        time.sleep(setting.seconds(USUAL))
        begin = time.monotonic()
        freeze.act(daemon, prepared)
        time.sleep(setting.seconds(SETTLED))
        pings.wait_for(time.monotonic())
        # The ping before the action may wait for its end.
        return max(pings.since(begin - 2 * INTERVAL)) - median(pings.since(0.0, begin - 2 * INTERVAL))


def request(path: str) -> Action:
    return lambda daemon, _: post(daemon, path)


# What there is before


def nothing(daemon: Daemon, size: int) -> int:
    return size


def with_channel(daemon: Daemon, size: int = 0) -> int:
    for what in ("topic", "channel"):
        post(daemon, f"/{what}/create?{PLACE}")
    return size


def backlog_of_topic(daemon: Daemon, megabytes: int) -> None:
    post(daemon, f"/topic/create?{PLACE}")
    publish(daemon.tcp_address, "t", megabytes * 1_048_576 // BODY, BODY)


def backlog_of_channel(daemon: Daemon, megabytes: int) -> None:
    with_channel(daemon)
    count = megabytes * 1_048_576 // BODY
    publish(daemon.tcp_address, "t", count, BODY)
    eventually(lambda: daemon.channel_stats("t", "c")["depth"] == count, "the backlog", 10 * DEADLINE)


def in_memory(daemon: Daemon, count: int) -> None:
    with_channel(daemon)
    for first in range(0, count, 100 * BATCH):
        publish(daemon.tcp_address, "t", min(100 * BATCH, count - first), 1)
    eventually(lambda: daemon.channel_stats("t", "c")["depth"] == count, "the backlog", 10 * DEADLINE)


def deferred(daemon: Daemon, count: int) -> None:
    with_channel(daemon)
    for first in range(0, count, BATCH):
        post(daemon, f"/mpub?topic=t&defer={HOUR}", b"x\n" * min(BATCH, count - first))
    eventually(lambda: daemon.channel_stats("t", "c")["deferred_count"] == count, "they are deferred", 10 * DEADLINE)


def deferred_and_dropped(daemon: Daemon, count: int) -> None:
    deferred(daemon, count)
    post(daemon, f"/channel/empty?{PLACE}")


def requeued_in_order(daemon: Daemon, count: int) -> None:
    """All have been delivered, and requeued for an hour, before the channel became ordered."""
    with_channel(daemon)
    publish(daemon.tcp_address, "t", count, 1)
    consume(daemon, Requeuer, count)
    eventually(lambda: daemon.channel_stats("t", "c")["deferred_count"] == count)
    post(daemon, f"/channel/rules?{PLACE}&ordered=true")


def scattered(daemon: Daemon, count: int) -> None:
    """Every second message is finished, and the others are deferred."""
    with_channel(daemon)
    pair = b"PUB t\n" + sized(b"x") + b"DPUB t %d\n" % HOUR + sized(b"x")
    with open_socket(daemon.tcp_address, DEADLINE) as sock:
        sock.sendall(b"  V2")
        for first in range(0, count, 500):
            pairs = min(500, count - first)
            sock.sendall(pair * pairs)
            receive(sock, 2 * pairs * ANSWER)
    consume(daemon, Consumer, count)
    eventually(lambda: daemon.channel_stats("t", "c")["in_flight_count"] == 0)


def consume(daemon: Daemon, kind: type[Consumer], count: int) -> None:
    consumer = kind(daemon.tcp_address, "t", "c", 1)
    done = 0
    with consumer.socket:
        for _, received in consuming([consumer], 2500):
            done += received
            if done == count:
                return


def registrant(daemon: Daemon, topics: int) -> socket.socket:
    """A client of nsqlookupd that has registered all these."""
    host, _, port = (last_flag(daemon.flags, "embedded-lookupd-tcp-address") or "").rpartition(":")
    sock = open_socket((host, int(port)), 10 * DEADLINE)
    peer = {"broadcast_address": "b", "hostname": "h", "tcp_port": 1, "http_port": 2, "version": "v"}
    sock.sendall(b"  V1IDENTIFY\n" + sized(json.dumps(peer).encode()))
    assert sock.recv(4096)
    for first in range(0, topics, 1000):
        count = min(1000, topics - first)
        sock.sendall(b"".join(b"REGISTER r%d\n" % number for number in range(first, first + count)))
        receive(sock, count * 6)
    return sock


# What is done


def leave(daemon: Daemon, client: socket.socket) -> None:
    client.close()


def cancel(daemon: Daemon, _: object) -> None:
    listed = json.loads(daemon.http("GET", f"/channel/deferred?{PLACE}&limit=1")[2])
    post(daemon, f"/channel/deferred/cancel?{PLACE}&id={listed['messages'][0]['id']}")


def view_pages(daemon: Daemon, topics: int) -> None:
    """40 views at once."""
    at = last_flag(daemon.flags, "admin-http-address") or ""

    def view(number: int) -> int:
        connection = HTTPConnection(at, timeout=10 * DEADLINE)
        connection.request("GET", "/topics")
        response = connection.getresponse()
        response.read()
        connection.close()
        return response.status

    with ThreadPoolExecutor(40) as threads:
        assert set(threads.map(view, range(40))) == {200}


def create_channels(daemon: Daemon, topics: int) -> None:
    """In up to 300 of the topics, eight at a time."""
    with ThreadPoolExecutor(8) as threads:
        creating = (f"/channel/create?topic=t{number}&channel=c" for number in range(min(topics, 300)))
        list(threads.map(lambda path: post(daemon, path), creating))


def mpub(daemon: Daemon, count: int) -> None:
    body = count.to_bytes(4) + sized(b"x") * count
    with open_socket(daemon.tcp_address, 10 * DEADLINE) as sock:
        sock.sendall(b"  V2MPUB t\n" + sized(body))
        receive(sock, ANSWER)


def http_mpub(daemon: Daemon, lines: int) -> None:
    post(daemon, "/mpub?topic=t", b"x\n" * lines)


ON_DISK = ("--mem-queue-size=0",)
IN_MEMORY = ("--mem-queue-size=3000000",)
GIB = 1024

ROWS = (
    Freeze("topic/empty, 2 GiB", 2 * GIB, backlog_of_topic, request(f"/topic/empty?{PLACE}"), ON_DISK, real=True),
    Freeze("topic/delete, 2 GiB", 2 * GIB, backlog_of_topic, request(f"/topic/delete?{PLACE}"), ON_DISK, real=True),
    Freeze("channel/empty, 2 GiB", 2 * GIB, backlog_of_channel, request(f"/channel/empty?{PLACE}"), ON_DISK, real=True),
    Freeze("topic/empty, 2 GiB, journal", 2 * GIB, backlog_of_topic, request(f"/topic/empty?{PLACE}"), JOURNAL),
    Freeze("topic/delete, 2 GiB, journal", 2 * GIB, backlog_of_topic, request(f"/topic/delete?{PLACE}"), JOURNAL),
    Freeze(
        "ordered=true, 2,000,000 in memory",
        2_000_000,
        in_memory,
        request(f"/channel/rules?{PLACE}&ordered=true"),
        IN_MEMORY,
    ),
    Freeze(
        "rewind, 500,000 scattered finished",
        500_000,
        scattered,
        request(f"/channel/rewind?{PLACE}&to=first"),
        RETENTION,
    ),
    Freeze(
        "rewind, 1,000,000 deferred",
        1_000_000,
        deferred_and_dropped,
        request(f"/channel/rewind?{PLACE}&to=first"),
        RETENTION,
    ),
    Freeze(
        "create?from, 1,000,000 deferred",
        1_000_000,
        deferred_and_dropped,
        request("/channel/create?topic=t&channel=past&from=first"),
        RETENTION,
    ),
    Freeze("cancel, ordered, 500,000 requeued", 500_000, requeued_in_order, cancel),
    Freeze("cancel, ordered, 500,000 requeued, journal", 500_000, requeued_in_order, cancel, JOURNAL),
    Freeze("40 views of the page, 3,000 topics", 3_000, nothing, view_pages, ADMIN, topics=True),
    Freeze("channel/create, 10,000 topics", 10_000, nothing, create_channels, real=True, topics=True),
    Freeze("MPUB, 1,000,000 tiny messages", 1_000_000, with_channel, mpub, ON_DISK, real=True),
    Freeze("/mpub, 2,600,000 lines", 2_600_000, with_channel, http_mpub, real=True),
    Freeze("registrant leaves, 200,000 topics", 200_000, registrant, leave, LOOKUPD),
)
