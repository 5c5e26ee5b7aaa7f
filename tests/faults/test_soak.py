"""A short soak: `make soak` takes an hour."""

from kit.daemons import run_tool


def test_everything_is_finished_once_and_counted_and_nothing_stays() -> None:
    run = run_tool("faults.soak", "--minutes=0.05", "--interval=0.01", "--durability=process")
    assert run.returncode == 0, run.stdout + run.stderr
    *_, last = run.stdout.splitlines()
    for what in (" come and gone", " reconnects", " scrapes"):
        assert what in last
    finished = [line.split(" | ") for line in run.stdout.splitlines() if line.startswith(("| t |", "| u |"))]
    assert len(finished) == 4
    assert all(int(cells[2]) == int(cells[3]) > 0 for cells in finished)
