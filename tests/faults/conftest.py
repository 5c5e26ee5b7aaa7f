"""Directories for tests with very many files, a disk that can be filled, and the faults of a daemon's disk."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.daemons import fast_directory, interpreter, own_command
from kit.faulty_gnsqd import Faults
from kit.small_disk import SmallDisk


@pytest.fixture
def directory() -> Iterator[Path]:
    """Gives a directory in memory where that can be: hundreds of queues are synced at an exit."""
    with tempfile.TemporaryDirectory(dir=fast_directory()) as name:
        yield Path(name)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    disk = SmallDisk(tmp_path / "small", size=1 << 20, inodes=100)
    yield disk
    disk.close()


@pytest.fixture
def faults(tmp_path: Path) -> Faults:
    return Faults(tmp_path / "faults", interpreter(own_command()))
