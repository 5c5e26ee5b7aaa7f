"""The topic and the channel that the rows load: made, filled, looked at."""

import mmap
import os
from typing import Any

from benchmarks.clients import publish
from benchmarks.lanes import BenchmarkError
from benchmarks.row import FASTEST
from kit.daemons import Daemon, eventually

TOPIC = "sub_bench"
CHANNEL = "ch"
BODY_SIZE = 200
SETTLE_SECONDS = 60.0
MEMORY_PER_MESSAGE = 400  # bytes, more than any daemon takes for a body of BODY_SIZE
MOST_COMMANDS = 30_000  # a second, on one connection


def connections() -> int:
    """How many connections nsq's bench programs open, and so do most rows: GOMAXPROCS."""
    return len(os.sched_getaffinity(0))


def topic_stats(daemon: Daemon) -> dict[str, Any]:
    topic: dict[str, Any] = daemon.stats(TOPIC)["topics"][0]
    return topic


def channel_stats(daemon: Daemon) -> dict[str, Any]:
    channel: dict[str, Any] = topic_stats(daemon)["channels"][0]
    return channel


def create_channel(daemon: Daemon, topic: str = TOPIC, channel: str = CHANNEL) -> None:
    post(daemon, f"/topic/create?topic={topic}")
    post(daemon, f"/channel/create?topic={topic}&channel={channel}")


def post(daemon: Daemon, path: str, body: bytes = b"") -> None:
    status, _, answer = daemon.http("POST", path, body)
    if status != 200:
        raise BenchmarkError(f"POST {path}: {status} {answer.decode(errors='replace')}")


def fetch_memory(seconds: float, at_once: int) -> None:
    """Touch as much memory as messages may take in `seconds`, of which `at_once` wait for an answer, and let go of it,
    so that every daemon which then fills its own finds the same.

    A virtual machine gives free pages back to its host within seconds, and whoever is the first to touch them again
    waits for the host, seven times as long as for clearing a page.
    """
    free = os.sysconf("SC_AVPHYS_PAGES") * mmap.PAGESIZE
    size = min(int(seconds * min(MOST_COMMANDS * at_once, FASTEST)) * MEMORY_PER_MESSAGE, free // 2)
    with mmap.mmap(-1, size) as memory:
        for page in range(0, size, mmap.PAGESIZE):
            memory[page] = 1


def fill(daemon: Daemon, count: int) -> None:
    """Publishes `count` messages and waits until all of them are in the channel."""
    create_channel(daemon)
    publish(daemon.tcp_address, TOPIC, count, BODY_SIZE)
    wait_for_depth(daemon, count)


def wait_for_depth(daemon: Daemon, count: int) -> None:
    eventually(lambda: channel_stats(daemon)["depth"] == count, "backlog is there", SETTLE_SECONDS)


def wait_for_topic(daemon: Daemon) -> None:
    """Until the topic has handed everything to its channel: that is also work on these messages."""
    eventually(lambda: topic_stats(daemon)["depth"] == 0, "topic is empty", SETTLE_SECONDS)
