"""Progress that Spark reports of a streaming query: as values, and as metrics for Prometheus. Needs no Spark."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from gnsqd.shared.errors import reason_of
from pyspark_nsq.errors import NsqSourceError
from pyspark_nsq.nodes import Key

_BUCKETS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)  # of seconds that a batch takes


@dataclass(frozen=True)
class Progress:
    """One batch, or one poll that found nothing to do."""

    batch: int
    when: str  # ISO 8601, UTC
    rows: int
    seconds: float
    unread: Mapping[Key, int] | None  # messages queued at the nsqds; None if the source does not report it
    late_rows: int = 0  # too late for their window
    state_rows: int = 0
    in_flight: Mapping[Key, int] = field(default_factory=dict)  # messages, when the batch was planned

    @property
    def lag(self) -> int | None:
        return None if self.unread is None else sum(self.unread.values())

    @property
    def rows_per_second(self) -> float:
        return self.rows / self.seconds if self.seconds > 0 else 0.0


def read_progress(text: str) -> Progress:
    """Returns the progress of a query, from Spark's JSON."""
    document: dict[str, Any] = json.loads(text)
    operators = document.get("stateOperators") or []
    offsets = [source.get("latestOffset") for source in document.get("sources") or []]
    reports = [offset for offset in offsets if isinstance(offset, Mapping) and "unread" in offset]

    def by_nsqd(figure: str) -> Mapping[Key, int]:  # sources of several channels may read one topic
        found: dict[Key, int] = {}
        for report in reports:
            for topic, nsqds in report.get(figure, {}).items():
                for nsqd, count in nsqds.items():
                    found[topic, nsqd] = found.get((topic, nsqd), 0) + count
        return found

    return Progress(
        batch=document["batchId"],
        when=document["timestamp"],
        rows=document.get("numInputRows") or 0,
        seconds=(document.get("batchDuration") or 0) / 1000,
        unread=by_nsqd("unread") if reports else None,
        late_rows=sum(operator.get("numRowsDroppedByWatermark") or 0 for operator in operators),
        state_rows=sum(operator.get("numRowsTotal") or 0 for operator in operators),
        in_flight=by_nsqd("in_flight"),
    )


class QueryMetrics:
    """The metrics of pipelines, or of queries; each is named `gnsq_pipeline_*` and has the label `pipeline`.

    The counters of `pipelines` begin with 0; those of others, with their first batch.
    """

    def __init__(self, *pipelines: str) -> None:
        from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

        self.registry = CollectorRegistry()
        self._families: list[Any] = []

        def make(kind: type[Any], name: str, text: str, *labels: str, **more: Any) -> Any:
            family = kind(name, text, ["pipeline", *labels], "gnsq_pipeline", registry=self.registry, **more)
            self._families.append(family)
            return family

        place = "topic", "nsqd"
        self._rows = make(Counter, "rows", "Rows read")
        self._batches = make(Counter, "batches", "Batches that had rows")
        self._late = make(Counter, "late_rows", "Rows that came too late for their window")
        self._seconds = make(Histogram, "batch_duration_seconds", "How long batches with rows took", buckets=_BUCKETS)
        for pipeline in pipelines:
            for family in self._families:
                family.labels(pipeline)
        self._speed = make(Gauge, "rows_per_second", "Rows per second of the last batch that had rows")
        self._lag = make(Gauge, "lag_messages", "Messages queued at the nsqd", *place)
        self._in_flight = make(Gauge, "in_flight_messages", "Messages in flight when the batch was planned", *place)
        self._places: dict[Any, dict[str, set[Key]]] = {self._lag: {}, self._in_flight: {}}  # with series, by pipeline
        self._state = make(Gauge, "state_rows", "Rows that Spark keeps for windows that are open")
        self._last = make(Gauge, "last_batch", "Number of the last batch")
        self._when = make(Gauge, "last_progress_timestamp_seconds", "When Spark last reported progress")

    def add(self, pipeline: str, progress: Progress) -> None:
        """Takes one batch into account."""
        self._rows.labels(pipeline).inc(progress.rows)
        self._late.labels(pipeline).inc(progress.late_rows)
        if progress.rows:
            self._batches.labels(pipeline).inc()
            self._seconds.labels(pipeline).observe(progress.seconds)
            self._speed.labels(pipeline).set(progress.rows_per_second)
        for family, counts in (self._lag, progress.unread or {}), (self._in_flight, progress.in_flight):
            for key, count in counts.items():
                family.labels(pipeline, *key).set(count)
            for key in self._places[family].get(pipeline, set()) - counts.keys():
                family.remove(pipeline, *key)
            self._places[family][pipeline] = set(counts)
        self._state.labels(pipeline).set(progress.state_rows)
        self._last.labels(pipeline).set(progress.batch)
        self.alive(pipeline, progress.when)

    def alive(self, pipeline: str, when: str) -> None:
        """Notes when Spark last reported progress, in ISO 8601, or that there is nothing to do."""
        self._when.labels(pipeline).set(datetime.fromisoformat(when).timestamp())

    def remove(self, pipeline: str) -> None:
        """Removes the series of a pipeline that has ended."""
        for family in self._families:
            for place in self._places[family].pop(pipeline, set()) if family in self._places else [()]:
                family.remove(pipeline, *place)

    @contextmanager
    def serve(self, address: tuple[str, int], named: str) -> Iterator[int]:
        """Answers scrapes at `address`, which is the value of `named`, until the block ends; gives the port.
        Raises NsqSourceError if it is taken."""
        from prometheus_client import start_http_server

        host, port = address
        try:
            server, thread = start_http_server(port, host, self.registry)
        except OSError as error:
            raise NsqSourceError(f"{named} {host}:{port}: {reason_of(error)}") from None
        try:
            yield server.server_port
        finally:
            server.shutdown()
            server.server_close()
            thread.join()
