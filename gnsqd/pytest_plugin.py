"""Fixtures for tests with pytest, there wherever gnsqd is installed.

gnsqd           a daemon of the test's own, started before it and stopped after it
gnsqd_factory   starts more of them: `gnsqd_factory("--mem-queue-size=0")`

Flags for `gnsqd` come from the marker `gnsqd_flags`: `@pytest.mark.gnsqd_flags("--max-msg-size=2097152")`. Data and
log are in the test's tmp_path; when a test fails, the end of each log is shown.
"""

from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest

from gnsqd.testing import Daemon

_DAEMONS = pytest.StashKey[list[Daemon]]()
_SHOWN = 4000  # characters of a log


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "gnsqd_flags(*flags): command line of the daemon that the fixture gnsqd starts")


@pytest.fixture
def gnsqd_factory(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., Daemon]]:
    """Starts a daemon with the flags given, on free ports; all are stopped after the test."""
    daemons: list[Daemon] = []
    request.node.stash[_DAEMONS] = daemons

    def start(*flags: str) -> Daemon:
        daemon = Daemon(tmp_path / f"gnsqd-{len(daemons)}", flags)
        daemons.append(daemon)
        daemon.start()
        return daemon

    yield start
    for daemon in daemons:
        daemon.stop()


@pytest.fixture
def gnsqd(request: pytest.FixtureRequest, gnsqd_factory: Callable[..., Daemon]) -> Daemon:
    """A daemon that serves: `tcp_address`, `http_address`, `data_path`, `log()`, and `stop`, `start`, `kill`."""
    marker = request.node.get_closest_marker("gnsqd_flags")
    return gnsqd_factory(*(marker.args if marker else ()))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        for daemon in item.stash.get(_DAEMONS, []):
            report.sections.append((f"log of gnsqd in {daemon.data_path}", daemon.log()[-_SHOWN:]))
    return report
