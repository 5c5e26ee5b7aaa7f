"""A data path that gnsqd and the real nsqd hand over to each other (tests/handover.py)."""

from collections.abc import Callable
from pathlib import Path

import pytest

from handover import DaemonFactory


@pytest.fixture
def start_first(nsqd_factory: DaemonFactory, peer_binary: Callable[[str], Path]) -> DaemonFactory:
    """Start the daemon that has the data path first: ours, and in another test the real one."""
    peer_binary("nsqd")
    return nsqd_factory
