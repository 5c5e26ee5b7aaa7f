"""What a streaming query reports about its batches, as plain values, from the JSON of its progress. Needs no Spark."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Progress:
    """One batch, or one look that found nothing to do."""

    batch: int
    when: str  # ISO 8601, UTC
    rows: int
    seconds: float
    lag: int | None  # messages queued at the nsqds; None if the source does not report it
    late_rows: int = 0  # too late for their window
    state_rows: int = 0
    watermark: str | None = None

    @property
    def rows_per_second(self) -> float:
        return self.rows / self.seconds if self.seconds > 0 else 0.0

    @property
    def idle(self) -> bool:
        return self.rows == 0


def read_progress(text: str) -> Progress:
    """The progress of a query, from the JSON that Spark makes of it."""
    document: dict[str, Any] = json.loads(text)
    operators = document.get("stateOperators") or []
    durations = document.get("durationMs") or {}
    return Progress(
        batch=document["batchId"],
        when=document["timestamp"],
        rows=document.get("numInputRows") or 0,
        seconds=(document.get("batchDuration") or durations.get("triggerExecution") or 0) / 1000,
        lag=lag(document.get("sources") or []),
        late_rows=sum(operator.get("numRowsDroppedByWatermark") or 0 for operator in operators),
        state_rows=sum(operator.get("numRowsTotal") or 0 for operator in operators),
        watermark=(document.get("eventTime") or {}).get("watermark"),
    )


def lag(sources: list[Mapping[str, Any]]) -> int | None:
    """How many messages wait, over all sources that report it."""
    from pyspark_nsq.offsets import unread

    offsets = [source.get("latestOffset") for source in sources]
    counts = [unread(latest) for latest in offsets if isinstance(latest, Mapping) and "unread" in latest]
    return sum(counts) if counts else None


class Totals:
    """The sums over the batches of a run."""

    def __init__(self) -> None:
        self.batches = 0
        self.rows = 0
        self.late_rows = 0
        self.seconds = 0.0
        self.latest: Progress | None = None
        self.finished = False  # the query ended by itself, and without an error

    def add(self, progress: Progress) -> None:
        if not progress.idle:
            self.batches += 1
        self.rows += progress.rows
        self.late_rows += progress.late_rows
        self.seconds += progress.seconds
        self.latest = progress

    @property
    def rows_per_second(self) -> float:
        return self.rows / self.seconds if self.seconds > 0 else 0.0
