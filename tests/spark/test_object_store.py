"""A spool in an object store, over HTTP. What a stream does with one at each step is tested in memory: see
unit/conftest.py."""

import sys
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from obstore.store import S3Store

from gnsq_pipeline.spool import reports
from kit.daemons import Daemon, free_port
from kit.s3_server import make_bucket, serving, set_environment
from kit.spark_topics import bodies, daemon_options
from kit.traffic import publish
from pyspark_nsq import files
from pyspark_nsq.errors import SpoolError
from pyspark_nsq.files import names_in, place
from pyspark_nsq.retention import inspect
from pyspark_nsq.spool import check_location

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    with serving():
        yield make_bucket("spools")


@pytest.fixture
def location(bucket: str) -> str:
    return f"{bucket}/{uuid.uuid4()}"


def test_a_request_whose_answer_was_lost_counts(location: str) -> None:
    """The client repeats it, and that fails because the first one made the file."""
    path = f"{location}/file"
    place(path).make_directory(location)
    place(path).replace(path, [b"mine"])
    assert place(path).create(path, [b"mi", b"ne"])
    assert not place(path).create(path, [b"yours"])
    assert place(path).read(path) == b"mine"


def test_parts_of_a_file_are_read(location: str) -> None:
    path = f"{location}/file"
    place(path).replace(path, [b"0123456789"])
    assert place(path).begin(path, 4) == (b"0123", 10)
    assert place(path).begin(path, 40) == (b"0123456789", 10)
    assert place(path).read(path, 3, 4) == b"3456"
    assert place(path).read(path, 3) == b"3456789"


def test_a_directory_is_what_has_files(location: str) -> None:
    files = place(location)
    for name in ("a/b/1", "a/b/2", "a/bc", "a-b"):
        files.replace(f"{location}/{name}", [b"123"])
    assert sorted(names_in(f"{location}/a")) == ["b", "bc"]
    assert sorted(names_in(location)) == ["a", "a-b"]
    assert names_in(f"{location}/none") == []
    assert (files.size(f"{location}/a"), files.size(f"{location}/a/bc")) == (9, 3)
    assert files.exists(f"{location}/a/bc")
    assert not files.exists(f"{location}/a/b")
    files.delete(f"{location}/a/b")
    assert names_in(f"{location}/a") == ["bc"]
    files.delete(f"{location}/a/bc")
    assert names_in(location) == ["a-b"]
    for call in (files.read, files.size, files.delete):
        with pytest.raises(FileNotFoundError):
            call(f"{location}/a/bc")


def test_a_store_that_cannot_hold_a_spool_is_reported(location: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_location(location)
    assert names_in(location) == []
    with pytest.raises(SpoolError, match="cannot make the spool at s3://none/s: .*NoSuchBucket"):
        check_location("s3://none/s")
    with pytest.raises(SpoolError, match=r"spool at ftp://host: expected a directory, or s3://BUCKET/NAME"):
        check_location("ftp://host/spool")
    monkeypatch.setattr(files._Bucket, "_put_new", lambda bucket, path, data: bucket.replace(path, [data]) or True)
    with pytest.raises(SpoolError, match=f"the spool at {location} is in a store that ignores If-None-Match"):
        check_location(location)


def test_a_store_that_does_not_answer_is_reported_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    set_environment()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setattr("obstore.store.S3Store", partial(S3Store, retry_config={"max_retries": 0}))
    monkeypatch.setattr(files, "_bucket", files._Bucket)  # none that was made before
    with pytest.raises(
        SpoolError, match="cannot access the spool at s3://spools/s/.*: .*error sending request"
    ) as caught:
        check_location("s3://spools/s")
    assert "\n" not in str(caught.value)


def test_without_obstore_its_installation_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    monkeypatch.setattr(files, "_bucket", files._Bucket)
    with pytest.raises(SpoolError, match=r"a spool at s3://spools needs obstore: pip install 'gnsqd\[object-store\]'"):
        check_location("s3://spools/s")


@pytest.mark.spark
def test_streams_and_batch_reads_have_their_spools_there(
    spark: "SparkSession", location: str, tmp_path: Path, gnsqd: Daemon
) -> None:
    options = {**daemon_options(gnsqd), "subscribe": "orders", "channel": "spark", "spoolLocation": location}

    def drain() -> None:
        frame = spark.readStream.format("nsq").options(**options, maxMessagesPerTrigger="400").load()
        writer = frame.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start(str(tmp_path / "table")).awaitTermination()

    for number in range(2):
        publish(gnsqd, "orders", *bodies(1000, f"{number} "))
        drain()
    rows = spark.read.parquet(str(tmp_path / "table")).collect()
    assert sorted(bytes(row.value) for row in rows) == sorted(bodies(1000, "0 ") + bodies(1000, "1 "))
    ((_, report),) = reports(location)
    assert report.batches
    assert not report.uncommitted_messages
    publish(gnsqd, "orders", *bodies(500, "batch "))
    frame = spark.read.format("nsq").options(**options).load()
    for _ in range(2):
        assert sorted(bytes(row.value) for row in frame.collect()) == sorted(bodies(500, "batch "))
    assert sorted(report.kind for report in inspect(location)) == ["read", "readStream"]
