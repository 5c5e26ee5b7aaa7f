"""The harness compares what it says it compares; figures are no test's business."""

import contextlib
import json
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from benchmarks.harness import RowResult, Spread, run_row
from benchmarks.lanes import Lane
from benchmarks.rows import Load, Measurement, RanDry, Row
from daemons import Daemon, own_command


def measurement(rate: float) -> Measurement:
    return Measurement(rate, messages=1000, cpu_seconds=0.5, on_disk=0)


class IdleLane(Lane):
    """A lane whose daemon is its own name."""

    @contextlib.contextmanager
    def running(self, *flags: str) -> Iterator[Daemon]:
        yield cast(Daemon, self.name)


def test_ratios_are_taken_within_a_turn() -> None:
    rates = {"real": [10.0, 20.0, 40.0], "ours": [20.0, 20.0, 20.0]}
    result = RowResult(cast(Row, None), {lane: [measurement(rate) for rate in runs] for lane, runs in rates.items()})
    assert result.ratio("ours") == Spread(median=1.0, low=0.5, high=2.0)
    assert result.rate("real") == Spread(median=20.0, low=10.0, high=40.0)
    assert result.cpu_per_million("ours").median == 500


def test_lanes_take_turns() -> None:
    order: list[Any] = []

    def measure(daemon: Daemon, load: Load) -> Measurement:
        order.append(daemon)
        return measurement(1)

    run_row(
        Row("row", "row", measure, lambda load: load.backlog),
        [IdleLane("a", ()), IdleLane("b", ())],
        2,
        3.0,
        lambda line: None,
    )
    assert order == ["a", "b", "a", "b"]


def test_row_starts_again_with_twice_the_backlog_for_all_when_one_ran_dry() -> None:
    backlogs: list[tuple[Any, int]] = []

    def measure(daemon: Daemon, load: Load) -> Measurement:
        backlogs.append((daemon, load.backlog))
        if len(backlogs) == 2:
            raise RanDry("took all")
        return measurement(1)

    lanes = [IdleLane("a", ()), IdleLane("b", ())]
    result = run_row(Row("row", "row", measure, lambda load: load.backlog), lanes, 1, 3.0, lambda line: None)
    first = backlogs[0][1]
    assert backlogs == [("a", first), ("b", first), ("a", 2 * first), ("b", 2 * first)]
    assert [len(runs) for runs in result.runs.values()] == [1, 1]


@pytest.mark.peer
@pytest.mark.slow
def test_benchmarks_compare_the_real_nsqd_with_the_lane_that_is_there(
    peer_binary: Callable[[str], Path], tmp_path: Path
) -> None:
    peer_binary("bench_writer")
    ours = shlex.join(own_command())
    run = subprocess.run(
        [sys.executable, str(Path(__file__).parent), "--runs=1", "--seconds=1", "--rows", "writer-20",
         f"--real={peer_binary('nsqd')}", f"--compiled={ours}", f"--plain={ours}",
         f"--json={tmp_path / 'result.json'}"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert run.stderr.count("without gnsqd") == 1
    lanes = json.loads((tmp_path / "result.json").read_text())["rows"]["writer-20"]["lanes"]
    assert list(lanes) in (["nsqd", "gnsqd compiled"], ["nsqd", "gnsqd plain"])
    for lane, result in lanes.items():
        assert lane in run.stdout
        assert result["runs"][0]["messages"] > 1000
        assert result["runs"][0]["cpu_seconds"] > 0
