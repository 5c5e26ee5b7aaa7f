"""What gnsqadmin costs where there is much to look at: 3 nodes, 500 topics, 2,000 channels on each."""

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.fake_nsqd import channel, node, topic
from cli.gnsqadmin import COMMAND, FakeNode, Terminal, environment, http_answer
from cli.nodes import at

MEGABYTES = 150

# In between, because a process starts with the memory of the one that started it counted as its own.
_MEASURED = """
import json, resource, subprocess, sys
with open(sys.argv[1], "wb") as out:
    code = subprocess.call(sys.argv[2:], stdout=out)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps([code, used.ru_utime + used.ru_stime, used.ru_maxrss / 1000]))
"""


def measured(output: Path, *args: str) -> tuple[int, float, float, str]:
    """Exit code, seconds of the processor and megabytes of a run, and its errors; what it prints is in `output`."""
    command = [sys.executable, "-c", _MEASURED, str(output), *COMMAND, *args]
    done = subprocess.run(command, capture_output=True, env=environment(), text=True)
    code, seconds, megabytes = json.loads(done.stdout)
    return code, seconds, megabytes, done.stderr


@pytest.fixture
def nodes() -> Iterator[list[FakeNode]]:
    counts = dict.fromkeys(("in_flight_count", "deferred_count", "requeue_count", "timeout_count", "client_count"), 3)
    channels = [channel(f"channel_of_a_service_{number}", **counts) for number in range(4)]
    stats = node(*(topic(f"some_topic_{number:03d}", *channels) for number in range(500)))
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(FakeNode(http_answer(json.dumps(stats).encode()))) for _ in range(3)]


@pytest.mark.parametrize("form", ["table", "csv", "json"])
def test_stats_takes_less_than_a_second_and_a_half(nodes: list[FakeNode], form: str, tmp_path: Path) -> None:
    code, seconds, megabytes, _ = measured(tmp_path / "out", "stats", "-o", form, *at(*nodes))
    assert code == 0
    assert seconds < 1.5  # of the processor: a busy machine may take longer
    assert megabytes < MEGABYTES


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no /proc")
def test_top_asks_each_node_once_a_second_and_bounds_its_memory(nodes: list[FakeNode]) -> None:
    with Terminal(160, 50, "top", *at(*nodes)) as terminal:
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
