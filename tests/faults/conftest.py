"""Where tests with very many files put them."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.daemons import fast_directory


@pytest.fixture
def directory() -> Iterator[Path]:
    """In memory where that can be: hundreds of queues are synced at an exit."""
    with tempfile.TemporaryDirectory(dir=fast_directory()) as name:
        yield Path(name)
