"""pynsq's own test suite passes the same tests with our daemon as with the real one.

The suite is not in pynsq's package, so this runs where the environment variable GNSQD_PYNSQ_CHECKOUT names a checkout
of pynsq's repository. It starts `nsqd` and `nsqlookupd` from the PATH on their default ports, which must be free. Some
of its tests fail with today's Python and tornado whatever the daemon, and some only now and then (pynsq's compressed
sockets may sit on data until more arrives), so a test that passed with one daemon alone gets more tries with the other.
"""

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from conformance.links import link_as_nsqd
from daemons import own_command

PORTS = (4150, 4151, 4160, 4161)
TRIES = 5


@pytest.fixture
def checkout() -> Path:
    """The root of a checkout of pynsq, its suite ready to run."""
    root = os.environ.get("GNSQD_PYNSQ_CHECKOUT")
    if not root:
        pytest.skip("GNSQD_PYNSQ_CHECKOUT names no checkout of pynsq")
    for module in ("mock", "snappy"):
        pytest.importorskip(module, reason=f"pynsq's suite imports {module}")
    for port in PORTS:
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(("127.0.0.1", port))  # or else the suite would test whatever listens there
    return Path(root).resolve()


class Suite:
    """The suite with one daemon: its `nsqd` stands first on the PATH, its data in the directory the suite runs in."""

    def __init__(self, checkout: Path, directory: Path, command: list[str], nsqlookupd: Path) -> None:
        directory.mkdir()
        programs = link_as_nsqd(command, directory).parent
        (programs / "nsqlookupd").symlink_to(nsqlookupd)
        self.checkout = checkout
        self.directory = directory
        self.environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}

    def passed(self, *tests: str) -> set[str]:
        """Which of `tests`, or of all, pass; named as pytest names them relative to this process's directory."""
        options = ["-q", "-rp", "--tb=no", "--show-capture=no", "-p", "no:cacheprovider"]
        with tempfile.TemporaryDirectory(dir=self.directory) as work:
            run = subprocess.run(
                [sys.executable, "-B", "-m", "pytest", *options, *(tests or [str(self.checkout / "tests")])],
                cwd=work,
                env=self.environment,
                capture_output=True,
                text=True,
            )
        assert run.returncode in (0, 1), run.stdout + run.stderr  # 1: some failed
        return {line.removeprefix("PASSED ") for line in run.stdout.splitlines() if line.startswith("PASSED ")}


@pytest.mark.peer
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_pynsq_suite_passes_the_same_tests_with_ours_as_with_the_real_nsqd(
    checkout: Path, peer_binary: Callable[[str], Path], tmp_path: Path
) -> None:
    nsqlookupd = peer_binary("nsqlookupd")
    real = Suite(checkout, tmp_path / "real", [str(peer_binary("nsqd"))], nsqlookupd)
    ours = Suite(checkout, tmp_path / "ours", own_command(), nsqlookupd)
    passed_with_real, passed_with_ours = real.passed(), ours.passed()
    for _ in range(TRIES):
        if only_real := passed_with_real - passed_with_ours:
            passed_with_ours |= ours.passed(*only_real)
        if only_ours := passed_with_ours - passed_with_real:
            passed_with_real |= real.passed(*only_ours)
    assert passed_with_ours == passed_with_real
    assert len(passed_with_ours) > 50
