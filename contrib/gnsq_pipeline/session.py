"""A Spark session for a command: what it needs, and its errors as one line."""

import contextlib
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import click

from gnsq_pipeline.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_AT_LEAST = 17
# What Delta Lake needs besides its package (docs.delta.io, "Set up Apache Spark with Delta Lake").
DELTA_CONF = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}


class Stop(threading.Event):
    """Set by the signal that asked the run to end: what the JVM and its workers print then is of no use."""

    def __init__(self) -> None:
        super().__init__()
        self.signal: signal.Signals | None = None

    def hear(self, number: int, frame: FrameType | None = None) -> None:
        self.signal = signal.Signals(number)
        self.set()

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Hear SIGINT and SIGTERM inside the block; for the main thread, once the session has set its own handlers."""
        before = {number: signal.signal(number, self.hear) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler if handler is not None else signal.SIG_DFL)


@contextlib.contextmanager
def spark_session(given: SimpleNamespace) -> Iterator[tuple["SparkSession", Stop]]:
    """A session that ends with the block, and whether a signal asked for that; `given` has the values of SPARK.

    A session that this process already has is used and not stopped. An exception of Spark that leaves the block is a
    PipelineError of one line, unless the command is verbose. PipelineError if Java is missing or Spark does not start.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    running = SparkSession.getActiveSession()
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ  # then spark-submit has started the JVM
    if not submitted and running is None:
        require_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    stop = Stop()
    try:
        with contextlib.nullcontext() if given.verbose else _filtered_stderr(stop):
            session = running or _start(given, submitted)
    except Exception as error:  # Py4JError, PySparkException, OSError: whatever starting a JVM can bring
        if given.verbose:
            raise
        raise PipelineError(f"Spark did not start: {reason(error)}") from None
    try:
        with stop.listening():
            yield session, stop
    except (PySparkException, Py4JError) as error:
        if given.verbose:
            raise
        raise PipelineError(reason(error)) from None
    finally:
        if running is None:
            with contextlib.suppress(Py4JError, OSError):  # of a JVM that a signal has ended as well
                session.stop()


def _start(given: SimpleNamespace, submitted: bool) -> "SparkSession":
    from pyspark.sql import SparkSession

    conf: dict[str, Any] = {"spark.sql.session.timeZone": "UTC"}
    if vars(given).get("table_format") == "delta":
        conf |= DELTA_CONF
    if not submitted:
        conf |= {"spark.master": "local[*]", "spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
        # Spark's default, 200, is for clusters: here it is 200 tasks for each window that is rolled up.
        conf["spark.sql.shuffle.partitions"] = str(max(2, os.cpu_count() or 1))
    if not given.verbose:
        conf["spark.log.level"] = "OFF"
        for name in ("SQLQueryContextLogger", "py4j"):  # these repeat what is raised
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
        logging.getLogger().addFilter(is_not_of_py4j)
    conf |= ({"spark.master": given.master} if given.master is not None else {}) | dict(given.conf)
    name = click.get_current_context().command_path
    return SparkSession.builder.appName(name).config(map=conf).getOrCreate()


def is_not_of_py4j(record: logging.LogRecord) -> bool:
    """Whether a record of the root logger is from elsewhere.

    py4j logs there, with a traceback, that the JVM ended during a call, and also raises it."""
    return record.module != "java_gateway"


# What a JVM prints at each start before it sets the log level, and the traces of errors that are also raised.
_UNWANTED = re.compile(
    rb"WARNING: Using incubator modules|Setting .*log level|To adjust logging level|Using Spark's default log4j"
    rb"|[0-9/]{8} [0-9:]{8} WARN "
    rb'|\tat |Caused by: |Exception in thread "stream execution'
)


@contextlib.contextmanager
def _filtered_stderr(stop: Stop) -> Iterator[None]:
    """Removes from the stderr of a JVM that is started in the block, then and later, unwanted lines, and everything
    after a signal."""
    reader, writer = os.pipe()
    stderr = os.dup(2)

    def pass_on() -> None:
        last = 0.0
        with open(reader, "rb") as lines:
            for line in lines:
                if _UNWANTED.match(line):
                    continue
                # A signal to the process group ends the JVM as well, perhaps before it is heard here.
                if not stop.wait(0.2 if time.monotonic() > last + 1 else 0):
                    os.write(stderr, line)
                last = time.monotonic()

    threading.Thread(target=pass_on, name="stderr of the JVM", daemon=True).start()
    os.dup2(writer, 2)  # the JVM inherits it
    os.close(writer)
    try:
        yield
    finally:
        os.dup2(stderr, 2)


def require_java() -> None:
    """PipelineError, unless there is a Java that Spark can run on."""
    needs = f"Spark needs Java {JAVA_AT_LEAST}"
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin" if home else None)
    if java is None:
        where = f"JAVA_HOME is {home}, and there is none there" if home else "there is none on PATH or in JAVA_HOME"
        raise PipelineError(f"{needs}: {where}")
    try:
        shown = subprocess.run([java, "-version"], capture_output=True, text=True, errors="replace", timeout=60).stderr
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PipelineError(f"{needs}: {java}: {error}") from None
    version = re.search(r'version "(?:1\.)?(\d+)', shown)  # Java 8 is 1.8
    if version is None:
        raise PipelineError(f"{needs}: {java} does not report its version")
    if int(version[1]) < JAVA_AT_LEAST:
        raise PipelineError(f"{needs} or later: {java} is Java {version[1]}")


_OF_JVM = re.compile(r"^(?:\tat |Caused by: |=== )", re.MULTILINE)  # what it adds to the traceback of Python code
_RAISED = re.compile(r"^(?:[A-Za-z_][\w.]*\.)?([A-Z]\w*): (.*)$", re.MULTILINE)
_STATE = re.compile(r"\s*SQLSTATE: \w+.*$")
_JAVA_CLASS = re.compile(r"^: (?:[\w$]+\.)+[\w$]+: (?=.)")
_PYTHON_ERROR = re.compile(r"^.*?\bpyspark_nsq\w*\.errors\.\w+: ")  # what Spark puts before the text of ours
_CONDITION = re.compile(r"^\[[A-Z0-9_.]+\] ")


def reason(error: BaseException) -> str:
    """What went wrong, in one line: of an error of Python code in Spark, the last line of its traceback."""
    text = str(error)
    for what, advice in _ADVICE:
        if what in text:
            return advice
    lines = text.strip().splitlines() or [type(error).__name__]
    trace = _OF_JVM.split(text.partition("Traceback (most recent call last):")[2], maxsplit=1)[0]
    raised = [None, *_RAISED.finditer(trace)][-1]  # of a chain of tracebacks
    what = lines[0]
    if raised is not None:
        what = raised[2] if raised[1] not in _BUILTIN else f"{raised[1]}: {raised[2]}"
    elif what.startswith("An error occurred while calling") and len(lines) > 1:  # of py4j: the next one names it
        what = _JAVA_CLASS.sub("", lines[1])
    what = _PYTHON_ERROR.sub("", _STATE.sub("", _CONDITION.sub("", what))).strip()
    return what or (raised[1] if raised is not None else type(error).__name__)


_CONCURRENT = (
    "another query uses the same checkpoint: one run at a time may write to an archive; run this one again later"
)
_NO_DELTA = (
    "the package of Delta Lake is missing: --conf spark.jars.packages=io.delta:delta-spark_4.2_2.13:4.4.0, or the "
    "version for your Spark"
)
_NO_ICEBERG = (
    "the package of Iceberg is missing: --conf spark.jars.packages=org.apache.iceberg:iceberg-spark-runtime-..."
)
# Errors whose own text does not help, by a part of it.
_ADVICE = (
    ("Multiple streaming jobs detected", _CONCURRENT),
    ("streaming queries are concurrently using", _CONCURRENT),
    ("java.lang.StackOverflowError", "Spark's driver ran out of stack: --conf spark.driver.extraJavaOptions=-Xss16m"),
    ("Failed to find the data source: delta", _NO_DELTA),
    ("delta.catalog.DeltaCatalog': cannot find the plugin", _NO_DELTA),
    ("Failed to find the data source: iceberg", _NO_ICEBERG),
)
_BUILTIN = frozenset({"AssertionError", "KeyError", "TypeError", "ValueError", "IndexError", "AttributeError"})
