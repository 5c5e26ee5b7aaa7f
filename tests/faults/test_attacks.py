"""Attacks of `make attacks`, so small that they prove nothing but that they run, and that a limit is judged."""

import subprocess

import pytest

from kit.daemons import run_tool

pytestmark = pytest.mark.one_lane

OF_EACH_KIND = {
    "40 views of the page, 3,000 topics": ["longest wait"],
    "page: 8 viewers with the full token": [
        "PUB/s alone",
        "PUB/s left",
        "PUB/s alone, by the daemon's time",
        "PUB/s left, by the daemon's time",
        "longest wait",
        "RSS, peak",
        "RSS, afterwards",
        "requests",
    ],
    "10 hostile nodes: the page": [
        "seconds",
        "RSS, peak",
        "requests at the nodes",
        "of these with a token",
        "RSS, afterwards",
    ],
    "time-outs in 10,000 channels": ["latest time-out", "CPU at rest"],
}


def attack(*flags: str) -> subprocess.CompletedProcess[str]:
    return run_tool("faults.attacks", "--lane=gnsqd", "--scale=0.001", "--beside=100", *flags)


def table(run: subprocess.CompletedProcess[str]) -> list[list[str]]:
    return [line.strip("| ").split(" | ") for line in run.stdout.splitlines()[2:]]


@pytest.mark.parametrize("name, figures", OF_EACH_KIND.items(), ids=OF_EACH_KIND)
def test_an_attack_gives_its_figures(name: str, figures: list[str]) -> None:
    run = attack(f"--rows=^{name}$")
    assert [(cells[0], cells[2]) for cells in table(run)] == [(name, figure) for figure in figures], run.stderr


@pytest.mark.parametrize("limit, code, holds, attempts", [(10_000, 0, "yes", 1), (-1000, 1, "NO", 3)])
def test_a_limit_that_is_broken_is_the_exit_code(limit: int, code: int, holds: str, attempts: int) -> None:
    run = attack("--rows=cancel, ordered, 500,000 requeued$", f"--limit={limit}")
    ((_, _, _, values, _, held),) = table(run)
    assert (run.returncode, held, values.count(" ms")) == (code, holds, attempts), run.stderr
