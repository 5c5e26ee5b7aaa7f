"""The benchmarks, run as a program at a small scale, compare what they say they compare; figures are not tested."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from kit.daemons import own_command

PROGRAM = os.fspath(Path(__file__).parents[2] / "tools" / "benchmarks")
LANES = [["nsqd", "gnsqd compiled"], ["nsqd", "gnsqd plain"]]  # one of them: only one lane is installed

Run = Callable[..., tuple[dict[str, Any], subprocess.CompletedProcess[str]]]


@pytest.fixture
def run(peer_binary: Callable[[str], Path], tmp_path: Path) -> Run:
    """Returns the rows of the JSON document, and what was printed; nothing else is left behind."""
    peer_binary("load")
    ours = shlex.join(own_command())

    def measure(*rows: str, flags: tuple[str, ...] = (), code: int = 0) -> Any:
        result = tmp_path / "result.json"
        command = [sys.executable, PROGRAM, "--runs=2", "--seconds=0.2", "--backlog=20000", f"--json={result}"]
        command += [f"--real={peer_binary('nsqd')}", f"--compiled={ours}", f"--plain={ours}", *flags, "--rows", *rows]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "TMPDIR": str(tmp_path)})
        assert done.returncode == code, done.stderr
        assert [path.name for path in tmp_path.iterdir()] == ["result.json"]
        return json.loads(result.read_text())["rows"], done

    return measure


def figures(row: dict[str, Any], name: str = "value") -> list[list[float]]:
    """Returns the figures of each lane, in the order of the turns."""
    return [[run[name] for run in lane["runs"]] for lane in row["lanes"].values()]


@pytest.mark.peer
@pytest.mark.slow
def test_daemons_are_compared_turn_by_turn(run: Run) -> None:
    rows, done = run("mpub-20", "latency")
    assert done.stderr.count("without gnsqd") == 1
    units = {"mpub-20": "messages/s", "latency-p50": "ms", "latency-p99": "ms"}
    assert {name: row["unit"] for name, row in rows.items()} == units
    turns = re.findall(r"^MPUB 20, turn (\d)/2, (\w+)", done.stderr, re.MULTILINE)
    assert turns == [("1", "nsqd"), ("1", "gnsqd"), ("2", "nsqd"), ("2", "gnsqd")]
    for row in rows.values():
        assert list(row["lanes"]) in LANES
        base, ours = figures(row)
        assert min(*base, *ours) > 0
        lane = list(row["lanes"].values())[1]
        assert lane["figure"] == {"median": median(ours), "low": min(ours), "high": max(ours)}
        ratios = [own / first for first, own in zip(base, ours, strict=True)]
        assert lane["ratio"] == {"median": median(ratios), "low": min(ratios), "high": max(ratios)}
        first = rf"\| {row['title']} \| {row['unit']}.* \| nsqd \| .*"
        assert re.search(rf"^{first}\n\|  \|  \| {list(row['lanes'])[1]} \| ", done.stdout, re.MULTILINE)
    assert "ms, less is better" in done.stdout
    mpub = rows["mpub-20"]
    assert min(min(counts) for counts in figures(mpub, "messages")) > 1000
    costs = [[run["cpu_seconds"] / run["messages"] for run in lane["runs"]] for lane in mpub["lanes"].values()]
    assert list(mpub["lanes"].values())[1]["cpu_ratio"]["median"] == pytest.approx(
        median(own / first for first, own in zip(*costs, strict=True))
    )


@pytest.mark.peer
@pytest.mark.slow
def test_every_row_measures_every_daemon(run: Run) -> None:
    moving = ["pub", "consume", "both", "both-16", "http-pub", "tls-pub", "connect"]
    counts = {"memory": 4, "starts": 2, "scale-topics-10": 3, "scale-connections-1": 3}
    rows, _ = run(*moving, *counts, "durability", flags=("--runs=1",))
    (by_durability,) = [rows.pop(name) for name in list(rows) if name.startswith("durability-")]
    assert [lane.split(", ")[1:] for lane in by_durability["lanes"]] == [[], ["process"], ["disk"]]
    assert {name: len([key for key in rows if key.startswith(f"{name}-")]) for name in counts} == counts
    assert set(moving) < set(rows)
    for name, row in rows.items():
        assert list(row["lanes"]) in LANES
        runs = [run for lane in row["lanes"].values() for run in lane["runs"]]
        assert all(run["value"] > 0 for run in runs) or name.endswith("-rest"), name
        assert all(run["messages"] > 0 and run["cpu_seconds"] > 0 for run in runs) or name not in moving, name


@pytest.mark.peer
@pytest.mark.slow
def test_a_row_that_fails_does_not_take_the_others_along(run: Run) -> None:
    small = shlex.join([*own_command(), "--max-msg-size=100"])
    flags = ("--runs=1", f"--compiled={small}", f"--plain={small}")
    rows, done = run("pub", "starts", flags=flags, code=1)
    assert list(rows) == ["starts-by-its-command", "starts-as-the-fixtures-do"]
    assert re.search(r"^benchmarks: PUB one by one, gnsqd \w+: .*E_BAD_MESSAGE", done.stderr, re.MULTILINE | re.DOTALL)


@pytest.mark.peer
@pytest.mark.slow
@pytest.mark.skipif(shutil.which("valgrind") is None, reason="needs valgrind")
def test_instructions_of_a_command_are_counted(run: Run) -> None:
    names = ("pub", "mpub-20", "consume")
    rows, _ = run(*(f"instructions-{name}" for name in names), flags=("--runs=1",))
    pub, mpub, consume = (count for row in rows.values() for lane in figures(row) for count in lane)
    assert 1_000 < pub < mpub < 20 * pub
    assert 0 < consume < pub


def test_rows_are_chosen_by_pattern() -> None:
    done = subprocess.run([sys.executable, PROGRAM, "--rows", "mpub-20", "mpub-21"], capture_output=True, text=True)
    assert done.returncode == 1
    assert re.fullmatch(r"benchmarks: no row is called mpub-21; there are pub, .*\n", done.stderr)


def test_a_plot_without_matplotlib_is_refused_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "matplotlib.py").write_text("raise ImportError('there is none')")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run([sys.executable, PROGRAM, "--plot=scale.png"], capture_output=True, text=True, env=env)
    assert (done.returncode, done.stderr) == (1, "benchmarks: a plot needs matplotlib: there is none\n")
