"""Compaction without Spark: which files belong together, how they are exchanged, and what is swept up."""

import os
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from gnsq_pipeline.compaction import LEAST_KEPT, closed_before, exchange, plan, sweep
from gnsq_pipeline.file_log import Entry, FileLog
from gnsq_pipeline.files import LocalFiles

HOUR = "topic=t/date=2026-11-21/hour=13"


def entry(name: str, size: int = 10, directory: str = HOUR, modified_ms: int = 0) -> Entry:
    return Entry(f"{directory}/{name}.parquet", size, modified_ms, {"q": 1})


def sizes(groups: Sequence[Sequence[Entry]]) -> list[list[int]]:
    return [[entry.size for entry in group] for group in groups]


def write(files: LocalFiles, *entries: Entry) -> None:
    for made in entries:
        path = files.root / made.file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * made.size)


def data_files(files: LocalFiles) -> set[str]:
    return {status.path for status in files.walk() if status.path.endswith(".parquet")}


def test_small_files_of_one_directory_go_together_up_to_the_target() -> None:
    entries = [entry(str(number), 30, modified_ms=number) for number in range(7)]
    assert sizes(plan(entries, 100)) == [[30, 30, 30], [30, 30, 30]]


def test_directories_are_never_mixed() -> None:
    other = HOUR.replace("13", "14")
    groups = plan([entry("a"), entry("b", directory=other), entry("c"), entry("d", directory=other)], 100)
    assert [{found.directory for found in group} for group in groups] == [{HOUR}, {other}]


def test_a_file_above_half_the_target_stays_as_it_is() -> None:
    assert plan([entry("large", 51), entry("small", 1)], 100) == []
    assert sizes(plan([entry("a", 50), entry("b", 50)], 100)) == [[50, 50]]


def test_too_few_files_are_left_alone() -> None:
    assert plan([entry("a"), entry("b")], 100, min_files=3) == []
    assert plan([entry("a")], 100, min_files=1) == []


def test_only_hours_that_are_over_are_compacted_on_request() -> None:
    limit = datetime(2026, 11, 21, 14, 30, tzinfo=UTC).timestamp()
    closed = closed_before(limit)
    assert closed("topic=t/date=2026-11-21/hour=13")
    assert not closed("topic=t/date=2026-11-21/hour=14")
    assert not closed("topic=t/date=2026-11-22/hour=0")
    assert closed("topic=t/date=2026-11-20/hour=23")
    groups = plan([entry("a"), entry("b")], 100, wanted=lambda directory: False)
    assert groups == []


def test_an_exchange_keeps_the_old_files_for_a_while(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    old, new, rest = [entry("a"), entry("b")], [entry("new", 20)], entry("rest")
    write(files, *old, *new, rest)
    FileLog(files).commit(lambda now: [*old, rest])
    assert exchange(files, old, new, keep=60)
    assert {found.file for found in FileLog(files).latest().entries} == {rest.file, new[0].file}
    assert data_files(files) == {found.file for found in (*old, *new, rest)}


def test_an_exchange_without_a_while_removes_the_old_files(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    old, new = [entry("a"), entry("b")], [entry("new", 20)]
    write(files, *old, *new)
    FileLog(files).commit(lambda now: old)
    assert exchange(files, old, new, keep=0)
    assert data_files(files) == {new[0].file}


def test_who_comes_second_leaves_the_files_to_the_first(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    old, first, second = [entry("a"), entry("b")], [entry("first")], [entry("second")]
    write(files, *old, *first, *second)
    FileLog(files).commit(lambda now: old)
    assert exchange(files, old, first, keep=60)
    assert not exchange(files, old[1:], second, keep=0)
    assert [found.file for found in FileLog(files).latest().entries] == [first[0].file]
    assert second[0].file not in data_files(files)
    assert {old[0].file, old[1].file} <= data_files(files)


def age(files: LocalFiles, path: str, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(files.root / path, (then, then))


def test_a_sweep_removes_old_leftovers_and_nothing_else(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    listed, replaced, fresh = entry("listed", 1), entry("replaced", 2), entry("fresh", 4)
    write(files, listed, replaced, fresh)
    FileLog(files).commit(lambda now: [listed])
    staged = "_staging/q-7/topic=t/part-0.parquet"
    others = ["_spool/q/segment", "_checkpoint/metadata", f"{HOUR}/_SUCCESS", "notes.txt"]
    for path in (staged, *others):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(b"x" * 8)
    for path in (listed.file, replaced.file, staged, *others):
        age(files, path, 7200)
    assert sweep(files, 3600, time.time()) == (2, 10)
    assert data_files(files) == {listed.file, fresh.file}
    assert all((tmp_path / path).exists() for path in others)


def test_a_sweep_never_takes_what_a_writer_may_be_about_to_list(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    placed = entry("placed")
    write(files, placed)
    age(files, placed.file, LEAST_KEPT - 60)
    assert sweep(files, 0, time.time()) == (0, 0)
    assert data_files(files) == {placed.file}


def test_a_file_is_as_new_as_its_place(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    (tmp_path / "staged").write_bytes(b"x")
    age(files, "staged", 7200)
    files.move("staged", "topic=t/placed.parquet")
    (status,) = files.walk("topic=t")
    assert time.time() - status.modified < 3600
