"""Where the spools of the tests are."""

import uuid
from pathlib import Path

import pytest


@pytest.fixture
def location(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A directory, or a bucket in memory where the test is for both."""
    if getattr(request, "param", "directory") == "directory":
        return str(tmp_path)
    from obstore.store import MemoryStore

    monkeypatch.setattr("obstore.store.S3Store", lambda name: MemoryStore())
    return f"s3://{uuid.uuid4()}"
