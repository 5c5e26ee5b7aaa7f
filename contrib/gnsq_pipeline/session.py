"""A Spark session for a command: what has to be there before, and its errors as one line."""

import contextlib
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from gnsq_pipeline.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_AT_LEAST = 17
_QUIET = """\
rootLogger.level = off
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d %p %c{1}: %m%n
"""


@dataclass(frozen=True)
class SessionSettings:
    """The command line's settings for Spark."""

    name: str = "gnsq-pipeline"
    master: str | None = None
    conf: dict[str, str] = field(default_factory=dict)
    verbose: bool = False


@contextlib.contextmanager
def spark_session(settings: SessionSettings) -> Iterator["SparkSession"]:
    """A session that ends with the block; PipelineError when Java is missing or Spark doesn't start.

    A session that this process has already is taken as it is, and goes on. An exception of Spark that leaves the block
    is a PipelineError of one line, unless the command is verbose.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    running = SparkSession.getActiveSession()
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ  # then spark-submit has started the JVM
    if not submitted and running is None:
        require_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    with tempfile.TemporaryDirectory(prefix="gnsq-pipeline-") as directory:
        with contextlib.nullcontext() if settings.verbose else _without_greetings():
            try:
                session = running or _start(_conf(settings, submitted, Path(directory)), settings)
            except Exception as error:  # Py4JError, PySparkException, OSError: whatever starting a JVM can bring
                if settings.verbose:
                    raise
                raise PipelineError(f"Spark did not start: {reason(error)}") from None
        try:
            yield session
        except (PySparkException, Py4JError) as error:
            if settings.verbose:
                raise
            raise PipelineError(reason(error)) from None
        finally:
            if running is None:
                with contextlib.suppress(Py4JError, OSError):  # of a JVM that a signal has ended as well
                    session.stop()


def _start(conf: dict[str, str], settings: SessionSettings) -> "SparkSession":
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(settings.name)
    for key, value in conf.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    if not settings.verbose:
        session.sparkContext.setLogLevel("OFF")
        for name in ("SQLQueryContextLogger", "py4j"):  # these repeat what is raised
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
        logging.getLogger().addFilter(is_not_of_py4j)
    return session


def is_not_of_py4j(record: logging.LogRecord) -> bool:
    """Whether a record of the root logger is from elsewhere.

    py4j logs there, with a traceback, that the JVM ended during a call, and also raises it."""
    return record.module != "java_gateway"


@contextlib.contextmanager
def _without_greetings() -> Iterator[None]:
    """Removes from the stderr of a JVM that is started in the block, then and later, what it prints every time, and
    everything after a signal."""
    reader, writer = os.pipe()
    stderr = os.dup(2)

    def pass_on() -> None:
        last = 0.0
        with open(reader, "rb") as lines:
            for line in lines:
                if line.startswith(_GREETINGS):
                    continue
                # A signal to the process group ends the JVM as well, perhaps before it is heard here.
                if not ended.wait(0.2 if time.monotonic() > last + 1 else 0):
                    os.write(stderr, line)
                last = time.monotonic()

    threading.Thread(target=pass_on, name="stderr of the JVM", daemon=True).start()
    os.dup2(writer, 2)  # the JVM inherits it
    os.close(writer)
    try:
        yield
    finally:
        os.dup2(stderr, 2)


ended = threading.Event()  # by a signal, which is reported: what the JVM and its workers print then is of no use
_GREETINGS = (
    b"WARNING: Using incubator modules",
    b"Setting default log level",
    b"To adjust logging level",
    b"Using Spark's default log4j profile",
)


def _conf(settings: SessionSettings, submitted: bool, directory: Path) -> dict[str, str]:
    conf = {"spark.sql.session.timeZone": "UTC"}
    if not submitted:
        conf |= {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
        # Spark's default, 200, is for clusters: here it is 200 tasks for each window that is rolled up.
        conf["spark.sql.shuffle.partitions"] = str(max(2, os.cpu_count() or 1))
        conf["spark.master"] = "local[*]"
        if not settings.verbose:
            log = directory / "log4j2.properties"
            log.write_text(_QUIET, "utf-8")
            conf["spark.driver.extraJavaOptions"] = f"-Dlog4j2.configurationFile={log.as_uri()}"
    if settings.master is not None:
        conf["spark.master"] = settings.master
    return conf | settings.conf


def require_java() -> None:
    """PipelineError, unless there is a Java that Spark can run on."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=str(Path(home) / "bin") if home else None)
    where = f"JAVA_HOME is {home}, and there is none there" if home else "there is none on PATH, nor is JAVA_HOME set"
    if java is None:
        raise PipelineError(f"Spark needs Java {JAVA_AT_LEAST}: {where}")
    try:
        shown = subprocess.run([java, "-version"], capture_output=True, text=True, errors="replace", timeout=60).stderr
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PipelineError(f"Spark needs Java {JAVA_AT_LEAST}: {java}: {error}") from None
    version = re.search(r'version "(\d+)(?:\.(\d+))?', shown)
    if version is None:
        raise PipelineError(f"Spark needs Java {JAVA_AT_LEAST}: {java} does not report its version")
    major = int(version[2]) if version[1] == "1" and version[2] else int(version[1])
    if major < JAVA_AT_LEAST:
        raise PipelineError(f"Spark needs Java {JAVA_AT_LEAST} or later: {java} is Java {major}")


_TRACEBACK = "Traceback (most recent call last):"
_RAISED = re.compile(r"^(?:[A-Za-z_][\w.]*\.)?([A-Z]\w*): (.*)$")
_STATE = re.compile(r"\s*SQLSTATE: \w+.*$")
_JAVA_CLASS = re.compile(r"^: (?:[\w$]+\.)+[\w$]+: (?=.)")
_CONDITION = re.compile(r"^\[[A-Z0-9_.]+\] ")


def reason(error: BaseException) -> str:
    """What went wrong, in one line: of an error of Python code in Spark, the last line of its traceback."""
    text = str(error)
    lines = text.strip().splitlines() or [type(error).__name__]
    raised = None
    for line in text.partition(_TRACEBACK)[2].splitlines():
        if line.startswith(("\tat ", "Caused by: ", "=== ")):  # here what the JVM has to add begins
            break
        raised = _RAISED.match(line) or raised  # the last one, of a chain of tracebacks
    if raised is not None:
        what = raised[2] if raised[1] not in _BUILTIN else f"{raised[1]}: {raised[2]}"
        return _STATE.sub("", _CONDITION.sub("", what)).strip() or raised[1]
    what = lines[0]
    if what.startswith("An error occurred while calling") and len(lines) > 1:  # of py4j: the next one names it
        what = _JAVA_CLASS.sub("", lines[1])
    return _STATE.sub("", _CONDITION.sub("", what)).strip() or type(error).__name__


_BUILTIN = frozenset({"AssertionError", "KeyError", "TypeError", "ValueError", "IndexError", "AttributeError"})
