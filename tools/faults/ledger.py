"""Publishers and consumers at work while a daemon is put through faults, and a ledger of what was acknowledged and what
was finished. For every channel holds: what was acknowledged and not finished comes in the end."""

import random
import re
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from http.client import HTTPException
from typing import ClassVar

from kit.daemons import DEADLINE, Daemon
from kit.nsq_client import ERROR, MESSAGE, Client, Message, mpub_body, parse_message

TOPIC = "t"
CHANNELS = ("one", "two")
QUIET = 2.0  # seconds without a message, at the end
SETTLED = 0.3  # seconds that a FIN may take to be read and kept
RECENT = 100  # commands that published last
MAX_PUBLISHED = 2000  # messages, by one publisher between two faults: the ledger has to remember them


@dataclass
class Receipts:
    """What the consumers of one channel know, by body."""

    finished: dict[bytes, float] = field(default_factory=dict)  # when
    unsure: set[bytes] = field(default_factory=set)  # finished so late that it may come again
    again: set[bytes] = field(default_factory=set)  # finished before, and delivered
    counts: Counter[str] = field(default_factory=Counter)  # what else was done to it, with the methods below
    wrong: list[str] = field(default_factory=list)  # what was found after a fault

    flags: ClassVar[tuple[str, ...]] = ()  # of the daemon
    backlog: ClassVar[int] = sys.maxsize  # messages in the daemon, with which publishers publish few

    def come(self, message: Message) -> bool:
        """Note a delivery; True if it has to be finished at once."""
        if message.body in self.finished and message.body not in self.unsure:
            self.again.add(message.body)
        return False

    def lost(self, acknowledged: set[bytes]) -> set[bytes]:
        """Never finished, and never delivered at the end."""
        return acknowledged - self.finished.keys()

    def change(self, ledger: "Ledger", daemon: Daemon, chance: random.Random) -> None:
        """All the time until the daemon is gone."""

    def check(self, daemon: Daemon) -> None:
        """After a start."""

    def end(self, daemon: Daemon) -> None:
        """Before all has to come."""


@dataclass
class Ledger:
    """What the clients know, by body."""

    channels: dict[str, Receipts]
    acknowledged: set[bytes] = field(default_factory=set)
    recent: deque[int] = field(default_factory=lambda: deque(maxlen=RECENT))  # when messages were acknowledged, ns
    due: dict[bytes, float] = field(default_factory=dict)
    early: set[bytes] = field(default_factory=set)

    def fault(self, moment: float) -> None:
        """What was finished shortly before may come again."""
        for receipts in self.channels.values():
            receipts.unsure |= {body for body, at in receipts.finished.items() if at > moment - SETTLED}

    def lost(self) -> int:
        """Of what was acknowledged; in each channel."""
        return sum(len(receipts.lost(self.acknowledged)) for receipts in self.channels.values())

    def duplicated(self) -> int:
        """Finished a while before the next fault, and delivered again."""
        return sum(len(receipts.again) for receipts in self.channels.values())


class Load:
    """Clients of one process of the daemon; they end when it does, or, with `finish_all`, when all has come."""

    def __init__(self, ledger: Ledger, daemon: Daemon, seed: str, finish_all: bool = False) -> None:
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
        with Client(self._daemon.tcp_address) as client:
            while count < self._limit:
                size = chance.choice((1, 1, 5, 40))
                names = [f"{self._seed}-{number}-{count + i}" for i in range(size)]
                bodies = [name.ljust(chance.choice((20, 200)), ".").encode() for name in names]
                count += size
                if size > 1:
                    client.command(f"MPUB {TOPIC}".encode(), mpub_body(*bodies))
                elif chance.random() < 0.2:
                    delay = chance.choice((50, 300, 2000))
                    ledger.due[bodies[0]] = time.time() + delay / 1000
                    client.command(f"DPUB {TOPIC} {delay}".encode(), bodies[0])
                else:
                    client.command(f"PUB {TOPIC}".encode(), bodies[0])
                assert client.response() == b"OK"
                ledger.acknowledged.update(bodies)
                ledger.recent.append(time.time_ns())
            client.recv_until_closed()

    def _consume(self, name: str) -> None:
        chance = random.Random(f"{self._seed} {name}")
        receipts = self._ledger.channels[name]
        finishing: dict[bytes, list[bytes]] = {}  # bodies by ID, once for each FIN
        with Client(self._daemon.tcp_address) as client:
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
                    self._last_message = time.monotonic()
                    if time.time() < self._ledger.due.get(message.body, 0) - 0.005:
                        self._ledger.early.add(message.body)
                    at_once = receipts.come(message) or self._finish_all
                    what = 1.0 if at_once else chance.random()
                    if what > 0.3:
                        finishing.setdefault(message.id, []).append(message.body)
                        client.command(b"FIN " + message.id)
                        receipts.finished[message.body] = time.time()
                    elif what > 0.15:
                        client.command(b"REQ " + message.id + b" %d" % chance.choice((0, 0, 40, 400)))
                    # or it stays in flight


def come_too_late(receipts: Receipts, error: bytes, finishing: dict[bytes, list[bytes]]) -> None:
    """A message whose time was up before its FIN or REQ came: the daemon was right to take it back."""
    refused = re.fullmatch(rb"E_(FIN|REQ)_FAILED \1 (.{16}) failed ID not in flight", error)
    assert refused, error
    if refused[1] == b"FIN":
        body = finishing[refused[2]].pop()
        receipts.unsure.add(body)  # that it came again does not make it a duplicate
        receipts.again.discard(body)
        if not finishing[refused[2]]:
            receipts.finished.pop(body, None)  # a rewind may have been first


def messages_left(daemon: Daemon) -> int:
    return sum(
        topic["depth"] + channel["depth"] + channel["in_flight_count"] + channel["deferred_count"]
        for topic in daemon.stats()["topics"]
        for channel in topic["channels"]
        if channel["channel_name"] in CHANNELS
    )
