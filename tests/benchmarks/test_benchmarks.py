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
    """Rows and flags: the rows of the JSON document, and what was printed. Nothing else is left behind."""
    peer_binary("load")
    ours = shlex.join(own_command())

    def measure(*rows: str, flags: tuple[str, ...] = (), code: int | None = 0) -> Any:
        result = tmp_path / "result.json"
        command = [sys.executable, PROGRAM, "--runs=2", "--seconds=0.2", "--backlog=20000", f"--json={result}"]
        command += [f"--real={peer_binary('nsqd')}", f"--compiled={ours}", f"--plain={ours}", *flags, "--rows", *rows]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "TMPDIR": str(tmp_path)})
        assert code is None or done.returncode == code, done.stderr
        assert [path.name for path in tmp_path.iterdir()] == ["result.json"]
        return json.loads(result.read_text())["rows"], done

    return measure


def figures(row: dict[str, Any], name: str = "value") -> list[list[float]]:
    """Of each lane, in the order of the turns."""
    return [[run[name] for run in lane["runs"]] for lane in row["lanes"].values()]


@pytest.mark.peer
@pytest.mark.slow
def test_daemons_are_compared_turn_by_turn(run: Run) -> None:
    rows, done = run("writer-20", "restart", "idle-memory")
    assert done.stderr.count("without gnsqd") == 1
    assert {name: row["unit"] for name, row in rows.items()} == {
        "writer-20": "messages/s", "restart": "s", "idle-memory": "MB"
    }  # fmt: skip
    turns = re.findall(r"^restart .*turn (\d)/2, (\w+)", done.stderr, re.MULTILINE)
    assert turns == [("1", "nsqd"), ("1", "gnsqd"), ("2", "nsqd"), ("2", "gnsqd")]
    for name, row in rows.items():
        assert list(row["lanes"]) in LANES
        base, ours = figures(row)
        assert min(*base, *ours) > 0
        lane = list(row["lanes"].values())[1]
        assert lane["figure"] == {"median": median(ours), "low": min(ours), "high": max(ours)}
        pairs = zip(base, ours, strict=True)
        ratios = [first / own if name == "restart" else own / first for first, own in pairs]  # less time is faster
        assert lane["ratio"] == {"median": median(ratios), "low": min(ratios), "high": max(ratios)}
        first = rf"\| {row['title']} \| {row['unit']}.* \| nsqd \| .*"
        assert re.search(rf"^{first}\n\|  \|  \| {list(row['lanes'])[1]} \| ", done.stdout, re.MULTILINE)
    assert "MB, less is better" in done.stdout
    writer = rows["writer-20"]
    assert min(min(counts) for counts in figures(writer, "messages")) > 1000
    costs = [[run["cpu_seconds"] / run["messages"] for run in lane["runs"]] for lane in writer["lanes"].values()]
    assert list(writer["lanes"].values())[1]["cpu_ratio"]["median"] == pytest.approx(
        median(own / first for first, own in zip(*costs, strict=True))
    )
    assert writer["sink"]["value"] > 0
    assert rows["restart"]["sink"] is None
    assert len(re.findall(r", sink: ", done.stderr)) == 1
    for lane in writer["lanes"].values():  # the daemons that are almost as fast as one that does no work
        assert ("§" in lane["marks"]) == (lane["figure"]["median"] > 0.8 * writer["sink"]["value"])


@pytest.mark.peer
@pytest.mark.slow
def test_every_kind_of_row_moves_messages_in_every_daemon(run: Run) -> None:
    moving = ["pub", "consume-100", "both", "http-mpub", "tls-consume", "deflate-mpub-20", "drain"]
    timed = ["trip-neighbour", "end-to-end", "steady-1000-channels-4"]
    rows, _ = run(*moving, *timed, "exit", "connection-memory", "pub-durability", "rewind",
                  flags=("--runs=1",))  # fmt: skip
    by_variant = {name: rows.pop(name) for name in list(rows) if name.endswith(("compiled", "plain"))}
    variants = {
        name.rpartition("-")[0]: [lane.split(", ")[1:] for lane in row["lanes"]] for name, row in by_variant.items()
    }
    durability = [[], ["process"], ["disk"]]
    retention = [["process"], ["retention"]]
    assert variants == {"pub-durability": durability, "rewind": retention}
    assert set(rows) == {
        *moving,
        "exit",
        "connection-memory",
        *(f"{name}-{part}" for name in timed for part in ("p50", "p99")),
    }
    for name, row in {**rows, **by_variant}.items():
        runs = [run for lane in row["lanes"].values() for run in lane["runs"]]
        assert all(run["value"] > 0 for run in runs), name
        if name in moving:
            assert list(row["lanes"]) in LANES
            assert all(run["messages"] > 0 and run["cpu_seconds"] > 0 for run in runs), name
            assert (row["sink"] is None) == (name == "drain")
        assert (row["unit"] == "ms") == name.startswith(("trip", "end", "steady"))


@pytest.mark.peer
@pytest.mark.slow
def test_rows_that_run_apart_give_a_line_for_each_figure(run: Run) -> None:
    names = ("create-ephemeral", "memory-1000", "schedule", "lookupd", "scale-topics-10", "scale-in-flight-1",
             "scale-deferred-100")  # fmt: skip
    rows, _ = run(*names, flags=("--runs=1",))
    counts = {name: len([key for key in rows if key.startswith(f"{name}-")]) for name in names}
    assert counts == dict(zip(names, (3, 3, 8, 11, 3, 3, 3), strict=True))
    for name, row in rows.items():
        assert list(row["lanes"]) in LANES
        assert all(lane["figure"]["median"] > 0 for lane in row["lanes"].values()) or name.endswith("-rest"), name


@pytest.mark.peer
@pytest.mark.slow
def test_a_row_that_fails_does_not_take_the_others_along(run: Run) -> None:
    small = shlex.join([*own_command(), "--max-msg-size=100"])
    flags = ("--runs=1", f"--compiled={small}", f"--plain={small}")
    rows, done = run("pub", "idle-memory", flags=flags, code=1)
    assert list(rows) == ["idle-memory"]
    assert re.search(r"^benchmarks: PUB one by one, gnsqd \w+: .*E_BAD_MESSAGE", done.stderr, re.MULTILINE | re.DOTALL)


@pytest.mark.peer
@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_a_server_without_work_is_measured_where_it_serves(run: Run) -> None:
    rows, _ = run("both-16", "http-mpub", "idle-memory", flags=("--runs=1", "--floor"))
    assert [list(row["lanes"])[2:] for row in rows.values()] == [["floor"], ["floor"], []]
    assert all(run["messages"] > 0 for name in ("both-16", "http-mpub") for run in rows[name]["lanes"]["floor"]["runs"])


@pytest.mark.peer
@pytest.mark.slow
@pytest.mark.skipif(shutil.which("valgrind") is None, reason="needs valgrind")
def test_instructions_of_a_command_are_counted(run: Run) -> None:
    rows, _ = run("instructions-pub", "instructions-mpub-20", flags=("--runs=1",))
    pub, mpub = (count for row in rows.values() for lane in figures(row) for count in lane)
    assert 1_000 < pub < mpub < 20 * pub


@pytest.mark.peer
@pytest.mark.slow
def test_figures_beyond_what_gnsqd_promises_are_reported(run: Run) -> None:
    """Which they are depends on the machine."""
    rows, done = run("scrape-text", flags=("--runs=1",), code=None)
    limits = {"alone": 250, "beside-scrapes-PUB-p99": 10}
    late = []
    for name, row in rows.items():
        limit = next((limit for end, limit in limits.items() if re.search(rf"-(compiled|plain)-{end}$", name)), None)
        late += [row["title"] for (value,) in figures(row) if limit is not None and value > limit]
    assert len(rows) == 6
    assert re.findall(r"^benchmarks: (.*), gnsqd \w+: [\d.,]+ is more than \d+$", done.stderr, re.MULTILINE) == late
    assert done.returncode == bool(late)


def test_rows_are_chosen_by_pattern() -> None:
    done = subprocess.run([sys.executable, PROGRAM, "--rows", "mpub-20", "mpub-21"], capture_output=True, text=True)
    assert done.returncode == 1
    assert re.fullmatch(r"benchmarks: no row is called mpub-21; there are writer-1, .*\n", done.stderr)


def test_a_plot_without_matplotlib_is_refused_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "matplotlib.py").write_text("raise ImportError('there is none')")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run([sys.executable, PROGRAM, "--plot=scale.png"], capture_output=True, text=True, env=env)
    assert (done.returncode, done.stderr) == (1, "benchmarks: a plot needs matplotlib: there is none\n")
