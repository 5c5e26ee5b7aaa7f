"""Before a session: Java, PySpark, errors as one line, and the values that options have."""

import os
import re
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import click
import pytest
from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.sql import SparkSession

from gnsq_pipeline import running
from gnsq_pipeline.errors import UsageError, reason
from gnsq_pipeline.options import ADDRESS, DURATION, INSTALL, MOMENT, POSITION, SETTING, checkpoint_of, nsq_options
from gnsq_pipeline.running import Stop, _filtered_stderr, spark_session

SOURCE_ERROR = """\
[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: [PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR] \
Failed when Python streaming data source perform latestOffset: Traceback (most recent call last):
  File "/x/runner.py", line 271, in main
    raise DiscoveryError(
    "no")
pyspark_nsq.errors.ConnectionLost: first

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/x/y.py", line 5, in f
pyspark_nsq.errors.DiscoveryError: no nsqlookupd answers: h:4161
 SQLSTATE: 38000 SQLSTATE: XXKST
=== Streaming Query ===
Identifier: [id = 1, runId = 2]
"""


DELTA = (
    "the package of Delta Lake is missing: --conf spark.jars.packages=io.delta:delta-spark_4.2_2.13:4.4.0, or the "
    "version for your Spark"
)
ICEBERG = "the package of Iceberg is missing: --conf spark.jars.packages=org.apache.iceberg:iceberg-spark-runtime-..."
OTHER_SPARK = "a package of spark.jars.packages is for another version of Spark: spark.md has a table of versions"
STACK = "Spark's driver ran out of stack: --conf spark.driver.extraJavaOptions=-Xss16m"
CONCURRENT = (
    "another query uses the same checkpoint: one run at a time may write to an archive; run this one again later"
)


@pytest.mark.parametrize(
    "text, reported",
    [
        ("[PATH_NOT_FOUND] Path does not exist: file:/x. SQLSTATE: 42K03;\n'Plan", "Path does not exist: file:/x."),
        ("\n[PARSE_SYNTAX_ERROR] Syntax error at end. SQLSTATE: 42601 (line 1)", "Syntax error at end."),
        ("An error occurred while calling o1.save.\n: org.x.SparkException: Could not\n\tat x", "Could not"),
        ("From the worker:\nTraceback (most recent call last):\n  File x\nKeyError: 'a'\n\tat x", "KeyError: 'a'"),
        ("An error occurred while calling o1.x.\n: java.lang.StackOverflowError\n\tat x", STACK),
        ("[STREAM_FAILED] x: Concurrent update to the log. Multiple streaming jobs detected for 21.", CONCURRENT),
        ("[STREAM_FAILED] x: Multiple streaming queries are concurrently using file:/c.\n\tat x", CONCURRENT),
        (
            "Cannot load catalog 'x' with org.apache.spark.sql.delta.catalog.DeltaCatalog': cannot find the plugin",
            DELTA,
        ),
        ("[DATA_SOURCE_NOT_FOUND] Failed to find the data source: delta. Make sure", DELTA),
        ("[DATA_SOURCE_NOT_FOUND] Failed to find the data source: iceberg. Make sure", ICEBERG),
        ("An error occurred while calling o1.save.\n: java.lang.NoSuchMethodError: 'void x'\n\tat x", OTHER_SPARK),
        ("[STREAM_FAILED] x: 'void org.apache.spark.sql.execution.LogicalRDD.<init>(scala.Option)'", OTHER_SPARK),
        ("[X] Failed to initialize Python data source writer: pyspark_nsq.errors.WriteError: no nsqd: h", "no nsqd: h"),
        (
            "[X] Failed when Python streaming source: pyspark_nsq.ranges.node.RangeUnreadable: 410 x SQLSTATE: 3",
            "410 x",
        ),
        ("plain", "plain"),
        ("", "RuntimeError"),
    ],
)
def test_an_error_of_spark_is_one_line(text: str, reported: str) -> None:
    assert reason(RuntimeError(text)) == reported


def test_of_an_error_in_python_code_it_is_the_last_line_of_the_last_traceback() -> None:
    text = SOURCE_ERROR.partition("The above")[2]
    assert reason(RuntimeError("Traceback (most recent call last):" + text)) == "no nsqlookupd answers: h:4161"
    assert reason(RuntimeError(SOURCE_ERROR)) == "no nsqlookupd answers: h:4161"


@pytest.mark.parametrize(
    "text, ns",
    [
        ("2026-01-15T12:00", 1768478400 * 10**9),
        ("2026-01-15T13:00:00.5+01:00", 1768478400 * 10**9 + 500_000_000),
        ("2026-01-15", 1768435200 * 10**9),
        ("20260115", 20260115 * 10**9),
        ("1768478400", 1768478400 * 10**9),
        ("1768478400.000000001", 1768478400 * 10**9 + 1),
    ],
)
def test_moments_are_utc_to_the_nanosecond(text: str, ns: int) -> None:
    assert MOMENT.convert(text, None, None) == ns


@pytest.mark.parametrize("text", ["", "noon", "2026-13-01", "12:00", "-5", "1.2.3"])
def test_an_invalid_moment_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="not a time"):
        MOMENT.convert(text, None, None)


def test_positions_are_numbers_times_and_ends() -> None:
    for text, position in (
        ("first", "first"),
        ("next", "next"),
        ("5001", "5001"),
        ("2026-01-15T12:00", "2026-01-15T12:00:00+00:00"),
        ("2026-01-15T13:00:00.5+01:00", "2026-01-15T13:00:00.500000+01:00"),
    ):
        assert POSITION.convert(text, None, None) == position
    ago = datetime.now(UTC) - datetime.fromisoformat(POSITION.convert("-1h", None, None))
    assert ago.total_seconds() == pytest.approx(3600, abs=60)
    for text in ("", "last", "-1", "-x", "12:00"):
        with pytest.raises(click.BadParameter, match="expected first, next, the number of a message"):
            POSITION.convert(text, None, None)


def test_other_values_are_written_as_options_of_the_source_are() -> None:
    assert DURATION.convert("90s", None, None) == 90
    assert ADDRESS.convert("[::1]:9000", None, None) == ("::1", 9000)
    assert SETTING.convert("a=b=c", None, None) == ("a", "b=c")
    for kind, text in ((DURATION, "soon"), (ADDRESS, "9000"), (SETTING, "novalue"), (SETTING, "=x")):
        with pytest.raises(click.BadParameter):
            kind.convert(text, None, None)


def options(**values: Any) -> SimpleNamespace:
    given = {"topics": ("a", "b"), "channel": "c", "nsqd_tcp_addresses": ("h:1",), "extra": ()}
    return SimpleNamespace(**(given | dict.fromkeys(("checkpoint", "begin", "end")) | values))


@pytest.mark.parametrize(
    "output, table_format, given, checkpoint",
    [
        ("/data/out", "parquet", {}, "/data/out/_checkpoint"),
        ("file:///data/o t", "parquet", {}, "/data/o t/_checkpoint"),
        ("hdfs://h/out/", "parquet", {}, "hdfs://h/out/_checkpoint"),
        ("/data/out", "delta", {}, "/data/out/_checkpoint/c"),
        ("hdfs://h/out", "delta", {"checkpoint": "/c"}, "/c"),
        ("db.table", "iceberg", {"checkpoint": "/c"}, "/c"),
    ],
)
def test_the_checkpoint_is_in_the_output_unless_given(
    output: str, table_format: str, given: dict[str, str], checkpoint: str
) -> None:
    assert checkpoint_of(options(output=output, table_format=table_format, **given)) == checkpoint


def test_parameters_are_options_of_the_source() -> None:
    assert nsq_options(options(max_messages_per_trigger=5), "readStream") == {
        "nsq.nsqd.tcp.addresses": "h:1",
        "subscribe": "a,b",
        "channel": "c",
        "maxMessagesPerTrigger": "5",
    }


def test_a_range_is_options_of_the_source() -> None:
    given = options(topics=("a",), begin="5", end="2026-01-15T12:00:00+00:00", extra=[("batchSize", "2")], topic="x")
    assert nsq_options(given, "read", "write") == {
        "nsq.nsqd.tcp.addresses": "h:1",
        "subscribe": "a",
        "channel": "c",
        "startingOffsets": '{"a": {"h:1": 5}}',
        "endingTimestamp": "2026-01-15T12:00:00+00:00",
    }
    assert nsq_options(given, "write", "read") == {"nsq.nsqd.tcp.addresses": "h:1", "batchSize": "2", "topic": "x"}
    for begin, expected in (("first", "earliest"), ("next", "latest")):
        assert nsq_options(options(begin=begin), "readStream")["startingOffsets"] == expected
    numbers = """startingOffsets='{"a": {"h:1": 5}, "b": {"h:1": 5}}'"""
    error = f"--from 5: each topic of each nsqd has numbers of its own, so use -o {numbers}"
    with pytest.raises(UsageError, match=re.escape(error)):
        nsq_options(options(begin="5"), "readStream")


def run(*words: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    path = os.pathsep.join(filter(None, sys.path))
    return subprocess.run(
        [sys.executable, "-m", "gnsq_pipeline", *words],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path, **environment},
        check=False,
    )


def test_without_java_a_run_ends_with_one_line(tmp_path: Path) -> None:
    ended = run("replay", str(tmp_path), "--dry-run", JAVA_HOME=str(tmp_path))
    assert ended.returncode == 1
    needed = "Java 17 or newer is needed, on PATH or in JAVA_HOME; --verbose shows more"
    assert ended.stderr.splitlines()[-1] == f"Error: Spark did not start: {needed}"


def test_without_pyspark_a_run_ends_with_one_line(tmp_path: Path) -> None:
    for library in ("pyarrow", "pyspark"):
        (tmp_path / f"{library}.py").write_text(f"raise ModuleNotFoundError('no', name='{library}')")
    path = os.pathsep.join(filter(None, [str(tmp_path), *sys.path]))
    ended = run("replay", str(tmp_path), "--dry-run", PYTHONPATH=path)
    assert ended.returncode == 1
    assert ended.stderr == f"Error: pyspark is not installed: {INSTALL}\n"
    assert run("archive", "--help", PYTHONPATH=path).returncode == 0


def test_what_a_jvm_prints_after_a_signal_is_not_passed_on(capfd: pytest.CaptureFixture[str]) -> None:
    stop = Stop()
    with _filtered_stderr(stop):
        jvm = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=2, text=True)
    assert jvm.stdin is not None
    with jvm, jvm.stdin:
        jvm.stdin.write("Setting default log level\n\tat a.b.C\nto be seen\n")
        jvm.stdin.flush()
        found, deadline = "", time.monotonic() + 30
        while "seen" not in found and time.monotonic() < deadline:
            found += capfd.readouterr().err
            time.sleep(0.01)
        stop.hear(signal.SIGTERM)
        jvm.stdin.write("after it\n")
    assert found + capfd.readouterr().err == "to be seen\n"


def test_session_whose_jvm_ends_meanwhile_stops_without_a_warning(
    monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    jvm = Mock(**{"_jsc.stop.side_effect": Py4JError("Answer from Java side is empty")})
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)  # which `stop` sets
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)
    monkeypatch.setattr(running, "_start", lambda given: Mock(stop=partial(SparkContext.stop, jvm)))
    with spark_session(SimpleNamespace(verbose=True)):
        pass
    assert list(recwarn) == []
