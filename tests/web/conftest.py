"""Fixtures for the tests of the page."""

import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kit.peer_program import PeerProgram, start_nsqlookupd


@pytest.fixture(autouse=True)
def quick_doctor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes an examination in this process take less than three seconds."""
    monkeypatch.setattr("nsqadmin_cli.web.monitor._EXAMINING", 0.1)


@pytest.fixture
def hanging() -> Iterator[str]:
    """Yields the address of a node that accepts and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield "{}:{}".format(*listener.getsockname())


@pytest.fixture
def nsqlookupd(peer_binary: Callable[[str], Path], tmp_path: Path) -> Iterator[PeerProgram]:
    with start_nsqlookupd(peer_binary("nsqlookupd"), tmp_path / "lookupd.log") as lookupd:
        yield lookupd
