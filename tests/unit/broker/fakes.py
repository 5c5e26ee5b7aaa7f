"""What topics and channels need around them, real but for the ends: disk queues in a temporary directory, greenlets
that are kept in a list, callables that note what they are told. And a consumer that only takes notes."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from io import StringIO
from pathlib import Path
from time import time_ns
from typing import Any

from gevent import Greenlet, idle, sleep

from gnsqd.broker.channel import Channel
from gnsqd.broker.consumer import ClientStats
from gnsqd.broker.dead_letters import DeadLetters
from gnsqd.broker.environment import Environment
from gnsqd.broker.guid import GuidFactory
from gnsqd.broker.message import Message, new_messages
from gnsqd.broker.registry import Registry
from gnsqd.log import Level, Logger
from gnsqd.options import Options
from gnsqd.storage.backend_queue import BackendQueue
from gnsqd.storage.disk.data_files import DataFiles
from gnsqd.storage.disk.diskqueue import DiskQueue
from gnsqd.storage.disk.record import MIN_RECORD_SIZE
from gnsqd.storage.files import list_names
from gnsqd.storage.journal.maintenance import Journals
from gnsqd.storage.syncer import Syncer

SECOND = 1_000_000_000
MINUTE = 60 * SECOND

# Daemons that follow each other here do so within a millisecond, in which factories of their own would repeat ids.
_ids_of = cache(GuidFactory)


class FakeConsumer:
    """A consumer that takes nothing by itself, and remembers how it was called."""

    def __init__(self, id: int) -> None:
        self._id = id
        self.woken = 0
        self.timed_out = 0
        self.emptied_count = 0
        self.closed = False

    @property
    def id(self) -> int:
        return self._id

    def wake(self) -> None:
        self.woken += 1

    def timed_out_message(self) -> None:
        self.timed_out += 1

    def emptied(self) -> None:
        self.emptied_count += 1

    def close(self) -> None:
        self.closed = True

    def stats(self, topic_name: str = "") -> ClientStats:
        raise NotImplementedError


class FaultyBackend:
    """The backend queue of a topic or channel, but that writing to it is `put_many`."""

    def __init__(self, backend: BackendQueue, put_many: Callable[[list[bytes]], None]) -> None:
        self._backend = backend
        self.put_many = put_many

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)


@dataclass
class Fakes:
    """An environment, and what it was told."""

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
        names = list_names(str(self.data_path))
        self.data_files = DataFiles(str(self.data_path), names)
        self.journals = None
        if self.options.durability != "none":
            self.journals = Journals(
                str(self.data_path),
                names,
                self.options.max_bytes_per_file,
                self.options.durability == "disk",
                self.logger,
                self.syncer,
                self.registry.set_health,
            )
        self.dead_letters = DeadLetters(self.registry, self.logger, self.spawn)
        self.environment = Environment(
            options=self.options,
            log=self.logger,
            ids=_ids_of(self.options.node_id),
            make_backend=self.make_backend,
            has_backend=self.data_files.__contains__,
            notify=self._notify,
            set_health=self.registry.set_health,
            channels_to_precreate=self._channels_to_precreate,
            spawn=self.spawn,
            open_journal=lambda topic: self.journals.open(topic) if self.journals else None,
            note_dead=self.dead_letters.note,
            check_exit=self.check_exit,
        )
        self.registry.attach(self.environment)
        if self.options.max_attempts:
            self.dead_letters.start()

    def check_exit(self) -> None:
        """Nobody asks for an exit."""

    def _notify(self, thing: object, persist: bool) -> None:
        self.registry.note_change()
        self.notified.append((thing, persist))

    def make_backend(self, name: str) -> DiskQueue:
        return DiskQueue(
            name,
            data_files=self.data_files,
            max_bytes_per_file=self.options.max_bytes_per_file,
            min_msg_size=MIN_RECORD_SIZE,
            max_msg_size=self.options.max_msg_size + MIN_RECORD_SIZE,
            sync_every=self.options.sync_every,
            sync_timeout=self.options.sync_timeout,
            log=self.logger,
            syncer=self.syncer,
        )

    def _channels_to_precreate(self, topic_name: str) -> list[str]:
        sleep(0)  # as asking nsqlookupd does
        return self.precreate

    def spawn(self, name: str, body: Callable[[], None]) -> "Greenlet[..., None]":
        greenlet = Greenlet(body)
        greenlet.name = name
        self.greenlets.append(greenlet)
        greenlet.start()
        return greenlet

    def channel(self, name: str = "c", on_last_client: Callable[[Channel], None] = lambda channel: None) -> Channel:
        """A channel of topic `t`, without that topic."""
        return Channel("t", name, self.environment, on_last_client, on_blocked=lambda: None)

    def messages(self, *bodies: bytes, deferred: int = 0) -> list[Message]:
        now = time_ns()
        return new_messages(self.environment.ids.next_ids(now, len(bodies)), now, list(bodies), deferred)


def bodies_of(messages: list[Message]) -> list[bytes]:
    return [message.body for message in messages]


def eventually(condition: Callable[[], object]) -> None:
    """Let other greenlets go on until it is true; AssertionError after 5 s."""
    for _ in range(5000):
        if condition():
            return
        sleep(0.001)
    raise AssertionError("not met within 5 s")


def settle() -> None:
    """Let every greenlet do what it can do without waiting for time to pass or for a thread."""
    idle()
