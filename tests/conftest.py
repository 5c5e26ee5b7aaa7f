"""Fixtures that every test may use: daemons, ours and the real one, behind the same names.

`nsqd`, `nsqd_factory` and `daemon_command` run a test once with gnsqd and once with the real nsqd (marker `peer`), so
that one assertion judges both; `gnsqd` and `gnsqd_factory` are for what only ours has. A test fails when its gnsqd
printed a traceback or did not obey SIGTERM, and shows the logs of its daemons when it fails for any reason.
"""

import gc
import os
import resource
import shutil
import signal
import subprocess
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import NoReturn

import pytest
from gevent.hub import Hub
from hypothesis import settings

from kit.daemons import PEERS, Instance, export_source_tree, own_command
from kit.object_store import FailingProxy, ObjectStore
from kit.traffic import DaemonFactory

_DAEMONS = pytest.StashKey[list[Instance]]()
_LOG_SHOWN = 20_000  # characters of each log in a failure report


# pytest.fail(), a time-out among them, reaches the waiting test from whatever greenlet raises it.
Hub.SYSTEM_ERROR = (*Hub.SYSTEM_ERROR, pytest.fail.Exception)

# What a test kills in its own process leaves files open, some 1,000 in all: more than many systems allow by default.
_soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (max(_soft, min(_hard, 10_240)), _hard))

# How long one example takes says nothing on a busy machine.
settings.register_profile("dev", deadline=None, max_examples=30)
settings.register_profile("ci", deadline=None)
settings.load_profile(os.environ.get("GNSQD_HYPOTHESIS_PROFILE", "dev"))


# These judge what is not code of the daemon: one lane is enough.
_ONE_LANE = ("benchmarks", "cli", "container", "documentation", "plugin", "web")
_COMPILED = ("container",)
# Kills, broken disks, damage, random sessions: many starts of a daemon each.
_SLOW = ("container", "faults", "model")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        parameters = (
            item.callspec.params.values() if isinstance(item, pytest.Function) and hasattr(item, "callspec") else ()
        )
        of_peer = item.get_closest_marker("peer") is not None and "nsqd" in parameters
        directory = item.path.relative_to(Path(__file__).parent).parts[0]
        if of_peer or directory in _ONE_LANE:
            item.add_marker(pytest.mark.one_lane)
        if directory in _ONE_LANE and directory not in _COMPILED:
            item.add_marker(pytest.mark.not_compiled)
        if directory in _SLOW:
            item.add_marker(pytest.mark.slow)


def pytest_configure(config: pytest.Config) -> None:
    export_source_tree()
    Instance.preloaded = True
    # A shell's background job ignores Ctrl-C, and so would all that it starts.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Freezes what collecting made, so that the collector need not look at it again and again."""
    gc.collect()
    gc.freeze()


def missing(reason: str) -> NoReturn:
    """Skips the test, or fails it where nothing may be missing."""
    if os.environ.get("GNSQD_REQUIRE_PEERS") == "1":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def _find_peer(name: str) -> Path:
    path = PEERS / name
    if not path.exists():
        missing(f"{name} is not built (make peers)")
    return path


@pytest.fixture(scope="session")
def peer_binary() -> Callable[[str], Path]:
    """Finds a program that `make peers` builds by name; skips the test where it is not built."""
    return _find_peer


@pytest.fixture
def object_store(tmp_path: Path) -> Iterator[ObjectStore]:
    """Serves an empty bucket until the end of the test, which has the marker `peer`."""
    with ObjectStore(_find_peer("versitygw"), tmp_path / "object-store") as store:
        yield store


@pytest.fixture
def failing_proxy(object_store: ObjectStore) -> Iterator[FailingProxy]:
    """Serves the same bucket, and fails when the test asks for it."""
    with FailingProxy(object_store) as proxy:
        yield proxy


@pytest.fixture(scope="session")
def nsqjs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copies the directory of nsqjs's drivers, and installs the packages of its lock file; for `node` to run."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        missing("nsqjs needs node and npm")
    directory = tmp_path_factory.mktemp("nsqjs") / "nsqjs"
    source = Path(__file__).parent / "conformance" / "nsqjs"
    shutil.copytree(source, directory, ignore=shutil.ignore_patterns("node_modules"))
    # Without the optional snappystream nothing native is built or downloaded.
    install = subprocess.run(
        [npm, "ci", "--ignore-scripts", "--omit=optional", "--no-audit", "--no-fund"],
        cwd=directory,
        capture_output=True,
        text=True,
    )
    assert install.returncode == 0, install.stderr
    return directory


@pytest.fixture(params=["gnsqd", pytest.param("nsqd", marks=pytest.mark.peer)])
def daemon_command(request: pytest.FixtureRequest) -> list[str]:
    """Returns the argv before the flags of the daemon under test."""
    return own_command() if request.param == "gnsqd" else [str(_find_peer("nsqd"))]


def _factory(request: pytest.FixtureRequest, command: list[str], tmp_path: Path) -> Iterator[DaemonFactory]:
    """Daemons of one test: each call starts one on a data path of its own, or on the `data_path` given."""
    daemons = request.node.stash.setdefault(_DAEMONS, [])
    mine: list[Instance] = []

    def start(*flags: str, data_path: Path | None = None) -> Instance:
        daemon = Instance(command, data_path or tmp_path / f"daemon-{len(daemons)}", *flags)
        daemons.append(daemon)
        mine.append(daemon)
        return daemon.start()

    yield start
    complaints = []
    for daemon in mine:
        try:
            daemon.close()
        except AssertionError as error:
            complaints.append(str(error))
        complaints += [
            f"traceback in {log.name}" for log in daemon.logs if "Traceback (most" in log.read_text("utf-8", "replace")
        ]
    assert not complaints, "\n".join(complaints)


@pytest.fixture
def nsqd_factory(request: pytest.FixtureRequest, daemon_command: list[str], tmp_path: Path) -> Iterator[DaemonFactory]:
    """Starts daemons of the kind under test, until the end of the test: `nsqd_factory("--mem-queue-size=0")`."""
    yield from _factory(request, daemon_command, tmp_path)


@pytest.fixture
def nsqd(nsqd_factory: DaemonFactory) -> Instance:
    return nsqd_factory()


@pytest.fixture
def gnsqd_factory(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[DaemonFactory]:
    """Starts gnsqd daemons, until the end of the test."""
    yield from _factory(request, own_command(), tmp_path)


@pytest.fixture
def gnsqd(gnsqd_factory: DaemonFactory) -> Instance:
    return gnsqd_factory()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        for daemon in item.stash.get(_DAEMONS, []):
            for log in daemon.logs:
                text = log.read_text("utf-8", "replace")[-_LOG_SHOWN:]
                report.sections.append((f"{log.name}: {' '.join([*daemon.command, *daemon.flags])}", text))
    return report
