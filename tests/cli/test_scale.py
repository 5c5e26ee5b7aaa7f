"""What gnsqadmin costs where there is much to look at: 3 nodes, 500 topics, 2,000 channels on each."""

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.gnsqadmin import COMMAND, FakeNode, Terminal, environment, http_answer

MEGABYTES = 150

# In between, because a process starts with the memory of the one that started it counted as its own.
MEASURED = """
import json, resource, subprocess, sys
with open(sys.argv[1], "wb") as out:
    code = subprocess.call(sys.argv[2:], stdout=out)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps([code, used.ru_utime + used.ru_stime, used.ru_maxrss / 1000]))
"""


def big_document(topics: int, channels: int) -> bytes:
    zeros = dict.fromkeys(("depth", "backend_depth", "message_count", "message_bytes"), 0)
    counts = ("in_flight_count", "deferred_count", "requeue_count", "timeout_count", "client_count")
    named = [
        {"channel_name": f"channel_of_a_service_{number}", "paused": False, **zeros, **dict.fromkeys(counts, 3)}
        for number in range(channels)
    ]
    found = [
        {"topic_name": f"some_topic_{number:03d}", "paused": False, "channels": named, **zeros}
        for number in range(topics)
    ]
    return json.dumps({"version": "1.3.0", "health": "OK", "start_time": 1, "topics": found}).encode()


@pytest.fixture
def nodes() -> Iterator[list[FakeNode]]:
    answer = http_answer(big_document(500, 4))
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(FakeNode(answer)) for _ in range(3)]


@pytest.fixture
def at(nodes: list[FakeNode]) -> list[str]:
    """The options that name the nodes."""
    return [f"--nsqd-http-address={node.address}" for node in nodes]


@pytest.mark.parametrize("form", ["table", "csv", "json"])
def test_stats_takes_less_than_a_second_and_a_half(at: list[str], form: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", MEASURED, str(tmp_path / "out"), *COMMAND, "stats", "-o", form, *at]
    code, seconds, megabytes = json.loads(subprocess.run(command, stdout=subprocess.PIPE, env=environment()).stdout)
    assert code == 0
    assert seconds < 1.5  # of the processor: a busy machine may take longer
    assert megabytes < MEGABYTES


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no /proc")
def test_top_asks_each_node_once_a_second_and_bounds_its_memory(nodes: list[FakeNode], at: list[str]) -> None:
    with Terminal(160, 50, "top", *at) as terminal:
        began = time.monotonic()
        for _ in range(4):
            terminal.printed = ""
            terminal.wait_for("2,000 channels by depth", "some_topic_")
        status = Path(f"/proc/{terminal.process.pid}/status").read_text()
        terminal.type("q")
        assert terminal.end() == 0
        looks = time.monotonic() - began + 2  # one at the start, and one that is under way
    assert all(1 <= len(node.requests) <= looks for node in nodes)
    assert int(status.partition("VmHWM:")[2].split()[0]) / 1000 < MEGABYTES
