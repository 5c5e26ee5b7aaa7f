"""The reserved file, where something else has its name."""

import os
from pathlib import Path

import pytest

from gnsqd.storage.journal.reserve import FILE_NAME, STEP, Reserve


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_only_a_file_of_its_own_is_filled_and_freed(tmp_path: Path, kind: str) -> None:
    path, other = tmp_path / FILE_NAME, tmp_path / "other"
    other.write_bytes(bytes(2 * STEP))
    if kind == "link":
        path.symlink_to(other)
    else:
        os.mkfifo(path)
    reserve = Reserve(str(tmp_path), 3 * STEP)
    reserve.fill()
    assert not reserve.is_whole
    assert reserve.give()
    assert os.listdir(tmp_path) == ["other"]
    reserve.fill()
    assert reserve.is_whole
    assert [other.stat().st_size, path.stat().st_size] == [2 * STEP, 3 * STEP]
