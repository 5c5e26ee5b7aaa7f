"""Archives: what Spark's file sink writes for them, what is refused, and what their readers find. Rows are compared as
multisets with the generated events."""

import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.dataset
import pytest

from gnsq_pipeline.archive import COLUMNS, check_writable, read_archive
from gnsq_pipeline.errors import InputNotFound, PipelineError, UsageError
from spark.events import EventRow, archive, generate

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

EVENTS = generate(200, topics=("orders", "7"), hours=30)  # a topic that looks like a number, on two days


def expected(events: Iterable[EventRow]) -> Counter[tuple[Any, ...]]:
    def date(event: EventRow) -> str:
        return datetime.fromtimestamp(event.timestamp_ns // 1_000_000_000, UTC).date().isoformat()

    return Counter((event.value, event.message_id, event.timestamp_ns, event.topic, date(event)) for event in events)


def found(frame: "DataFrame") -> Counter[tuple[Any, ...]]:
    rows = frame.select("value", "message_id", "timestamp_ns", "topic", "date").collect()
    return Counter((bytes(row.value), row.message_id, row.timestamp_ns, row.topic, str(row.date)) for row in rows)


@pytest.fixture(scope="module")
def written(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns an archive of all events in two batches, written by a session that is not in UTC; not to be changed."""
    directory = tmp_path_factory.mktemp("archive") / "an archive"
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Asia/Kolkata")
    try:
        archive(spark, directory, EVENTS, 2)
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone or "UTC")
    return directory


@pytest.fixture
def own(written: Path, tmp_path: Path) -> Path:
    """Returns a copy of it, as if it had been written there."""
    directory = tmp_path / "own"
    shutil.copytree(written, directory)
    for file in (directory / "_spark_metadata").glob("[0-9]*"):
        file.write_text(file.read_text().replace(written.as_uri(), directory.as_uri()))
    for file in (directory / "_spark_metadata").glob(".*.crc"):
        file.unlink()
    return directory


def test_every_reader_finds_each_event_once_in_its_partition(spark: "SparkSession", written: Path) -> None:
    assert found(read_archive(spark, str(written))) == expected(EVENTS)
    assert found(read_archive(spark, f"file://{written}")) == expected(EVENTS)
    assert found(spark.read.parquet(str(written))) == expected(EVENTS)
    table = pyarrow.dataset.dataset(written, partitioning="hive").to_table(["message_id"])
    assert sorted(table["message_id"].to_pylist()) == sorted(event.message_id for event in EVENTS)
    assert read_archive(spark, str(written)).columns == COLUMNS
    check_writable(spark, str(written))
    for use in (check_writable, read_archive):
        with pytest.raises(UsageError, match="looks like a table of another format: use --format parquet"):
            use(spark, str(written), "delta")


@pytest.mark.parametrize("committed", [True, False], ids=["after the sink's commit", "before it"])
def test_batch_a_crash_interrupted_is_archived_once(spark: "SparkSession", tmp_path: Path, committed: bool) -> None:
    directory = tmp_path / "archive"
    archive(spark, directory, EVENTS, 2)
    for log in ("_checkpoint/commits", *([] if committed else ["_spark_metadata"])):
        (directory / log / "1").unlink()
        (directory / log / ".1.crc").unlink()
    if not committed:
        assert found(read_archive(spark, str(directory))) != expected(EVENTS)
    check_writable(spark, str(directory))
    archive(spark, directory, [], 0)
    assert found(read_archive(spark, str(directory))) == expected(EVENTS)
    # The files of the first try stay, so whoever does not read the log finds their rows twice.
    listed = pyarrow.dataset.dataset(directory, partitioning="hive").count_rows()
    assert (listed > len(EVENTS)) is not committed


def test_rows_are_read_while_batches_are_added(spark: "SparkSession", own: Path) -> None:
    began = read_archive(spark, str(own))
    (own / "_spark_metadata" / "2").write_text("v1")  # a batch without rows
    assert found(began) == found(read_archive(spark, str(own))) == expected(EVENTS)
    (own.parent / "new" / "_spark_metadata").mkdir(parents=True)
    (own.parent / "new" / "_spark_metadata" / "0").write_text("v1")
    assert not found(read_archive(spark, str(own.parent / "new")))


def of_old_release(directory: Path) -> None:
    """Makes the log that of releases before Spark's file sink: one file that lists all, with fields of their own."""
    log = directory / "_spark_metadata"
    entries = [json.loads(line) for number in "01" for line in (log / number).read_text().splitlines()[1:]]
    for entry in entries:
        file = Path(entry["path"].removeprefix("file://"))
        hour = file.parent / "hour=13" / file.name
        hour.parent.mkdir(exist_ok=True)
        file.rename(hour)
        entry |= {"path": hour.as_uri(), "file": str(hour.relative_to(directory)), "batches": {"stream": 1}}
    shutil.rmtree(log)
    log.mkdir()
    (log / "7.compact").write_text("\n".join(["v1", *map(json.dumps, entries)]))


def damaged(directory: Path) -> None:
    (directory / "_spark_metadata" / "1").write_text("v1\n{")


REFUSED = [
    (lambda directory: shutil.rmtree(directory / "_checkpoint"), "the checkpoint of this archive is missing"),
    (lambda directory: shutil.rmtree(directory / "_spark_metadata"), "has files that are not of an archive: use ano"),
    (of_old_release, "was written by an older release: replay and rollup read it; archive to another directory"),
    (damaged, "_spark_metadata is damaged: Unexpected end-of-input"),
]


@pytest.mark.parametrize("change, error", REFUSED)
def test_a_directory_where_batches_would_be_lost_is_refused(
    spark: "SparkSession", own: Path, change: Callable[[Path], None], error: str
) -> None:
    change(own)
    with pytest.raises(PipelineError, match=error):
        check_writable(spark, str(own))
    if change is damaged:
        with pytest.raises(PipelineError, match=error):
            read_archive(spark, str(own))
    else:
        assert found(read_archive(spark, str(own))) == expected(EVENTS)


def test_a_moved_archive_can_only_be_read_without_its_log(spark: "SparkSession", own: Path) -> None:
    directory = str(own.rename(own.with_name("moved")))
    error = "was moved or copied: the log of Spark's sink lists files of .*/own; move it back"
    for use in (check_writable, read_archive):
        with pytest.raises(PipelineError, match=error):
            use(spark, directory)
    spark.conf.set("spark.sql.streaming.fileStreamSink.ignoreMetadata", "true")
    try:
        assert found(read_archive(spark, directory)) == expected(EVENTS)
    finally:
        spark.conf.unset("spark.sql.streaming.fileStreamSink.ignoreMetadata")


def test_any_parquet_with_a_value_can_be_read_and_nothing_else(spark: "SparkSession", tmp_path: Path) -> None:
    spark.range(3).selectExpr("cast(string(id) as binary) as value", "id").write.parquet(str(tmp_path / "plain"))
    assert read_archive(spark, str(tmp_path / "plain")).count() == 3
    spark.range(3).write.parquet(str(tmp_path / "other"))
    with pytest.raises(PipelineError, match="no column 'value' among id"):
        read_archive(spark, str(tmp_path / "other"))
    (tmp_path / "empty").mkdir()
    for name in ("empty", "missing"):
        with pytest.raises(InputNotFound):
            read_archive(spark, str(tmp_path / name))
    for table_format, name in (("delta", "_delta_log"), ("iceberg", "metadata")):
        (tmp_path / table_format / name).mkdir(parents=True)
        with pytest.raises(UsageError, match=f"use --format {table_format}"):
            read_archive(spark, str(tmp_path / table_format))
