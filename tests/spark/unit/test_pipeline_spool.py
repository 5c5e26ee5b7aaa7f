"""What `gnsq-pipeline spool` finds and removes."""

import uuid
from pathlib import Path

import pytest

from gnsq_pipeline.errors import NotFound, UsageError
from gnsq_pipeline.spool_report import batch_rows, prune, remove, stream_rows
from pyspark_nsq.spool import Spool


def stream(spool: Path, name: str, kind: str = "readStream") -> None:
    Spool.create(str(spool), name, kind=kind, topics=("orders",), channel="c")


def test_streams_are_found_in_a_spool_and_in_an_output_that_has_one(tmp_path: Path) -> None:
    one, two = uuid.uuid4().hex, uuid.uuid4().hex
    stream(tmp_path / "_spool" / "a", one)
    stream(tmp_path / "_spool" / "b", two)
    rows = stream_rows(str(tmp_path))
    assert [(row["stream"], row["topics"], row["channel"], row["batches"], row["messages"]) for row in rows] == [
        (one, "orders", "c", 0, 0),
        (two, "orders", "c", 0, 0),
    ]
    assert [row["stream"] for row in stream_rows(str(tmp_path / "_spool" / "b"))] == [two]
    assert batch_rows(str(tmp_path), one[:8]) == []


def test_a_stream_is_named_by_the_begin_of_its_id_if_that_is_of_one_only(tmp_path: Path) -> None:
    stream(tmp_path, "ab1")
    stream(tmp_path, "ab2")
    assert remove(str(tmp_path), "ab2", False)["stream"] == "ab2"
    stream(tmp_path, "ab3")
    with pytest.raises(UsageError, match="the begin of ab1, ab3"):
        remove(str(tmp_path), "ab", False)
    with pytest.raises(NotFound, match="no stream x"):
        batch_rows(str(tmp_path), "x")
    with pytest.raises(NotFound, match="no such directory"):
        stream_rows(str(tmp_path / "missing"))


def test_only_what_batch_reads_left_is_pruned(tmp_path: Path) -> None:
    stream(tmp_path, "live")
    stream(tmp_path, "read", "read")
    assert prune(str(tmp_path), 3600) == []
    assert [row["stream"] for row in prune(str(tmp_path), -60)] == ["read"]
    assert [row["stream"] for row in stream_rows(str(tmp_path))] == ["live"]
