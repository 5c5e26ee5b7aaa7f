"""The short version of `make spark-faults`: a few faults for each stream, and nothing lost or duplicated."""

from pathlib import Path

import pytest

from spark.faults.points import SEAL_TO_FIN
from spark.faults.scenarios import Row, fill_disk, inject, play, restart_nsqd

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def exact(row: Row, directory: Path) -> None:
    tally, _ = play(row, directory)
    assert tally.published == tally.rows == tally.ids
    assert tally.lost == tally.duplicated == 0


def test_killed_drivers_a_restarted_nsqd_and_a_full_disk_lose_and_double_nothing(tmp_path: Path) -> None:
    faults = (inject("sealed, before FIN"), restart_nsqd, fill_disk, inject("before commit"))
    exact(Row("driver", faults, 1, small_disk=True), tmp_path)


def test_executors_killed_between_seal_and_fin_lose_and_double_nothing(tmp_path: Path) -> None:
    exact(Row("executors", tuple(inject(point) for point in SEAL_TO_FIN[::2]), 1, cluster=True), tmp_path)
