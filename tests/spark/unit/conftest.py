"""A data directory without queues, and two nsqds without sockets."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from spark.unit.fake_nsqd import FakeDaemon


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Returns a data directory without queues."""
    path = tmp_path / "nsqd"
    path.mkdir()
    (path / "nsqd.dat").write_text('{"topics":null,"version":"1.3.0"}')
    return path


@pytest.fixture
def nsqds(monkeypatch: pytest.MonkeyPatch) -> "list[FakeDaemon]":
    from spark.unit.fake_nsqd import FakeDaemon, patch

    fakes = [FakeDaemon(4150), FakeDaemon(4250)]
    patch(monkeypatch, fakes)
    return fakes
