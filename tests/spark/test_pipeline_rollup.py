"""Roll-ups: every figure beside the same one computed in plain Python from the generated events."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gnsq_pipeline.rollup import roll_up
from spark.events import NOON_NS, EventRow, as_frame, generate

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

MINUTE_NS = 60_000_000_000

Key = tuple[Any, ...]


def in_windows(
    events: Iterable[EventRow], minutes: int, key: Callable[[EventRow], Key]
) -> dict[tuple[datetime, Key], list[EventRow]]:
    groups = defaultdict(list)
    for event in events:
        start = event.timestamp_ns // (minutes * MINUTE_NS) * minutes * 60
        groups[datetime.fromtimestamp(start, UTC), key(event)].append(event)
    return groups


def utc(moment: datetime) -> datetime:
    """Returns a timestamp as Spark collects it, in this process's zone, as one of UTC."""
    return moment.astimezone(UTC)


def rank(values: Sequence[float], fraction: float) -> float:
    """Returns the smallest value that at least `fraction` of the values don't exceed."""
    return sorted(values)[max(0, math.ceil(fraction * len(values)) - 1)]


def test_counts_bytes_rates_and_latencies_are_those_of_the_events(spark: "SparkSession") -> None:
    events = generate(800)
    archived = [event.timestamp_ns + (number * 7919 % 5000 - 50) * 1_000_000 for number, event in enumerate(events)]
    latency = {
        event.message_id: max(0, archived_ns // 1000 - event.timestamp_ns // 1000) / 1000
        for event, archived_ns in zip(events, archived, strict=True)
    }
    rows = roll_up(as_frame(spark, events, archived), "15 minutes").collect()
    expected = in_windows(events, 15, lambda event: (event.topic,))
    assert {(utc(row.window_start), (row.topic,)) for row in rows} == set(expected)
    for row in rows:
        group = expected[utc(row.window_start), (row.topic,)]
        latencies = [latency[event.message_id] for event in group]
        size = sum(len(event.value) for event in group)
        assert (row.window_end - row.window_start).total_seconds() == 900
        assert (row.messages, row.bytes) == (len(group), size)
        assert row.messages_per_second == pytest.approx(len(group) / 900)
        assert row.bytes_per_second == pytest.approx(size / 900)
        assert row.redelivered == sum(event.attempts > 1 for event in group)
        assert [row.latency_p50_ms, row.latency_p95_ms, row.latency_p99_ms] == pytest.approx(
            [rank(latencies, fraction) for fraction in (0.5, 0.95, 0.99)]
        )
        assert row.latency_max_ms == pytest.approx(max(latencies))


def test_channels_and_percentiles_are_as_given(spark: "SparkSession") -> None:
    events = generate(20, ("orders",))
    ahead = [event.timestamp_ns - 1_000_000_000 for event in events]  # the clocks of the nsqds are
    (row,) = roll_up(as_frame(spark, events, ahead), "1 day", percentiles=[0.25, 0.999], channels=True).collect()
    assert (row.channel, row.latency_p25_ms, row.latency_p99_9_ms, row.latency_max_ms) == ("archive", 0, 0, 0)


def test_a_stream_reports_each_window_once_and_drops_what_is_later_than_the_watermark(
    spark: "SparkSession", tmp_path: Path
) -> None:
    def at(number: int, minute: float, name: str = "orders") -> EventRow:
        return EventRow({}, b"x" * number, name, f"{number:016x}", NOON_NS + int(minute * MINUTE_NS), 1)

    batches = [
        [at(1, 0.5), at(2, 0.9), at(3, 1.5)],
        [at(4, 0.6), at(5, 9.5)],  # one is late, but not too late; the watermark then is 7.5
        [at(6, 0.7), at(7, 8.2), at(8, 12.5)],  # one is too late; the watermark then is 10.5
        [at(9, 30)],
    ]
    source, output = tmp_path / "source", tmp_path / "rollup"
    dropped = 0
    for batch in batches:
        as_frame(spark, batch).coalesce(1).write.mode("append").parquet(str(source))
        query = (
            roll_up(spark.readStream.schema(as_frame(spark, []).schema).parquet(str(source)), "1 minute", "2 minutes")
            .writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
            .outputMode("append")
            .trigger(availableNow=True)
            .start(str(output))
        )
        assert query.awaitTermination(60)
        dropped += sum(
            operator.numRowsDroppedByWatermark
            for progress in query.recentProgress
            for operator in progress.stateOperators
        )
    rows = spark.read.parquet(str(output)).collect()
    minutes = sorted(
        (int((utc(row.window_start).timestamp() * 1e9 - NOON_NS) / MINUTE_NS), row.messages, row.bytes) for row in rows
    )
    assert minutes == [(0, 3, 1 + 2 + 4), (1, 1, 3), (8, 1, 7), (9, 1, 5), (12, 1, 8)]
    assert dropped == 1
