"""Publishers and consumers at work while a daemon is put through faults, and what they know of its channels."""

import random
import re
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import partial
from http.client import HTTPException
from typing import ClassVar

from faults.ledger import Ledger, Receipts
from kit.daemons import DEADLINE, Instance
from kit.nsq_client import ERROR, MESSAGE, NSQClient, ReceivedMessage, mpub_body, parse_message

TOPIC = "t"
CHANNELS = ("one", "two")
QUIET = 2.0  # seconds without a message, at the end
RECENT = 100  # commands that published last
MAX_PUBLISHED = 2000  # messages, by one publisher between two faults: the ledger has to remember them


class FaultedChannel(Receipts):
    """A channel beside faults. Its subclasses change it all the time, and what was answered has to hold after each
    kill."""

    flags: ClassVar[tuple[str, ...]] = ()  # of the daemon
    backlog: ClassVar[int] = sys.maxsize  # messages in the daemon, with which publishers publish few

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()  # what else was done to it
        self.wrong: list[str] = []  # what was found after a fault

    def receive(self, number: int, message: ReceivedMessage) -> bool:
        """Notes a delivery; returns True if it has to be finished at once."""
        self.deliver(number)
        return False

    def change(self, ledger: "FaultLedger", daemon: Instance, chance: random.Random) -> None:
        """Changes the channel all the time until the daemon is gone."""

    def check(self, daemon: Instance) -> None:
        """Looks at the channel after a start."""

    def end(self, daemon: Instance) -> None:
        """Ends the changes before all has to come."""


class FaultLedger(Ledger):
    """A ledger that also knows when messages were acknowledged and are due."""

    channels: dict[str, FaultedChannel]

    def __init__(self, channels: dict[str, FaultedChannel]) -> None:
        super().__init__(TOPIC, channels)
        self.recent: deque[int] = deque(maxlen=RECENT)  # when messages were acknowledged, ns
        self._answered: deque[tuple[float, Sequence[bytes]]] = deque()  # when, since the last fault
        self.due: dict[int, float] = {}
        self.early: set[int] = set()

    def acknowledge(self, bodies: Sequence[bytes]) -> None:
        super().acknowledge(bodies)
        self._answered.append((time.time(), bodies))

    def forget(self, moment: float) -> None:
        """Takes back what was acknowledged after that time: it may come or not."""
        self.take_back([body for at, bodies in self._answered if at > moment for body in bodies])
        self._answered.clear()

    def count_lost(self) -> int:
        """Returns the number of lost messages of all channels."""
        return sum(len(self.lost(channel)) for channel in self.channels)

    def count_repeated(self) -> int:
        """Returns the number of messages that were finished a while before the next fault, and delivered again."""
        return sum(len(receipts.again) for receipts in self.channels.values())


class FaultClients:
    """Clients of one process of the daemon; they end when it does, or, with `finish_all`, when all has come."""

    def __init__(self, ledger: FaultLedger, daemon: Instance, seed: str, finish_all: bool = False) -> None:
        self._ledger = ledger
        self._daemon = daemon
        self._seed = seed
        self._finish_all = finish_all
        self._last_message = time.monotonic()
        backlog = min(receipts.backlog for receipts in ledger.channels.values())
        self._limit = min(MAX_PUBLISHED, max(100, backlog - messages_left(daemon)))
        bodies: list[Callable[[], None]] = [partial(self._consume, name) for name in CHANNELS]
        if not finish_all:
            bodies += [partial(self._publish, number) for number in (0, 1)]
            for name, receipts in ledger.channels.items():
                bodies.append(partial(receipts.change, ledger, daemon, random.Random(f"{seed} {name} changes")))
        self._threads = [threading.Thread(target=self._guard, args=(body,)) for body in bodies]
        self._failures: list[BaseException] = []
        for thread in self._threads:
            thread.start()

    def _guard(self, body: Callable[[], None]) -> None:
        try:
            body()
        except (OSError, HTTPException):
            pass  # killed
        except BaseException as error:
            self._failures.append(error)

    def join(self) -> None:
        for thread in self._threads:
            thread.join()
        assert not self._failures, self._failures

    def _publish(self, number: int) -> None:
        chance = random.Random(f"{self._seed} {number}")
        ledger = self._ledger
        count = 0
        with NSQClient(self._daemon.tcp_address) as client:
            while count < self._limit:
                size = chance.choice((1, 1, 5, 40))
                bodies = ledger.new_bodies([chance.choice((20, 200)) for _ in range(size)])
                count += size
                if size > 1:
                    client.command(f"MPUB {TOPIC}".encode(), mpub_body(*bodies))
                elif chance.random() < 0.2:
                    delay = chance.choice((50, 300, 2000))
                    ledger.due[ledger.number(bodies[0])] = time.time() + delay / 1000
                    client.command(f"DPUB {TOPIC} {delay}".encode(), bodies[0])
                else:
                    client.command(f"PUB {TOPIC}".encode(), bodies[0])
                assert client.response() == b"OK"
                ledger.acknowledge(bodies)
                ledger.recent.append(time.time_ns())
            client.recv_until_closed()

    def _consume(self, name: str) -> None:
        chance = random.Random(f"{self._seed} {name}")
        receipts = self._ledger.channels[name]
        finishing: dict[bytes, list[int]] = {}  # numbers by ID, once for each FIN
        with NSQClient(self._daemon.tcp_address) as client:
            client.subscribe(TOPIC, name, 100)
            while True:
                try:
                    frame = client.frame(QUIET if self._finish_all else None)
                except TimeoutError:  # what is deferred or in flight may come later
                    if messages_left(self._daemon) and time.monotonic() < self._last_message + DEADLINE:
                        continue
                    return
                if frame.type == ERROR:
                    come_too_late(receipts, frame.data, finishing)
                elif frame.type != MESSAGE:
                    client.command(b"NOP")
                else:
                    message = parse_message(frame.data)
                    number = self._ledger.number(message.body)
                    self._last_message = time.monotonic()
                    if time.time() < self._ledger.due.get(number, 0) - 0.005:
                        self._ledger.early.add(number)
                    at_once = receipts.receive(number, message) or self._finish_all
                    what = 1.0 if at_once else chance.random()
                    if what > 0.3:
                        finishing.setdefault(message.id, []).append(number)
                        client.command(b"FIN " + message.id)
                        receipts.finish([number])
                    elif what > 0.15:
                        client.command(b"REQ " + message.id + b" %d" % chance.choice((0, 0, 40, 400)))
                    # or it stays in flight


def come_too_late(receipts: Receipts, error: bytes, finishing: dict[bytes, list[int]]) -> None:
    """Notes that the time of a message was up before its FIN or REQ came: the daemon was right to take it back."""
    refused = re.fullmatch(rb"E_(FIN|REQ)_FAILED \1 (.{16}) failed ID not in flight", error)
    assert refused, error
    if refused[1] == b"FIN":
        number = finishing[refused[2]].pop()
        receipts.refuse(number)
        if not finishing[refused[2]]:
            receipts.unfinish(number)


def messages_left(daemon: Instance) -> int:
    return sum(
        topic["depth"] + channel["depth"] + channel["in_flight_count"] + channel["deferred_count"]
        for topic in daemon.stats()["topics"]
        for channel in topic["channels"]
        if channel["channel_name"] in CHANNELS
    )
