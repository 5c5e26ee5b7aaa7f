"""gnsq-pipeline as a process of its own: started as a command and by spark-submit."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from daemons import DEADLINE, Daemon, eventually
from gnsq_pipeline.archive import ArchiveSink
from gnsq_pipeline.files import LocalFiles
from spark.environments import clean_path, py_files
from spark.events import as_frame, generate
from spark.topics import publish

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

QUIET = ("--conf", "spark.driver.memory=1g", "--conf", "spark.sql.shuffle.partitions=2", "--master", "local[2]")


def file_of(module: str) -> Path:
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin)


def test_a_command_says_only_what_it_has_to_say_and_heeds_ctrl_c(
    spark_environment: dict[str, str], gnsqd: Daemon, tmp_path: Path
) -> None:
    publish(gnsqd, "orders", [b"%d" % number for number in range(100)])
    output = tmp_path / "output"
    nodes = ["--nsqd-tcp-address", "{}:{}".format(*gnsqd.tcp_address)]
    nodes += ["--nsqd-http-address", "{}:{}".format(*gnsqd.http_address)]
    words = ["--topic", "orders", "--channel", "a", *nodes, "--continuous", "--trigger", "100ms", *QUIET]
    errors = tmp_path / "stderr"
    with errors.open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "gnsq_pipeline", "archive", *words, output],
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env={**spark_environment, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            start_new_session=True,
        )
    try:
        # Spark reports a batch some time after its commit.
        eventually(lambda: process.poll() is not None or "\n" in errors.read_text(), timeout=200)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does it: to the JVM and its Python workers too
        out, _ = process.communicate(timeout=2 * DEADLINE)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    err = errors.read_text()
    assert process.returncode == 130, err
    assert out == ""
    batch, end = err.rstrip("\n").split("\n")  # a line break follows the ^C of a terminal
    assert "  batch 0  100 rows  " in batch
    assert end.startswith("stopped by SIGINT: 100 rows in 1 batches, ")


@pytest.mark.parametrize("send", [os.kill, os.killpg], ids=["the command", "the JVM as well"])
def test_a_drain_that_sigterm_stops_says_in_one_line_that_it_is_unfinished(
    spark_environment: dict[str, str], gnsqd: Daemon, tmp_path: Path, send: Callable[[int, int], None]
) -> None:
    for _ in range(20):
        publish(gnsqd, "orders", [b"%d" % number for number in range(1000)])
    nodes = ["--nsqd-tcp-address", "{}:{}".format(*gnsqd.tcp_address)]
    nodes += ["--nsqd-http-address", "{}:{}".format(*gnsqd.http_address)]
    words = ["--topic", "orders", "--channel", "a", *nodes, "--max-messages", "1000", *QUIET]
    errors, summary = tmp_path / "stderr", tmp_path / "summary.json"
    with errors.open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "gnsq_pipeline", "archive", *words, "--summary", summary, tmp_path / "output"],
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            env={**spark_environment, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            start_new_session=True,
        )
    try:
        eventually(lambda: process.poll() is not None or "\n" in errors.read_text(), timeout=200)
        send(process.pid, signal.SIGTERM)
        process.wait(timeout=4 * DEADLINE)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert process.returncode == 3, errors.read_text()
    lines = [line for line in errors.read_text().splitlines() if "  batch " not in line]
    assert len(lines) == 1, lines
    assert lines[0].startswith("Error: stopped by SIGTERM before everything was read: ")
    reported = json.loads(summary.read_text())
    assert (reported["finished"], reported["stopped_by"], reported["exit_code"]) == (False, "SIGTERM", 3)
    assert 0 < reported["rows"] < 20_000


def test_spark_submit_runs_it_with_what_py_files_brings(
    spark: "SparkSession", spark_environment: dict[str, str], tmp_path: Path
) -> None:
    events = generate(60)
    ArchiveSink(LocalFiles(tmp_path / "archive")).write(as_frame(spark, events), "stream", 0)
    submit = file_of("pyspark").parent / "bin" / "spark-submit"
    packages = py_files(tmp_path / "gnsq.zip")
    command: list[str | Path] = [submit, *QUIET, "--conf", "spark.ui.enabled=false", "--py-files", packages]
    words: list[str | Path] = ["rollup", "--from-archive", tmp_path / "archive", "--window", "1d", "--json"]
    ended = subprocess.run(
        [*command, file_of("gnsq_pipeline.__main__"), *words],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**clean_path(), **{name: value for name, value in spark_environment.items() if name != "PYTHONPATH"}},
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    rows = [json.loads(line) for line in ended.stdout.splitlines()]
    assert {row["topic"]: row["messages"] for row in rows} == {
        topic: sum(event.topic == topic for event in events) for topic in ("orders", "clicks")
    }
