"""The topic and the channel that the rows load: made and looked at."""

import mmap
import os
from typing import Any

from benchmarks.row import FASTEST
from kit.daemons import Instance, eventually
from kit.traffic import create

TOPIC = "sub_bench"
CHANNEL = "ch"
BODY_SIZE = 200
SETTLE_SECONDS = 60.0
MEMORY_PER_MESSAGE = 400  # bytes, more than any daemon takes for a body of BODY_SIZE
MOST_COMMANDS = 50_000  # a second, on one connection


def connections() -> int:
    """Returns the number of connections of most rows: one per CPU."""
    return len(os.sched_getaffinity(0))


def topic_stats(daemon: Instance, topic: str = TOPIC) -> dict[str, Any]:
    found: dict[str, Any] = daemon.stats(topic)["topics"][0]
    return found


def channel_stats(daemon: Instance) -> dict[str, Any]:
    channel: dict[str, Any] = topic_stats(daemon)["channels"][0]
    return channel


def create_channel(daemon: Instance) -> None:
    create(daemon, TOPIC, CHANNEL)


def fetch_memory(seconds: float, at_once: int) -> None:
    """Touches as much memory as messages may take in `seconds`, of which `at_once` wait for an answer, and releases it,
    so that every daemon which then fills its own finds the same.

    A virtual machine gives free pages back to its host within seconds, and the first process to touch them again waits
    for the host, seven times as long as for clearing a page.
    """
    free = os.sysconf("SC_AVPHYS_PAGES") * mmap.PAGESIZE
    size = min(int(seconds * min(MOST_COMMANDS * at_once, FASTEST)) * MEMORY_PER_MESSAGE, free // 2)
    with mmap.mmap(-1, size) as memory:
        for page in range(0, size, mmap.PAGESIZE):
            memory[page] = 1


def wait_for_channel(daemon: Instance, **figures: int) -> None:
    """Waits until the statistics of the channel have these, such as `depth=3`."""
    condition = f"a channel with {figures}"
    eventually(lambda: figures.items() <= channel_stats(daemon).items(), condition, SETTLE_SECONDS)


def wait_for_topic(daemon: Instance, topic: str = TOPIC) -> None:
    """Waits until the topic has passed everything to its channels: that is also work on these messages."""
    eventually(lambda: topic_stats(daemon, topic)["depth"] == 0, "topic is empty", SETTLE_SECONDS)
