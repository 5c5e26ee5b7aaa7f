"""The blocks of large files are freed in a thread: for 100 MB that takes some 30 ms, and the hub would stop."""

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from gnsqd.storage import syncer as syncer_module
from gnsqd.storage.disk.due_times import DueTimes
from gnsqd.storage.files import append_file
from gnsqd.storage.syncer import MAX_KEPT, Syncer
from unit.storage.conftest import OpenQueue, OpenTopic
from unit.storage.disk.test_due_times import due_times, hold, path, release
from unit.storage.greenlets import eventually

__all__ = ["due_times", "path"]


@pytest.fixture
def freed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Files of messages whose blocks were freed on the hub. Each counts as large."""
    monkeypatch.setattr(syncer_module, "LARGE", 1)
    hub = threading.get_ident()
    freed: list[str] = []

    def watch(name: str, which: int) -> None:
        call: Callable[..., Any] = getattr(os, name)

        def watched(*arguments: Any) -> Any:
            file = arguments[which]
            with suppress(OSError):
                status = os.stat(file)
                name_of_file = os.readlink(f"/proc/self/fd/{file}") if isinstance(file, int) else file
                is_last = status.st_nlink + opened().count(status.st_ino) == 1
                if is_last and status.st_size and ".meta." not in name_of_file and threading.get_ident() == hub:
                    freed.append(f"{name} {name_of_file}")
            return call(*arguments)

        monkeypatch.setattr(os, name, watched)

    def opened() -> list[int]:
        inodes = []
        for descriptor in os.listdir("/proc/self/fd"):
            with suppress(OSError):
                inodes.append(os.stat(f"/proc/self/fd/{descriptor}").st_ino)
        return inodes

    watch("unlink", 0)
    watch("close", 0)
    watch("rename", 1)
    return freed


def test_a_queue_that_is_read_emptied_or_deleted(open_queue: OpenQueue, tmp_path: Path, freed: list[str]) -> None:
    queue = open_queue(max_bytes_per_file=100)
    for end in (queue.empty, queue.delete):
        queue.put_many([bytes(50)] * 20)
        assert queue.peek_many(2, 1000)
        queue.advance(1)
        queue.peek_many(2, 1000)
        queue.advance(1)  # the first file is read
        end()
        assert [name for name in os.listdir(tmp_path) if not name.endswith(".tmp")] == []
    eventually(lambda: not os.listdir(tmp_path))
    assert freed == []


def test_due_times_of_a_queue(due_times: DueTimes, path: Path, freed: list[str]) -> None:
    hold(due_times, range(1000), 10_000)
    release(due_times, range(600))
    eventually(lambda: path.stat().st_size < 5_000_000)
    due_times.remove()
    assert not path.exists()
    assert freed == []


@pytest.mark.parametrize("durable", [False, True], ids=["process", "disk"])
def test_a_journal_that_is_compacted_and_removed(open_topic: OpenTopic, freed: list[str], durable: bool) -> None:
    topic = open_topic(durable=durable)
    for _ in range(2):
        topic.put_and_keep_few()
        while not topic.journal.compactor.compact():
            pass
    topic.finish((1, topic.journal.log.next_number))
    topic.journal.commit()
    topic.journal.remove()
    assert not [name for name in topic.names() if not name.endswith(".tmp")]
    assert freed == []


def test_a_file_of_the_same_name_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # However many are being removed, and at an exit nothing is left of them.
    monkeypatch.setattr(syncer_module, "LARGE", 1)
    syncer = Syncer()
    files = [tmp_path / f"t.diskqueue.{number:06d}.dat" for number in range(2 * MAX_KEPT)]
    for file in files:
        append_file(str(file), b"old")
    for file in files:
        syncer.remove(str(file))
        assert not file.exists()
        append_file(str(file), b"new")
    with pytest.raises(FileNotFoundError):
        syncer.remove(str(tmp_path / "none"))
    syncer.stop()
    assert {file: file.read_bytes() for file in tmp_path.iterdir()} == dict.fromkeys(files, b"new")
