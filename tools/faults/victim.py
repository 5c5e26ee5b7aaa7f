"""A daemon that is to be killed, the steps that bring it there, and what its clients know of every message.

The steps wait until /stats and the files of the disk queues show what they should, so nothing depends on timing.
Messages are published in groups of equal records, so that positions in files are counted in records.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from kit.daemons import DEADLINE, Daemon, eventually, last_flag
from kit.nsq_client import Client, Message, mpub_body, sized

TOPIC = "t"
CHANNEL = "c"
QUEUE = f"{TOPIC}:{CHANNEL}"  # the disk queue of the channel; the topic's is called as the topic
BODY_SIZE = 20
RECORD_SIZE = 4 + 26 + BODY_SIZE
LAST = b"the last one"
POLL = 0.02  # seconds

Position = tuple[int, int]  # file number, records

T = TypeVar("T")


@dataclass
class Victim:
    """A daemon and its clients, over any number of processes on one data path."""

    daemon: Daemon
    groups: dict[str, list[bytes]] = field(default_factory=dict)  # bodies
    acknowledged: set[bytes] = field(default_factory=set)
    finished: set[bytes] = field(default_factory=set)  # must not come again, because of FIN or of empty
    in_flight: dict[bytes, Message] = field(default_factory=dict)
    paused: set[str] = field(default_factory=set)  # topic, channel
    passed: int = 0  # messages that the topic of this process had to hand to the channel
    publisher: Client | None = None
    consumer: Client | None = None

    def start(self, *flags: str) -> None:
        """Start again, after a clean exit if it runs; with other flags, if there are any."""
        self.disconnect()
        self.passed = 0
        self.daemon.restart(*flags)

    def kill(self) -> None:
        self.daemon.kill()
        self.disconnect()

    def disconnect(self) -> None:
        for client in (self.publisher, self.consumer):
            if client is not None:
                client.close()
        self.publisher = self.consumer = None
        self.in_flight.clear()

    def post(self, what: str) -> None:
        status, _, body = self.daemon.http("POST", f"/{what}?topic={TOPIC}&channel={CHANNEL}")
        assert status == 200, (what, status, body)

    def topic(self) -> dict[str, Any]:
        (stats,) = self.daemon.stats(TOPIC)["topics"]
        return dict(stats)

    def channel(self) -> dict[str, Any]:
        return self.daemon.channel_stats(TOPIC, CHANNEL)

    def new_bodies(self, group: str, count: int) -> list[bytes]:
        bodies = self.groups.setdefault(group, [])
        first = len(bodies)
        bodies += [f"{group} {number:03}".ljust(BODY_SIZE, ".").encode() for number in range(first, first + count)]
        return bodies[first:]

    def send(self, line: bytes, body: bytes, bodies: list[bytes]) -> None:
        """A publishing command and its OK; then wait until the channel has what it brought, if it gets it now."""
        self.publisher = self.publisher or Client(self.daemon.tcp_address)
        self.publisher.command(line, body)
        assert self.publisher.response() == b"OK"
        self.acknowledged.update(bodies)
        stats = self.topic()
        if stats["channels"] and not stats["paused"]:
            self.passed += len(bodies)
            eventually(lambda: self.channel()["message_count"] >= self.passed, "messages are in the channel")

    def answer(self, group: str, line: bytes) -> None:
        """FIN or REQ for a group that is in flight."""
        assert self.consumer is not None
        for body in self.groups[group]:
            self.consumer.command(line % self.in_flight.pop(body).id)
        eventually(lambda: self.channel()["in_flight_count"] == len(self.in_flight), "answers have arrived")

    def records(self, queue: str) -> dict[int, int]:
        """How many are in each data file of a queue."""
        paths = self.daemon.data_path.glob(f"{queue}.diskqueue.0*.dat")
        return {int(path.name.split(".")[-2]): path.stat().st_size // RECORD_SIZE for path in paths}

    def synced(self, queue: str) -> tuple[Position, Position]:
        """Where reading and writing are by the meta file; without one, at the beginning."""
        try:
            text = (self.daemon.data_path / f"{queue}.diskqueue.meta.dat").read_text()
        except FileNotFoundError:
            return (0, 0), (0, 0)
        read, written = ([int(number) for number in line.split(",")] for line in text.split()[1:])
        return (read[0], read[1] // RECORD_SIZE), (written[0], written[1] // RECORD_SIZE)

    def unpause(self) -> None:
        """What was paused still must be."""
        stats = self.topic()
        found = {"topic"} if stats["paused"] else set()
        found |= {"channel" for entry in stats["channels"] if entry["paused"]}
        assert found == self.paused
        for what in found:
            self.post(f"{what}/unpause")

    def drain(self) -> Counter[bytes]:
        """Take and finish everything; how often each body came.

        Without a memory queue a message that is published for the purpose comes behind all that was there, also behind
        one that was between two queues and so in no count: none has come between the counts and this one, so none was.
        """
        seen: Counter[bytes] = Counter()
        with Client(self.daemon.tcp_address) as publisher, Client(self.daemon.tcp_address) as client:
            # One at a time: a copy of a message that is in flight might be dropped.
            client.subscribe(TOPIC, CHANNEL, rdy=1)
            number = 0
            while True:
                number += 1
                was_empty = self.is_empty()
                last = b"%b %d" % (LAST, number)
                publisher.publish(TOPIC, last)
                came = take_until(client, last)
                if was_empty and came == [last]:
                    return seen
                seen.update(body for body in came if not body.startswith(LAST))
                time.sleep(POLL)

    def is_empty(self) -> bool:
        stats, channel = self.topic(), self.channel()
        return not any((stats["depth"], channel["depth"], channel["in_flight_count"], channel["deferred_count"]))


def take_until(client: Client, last: bytes) -> list[bytes]:
    """The bodies of what comes, each finished, up to `last`. The real daemon may write that into a damaged file, and
    lose it: then up to a second in which nothing comes."""
    came: list[bytes] = []
    while last not in came:
        try:
            message = client.message(timeout=1.0)
        except TimeoutError:
            break
        client.command(b"FIN " + message.id)
        came.append(message.body)
    return came


Step = Callable[[Victim], None]


def topic() -> Step:
    """A topic without a channel."""

    def step(victim: Victim) -> None:
        victim.post("topic/create")
        wait_for_metadata(victim, TOPIC)

    return step


def channel() -> Step:
    """A topic with a channel."""

    def step(victim: Victim) -> None:
        victim.post("topic/create")
        victim.post("channel/create")
        wait_for_metadata(victim, CHANNEL)

    return step


def wait_for_metadata(victim: Victim, name: str) -> None:
    path = victim.daemon.data_path / "nsqd.dat"
    eventually(lambda: f'"name":"{name}"' in path.read_text(), f"nsqd.dat lists {name}")


def pause(what: str) -> Step:
    """`topic` or `channel`."""

    def step(victim: Victim) -> None:
        victim.post(f"{what}/pause")
        victim.paused.add(what)

    return step


def empty(what: str) -> Step:
    """`topic` or `channel`, with all that was published until now."""

    def step(victim: Victim) -> None:
        victim.post(f"{what}/empty")
        victim.finished.update(victim.acknowledged)

    return step


def publish(group: str, count: int) -> Step:
    """In batches that the memory queue has room for; without one, at once."""

    def step(victim: Victim) -> None:
        bodies = victim.new_bodies(group, count)
        size = int(last_flag(victim.daemon.flags, "mem-queue-size") or 0) or count
        for first in range(0, count, size):
            batch = bodies[first : first + size]
            victim.send(f"MPUB {TOPIC}".encode(), mpub_body(*batch), batch)

    return step


def defer(group: str, count: int, delay: int) -> Step:
    """DPUB, `delay` in ms."""

    def step(victim: Victim) -> None:
        for body in victim.new_bodies(group, count):
            victim.send(f"DPUB {TOPIC} {delay}".encode(), body, [body])

    return step


def handed_over() -> Step:
    """The topic has handed all that was acknowledged to its channel."""

    def step(victim: Victim) -> None:
        # Not the topic's depth: the real daemon's falls before the channel has the message.
        expected = len(victim.acknowledged)
        eventually(lambda: victim.channel()["message_count"] == expected, "all is in the channel")

    return step


def take(*groups: str) -> Step:
    """These groups, which are all there is in memory or the first on disk, are in flight."""

    def step(victim: Victim) -> None:
        expected = {body for group in groups for body in victim.groups[group]}
        consumer = subscribed(victim, len(victim.in_flight) + len(expected))
        taken = {message.body: message for message in (consumer.message() for _ in expected)}
        consumer.command(b"RDY 0")
        assert taken.keys() == expected
        victim.in_flight |= taken

    return step


def subscribed(victim: Victim, rdy: int) -> Client:
    if victim.consumer is None:
        victim.consumer = Client(victim.daemon.tcp_address)
        victim.consumer.subscribe(TOPIC, CHANNEL)
    victim.consumer.command(b"RDY %d" % rdy)
    return victim.consumer


def finish(group: str) -> Step:
    def step(victim: Victim) -> None:
        victim.answer(group, b"FIN %b")
        victim.finished.update(victim.groups[group])

    return step


def requeue(group: str, delay: int) -> Step:
    """REQ, `delay` in ms."""
    return lambda victim: victim.answer(group, b"REQ %%b %d" % delay)


def finish_what_comes() -> Step:
    """A consumer takes and finishes what the channel delivers now; deferred messages stay."""

    def step(victim: Victim) -> None:
        consumer = subscribed(victim, 1)
        # Not until the channel's depth is 0: a message that is being delivered is in no count for a moment.
        while len(victim.finished) + victim.channel()["deferred_count"] < len(victim.acknowledged):
            try:
                message = consumer.message(timeout=POLL)
            except TimeoutError:
                continue
            victim.finished.add(message.body)
            consumer.command(b"FIN " + message.id)
        eventually(lambda: victim.channel()["in_flight_count"] == 0, "answers have arrived")

    return step


def restart(*flags: str) -> Step:
    """A clean exit, which leaves everything on disk and synced, and a start with these flags."""
    return lambda victim: victim.start(*flags)


def kill_and_start() -> Step:
    def step(victim: Victim) -> None:
        victim.kill()
        victim.start()

    return step


def publish_until_killed(group: str) -> Step:
    """The kill hits a publisher with messages on their way, and comes right behind the OK to another one."""

    def keep_publishing(client: Client, busy: threading.Event) -> tuple[list[bytes], int]:
        """All bodies sent, and how many of them were acknowledged."""
        sent: list[bytes] = []
        acknowledged = 0
        try:
            while True:
                batch = [f"{group} endless {len(sent) + i}".encode() for i in range(20)]
                sent += batch
                client.send(b"".join(f"PUB {TOPIC}\n".encode() + sized(body) for body in batch))
                for _ in batch:
                    assert client.response() == b"OK"
                    acknowledged += 1
                busy.set()
        except ConnectionError:
            return sent, acknowledged

    def step(victim: Victim) -> None:
        busy = threading.Event()
        with Client(victim.daemon.tcp_address) as client, ThreadPoolExecutor() as threads:
            load = threads.submit(keep_publishing, client, busy)
            try:
                assert busy.wait(DEADLINE), "nothing was acknowledged"
                for _ in range(20):
                    publish(group, 10)(victim)
            finally:
                victim.daemon.kill()
            sent, acknowledged = load.result()
        victim.groups[group] += sent
        victim.acknowledged.update(sent[:acknowledged])

    return step


def let_it_sync() -> Step:
    """Time for a sync that should not come: too little of it can hide a fault, but never show one that is not there."""
    return lambda victim: time.sleep(0.2)


def holds(*, topic: Position = (0, 0), channel: Position = (0, 0), in_flight: int = 0, deferred: int = 0) -> Step:
    """Wait until /stats has that; of topic and channel the messages in memory and those on disk."""

    def counts(victim: Victim) -> tuple[Position, Position, int, int]:
        stats, entry = victim.topic(), victim.channel()
        if not entry:
            return in_memory_and_on_disk(stats), (0, 0), 0, 0
        return (
            in_memory_and_on_disk(stats),
            in_memory_and_on_disk(entry),
            entry["in_flight_count"],
            entry["deferred_count"],
        )

    return lambda victim: wait_for(lambda: counts(victim), (topic, channel, in_flight, deferred))


def in_memory_and_on_disk(stats: dict[str, Any]) -> Position:
    return stats["depth"] - stats["backend_depth"], stats["backend_depth"]


def files(
    queue: str, records: dict[int, int], *, read: Position | None = (0, 0), written: Position | None = (0, 0)
) -> Step:
    """Wait until the data files hold that many records, and meta has these positions (None: any)."""

    def found(victim: Victim) -> tuple[dict[int, int], Position | None, Position | None]:
        meta_read, meta_written = victim.synced(queue)
        return victim.records(queue), meta_read if read else None, meta_written if written else None

    return lambda victim: wait_for(lambda: found(victim), (records, read, written))


def all_read(queue: str) -> Step:
    """Wait until meta shows that all records of the one data file have been read; nothing to wait for without one."""

    def step(victim: Victim) -> None:
        count = victim.records(queue).get(0, 0)
        wait_for(lambda: victim.synced(queue)[0] if count else (0, 0), (0, count))

    return step


def wait_for(find: Callable[[], T], expected: T) -> None:
    try:
        eventually(lambda: find() == expected)
    except AssertionError as error:
        raise AssertionError(f"{find()} instead of {expected}") from error
