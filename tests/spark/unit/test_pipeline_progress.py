"""A run reports its progress to Prometheus and to people, and signals end it."""

import contextlib
import json
import signal
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest

from gnsq_pipeline.errors import PipelineError, Unfinished
from gnsq_pipeline.progress import BatchLines, Summary, summarised
from gnsq_pipeline.running import Stop, run_query
from kit.exposition import series
from pyspark_nsq.errors import NsqSourceError
from pyspark_nsq.progress import Progress, QueryMetrics, read_progress

OFFSET = {
    "unread": {"t": {"a:1": 40, "b:1": 2}, "u": {"a:1": 0}},
    "in_flight": {"t": {"a:1": 5, "b:1": 0}, "u": {"a:1": 0}},
}
REPORTED: dict[str, Any] = {
    "batchId": 7,
    "timestamp": "2026-11-21T20:41:28.046Z",
    "batchDuration": 2500,
    "numInputRows": 5000,
    "durationMs": {"triggerExecution": 2500},
    "eventTime": {"watermark": "2026-11-21T20:30:00.000Z"},
    "stateOperators": [{"numRowsTotal": 12, "numRowsDroppedByWatermark": 3}],
    "sources": [
        {"latestOffset": OFFSET},
        {"latestOffset": {"unread": {"t": {"a:1": 1}}}},  # as of ranges
    ],
}
A, B, U = ("t", "a:1"), ("t", "b:1"), ("u", "a:1")


def reported(**fields: Any) -> str:
    return json.dumps(REPORTED | fields)


def progress(batch: int = 1, rows: int = 10, seconds: float = 2.0, lag: int | None = 0, late: int = 0) -> Progress:
    unread = None if lag is None else {A: lag}
    return Progress(batch, f"2026-11-21T20:41:{batch:02}.000Z", rows, seconds, unread, late)


# What Spark reports


def test_a_batch_is_read_from_what_spark_reports() -> None:
    read = read_progress(reported())
    unread, in_flight = {A: 41, B: 2, U: 0}, {A: 5, B: 0, U: 0}
    assert read == Progress(7, REPORTED["timestamp"], 5000, 2.5, unread, 3, 12, in_flight)
    assert (read.lag, read.rows_per_second) == (43, 2000)


@pytest.mark.parametrize("latest", [None, 4, "4", {"partition-1": {"index": 100}}])
def test_the_lag_of_a_source_that_does_not_report_it_is_unknown(latest: object) -> None:
    assert read_progress(reported(sources=[{"latestOffset": latest}])).lag is None


def test_what_spark_leaves_out_counts_as_nothing() -> None:
    read = read_progress(json.dumps({"batchId": 0, "timestamp": REPORTED["timestamp"]}))
    assert (read.rows, read.seconds, read.lag, read.rows_per_second) == (0, 0, None, 0)


# Prometheus


def samples(metrics: QueryMetrics) -> dict[tuple[str, ...], float]:
    """Returns samples by name and the values of the labels pipeline, topic and nsqd."""
    found = {}
    for (name, pairs), value in series(generate_latest(metrics.registry)).items():
        labels = dict(pairs)
        if not name.endswith(("_created", "_bucket")):
            place = [labels[label] for label in ("pipeline", "topic", "nsqd") if label in labels]
            found[name.removeprefix("gnsq_pipeline_"), *place] = value
    return found


def test_prometheus_gets_totals_of_batches_and_the_last_lag() -> None:
    metrics = QueryMetrics("archive")
    assert samples(metrics)["rows_total", "archive"] == 0
    assert ("last_progress_timestamp_seconds", "archive") not in samples(metrics)
    for one in (progress(1, 10, 2, 5), progress(2, 30, 6, 4, late=2), progress(2, 0, 0.1, 3)):
        metrics.add("archive", one)
    found = samples(metrics)
    assert found.pop(("last_progress_timestamp_seconds", "archive")) == pytest.approx(1795293662)
    assert found.pop(("lag_messages", "archive", *A)) == 3
    assert found == {
        ("rows_total", "archive"): 40,
        ("batches_total", "archive"): 2,
        ("late_rows_total", "archive"): 2,
        ("rows_per_second", "archive"): 5,
        ("state_rows", "archive"): 0,
        ("last_batch", "archive"): 2,
        ("batch_duration_seconds_count", "archive"): 2,
        ("batch_duration_seconds_sum", "archive"): 8,
    }


def test_each_nsqd_has_series_as_long_as_it_is_reported() -> None:
    metrics = QueryMetrics()

    def of(name: str) -> dict[tuple[str, ...], float]:
        return {key[1:]: value for key, value in samples(metrics).items() if key[0] == name}

    before = read_progress(reported())
    metrics.add("archive", before)
    metrics.add("other", before)
    lags = [(A, 41), (B, 2), (U, 0)]
    assert of("lag_messages") == {(name, *key): lag for name in ("archive", "other") for key, lag in lags}
    assert of("in_flight_messages")["archive", *A] == 5
    metrics.add("archive", replace(before, unread={A: 8}, in_flight={A: 9}))
    metrics.remove("other")
    for name, expected in (("lag_messages", 8), ("in_flight_messages", 9)):
        assert of(name) == {("archive", *A): expected}
    assert of("state_rows") == {("archive",): 12}
    metrics.add("archive", replace(before, in_flight={}))
    assert of("lag_messages") == {("archive", *key): lag for key, lag in lags}
    assert of("in_flight_messages") == {}
    metrics.remove("archive")
    assert samples(metrics) == {}


def test_metrics_are_served_until_the_end_and_a_taken_address_is_reported() -> None:
    metrics = QueryMetrics("archive")
    host = "127.0.0.1"
    with metrics.serve((host, 0), "--metrics-address") as port:
        with urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=30) as answer:
            assert b"gnsq_pipeline_rows_total" in answer.read()
        taken = pytest.raises(NsqSourceError, match=f"--metrics-address {host}:{port}: address already in use")
        with taken, metrics.serve((host, port), "--metrics-address"):
            pass
    with pytest.raises(OSError):
        urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=30)


# Lines and summaries


def test_lines_are_one_for_each_batch_with_rows(capsys: pytest.CaptureFixture[str]) -> None:
    lines = BatchLines()
    for one in (progress(1, 1234, 2, 5), progress(2, 0), progress(3, 10, 0.5, None, late=2)):
        lines.add(one)
    assert capsys.readouterr().err.splitlines() == [
        "2026-11-21T20:41:01.000Z  batch 1  1,234 rows  2.0 s  617 rows/s  lag 5",
        "2026-11-21T20:41:03.000Z  batch 3  10 rows  0.5 s  20 rows/s  late 2",
    ]


def test_totals_are_sums_and_idle_looks_do_not_count_as_batches() -> None:
    totals = Summary("archive")
    assert str(totals) == "0 rows in 0 batches, 0.0 s"
    for one in (progress(1, 1010, 2), progress(2, 0, 0.1), progress(3, 30, 2, late=4)):
        totals.add(one)
    assert (totals.batches, totals.rows, totals.late_rows) == (2, 1040, 4)
    assert str(totals) == "1,040 rows in 2 batches, 4.1 s, 254 rows/s"


def test_a_summary_says_how_a_run_ended(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    path.write_text("old")
    with contextlib.suppress(Unfinished), summarised(str(path), Summary("archive", ("orders",), "a")) as summary:
        assert not path.exists()
        summary.add(progress(lag=7))
        summary.stopped_by = "SIGTERM"
        raise Unfinished("stopped")
    written = json.loads(path.read_text())
    assert written.pop("began") <= written.pop("ended")
    assert written == {
        "pipeline": "archive",
        "topics": ["orders"],
        "channel": "a",
        "rows": 10,
        "batches": 1,
        "late_rows": 0,
        "finished": False,
        "stopped_by": "SIGTERM",
        "exit_code": 3,
        "error": "stopped",
        "seconds": 2.0,
        "lag": 7,
    }
    missing = pytest.raises(PipelineError, match=r"--summary .*missing/s\.json: no such file or directory")
    with missing, summarised(str(tmp_path / "missing" / "s.json"), Summary("archive")):
        pass


# The end of a query


class Stopped:
    """A streaming query that ends with its JVM, which a signal to the process group has ended."""

    def __init__(self, stop: Stop, lost: bool) -> None:
        self._stop = stop
        self._lost = lost
        self.recentProgress: list[Any] = []

    @property
    def isActive(self) -> bool:  # noqa: N802
        if not self._lost:
            self._stop.hear(signal.SIGTERM)
        return False

    def exception(self) -> None:
        if self._lost:
            self._stop.hear(signal.SIGTERM)
            raise ConnectionResetError

    def stop(self) -> None:
        pass


@pytest.mark.parametrize("lost", [False, True])
def test_a_query_that_the_end_of_the_jvm_stops_has_not_ended_by_itself(lost: bool) -> None:
    stop = Stop()
    assert not run_query(lambda: Stopped(stop, lost), stop)  # type: ignore[arg-type, return-value]
