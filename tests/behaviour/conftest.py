"""Daemons that live as long as a module, for the many tests that only talk to one, and names of their own for each."""

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kit.certificates import write_identities
from kit.daemons import PEERS, Instance, own_command
from kit.lookupds import REAL_COMMAND, LookupdPair, RunningLookupd, own_lookupd_command
from kit.nsq_client import NSQClient

_numbers = itertools.count()


def _peer_command() -> list[str]:
    if not (PEERS / "nsqd").exists():
        if os.environ.get("GNSQD_REQUIRE_PEERS") == "1":
            pytest.fail("nsqd is not built (make peers)", pytrace=False)
        pytest.skip("nsqd is not built (make peers)")
    return [str(PEERS / "nsqd")]


@pytest.fixture(scope="module", params=["gnsqd", pytest.param("nsqd", marks=pytest.mark.peer)])
def module_factory(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., Instance]]:
    """Starts daemons of the kind under test that run until the end of the module: `module_factory(*flags)`."""
    command = own_command() if request.param == "gnsqd" else _peer_command()
    daemons: list[Instance] = []

    def start(*flags: str) -> Instance:
        path: Path = tmp_path_factory.mktemp("module") / "data"
        daemons.append(Instance(command, path, *flags))
        return daemons[-1].start()

    yield start
    for daemon in daemons:
        daemon.close()
        assert "Traceback (most" not in daemon.log(), daemon.log()


@pytest.fixture(scope="session")
def identities(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, str]]:
    return write_identities(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="session")
def tls_flags(identities: dict[str, tuple[str, str]]) -> list[str]:
    cert, key = identities["server"]
    return [f"--tls-cert={cert}", f"--tls-key={key}", "--https-address=127.0.0.1:0"]


@pytest.fixture
def client(nsqd: Instance) -> NSQClient:
    return NSQClient(nsqd.tcp_address)


@pytest.fixture
def publisher(nsqd: Instance) -> NSQClient:
    return NSQClient(nsqd.tcp_address)


@pytest.fixture
def topic() -> str:
    return f"topic{next(_numbers)}"


@pytest.fixture
def lookupd_pair(tmp_path: Path, peer_binary: Callable[[str], Path]) -> Iterator[LookupdPair]:
    """Starts both nsqlookupds, ours first."""
    peer_binary("nsqlookupd")
    with (
        RunningLookupd(own_lookupd_command(), tmp_path / "gnsqlookupd") as ours,
        RunningLookupd(REAL_COMMAND, tmp_path / "nsqlookupd") as real,
    ):
        yield ours, real


@pytest.fixture
def lookupd(tmp_path: Path) -> Iterator[RunningLookupd]:
    """Ours."""
    with RunningLookupd(own_lookupd_command(), tmp_path / "gnsqlookupd") as lookupd:
        yield lookupd
