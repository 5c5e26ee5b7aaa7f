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
from gnsqd.storage.backend_queue import DummyBackendQueue


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
    registry.attach(
        Environment(
            options=options,
            log=Logger("", Level.FATAL, io.StringIO()),
            ids=GuidFactory(1),
            make_backend=DummyBackendQueue,  # type: ignore[arg-type]
            notify=lambda thing, persist: None,
            set_health=registry.set_health,
            channels_to_precreate=lambda topic_name: [],
            spawn=spawn,
        )
    )
    yield registry
    gevent.killall(greenlets)
