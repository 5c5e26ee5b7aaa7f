"""The clients of a soak, each in a thread: all there is to do with a daemon, at random and for as long as one likes.

Publishers and consumers of topics that live throughout keep a ledger. Around them topics, channels and connections come
and go, lasting ones are paused for a while, and somebody looks at everything. What is chosen depends on the seed alone;
what it meets also depends on time.
"""

import itertools
import json
import random
import ssl
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from faults.fenced_consumer import FencedConsumer
from faults.ledger import Ledger
from kit.account import next_body
from kit.daemons import DEADLINE, Instance, open_socket
from kit.nsq_client import HEARTBEAT, NSQClient, mpub_body
from kit.traffic import create, post
from kit.upgraded_client import UpgradedClient, tls_client_context

PUBLISHERS = 3
CONSUMERS = 2  # of each channel
VERBS = {"PUB": 5, "MPUB": 2, "DPUB": 1, "/pub": 2, "/mpub": 1}
BATCHES = ("MPUB", "/mpub")
SIZES = (30, 200, 200, 200, 2000)  # bytes
BURST = 500  # messages, more than memory has room for
UPGRADES = ("", "", "deflate", "snappy", "tls_v1", "tls_v1 deflate", "tls_v1 snappy")
PATHS = ("/stats?format=json&include_clients=true", "/stats", "/metrics", "/info", "/ping", "/config/log_level")
WAIT = 0.2  # seconds between two things that come and go


class Clients:
    """Threads that each do something at random, by the seed; all end at the first failure of any. `counts` is how often
    things were done."""

    def __init__(self, seed: int) -> None:
        self.counts: Counter[str] = Counter()
        self.failures: list[BaseException] = []
        self._seed = seed
        self._lock = threading.Lock()
        self._stopping = threading.Event()  # nothing new is begun
        self._stopped = threading.Event()  # consumers also end

    def _start(self, body: Callable[[random.Random], None], name: str) -> threading.Thread:
        def guarded() -> None:
            try:
                body(random.Random(f"{self._seed} {name}"))
            except BaseException as error:
                error.add_note(f"seed {self._seed}, {name}")
                self.failures.append(error)
                self._stopping.set()
                self._stopped.set()

        thread = threading.Thread(target=guarded, name=name)
        thread.start()
        return thread

    def _count(self, what: str, count: int = 1) -> None:
        with self._lock:
            self.counts[what] += count


class MixedLoad(Clients):
    """Clients of `daemon`. `interval` is the time in seconds between two publishes of a publisher."""

    def __init__(self, daemon: Instance, ledgers: Sequence[Ledger], seed: int, interval: float) -> None:
        super().__init__(seed)
        self._interval = interval
        self._daemon = daemon
        self._ledgers = ledgers
        self._tls: ssl.SSLContext = tls_client_context()
        self._names = itertools.count()
        others = [self._come_and_go, self._pause, self._look]
        self._others = [self._start(body, body.__name__) for body in others]
        self._others += [self._start(self._publish, f"publisher {number}") for number in range(PUBLISHERS)]
        self._consumers = [
            self._start(partial(self._consume, ledger, name), f"{ledger.topic} {name} {number}")
            for ledger in ledgers
            for name in ledger.channels
            for number in range(CONSUMERS)
        ]

    def stop_publishing(self) -> None:
        """Ends all but consumers, which finish all they get from now on; nothing is paused any more."""
        self._stopping.set()
        for thread in self._others:
            thread.join()

    def stop(self) -> None:
        """Ends also the consumers."""
        self._stopping.set()
        self._stopped.set()
        for thread in (*self._others, *self._consumers):
            thread.join()

    def _connect(self, chance: random.Random) -> UpgradedClient:
        fields = dict.fromkeys(chance.choice(UPGRADES).split(), True)
        timeout = chance.choice((25, 250))
        return UpgradedClient(self._daemon.tcp_address, self._tls, output_buffer_timeout=timeout, **fields)

    # Topics that live throughout

    def _publish(self, chance: random.Random) -> None:
        while not self._stopping.is_set():
            with self._connect(chance) as client:
                for _ in range(chance.randrange(20, 400)):
                    if self._stopping.wait(self._interval):
                        break
                    self._publish_once(client, chance)
                if chance.random() < 0.5:
                    client.reset()
            self._count("reconnects")

    def _publish_once(self, client: NSQClient, chance: random.Random) -> None:
        ledger = chance.choice(self._ledgers)
        (verb,) = chance.choices(list(VERBS), list(VERBS.values()))
        count = 1
        if verb in BATCHES:
            count = BURST if chance.random() < 0.01 else chance.randrange(2, 40)
        bodies = ledger.new_bodies([chance.choice(SIZES) for _ in range(count)])
        if verb.startswith("/"):
            status, _, answer = self._daemon.http("POST", f"{verb}?topic={ledger.topic}", b"\n".join(bodies))
            assert (status, answer) == (200, b"OK"), (status, answer)
        else:
            line = f"{verb} {ledger.topic}" + (f" {chance.choice((1, 100, 3000))}" if verb == "DPUB" else "")
            client.command(line.encode(), mpub_body(*bodies) if verb == "MPUB" else bodies[0])
            while (response := client.response()) == HEARTBEAT:
                client.command(b"NOP")
            assert response == b"OK", response
        ledger.acknowledge(bodies)

    def _consume(self, ledger: Ledger, channel: str, chance: random.Random) -> None:
        while not self._stopped.is_set():
            with self._connect(chance) as client:
                client.subscribe(ledger.topic, channel, rdy=chance.choice((1, 10, 100)))
                consumer = FencedConsumer(client, ledger, channel, chance, finish_all=self._stopping.is_set)
                consumer.serve(chance.uniform(2, 20), self._stopped)
                if self._stopping.is_set() or chance.random() < 0.6:
                    consumer.leave()
                else:
                    consumer.break_off()
            self._count("reconnects")

    def _pause(self, chance: random.Random) -> None:
        """Pauses topics and channels for a while."""
        while not self._stopping.wait(chance.uniform(0.5, 5)):
            ledger = chance.choice(self._ledgers)
            topic, channel = f"topic={ledger.topic}", chance.choice(list(ledger.channels))
            what, query = chance.choice([("topic", topic), ("channel", f"{topic}&channel={channel}")])
            post(self._daemon, f"/{what}/pause?{query}")
            self._stopping.wait(chance.uniform(0.2, 3))
            post(self._daemon, f"/{what}/unpause?{query}")
            self._count("pauses")

    # Things that come and go

    def _come_and_go(self, chance: random.Random) -> None:
        kinds = (self._ephemeral_topic, self._ephemeral_channel, self._short_lived_topic, self._connections)
        while not self._stopping.wait(chance.uniform(0, 2 * WAIT)):
            kind = chance.choice(kinds)
            kind(f"churn-{next(self._names)}", chance)
            self._count("come and gone")

    def _ephemeral_topic(self, name: str, chance: random.Random) -> None:
        """Uses a topic that goes with its only channel, and that with its only consumer."""
        with self._connect(chance) as consumer, self._connect(chance) as publisher:
            consumer.subscribe(f"{name}#ephemeral", "c#ephemeral", rdy=5)
            count = chance.randrange(2, 30)
            publisher.publish(f"{name}#ephemeral", *[b"x" * 100] * count)
            for _ in range(chance.randrange(count)):  # the rest goes with it, in flight or waiting
                next_body(consumer)
            if chance.random() < 0.5:
                consumer.reset()

    def _ephemeral_channel(self, name: str, chance: random.Random) -> None:
        """Uses a channel of a topic that stays, which may be paused just now."""
        with self._connect(chance) as client:
            client.subscribe(chance.choice(self._ledgers).topic, f"{name}#ephemeral", rdy=10)
            with suppress(TimeoutError):
                for _ in range(chance.randrange(10)):
                    client.frame(0.1)

    def _short_lived_topic(self, name: str, chance: random.Random) -> None:
        """Deletes a topic with messages in memory and on disk, in flight and deferred."""
        create(self._daemon, name, "c")
        with self._connect(chance) as client:
            client.publish(name, *[b"x" * 100] * chance.randrange(2, 200))
            client.command(f"DPUB {name} 60000".encode(), b"x")
            assert client.response() == b"OK"
            client.subscribe(name, "c", rdy=10)
            next_body(client)
        if chance.random() < 0.5:
            post(self._daemon, f"/channel/empty?topic={name}&channel=c")
        if chance.random() < 0.5:
            post(self._daemon, f"/channel/delete?topic={name}&channel=c")
        post(self._daemon, f"/topic/delete?topic={name}")

    def _connections(self, name: str, chance: random.Random) -> None:
        """Opens connections that do nothing, or not much."""
        for _ in range(10):
            with open_socket(self._daemon.tcp_address, DEADLINE) as sock:
                sock.sendall(chance.choice((b"", b"  V", b"  V2", b"  V2NOP\n", b"  V2CLS\n", b"GET / HTTP/1.1\r\n")))

    def _look(self, chance: random.Random) -> None:
        """Looks at pages for people and for programs."""
        while not self._stopping.wait(chance.uniform(0.5, 2)):
            path = chance.choice(PATHS)
            status, _, page = self._daemon.http("GET", path)
            assert status == 200, (path, status)
            if "json" in path:
                assert json.loads(page)["health"] == "OK"
            self._count("scrapes")
