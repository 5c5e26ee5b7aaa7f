"""The reserved file, where something else has its name, and on a disk that stays full."""

import errno
import os
from pathlib import Path
from unittest.mock import Mock

import pytest

from gnsqd.storage.directory import RESERVE_NAME, RESERVE_STEP, Reserve


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_only_a_file_of_its_own_is_filled_and_freed(tmp_path: Path, kind: str) -> None:
    path, other = tmp_path / RESERVE_NAME, tmp_path / "other"
    other.write_bytes(bytes(2 * RESERVE_STEP))
    if kind == "link":
        path.symlink_to(other)
    else:
        os.mkfifo(path)
    reserve = Reserve(str(tmp_path), 3 * RESERVE_STEP)
    reserve.fill()
    assert not reserve.is_whole
    assert reserve.give()
    assert os.listdir(tmp_path) == ["other"]
    reserve.fill()
    assert reserve.is_whole
    assert [other.stat().st_size, path.stat().st_size] == [2 * RESERVE_STEP, 3 * RESERVE_STEP]


def test_used_up_reserve_costs_nothing_for_each_message_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Mock(side_effect=OSError(errno.ENOSPC, "no space left on device"))
    reserve = Reserve(str(tmp_path), RESERVE_STEP)
    reserve.fill()
    assert reserve.give()
    with monkeypatch.context() as full:
        full.setattr(os, "write", write)
        reserve.take_back()
        for _ in range(3):
            assert not reserve.give()
            reserve.take_back()
    assert write.call_count == 1
    reserve.fill()
    assert reserve.is_whole
    assert reserve.give()
    reserve.take_back()
    assert (tmp_path / RESERVE_NAME).stat().st_size == RESERVE_STEP
