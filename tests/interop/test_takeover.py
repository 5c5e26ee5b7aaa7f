"""The real nsqd starts on files that our storage wrote, and our storage reads what the real nsqd left."""

import io
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gnsqd.log import Level, Logger
from gnsqd.options import Options
from gnsqd.storage import metadata
from gnsqd.storage.disk.diskqueue import DiskQueue
from gnsqd.storage.disk.opening import DataFiles
from gnsqd.storage.disk.record import decode_record, encode_record
from gnsqd.storage.metadata import ChannelMetadata, TopicMetadata
from gnsqd.storage.syncer import Syncer
from kit.daemons import Daemon, eventually
from kit.nsq_client import Client, Message

pytestmark = pytest.mark.peer

MAX_BYTES_PER_FILE = 1000
FLAGS = ("--mem-queue-size=0", f"--max-bytes-per-file={MAX_BYTES_PER_FILE}")
TIMESTAMP = 1_795_228_294_479_665_042


@pytest.fixture
def real_nsqd(peer_binary: Callable[[str], Path], tmp_path: Path) -> Iterator[Daemon]:
    """A real nsqd, not started yet, on `tmp_path/data`, with small files and no memory queue."""
    daemon = Daemon([os.fspath(peer_binary("nsqd"))], tmp_path / "data", *FLAGS)
    daemon.data_path.mkdir()
    yield daemon
    daemon.close()


@pytest.fixture
def syncer() -> Iterator[Syncer]:
    syncer = Syncer()
    yield syncer
    syncer.stop()


@pytest.fixture
def open_queue(real_nsqd: Daemon, syncer: Syncer) -> Callable[..., DiskQueue]:
    """A disk queue of ours in the data path of `real_nsqd`, or of another daemon."""

    def open(name: str, data_path: Path = real_nsqd.data_path) -> DiskQueue:
        data_files = DataFiles(os.fspath(data_path), os.listdir(data_path))
        options = Options(max_bytes_per_file=MAX_BYTES_PER_FILE)
        return DiskQueue(name, options, data_files, Logger("", Level.FATAL, io.StringIO()), syncer)

    return open


OpenQueue = Callable[..., DiskQueue]


def messages(count: int, first: int = 0) -> list[Message]:
    """Messages of all kinds of sizes and attempts."""
    return [
        Message(TIMESTAMP + i, i % 4, b"%016x" % (0x18A2973CA8F09000 + i), b"m%05d" % i + b"x" * (i * 7 % 50))
        for i in range(first, first + count)
    ]


def delivered(expected: list[Message]) -> list[Message]:
    """As they arrive: a delivery counts as an attempt."""
    return [message._replace(attempts=message.attempts + 1) for message in expected]


def put(queue: DiskQueue, batch: list[Message]) -> None:
    queue.put_many([encode_record(*message) for message in batch])


def take(queue: DiskQueue, count: int) -> list[Message]:
    taken: list[Message] = []
    while len(taken) < count and (payloads := queue.peek_many(count - len(taken), 1 << 20)):
        taken += [Message(*decode_record(payload)) for payload in payloads]
        queue.advance(len(payloads))
    return taken


@contextmanager
def consumer(daemon: Daemon, topic: str, channel: str) -> Iterator[Callable[[int], list[Message]]]:
    """Gives a function that receives and finishes that many messages."""
    with Client(daemon.tcp_address) as client:
        client.subscribe(topic, channel)

        def receive(count: int) -> list[Message]:
            received = []
            client.command(b"RDY 1")
            for left in range(count, 0, -1):
                received.append(client.message())
                if left == 1:
                    client.command(b"RDY 0")  # the next one shall not be in flight
                client.command(b"FIN " + received[-1].id)
            return received

        yield receive
        # The answer comes when everything that was sent before has been dealt with.
        client.command(b"CLS")
        assert client.response() == b"CLOSE_WAIT"


def test_the_real_nsqd_reads_what_we_wrote(real_nsqd: Daemon, open_queue: OpenQueue) -> None:
    topics = [
        TopicMetadata("t", False, [ChannelMetadata("read", False), ChannelMetadata("paused", True)]),
        TopicMetadata("held", True, [ChannelMetadata("c", False)]),
    ]
    metadata.save(os.fspath(real_nsqd.data_path / "nsqd.dat"), topics)
    expected = messages(200)
    queues = {name: open_queue(name) for name in ("t", "t:read", "t:paused", "held", "held:c")}
    for batch in (expected[:5], expected[5:90], expected[90:]):
        put(queues["t:read"], batch)
    assert take(queues["t:read"], 37) == expected[:37]
    put(queues["t:paused"], expected[:3])
    put(queues["held"], expected[:4])
    for queue in queues.values():
        queue.close()
    assert len(list(real_nsqd.data_path.glob("t:read.diskqueue.0*.dat"))) > 5

    real_nsqd.start()
    found = {
        topic["topic_name"]: (
            topic["paused"],
            topic["backend_depth"],
            {entry["channel_name"]: (entry["paused"], entry["backend_depth"]) for entry in topic["channels"]},
        )
        for topic in real_nsqd.stats()["topics"]
    }
    assert found == {
        "t": (False, 0, {"read": (False, 163), "paused": (True, 3)}),
        "held": (True, 4, {"c": (False, 0)}),
    }
    with consumer(real_nsqd, "t", "read") as receive:
        assert receive(163) == delivered(expected[37:])
    real_nsqd.http("POST", "/channel/unpause?topic=t&channel=paused")
    with consumer(real_nsqd, "t", "paused") as receive:
        assert receive(3) == delivered(expected[:3])
    real_nsqd.http("POST", "/topic/unpause?topic=held")
    with consumer(real_nsqd, "held", "c") as receive:
        assert receive(4) == delivered(expected[:4])
    assert real_nsqd.channel_stats("t", "read")["depth"] == 0
    assert not re.findall("ERROR.*DISKQUEUE.*", real_nsqd.log())


def test_we_read_what_the_real_nsqd_wrote(real_nsqd: Daemon, open_queue: OpenQueue) -> None:
    bodies = [b"%05d" % i + b"x" * (i * 7 % 50) for i in range(200)]
    real_nsqd.start()
    for path in ("/topic/create?topic=t", "/channel/create?topic=t&channel=c", "/topic/create?topic=held"):
        assert real_nsqd.http("POST", path)[0] == 200
    assert real_nsqd.http("POST", "/topic/pause?topic=held")[0] == 200
    with Client(real_nsqd.tcp_address) as publisher:
        publisher.publish("t", *bodies)
        publisher.publish("held", *bodies[:3])
    eventually(lambda: real_nsqd.channel_stats("t", "c")["depth"] == 200)
    with Client(real_nsqd.tcp_address) as client:
        client.subscribe("t", "c", rdy=1)
        for _ in range(37):
            client.command(b"FIN " + client.message().id)
        in_flight = client.message()
        assert real_nsqd.terminate() == 0

    topics = metadata.load(os.fspath(real_nsqd.data_path / "nsqd.dat"))
    assert sorted(topics, key=lambda topic: topic.name) == [
        TopicMetadata("held", True, []),
        TopicMetadata("t", False, [ChannelMetadata("c", False)]),
    ]
    queue, held = open_queue("t:c"), open_queue("held")
    assert (queue.depth, held.depth) == (163, 3)
    read = take(queue, 1000)
    assert [message.body for message in read] == [*bodies[38:], bodies[37]]
    assert read[-1] == in_flight
    assert {message.attempts for message in read[:-1]} == {0}
    assert [message.body for message in take(held, 1000)] == bodies[:3]
    assert (queue.depth, held.depth) == (0, 0)
    queue.close()
    held.close()


@pytest.mark.parametrize("count, read", [(8, 3), (200, 60)])
def test_the_real_nsqd_reads_what_we_had_not_synced_when_killed(
    real_nsqd: Daemon, open_queue: OpenQueue, tmp_path: Path, count: int, read: int
) -> None:
    """No fsync has been waited for since the queue was opened: all of this was written without one."""
    living = tmp_path / "living"
    living.mkdir()
    queue = open_queue("t", living)
    expected = messages(count)
    for first in range(0, count, 8):
        put(queue, expected[first : first + 8])
    assert take(queue, read) == expected[:read]
    for path in living.iterdir():
        shutil.copy(path, real_nsqd.data_path)
    queue.close()

    (real_nsqd.data_path / "nsqd.dat").write_bytes(metadata.encode([TopicMetadata("t", False, [])]))
    real_nsqd.start()
    with Client(real_nsqd.tcp_address) as publisher:
        publisher.publish("t", b"later")
    with consumer(real_nsqd, "t", "c") as receive:
        received = receive(1)
        while received[-1].body != b"later":
            received += receive(1)
    bodies = [message.body for message in received[:-1]]
    assert bodies[read - count :] == [message.body for message in expected[read:]]
    # what had been read of the file that reading was in may come again
    assert len(bodies) < count - read + MAX_BYTES_PER_FILE / 30


def test_we_read_what_the_real_nsqd_had_not_synced_when_killed(real_nsqd: Daemon, open_queue: OpenQueue) -> None:
    real_nsqd.flags = (*FLAGS, "--sync-every=10", "--sync-timeout=60s")
    real_nsqd.start()
    bodies = [b"%05d" % i for i in range(57)]
    with Client(real_nsqd.tcp_address) as publisher:
        publisher.publish("t", *bodies)
    real_nsqd.kill()
    queue = open_queue("t")
    assert [message.body for message in take(queue, 1000)] == bodies
    assert queue.depth == 0
    queue.close()


def test_a_queue_changes_hands_again_and_again(real_nsqd: Daemon, open_queue: OpenQueue) -> None:
    (real_nsqd.data_path / "nsqd.dat").write_bytes(
        metadata.encode([TopicMetadata("t", False, [ChannelMetadata("c", False)])])
    )
    bodies: list[bytes] = []

    def more() -> list[bytes]:
        bodies.extend(b"%05d" % (len(bodies) + i) + b"x" * 40 for i in range(1, 41))
        return bodies[-40:]

    for _ in range(3):
        queue = open_queue("t:c")
        assert queue.depth == len(bodies)
        put(queue, [Message(TIMESTAMP, 0, b"0123456789abcdef", body) for body in more()])
        assert [message.body for message in take(queue, 25)] == bodies[:25]
        del bodies[:25]
        queue.close()

        real_nsqd.start()
        assert real_nsqd.channel_stats("t", "c")["depth"] == len(bodies)
        with Client(real_nsqd.tcp_address) as publisher:
            publisher.publish("t", *more())
        eventually(lambda: real_nsqd.channel_stats("t", "c")["depth"] == len(bodies))
        with consumer(real_nsqd, "t", "c") as receive:
            assert [message.body for message in receive(25)] == bodies[:25]
        del bodies[:25]
        assert real_nsqd.terminate() == 0
