"""Fixtures for the tests of gnsqadmin: nodes behind the real nsqlookupd."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cli.nodes import Registered
from kit.daemons import eventually, free_port
from kit.peer_program import start_nsqlookupd
from kit.traffic import DaemonFactory


@pytest.fixture
def cluster(nsqd_factory: DaemonFactory, peer_binary: Callable[[str], Path], tmp_path: Path) -> Iterator[Registered]:
    """Starts two nodes of the kind under test that register with a real nsqlookupd."""
    with start_nsqlookupd(peer_binary("nsqlookupd"), tmp_path / "nsqlookupd.log") as lookupd:
        flags = ["--broadcast-address=127.0.0.1", f"--lookupd-tcp-address={lookupd.address['TCP']}"]
        # Of a node that is killed, no other program gets the port.
        nodes = [nsqd_factory(*flags, f"--http-address=127.0.0.1:{free_port()}") for _ in range(2)]
        eventually(lambda: len(lookupd.ask("GET", "/nodes")[1]["producers"]) == 2, "two nodes known to nsqlookupd")
        yield Registered(lookupd, nodes)
