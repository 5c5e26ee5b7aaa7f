"""The errors that end a run of gnsq-pipeline with one line on stderr; the exit codes are those of gnsqadmin."""

import re

import click

INTERRUPTED = 130


class PipelineError(click.ClickException):
    """Spark, a node or a disk refused; a new run continues after what was committed."""


class UsageError(PipelineError):
    """The value of an option cannot be used."""

    exit_code = 2


class Unfinished(PipelineError):
    """SIGTERM stopped a run before everything was read; a new run continues there."""

    exit_code = 3


class NotFound(PipelineError):
    """The input of the command does not exist."""

    exit_code = 4


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
