"""The lock. Which files go at start, and that no others do: names from NSQD-COMPAT 2.3, 4.1 and 4.2. The watch over how
much of the disk is free, and its figures."""

import errno
import io
import os
import re
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from gnsqd.log import Level, Logger
from gnsqd.shared.errors import StartError
from gnsqd.storage.directory import CHECK_EVERY, DirLock, DiskFigures, FreeDisk, clean_up
from gnsqd.storage.disk.opening import DataFiles
from gnsqd.storage.syncer import Syncer
from kit.observers import opened
from unit.storage.greenlets import eventually

LONGEST = "x" * 64
TEMPORARY = [
    "nsqd.dat.0.tmp", "nsqd.dat.8674665223082153551.tmp", "t.diskqueue.meta.dat.5577006791947779410.tmp",
    "t:c.diskqueue.meta.dat.1.tmp", "t:c.diskqueue.due_times.dat.1.tmp",
    "t#ephemeral:c.diskqueue.meta.dat.1.tmp", "nsqd.dat:a.b-c_D.diskqueue.due_times.dat.7.tmp",
    f"{LONGEST}:{LONGEST}.diskqueue.meta.dat.9223372036854775807.tmp",
    "a.diskqueue.meta.dat.1.tmp.diskqueue.meta.dat.2.tmp", "t.diskqueue.000001.dat.1.tmp",
    "t.journal.000001.dat.1.tmp",
]  # fmt: skip
OTHERS = [
    "nsqd.dat", "nsqd.dat.tmp", "nsqd.dat..tmp", "nsqd.dat.x.tmp", "nsqd.dat.-1.tmp", "nsqd.dat.\u0661.tmp",
    "nsqd.dat.1.tmp.old", "nsqd.dat.1.tmp\n", "nsqdxdat.1.tmp", "my.nsqd.dat.1.tmp", "nsqd.7.dat",
    "nsqd.7.dat.1.tmp", "1.tmp", ".diskqueue.meta.dat.1.tmp", "t:.diskqueue.meta.dat.1.tmp",
    "t:c:d.diskqueue.meta.dat.1.tmp", "t c.diskqueue.meta.dat.1.tmp", "t.diskqueue.meta.dat.tmp",
    "t.diskqueue.metaxdat.1.tmp", "t.diskqueue.meta.dat.1.2.tmp", "t.diskqueue.000001.dat.bad",
    "t.diskqueue.dat.1.tmp", "t.diskqueue.meta.dat", "t.diskqueue.000000.dat", "u.diskqueue.000001.dat",
    "a.diskqueue.meta.dat.1.tmp.diskqueue.meta.dat", "a.diskqueue.meta.dat.1.tmp.diskqueue.000000.dat",
]  # fmt: skip
MINIMUM = 100 * CHECK_EVERY


@pytest.fixture
def log() -> io.StringIO:
    return io.StringIO()


@pytest.mark.parametrize("path", ["", "."])
def test_lock_leaves_no_file_and_no_descriptor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.chdir(tmp_path)
    for _ in range(3):
        lock = DirLock(path)
        lock.acquire()
        with pytest.raises(StartError, match=f"cannot flock directory {re.escape(str(tmp_path))} - "):
            DirLock(str(tmp_path)).acquire()
        lock.release()
        lock.release()
    assert list(tmp_path.iterdir()) == []
    assert opened(tmp_path) == 0


# Leftovers


def run(directory: Path | str, log: io.StringIO) -> list[str]:
    """Sweeps; returns the lines that were logged."""
    names = os.listdir(directory or ".")
    clean_up(DataFiles(os.fspath(directory), names), names, Logger("", Level.DEBUG, log))
    return [line.split(" ", 2)[2] for line in log.getvalue().splitlines()]


def create(directory: Path, names: list[str]) -> None:
    for name in names:
        (directory / name).write_text(name)


@pytest.mark.parametrize("data_path", ["", "full"])
def test_temporary_files_go_and_nothing_else(
    tmp_path: Path, log: io.StringIO, monkeypatch: pytest.MonkeyPatch, data_path: str
) -> None:
    monkeypatch.chdir(tmp_path)
    create(tmp_path, TEMPORARY + OTHERS)
    for _ in range(2):  # where nothing is to be removed, there is nothing to say
        lines = run(data_path and tmp_path, log)
        assert sorted(os.listdir(tmp_path)) == sorted(OTHERS)
        assert all((tmp_path / name).read_text() == name for name in OTHERS)
        assert lines == [
            f"INFO: NSQ: removed {len(TEMPORARY)} files that an nsqd before this one left unfinished or without their "
            "queue"
        ]


def test_only_regular_files_go(tmp_path: Path, log: io.StringIO) -> None:
    create(tmp_path, ["kept"])
    (tmp_path / "nsqd.dat.1.tmp").mkdir()
    (tmp_path / "nsqd.dat.2.tmp").symlink_to("kept")
    (tmp_path / "t.diskqueue.due_times.dat").symlink_to("kept")
    (tmp_path / "u.diskqueue.due_times.dat").mkdir()
    os.mkfifo(tmp_path / "t.diskqueue.meta.dat.3.tmp")
    before = sorted(os.listdir(tmp_path))
    assert run(tmp_path, log) == []
    assert sorted(os.listdir(tmp_path)) == before


@pytest.mark.parametrize("queue", ["t", "t:c", "t#ephemeral:c", "x.diskqueue.000001.dat"])
@pytest.mark.parametrize(
    "rest, kept",
    [
        ("meta.dat", True),
        ("000000.dat", True),
        ("000123.dat", True),
        ("1000000.dat", True),
        ("000123.dat.bad", False),
        ("123.dat", False),
        ("", False),
    ],
)
def test_due_times_go_only_without_meta_and_data(
    tmp_path: Path, log: io.StringIO, queue: str, rest: str, kept: bool
) -> None:
    # What nsqd leaves of a deleted queue are its `.bad` files alone.
    names = [f"{queue}:other.diskqueue.meta.dat", f"o{queue}.diskqueue.000000.dat"]
    if rest:
        names.append(f"{queue}.diskqueue.{rest}")
    due_times = f"{queue}.diskqueue.due_times.dat"
    create(tmp_path, [*names, due_times])
    run(tmp_path, log)
    assert sorted(os.listdir(tmp_path)) == sorted([*names, due_times] if kept else names)


def test_what_cannot_be_removed_is_one_line_and_hinders_nothing(
    tmp_path: Path, log: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(tmp_path, TEMPORARY)
    unlink = os.unlink
    stuck = [os.fspath(tmp_path / name) for name in TEMPORARY[:2]]

    def refuse(path: str) -> None:
        if path in stuck:
            raise OSError(30, "Read-only file system")
        unlink(path)

    monkeypatch.setattr(os, "unlink", refuse)
    lines = run(tmp_path, log)
    assert sorted(os.listdir(tmp_path)) == sorted(TEMPORARY[:2])
    assert lines[0].startswith(f"INFO: NSQ: removed {len(TEMPORARY) - 2} files ")
    assert lines[1].startswith("WARNING: NSQ: failed to remove 2 files that nobody needs - remove ")
    assert lines[1].endswith(": read-only file system")
    assert len(lines) == 2


# Free space


class DiskOfSize:
    """Answers as `os.statvfs`, in blocks of 4096 bytes, and counts the calls."""

    def __init__(self) -> None:
        self.free = MINIMUM
        self.broken = False
        self.looks = 0

    def statvfs(self, path: str) -> SimpleNamespace:
        assert path == "."
        self.looks += 1
        if self.broken:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        # Of those, root alone could have the second million.
        return SimpleNamespace(f_frsize=4096, f_bavail=self.free // 4096, f_bfree=self.free // 4096 + 1_000_000)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> DiskOfSize:
    disk = DiskOfSize()
    monkeypatch.setattr(os, "statvfs", disk.statvfs)
    return disk


@pytest.fixture
def watch(disk: DiskOfSize, log: io.StringIO) -> FreeDisk:
    return FreeDisk("", MINIMUM, Logger("", Level.INFO, log))


def lines(log: io.StringIO) -> list[str]:
    return re.findall(r"[A-Z]+: NSQ: .*", log.getvalue())


def test_it_is_low_below_the_minimum_and_says_when_that_begins_and_ends(
    disk: DiskOfSize, watch: FreeDisk, log: io.StringIO
) -> None:
    for free, low in [(MINIMUM, False), (MINIMUM - 4096, True), (0, True), (0, True), (MINIMUM, False)]:
        disk.free = free
        watch.check()
        assert watch.low == low
    assert lines(log) == [
        f"WARNING: NSQ: {MINIMUM - 4096} bytes of disk are free, publishers are refused below {MINIMUM}",
        f"INFO: NSQ: {MINIMUM} bytes of disk are free, publishers are no longer refused",
    ]


def test_it_looks_at_first_and_then_after_every_mebibyte(disk: DiskOfSize, watch: FreeDisk) -> None:
    disk.free = 0
    assert watch.is_low(1)
    assert disk.looks == 1
    disk.free = MINIMUM
    assert watch.is_low(CHECK_EVERY - 1)
    assert disk.looks == 1
    assert not watch.is_low(1)
    assert disk.looks == 2


def test_disk_that_cannot_be_asked_stays_as_it_was(disk: DiskOfSize, watch: FreeDisk, log: io.StringIO) -> None:
    disk.free = 0
    watch.check()
    disk.broken = True
    for _ in range(3):
        watch.check()
    assert watch.low
    assert lines(log)[1:] == ["ERROR: NSQ: free disk space is unknown - statvfs .: input/output error"]


def test_a_disk_that_does_not_answer_is_asked_once_and_has_no_size(
    monkeypatch: pytest.MonkeyPatch, syncer: Syncer, tmp_path: Path
) -> None:
    monkeypatch.setattr("gnsqd.storage.directory.DISK_SECONDS", 0.02)
    gate, calls = threading.Event(), []
    statvfs = os.statvfs

    def hang(path: str) -> os.statvfs_result:
        calls.append(path)
        gate.wait(10)
        return statvfs(path)

    monkeypatch.setattr("os.statvfs", hang)
    figures = DiskFigures(os.fspath(tmp_path), syncer)
    assert figures() == figures() == {"sync_lag_seconds": 0.0}
    assert calls == [os.fspath(tmp_path)]
    gate.set()
    expected = statvfs(tmp_path)
    eventually(lambda: figures().get("disk_bytes") == expected.f_blocks * expected.f_frsize)
    assert figures().keys() == {"sync_lag_seconds", "disk_bytes", "free_disk_bytes"}
    assert DiskFigures(os.fspath(tmp_path / "missing"), syncer)() == {"sync_lag_seconds": 0.0}
