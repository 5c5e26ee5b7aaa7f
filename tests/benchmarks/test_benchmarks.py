"""The harness compares what it says it compares; figures are no test's business."""

import contextlib
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from benchmarks.harness import RowResult, Spread, run_row
from benchmarks.lanes import Lane
from benchmarks.rows import RATE, SECONDS, Load, Measurement, RanDry, Row, Unit
from daemons import Daemon, own_command

LOAD = Load(seconds=3.0, supply=100, stored=5)


def measurement(value: float) -> Measurement:
    return Measurement(value, messages=1000, cpu_seconds=0.5)


def row(measure: Callable[[Daemon, Load], Measurement], unit: Unit = RATE, stored: bool = False) -> Row:
    return Row("row", "row", measure, lambda load: load.backlog, unit, stored)


def nothing_stored(lane: Lane) -> Path:
    raise AssertionError(lane)


def idle(daemon: Daemon, load: Load) -> Measurement:
    return measurement(1)


class IdleLane(Lane):
    """A lane whose daemon is its own name."""

    @contextlib.contextmanager
    def running(self, *flags: str, stored: Path | None = None) -> Iterator[Daemon]:
        yield cast(Daemon, self.name)


def test_ratios_are_taken_within_a_turn() -> None:
    rates = {"real": [10.0, 20.0, 40.0], "ours": [20.0, 20.0, 20.0]}
    result = RowResult(row(idle), {lane: [measurement(rate) for rate in runs] for lane, runs in rates.items()})
    assert result.ratio("ours") == Spread(median=1.0, low=0.5, high=2.0)
    assert result.figure("real") == Spread(median=20.0, low=10.0, high=40.0)
    assert result.cpu_per_million("ours") == Spread(500.0, 500.0, 500.0)


def test_less_time_is_faster() -> None:
    seconds = {"real": [0.5, 0.5, 0.5], "ours": [1.0, 0.25, 2.0]}
    result = RowResult(row(idle, SECONDS), {lane: list(map(measurement, runs)) for lane, runs in seconds.items()})
    assert result.ratio("ours") == Spread(median=0.5, low=0.25, high=2.0)


def test_lanes_take_turns() -> None:
    order: list[Any] = []

    def measure(daemon: Daemon, load: Load) -> Measurement:
        order.append(daemon)
        return measurement(1)

    run_row(row(measure), [IdleLane("a", ()), IdleLane("b", ())], 2, LOAD, lambda line: None, nothing_stored)
    assert order == ["a", "b", "a", "b"]


def test_row_starts_again_with_twice_the_backlog_for_all_when_one_ran_dry() -> None:
    backlogs: list[tuple[Any, int]] = []

    def measure(daemon: Daemon, load: Load) -> Measurement:
        backlogs.append((daemon, load.backlog))
        if len(backlogs) == 2:
            raise RanDry("took all")
        return measurement(1)

    lanes = [IdleLane("a", ()), IdleLane("b", ())]
    result = run_row(row(measure), lanes, 1, LOAD, lambda line: None, nothing_stored)
    first = backlogs[0][1]
    assert backlogs == [("a", first), ("b", first), ("a", 2 * first), ("b", 2 * first)]
    assert [len(runs) for runs in result.runs.values()] == [1, 1]


def test_only_rows_that_want_one_start_on_their_lanes_backlog() -> None:
    started: list[tuple[str, Path | None]] = []

    class WatchedLane(IdleLane):
        @contextlib.contextmanager
        def running(self, *flags: str, stored: Path | None = None) -> Iterator[Daemon]:
            started.append((self.name, stored))
            yield cast(Daemon, self.name)

    lanes = [WatchedLane("a", ()), WatchedLane("b", ())]
    for stored in (True, False):
        run_row(row(idle, stored=stored), lanes, 1, LOAD, lambda line: None, lambda lane: Path(lane.name))
    assert started == [("a", Path("a")), ("b", Path("b")), ("a", None), ("b", None)]


@pytest.mark.peer
@pytest.mark.slow
def test_benchmarks_compare_the_real_nsqd_with_the_lane_that_is_there(
    peer_binary: Callable[[str], Path], tmp_path: Path
) -> None:
    peer_binary("bench_writer")
    ours = shlex.join(own_command())
    run = subprocess.run(
        [sys.executable, str(Path(__file__).parent), "--runs=1", "--seconds=1", "--backlog=20000",
         "--rows", "writer-20", "drain", "exit", "restart", f"--real={peer_binary('nsqd')}", f"--compiled={ours}",
         f"--plain={ours}", f"--json={tmp_path / 'result.json'}"],
        capture_output=True, text=True, env={**os.environ, "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert run.stderr.count("without gnsqd") == 1
    rows = json.loads((tmp_path / "result.json").read_text())["rows"]
    assert [(name, row["unit"]) for name, row in rows.items()] == [
        ("writer-20", "messages/s"), ("drain", "messages/s"), ("exit", "s"), ("restart", "s")
    ]  # fmt: skip
    for name, row in rows.items():
        lanes = row["lanes"]
        assert list(lanes) in (["nsqd", "gnsqd compiled"], ["nsqd", "gnsqd plain"])
        for lane, result in lanes.items():
            assert lane in run.stdout
            assert result["runs"][0]["value"] > 0
            if name == "writer-20":
                assert result["runs"][0]["messages"] > 1000
                assert result["runs"][0]["cpu_seconds"] > 0
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]


@pytest.mark.peer
@pytest.mark.slow
def test_memory_of_the_real_nsqd_stands_beside_the_lane_that_is_there(peer_binary: Callable[[str], Path]) -> None:
    ours = shlex.join(own_command())
    run = subprocess.run(
        [sys.executable, str(Path(__file__).parent), "memory", "--megabytes=1", "--sizes", "1000",
         f"--real={peer_binary('nsqd')}", f"--compiled={ours}", f"--plain={ours}"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    heading, real, gnsqd = run.stdout.splitlines()
    assert heading.split() == ["body", "daemon", "started", "filled", "drained", "bound"]
    assert re.fullmatch(r"1,000 B +nsqd( +\d+ MB){3}", real)
    assert re.fullmatch(r"1,000 B +gnsqd (compiled|plain)( +\d+ MB){4}", gnsqd)


@pytest.mark.peer
@pytest.mark.slow
def test_scrapes_of_the_lane_that_is_there_are_timed_in_both_formats(peer_binary: Callable[[str], Path]) -> None:
    ours = shlex.join(own_command())
    run = subprocess.run(
        [sys.executable, str(Path(__file__).parent), "scrape", "--topics=10", "--scrapes=3",
         f"--real={peer_binary('nsqd')}", f"--compiled={ours}", f"--plain={ours}"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert run.returncode == 0 or "more than 250 ms" in run.stderr, run.stderr
    heading, *rows = run.stdout.splitlines()
    assert heading.startswith("daemon")
    pub = r"\d+\.\d+ ms / \d+\.\d+ ms / \d+\.\d+ ms"
    for form, row in zip(("text", "openmetrics"), rows, strict=True):
        assert re.fullmatch(rf"gnsqd (compiled|plain) +{form} +[\d,]+ B +\d+ ms +\d+ ms +{pub} +{pub}", row)
