"""Fixtures for the tests of the page."""

import pytest


@pytest.fixture(autouse=True)
def quick_doctor(monkeypatch: pytest.MonkeyPatch) -> None:
    """An examination in this process takes no three seconds."""
    monkeypatch.setattr("nsqadmin_web.monitor._EXAMINING", 0.1)
