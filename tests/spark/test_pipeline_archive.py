"""Archives: partitions, exactly once through crashes, and compaction under readers' eyes. Rows are judged as multisets
of what was generated."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.dataset
import pytest

from gnsq_pipeline.archive import ArchiveSink, adopt, read_archive
from gnsq_pipeline.archive_layout import SCHEMA
from gnsq_pipeline.compaction import compact_archive, plan, sweep
from gnsq_pipeline.errors import NotFound, PipelineError
from gnsq_pipeline.file_log import FileLog
from gnsq_pipeline.files import Files, HadoopFiles, LocalFiles, files_at
from spark.events import Event, as_frame, generate

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

MB = 1 << 20


def expected(events: Iterable[Event]) -> Counter[tuple[Any, ...]]:
    def partition(event: Event) -> tuple[str, str, int]:
        when = datetime.fromtimestamp(event.timestamp_ns // 1_000_000_000, UTC)
        return event.topic, when.date().isoformat(), when.hour

    return Counter((event.value, event.message_id, event.timestamp_ns, *partition(event)) for event in events)


def found(frame: "DataFrame") -> Counter[tuple[Any, ...]]:
    rows = frame.select("value", "message_id", "timestamp_ns", "topic", "date", "hour").collect()
    return Counter(
        (bytes(row.value), row.message_id, row.timestamp_ns, row.topic, str(row.date), row.hour) for row in rows
    )


@pytest.fixture(params=["local", "hadoop"])
def files(request: pytest.FixtureRequest, spark: "SparkSession", tmp_path: Path) -> Files:
    """An empty archive, reached in both ways."""
    root = tmp_path / "an archive"
    return LocalFiles(root) if request.param == "local" else HadoopFiles(spark, str(root))


def archive(spark: "SparkSession", files: Files, events: list[Event], batches: int, stream: str = "stream") -> None:
    sink = ArchiveSink(files)
    for batch in range(batches):
        sink.write(as_frame(spark, events[batch::batches]), stream, batch)


def root(files: Files) -> str:
    return files.location("").removeprefix("file:")


def test_every_reader_finds_each_event_once_in_its_partition(spark: "SparkSession", files: Files) -> None:
    events = generate(200, hours=2)
    archive(spark, files, events, 2)
    assert found(read_archive(spark, root(files))) == expected(events)
    assert found(spark.read.parquet(root(files))) == expected(events)
    table = pyarrow.dataset.dataset(root(files), partitioning="hive").to_table(["value", "message_id"])
    assert sorted(table["message_id"].to_pylist()) == sorted(event.message_id for event in events)
    assert {field.name for field in read_archive(spark, root(files)).schema} == {
        column.split()[0] for column in SCHEMA.split(", ")
    }


def test_a_walk_passes_over_what_others_remove_meanwhile(files: Files) -> None:
    def churn(number: int) -> None:
        while not over.is_set():
            for directory in ("log", "log/below"):
                files.create(f"{directory}/{number}", "x")
                files.remove(f"{directory}/{number}")

    assert list(files.walk("log")) == []
    stays = ["log/below/stays", "log/stays"]
    for path in stays:
        assert files.create(path, "text")
    over = threading.Event()
    with ThreadPoolExecutor(2) as pool:
        churning = [pool.submit(churn, number) for number in range(2)]
        try:
            walks = [[(at.path, at.size) for at in files.walk() if at.path in stays] for _ in range(100)]
        finally:
            over.set()
        for one in churning:
            one.result()
    assert all(sorted(walk) == [(path, 4) for path in stays] for walk in walks)
    assert [at.path for at in files.walk("log/below")] == ["log/below/stays"]


def test_hours_are_utcs_whatever_the_session_thinks(spark: "SparkSession", tmp_path: Path) -> None:
    events = generate(50, hours=30)
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Asia/Kolkata")
    try:
        archive(spark, LocalFiles(tmp_path), events, 1)
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone or "UTC")
    assert found(read_archive(spark, str(tmp_path))) == expected(events)


def test_a_batch_that_is_run_again_changes_nothing(spark: "SparkSession", files: Files) -> None:
    events = generate(200)
    archive(spark, files, events, 2)
    before = FileLog(files).latest()
    ArchiveSink(files).write(as_frame(spark, events[1::2]), "stream", 1)
    ArchiveSink(files).write(as_frame(spark, events[0::2]), "stream", 0)
    assert FileLog(files).latest() == before


def test_of_two_drivers_at_the_same_batch_one_gets_it_in(spark: "SparkSession", tmp_path: Path) -> None:
    events = generate(60)
    zombie = LocalFiles(tmp_path)
    real = zombie.move

    def slow(source: str, target: str) -> None:
        real(source, target)
        if FileLog(LocalFiles(tmp_path)).latest().number < 0:  # the other one is faster
            ArchiveSink(LocalFiles(tmp_path)).write(as_frame(spark, events), "stream", 0)

    zombie.move = slow  # type: ignore[method-assign]
    ArchiveSink(zombie).write(as_frame(spark, events), "stream", 0)
    assert FileLog(zombie).latest().number == 0
    assert found(read_archive(spark, str(tmp_path))) == expected(events)


def test_a_batch_without_rows_leaves_nothing(spark: "SparkSession", files: Files) -> None:
    archive(spark, files, generate(20), 1)
    before = sorted(status.path for status in files.walk() if not status.path.startswith("_staging"))
    ArchiveSink(files).write(as_frame(spark, []), "stream", 1)
    assert sorted(status.path for status in files.walk()) == before


class Crash(BaseException):
    """The process ends here."""


def crash_at(monkeypatch: pytest.MonkeyPatch, files: Files, step: str, call: int) -> None:
    """Let call number `call` of the method `step` of `files` crash instead, or, if it ends in +, after it was done.

    From then on nothing is done any more.
    """
    calls = 0
    dead = False

    def crashing(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any) -> Any:
            nonlocal calls, dead
            if dead:
                raise Crash
            calls += name == step.rstrip("+")
            if name != step.rstrip("+") or calls != call:
                return real(*arguments)
            dead = True
            if step.endswith("+"):
                real(*arguments)
            raise Crash

        return called

    for name in ("create", "move", "touch", "remove"):
        monkeypatch.setattr(files, name, crashing(name, getattr(files, name)))


STEPS = [
    ("move", 1),
    ("move+", 1),
    ("move", 3),
    ("move+", 3),
    ("create", 1),
    ("create+", 1),
    ("remove", 1),
]


@pytest.mark.parametrize("step, call", STEPS)
def test_a_crash_at_any_step_loses_and_doubles_nothing(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, call: int
) -> None:
    files = LocalFiles(tmp_path)
    first, second = (
        generate(60, ("orders",), 2),
        [event._replace(message_id="2" + event.message_id[1:]) for event in generate(60, ("orders",), 2)],
    )
    ArchiveSink(files).write(as_frame(spark, first), "stream", 0)
    with monkeypatch.context() as patched:
        crash_at(patched, files, step, call)
        with pytest.raises(Crash):
            ArchiveSink(files).write(as_frame(spark, second), "stream", 1)
    assert found(read_archive(spark, str(tmp_path))) in (expected(first), expected([*first, *second]))
    ArchiveSink(LocalFiles(tmp_path)).write(as_frame(spark, second), "stream", 1)
    assert found(read_archive(spark, str(tmp_path))) == expected([*first, *second])
    # What lists directories instead of following the log also finds each once when the leftovers are gone.
    sweep(files, 0, now=4e9)
    assert not [status.path for status in files.walk("_staging")]
    table = pyarrow.dataset.dataset(tmp_path, partitioning="hive").to_table(["message_id"])
    assert table.num_rows == 120


def test_compaction_keeps_the_rows_and_leaves_one_file_a_partition(spark: "SparkSession", files: Files) -> None:
    events = generate(100, hours=1.5)
    archive(spark, files, events, 2)
    before = FileLog(files).latest()
    done = compact_archive(spark, files, 128 * MB, keep=0)
    after = FileLog(files).latest()
    directories = {entry.directory for entry in before.entries}
    assert (done.files_before, done.files_after) == (len(before.entries), len(directories))
    assert sorted(entry.directory for entry in after.entries) == sorted(directories)
    assert found(read_archive(spark, root(files))) == expected(events)
    assert pyarrow.dataset.dataset(root(files), partitioning="hive").count_rows() == 100
    ids = [row.timestamp_ns for row in spark.read.parquet(files.location(after.entries[0].file)).collect()]
    assert ids == sorted(ids)


def test_a_compacted_batch_that_is_run_again_changes_nothing(spark: "SparkSession", tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    events = generate(100)
    archive(spark, files, events, 2)
    compact_archive(spark, files, 128 * MB, keep=0)
    ArchiveSink(files).write(as_frame(spark, events[1::2]), "stream", 1)
    assert found(read_archive(spark, str(tmp_path))) == expected(events)


@pytest.mark.parametrize("step, call", [("move", 1), ("move+", 1), ("create", 1), ("create+", 1), ("touch", 2)])
def test_a_compaction_that_crashes_is_done_by_the_next(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, call: int
) -> None:
    files = LocalFiles(tmp_path)
    events = generate(80, topics=("orders",), hours=1)
    archive(spark, files, events, 3)
    with monkeypatch.context() as patched:
        crash_at(patched, files, step, call)
        with pytest.raises(Crash):
            compact_archive(spark, files, 128 * MB)
    assert found(read_archive(spark, str(tmp_path))) == expected(events)
    compact_archive(spark, LocalFiles(tmp_path), 128 * MB)
    assert found(read_archive(spark, str(tmp_path))) == expected(events)
    sweep(files, 0, now=4e9)
    assert found(read_archive(spark, str(tmp_path))) == expected(events)
    assert pyarrow.dataset.dataset(tmp_path, partitioning="hive").count_rows() == 80


def test_readers_see_whole_batches_while_it_is_written_and_compacted(spark: "SparkSession", tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    events = generate(120, hours=1)
    archive(spark, files, events[:20], 1, "first")
    ends = threading.Event()
    seen: list[int] = []
    errors: list[BaseException] = []

    def read() -> None:
        while not ends.is_set():
            try:
                seen.append(spark.read.parquet(str(tmp_path)).count())
            except BaseException as error:
                errors.append(error)
                return

    def compact() -> None:
        while not ends.is_set():
            try:
                compact_archive(spark, files, 128 * MB)
            except BaseException as error:
                errors.append(error)
                return

    threads = [threading.Thread(target=read), threading.Thread(target=compact)]
    for thread in threads:
        thread.start()
    try:
        for batch in range(5):
            part = events[20 + 20 * batch : 40 + 20 * batch]
            ArchiveSink(files).write(as_frame(spark, part), "stream", batch)
    finally:
        ends.set()
        for thread in threads:
            thread.join()
    assert not errors, errors
    assert all(count % 20 == 0 for count in seen)
    assert seen == sorted(seen)
    assert len(set(seen)) > 1
    assert found(read_archive(spark, str(tmp_path))) == expected(events)
    assert FileLog(files).latest().last_batch("stream") == 4


def test_a_reader_that_began_before_a_compaction_ends_well(spark: "SparkSession", tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    events = generate(100)
    archive(spark, files, events, 2)
    began = read_archive(spark, str(tmp_path))
    assert plan(FileLog(files).latest().entries, 128 * MB)
    compact_archive(spark, files, 128 * MB)
    sweep(files, 3600, now=time.time())
    assert found(began) == expected(events)


def test_a_moved_archive_is_refused_until_it_is_adopted(spark: "SparkSession", tmp_path: Path) -> None:
    events = generate(40)
    archive(spark, LocalFiles(tmp_path / "old"), events, 1)
    (tmp_path / "old").rename(tmp_path / "new")
    with pytest.raises(PipelineError, match="was moved or copied from elsewhere"):
        read_archive(spark, str(tmp_path / "new"))
    adopt(LocalFiles(tmp_path / "new"))
    assert found(read_archive(spark, str(tmp_path / "new"))) == expected(events)


def test_any_parquet_with_a_value_can_be_read_and_nothing_else(spark: "SparkSession", tmp_path: Path) -> None:
    spark.range(3).selectExpr("cast(string(id) as binary) as value", "id").write.parquet(str(tmp_path / "plain"))
    assert read_archive(spark, str(tmp_path / "plain")).count() == 3
    spark.range(3).write.parquet(str(tmp_path / "other"))
    with pytest.raises(PipelineError, match="no column 'value' among id"):
        read_archive(spark, str(tmp_path / "other"))
    (tmp_path / "empty").mkdir()
    for name in ("empty", "missing"):
        with pytest.raises(NotFound):
            read_archive(spark, str(tmp_path / name))


def test_a_query_archives_through_the_sink_and_goes_on_after_a_restart(spark: "SparkSession", tmp_path: Path) -> None:
    events = generate(90)
    source, files = tmp_path / "source", files_at(str(tmp_path / "archive"))
    ran = []

    def run() -> None:
        query = (
            spark.readStream.schema(as_frame(spark, []).schema)
            .option("maxFilesPerTrigger", 1)
            .parquet(str(source))
            .writeStream.foreachBatch(ArchiveSink(files, lambda: ran.append(1)).write_batch)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(60)

    for part in range(3):
        as_frame(spark, events[part::3]).coalesce(1).write.mode("append").parquet(str(source))
        run()
        assert found(read_archive(spark, str(tmp_path / "archive"))) == expected(
            event for number, event in enumerate(events) if number % 3 <= part
        )
    assert len(ran) == 3
