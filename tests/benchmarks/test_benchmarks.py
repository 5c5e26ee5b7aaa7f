"""The harness compares what it says it compares; figures are not tested."""

import contextlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from benchmarks import cli, fixture, put, report
from benchmarks.harness import RowResult, Spread, run_row
from benchmarks.lanes import BenchmarkError, Lane
from benchmarks.row import BY_DURABILITY, MEGABYTES, RATE, SECONDS, Load, Measurement, RanDry, Row, Unit
from benchmarks.rows import ROWS
from benchmarks.scale import DIMENSIONS, Point
from kit.daemons import DEADLINE, Daemon, own_command

LOAD = Load(seconds=3.0, supply=100, stored=5)

PROGRAM = os.fspath(Path(__file__).parents[2] / "tools" / "benchmarks")


def measurement(value: float) -> Measurement:
    return Measurement(value, messages=1000, cpu_seconds=0.5)


def row(measure: Callable[[Daemon, Load], Measurement], unit: Unit = RATE, stored: bool = False) -> Row:
    return Row("row", "row", measure, lambda load: load.backlog, unit, stored)


def nothing_stored(lane: Lane) -> Path:
    raise AssertionError(lane)


def idle(daemon: Daemon, load: Load) -> Measurement:
    return measurement(1)


def result_of(unit: Unit, figures: dict[str, list[float]], limit: float | None = None) -> RowResult:
    runs = {lane: [measurement(figure) for figure in values] for lane, values in figures.items()}
    return RowResult(row(idle, unit), runs, None if limit is None else measurement(limit))


class IdleLane(Lane):
    """A lane whose daemon is its own name."""

    @contextlib.contextmanager
    def running(self, *flags: str, stored: Path | None = None) -> Iterator[Daemon]:
        yield cast(Daemon, self.name)


def test_ratios_are_taken_within_a_turn() -> None:
    result = result_of(RATE, {"real": [10.0, 20.0, 40.0], "ours": [20.0, 20.0, 20.0]})
    assert result.ratio("ours") == Spread(median=1.0, low=0.5, high=2.0)
    assert result.figure("real") == Spread(median=20.0, low=10.0, high=40.0)
    assert result.cpu_per_million("ours") == Spread(500.0, 500.0, 500.0)


def test_cpu_ratios_are_those_of_the_time_per_message() -> None:
    runs = {"nsqd": [Measurement(1, 100, 0.5), Measurement(1, 10, 0.4)], "gnsqd": [Measurement(1, 50, 0.5)] * 2}
    result = RowResult(row(idle), runs)
    assert result.cpu_ratio("gnsqd") == Spread.of([2.0, 0.25])
    assert RowResult(row(idle), {"nsqd": [Measurement(1)], "gnsqd": [Measurement(1)]}).cpu_ratio("gnsqd") is None


def test_less_time_is_faster() -> None:
    result = result_of(SECONDS, {"real": [0.5, 0.5, 0.5], "ours": [1.0, 0.25, 2.0]})
    assert result.ratio("ours") == Spread(median=0.5, low=0.25, high=2.0)


def test_ratio_of_what_is_not_a_speed_is_that_of_the_figures() -> None:
    result = result_of(MEGABYTES, {"real": [10.0, 10.0, 0.0], "ours": [5.0, 40.0, 1.0]})
    assert result.ratio("ours") == Spread(median=4.0, low=0.5, high=float("inf"))
    text = report.text(report.document([result], LOAD))
    assert "MB, less is better" in text
    assert "inf" not in text


def test_figures_near_the_sinks_are_marked() -> None:
    result = result_of(RATE, {"real": [70.0], "ours": [90.0]}, limit=100.0)
    assert not result.near_limit("real")
    assert result.near_limit("ours")
    lines = report.text(report.document([result], LOAD)).splitlines()
    assert ["§" in line for line in lines[1:4]] == [False, True, False]
    assert lines[3].split()[:3] == ["sink", "100", "1.43"]
    # Of a latency the sink's is the floor, and says nothing about a limit.
    assert not result_of(MEGABYTES, {"real": [1.0], "ours": [90.0]}, limit=100.0).near_limit("ours")


def test_sink_is_measured_once_and_only_where_a_row_needs_it() -> None:
    measured: list[Any] = []

    def measure(daemon: Daemon, load: Load) -> Measurement:
        measured.append(daemon)
        return measurement(1)

    sink, lanes = IdleLane("sink", ()), [IdleLane("a", ())]
    for wanted, order in ((True, ["a", "sink", "a"]), (False, ["a", "a"])):
        measured.clear()
        rows = [Row("row", "row", measure, sink=wanted)]
        (result,) = run_row(rows[0], lanes, 2, LOAD, lambda line: None, nothing_stored, sink)
        assert measured == order
        assert (result.limit is not None) == wanted


def test_a_row_with_several_figures_gives_a_line_for_each() -> None:
    figures = iter([1.0, 2.0])

    def measure(daemon: Daemon, load: Load) -> Measurement:
        figure = next(figures)
        return Measurement(0, parts={"p50": figure, "p99": 10 * figure})

    several = Row("trip", "Trip", measure, parts=("p50", "p99"))
    lanes = [IdleLane("a", ()), IdleLane("b", ())]
    results = run_row(several, lanes, 1, LOAD, lambda line: None, nothing_stored)
    assert [(result.row.name, result.row.title) for result in results] == [
        ("trip-p50", "Trip, p50"), ("trip-p99", "Trip, p99")
    ]  # fmt: skip
    assert [[result.figure(lane).median for lane in ("a", "b")] for result in results] == [[1, 2], [10, 20]]


def test_a_row_by_durability_compares_each_gnsqd_with_itself() -> None:
    commands: list[tuple[str, ...]] = []

    class WatchedLane(IdleLane):
        @contextlib.contextmanager
        def running(self, *flags: str, stored: Path | None = None) -> Iterator[Daemon]:
            commands.append(self.command)
            yield cast(Daemon, self.name)

    lanes = [WatchedLane("nsqd", ("n",)), WatchedLane("gnsqd compiled", ("c",)), WatchedLane("gnsqd plain", ("p",))]
    durable = Row("pub-durability", "PUB, durability", idle, variants=BY_DURABILITY)
    results = run_row(durable, lanes, 1, LOAD, lambda line: None, nothing_stored)
    assert [(result.row.name, list(result.runs)) for result in results] == [
        (f"pub-durability-{lane}", [f"gnsqd {lane}", f"gnsqd {lane}, process", f"gnsqd {lane}, disk"])
        for lane in ("compiled", "plain")
    ]
    flags = ((), ("--durability=process",), ("--durability=disk",))
    assert commands == [(lane, *flag) for lane in "cp" for flag in flags]


def test_rows_are_chosen_by_pattern_in_the_order_of_the_table() -> None:
    assert [row.name for row in cli.select(["restart*", "mpub-20"])] == ["mpub-20", "restart-empty", "restart"]
    assert [row.name for row in cli.select(["*"])] == [row.name for row in ROWS]
    assert len({row.name for row in ROWS}) == len(ROWS)
    with pytest.raises(BenchmarkError, match=r"no row is called mpub-21; there are writer-1, .*"):
        cli.select(["mpub-20", "mpub-21"])


def test_a_row_that_fails_does_not_take_the_others_along(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(daemon: Daemon, load: Load) -> Measurement:
        raise BenchmarkError("broken")

    monkeypatch.setattr(cli, "ROWS", [Row("first", "First", fail), Row("second", "Second", idle)])
    monkeypatch.setattr(cli, "GENERATOR", sys.executable)
    monkeypatch.setattr(cli, "find_lanes", lambda arguments: [IdleLane("a", ())])
    assert cli.main(["--runs=1"]) == 1
    table, lines = capsys.readouterr()
    assert [line.split()[0] for line in table.splitlines()[:2]] == ["row", "Second"]
    assert lines.splitlines()[-1] == "benchmarks: First, a: broken"


def test_interpreter_of_a_lane_is_found_in_its_command(tmp_path: Path) -> None:
    script = tmp_path / "gnsqd"
    script.write_text("#!/usr/bin/env python3 -I\nimport gnsqd\n")
    program = tmp_path / "nsqd"
    program.write_bytes(b"\x7fELF python")
    shell = tmp_path / "wrapper"
    shell.write_text("#!/bin/sh\nexec nsqd\n")
    assert put.interpreter([str(script)]) == ["/usr/bin/env", "python3", "-I"]
    assert put.interpreter(["env", "A=b", "python", "-P", "-m", "gnsqd"]) == ["env", "A=b", "python"]
    for other in (program, shell):
        with pytest.raises(BenchmarkError, match=f"it is unclear which Python runs {other}"):
            put.interpreter([str(other)])


def test_starts_are_those_of_the_test_kit_and_of_a_command() -> None:
    for command in ([], own_command()):
        times = fixture.starts([sys.executable], 2, command)
        assert len(times) == 2
        assert all(1 < time < 1000 * DEADLINE for time in times)


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
    (result,) = run_row(row(measure), lanes, 1, LOAD, lambda line: None, nothing_stored)
    first = backlogs[0][1]
    assert backlogs == [("a", first), ("b", first), ("a", 2 * first), ("b", 2 * first)]
    assert [len(runs) for runs in result.runs.values()] == [1, 1]


def test_only_rows_that_need_one_start_on_their_lanes_backlog() -> None:
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
        [sys.executable, PROGRAM, "--runs=1", "--seconds=1", "--backlog=20000",
         "--rows", "writer-20", "drain", "exit", "restart", f"--real={peer_binary('nsqd')}", f"--compiled={ours}",
         f"--plain={ours}", f"--json={tmp_path / 'result.json'}"],
        capture_output=True, text=True, env={**os.environ, "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert run.stderr.count("without gnsqd") == 1
    rows = json.loads((tmp_path / "result.json").read_text())["rows"]
    assert [(name, row["unit"]) for name, row in rows.items()] == [
        ("writer-20", "messages/s"), ("drain", "messages/s"), ("exit", "s"), ("restart", "s"),
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
def test_rows_of_the_load_generator_move_messages_in_every_daemon(
    peer_binary: Callable[[str], Path], tmp_path: Path
) -> None:
    ours = shlex.join(own_command())
    rows = [
        "pub",
        "consume-100",
        "both",
        "http-mpub",
        "tls-consume",
        "deflate-mpub-20",
        "steady-1000-channels-4",
        "end-to-end",
    ]
    run = subprocess.run(
        [sys.executable, PROGRAM, "--runs=1", "--seconds=0.3", "--backlog=20000", "--rows", *rows,
         "trip-neighbour", "connection-memory", "put-channel", "pub-durability", "trip-requeues",
         f"--real={peer_binary('nsqd')}", f"--compiled={ours}", f"--plain={ours}",
         f"--json={tmp_path / 'result.json'}"],
        capture_output=True, text=True, env={**os.environ, "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    results = json.loads((tmp_path / "result.json").read_text())["rows"]
    by_durability = [name for name in results if name.startswith(("pub-durability-", "trip-requeues-"))]
    assert len(by_durability) == 2
    for durable in map(results.pop, by_durability):
        assert [lane.split(", ")[1:] for lane in durable["lanes"]] == [[], ["process"], ["disk"]]
        assert all(lane["runs"][0]["value"] > 0 for lane in durable["lanes"].values())
    for result in results.values():
        runs = [run for lane in result["lanes"].values() for run in lane["runs"]]
        assert len(runs) == 2
        assert all(run["value"] > 0 for run in runs)
        if result["unit"] == "messages/s":
            assert all(run["messages"] > 0 and run["load_seconds"] > 0 for run in (*runs, *result["sink"]["runs"]))
            assert all(run["cpu_seconds"] > 0 for run in runs)
    for kind in ("end-to-end", "steady-1000-channels-4", "trip-neighbour"):
        assert results.pop(f"{kind}-p50")["unit"] == results.pop(f"{kind}-p99")["unit"] == "ms"
    assert set(results) == {*rows[:-2], "connection-memory", "put-channel"}
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]


@pytest.mark.peer
@pytest.mark.slow
def test_cost_is_measured_against_numbers(peer_binary: Callable[[str], Path], tmp_path: Path) -> None:
    ours = shlex.join(own_command())
    run = subprocess.run(
        [sys.executable, PROGRAM, "scale", "--of", "topics", "in flight", "deferred", "--most=10",
         "--messages=5000", f"--real={peer_binary('nsqd')}", f"--compiled={ours}", f"--plain={ours}",
         f"--json={tmp_path / 'points.json'}"],
        capture_output=True, text=True, env={**os.environ, "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    points = [Point(**point) for point in json.loads((tmp_path / "points.json").read_text())["points"]]
    assert [(point.dimension, point.count) for point in points[::2]] == [
        ("topics", 1), ("topics", 10), ("in flight", 1), ("deferred", 1)
    ]  # fmt: skip
    assert {point.lane for point in points[::2]} == {"nsqd"}
    assert all(point.microseconds > 0 and point.rest >= 0 and point.megabytes > 1 for point in points)
    assert [path.name for path in tmp_path.iterdir()] == ["points.json"]


def test_points_are_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from benchmarks.plot import draw

    points = [Point("topics", count, lane, 1.0, 0.1, 10.0) for count in (1, 10) for lane in ("nsqd", "gnsqd plain")]
    draw(points, {dimension.name: dimension.what for dimension in DIMENSIONS}, tmp_path / "scale.png")
    assert (tmp_path / "scale.png").read_bytes().startswith(b"\x89PNG\r\n")


def test_a_plot_without_matplotlib_is_refused_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "matplotlib.py").write_text("raise ImportError('there is none')")
    run = subprocess.run(
        [sys.executable, PROGRAM, "scale", "--plot=scale.png"],
        capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    assert run.returncode == 1
    assert run.stderr == "benchmarks: a plot needs matplotlib: there is none\n"
    assert run.stdout == ""


@pytest.mark.peer
@pytest.mark.slow
def test_memory_of_the_real_nsqd_stands_beside_the_lane_that_is_there(peer_binary: Callable[[str], Path]) -> None:
    ours = shlex.join(own_command())
    run = subprocess.run(
        [sys.executable, PROGRAM, "memory", "--megabytes=1", "--sizes", "1000",
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
def test_creation_is_measured_of_the_lane_that_is_there(peer_binary: Callable[[str], Path]) -> None:
    ours = shlex.join(own_command())
    run = subprocess.run(
        [sys.executable, PROGRAM, "creation", "--number=3", "--ephemeral=2",
         f"--real={peer_binary('nsqd')}", f"--compiled={ours}", f"--plain={ours}"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    rows = [re.split(r" {2,}", line) for line in run.stdout.splitlines()]
    assert {len(row) for row in rows} == {8}
    assert [row[:2] for row in rows[1:]] == [["topics", "3"], ["channels", "3"], ["ephemeral", "2"]] * 2


@pytest.mark.peer
@pytest.mark.slow
def test_scrapes_of_the_lane_that_is_there_are_timed_in_both_formats(peer_binary: Callable[[str], Path]) -> None:
    ours = shlex.join(own_command())
    run = subprocess.run(
        [sys.executable, PROGRAM, "scrape", "--topics=10", "--scrapes=3",
         f"--real={peer_binary('nsqd')}", f"--compiled={ours}", f"--plain={ours}"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert run.returncode == 0 or "more than 250 ms" in run.stderr, run.stderr
    heading, *rows = run.stdout.splitlines()
    assert heading.startswith("daemon")
    pub = r"\d+\.\d+ ms / \d+\.\d+ ms / \d+\.\d+ ms"
    for form, row in zip(("text", "openmetrics"), rows, strict=True):
        assert re.fullmatch(rf"gnsqd (compiled|plain) +{form} +[\d,]+ B +\d+ ms +\d+ ms +{pub} +{pub}", row)


@pytest.mark.peer
@pytest.mark.slow
@pytest.mark.skipif(shutil.which("valgrind") is None, reason="needs valgrind")
def test_instructions_of_a_command_are_counted(peer_binary: Callable[[str], Path]) -> None:
    peer_binary("load")
    run = subprocess.run(
        [sys.executable, PROGRAM, "instructions", "--commands=20", "--loads", "pub", "mpub-20",
         f"--gnsqd={shlex.join(own_command())}"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    counts = re.findall(r"^[\w-]+ +([\d,]+) instructions a command", run.stdout, re.MULTILINE)
    pub, mpub = (int(count.replace(",", "")) for count in counts)
    assert 1_000 < pub < mpub < 20 * pub
