"""Random publishers and consumers get what a topic promises; `python -m model.interleaving` plays longer."""

import pytest

from kit.daemons import run_tool


@pytest.mark.parametrize("durability", ["none", "process", "disk"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_what_was_acknowledged_comes_and_what_was_finished_does_not(seed: int, durability: str) -> None:
    run = run_tool("model.interleaving", f"--seed={seed}", "--steps=2000", f"--durability={durability}")
    assert run.returncode == 0, run.stdout + run.stderr
