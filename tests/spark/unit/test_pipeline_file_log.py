"""An archive's log: what is the newest version, whatever other writers and crashes do."""

import json
import threading
from pathlib import Path

import pytest

from gnsq_pipeline.errors import PipelineError
from gnsq_pipeline.file_log import DIRECTORY, Entry, FileLog
from gnsq_pipeline.files import LocalFiles


def entry(name: str, size: int = 10, **batches: int) -> Entry:
    return Entry(f"topic=t/date=2026-11-21/hour=13/{name}.parquet", size, 1000, batches)


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in (directory / DIRECTORY).iterdir())


def test_an_archive_begins_as_version_minus_one_without_files(tmp_path: Path) -> None:
    latest = FileLog(LocalFiles(tmp_path / "not there")).latest()
    assert (latest.number, latest.entries) == (-1, ())
    assert latest.last_batch("s") == -1


def test_a_commit_is_read_back_whole(tmp_path: Path) -> None:
    log = FileLog(LocalFiles(tmp_path / "an archive"))
    entries = [entry("a", q=3), entry("b", 20, q=4, r=1)]
    assert log.commit(lambda now: entries).number == 0
    latest = log.latest()
    assert list(latest.entries) == entries
    assert latest.moved_from is None
    assert (latest.last_batch("q"), latest.last_batch("r"), latest.last_batch("s")) == (4, 1, -1)


def test_a_version_is_what_spark_reads_as_a_list_of_files(tmp_path: Path) -> None:
    FileLog(LocalFiles(tmp_path / "a b")).commit(lambda now: [entry("x#y", 7)])
    header, line = (tmp_path / "a b" / DIRECTORY / "0.compact").read_text().split("\n")
    assert header == "v1"
    reported = json.loads(line)
    assert reported["path"] == f"file://{tmp_path}/a%20b/topic%3Dt/date%3D2026-11-21/hour%3D13/x%23y.parquet"
    assert {key: reported[key] for key in ("size", "isDir", "modificationTime", "blockReplication", "action")} == {
        "size": 7,
        "isDir": False,
        "modificationTime": 1000,
        "blockReplication": 1,
        "action": "add",
    }


def test_no_change_makes_no_version(tmp_path: Path) -> None:
    log = FileLog(LocalFiles(tmp_path))
    log.commit(lambda now: [entry("a")])
    assert log.commit(lambda now: None).number == 0
    assert names(tmp_path) == ["0.compact"]


def test_writers_that_collide_lose_nothing(tmp_path: Path) -> None:
    def add(writer: int) -> None:
        log = FileLog(LocalFiles(tmp_path))
        for number in range(10):
            log.commit(lambda now, name=f"{writer}-{number}": [*now.entries, entry(name)])  # type: ignore[misc]

    threads = [threading.Thread(target=add, args=(writer,)) for writer in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    latest = FileLog(LocalFiles(tmp_path)).latest()
    assert latest.number == 39
    assert {entry.file for entry in latest.entries} == {
        entry(f"{writer}-{number}").file for writer in range(4) for number in range(10)
    }


def test_another_writers_version_is_the_ground_of_the_next_try(tmp_path: Path) -> None:
    log = FileLog(LocalFiles(tmp_path))
    seen = []

    def change(now: object) -> list[Entry]:
        seen.append(now)
        if len(seen) == 1:  # the other writer is faster
            FileLog(LocalFiles(tmp_path)).commit(lambda now: [entry("theirs")])
        return [*getattr(now, "entries", ()), entry("ours")]

    version = log.commit(change)
    assert (version.number, len(seen)) == (1, 2)
    assert list(version.entries) == [entry("theirs"), entry("ours")]


def test_old_versions_go_but_never_the_last_two(tmp_path: Path) -> None:
    log = FileLog(LocalFiles(tmp_path))
    for number in range(30):
        log.commit(lambda now, number=number: [entry(str(number))])  # type: ignore[misc]
    kept = sorted(int(name.removesuffix(".compact")) for name in names(tmp_path))
    assert kept == list(range(30 - len(kept), 30))
    assert len(kept) >= 2
    assert log.latest().entries == (entry("29"),)


def test_a_crash_while_a_version_is_written_leaves_the_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = FileLog(LocalFiles(tmp_path))
    log.commit(lambda now: [entry("a")])

    def crash(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.link", crash)
    with pytest.raises(OSError, match="No space"):
        log.commit(lambda now: [entry("b")])
    assert log.latest().entries == (entry("a"),)
    assert names(tmp_path) == ["0.compact"]


@pytest.mark.parametrize("text", ["", "v2", "v1\nnot json", 'v1\n{"path": "x"}', "v1\n[]"])
def test_a_damaged_version_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / DIRECTORY).mkdir()
    (tmp_path / DIRECTORY / "0.compact").write_text(text)
    with pytest.raises(PipelineError, match=r"_spark_metadata/0\.compact is damaged"):
        FileLog(LocalFiles(tmp_path)).latest()


def test_the_log_of_sparks_own_sink_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / DIRECTORY).mkdir()
    (tmp_path / DIRECTORY / "0").write_text("v1\n")
    with pytest.raises(PipelineError, match="was written by Spark's own file sink"):
        FileLog(LocalFiles(tmp_path)).latest()


def test_a_moved_archive_is_noticed(tmp_path: Path) -> None:
    FileLog(LocalFiles(tmp_path / "old")).commit(lambda now: [entry("a")])
    (tmp_path / "old").rename(tmp_path / "new")
    moved_from = FileLog(LocalFiles(tmp_path / "new")).latest().moved_from
    assert moved_from is not None
    assert "/old/" in moved_from
