"""Prometheus metrics of a streaming run, served by the run itself (`--metrics-address`)."""

import contextlib
import math
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from gnsq_pipeline.errors import PipelineError
from gnsq_pipeline.progress import Progress

_BUCKETS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class Metrics:
    """The metrics of the run of `pipeline`; each is named `gnsq_pipeline_*` and has the label `pipeline`."""

    def __init__(self, pipeline: str) -> None:
        self.registry = CollectorRegistry()

        def make(kind: type[Any], name: str, text: str, **more: Any) -> Any:
            return kind(name, text, ["pipeline"], "gnsq_pipeline", registry=self.registry, **more).labels(pipeline)

        self._rows = make(Counter, "rows", "Rows read")
        self._batches = make(Counter, "batches", "Batches that had rows")
        self._late = make(Counter, "late_rows", "Rows that came too late for their window")
        self._seconds = make(Histogram, "batch_duration_seconds", "How long batches with rows took", buckets=_BUCKETS)
        self._speed = make(Gauge, "rows_per_second", "Rows per second of the last batch that had rows")
        self._lag = make(Gauge, "lag_messages", "Messages queued at the nsqds; NaN while unknown")
        self._state = make(Gauge, "state_rows", "Rows that Spark keeps for windows that are open")
        self._last = make(Gauge, "last_batch", "Number of the last batch")
        self._when = make(Gauge, "last_progress_timestamp_seconds", "When Spark last reported progress")
        self._lag.set(math.nan)

    def add(self, progress: Progress) -> None:
        """Take one batch into account."""
        self._rows.inc(progress.rows)
        self._late.inc(progress.late_rows)
        if progress.rows:
            self._batches.inc()
            self._seconds.observe(progress.seconds)
            self._speed.set(progress.rows_per_second)
        self._lag.set(math.nan if progress.lag is None else progress.lag)
        self._state.set(progress.state_rows)
        self._last.set(progress.batch)
        self._when.set(datetime.fromisoformat(progress.when).timestamp())

    @contextlib.contextmanager
    def serve(self, address: tuple[str, int]) -> Iterator[int]:
        """Answer scrapes at `address` until the block ends, with the port; PipelineError if it is taken."""
        host, port = address
        try:
            server, thread = start_http_server(port, host, self.registry)
        except OSError as error:
            raise PipelineError(f"--metrics-address {host}:{port}: {error.strerror or error}") from None
        try:
            yield server.server_port
        finally:
            server.shutdown()
            server.server_close()
            thread.join()
