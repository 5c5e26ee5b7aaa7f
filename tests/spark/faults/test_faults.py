"""The short version of `make spark-faults`: a few faults for each stream. Nothing is lost, and only kills of the driver
or of nsqd repeat messages, of deliveries."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.spark
@pytest.mark.timeout(1200)
def test_faults_lose_nothing_and_repeat_only_deliveries(tmp_path: Path) -> None:
    path = os.pathsep.join([str(ROOT / "tests"), str(ROOT / "tools"), *filter(None, sys.path)])
    log = tmp_path / "log"
    with log.open("w") as output:
        program = subprocess.Popen(
            [sys.executable, "-m", "spark.faults", "--short"],
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": path, "TMPDIR": str(tmp_path)},
        )
        try:
            program.wait()
        finally:
            program.terminate()  # and with it what it has started
            program.wait()
    text = log.read_text("utf-8")
    assert program.returncode == 0, text
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if re.match(r"\| \w", line)]
    assert len(rows) == 3
    for _, _, published, _, ids, lost, _, _ in rows:
        assert (ids, lost) == (published, "0")
        assert int(published) > 0
    for _, _, published, arrived, _, _, duplicated, _ in rows[1:]:
        assert (arrived, duplicated) == (published, "0")
