"""Runs a streaming query or a job to its end, reports its progress, and stops it cleanly on Ctrl-C or SIGTERM.

A signal is noted, and answered by stopping the query or cancelling the job's tasks, not by an exception in the middle
of a call to the JVM. What a batch left unfinished is run again by the next run with the same checkpoint.
"""

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from gnsq_pipeline.errors import PipelineError
from gnsq_pipeline.progress import Progress, Totals, read_progress
from gnsq_pipeline.session import ended, reason

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

T = TypeVar("T")

_STEP = 0.25  # seconds between two looks


class Observer(Protocol):
    """What is called after each batch, and regularly in between."""

    def add(self, progress: Progress) -> None: ...

    def tick(self) -> None: ...


class Stop:
    """Whether, and by which signal, the run was asked to end."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None

    def __bool__(self) -> bool:
        return self.signal is not None

    def hear(self, number: int, frame: FrameType | None = None) -> None:
        self.signal = signal.Signals(number)
        ended.set()

    def raise_if_interrupted(self) -> None:
        """KeyboardInterrupt after Ctrl-C; a SIGTERM is an end like any other."""
        if self.signal is signal.SIGINT:
            raise KeyboardInterrupt


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


def run_query(start: Callable[[], "StreamingQuery"], stop: Stop, *observers: Observer) -> Totals:
    """Run a query until it ends or `stop` is set; PipelineError with the reason when it fails.

    Totals know whether it ended by itself. A signal to a process group also ends the JVM, and the query with it: after
    a signal it counts as unfinished, and later errors are not the query's.
    """
    totals = Totals()
    query = start()
    seen: set[tuple[int, str]] = set()

    def look() -> None:
        latest = query.lastProgress
        if latest is None or _key(latest) in seen:
            return
        recent = query.recentProgress
        for report in recent:
            if _key(report) not in seen:
                progress = read_progress(report.json)
                totals.add(progress)
                for observer in observers:
                    observer.add(progress)
        seen.clear()
        seen.update(_key(report) for report in recent)

    try:
        while (active := query.isActive) and not stop:
            time.sleep(_STEP)
            look()
            for observer in observers:
                observer.tick()
        totals.finished = not active and not stop
        error = query.exception()
        look()
        query.stop()
    except Exception:
        if not stop:
            query.stop()
            raise
        error, totals.finished = None, False
    if error is not None and not stop:
        raise PipelineError(reason(error))
    totals.finished = totals.finished and error is None
    return totals


Write = Callable[["DataFrame", int], None]


def stopping(write: Write, stop: Stop) -> Write:
    """`write`, made for `foreachBatch`, whose errors are short once `stop` is set.

    Stopping a query interrupts its batch, and Spark (4.3) matches the text of the error with a regular expression that
    overflows the stack of the query's thread when a Java stack trace is in it.
    """

    def written(frame: "DataFrame", batch: int) -> None:
        try:
            write(frame, batch)
        except Exception:
            if stop:
                raise InterruptedError("the run was stopped") from None
            raise

    return written


def _key(progress: Any) -> tuple[int, str]:
    return progress.batchId, progress.timestamp


def run_job(spark: "SparkSession", job: Callable[[], T], stop: Stop, tick: Callable[[int, int], None]) -> T:
    """Run `job`, for its result; meanwhile `tick` is called with the tasks that are done and that there are.

    When `stop` is set its Spark jobs are cancelled and KeyboardInterrupt is raised. The job has the main thread, as
    only this one's writes find data sources in Python.
    """
    ended = threading.Event()

    def watch() -> None:
        tracker = spark.sparkContext.statusTracker()
        while not ended.wait(_STEP):
            stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
            known = [stage for stage in stages if stage is not None]
            tick(sum(stage.numCompletedTasks for stage in known), sum(stage.numTasks for stage in known))
            if stop:
                spark.sparkContext.cancelAllJobs()

    watcher = threading.Thread(target=watch, name="watcher of the job")
    watcher.start()
    try:
        result = job()
    except Exception:
        if stop:
            raise KeyboardInterrupt from None
        raise
    finally:
        ended.set()
        watcher.join()
    if stop:
        raise KeyboardInterrupt
    return result
