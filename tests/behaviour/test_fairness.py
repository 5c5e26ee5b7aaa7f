"""No client holds up another, however much it sends.

The pipelining publisher is a process of its own that never reads between its writes, so that it neither waits for
answers nor shares an interpreter with the client whose waiting is measured. That is measured by what the daemon works
meanwhile, which on a busy machine is not more than on an idle one.
"""

import os
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from kit.daemons import Instance, eventually, is_readable, own_command
from kit.nsq_client import NSQClient
from kit.traffic import MAX_RDY, DaemonFactory, create, wait_for

# Sends 200 x 200 bytes by MPUB, or by PUBs, as fast as the daemon takes them, and throws the answers away.
PIPELINING_PUBLISHER = """
import select, socket, struct, sys
sock = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
message = struct.pack(">i", 200) + b"x" * 200
body = struct.pack(">i", 200) + message * 200
command = b"MPUB " + sys.argv[2].encode() + b"\\n" + struct.pack(">i", len(body)) + body
if sys.argv[3] == "PUB":
    command = (b"PUB " + sys.argv[2].encode() + b"\\n" + message) * 200
sock.sendall(b"  V2")
sock.setblocking(False)
rest = memoryview(command)
while True:
    readable, writable, _ = select.select([sock], [sock], [])
    if readable:
        sock.recv(65536)
    if writable:
        rest = rest[sock.send(rest):] or memoryview(command)
"""

PUBS = 300
PACE = 0.002  # seconds between them, so that they meet the daemon in all of its moments
LIMIT = 0.1  # seconds of CPU at the 99th percentile; a client that is starved waits for seconds


@contextmanager
def saturated(nsqd: Instance, topic: str, verb: str = "MPUB") -> Iterator[None]:
    """Keeps the daemon as busy as a publisher can."""
    publisher = subprocess.Popen([sys.executable, "-c", PIPELINING_PUBLISHER, str(nsqd.tcp_address[1]), topic, verb])
    try:
        eventually(lambda: sum(entry["message_count"] for entry in nsqd.stats()["topics"]) > 20_000)
        yield
        assert publisher.poll() is None, "the publisher did not last"
    finally:
        publisher.kill()
        publisher.wait()


def connect(nsqd: Instance, **fields: int) -> NSQClient:
    """Connects a client that no heartbeat reaches for a minute."""
    client = NSQClient(nsqd.tcp_address)
    assert client.identify(heartbeat_interval=60_000, **fields).data == b"OK"
    return client


def cpu_seconds(nsqd: Instance) -> float:
    """Returns the time that the process has taken, in steps of a clock tick (proc(5), stat, 14 and 15)."""
    fields = Path(f"/proc/{nsqd.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def work_during(nsqd: Instance, exchange: Callable[[], None]) -> float:
    """Returns the seconds of CPU that the daemon takes from the question to the answer; then pauses."""
    began = cpu_seconds(nsqd)
    exchange()
    seconds = cpu_seconds(nsqd) - began
    time.sleep(PACE)
    return seconds


def assert_served(nsqd: Instance, exchange: Callable[[], None], limit: float) -> None:
    seconds = sorted(work_during(nsqd, exchange) for _ in range(PUBS))
    cores = 1 if nsqd.command == own_command() else 2  # that the daemon uses
    assert seconds[PUBS * 99 // 100] < limit * cores, f"p50 {seconds[PUBS // 2]}, max {seconds[-1]}"


@pytest.mark.parametrize("verb", ["MPUB", "PUB"])
@pytest.mark.parametrize("suffix", ["", "#ephemeral"], ids=["to disk", "to memory"])
def test_pub_of_one_client_stays_fast_while_another_pipelines_without_waiting(
    nsqd: Instance, topic: str, suffix: str, verb: str
) -> None:
    # Without a channel an ordinary topic writes what exceeds its memory to disk, an ephemeral one drops it.
    with saturated(nsqd, topic + suffix, verb), connect(nsqd) as client:
        assert_served(nsqd, lambda: client.publish(f"{topic}-quiet", b"x" * 200), LIMIT)


def test_consumer_is_served_while_a_publisher_pipelines_without_waiting(nsqd: Instance, topic: str) -> None:
    with saturated(nsqd, f"{topic}#ephemeral"), connect(nsqd) as client, connect(nsqd, output_buffer_size=-1) as other:
        other.subscribe(topic, "c", rdy=10)

        def publish_and_consume() -> None:
            client.publish(topic, b"x")
            other.command(b"FIN " + other.message().id)

        assert_served(nsqd, publish_and_consume, 2 * LIMIT)


def test_equal_consumers_of_a_backlog_get_about_as_much_each(gnsqd_factory: DaemonFactory) -> None:
    gnsqd = gnsqd_factory("--mem-queue-size=100000")
    create(gnsqd, "t", "c")
    with connect(gnsqd) as publisher:
        for _ in range(100):
            publisher.publish("t", *[b"x"] * 1000)
    wait_for(gnsqd, "t", "c", depth=100_000)
    with ExitStack() as stack:
        consumers = [stack.enter_context(connect(gnsqd)) for _ in range(4)]
        for consumer in consumers:
            consumer.subscribe("t", "c", MAX_RDY)
        counts = [0] * 4
        while sum(counts) < 90_000:
            for number, consumer in enumerate(consumers):
                if is_readable(consumer.sock, 0):
                    counts[number] += finish_what_came(consumer)
    assert min(counts) > 0.8 * max(counts)


def finish_what_came(consumer: NSQClient) -> int:
    """Finishes some messages, whose bodies are one byte, and returns how many."""
    size = 4 + 4 + 26 + 1
    consumer.buffer += consumer.sock.recv(8192)
    count = len(consumer.buffer) // size
    ids = [consumer.buffer[at + 18 : at + 34] for at in range(0, count * size, size)]
    consumer.buffer = consumer.buffer[count * size :]
    consumer.send(b"".join(b"FIN %b\n" % id for id in ids))
    return count


@pytest.mark.parametrize("how", ["lines", "binary"])
def test_publishing_a_million_messages_at_once_holds_up_nobody(gnsqd: Instance, topic: str, how: str) -> None:
    # Taken in one turn it stops the daemon for seconds; a turn is some milliseconds.
    body = b"a\n" * 1_000_000 if how == "lines" else struct.pack(">i", 1_000_000) + b"\0\0\0\1a" * 1_000_000
    path = f"/mpub?topic={topic}&binary={'true' if how == 'binary' else 'false'}"
    answers: list[int] = []
    publisher = threading.Thread(target=lambda: answers.append(gnsqd.http("POST", path, body)[0]))
    longest = 0.0
    with connect(gnsqd) as client:
        publisher.start()
        while not answers:
            longest = max(longest, work_during(gnsqd, lambda: client.publish(f"{topic}-other", b"x")))
    publisher.join()
    assert answers == [200]
    assert gnsqd.stats(topic)["topics"][0]["message_count"] == 1_000_000
    assert longest < 0.5
