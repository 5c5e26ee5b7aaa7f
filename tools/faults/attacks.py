"""`python -m faults.attacks`: actions that must not stop a daemon for more than 50 ms, as a table; exits with 1 if
gnsqd breaks the limit.

A row has how a daemon is prepared, and what is done then. Its figure is the longest wait of a ping while the action is
under way and for two seconds after it, less the median of the waits before it; `stalls` has how that is measured. A row
whose limit is broken is run again, and the median of the attempts counts: a disk that others keep busy can also stop a
daemon. The daemon is what `$GNSQD_BIN` has, else the installed gnsqd.
"""

import argparse
import json
import os
import re
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from faults.stalls import INTERVAL, Pings
from kit.daemons import DEADLINE, PEERS, Daemon, eventually, free_port, last_flag, open_socket, own_command
from kit.nsq_client import Client, mpub_body, sized
from kit.traffic import create, post

LIMIT = 50.0  # ms
ATTEMPTS = 3
SETTLED = 2.0  # s, in which what an action has set off comes to its end
USUAL = 1.0  # s, in which nothing is done
HOUR = 3_600_000  # ms
BODY = 200_000  # bytes, of a backlog
WINDOW = 2500  # messages in flight
PLACE = "topic=t&channel=c"

# What there is before


def nothing(daemon: Daemon, size: int) -> int:
    return size


def with_channel(daemon: Daemon, size: int = 0) -> int:
    create(daemon, "t", "c")
    return size


def wait_for_all(daemon: Daemon, figure: str, count: int) -> None:
    eventually(lambda: daemon.channel_stats("t", "c")[figure] == count, f"{figure} {count}", 10 * DEADLINE)


def publish(daemon: Daemon, count: int, body: bytes, batch: int) -> None:
    with Client(daemon.tcp_address, timeout=10 * DEADLINE) as client:
        client.identify(heartbeat_interval=-1)
        for first in range(0, count, batch):
            client.command(b"MPUB t", mpub_body(*[body] * min(batch, count - first)))
            assert client.response() == b"OK"


def backlog_of_topic(daemon: Daemon, megabytes: int) -> None:
    create(daemon, "t")
    publish(daemon, megabytes * 1_048_576 // BODY, bytes(BODY), 20)


def backlog_of_channel(daemon: Daemon, megabytes: int) -> None:
    with_channel(daemon)
    backlog_of_topic(daemon, megabytes)
    wait_for_all(daemon, "depth", megabytes * 1_048_576 // BODY)


def in_memory(daemon: Daemon, count: int) -> None:
    with_channel(daemon)
    publish(daemon, count, b"x", 100_000)
    wait_for_all(daemon, "depth", count)


def deferred(daemon: Daemon, count: int) -> None:
    with_channel(daemon)
    for first in range(0, count, 10_000):
        post(daemon, f"/mpub?topic=t&defer={HOUR}", b"x\n" * min(10_000, count - first))
    wait_for_all(daemon, "deferred_count", count)


def deferred_and_dropped(daemon: Daemon, count: int) -> None:
    deferred(daemon, count)
    post(daemon, f"/channel/empty?{PLACE}")


def answer_all(daemon: Daemon, count: int, command: bytes) -> None:
    with Client(daemon.tcp_address, timeout=10 * DEADLINE) as client:
        client.identify(heartbeat_interval=60_000)
        client.subscribe("t", "c", WINDOW)
        for first in range(0, count, WINDOW):
            client.send(b"".join(command % client.message().id for _ in range(min(WINDOW, count - first))))
        wait_for_all(daemon, "in_flight_count", 0)


def requeued_in_order(daemon: Daemon, count: int) -> None:
    """All have been delivered, and requeued for an hour, before the channel became ordered."""
    in_memory(daemon, count)
    answer_all(daemon, count, b"REQ %%b %d\n" % HOUR)
    post(daemon, f"/channel/rules?{PLACE}&ordered=true")


def scattered(daemon: Daemon, count: int) -> None:
    """Every second message is finished, and the others are deferred."""
    with_channel(daemon)
    pair = b"PUB t\n" + sized(b"x") + b"DPUB t %d\n" % HOUR + sized(b"x")
    with Client(daemon.tcp_address) as client:
        for first in range(0, count, 500):
            pairs = min(500, count - first)
            client.send(pair * pairs)
            assert {client.response() for _ in range(2 * pairs)} == {b"OK"}
    answer_all(daemon, count, b"FIN %b\n")


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
        answers = b""
        while len(answers) < 6 * count:
            answers += sock.recv(6 * count)
    return sock


# What is done

Action = Callable[[Daemon, Any], object]


def request(path: str) -> Action:
    return lambda daemon, _: post(daemon, path)


def cancel(daemon: Daemon, _: object) -> None:
    listed = json.loads(daemon.http("GET", f"/channel/deferred?{PLACE}&limit=1")[2])
    post(daemon, f"/channel/deferred/cancel?{PLACE}&id={listed['messages'][0]['id']}")


def view_pages(daemon: Daemon, topics: int) -> None:
    """40 views at once."""

    def view(number: int) -> int:
        connection = HTTPConnection(last_flag(daemon.flags, "admin-http-address") or "", timeout=10 * DEADLINE)
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
        list(threads.map(lambda number: create(daemon, f"t{number}", "c"), range(min(topics, 300))))


EMPTY_TOPIC, DELETE_TOPIC = request(f"/topic/empty?{PLACE}"), request(f"/topic/delete?{PLACE}")
REWIND = request(f"/channel/rewind?{PLACE}&to=first")
CREATE_FROM = request("/channel/create?topic=t&channel=past&from=first")
JOURNAL = ("--durability=process",)
RETENTION = (*JOURNAL, "--retention-bytes=4000000000")
ON_DISK, IN_MEMORY = ("--mem-queue-size=0",), ("--mem-queue-size=3000000",)
ADMIN = ("--admin-http-address={}",)
LOOKUPD = ("--embedded-lookupd-tcp-address={}", "--embedded-lookupd-http-address={}")
GIB = 1024


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


ROWS = (
    Freeze("topic/empty, 2 GiB", 2 * GIB, backlog_of_topic, EMPTY_TOPIC, ON_DISK, real=True),
    Freeze("topic/delete, 2 GiB", 2 * GIB, backlog_of_topic, DELETE_TOPIC, ON_DISK, real=True),
    Freeze("channel/empty, 2 GiB", 2 * GIB, backlog_of_channel, request(f"/channel/empty?{PLACE}"), ON_DISK, real=True),
    Freeze("topic/empty, 2 GiB, journal", 2 * GIB, backlog_of_topic, EMPTY_TOPIC, JOURNAL),
    Freeze("topic/delete, 2 GiB, journal", 2 * GIB, backlog_of_topic, DELETE_TOPIC, JOURNAL),
    Freeze(
        "ordered=true, 2,000,000 in memory",
        2_000_000,
        in_memory,
        request(f"/channel/rules?{PLACE}&ordered=true"),
        IN_MEMORY,
    ),
    Freeze("rewind, 500,000 scattered finished", 500_000, scattered, REWIND, RETENTION),
    Freeze("rewind, 1,000,000 deferred", 1_000_000, deferred_and_dropped, REWIND, RETENTION),
    Freeze("create?from, 1,000,000 deferred", 1_000_000, deferred_and_dropped, CREATE_FROM, RETENTION),
    Freeze("cancel, ordered, 500,000 requeued", 500_000, requeued_in_order, cancel),
    Freeze("cancel, ordered, 500,000 requeued, journal", 500_000, requeued_in_order, cancel, JOURNAL),
    Freeze("40 views of the page, 3,000 topics", 3_000, nothing, view_pages, ADMIN, topics=True),
    Freeze("channel/create, 10,000 topics", 10_000, nothing, create_channels, real=True, topics=True),
    Freeze(
        "MPUB, 1,000,000 tiny messages",
        1_000_000,
        with_channel,
        lambda daemon, count: publish(daemon, count, b"x", count),
        ON_DISK,
        real=True,
    ),
    Freeze(
        "/mpub, 2,600,000 lines",
        2_600_000,
        with_channel,
        lambda daemon, lines: post(daemon, "/mpub?topic=t", b"x\n" * lines),
        real=True,
    ),
    Freeze(
        "registrant leaves, 200,000 topics",
        200_000,
        registrant,
        lambda daemon, client: client.close(),
        LOOKUPD,
    ),
)


def longest_wait(freeze: Freeze, command: list[str], scale: float) -> float:
    """ms by which it was longer than usual."""
    size = max(int(freeze.size * scale), 1)
    flags = [flag.format(f"127.0.0.1:{free_port()}") for flag in freeze.flags]
    with tempfile.TemporaryDirectory(prefix="gnsqd-attacks-") as directory:
        daemon = Daemon(command, Path(directory) / "data", *flags)
        daemon.data_path.mkdir()
        if freeze.topics:
            channels = [{"name": "c0", "paused": False}]
            topics = [{"channels": channels, "name": f"t{number}", "paused": False} for number in range(size)]
            (daemon.data_path / "nsqd.dat").write_text(json.dumps({"topics": topics, "version": "1.3.0"}))
        try:
            daemon.start()
            prepared = freeze.prepare(daemon, size)
            with Pings(daemon) as pings:
                time.sleep(max(USUAL * min(scale, 1.0), 0.1))
                begin = time.monotonic() - 2 * INTERVAL  # the ping before the action may wait for its end
                freeze.act(daemon, prepared)
                time.sleep(max(SETTLED * min(scale, 1.0), 0.1))
                pings.wait_for_one_after(time.monotonic())
                return 1000 * (max(pings.since(begin)) - median(pings.since(0.0, begin)))
        finally:
            daemon.kill()


def say(*cells: object) -> None:
    sys.stdout.write(f"| {' | '.join(map(str, cells))} |\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(prog="attacks", description=__doc__)
    parser.add_argument("--rows", default="", help="only attacks whose name this regular expression finds")
    parser.add_argument("--lane", choices=("gnsqd", "nsqd", "both"), default="both")
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies all sizes (%(default)s)")
    parser.add_argument("--limit", type=float, default=LIMIT, help="ms (%(default)s)")
    parser.add_argument("--list", action="store_true", help="print the names of all attacks")
    asked = parser.parse_args()
    chosen = [freeze for freeze in ROWS if re.search(asked.rows, freeze.name)]
    if asked.list:
        sys.stdout.writelines(f"{freeze.name}\n" for freeze in chosen)
        return 0
    # All that was started ends with it, in the background too.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    commands = {"gnsqd": own_command(), "nsqd": [os.fspath(PEERS / "nsqd")]}
    say("attack", "daemon", "longest wait", f"at most {asked.limit:g} ms")
    say(*["---"] * 4)
    broken = False
    for freeze in chosen:
        for name, command in commands.items():
            if asked.lane not in (name, "both") or (name == "nsqd" and not freeze.real):
                continue
            waits = [longest_wait(freeze, command, asked.scale)]
            while waits[0] > asked.limit and len(waits) < ATTEMPTS:
                waits.append(longest_wait(freeze, command, asked.scale))
            holds = median(waits) <= asked.limit
            say(freeze.name, name, ", ".join(f"{wait:.1f} ms" for wait in waits), "yes" if holds else "NO")
            broken |= name == "gnsqd" and not holds
    return int(broken)


if __name__ == "__main__":
    sys.exit(main())
