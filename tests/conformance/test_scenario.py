"""Third-party client libraries live through the same scenario (scenario.py) with nothing lost and nothing twice."""

import sys
from pathlib import Path

import pytest

from conformance import scenario
from conftest import DaemonFactory

HERE = Path(__file__).parent


@pytest.fixture
def nsqd(nsqd_factory: DaemonFactory):
    return nsqd_factory(f"--msg-timeout={scenario.MSG_TIMEOUT:g}s")


def test_pynsq_loses_nothing_of_20000_messages_over_a_restart(nsqd, tmp_path):
    scenario.check(scenario.run([sys.executable, str(HERE / "pynsq_scenario.py")], nsqd, 20_000, tmp_path))


def test_gnsq_loses_nothing_of_1000_messages_over_a_restart(nsqd, tmp_path):
    scenario.check(scenario.run([sys.executable, str(HERE / "gnsq_scenario.py")], nsqd, 1_000, tmp_path))
