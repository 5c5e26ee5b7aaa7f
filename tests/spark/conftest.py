"""Fixtures for the Spark side. Without the libraries that it needs (MISSING) all tests here are skipped,
without a Java that Spark can use those marked `spark`; where GNSQD_REQUIRE_PEERS=1 they fail instead."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest

from conftest import missing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark.command_line import Run

MISSING = [library for library in ("pyarrow", "pyspark") if importlib.util.find_spec(library) is None]


class _Unimportable(pytest.Module):
    """A file of tests that cannot be imported here."""

    def collect(self) -> NoReturn:
        missing(f"needs {' and '.join(MISSING)} (pip install '.[spark]')")


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    return _Unimportable.from_parent(parent, path=module_path) if MISSING else None


def pytest_itemcollected(item: pytest.Item) -> None:
    # The first test of a module may start a JVM, which takes long on a busy machine.
    if item.get_closest_marker("spark") and not item.get_closest_marker("timeout"):
        item.add_marker(pytest.mark.timeout(300))


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("spark"):
        from kit.spark_sessions import NoJava, java_home

        try:
            java_home()
        except NoJava as error:
            missing(str(error))


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undoes what `pyspark_nsq.errors.plain_errors` does to the environment of its process."""
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "")


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator["SparkSession"]:
    """Lends a local session of two cores, one for all tests; they are marked `spark`."""
    from kit.spark_sessions import CONF, start_session
    from kit.table_formats import conf

    directory = tmp_path_factory.mktemp("spark")
    session = start_session(directory, conf=CONF | conf(directory / "lake"))
    yield session
    session.stop()


@pytest.fixture
def run(spark: "SparkSession", monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> "Run":
    """Runs a command line of gnsq-pipeline in this process."""
    from spark.command_line import runner

    return runner(spark, monkeypatch, capfd)
