"""Third-party client libraries live through scenario.py: nothing is lost, and nothing finished comes back."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from conformance import scenario
from kit.daemons import Instance, fixed_ports

HERE = Path(__file__).parent

pytestmark = [pytest.mark.slow, pytest.mark.timeout(scenario.DEADLINE + 60)]


@pytest.fixture
def nsqd(nsqd_factory: Callable[..., Instance]) -> Instance:
    return nsqd_factory(f"--msg-timeout={scenario.MSG_TIMEOUT:g}s", *fixed_ports())


def test_pynsq_loses_nothing_of_20000_messages_over_a_restart(nsqd: Instance, tmp_path: Path) -> None:
    driver = [sys.executable, str(HERE / "pynsq_scenario.py")]
    scenario.check(scenario.run(driver, nsqd, 20_000, tmp_path))


def test_gnsq_loses_nothing_of_1000_messages_over_a_restart(nsqd: Instance, tmp_path: Path) -> None:
    driver = [sys.executable, str(HERE / "gnsq_scenario.py")]
    scenario.check(scenario.run(driver, nsqd, 1_000, tmp_path))


@pytest.mark.peer
def test_nsqjs_loses_nothing_of_1000_messages_over_a_restart(nsqd: Instance, nsqjs: Path, tmp_path: Path) -> None:
    driver = ["node", str(nsqjs / "scenario.js")]
    scenario.check(scenario.run(driver, nsqd, 1_000, tmp_path))
