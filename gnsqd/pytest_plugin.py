"""Fixtures for tests with pytest, available wherever gnsqd is installed.

gnsqd           a daemon of the test's own, started before it and stopped after it
nsq             the same with nsqlookupd in its process
gnsqd_factory   starts more of them: `gnsqd_factory("--mem-queue-size=0")`
nsq_session     as `nsq`, one for the whole session, reset after each test that uses it

A project that configures its nsqd makes a fixture with the same flags and other settings (`testing.Settings`):

    from gnsqd.pytest_plugin import nsq_fixture
    nsq = nsq_fixture("--max-msg-size=2097152", config="nsqd.cfg", topics=["orders/billing"], lookupd=True)

Flags for `gnsqd` and `nsq` come from the marker `gnsqd_flags`: `@pytest.mark.gnsqd_flags("--max-msg-size=2097152")`,
those of `nsq_session` from the fixture `nsq_session_flags`, which a project may define. Data and logs are in pytest's
temporary directories; when a test fails, the queues of each daemon and the end of its log are shown.
"""

import sys
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal, Unpack

import pytest

from gnsqd.testing import SHOWN, Daemon, Settings, StartFailed

_DAEMONS = pytest.StashKey[list[Daemon]]()  # of a test, and of the session


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "gnsqd_flags(*flags): command line of the test's own daemon, as of the fixtures gnsqd and nsq"
    )


@pytest.fixture
def gnsqd_factory(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., Daemon]]:
    """Starts a daemon with the flags and `testing.Settings` given, such as `lookupd=True`; stops all after the test."""
    daemons: list[Daemon] = []
    request.node.stash[_DAEMONS] = daemons

    def start(*flags: str, **settings: Unpack[Settings]) -> Daemon:
        __tracebackhide__ = True  # what does not start shows the line of the test
        try:
            daemon = _daemon(request, tmp_path / f"gnsqd-{len(daemons)}", flags, settings)
            daemons.append(daemon)
            daemon.start()
        except StartFailed as error:
            raise error.with_traceback(None) from None
        return daemon

    yield start
    for daemon in daemons:
        daemon.stop()


def _daemon(request: pytest.FixtureRequest, path: Path, flags: Sequence[str], settings: Settings) -> Daemon:
    if config := settings.get("config"):
        settings = {**settings, "config": request.config.rootpath / config}
    return Daemon(path, flags, **settings)


@contextmanager
def _failing(name: str) -> Iterator[None]:
    """Makes a daemon that does not start a failure of a few lines, without those of a fixture."""
    try:
        yield
    except StartFailed as error:
        raise pytest.fail.Exception(f"{name}: {error}", pytrace=False) from None


def _start(request: pytest.FixtureRequest, *flags: str, **settings: Unpack[Settings]) -> Daemon:
    """Starts a daemon with these flags and those of the test's marker, of which the last ones count."""
    marker = request.node.get_closest_marker("gnsqd_flags")
    with _failing(request.node.name):
        start: Callable[..., Daemon] = request.getfixturevalue("gnsqd_factory")
        return start(*flags, *(marker.args if marker else ()), **settings)


def _share(request: pytest.FixtureRequest, what: str, flags: Sequence[str], settings: Settings) -> Iterator[Daemon]:
    """Starts a daemon for several tests, and yields it; `what` has its flags."""
    directory = request.getfixturevalue("tmp_path_factory").mktemp("nsq")
    with _failing(what):
        daemon = _daemon(request, directory / "data", flags, settings)
        daemon.start()
    shared = request.session.stash.setdefault(_DAEMONS, [])
    shared.append(daemon)
    yield daemon
    shared.remove(daemon)
    daemon.kill()


Scope = Literal["session", "package", "module", "class", "function"]


def nsq_fixture(*flags: str, scope: Scope = "function", **settings: Unpack[Settings]) -> Any:
    """Returns a fixture for a `conftest.py`: a daemon with these flags and settings. A relative path of `config` begins
    at pytest's root directory. With a scope other than function it is `reset` after each test that uses it."""

    @pytest.fixture(scope=scope)
    def daemon(request: pytest.FixtureRequest) -> Iterator[Daemon]:
        """Starts a daemon as this project configures it."""
        if scope == "function":
            yield _start(request, *flags, **settings)
        else:
            yield from _share(request, request.fixturename or "", flags, settings)

    return daemon


@pytest.fixture
def gnsqd(request: pytest.FixtureRequest) -> Daemon:
    """Starts a daemon: `tcp_address`, `http_address`, `data_path`, `log()`, and `stop`, `start`, `kill`."""
    return _start(request)


@pytest.fixture
def nsq(request: pytest.FixtureRequest) -> Daemon:
    """Starts a daemon with nsqlookupd in its process: `lookupd_tcp_address`, `lookupd_http_address`."""
    return _start(request, lookupd=True)


@pytest.fixture(scope="session")
def nsq_session_flags() -> tuple[str, ...]:
    """Returns the flags of `nsq_session`."""
    return ()


@pytest.fixture(scope="session")
def nsq_session(request: pytest.FixtureRequest, nsq_session_flags: tuple[str, ...]) -> Iterator[Daemon]:
    """Starts a daemon as `nsq`, on the same ports for the whole session: `reset` after each test that uses it."""
    yield from _share(request, "nsq_session_flags", nsq_session_flags, {"lookupd": True})


def _session_daemons(item: pytest.Item) -> list[Daemon]:
    """Returns the shared daemons that this test uses, directly or through other fixtures, and that run."""
    values = getattr(item, "funcargs", {}).values()
    return [daemon for daemon in item.session.stash.get(_DAEMONS, []) if any(value is daemon for value in values)]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None]:
    marker = item.get_closest_marker("gnsqd_flags")
    if marker is not None and marker.kwargs:
        pytest.fail(f"{item.name}: gnsqd_flags has no argument {next(iter(marker.kwargs))!r}", pytrace=False)
    yield
    if marker is None:
        return
    values, shared = getattr(item, "funcargs", {}), _session_daemons(item)
    names = [name for name, value in values.items() if isinstance(value, Daemon)]
    if all(values[name] in shared for name in names):
        for name in (*names, *{"gnsqd_factory"}.intersection(values)):
            where = {"gnsqd_factory": "its call", "nsq_session": "the fixture nsq_session_flags"}
            text = f"{name} has its flags from {where.get(name, 'nsq_fixture')}"
            pytest.fail(f"{item.name}: gnsqd_flags is for a daemon of one test; {text}", pytrace=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    yield
    for daemon in _session_daemons(item):
        daemon.reset()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        for daemon in _daemons(item):
            if not (log := daemon.log()[-SHOWN:].strip()) or log not in report.longreprtext:  # as of one not started
                report.sections.append(("queues and log of gnsqd", daemon.report()))
    return report


def _daemons(item: pytest.Item) -> list[Daemon]:
    """Returns the daemons of the test's fixtures, also of others that use `running`, and what gnsqd_factory started."""
    fixtures = [value for value in getattr(item, "funcargs", {}).values() if isinstance(value, Daemon)]
    return list(dict.fromkeys([*item.stash.get(_DAEMONS, []), *fixtures]))


@pytest.hookimpl(wrapper=True, optionalhook=True)
def pytest_timeout_set_timer(item: pytest.Item) -> Generator[None, object, object]:
    """Shows the same when pytest-timeout has no signals: its thread prints what is captured, and ends the process."""
    result = yield
    for timer in threading.enumerate():
        if isinstance(timer, threading.Timer) and any(argument is item for argument in timer.args):
            timer.function = partial(_report_and, timer.function, item)
    return result


def _report_and(end: Callable[..., object], item: pytest.Item, *args: object) -> None:
    sys.stdout.write("\n\n".join(daemon.report() for daemon in _daemons(item)) + "\n")
    end(*args)
