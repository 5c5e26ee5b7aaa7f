"""Counters that tests of several packages use."""

import os

import pytest


@pytest.fixture
def listings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Yields the directories that were listed."""
    listed: list[str] = []
    list_directory, scan_directory = os.listdir, os.scandir

    def listdir(path: str) -> list[str]:
        listed.append(path)
        return list_directory(path)

    def scandir(path: str) -> object:
        listed.append(path)
        return scan_directory(path)

    monkeypatch.setattr(os, "listdir", listdir)
    monkeypatch.setattr(os, "scandir", scandir)
    return listed
