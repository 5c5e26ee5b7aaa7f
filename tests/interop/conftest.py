"""A data path that gnsqd and the real nsqd hand over to each other (tests/kit/handover.py), and nsqlookupds of both
kinds."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kit.daemons import free_port
from kit.lookupds import REAL_COMMAND, RunningLookupd, own_lookupd_command
from kit.traffic import DaemonFactory


@pytest.fixture
def start_first(nsqd_factory: DaemonFactory, peer_binary: Callable[[str], Path]) -> DaemonFactory:
    """Starts the daemon that has the data path first: ours, and in another test the real one."""
    peer_binary("nsqd")
    return nsqd_factory


@pytest.fixture(params=["gnsqlookupd", "nsqlookupd"])
def make_lookupd(
    request: pytest.FixtureRequest, peer_binary: Callable[[str], Path], tmp_path: Path
) -> Iterator[Callable[[], RunningLookupd]]:
    """Makes any number of nsqlookupds, ours and in another test the real one, without starting them."""
    made: list[RunningLookupd] = []

    def make() -> RunningLookupd:
        directory = tmp_path / f"nsqlookupd-{len(made)}"
        made.append(RunningLookupd(command, directory, ports=(free_port(), free_port())))
        return made[-1]

    peer_binary("nsqlookupd")
    command = own_lookupd_command() if request.param == "gnsqlookupd" else REAL_COMMAND
    yield make
    for each in made:
        each.kill()
        assert "Traceback (most" not in each.log(), each.log()


@pytest.fixture
def start_lookupd(make_lookupd: Callable[[], RunningLookupd]) -> Callable[[], RunningLookupd]:
    return lambda: make_lookupd().start()


@pytest.fixture
def lookupd(start_lookupd: Callable[[], RunningLookupd]) -> RunningLookupd:
    return start_lookupd()
