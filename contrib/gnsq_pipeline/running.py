"""Runs a streaming query or a job to its end, reports its progress, and stops it cleanly on Ctrl-C or SIGTERM.

A signal is noted, and answered by stopping the query or cancelling the job's tasks, not by an exception in the middle
of a call to the JVM. What a batch left unfinished is run again by the next run with the same checkpoint.
"""

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, TypeVar

import click

from gnsq_pipeline.archive import FileLog, only_writer, start
from gnsq_pipeline.errors import NotFound, PipelineError, Unfinished
from gnsq_pipeline.options import local_path
from gnsq_pipeline.progress import Lines, Progress, Summary, read_progress
from gnsq_pipeline.session import Stop, reason, spark_session
from pyspark_nsq.discovery import missing_topics
from pyspark_nsq.options import parse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

T = TypeVar("T")
Write = Callable[["DataFrame", int], None]

_STEP = 0.25  # seconds between two polls
_TASKS_LINE = 10.0  # seconds between two lines about the tasks of a job, on a terminal


def run_query(start: Callable[[], "StreamingQuery"], stop: Stop, *observers: Callable[[Progress], None]) -> bool:
    """Run a query until it ends or `stop` is set; whether it ended by itself. PipelineError if it fails.

    A signal to a process group also ends the JVM, and the query with it: after a signal it counts as unfinished, and
    later errors are not the query's.
    """
    query = start()
    seen: set[tuple[int, str]] = set()

    def report() -> None:
        recent = [] if query.lastProgress is None else query.recentProgress
        for progress in [read_progress(one.json) for one in recent if (one.batchId, one.timestamp) not in seen]:
            for observer in observers:
                observer(progress)
        seen.clear()
        seen.update((one.batchId, one.timestamp) for one in recent)

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


def run_stream(
    given: SimpleNamespace, source: dict[str, str], summary: Summary,
    transform: Callable[["SparkSession", "DataFrame"], "DataFrame"], partitions: tuple[str, ...] = (),
    show: Write | None = None,
) -> None:  # fmt: skip
    """Run to its end the query that writes what `transform` makes of the messages of `source` to the output or, without
    one, gives it to `show`; print the sums on stderr.

    `given` has the values of STREAM and SPARK. KeyboardInterrupt if Ctrl-C ended the query, Unfinished if SIGTERM
    stopped a run that is not continuous before everything was read.
    """
    if not given.allow_missing_topics:
        _require_topics(source)
    observers = [summary.add, *([] if given.progress == "none" else [Lines().add])]
    with contextlib.ExitStack() as stack:
        stack.enter_context(only_writer(given.output or given.checkpoint, local_path(given.checkpoint)))
        spark, stop = stack.enter_context(spark_session(given))
        if given.output is not None and given.table_format != "iceberg":
            FileLog(spark, given.output).check_writable(given.table_format)
        writer = transform(spark, spark.readStream.format("nsq").options(**source).load()).writeStream
        if given.continuous:
            writer = writer.trigger(processingTime=f"{round(given.trigger * 1000)} milliseconds")
        else:
            writer = writer.trigger(availableNow=True)
        if show is None or given.output is not None:
            begin = partial(start, writer, given.output, given.table_format, given.checkpoint, partitions)
        else:
            writer = writer.outputMode("update" if given.updates else "append").foreachBatch(stopping(show, stop))
            begin = partial(writer.option("checkpointLocation", given.checkpoint).start)
        if given.metrics_address is not None:
            from gnsq_pipeline.metrics import Metrics

            metrics = Metrics(summary.pipeline)
            stack.enter_context(metrics.serve(given.metrics_address))
            observers.append(metrics.add)
        summary.finished = run_query(begin, stop, *observers)
        if stop.signal and not summary.finished:
            summary.stopped_by = stop.signal.name
            if stop.signal is signal.SIGTERM and not given.continuous:
                raise Unfinished(f"stopped by SIGTERM before everything was read: {summary}")
        if given.progress != "none":
            end = f"stopped by {summary.stopped_by}" if summary.stopped_by else "all is read"
            click.echo(f"{end}: {summary}", err=True)
        if stop.signal is signal.SIGINT:
            raise KeyboardInterrupt


def _require_topics(source: dict[str, str]) -> None:
    """NotFound if no nsqd has one of the topics of a stream: its name is probably wrong."""
    if missing := missing_topics(parse(source, "readStream")):
        topics = f"topic {missing[0]!r}" if len(missing) == 1 else f"topics {', '.join(map(repr, missing))}"
        raise NotFound(f"no nsqd has the {topics}; --allow-missing-topics runs nevertheless")


def stopping(write: Write, stop: Stop) -> Write:
    """`write`, made for `foreachBatch`, whose errors are short after a signal.

    Stopping a query interrupts its batch, and Spark (4.3) matches the text of the error with a regular expression that
    overflows the stack of the query's thread if a Java stack trace is in it.
    """

    def written(frame: "DataFrame", batch: int) -> None:
        try:
            write(frame, batch)
        except Exception:
            if stop.signal:
                raise InterruptedError("the run was stopped") from None
            raise

    return written


def run_job(spark: "SparkSession", job: Callable[[], T], stop: Stop) -> T:
    """Run `job`, for its result. After a signal its Spark jobs are cancelled and KeyboardInterrupt is raised.

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

    watcher = threading.Thread(target=watch, name="watcher of the job")
    watcher.start()
    try:
        result = job()
    except Exception:
        if not stop.signal:
            raise
    finally:
        over.set()
        watcher.join()
    if stop.signal:
        raise KeyboardInterrupt
    return result
