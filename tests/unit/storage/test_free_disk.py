"""The watch over how much of the disk is free."""

import errno
import io
import os
import re
from types import SimpleNamespace

import pytest

from gnsqd.log import Level, Logger
from gnsqd.storage.free_disk import LOOK_EVERY, FreeDisk

MINIMUM = 100 * LOOK_EVERY


class Disk:
    """What `os.statvfs` says, in blocks of 4096 bytes, and how often it was asked."""

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
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    disk = Disk()
    monkeypatch.setattr(os, "statvfs", disk.statvfs)
    return disk


@pytest.fixture
def log() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def watch(disk: Disk, log: io.StringIO) -> FreeDisk:
    return FreeDisk("", MINIMUM, Logger("", Level.INFO, log))


def lines(log: io.StringIO) -> list[str]:
    return re.findall(r"[A-Z]+: NSQ: .*", log.getvalue())


def test_it_is_low_below_the_minimum_and_says_when_that_begins_and_ends(
    disk: Disk, watch: FreeDisk, log: io.StringIO
) -> None:
    for free, low in [(MINIMUM, False), (MINIMUM - 4096, True), (0, True), (0, True), (MINIMUM, False)]:
        disk.free = free
        watch.look()
        assert watch.low == low
    assert lines(log) == [
        f"WARNING: NSQ: {MINIMUM - 4096} bytes of disk are free, publishers are refused below {MINIMUM}",
        f"INFO: NSQ: {MINIMUM} bytes of disk are free, publishers are no longer refused",
    ]


def test_it_looks_at_first_and_then_after_every_mebibyte(disk: Disk, watch: FreeDisk) -> None:
    disk.free = 0
    assert watch.is_low(1)
    assert disk.looks == 1
    disk.free = MINIMUM
    assert watch.is_low(LOOK_EVERY - 1)
    assert disk.looks == 1
    assert not watch.is_low(1)
    assert disk.looks == 2


def test_disk_that_cannot_be_asked_stays_as_it_was(disk: Disk, watch: FreeDisk, log: io.StringIO) -> None:
    disk.free = 0
    watch.look()
    disk.broken = True
    for _ in range(3):
        watch.look()
    assert watch.low
    assert lines(log)[1:] == ["ERROR: NSQ: free disk space is unknown - statvfs .: input/output error"]
