"""File operations, when they fail."""

import errno
import fcntl
import os
from pathlib import Path

import pytest

from gnsqd.shared.errors import StorageError
from gnsqd.storage import files
from gnsqd.storage.files import MAX_PARTS, rename_file, sync_path, write_at, write_file


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:3]))
    write_file(str(tmp_path / "file"), b"0123456789", sync=True)
    assert (tmp_path / "file").read_bytes() == b"0123456789"


def test_parts_are_written_one_behind_the_other_however_many_and_however_short_the_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = [b"%d," % number for number in range(MAX_PARTS + 1)]
    text = b"".join(parts)
    with (tmp_path / "file").open("wb") as file:
        assert write_at(file.fileno(), parts[:3], 2) == 6
        assert (tmp_path / "file").read_bytes() == b"\0\x000,1,2,"
        assert write_at(file.fileno(), parts, 0) == len(text)
        assert (tmp_path / "file").read_bytes() == text

        pwritev, pwrite = os.pwritev, os.pwrite
        monkeypatch.setattr(os, "pwritev", lambda file, parts, at: pwritev(file, [parts[0], parts[1][:1]], at))
        monkeypatch.setattr(os, "pwrite", lambda file, data, at: pwrite(file, data[:3], at))
        assert write_at(file.fileno(), [b"ab", b"cd", b"ef", b"gh"], 10) == 8
    assert (tmp_path / "file").read_bytes() == text[:10] + b"abcdefgh" + text[18:]


def test_failed_rename_leaves_no_temporary_file(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(b"new")
    target.mkdir()
    with pytest.raises(StorageError) as raised:
        rename_file(str(source), str(target))
    assert str(raised.value) == f"rename {source} {target}: is a directory"
    assert os.listdir(tmp_path) == ["target"]


def test_only_what_is_missing_counts_as_synced(tmp_path: Path) -> None:
    sync_path(str(tmp_path / "missing"))
    (tmp_path / "file").write_bytes(b"")
    path = tmp_path / "file" / "below"
    with pytest.raises(StorageError) as raised:
        sync_path(str(path))
    assert str(raised.value) == f"open {path}: not a directory"


def test_file_system_without_full_syncs_is_synced_as_far_as_it_can_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As macOS has them: what such a file system answers is not an error of the disk, and all else is one.
    synced: list[int] = []
    answer = errno.ENOTSUP

    def refuse(descriptor: int, command: int) -> None:
        assert command == 51
        raise OSError(answer, os.strerror(answer))

    monkeypatch.setattr(files, "_F_FULLFSYNC", 51)
    monkeypatch.setattr(fcntl, "fcntl", refuse)
    monkeypatch.setattr(os, "fsync", synced.append)
    write_file(str(tmp_path / "file"), b"0123456789", sync=True)
    assert len(synced) == 1
    answer = errno.EIO
    with pytest.raises(StorageError, match=r"^sync .*/file: input/output error$"):
        sync_path(str(tmp_path / "file"))
    assert len(synced) == 1
