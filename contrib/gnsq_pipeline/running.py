"""Starts Spark, and runs a streaming query or a job to its end: reports progress, and stops on Ctrl-C or SIGTERM.

A signal is noted, and answered by stopping the query or cancelling the job's tasks, not by an exception in the middle
of a call to the JVM. What a batch left unfinished is run again by the next run with the same checkpoint.
"""

import contextlib
import logging
import os
import re
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.util import find_spec
from types import FrameType, SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar

import click

from gnsq_pipeline.archive import check_writable, last_offset, only_writer, start, write
from gnsq_pipeline.errors import InputNotFound, PipelineError, Unfinished, UsageError, reason
from gnsq_pipeline.options import checkpoint_of, local_path, nsq_options
from gnsq_pipeline.progress import BatchLines, Summary, summarised
from pyspark_nsq.discovery import depths, find_nsqds
from pyspark_nsq.errors import DiscoveryError
from pyspark_nsq.options import Settings, parse
from pyspark_nsq.progress import Progress, QueryMetrics, read_progress

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

T = TypeVar("T")

_log = logging.getLogger(__name__)

_STEP = 0.25  # seconds between two polls
_TASKS_LINE = 10.0  # seconds between two lines about the tasks of a job, on a terminal
_AT_LEAST_ONCE = (
    "each message is delivered at least once, and after a crash some rows come twice; exactly once needs ranges, which "
    "gnsqd with --durability has"
)
# What Delta Lake needs besides its package (docs.delta.io, "Set up Apache Spark with Delta Lake").
DELTA_CONF = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}


class Stop:
    """The signal that asked the run to end, if one did: what the JVM and its workers print then is of no use."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None

    def hear(self, number: int, frame: FrameType | None = None) -> None:
        self.signal = signal.Signals(number)

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Hears SIGINT and SIGTERM inside the block; for the main thread, once the session has set its own handlers."""
        before = {number: signal.signal(number, self.hear) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


@contextlib.contextmanager
def spark_session(given: SimpleNamespace) -> Iterator[tuple["SparkSession", Stop]]:
    """Lends a session that ends with the block, and the signal that asked for that; `given` has the values of SPARK.

    A session that this process already has is used and not stopped. An exception of Spark that leaves the block is a
    PipelineError of one line, unless the command is verbose. Raises PipelineError if Spark does not start.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    session = running = SparkSession.getActiveSession()
    stop = Stop()
    try:
        if session is None:
            with contextlib.nullcontext() if given.verbose else _filtered_stderr(stop):
                session = _start(given)
        with stop.listening():
            yield session, stop
    except (PySparkException, Py4JError) as error:
        if given.verbose:
            raise
        raise PipelineError(("" if session else "Spark did not start: ") + reason(error)) from None
    finally:
        if session is not None and running is None:
            # A signal may have ended the JVM as well, or end it at this moment: PySpark warns of that.
            with contextlib.suppress(Py4JError, OSError), warnings.catch_warnings(action="ignore"):
                session.stop()


def _start(given: SimpleNamespace) -> "SparkSession":
    from pyspark.sql import SparkSession

    submitted = "PYSPARK_GATEWAY_PORT" in os.environ  # then spark-submit has started the JVM
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    conf: dict[str, Any] = {"spark.sql.session.timeZone": "UTC"}
    if vars(given).get("table_format") == "delta":
        conf |= DELTA_CONF
    if not submitted:
        conf |= {"spark.master": "local[*]", "spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
        # Spark's default, 200, is for clusters: here it is 200 tasks for each window that is rolled up.
        conf["spark.sql.shuffle.partitions"] = str(max(2, os.cpu_count() or 1))
    if not given.verbose:
        conf["spark.log.level"] = "OFF"
        logging.disable(logging.CRITICAL)  # pyspark and py4j log errors, with tracebacks, that they also raise
    conf |= ({"spark.master": given.master} if given.master is not None else {}) | dict(given.conf)
    name = click.get_current_context().command_path
    return SparkSession.builder.appName(name).config(map=conf).getOrCreate()


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
                if time.monotonic() > last + 1:  # a signal to the process group may reach the JVM earlier than this one
                    time.sleep(0.2)
                if not stop.signal:
                    os.write(stderr, line)
                last = time.monotonic()

    threading.Thread(target=pass_on, name="stderr of the JVM", daemon=True).start()
    os.dup2(writer, 2)  # the JVM inherits it
    os.close(writer)
    try:
        yield
    finally:
        os.dup2(stderr, 2)


def run_query(start: Callable[[], "StreamingQuery"], stop: Stop, *observers: Callable[[Progress], None]) -> bool:
    """Runs a query until it ends or `stop` is set; returns True if it ended by itself, and raises PipelineError if it
    failed.
    A signal to a process group also ends the JVM, and the query with it: after a signal it counts as unfinished, and
    later errors are not the query's.
    """
    query = start()
    seen: list[str] = []

    def report() -> None:
        nonlocal seen
        recent = [one.json for one in query.recentProgress]
        for progress in [read_progress(text) for text in recent if text not in seen]:
            for observer in observers:
                observer(progress)
        seen = recent

    try:
        while (active := query.isActive) and not stop.signal:
            time.sleep(_STEP)
            report()
        error = query.exception()
        report()
        query.stop()
    except Exception:
        if stop.signal:
            return False
        query.stop()
        raise
    if error is not None and not stop.signal:
        raise PipelineError(reason(error))
    return error is None and not active and not stop.signal


def missing_topics(settings: Settings) -> list[str]:
    """Returns the topics of a reader that no nsqd has, or its pattern, except those of which an nsqd that does not
    answer may know."""
    missing = []
    for topic in settings.topics or ("",):
        try:
            answers = [depths(settings, nsqd) for nsqd in find_nsqds(settings, topic)]
            if not any(at.topic_exists for each in answers for name, at in each.items() if topic in ("", name)):
                missing.append(topic or settings.topic_pattern)
        except DiscoveryError as error:
            _log.info("%s", error)
    return missing


def _can_drain() -> bool:
    """Returns True if a query can end behind its last batch, which needs Spark 4.2."""
    return find_spec("pyspark.sql.streaming.datasource") is not None


def run_stream(
    name: str, given: SimpleNamespace, transform: Callable[["DataFrame"], "DataFrame"], partitions: tuple[str, ...] = ()
) -> None:
    """Runs the query that writes what `transform` makes of the messages to the output, and writes its summary.

    `name` is that of the pipeline; `given` has the values of STREAM and SPARK. Raises UsageError if the options are
    wrong, InputNotFound if no nsqd has one of the topics: its name is probably wrong. Raises KeyboardInterrupt if
    Ctrl-C ended the query, Unfinished if SIGTERM stopped a run that is not continuous before everything was read.
    """
    output, table_format = given.output, given.table_format
    checkpoint = checkpoint_of(given)
    source = nsq_options(given, "readStream")
    with contextlib.ExitStack() as stack:
        summary = stack.enter_context(summarised(given.summary, Summary(name, given.topics, given.channel)))
        settings = parse(source, "readStream")
        _check_topics(given, settings)
        if path := local_path(checkpoint):
            stack.enter_context(only_writer(output, path))
        spark, stop = stack.enter_context(spark_session(given))
        if table_format != "iceberg":
            check_writable(spark, output, table_format)
        from pyspark_nsq.ranges.planning import why_deliveries

        reason_of_deliveries = why_deliveries(settings, last_offset(spark, checkpoint))
        source["mode"] = "deliveries" if reason_of_deliveries else "ranges"
        if reason_of_deliveries:
            if not given.continuous and not _can_drain():
                raise UsageError(
                    f"{reason_of_deliveries}: with Spark 4.1, --continuous is required, as a run that ends leaves its "
                    "messages to the next one, which reads them again"
                )
            click.echo(f"{reason_of_deliveries}: {_AT_LEAST_ONCE}", err=True)
        writer = transform(spark.readStream.format("nsq").options(**source).load()).writeStream
        if given.continuous:
            writer = writer.trigger(processingTime=f"{round(given.trigger * 1000)} milliseconds")
        else:
            writer = writer.trigger(availableNow=True)
        observers = [summary.add, BatchLines().add]
        if given.metrics_address is not None:
            metrics = QueryMetrics(name)
            stack.enter_context(metrics.serve(given.metrics_address, "--metrics-address"))
            observers.append(partial(metrics.add, name))
        begin = partial(start, writer, output, table_format, checkpoint, partitions)
        # With Spark 4.1, a query ends after one batch, which may be the one that the run before left unfinished.
        runs = 1 if given.continuous or _can_drain() else 2
        summary.finished = all(run_query(begin, stop, *observers) for _ in range(runs))
        if stop.signal and not summary.finished:
            summary.stopped_by = stop.signal.name
            if stop.signal is signal.SIGTERM and not given.continuous:
                raise Unfinished(f"stopped by SIGTERM before everything was read: {summary}")
        end = f"stopped by {summary.stopped_by}" if summary.stopped_by else "all is read"
        click.echo(f"{end}: {summary}", err=True)
        if stop.signal is signal.SIGINT:
            raise KeyboardInterrupt


def run_batch(
    name: str, given: SimpleNamespace, transform: Callable[["DataFrame"], "DataFrame"], partitions: tuple[str, ...]
) -> None:
    """Writes what `transform` makes of the messages of a range to the output, which is a new table, and a summary.

    `given` has the values of STREAM and SPARK. Raises UsageError, InputNotFound, KeyboardInterrupt as `run_stream`.
    """
    source = nsq_options(given, "read")
    with summarised(given.summary, Summary(name, given.topics)) as summary:
        _check_topics(given, parse(source, "read"))
        with spark_session(given) as (spark, stop):
            from pyspark.sql import Observation
            from pyspark.sql import functions as sf

            rows, began = Observation(), time.monotonic()
            frame = transform(spark.read.format("nsq").options(**source).load())
            frame = frame.observe(rows, sf.count(sf.lit(1)).alias("rows"))
            run_job(spark, lambda: write(frame, given.output, given.table_format, partitions), stop)
            summary.rows, summary.seconds = rows.get["rows"], time.monotonic() - began
            summary.batches, summary.finished = int(summary.rows > 0), True
            click.echo(f"all is read: {summary}", err=True)


def _check_topics(given: SimpleNamespace, settings: Settings) -> None:
    if not given.allow_missing_topics and (missing := missing_topics(settings)):
        topics = f"the topic {missing[0]!r}" if len(missing) == 1 else f"the topics {', '.join(map(repr, missing))}"
        if settings.topic_pattern:
            topics = f"a topic that matches {settings.topic_pattern!r}"
        raise InputNotFound(f"no nsqd has {topics}; --allow-missing-topics runs nevertheless")


def run_job(spark: "SparkSession", job: Callable[[], T], stop: Stop) -> T:
    """Runs `job`, and returns its result. After a signal its Spark jobs are cancelled and KeyboardInterrupt is raised.

    The job has the main thread, as only this one's writes find data sources in Python.
    """
    over = threading.Event()

    def watch() -> None:
        tracker, due = spark.sparkContext.statusTracker(), time.monotonic() + _TASKS_LINE
        while not over.wait(_STEP):
            if stop.signal:
                spark.sparkContext.cancelAllJobs()
            elif sys.stderr.isatty() and time.monotonic() > due:
                due = time.monotonic() + _TASKS_LINE
                stages = [stage for number in tracker.getActiveStageIds() if (stage := tracker.getStageInfo(number))]
                done = sum(stage.numCompletedTasks for stage in stages)
                click.echo(f"{done} of {sum(stage.numTasks for stage in stages)} tasks", err=True)

    with ThreadPoolExecutor(1) as watcher:
        watcher.submit(watch)
        try:
            result = job()
        except Exception:
            if not stop.signal:
                raise
        finally:
            over.set()
    if stop.signal:
        raise KeyboardInterrupt
    return result
