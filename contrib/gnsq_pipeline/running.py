"""Runs a streaming query or a job to its end, reports its progress, and stops it cleanly on Ctrl-C or SIGTERM.

A signal is noted, and answered by stopping the query or cancelling the job's tasks, not by an exception in the middle
of a call to the JVM. What a batch left unfinished is run again by the next run with the same checkpoint.
"""

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, TypeVar

import click

from gnsq_pipeline.errors import PipelineError, Unfinished
from gnsq_pipeline.parameters import StreamOptions
from gnsq_pipeline.progress import Lines, Progress, Summary, read_progress
from gnsq_pipeline.session import ended, reason

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

T = TypeVar("T")
Observer = Callable[[Progress], None]
Write = Callable[["DataFrame", int], None]

_STEP = 0.25  # seconds between two polls
_TASKS_LINE = 10.0  # seconds between two lines about the tasks of a job, on a terminal


class Stop:
    """Whether, and by which signal, the run was asked to end."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None

    def __bool__(self) -> bool:
        return self.signal is not None

    def hear(self, number: int, frame: FrameType | None = None) -> None:
        self.signal = signal.Signals(number)
        ended.set()


@contextlib.contextmanager
def stoppable() -> Iterator[Stop]:
    """Hear SIGINT and SIGTERM inside the block; for the main thread, once the session has set its own handlers."""
    stop = Stop()
    before = {number: signal.signal(number, stop.hear) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)


def run_query(start: Callable[[], "StreamingQuery"], stop: Stop, *observers: Observer) -> bool:
    """Run a query until it ends or `stop` is set; whether it ended by itself. PipelineError if it fails.

    A signal to a process group also ends the JVM, and the query with it: after a signal it counts as unfinished, and
    later errors are not the query's.
    """
    query = start()
    seen: set[tuple[int, str]] = set()

    def report() -> None:
        recent = [] if query.lastProgress is None else query.recentProgress
        new = [one for one in recent if (one.batchId, one.timestamp) not in seen]
        for progress in [read_progress(one.json) for one in new]:
            for observer in observers:
                observer(progress)
        seen.clear()
        seen.update((one.batchId, one.timestamp) for one in recent)

    try:
        while (active := query.isActive) and not stop:
            time.sleep(_STEP)
            report()
        error = query.exception()
        report()
        query.stop()
    except Exception:
        if stop:
            return False
        query.stop()
        raise
    if error is not None and not stop:
        raise PipelineError(reason(error))
    return error is None and not active and not stop


def follow(
    pipeline: str, writer: "DataStreamWriter", start: Callable[["DataStreamWriter"], "StreamingQuery"],
    options: StreamOptions, summary: Summary, stop: Stop,
) -> None:  # fmt: skip
    """Run the query that `start` makes of `writer` to its end, and print the sums on stderr. KeyboardInterrupt if that
    was Ctrl-C, Unfinished if SIGTERM stopped a run that is not continuous before everything was read."""
    observers: list[Observer] = [summary.add, *([] if options.progress == "none" else [Lines().add])]
    if options.continuous:
        writer = writer.trigger(processingTime=f"{round(options.trigger * 1000)} milliseconds")
    else:
        writer = writer.trigger(availableNow=True)
    with contextlib.ExitStack() as stack:
        if options.metrics_address is not None:
            from gnsq_pipeline.metrics import Metrics

            metrics = Metrics(pipeline)
            stack.enter_context(metrics.serve(options.metrics_address))
            observers.append(metrics.add)
        summary.finished = run_query(lambda: start(writer), stop, *observers)
    if stop.signal and not summary.finished:
        summary.stopped_by = stop.signal.name
        if stop.signal is signal.SIGTERM and not options.continuous:
            raise Unfinished(f"stopped by SIGTERM before everything was read: {summary}")
    if options.progress != "none":
        click.echo(
            f"{f'stopped by {summary.stopped_by}' if summary.stopped_by else 'all is read'}: {summary}", err=True
        )
    if stop.signal is signal.SIGINT:
        raise KeyboardInterrupt


def stopping(write: Write, stop: Stop) -> Write:
    """`write`, made for `foreachBatch`, whose errors are short once `stop` is set.

    Stopping a query interrupts its batch, and Spark (4.3) matches the text of the error with a regular expression that
    overflows the stack of the query's thread if a Java stack trace is in it.
    """

    def written(frame: "DataFrame", batch: int) -> None:
        try:
            write(frame, batch)
        except Exception:
            if stop:
                raise InterruptedError("the run was stopped") from None
            raise

    return written


def run_job(spark: "SparkSession", job: Callable[[], T], stop: Stop) -> T:
    """Run `job`, for its result. When `stop` is set its Spark jobs are cancelled and KeyboardInterrupt is raised.

    The job has the main thread, as only this one's writes find data sources in Python.
    """
    over = threading.Event()

    def watch() -> None:
        tracker, due = spark.sparkContext.statusTracker(), time.monotonic() + _TASKS_LINE
        while not over.wait(_STEP):
            if stop:
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
        if stop:
            raise KeyboardInterrupt from None
        raise
    finally:
        over.set()
        watcher.join()
    if stop:
        raise KeyboardInterrupt
    return result
