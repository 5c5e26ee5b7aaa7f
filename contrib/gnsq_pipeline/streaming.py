"""A command's streaming query from its first to its last moment: displayed, measured, summarised, stopped."""

import contextlib
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING

from gnsq_pipeline.errors import Unfinished
from gnsq_pipeline.progress import Progress, Totals
from gnsq_pipeline.running import Stop, run_query
from gnsq_pipeline.summary import Summary

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter


class Counting:
    """Counts batches into metrics; time passing is nothing to it."""

    def __init__(self, add: Callable[[Progress], None]) -> None:
        self.add = add

    def tick(self) -> None:
        pass


def triggered(writer: "DataStreamWriter", continuous: bool, seconds: float) -> "DataStreamWriter":
    """`writer`, to run until all is read, or on and on with a batch every `seconds`."""
    if continuous:
        return writer.trigger(processingTime=f"{round(seconds * 1000)} milliseconds")
    return writer.trigger(availableNow=True)


def follow(
    pipeline: str,
    title: str,
    start: Callable[[], "StreamingQuery"],
    stop: Stop,
    progress: str,
    metrics_address: tuple[str, int] | None,
    summary: Summary,
    continuous: bool,
) -> Totals:
    """Run a query to its end, after a last line on stderr. KeyboardInterrupt when that was Ctrl-C, Unfinished when
    SIGTERM stopped a run that is not `continuous` before everything was read."""
    from gnsq_pipeline.display import count, note, shown, span

    with contextlib.ExitStack() as stack:
        observers = []
        if metrics_address is not None:
            from gnsq_pipeline.metrics import Metrics

            metrics = Metrics(pipeline)
            stack.enter_context(metrics.serve(metrics_address))
            observers.append(Counting(metrics.add))
        totals = run_query(start, stop, stack.enter_context(shown(title, progress)), summary, *observers)
    summary.ended(totals.finished, stop)
    rate = f", {count(totals.rows_per_second)} rows/s" if totals.rows else ""
    sums = f"{count(totals.rows)} rows in {count(totals.batches)} batches, {span(totals.seconds)}{rate}"
    if stop.signal is signal.SIGTERM and not totals.finished and not continuous:
        raise Unfinished(f"stopped by SIGTERM before everything was read: {sums}")
    if progress != "none":
        end = "all is read" if totals.finished or not stop.signal else f"stopped by {stop.signal.name}"
        note(f"{end}: {sums}")
    stop.raise_if_interrupted()
    return totals
