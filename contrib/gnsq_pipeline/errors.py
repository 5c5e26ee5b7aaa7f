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


class InputNotFound(PipelineError):
    """The input of the command does not exist."""

    exit_code = 4


# Errors whose own text does not help: a pattern of it, and what is reported instead.
_ADVICE = (
    ("JAVA_GATEWAY_EXITED", "Java 17 or newer is needed, on PATH or in JAVA_HOME; --verbose shows more"),
    (
        "Multiple streaming jobs detected|streaming queries are concurrently using",
        "another query uses the same checkpoint: one run at a time may write to an archive; run this one again later",
    ),
    ("java.lang.StackOverflowError", "Spark's driver ran out of stack: --conf spark.driver.extraJavaOptions=-Xss16m"),
    (
        "find the data source: delta|delta.catalog.DeltaCatalog': cannot find the plugin",
        "the package of Delta Lake is missing: --conf spark.jars.packages=io.delta:delta-spark_4.2_2.13:4.4.0, or the "
        "version for your Spark",
    ),
    (
        "find the data source: iceberg",
        "the package of Iceberg is missing: --conf spark.jars.packages=org.apache.iceberg:iceberg-spark-runtime-...",
    ),
    (
        r"NoSuchMethodError|'\S+ org\.apache\.spark\.[\w.$<>]+\(",  # only the method, if a stream fails
        "a package of spark.jars.packages is for another version of Spark: spark.md has a table of versions",
    ),
)
_OF_JVM = re.compile(r"^(?:\tat |Caused by: |=== )", re.MULTILINE)  # what it adds to the traceback of Python code
_RAISED = re.compile(r"^(?:[A-Za-z_][\w.]*\.)?([A-Z]\w*): (.*)$", re.MULTILINE)
_BUILTIN = frozenset({"AssertionError", "KeyError", "TypeError", "ValueError", "IndexError", "AttributeError"})
# What Spark and py4j put around a text: before that of an error of pyspark_nsq, a condition, a Java class, a state.
_AROUND = re.compile(
    r"^.*?\bpyspark_nsq\w*(?:\.\w+)+: |^\[[A-Z0-9_.]+\] |^: (?:[\w$]+\.)+[\w$]+: (?=.)|\s*SQLSTATE: \w+.*$"
)


def reason(error: BaseException) -> str:
    """Returns in one line what went wrong: of Python code in Spark, the last line of its traceback."""
    text = str(error).strip()
    for pattern, advice in _ADVICE:
        if re.search(pattern, text):
            return advice
    name, (what, *more) = type(error).__name__, text.splitlines() or [""]
    trace = _OF_JVM.split(text.partition("Traceback (most recent call last):")[2], maxsplit=1)[0]
    if raised := _RAISED.findall(trace):
        name, what = raised[-1]  # of a chain of tracebacks
        if name in _BUILTIN:
            what = f"{name}: {what}"
    elif what.startswith("An error occurred while calling") and more:  # of py4j: the next line names it
        what = more[0]
    return _AROUND.sub("", what).strip() or name
