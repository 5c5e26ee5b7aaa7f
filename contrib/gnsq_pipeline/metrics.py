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
_COUNTERS = {
    "rows": "Rows read",
    "batches": "Batches that had rows",
    "late_rows": "Rows that came too late for their window",
}
_GAUGES = {
    "rows_per_second": "Rows per second of the last batch that had rows",
    "lag_messages": "Messages queued at the nsqds; NaN while unknown",
    "state_rows": "Rows that Spark keeps for windows that are open",
    "last_batch": "Number of the last batch",
    "last_progress_timestamp_seconds": "When Spark last reported progress",
}


class Metrics:
    """The metrics of the run of `pipeline`; each is named `gnsq_pipeline_*` and has the label `pipeline`."""

    def __init__(self, pipeline: str) -> None:
        self.registry = CollectorRegistry()
        common: dict[str, Any] = {"labelnames": ["pipeline"], "namespace": "gnsq_pipeline", "registry": self.registry}
        self._counters = {name: Counter(name, text, **common).labels(pipeline) for name, text in _COUNTERS.items()}
        self._gauges = {name: Gauge(name, text, **common).labels(pipeline) for name, text in _GAUGES.items()}
        seconds = Histogram("batch_duration_seconds", "How long batches with rows took", buckets=_BUCKETS, **common)
        self._seconds = seconds.labels(pipeline)
        self._gauges["lag_messages"].set(math.nan)

    def add(self, progress: Progress) -> None:
        """Take one batch into account."""
        self._counters["rows"].inc(progress.rows)
        self._counters["late_rows"].inc(progress.late_rows)
        if progress.rows:
            self._counters["batches"].inc()
            self._seconds.observe(progress.seconds)
            self._gauges["rows_per_second"].set(progress.rows_per_second)
        self._gauges["lag_messages"].set(math.nan if progress.lag is None else progress.lag)
        self._gauges["state_rows"].set(progress.state_rows)
        self._gauges["last_batch"].set(progress.batch)
        self._gauges["last_progress_timestamp_seconds"].set(datetime.fromisoformat(progress.when).timestamp())

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
