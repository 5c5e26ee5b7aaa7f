"""The attacks of `make attacks`, so small that they prove nothing but that they run, and that a limit is judged."""

import subprocess

import pytest

from kit.daemons import run_tool

pytestmark = pytest.mark.one_lane


def attack(*flags: str) -> subprocess.CompletedProcess[str]:
    return run_tool("faults.attacks", "--lane=gnsqd", "--scale=0.001", *flags)


def test_every_attack_gives_a_figure() -> None:
    names = attack("--list").stdout.splitlines()
    run = attack("--limit=10000")
    assert run.returncode == 0, run.stderr
    assert [line.split(" | ")[0] for line in run.stdout.splitlines()[2:]] == [f"| {name}" for name in names]


def test_a_limit_that_is_broken_is_the_exit_code() -> None:
    run = attack("--rows=cancel, ordered, 500,000 requeued$", "--limit=-1")
    assert run.returncode == 1, run.stderr
    assert run.stdout.endswith("| NO |\n")
    assert run.stdout.count(" ms,") == 2
