"""gnsqd installed from its sdist by other Pythons, as their users would do it, with and without a compiler.

That takes a minute or two for each and packages from PyPI, so it is done for the Pythons that are asked for:

    GNSQD_PYTHONS="3.12 3.13" make test TESTS=tests/behaviour/test_other_pythons.py
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gnsqd.version import VERSION
from kit.daemons import Daemon
from kit.nsq_client import Client

WANTED = os.environ.get("GNSQD_PYTHONS", "").split()
INSTALLED_BY = {"pyenv": ".pyenv/versions/{}.*/bin/python", "uv": ".local/share/uv/python/cpython-{}.*/bin/python"}


def find_python(version: str) -> Path:
    """A Python of this version, such as 3.12; skips the test where there is none."""
    home = Path.home()
    found = [path for pattern in INSTALLED_BY.values() for path in sorted(home.glob(pattern.format(version)))]
    if on_path := shutil.which(f"python{version}"):
        found.insert(0, Path(on_path))
    for python in found:
        # pyenv puts commands on the PATH that say that they are not there.
        shown = subprocess.run([python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"], capture_output=True)
        if shown.stdout.decode().strip() == version:
            return python
    pytest.skip(f"Python {version} is not installed")


@pytest.fixture(params=["3.11", "3.12", "3.13"])
def install(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Installs the sdist, with more variables for the build, into one environment; its directory of commands."""
    if request.param not in WANTED:
        pytest.skip(f"Python {request.param} is not in $GNSQD_PYTHONS")
    sdists = list(Path(sys.prefix, "dist").glob("gnsqd-*.tar.gz"))
    if not sdists:
        pytest.skip("not an installation (make test)")
    monkeypatch.delenv("PYTHONPATH", raising=False)
    commands = tmp_path / "venv" / "bin"
    subprocess.run([find_python(request.param), "-m", "venv", commands.parent], check=True)

    def run(**variables: str) -> Path:
        flags = ["--no-deps"] if (commands / "gnsqd").exists() else []
        command = [str(commands / "python"), "-m", "pip", "install", "--force-reinstall", *flags, str(sdists[0])]
        result = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True)
        assert result.returncode == 0, result.stderr
        return commands

    return run


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_it_serves_with_and_without_a_compiler(install: Callable[..., Path], tmp_path: Path) -> None:
    assert_serves(install(CC="/bin/false"), "plain", tmp_path / "plain")
    assert_serves(install(CFLAGS="-O0"), "compiled", tmp_path / "compiled")


def assert_serves(commands: Path, lane: str, data_path: Path) -> None:
    with Daemon([str(commands / "gnsqd")], data_path) as nsqd, Client(nsqd.tcp_address) as client:
        assert f" gnsqd v{VERSION} ({lane})\n" in nsqd.log()
        client.subscribe("t", "c", rdy=1)
        with Client(nsqd.tcp_address) as publisher:
            publisher.publish("t", b"from another Python")
        got = client.message()
        assert got.body == b"from another Python"
        client.command(b"FIN " + got.id)
        address = "{}:{}".format(*nsqd.http_address)
        stats = subprocess.run(
            [commands / "gnsqadmin", "stats", f"--nsqd-http-address={address}"], capture_output=True, text=True
        )
        assert (stats.returncode, stats.stderr) == (0, "")
        assert "t" in stats.stdout.split()
