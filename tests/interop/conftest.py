"""A data path that gnsqd and the real nsqd hand over to each other (tests/handover.py), and real nsqlookupds."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from handover import DaemonFactory
from interop.cluster import Lookupd


@pytest.fixture
def start_first(nsqd_factory: DaemonFactory, peer_binary: Callable[[str], Path]) -> DaemonFactory:
    """Start the daemon that has the data path first: ours, and in another test the real one."""
    peer_binary("nsqd")
    return nsqd_factory


@pytest.fixture
def make_lookupd(peer_binary: Callable[[str], Path], tmp_path: Path) -> Iterator[Callable[..., Lookupd]]:
    """An nsqlookupd that has not been started yet, any number of times; argument as its class."""
    made: list[Lookupd] = []

    def make(tcp_port: int = 0) -> Lookupd:
        directory = tmp_path / f"nsqlookupd-{len(made)}"
        directory.mkdir()
        made.append(Lookupd(peer_binary("nsqlookupd"), directory, tcp_port))
        return made[-1]

    yield make
    for each in made:
        each.kill()


@pytest.fixture
def start_lookupd(make_lookupd: Callable[[], Lookupd]) -> Callable[[], Lookupd]:
    """Start an nsqlookupd, any number of times."""
    return lambda: make_lookupd().start()


@pytest.fixture
def lookupd(start_lookupd: Callable[[], Lookupd]) -> Lookupd:
    return start_lookupd()
