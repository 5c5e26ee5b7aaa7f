"""The example of spark-pipelines.md, end to end: JSON events are archived, rolled up and replayed,
and nothing is lost, duplicated or changed on the way.

`GNSQD_EXAMPLE_EVENTS` is their number (`make spark-example`: a million). What is expected is computed from the events.
"""

import itertools
import os
import re
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as sf

from kit.traffic import DaemonFactory, publish
from spark.command_line import Run, destination, sources
from spark.events import bodies

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

EVENTS = int(os.environ.get("GNSQD_EXAMPLE_EVENTS", "40000"))
TOPICS = {"orders": 1, "clicks": 2}  # and the seeds of their events


def totals_in(spark: "SparkSession", directory: Path) -> dict[str, tuple[int, ...]]:
    """Returns by topic what changes when a body is lost, duplicated or changed: count, bytes and sum of checksums."""
    grouped = spark.read.parquet(str(directory)).groupBy("topic")
    rows = grouped.agg(*map(sf.expr, ("count(1)", "sum(octet_length(value))", "sum(crc32(value))"))).collect()
    return {row[0]: tuple(row[1:]) for row in rows}


def test_a_million_events_are_archived_rolled_up_and_replayed(
    spark: "SparkSession", run: Run, gnsqd_factory: DaemonFactory, tmp_path: Path
) -> None:
    daemons, target = [gnsqd_factory("--durability=process") for _ in range(2)], gnsqd_factory()
    expected: dict[str, tuple[int, ...]] = {}
    for topic, seed in TOPICS.items():
        values = bodies(EVENTS // 2, seed)
        count = size = checksums = 0
        while batch := list(itertools.islice(values, 1000)):
            publish(daemons[count // 1000 % 2], topic, *batch)
            count, size = count + len(batch), size + sum(map(len, batch))
            checksums += sum(map(zlib.crc32, batch))
        expected[topic] = count, size, checksums
    archive, again = tmp_path / "archive", tmp_path / "again"
    subscription = ["--topic", "orders", "--topic", "clicks", "--channel", "archive"]
    ended = run("archive", *subscription, *sources(*daemons), "--max-messages", str(EVENTS // 3 + 1), archive)
    assert ended.status == 0, ended.stderr
    *lines, last = ended.stderr.splitlines()
    assert len(lines) == 3
    assert re.search(r"  batch 2  [\d,]+ rows  .* rows/s  lag 0$", lines[-1])
    assert last.startswith(f"all is read: {EVENTS:,} rows in 3 batches, ")
    assert totals_in(spark, archive) == expected
    ids = spark.read.parquet(str(archive)).select("nsqd", "topic", "message_id")
    assert ids.distinct().count() == EVENTS
    for daemon in daemons:
        for topic in TOPICS:
            channel = daemon.channel_stats(topic, "archive")
            assert (channel["depth"], channel["in_flight_count"], channel["deferred_count"]) == (0, 0, 0)

    windows = run("rollup", "--from-archive", archive, "--window", "1h", "--json").rows
    for topic, (count, size, _) in expected.items():
        rows = [row for row in windows if row["topic"] == topic]
        assert [sum(row[figure] for row in rows) for figure in ("messages", "bytes")] == [count, size]
    assert run("replay", archive, *destination(target), "--json").rows == [{"messages": EVENTS}]
    assert run("archive", *subscription, *sources(target), again).status == 0
    assert totals_in(spark, again) == expected
