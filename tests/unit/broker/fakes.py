"""The environment of topics and channels, real except at the ends: disk queues in a temporary directory, greenlets that
are kept in a list, callables that note their arguments. And a consumer that only takes notes."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from io import StringIO
from pathlib import Path
from time import time_ns
from types import SimpleNamespace
from typing import Any

import pytest
from gevent import Greenlet, idle, sleep

from gnsqd.broker.channel import Channel
from gnsqd.broker.dead_letters import DeadLetters
from gnsqd.broker.environment import ClientStats, Environment
from gnsqd.broker.registry import Registry
from gnsqd.broker.rules import RuleBook
from gnsqd.broker.topic import Topic
from gnsqd.log import Level, Logger
from gnsqd.options import Options
from gnsqd.queues.data_path import DataPath
from gnsqd.queues.disk import DiskBackend
from gnsqd.queues.message import GuidFactory, Message, new_messages
from gnsqd.storage.disk.diskqueue import DiskQueue
from gnsqd.storage.syncer import Syncer

SECOND = 1_000_000_000
MINUTE = 60 * SECOND

# What a topic puts at once; compiled, its own names are C's.
MAX_PUT = 2048
MAX_PUT_BYTES = 1 << 20

# Daemons that follow each other here do so within a millisecond, in which factories of their own would repeat ids.
_ids_of = cache(GuidFactory)


class FakeConsumer:
    """A consumer that takes nothing by itself, and counts how often it was woken."""

    locality = rank = 2

    def __init__(self, id: int) -> None:
        self._id = id
        self.woken = 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FakeConsumer) and other._id == self._id

    def __hash__(self) -> int:
        return self._id

    @property
    def id(self) -> int:
        return self._id

    @property
    def ready_count(self) -> int:
        return 1

    @property
    def doorbell(self) -> Any:
        return SimpleNamespace(ring=self._count)

    def _count(self) -> None:
        self.woken += 1

    def left_flight(self, count: int = 0) -> None:
        """Takes no note."""

    emptied = close = left_flight

    def stats(self, topic_name: str = "") -> ClientStats:
        raise NotImplementedError


class FaultyDiskQueue:
    """The disk queue of a topic or channel, except that `put_many` writes to it."""

    def __init__(self, disk_queue: DiskQueue, put_many: Callable[[list[bytes]], None]) -> None:
        self._disk_queue = disk_queue
        self.put_many = put_many

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk_queue, name)


def disk_queue_of(owner: Topic | Channel) -> DiskQueue:
    assert isinstance(owner.queue.backend, DiskBackend)
    return owner.queue.backend.disk_queue


def replace_writes(patch: pytest.MonkeyPatch, owner: Topic | Channel, put_many: Callable[[list[bytes]], None]) -> None:
    patch.setattr(owner.queue.backend, "disk_queue", FaultyDiskQueue(disk_queue_of(owner), put_many))


@dataclass
class Fakes:
    """An environment, and what was reported to it."""

    data_path: Path
    options: Options
    syncer: Syncer
    registry: Registry = field(default_factory=Registry)
    log: StringIO = field(default_factory=StringIO)
    notified: list[tuple[object, bool]] = field(default_factory=list)
    precreate: list[str] = field(default_factory=list)
    greenlets: "list[Greenlet[..., None]]" = field(default_factory=list)

    def __post_init__(self) -> None:
        self.logger = Logger("", Level.DEBUG, self.log)
        self.options = Options(**vars(self.options) | {"data_path": str(self.data_path)})
        set_health = partial(setattr, self.registry, "error")
        self.stores = DataPath(self.options, self.logger, self.syncer, set_health, lambda: self.check_exit())
        self.dead_letters = DeadLetters(self.registry, self.logger, self.spawn)
        self.environment = Environment(
            options=self.options,
            log=self.logger,
            ids=_ids_of(self.options.node_id),
            open_store=self.stores.open_store,
            notify=self._notify,
            channels_to_precreate=self._channels_to_precreate,
            spawn=self.spawn,
            rules=RuleBook(),
            note_dead=self.dead_letters.note,
        )
        self.registry.attach(self.environment)
        if self.options.max_attempts:
            self.dead_letters.start()

    def check_exit(self) -> None:
        """Raises nothing, as nobody asks for an exit."""

    def _notify(self, thing: object, persist: bool) -> None:
        self.notified.append((thing, persist))

    def _channels_to_precreate(self, topic_name: str) -> list[str]:
        sleep(0)  # as asking nsqlookupd does
        return self.precreate

    def spawn(self, name: str, body: Callable[[], None]) -> "Greenlet[..., None]":
        greenlet = Greenlet(body)
        greenlet.name = name
        self.greenlets.append(greenlet)
        greenlet.start()
        return greenlet

    def channel(self, name: str = "c") -> Channel:
        """Returns a channel of topic `t`, without that topic."""
        queue = self.stores.open_store("t").channel_queue(name)
        return Channel("t", name, self.environment, queue, lambda channel: None, on_refused=lambda: None)

    def messages(self, *bodies: bytes, deferred: int = 0, age: int = 0, now: int = 0) -> list[Message]:
        """Returns messages that were published `age` ns ago, or before `now`."""
        ids, now = self.environment.ids, now or time_ns()
        return [new_messages(ids.reserve(now, 1), now - age, [body], deferred)[0] for body in bodies]


Build = Callable[..., Fakes]  # by the fixture `fakes`
Consumers = list[FakeConsumer]


def bodies_of(messages: list[Message]) -> list[bytes]:
    return [message.body for message in messages]


def take_all(channel: Channel) -> list[Message]:
    found: list[Message] = []
    while batch := channel.take(FakeConsumer(99), 100_000, MINUTE, 0):
        found += batch
    return found


def eventually(condition: Callable[[], object]) -> None:
    """Lets other greenlets go on until it is true; AssertionError after 5 s."""
    for _ in range(5000):
        if condition():
            return
        sleep(0.001)
    raise AssertionError("not met within 5 s")


def settle() -> None:
    """Lets every greenlet do what it can do without waiting for time to pass or for a thread."""
    idle()


def publish(topic: Topic, *bodies: bytes, deferred: int = 0) -> None:
    """Publishes as a publisher does it, and then everybody else has a turn."""
    topic.publish(list(bodies), deferred)
    topic.commit()
    settle()
