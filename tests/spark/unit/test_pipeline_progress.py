"""What a run reports of its progress, to Prometheus and to people, and how signals end it."""

import json
import os
import signal
import urllib.request
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest

from gnsq_pipeline.errors import PipelineError, Unfinished
from gnsq_pipeline.progress import Lines, Summary, summarised
from gnsq_pipeline.running import Stop, run_query
from pyspark_nsq.errors import NsqSourceError
from pyspark_nsq.progress import Metrics, Progress, read_progress

REPORTED: dict[str, Any] = {
    "batchId": 7,
    "timestamp": "2026-11-21T20:41:28.046Z",
    "batchDuration": 2500,
    "numInputRows": 5000,
    "durationMs": {"triggerExecution": 2500},
    "eventTime": {"watermark": "2026-11-21T20:30:00.000Z"},
    "stateOperators": [{"numRowsTotal": 12, "numRowsDroppedByWatermark": 3}],
    "sources": [
        {
            "latestOffset": {
                "version": 1,
                "unread": {"t": {"a:1": 40, "b:1": 2}, "u": {"a:1": 0}},
                "in_flight": {"t": {"a:1": 5, "b:1": 0}, "u": {"a:1": 0}},
                "suspects": 3,
                "spool_bytes": 1024,
            }
        },
        {"latestOffset": {"version": 1, "unread": {"t": {"a:1": 1}}, "in_flight": {"t": {"a:1": 2}}}},
    ],
}
A, B, U = ("t", "a:1"), ("t", "b:1"), ("u", "a:1")


def reported(**fields: Any) -> str:
    return json.dumps(REPORTED | fields)


def progress(batch: int = 1, rows: int = 10, seconds: float = 2.0, lag: int | None = 0, late: int = 0) -> Progress:
    unread = None if lag is None else {A: lag}
    return Progress(batch, f"2026-11-21T20:41:{batch:02}.000Z", rows, seconds, unread, late)


def test_a_batch_is_read_from_what_spark_reports() -> None:
    read = read_progress(reported())
    unread, in_flight = {A: 41, B: 2, U: 0}, {A: 7, B: 0, U: 0}
    assert read == Progress(7, "2026-11-21T20:41:28.046Z", 5000, 2.5, unread, 3, 12, in_flight, 3, 1024)
    assert (read.lag, read.rows_per_second) == (43, 2000)


@pytest.mark.parametrize("latest", [None, 4, "4", {"partition-1": {"index": 100}}])
def test_the_lag_of_a_source_that_does_not_report_it_is_unknown(latest: object) -> None:
    assert read_progress(reported(sources=[{"latestOffset": latest}])).lag is None


def test_what_spark_leaves_out_counts_as_nothing() -> None:
    read = read_progress(json.dumps({"batchId": 0, "timestamp": "2026-11-21T20:41:28.046Z"}))
    assert (read.rows, read.seconds, read.lag, read.rows_per_second) == (0, 0, None, 0)


def test_totals_are_sums_and_idle_looks_are_no_batches() -> None:
    totals = Summary("archive")
    assert str(totals) == "0 rows in 0 batches, 0.0 s"
    for one in (progress(1, 1010, 2), progress(2, 0, 0.1), progress(3, 30, 2, late=4)):
        totals.add(one)
    assert (totals.batches, totals.rows, totals.late_rows) == (2, 1040, 4)
    assert str(totals) == "1,040 rows in 2 batches, 4.1 s, 254 rows/s"


def samples(metrics: Metrics) -> dict[str, float]:
    lines = generate_latest(metrics.registry).decode().splitlines()
    pairs = [line.rpartition(" ") for line in lines if not line.startswith("#") and "_created" not in line]
    return {name.removesuffix('{pipeline="archive"}').removeprefix("gnsq_pipeline_"): float(v) for name, _, v in pairs}


def test_prometheus_gets_totals_of_batches_and_the_last_lag() -> None:
    metrics = Metrics("archive")
    assert samples(metrics)["rows_total"] == 0
    assert "last_progress_timestamp_seconds" not in samples(metrics)
    for one in (progress(1, 10, 2, 5), progress(2, 30, 6, 4, late=2), progress(2, 0, 0.1, 3)):
        metrics.add("archive", one)
    found = samples(metrics)
    wanted = {
        "rows_total": 40,
        "batches_total": 2,
        "late_rows_total": 2,
        'lag_messages{nsqd="a:1",pipeline="archive",topic="t"}': 3,
        "rows_per_second": 5,
        "last_batch": 2,
        "batch_duration_seconds_count": 2,
        "batch_duration_seconds_sum": 8,
    }
    assert {name: found[name] for name in wanted} == wanted
    assert found["last_progress_timestamp_seconds"] == pytest.approx(1795293662)


def test_each_nsqd_has_series_as_long_as_it_is_reported() -> None:
    metrics = Metrics()

    def of(name: str) -> dict[tuple[str, str, str], float]:
        (family,) = (family for family in metrics.registry.collect() if family.name == f"gnsq_pipeline_{name}")
        return {
            (labels["pipeline"], labels.get("topic", ""), labels.get("nsqd", "")): value
            for _, labels, value, *_ in family.samples
        }

    before = read_progress(reported())
    metrics.add("archive", before)
    metrics.add("other", before)
    lags = [(A, 41), (B, 2), (U, 0)]
    assert of("lag_messages") == {(name, *key): lag for name in ("archive", "other") for key, lag in lags}
    assert of("in_flight_messages")["archive", *A] == 7
    metrics.add("archive", replace(before, unread={A: 8}, in_flight={A: 9}, suspects=None, spool_bytes=2048))
    metrics.remove("other")
    assert of("lag_messages") == {("archive", *A): 8}
    assert of("in_flight_messages") == {("archive", *A): 9}
    assert of("suspects") == {("archive", "", ""): 3}
    assert of("spool_bytes") == {("archive", "", ""): 2048}
    metrics.remove("archive")
    assert not any(family.samples for family in metrics.registry.collect())


def test_metrics_are_served_until_the_end_and_a_taken_address_is_reported() -> None:
    metrics = Metrics("archive")
    host = "127.0.0.1"
    with metrics.serve((host, 0), "--metrics-address") as port:
        with urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=30) as answer:
            assert b"gnsq_pipeline_rows_total" in answer.read()
        taken = pytest.raises(NsqSourceError, match=f"--metrics-address {host}:{port}: Address already in use")
        with taken, metrics.serve((host, port), "--metrics-address"):
            pass
    with pytest.raises(OSError):
        urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=30)


def test_lines_are_one_for_each_batch_with_rows(capsys: pytest.CaptureFixture[str]) -> None:
    lines = Lines()
    for one in (progress(1, 1234, 2, 5), progress(2, 0), progress(3, 10, 0.5, None, late=2)):
        lines.add(one)
    assert capsys.readouterr().err.splitlines() == [
        "2026-11-21T20:41:01.000Z  batch 1  1,234 rows  2.0 s  617 rows/s  lag 5",
        "2026-11-21T20:41:03.000Z  batch 3  10 rows  0.5 s  20 rows/s  late 2",
    ]


class Query:
    """A streaming query as run_query sees it: `looks` are what it returns from look to look."""

    def __init__(self, looks: Sequence[Sequence[str]], error: Exception | None = None, endless: bool = False) -> None:
        self.looks = list(looks)
        self.error = error
        self.endless = endless
        self.stopped = 0
        self.batchId = 0
        self.recentProgress: list[Any] = []

    class Reported:
        def __init__(self, text: str) -> None:
            self.json = text
            self.batchId = json.loads(text)["batchId"]
            self.timestamp = json.loads(text)["timestamp"]

    @property
    def isActive(self) -> bool:  # noqa: N802
        if self.looks:
            self.recentProgress = [self.Reported(text) for text in self.looks.pop(0)]
            return bool(self.looks) or self.endless
        return self.endless

    @property
    def lastProgress(self) -> Any:  # noqa: N802
        return self.recentProgress[-1] if self.recentProgress else None

    def exception(self) -> Exception | None:
        return self.error

    def stop(self) -> None:
        self.stopped += 1


def test_each_batch_is_reported_once_however_often_one_looks() -> None:
    one, two, three = (reported(batchId=batch, timestamp=f"2026-11-21T20:41:0{batch}.000Z") for batch in (1, 2, 3))
    query, seen = Query([[], [one], [one], [one, two, three], [two, three]]), list[Progress]()
    assert run_query(lambda: query, Stop(), seen.append)  # type: ignore[arg-type, return-value]
    assert [progress.batch for progress in seen] == [1, 2, 3]
    assert query.stopped == 1


def test_a_query_that_fails_is_reported_in_one_line() -> None:
    query = Query([[]], RuntimeError("[STREAM_FAILED] Query failed\nat many places"))
    with pytest.raises(PipelineError) as error:
        run_query(lambda: query, Stop())  # type: ignore[arg-type, return-value]
    assert str(error.value) == "Query failed"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_the_query_and_is_remembered(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    query = Query([], endless=True)

    def start() -> Query:
        os.kill(os.getpid(), number)
        return query

    stop = Stop()
    with stop.listening():
        run_query(start, stop)  # type: ignore[arg-type]
    assert query.stopped == 1
    assert stop.signal is number
    assert signal.getsignal(number) is before


def test_it_is_known_whether_the_query_ended_by_itself() -> None:
    stop = Stop()
    assert run_query(lambda: Query([]), stop)  # type: ignore[arg-type, return-value]
    stop.hear(signal.SIGTERM)
    assert not run_query(lambda: Query([], endless=True), stop)  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize("lost", [False, True])
def test_a_query_that_the_end_of_the_jvm_stops_has_not_ended_by_itself(lost: bool) -> None:
    stop = Stop()

    class Stopped(Query):
        @property
        def isActive(self) -> bool:  # noqa: N802
            if not lost:
                stop.hear(signal.SIGTERM)
            return False

        def exception(self) -> Exception | None:
            if lost:
                stop.hear(signal.SIGTERM)
                raise ConnectionResetError
            return None

    assert not run_query(lambda: Stopped([]), stop)  # type: ignore[arg-type, return-value]


def test_a_summary_says_how_a_run_ended(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    path.write_text("old")

    def run() -> None:
        with summarised(str(path), Summary("archive", ("orders",), "a")) as summary:
            assert not path.exists()
            summary.add(progress(lag=7))
            summary.stopped_by = "SIGTERM"
            raise Unfinished("stopped")

    with pytest.raises(Unfinished):
        run()
    reported = json.loads(path.read_text())
    assert reported.pop("began") <= reported.pop("ended")
    assert reported == {
        "pipeline": "archive",
        "topics": ["orders"],
        "channel": "a",
        "finished": False,
        "stopped_by": "SIGTERM",
        "exit_code": 3,
        "error": "stopped",
        "rows": 10,
        "batches": 1,
        "late_rows": 0,
        "seconds": 2.0,
        "lag": 7,
    }
    with (
        pytest.raises(PipelineError, match=r"--summary .*missing/s\.json: No such file or directory"),
        summarised(str(tmp_path / "missing" / "s.json"), Summary("archive")),
    ):
        pass
