"""Third-party client libraries live through scenario.py: nothing is lost, and nothing finished comes back."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from conformance import scenario
from daemons import Daemon

HERE = Path(__file__).parent


@pytest.fixture
def nsqd(nsqd_factory: Callable[..., Daemon]) -> Daemon:
    """A running daemon of the kind under test, with the scenario's message timeout."""
    return nsqd_factory(f"--msg-timeout={scenario.MSG_TIMEOUT:g}s")


@pytest.fixture(scope="session")
def nsqjs_driver(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command of nsqjs's driver, in a copy of its directory with the packages of its lock file installed."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        reason = "nsqjs needs node and npm"
        if os.environ.get("GNSQD_REQUIRE_PEERS") == "1":
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    directory = tmp_path_factory.mktemp("nsqjs") / "nsqjs"
    shutil.copytree(HERE / "nsqjs", directory, ignore=shutil.ignore_patterns("node_modules"))
    # Without the optional snappystream nothing native is built or downloaded.
    install = subprocess.run(
        [npm, "ci", "--ignore-scripts", "--omit=optional", "--no-audit", "--no-fund"],
        cwd=directory,
        capture_output=True,
        text=True,
    )
    assert install.returncode == 0, install.stderr
    return [node, str(directory / "scenario.js")]


def test_pynsq_loses_nothing_of_20000_messages_over_a_restart(nsqd: Daemon, tmp_path: Path) -> None:
    driver = [sys.executable, str(HERE / "pynsq_scenario.py")]
    scenario.check(scenario.run(driver, nsqd, 20_000, tmp_path))


def test_gnsq_loses_nothing_of_1000_messages_over_a_restart(nsqd: Daemon, tmp_path: Path) -> None:
    driver = [sys.executable, str(HERE / "gnsq_scenario.py")]
    scenario.check(scenario.run(driver, nsqd, 1_000, tmp_path))


@pytest.mark.peer
def test_nsqjs_loses_nothing_of_1000_messages_over_a_restart(
    nsqd: Daemon, nsqjs_driver: list[str], tmp_path: Path
) -> None:
    scenario.check(scenario.run(nsqjs_driver, nsqd, 1_000, tmp_path))
