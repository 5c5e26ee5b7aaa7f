"""The example of spark-pipelines.md, end to end: JSON events are archived, rolled up and replayed,
and nothing is lost, duplicated or changed on the way.

`GNSQD_EXAMPLE_EVENTS` says how many (`make spark-example`: a million). What is expected is computed from the events
that the publisher generates, not from what any step says.
"""

import itertools
import os
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from kit.traffic import DaemonFactory, publish
from spark.command_line import Run, destination, sources
from spark.events import bodies

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

EVENTS = int(os.environ.get("GNSQD_EXAMPLE_EVENTS", "40000"))
TOPICS = {"orders": 1, "clicks": 2}  # and the seeds of their events


class BodyTotals(NamedTuple):
    """Sums that change when a body is lost, duplicated or changed."""

    messages: int
    bytes: int
    checksums: int  # the sum of the bodies' CRC-32


def totals(values: Iterable[bytes]) -> BodyTotals:
    count = size = checksums = 0
    for value in values:
        count, size, checksums = count + 1, size + len(value), checksums + zlib.crc32(value)
    return BodyTotals(count, size, checksums)


def batches(values: Iterator[bytes]) -> Iterator[list[bytes]]:
    """Yields the bodies of each MPUB."""
    while batch := list(itertools.islice(values, 1000)):
        yield batch


def totals_in(spark: "SparkSession", directory: Path) -> dict[str, BodyTotals]:
    from pyspark.sql import functions as sf

    rows = (
        spark.read.parquet(str(directory))
        .groupBy("topic")
        .agg(sf.count("value"), sf.sum(sf.length("value").cast("long")), sf.sum(sf.crc32("value")))
        .collect()
    )
    return {row[0]: BodyTotals(*row[1:]) for row in rows}


def test_a_million_events_are_archived_rolled_up_and_replayed(
    spark: "SparkSession", run: Run, gnsqd_factory: DaemonFactory, tmp_path: Path
) -> None:
    daemons, target = [gnsqd_factory("--durability=process") for _ in range(2)], gnsqd_factory()
    expected = {topic: totals(bodies(EVENTS // 2, seed)) for topic, seed in TOPICS.items()}
    for topic, seed in TOPICS.items():
        for daemon, batch in zip(itertools.cycle(daemons), batches(bodies(EVENTS // 2, seed)), strict=False):
            publish(daemon, topic, *batch)

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

    by_topic: Counter[str] = Counter()
    for row in run("rollup", "--from-archive", archive, "--window", "1h", "--json").rows:
        by_topic[row["topic"]] += row["messages"]
        by_topic[row["topic"] + " bytes"] += row["bytes"]
    assert by_topic == {
        **{topic: total.messages for topic, total in expected.items()},
        **{f"{topic} bytes": total.bytes for topic, total in expected.items()},
    }
    assert run("replay", archive, *destination(target), "--json").rows == [{"messages": EVENTS}]
    assert run("archive", *subscription, *sources(target), again).status == 0
    assert totals_in(spark, again) == expected
