"""Prometheus metrics of a streaming run, served by the run itself (`--metrics-address`)."""

import math
from datetime import datetime
from types import TracebackType

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from gnsq_pipeline.errors import PipelineError
from gnsq_pipeline.progress import Progress

_BUCKETS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class Metrics:
    """The metrics of the run of `pipeline`; each is named `gnsq_pipeline_*` and has the label `pipeline`."""

    def __init__(self, pipeline: str) -> None:
        self.registry = registry = CollectorRegistry()

        def counter(name: str, text: str) -> Counter:
            return Counter(f"gnsq_pipeline_{name}", text, ["pipeline"], registry=registry).labels(pipeline)

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"gnsq_pipeline_{name}", text, ["pipeline"], registry=registry).labels(pipeline)

        self._rows = counter("rows", "Rows read")
        self._batches = counter("batches", "Batches that had rows")
        self._late = counter("late_rows", "Rows that came too late for their window")
        self._seconds = Histogram(
            "gnsq_pipeline_batch_duration_seconds",
            "How long batches with rows took",
            ["pipeline"],
            registry=registry,
            buckets=_BUCKETS,
        ).labels(pipeline)
        self._rate = gauge("rows_per_second", "Rows per second of the last batch that had rows")
        self._lag = gauge("lag_messages", "Messages queued at the nsqds; NaN while unknown")
        self._state = gauge("state_rows", "Rows that Spark keeps for windows that are open")
        self._batch = gauge("last_batch", "Number of the last batch")
        self._when = gauge("last_progress_timestamp_seconds", "When Spark last reported progress")
        self._lag.set(math.nan)

    def add(self, progress: Progress) -> None:
        """Take one batch into account."""
        self._rows.inc(progress.rows)
        self._late.inc(progress.late_rows)
        if not progress.idle:
            self._batches.inc()
            self._seconds.observe(progress.seconds)
            self._rate.set(progress.rows_per_second)
        self._lag.set(math.nan if progress.lag is None else progress.lag)
        self._state.set(progress.state_rows)
        self._batch.set(progress.batch)
        self._when.set(datetime.fromisoformat(progress.when).timestamp())

    def serve(self, address: tuple[str, int]) -> "MetricsServer":
        """Answer scrapes at `address` until the block ends; PipelineError when it can't be listened to."""
        return MetricsServer(self.registry, address)


class MetricsServer:
    """An HTTP server for `registry`, on a thread of its own."""

    def __init__(self, registry: CollectorRegistry, address: tuple[str, int]) -> None:
        host, port = address
        try:
            self._server, self._thread = start_http_server(port, host, registry)
        except OSError as error:
            raise PipelineError(f"--metrics-address {host}:{port}: {error.strerror or error}") from None
        self.address: tuple[str, int] = (host, self._server.server_port)

    def __enter__(self) -> "MetricsServer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
