"""Fixtures around `Fakes`."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from gevent import killall

from gnsqd.options import Options
from gnsqd.storage.syncer import Syncer
from unit.broker.fakes import FakeConsumer, Fakes


@pytest.fixture
def syncer() -> Iterator[Syncer]:
    syncer = Syncer()
    yield syncer
    syncer.stop()


@pytest.fixture
def fakes(tmp_path: Path, syncer: Syncer) -> Iterator[Callable[..., Fakes]]:
    """Builds fakes with some options changed: `fakes(mem_queue_size=2)`. No greenlet may die of a bug."""
    built: list[Fakes] = []

    def build(**options: Any) -> Fakes:
        built.append(Fakes(tmp_path, Options(**options), syncer))
        return built[-1]

    yield build
    for each in built:
        died = [greenlet for greenlet in each.greenlets if greenlet.exception is not None]
        killall(each.greenlets)
        assert not died, died


@pytest.fixture
def consumers() -> list[FakeConsumer]:
    return [FakeConsumer(number) for number in (1, 2, 3)]
