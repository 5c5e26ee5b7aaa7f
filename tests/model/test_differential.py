"""Random sessions are answered by gnsqd as by the real nsqd; `make differential` plays more of them."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from kit.daemons import run_tool

STEPS = 10_000


@pytest.mark.peer
@pytest.mark.parametrize("seed", [1, 2])
def test_random_sessions_are_answered_as_by_the_real_nsqd(seed: int, peer_binary: Callable[[str], Path]) -> None:
    assert peer_binary("nsqd")
    run = run_tool("model.differential", f"--seed={seed}", f"--steps={STEPS}", "--jobs=1")
    assert run.returncode == 0, run.stdout + run.stderr
    explained = sum(map(int, re.findall(r"^(\d+) explained", run.stdout, re.MULTILINE)))
    assert explained < STEPS / 500  # each ends its session
