"""Where the spools of the tests are, and two nsqds without sockets."""

import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from spark.unit.fake_nsqd import FakeNsqd


@pytest.fixture
def location(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A directory, or a bucket in memory where the test is for both."""
    if getattr(request, "param", "directory") == "directory":
        return str(tmp_path)
    from obstore.store import MemoryStore

    monkeypatch.setattr("obstore.store.S3Store", lambda name: MemoryStore())
    return f"s3://{uuid.uuid4()}"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A data directory without queues."""
    path = tmp_path / "nsqd"
    path.mkdir()
    (path / "nsqd.dat").write_text('{"topics":null,"version":"1.3.0"}')
    return path


@pytest.fixture
def fast_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no test cuts the power, and a message would time out while a slow disk is written to."""
    monkeypatch.setattr("os.fsync", lambda descriptor: None)


@pytest.fixture
def nsqds(monkeypatch: pytest.MonkeyPatch) -> "list[FakeNsqd]":
    from spark.unit.fake_nsqd import FakeNsqd, patch

    fakes = [FakeNsqd(4150), FakeNsqd(4250)]
    patch(monkeypatch, fakes)
    return fakes
