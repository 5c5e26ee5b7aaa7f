"""A real registry that keeps everything in memory."""

import io
from collections.abc import Callable, Iterator

import gevent
import pytest

from gnsqd.broker.environment import Environment
from gnsqd.broker.guid import GuidFactory
from gnsqd.broker.registry import Registry
from gnsqd.log import Level, Logger
from gnsqd.options import Options
from gnsqd.queues.queue import EphemeralQueue, Queue
from gnsqd.queues.store import Context, Store
from gnsqd.storage.disk.opening import DataFiles
from gnsqd.storage.syncer import Syncer


class MemoryStore(Store):
    def new_queue(self, name: str) -> Queue:
        return EphemeralQueue(name, self.context.options, self.log)


@pytest.fixture
def options() -> Options:
    return Options()


@pytest.fixture
def registry(options: Options) -> Iterator[Registry]:
    greenlets = []

    def spawn(name: str, body: Callable[[], None]) -> "gevent.Greenlet[[], None]":
        greenlets.append(gevent.spawn(body))
        return greenlets[-1]

    registry = Registry()
    log = Logger("", Level.FATAL, io.StringIO())
    context = Context(options, log, DataFiles("", []), Syncer(), registry.set_health, check_exit=lambda: None)
    registry.attach(
        Environment(
            options=options,
            log=log,
            ids=GuidFactory(1),
            open_store=lambda topic: MemoryStore(topic, context),
            notify=lambda thing, persist: None,
            channels_to_precreate=lambda topic_name: [],
            spawn=spawn,
        )
    )
    yield registry
    gevent.killall(greenlets)
