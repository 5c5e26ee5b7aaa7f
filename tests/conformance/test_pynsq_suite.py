"""What passes in pynsq's own test suite with the real nsqd passes with ours.

The suite is not in pynsq's package, so this runs where the environment variable GNSQD_PYNSQ_CHECKOUT names a checkout
of pynsq's repository. It starts `nsqd` and `nsqlookupd` from the PATH on their default ports, which must be free.

Some of its tests fail with today's Python and tornado whatever the daemon. Tests that read a compressed stream depend
on luck: pynsq's sockets break when what arrives decompresses to nothing yet, as a snappy chunk's header in a TLS record
of its own does, which is how the real nsqd sends it. So ours may pass more.
"""

import os
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from conformance.links import link_as_nsqd
from kit.daemons import own_command

PORTS = (4150, 4151, 4160, 4161)


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

    def passed(self) -> set[str]:
        """Which tests pass; a name is that of the file and what pytest puts behind it."""
        options = ["-q", "-rp", "--tb=no", "--show-capture=no", "-p", "no:cacheprovider"]
        with tempfile.TemporaryDirectory(dir=self.directory) as work:
            run = subprocess.run(
                [sys.executable, "-B", "-m", "pytest", *options, f"{self.checkout}/tests"],
                cwd=work,
                env=self.environment,
                capture_output=True,
                text=True,
            )
        assert run.returncode in (0, 1), run.stdout + run.stderr  # 1: some failed
        lines = [line.split(maxsplit=1) for line in run.stdout.splitlines()]
        return {re.sub(r"^[^:]*/", "", line[1]) for line in lines if line[:1] == ["PASSED"]}


@pytest.mark.peer
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_what_passes_with_the_real_nsqd_passes_with_ours(
    checkout: Path, peer_binary: Callable[[str], Path], tmp_path: Path
) -> None:
    nsqlookupd = peer_binary("nsqlookupd")
    real = Suite(checkout, tmp_path / "real", [str(peer_binary("nsqd"))], nsqlookupd)
    ours = Suite(checkout, tmp_path / "ours", own_command(), nsqlookupd)
    expected, passed = real.passed(), ours.passed()
    assert len(expected) > 50
    assert expected <= passed, expected - passed
