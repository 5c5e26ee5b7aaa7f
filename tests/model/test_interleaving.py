"""Random publishers and consumers get what a topic promises; `python -m model.interleaving` plays longer."""

import subprocess
from pathlib import Path

import pytest

from kit.daemons import own_command
from model.interleaving import Run


def durabilities() -> list[str | None]:
    """The values that the daemon knows; None is without the option."""
    usage = subprocess.run([*own_command(), "--help"], capture_output=True, text=True).stderr
    return [None, "process", "disk"] if "-durability" in usage else [None]


@pytest.mark.parametrize("seed", range(1, 4), ids="seed-{}".format)
def test_what_was_acknowledged_comes_and_what_was_finished_does_not(seed: int, tmp_path: Path) -> None:
    for durability in durabilities():
        Run(tmp_path / f"{durability}", seed, durability).play(2000)
