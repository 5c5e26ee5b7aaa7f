"""gnsq-pipeline as a process of its own: started as a command and by spark-submit."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import gnsq_pipeline
from gnsq_pipeline.archive import read_archive
from kit.daemons import DEADLINE, eventually
from kit.spark_cluster import spark_home
from kit.spark_sessions import QUICK_JAVA, spark_environment
from kit.spark_topics import bodies
from kit.traffic import DaemonFactory, publish
from spark.command_line import Run, sources
from spark.environments import zip_recipe
from spark.events import archive, generate

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

SETTINGS = {
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.defaultJavaOptions": QUICK_JAVA,
}
QUIET = ("--master", "local[2]", *(word for key, value in SETTINGS.items() for word in ("--conf", f"{key}={value}")))


def stopped(words: Sequence[str], errors: Path, number: signal.Signals) -> int:
    """Starts a command, and after its first batch sends a signal to it, its JVM and its workers, as a terminal does;
    returns its exit code."""
    with errors.open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "gnsq_pipeline", *words, *QUIET],
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            env={**spark_environment(), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            start_new_session=True,
        )
    try:
        # Spark reports a batch some time after its commit.
        eventually(lambda: process.poll() is not None or "\n" in errors.read_text(), timeout=200)
        os.killpg(process.pid, number)
        return process.wait(timeout=4 * DEADLINE)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def test_an_archive_has_each_message_once_after_runs_that_signals_stopped(
    spark: "SparkSession", run: Run, gnsqd_factory: DaemonFactory, tmp_path: Path
) -> None:
    """Prints in each run only a line for each batch, and one about its end."""
    gnsqd, published = gnsqd_factory("--durability=process"), bodies(15_000)
    publish(gnsqd, "orders", *published)
    output, summary, errors = tmp_path / "output", tmp_path / "summary.json", tmp_path / "stderr"
    words = ["archive", "--topic", "orders", "--channel", "a", *sources(gnsqd), "--summary", str(summary), str(output)]
    for extra, number, status, end in (
        (["--continuous", "--trigger", "100ms"], signal.SIGINT, 130, "stopped by SIGINT: "),
        ([], signal.SIGTERM, 3, "Error: stopped by SIGTERM before everything was read: "),
    ):
        assert stopped([*words, "--max-messages", "500", *extra], errors, number) == status, errors.read_text()
        *lines, last = errors.read_text().rstrip("\n").split("\n")  # a line break follows the ^C of a terminal
        assert lines
        assert all(re.search(r"  batch \d+  500 rows  ", line) for line in lines), lines
        assert last.startswith(end)
        reported = json.loads(summary.read_text())
        assert (reported["finished"], reported["stopped_by"], reported["exit_code"]) == (False, number.name, status)
        assert 0 < reported["rows"] < 15_000
    assert run(*words).status == 0
    assert json.loads(summary.read_text())["finished"]
    rows = read_archive(spark, str(output)).select("value").collect()
    assert sorted(bytes(row.value) for row in rows) == sorted(published)


def test_spark_submit_runs_it_with_what_py_files_brings(spark: "SparkSession", tmp_path: Path) -> None:
    events = generate(60)
    archive(spark, tmp_path / "archive", events)
    zip_recipe(tmp_path)
    command: list[str | Path] = [spark_home() / "bin" / "spark-submit", *QUIET, "--conf", "spark.ui.enabled=false"]
    command += ["--py-files", tmp_path / "gnsqd.zip"]
    words: list[str | Path] = ["rollup", "--from-archive", tmp_path / "archive", "--window", "1d", "--json"]
    ended = subprocess.run(
        [*command, Path(gnsq_pipeline.__file__).with_name("__main__.py"), *words],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={name: value for name, value in spark_environment().items() if name != "PYTHONPATH"},
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    rows = [json.loads(line) for line in ended.stdout.splitlines()]
    assert {row["topic"]: row["messages"] for row in rows} == {
        topic: sum(event.topic == topic for event in events) for topic in ("orders", "clicks")
    }
