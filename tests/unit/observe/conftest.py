"""A registry of its own for each test."""

from collections.abc import Iterator
from pathlib import Path

import gevent
import pytest

from gnsqd.broker.registry import Registry
from gnsqd.options import Options
from gnsqd.storage.syncer import Syncer
from unit.broker.fakes import Fakes


@pytest.fixture
def options() -> Options:
    return Options()


@pytest.fixture
def registry(options: Options, tmp_path: Path) -> Iterator[Registry]:
    """Makes a registry that follows what a test changes in `options`."""
    syncer = Syncer()
    fakes = Fakes(tmp_path, options, syncer)
    fakes.registry.attach(fakes.environment._replace(options=options))
    yield fakes.registry
    gevent.killall(fakes.greenlets)
    syncer.stop()
