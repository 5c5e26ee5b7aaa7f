"""Where tests with very many files put them, and the faults of a daemon's disk."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.daemons import fast_directory, interpreter, own_command
from kit.faulty_gnsqd import Faults


@pytest.fixture
def directory() -> Iterator[Path]:
    """In memory where that can be: hundreds of queues are synced at an exit."""
    with tempfile.TemporaryDirectory(dir=fast_directory()) as name:
        yield Path(name)


@pytest.fixture
def faults(tmp_path: Path) -> Faults:
    return Faults(tmp_path / "faults", interpreter(own_command()))
