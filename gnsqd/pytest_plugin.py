"""Fixtures for tests with pytest, available wherever gnsqd is installed.

gnsqd           a daemon of the test's own, started before it and stopped after it
nsq             the same with nsqlookupd in its process
gnsqd_factory   starts more of them: `gnsqd_factory("--mem-queue-size=0")`
nsq_session     as `nsq`, one for the whole session, reset after each test that uses it

Flags for `gnsqd` and `nsq` come from the marker `gnsqd_flags`: `@pytest.mark.gnsqd_flags("--max-msg-size=2097152")`,
those of `nsq_session` from the fixture `nsq_session_flags`, which a project may define. Data and logs are in pytest's
temporary directories; when a test fails, the end of each log is shown.
"""

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gnsqd.testing import SHOWN, Daemon, StartFailed

_DAEMONS = pytest.StashKey[list[Daemon]]()  # of a test, and of the session


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "gnsqd_flags(*flags): command line of the daemon of the fixtures gnsqd and nsq")


@pytest.fixture
def gnsqd_factory(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., Daemon]]:
    """Starts a daemon with the flags given, with `lookupd=True` also nsqlookupd; all are stopped after the test."""
    daemons: list[Daemon] = []
    request.node.stash[_DAEMONS] = daemons

    def start(*flags: str, lookupd: bool = False) -> Daemon:
        __tracebackhide__ = True  # what does not start shows the line of the test
        try:
            daemon = Daemon(tmp_path / f"gnsqd-{len(daemons)}", flags, lookupd=lookupd)
            daemons.append(daemon)
            daemon.start()
        except StartFailed as error:
            raise error.with_traceback(None) from None
        return daemon

    yield start
    for daemon in daemons:
        daemon.stop()


@contextmanager
def _failing(name: str) -> Iterator[None]:
    """Makes a daemon that does not start a failure of a few lines, without those of a fixture."""
    try:
        yield
    except StartFailed as error:
        raise pytest.fail.Exception(f"{name}: {error}", pytrace=False) from None


def _start(request: pytest.FixtureRequest, factory: Callable[..., Daemon], *, lookupd: bool = False) -> Daemon:
    """Starts a daemon with the flags of the test's marker."""
    marker = request.node.get_closest_marker("gnsqd_flags")
    with _failing(request.node.name):
        return factory(*(marker.args if marker else ()), lookupd=lookupd)


@pytest.fixture
def gnsqd(request: pytest.FixtureRequest, gnsqd_factory: Callable[..., Daemon]) -> Daemon:
    """Starts a daemon: `tcp_address`, `http_address`, `data_path`, `log()`, and `stop`, `start`, `kill`."""
    return _start(request, gnsqd_factory)


@pytest.fixture
def nsq(request: pytest.FixtureRequest, gnsqd_factory: Callable[..., Daemon]) -> Daemon:
    """Starts a daemon with nsqlookupd in its process: `lookupd_tcp_address`, `lookupd_http_address`."""
    return _start(request, gnsqd_factory, lookupd=True)


@pytest.fixture(scope="session")
def nsq_session_flags() -> tuple[str, ...]:
    """Returns the flags of `nsq_session`."""
    return ()


@pytest.fixture(scope="session")
def nsq_session(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, nsq_session_flags: tuple[str, ...]
) -> Iterator[Daemon]:
    """Starts a daemon as `nsq`, on the same ports for the whole session: `reset` after each test that uses it."""
    with _failing("nsq_session_flags"):
        daemon = Daemon(tmp_path_factory.mktemp("nsq") / "data", nsq_session_flags, lookupd=True)
        daemon.start()
    request.node.stash[_DAEMONS] = [daemon]
    yield daemon
    del request.node.stash[_DAEMONS]
    daemon.kill()


def _session_daemons(item: pytest.Item) -> list[Daemon]:
    """Returns the daemon of `nsq_session`, if this test uses it and it runs."""
    return item.session.stash.get(_DAEMONS, []) if "nsq_session" in getattr(item, "fixturenames", ()) else []


def pytest_runtest_setup(item: pytest.Item) -> None:
    marker = item.get_closest_marker("gnsqd_flags")
    if marker is None:
        return
    if marker.kwargs:
        pytest.fail(f"{item.name}: gnsqd_flags has no argument {next(iter(marker.kwargs))!r}", pytrace=False)
    fixtures = {"gnsqd", "nsq", "gnsqd_factory", "nsq_session"}.intersection(getattr(item, "fixturenames", ()))
    if fixtures and not fixtures & {"gnsqd", "nsq"}:
        where = "its call" if "gnsqd_factory" in fixtures else "the fixture nsq_session_flags"
        text = f"gnsqd_flags is for gnsqd and nsq; {min(fixtures)} has its flags from {where}"
        pytest.fail(f"{item.name}: {text}", pytrace=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    yield
    for daemon in _session_daemons(item):
        daemon.reset()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        for daemon in [*item.stash.get(_DAEMONS, []), *_session_daemons(item)]:
            if (log := daemon.log()[-SHOWN:].strip()) not in report.longreprtext:  # as of one that did not start
                report.sections.append((f"log of gnsqd in {daemon.data_path}", log))
    return report
