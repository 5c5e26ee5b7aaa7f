"""The size of answers and its cost: limits of one answer and of all together, and much to look at."""

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from cli import fake_nsqd as fake
from cli.gnsqadmin import COMMAND, FakeNode, Terminal, environment, failure, http_answer
from cli.nodes import at
from kit.daemons import DEADLINE
from nsqadmin_cli import budget, cluster
from nsqadmin_cli.api import Nsqd
from nsqadmin_cli.cluster import Cluster, ask_all
from nsqadmin_cli.http_client import Address, NodeClient
from nsqadmin_cli.snapshot import ClusterSnapshot, take_snapshot

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
    """Returns exit code, seconds of the processor, megabytes and errors of a run that prints into `output`."""
    command = [sys.executable, "-c", _MEASURED, str(output), *COMMAND, *args]
    done = subprocess.run(command, capture_output=True, env=environment(), text=True)
    code, seconds, megabytes = json.loads(done.stdout)
    return code, seconds, megabytes, done.stderr


BEGIN = b'{"version":"1.3.0","health":"OK","start_time":1,"topics":['
TOPIC = json.dumps(fake.topic("t", *(fake.channel(f"c{number}") for number in range(10)))).encode() + b","


def pouring(head: bytes, begin: bytes, repeated: bytes) -> Callable[[socket.socket], None]:
    def pour(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 %b\r\nContent-Type: application/json\r\n\r\n%b" % (head, begin))
        while True:
            connection.sendall(repeated)

    return pour


def look(*nodes: FakeNode, timeout: float = DEADLINE) -> ClusterSnapshot:
    return take_snapshot(Cluster([Address.parse(node.address) for node in nodes], [], NodeClient(timeout)))


def test_an_answer_without_end_is_one_error_that_does_not_keep_what_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "LARGEST_ANSWER", 1 << 20)
    for head, begin, repeated, reason in (
        (b"200 OK", BEGIN, TOPIC * 20, "answered more than 1 MiB"),
        (b"500 Error", b'{"message":[', b"{}," * 20_000, "answered HTTP 500 (Error)"),
    ):
        with FakeNode(pouring(head, begin, repeated)) as node:
            (error,) = look(node).errors
        assert error.reason == reason
        assert (error.__traceback__, error.__context__, error.__cause__) == (None, None, None)


def test_short_values_are_counted_as_the_objects_that_they_become() -> None:
    whole = json.dumps(fake.node(fake.topic("t", e2e_processing_latency={"count": 1, "percentiles": ["IT"]})))
    answer = whole.encode().replace(b'"IT"', b",".join([b'{"quantile":1,"value":2}'] * 1_000_000))
    with FakeNode(http_answer(answer)) as node:
        assert failure("stats", *at(node)) == f"nsqd at {node.address}: answered too many short values"


def test_what_is_not_known_takes_the_memory_of_its_text_only(tmp_path: Path) -> None:
    new = b',{"some_new_counter":0}' * 1_500_000
    unknown = b"%b],%b" % (b'{"new":[{}' + new, json.dumps(fake.node()).encode()[1:])
    with FakeNode(http_answer(unknown)) as node:
        code, _, megabytes, err = measured(tmp_path / "out", "stats", *at(node))
    assert (code, err) == (0, "")
    assert megabytes < 150  # objects would take 700


def test_nodes_without_end_take_no_more_memory_than_one_budget(tmp_path: Path) -> None:
    with ExitStack() as stack:
        nodes = [stack.enter_context(FakeNode(pouring(b"200 OK", b'{"version":"', b"x" * 60_000))) for _ in range(6)]
        code, _, megabytes, err = measured(tmp_path / "out", "stats", f"--timeout={DEADLINE}", *at(*nodes))
    assert (code, err.count("\n")) == (1, 6), err
    assert megabytes < 350  # 256 MiB, and those of the program


def test_each_node_has_a_share_that_others_cannot_use_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "LARGEST_LOOK", 4 << 20)
    body = json.dumps(fake.node(*(fake.topic(f"t{number}" * 20) for number in range(2000)))).encode()
    assert (1 << 18) < len(body) < 4 << 20 >> 3
    sent = threading.Barrier(3)  # until two nodes have sent more than their shares

    def late(connection: socket.socket) -> None:
        sent.wait(DEADLINE)
        connection.sendall(http_answer(body))

    def endless(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n" + BEGIN + TOPIC * ((3 << 19) // len(TOPIC)))
        sent.wait(DEADLINE)
        while True:
            connection.sendall(TOPIC)

    with FakeNode(late) as well, FakeNode(endless) as first, FakeNode(endless) as second:
        seen = look(well, first, second)
        assert [address.port for address in seen.nodes] == [int(well.address.split(":")[1])]
        reason = "answered more than is left of 4 MiB for the answers of all nodes"
        assert {error.reason for error in seen.errors} == {reason}


@pytest.mark.parametrize("head", [b"X: ", b"Transfer-Encoding: chunked\r\n\r\n1;", b"Content-Length: 100000\r\n\r\n"])
def test_a_connection_that_drips_is_closed_at_the_timeout(head: bytes) -> None:
    """Closes it, as a page that is served for long would collect such connections."""
    gone = threading.Event()

    def drip(connection: socket.socket) -> None:
        try:
            connection.sendall(b"HTTP/1.1 200 OK\r\n" + head)
            while True:
                connection.sendall(b" ")
                gone.wait(0.01)
        except OSError:
            gone.set()

    with FakeNode(drip) as node:
        assert [error.reason for error in look(node, timeout=0.3).errors] == ["no complete answer within 0.3 s"]
        assert gone.wait(DEADLINE)


def test_a_bounded_number_of_threads_asks_any_number_of_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "_MOST_THREADS", 5)
    nodes = [Nsqd(Address("127.0.0.1", port), NodeClient(DEADLINE)) for port in range(1, 101)]
    started: list[threading.Thread] = []

    class Thread(threading.Thread):
        def start(self) -> None:
            started.append(self)
            super().start()

    monkeypatch.setattr(threading, "Thread", Thread)
    assert list(ask_all(nodes, lambda node: node.address.port, DEADLINE).values()) == list(range(1, 101))
    assert len(started) == 5


@pytest.fixture
def nodes() -> Iterator[list[FakeNode]]:
    counts = dict.fromkeys(("in_flight_count", "deferred_count", "requeue_count", "timeout_count", "client_count"), 3)
    channels = [fake.channel(f"channel_of_a_service_{number}", **counts) for number in range(4)]
    stats = fake.node(*(fake.topic(f"some_topic_{number:03d}", *channels) for number in range(500)))
    with ExitStack() as stack:
        yield [stack.enter_context(FakeNode(http_answer(json.dumps(stats).encode()))) for _ in range(3)]


@pytest.mark.parametrize("form", ["table", "csv", "json"])
def test_stats_takes_less_than_a_second_and_a_half(nodes: list[FakeNode], form: str, tmp_path: Path) -> None:
    code, seconds, megabytes, _ = measured(tmp_path / "out", "stats", "-o", form, *at(*nodes))
    # Seconds of the processor: a busy machine may take longer.
    assert code == 0, (seconds, megabytes)
    assert seconds < 1.5, (seconds, megabytes)
    assert megabytes < MEGABYTES, (seconds, megabytes)


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
