"""A data directory without queues, and two nsqds without sockets."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from spark.unit.fake_nsqd import FakeNsqd


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A data directory without queues."""
    path = tmp_path / "nsqd"
    path.mkdir()
    (path / "nsqd.dat").write_text('{"topics":null,"version":"1.3.0"}')
    return path


@pytest.fixture
def nsqds(monkeypatch: pytest.MonkeyPatch) -> "list[FakeNsqd]":
    from spark.unit.fake_nsqd import FakeNsqd, patch

    fakes = [FakeNsqd(4150), FakeNsqd(4250)]
    patch(monkeypatch, fakes)
    return fakes
