"""Fixtures around `Surroundings`."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from gevent import killall

from gnsqd.options import Options
from gnsqd.storage.syncer import Syncer
from unit.broker.surroundings import FakeConsumer, Surroundings


@pytest.fixture
def syncer() -> Iterator[Syncer]:
    syncer = Syncer()
    yield syncer
    syncer.stop()


@pytest.fixture
def surroundings(tmp_path: Path, syncer: Syncer) -> Iterator[Callable[..., Surroundings]]:
    """Build surroundings with some options changed: `surroundings(mem_queue_size=2)`. No greenlet may die of a bug."""
    built: list[Surroundings] = []

    def build(**options: Any) -> Surroundings:
        built.append(Surroundings(tmp_path, Options(**options), syncer))
        return built[-1]

    yield build
    for each in built:
        died = [greenlet for greenlet in each.greenlets if greenlet.exception is not None]
        killall(each.greenlets)
        assert not died, died


@pytest.fixture
def consumers() -> list[FakeConsumer]:
    return [FakeConsumer(number) for number in (1, 2, 3)]
