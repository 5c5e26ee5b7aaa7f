"""Publishers and consumers at random against one daemon, and the reference that judges what they get.

    PYTHONPATH=tests:tools python -m model.interleaving --steps=100000 --seed=1 --durability=process

Nobody waits for anybody, unless a step is about just that: answers come when they come. What is chosen depends on the
seed alone; what it meets also depends on time.
"""

import argparse
import random
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from kit.daemons import Instance, eventually, own_command
from kit.nsq_client import ERROR, MESSAGE, mpub_body, parse_message, sized
from model.player import FENCE, FENCE_ID
from model.reference import Broken, Came, Promise, PromisedTopic
from model.sides import Link

TIMEOUT = 0.5  # seconds
SETTLED = 0.3  # seconds until a FIN is kept, with --durability
TOPICS = ("t", "u")
CHANNELS = ("a", "b", "c")
DELAYS = (0, 0, 0, 20, 150, 2000)  # ms


class ModelPublisher:
    def __init__(self, daemon: Instance) -> None:
        self._link = Link(daemon.tcp_address)
        self._waiting: deque[tuple[PromisedTopic, list[bytes]]] = deque()

    def publish(self, name: str, topic: PromisedTopic, verb: str, bodies: list[bytes], delay: int) -> None:
        """Publishes without waiting for the answer; `delay` in ms."""
        now = time.monotonic()
        for body in bodies:
            topic.sent[body] = now + delay / 1000
        line = f"{verb} {name}" + (f" {delay}" if verb == "DPUB" else "")
        self._link.send(line.encode() + b"\n" + sized(mpub_body(*bodies) if verb == "MPUB" else bodies[0]))
        self._waiting.append((topic, bodies))

    def read(self, wait: bool = False) -> None:
        """Reads the answers that have come, or all."""
        while self._waiting and (wait or self._link.poll()):
            frame = self._link.next_frame()
            if frame is None:
                return
            if frame.data != b"OK":
                raise Broken(f"{frame} for a message")
            topic, bodies = self._waiting.popleft()
            topic.acknowledged(bodies)

    def close(self) -> None:
        self._link.close()


class Subscriber:
    """One consumer; see `reference.Consumer`."""

    def __init__(self, daemon: Instance, name: str, topic: PromisedTopic, channel_name: str) -> None:
        self.topic, self.channel_name = topic, channel_name
        self.channel = topic.channels[channel_name]
        self.fences = 0
        self.held: deque[tuple[Promise, Came]] = deque()
        self._since = self.read_at = time.monotonic()
        self._unseen = self.channel.unseen
        self._inbox: deque[Came] = deque()
        self._asked: dict[bytes, Promise] = {}
        self._refused = b""
        self.closed = False
        self._link = Link(daemon.tcp_address)
        self._link.send(b"IDENTIFY\n" + sized(b'{"output_buffer_size":-1}') + f"SUB {name} {channel_name}\n".encode())
        for _ in range(2):
            frame = self._link.next_frame()
            assert frame is not None, "closed"
            assert frame.data == b"OK", frame
        self.channel.consumers.append(self)

    def ready(self, count: int) -> None:
        self._link.send(b"RDY %d\n" % count)

    def read(self) -> None:
        """Takes the messages that have come."""
        begin = time.monotonic()
        while self._link.poll() and self._read_one():
            pass
        self.channel.starved(time.monotonic())
        self._unseen = self.channel.unseen
        self.read_at = begin
        while self._inbox:
            came = self._inbox.popleft()
            record = self.topic.record(self.channel_name, came.body)
            if self.channel.deliver(record, self, came):
                self.held.append((record, came))

    def _read_one(self) -> bool:
        frame = self._link.next_frame()
        if frame is None:
            return False
        if frame.type == MESSAGE:
            message = parse_message(frame.data)
            now = time.monotonic()
            came = Came(message.id, message.attempts, message.body, now, self.fences, self._since, self._unseen)
            self._inbox.append(came)
        elif frame.type == ERROR:
            verb, _, id = frame.data.partition(b"_FAILED ")
            id = id.split()[1] if id else b""
            if verb not in (b"E_FIN", b"E_REQ", b"E_TOUCH"):
                raise Broken(f"{frame} for a consumer")
            if id in self._asked:
                self._refused = id
                self.channel.refused(self._asked[id], time.monotonic())
        return FENCE_ID not in frame.data

    def sync(self) -> None:
        if not self.closed:
            sent = time.monotonic()
            self._link.send(FENCE)
            while self._read_one():
                pass
            self._since = sent
        self.fences += 1
        self._asked.clear()

    def answer(self, record: Promise, delay: int | None) -> None:
        """Sends FIN (None), or REQ, `delay` in ms; without waiting."""
        self.channel.answer(record, time.monotonic(), None if delay is None else delay / 1000)
        self._asked[record.id] = record
        self._link.send(b"FIN %b\n" % record.id if delay is None else b"REQ %b %d\n" % (record.id, delay))

    def touch(self, record: Promise) -> None:
        now = time.monotonic()
        self._asked[record.id] = record
        record.before = record.not_before
        self._refused = b""
        self._link.send(b"TOUCH " + record.id + b"\n")
        self.sync()
        if self._refused != record.id and all(came.id != record.id for came in self._inbox):
            record.not_before = max(record.not_before, now + TIMEOUT)

    def close(self) -> None:
        self.closed = True
        self._link.close()
        self.channel.consumers.remove(self)
        self.channel.left(self, time.monotonic() - self.read_at)


class Run:
    """With a `durability` of `none` the daemon is not killed."""

    def __init__(self, directory: Path, seed: int, durability: str) -> None:
        self._seed = seed
        self._chance = random.Random(seed)
        self._durable = durability != "none"
        flags = [f"--msg-timeout={TIMEOUT}s", f"--mem-queue-size={self._chance.choice((0, 5, 100, 10_000))}"]
        flags += [f"--max-bytes-per-file={self._chance.choice((2_000, 100_000_000))}"]
        self._daemon = Instance(own_command(), directory / "data", f"--durability={durability}", *flags)
        self._topics = {name: PromisedTopic(TIMEOUT) for name in TOPICS}
        self._publishers: list[ModelPublisher] = []
        self._subscribers: list[Subscriber] = []
        self._count = 0
        self.messages = 0
        self.restarts = 0

    def play(self, steps: int) -> None:
        """Raises Broken if a promise is."""
        with self._daemon:
            for name in TOPICS:
                self._post(f"/topic/create?topic={name}")
                self._create(name, CHANNELS[0])
            self._connect()
            try:
                for _ in range(steps):
                    self._chance.choice(KINDS)(self)
                self._end()
            except AssertionError as error:
                error.add_note(f"seed {self._seed}")
                raise
            self._disconnect()

    def _post(self, path: str) -> None:
        status, _, answer = self._daemon.http("POST", path)
        assert status == 200, (path, status, answer)

    def _connect(self) -> None:
        self._publishers = [ModelPublisher(self._daemon) for _ in range(3)]
        for name, topic in self._topics.items():
            for channel in topic.channels:
                self._subscribe(name, channel)

    def _disconnect(self) -> None:
        for publisher in self._publishers:
            publisher.close()
        for subscriber in self._subscribers:
            subscriber.close()
        self._subscribers.clear()

    def _subscribe(self, name: str, channel: str) -> None:
        subscriber = Subscriber(self._daemon, name, self._topics[name], channel)
        subscriber.ready(self._chance.choice((1, 5, 50)))
        self._subscribers.append(subscriber)

    # Steps

    def _publish(self) -> None:
        verb = self._chance.choice(("PUB", "PUB", "MPUB", "DPUB"))
        name = self._chance.choice(TOPICS)
        bodies = []
        for _ in range(self._chance.randrange(1, 8) if verb == "MPUB" else 1):
            self._count += 1
            bodies.append(b"%d" % self._count + b"." * self._chance.choice((0, 100)))
        delay = self._chance.choice(DELAYS) if verb == "DPUB" else 0
        self._chance.choice(self._publishers).publish(name, self._topics[name], verb, bodies, delay)

    def _read(self) -> None:
        for publisher in self._publishers:
            publisher.read()
        for subscriber in self._subscribers:
            subscriber.read()

    def _answer(self) -> None:
        if not self._subscribers:
            return
        subscriber = self._chance.choice(self._subscribers)
        for _ in range(self._chance.choice((1, 1, 5))):
            what = self._chance.random()
            delay = self._chance.choice(DELAYS)
            if not subscriber.held:
                return
            record, came = subscriber.held.popleft()
            if record.holder is not subscriber or record.attempts != came.attempts:
                continue  # it has timed out, and come again
            if what < 0.75:
                subscriber.answer(record, None)
            elif what < 0.9:
                subscriber.answer(record, delay)
            elif what < 0.95:
                subscriber.touch(record)
                if delay:
                    subscriber.held.append((record, came))

    def _sync(self) -> None:
        if self._subscribers:
            self._chance.choice(self._subscribers).sync()

    def _rdy(self) -> None:
        if self._subscribers:
            self._chance.choice(self._subscribers).ready(self._chance.choice((0, 1, 5, 50)))

    def _settle(self) -> None:
        """Waits until all that was published is acknowledged."""
        for publisher in self._publishers:
            publisher.read(wait=True)

    def _create(self, name: str, channel: str) -> None:
        self._settle()
        self._post(f"/channel/create?topic={name}&channel={channel}")
        self._topics[name].create(channel)

    def _come(self) -> None:
        name, channel = self._chance.choice(TOPICS), self._chance.choice(CHANNELS)
        self._create(name, channel)
        if len(self._subscribers) < 12:
            self._subscribe(name, channel)

    def _go(self) -> None:
        if not self._subscribers:
            return
        subscriber = self._chance.choice(self._subscribers)
        self._subscribers.remove(subscriber)
        if self._chance.random() < 0.5:
            subscriber.sync()
        subscriber.close()

    def _delete(self) -> None:
        name, channel = self._chance.choice(TOPICS), self._chance.choice(CHANNELS)
        topic = self._topics[name]
        if channel not in topic.channels:
            return
        self._settle()
        self._post(f"/channel/delete?topic={name}&channel={channel}")
        gone = topic.channels.pop(channel)
        for subscriber in [subscriber for subscriber in self._subscribers if subscriber.channel is gone]:
            self._subscribers.remove(subscriber)
            subscriber.close()

    def _pause(self) -> None:
        name, channel = self._chance.choice(TOPICS), self._chance.choice(CHANNELS)
        act = self._chance.choice(("pause", "unpause", "unpause"))
        if self._chance.random() < 0.5:
            self._post(f"/topic/{act}?topic={name}")
        elif channel in self._topics[name].channels:
            self._post(f"/channel/{act}?topic={name}&channel={channel}")

    def _restart(self) -> None:
        self.restarts += 1
        kill = self._durable and self._chance.random() < 0.5
        if self._chance.random() < 0.5:
            for subscriber in self._subscribers:
                subscriber.sync()
        now = time.monotonic()
        if kill:
            self._daemon.kill()
        else:
            assert self._daemon.terminate() == 0
        self._settle()  # what the daemon answered before it ended counts
        self._disconnect()
        for topic in self._topics.values():
            for channel in topic.channels.values():
                channel.restarted(now, now - SETTLED if kill else now, not kill)
        self._daemon.start()
        self._connect()

    # The end

    def _end(self) -> None:
        """Waits until everything has come to every channel, and is finished."""
        self._settle()
        for name, topic in self._topics.items():
            self._create(name, CHANNELS[0])
            self._post(f"/topic/unpause?topic={name}")
            for channel in topic.channels:
                self._post(f"/channel/unpause?topic={name}&channel={channel}")
                self._subscribe(name, channel)
        for subscriber in self._subscribers:
            subscriber.ready(100)
        try:
            eventually(self._finished)
        except Broken:
            raise
        except AssertionError:
            missing = {
                (name, channel): sorted(record.body for record in entry.missing())
                for name, topic in self._topics.items()
                for channel, entry in topic.channels.items()
                if entry.missing()
            }
            raise Broken(f"lost: {missing}; {self._daemon.stats()['topics']}") from None
        self.messages = sum(len(topic.sent) for topic in self._topics.values())

    def _finished(self) -> bool:
        for subscriber in self._subscribers:
            subscriber.read()
            while subscriber.held:
                record, came = subscriber.held.popleft()
                if record.holder is subscriber and record.attempts == came.attempts:
                    subscriber.answer(record, None)
            subscriber.sync()
        return not any(
            topic["depth"]
            + sum(entry["depth"] + entry["in_flight_count"] + entry["deferred_count"] for entry in topic["channels"])
            for topic in self._daemon.stats()["topics"]
        ) and not any(channel.missing() for topic in self._topics.values() for channel in topic.channels.values())


WEIGHTS = dict(
    _publish=300, _read=200, _answer=400, _sync=60, _rdy=20, _come=10, _go=6, _delete=3, _pause=6, _restart=1,
)  # fmt: skip
KINDS: list[Callable[[Run], None]] = [getattr(Run, name) for name, weight in WEIGHTS.items() for _ in range(weight)]


def main() -> int:
    parser = argparse.ArgumentParser(prog="model.interleaving", description=__doc__)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=random.getrandbits(32))
    parser.add_argument("--durability", default="none")
    arguments = parser.parse_args()
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="gnsqd-model-") as directory:
        run = Run(Path(directory), arguments.seed, arguments.durability)
        run.play(arguments.steps)
    sys.stdout.write(
        f"seed {arguments.seed}: {arguments.steps} steps, {run.messages} messages, {run.restarts} restarts, "
        f"{time.monotonic() - begin:.1f} s\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
