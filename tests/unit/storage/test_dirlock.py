"""Texts: NSQD-COMPAT 1.4, row 1."""

import os
import re
from pathlib import Path

import pytest

from gnsqd.errors import StartError
from gnsqd.storage.dirlock import DirLock


def test_second_lock_is_refused_until_the_first_is_released(tmp_path: Path) -> None:
    first, second = DirLock(str(tmp_path)), DirLock(str(tmp_path))
    first.acquire()
    text = (
        f"failed to lock data-path: cannot flock directory {tmp_path} - resource temporarily unavailable "
        "(possibly in use by another instance of nsqd)"
    )
    with pytest.raises(StartError, match=f"^{re.escape(text)}$"):
        second.acquire()
    first.release()
    second.acquire()
    second.release()


def test_missing_directory_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "none"
    text = f"failed to lock data-path: open {path}: no such file or directory"
    with pytest.raises(StartError, match=f"^{re.escape(text)}$"):
        DirLock(str(path)).acquire()


def test_empty_path_is_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    first = DirLock("")
    first.acquire()
    with pytest.raises(StartError, match=re.escape(str(tmp_path))):
        DirLock(str(tmp_path)).acquire()
    first.release()


def test_lock_leaves_no_file_and_no_descriptor(tmp_path: Path) -> None:
    before = len(os.listdir("/dev/fd"))
    for _ in range(3):
        lock = DirLock(str(tmp_path))
        lock.acquire()
        with pytest.raises(StartError):
            DirLock(str(tmp_path)).acquire()
        lock.release()
        lock.release()
    assert list(tmp_path.iterdir()) == []
    assert len(os.listdir("/dev/fd")) == before
