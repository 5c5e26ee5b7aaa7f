"""Roll-ups: every figure beside the same one computed in plain Python from the generated events."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gnsq_pipeline.errors import PipelineError, UsageError
from gnsq_pipeline.rollup import infer_schema, read_schema, roll_up, roll_up_json
from spark.events import NOON_NS, Event, as_frame, generate

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

MINUTE_NS = 60_000_000_000
DDL = "n LONG, kind STRING, cents LONG, user STRUCT<id: LONG, country: STRING>"

Key = tuple[Any, ...]


def in_windows(
    events: Iterable[Event], minutes: int, key: Callable[[Event], Key]
) -> dict[tuple[datetime, Key], list[Event]]:
    groups = defaultdict(list)
    for event in events:
        start = event.timestamp_ns // (minutes * MINUTE_NS) * minutes * 60
        groups[datetime.fromtimestamp(start, UTC), key(event)].append(event)
    return groups


def utc(moment: datetime) -> datetime:
    """A timestamp as Spark collects it, in this process's zone, as one of UTC."""
    return moment.astimezone(UTC)


def rank(values: Sequence[float], fraction: float) -> float:
    """The smallest value that at least `fraction` of the values don't exceed."""
    return sorted(values)[max(0, math.ceil(fraction * len(values)) - 1)]


def test_counts_bytes_rates_and_latencies_are_those_of_the_events(spark: "SparkSession") -> None:
    events = generate(800)
    archived = [event.timestamp_ns + (number * 7919 % 5000 - 50) * 1_000_000 for number, event in enumerate(events)]
    latency = {
        event.message_id: max(0, archived_ns // 1000 - event.timestamp_ns // 1000) / 1000
        for event, archived_ns in zip(events, archived, strict=True)
    }
    rows = roll_up(as_frame(spark, events, archived), "15 minutes").collect()
    wanted = in_windows(events, 15, lambda event: (event.topic,))
    assert {(utc(row.window_start), (row.topic,)) for row in rows} == set(wanted)
    for row in rows:
        group = wanted[utc(row.window_start), (row.topic,)]
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


def json_expected(events: Iterable[Event], malformed: int = 0) -> dict[tuple[datetime, Key], dict[str, Any]]:
    result = {}
    groups = in_windows(events, 60, lambda event: (event.topic, event.body["kind"], event.body["user"]["country"]))
    for key, group in groups.items():
        cents = [event.body["cents"] for event in group]
        result[key] = {
            "messages": len(group),
            "bytes": sum(len(event.value) for event in group),
            "malformed": malformed,
            "cents_count": len(cents),
            "cents_sum": sum(cents),
            "cents_min": min(cents),
            "cents_max": max(cents),
            "cents_avg": pytest.approx(sum(cents) / len(cents)),
            "messages_per_second": pytest.approx(len(group) / 3600),
        }
    return result


def json_found(rolled: "DataFrame") -> dict[tuple[datetime, Key], dict[str, Any]]:
    keys = ("window_start", "window_end", "topic", "kind", "user_country")
    return {
        (utc(row.window_start), (row.topic, row.kind, row.user_country)): {
            name: value for name, value in row.asDict().items() if name not in keys
        }
        for row in rolled.collect()
    }


@pytest.mark.parametrize("inferred", [False, True])
def test_bodies_are_grouped_and_summed_by_their_fields(spark: "SparkSession", inferred: bool) -> None:
    events = generate(600)
    frame = as_frame(spark, events)
    schema = infer_schema(spark, frame, 100) if inferred else read_schema(DDL)
    rolled = roll_up_json(frame, schema, ["kind", "user.country"], ["cents"], "1 hour")
    assert json_found(rolled) == json_expected(events)


def test_malformed_bodies_are_counted_where_the_fields_are_null(spark: "SparkSession") -> None:
    sound = generate(100, topics=("orders",), hours=1)
    texts = [b"", b"not json", b'{"n": 1', b"[1, 2]", b'"text"', b'{"cents": "many"}', b"\xff\xfe{}"]
    broken = [Event({}, text, "orders", f"{9000 + number:016x}", NOON_NS, 1) for number, text in enumerate(texts)]
    rolled = roll_up_json(as_frame(spark, [*sound, *broken]), read_schema(DDL), ["kind"], ["cents"], "1 hour").collect()
    (bad,) = [row for row in rolled if row.kind is None]
    assert (bad.messages, bad.malformed, bad.cents_count, bad.cents_sum) == (len(texts), len(texts), 0, None)
    assert bad.bytes == sum(map(len, texts))
    assert sum(row.messages for row in rolled) == 100 + len(texts)
    assert sum(row.cents_sum for row in rolled if row.kind) == sum(event.body["cents"] for event in sound)


def test_schemas_are_read_from_ddl_or_sparks_json(spark: "SparkSession") -> None:
    schema = read_schema(DDL)
    assert read_schema(schema.json()) == schema
    for text in ("n LONGISH", "{", '{"type": "struct"}', "INT", "{}"):
        with pytest.raises(UsageError, match="--json-schema: "):
            read_schema(text)


@pytest.mark.parametrize(
    "group_by, values, error",
    [
        (["knid"], [], "--group-by 'knid': no such field in the bodies; did you mean 'kind'?"),
        (["user.land"], [], "no such field in the bodies"),
        (["kind.x"], [], "no such field in the bodies"),
        (["user"], [], "a field with fields or elements of its own can't be grouped by"),
        ([], ["kind"], "--value 'kind': is of type string, which has no sum"),
        (["topic"], [], "--group-by 'topic': the result has another column of the name 'topic'"),
        (["kind", "kind"], [], "--group-by 'kind': the result has another column"),
    ],
)
def test_fields_that_cannot_serve_are_reported(
    spark: "SparkSession", group_by: list[str], values: list[str], error: str
) -> None:
    schema = read_schema(DDL + ", topic STRING")
    with pytest.raises(UsageError) as reported:
        roll_up_json(as_frame(spark, generate(1)), schema, group_by, values)
    assert error in str(reported.value)


def test_nothing_can_be_inferred_from_what_is_no_json(spark: "SparkSession") -> None:
    events = [event._replace(value=b"no json") for event in generate(5)]
    with pytest.raises(PipelineError, match="no JSON object among the first 10 messages"):
        infer_schema(spark, as_frame(spark, events), 10)


def test_a_stream_reports_each_window_once_and_drops_what_is_later_than_the_watermark(
    spark: "SparkSession", tmp_path: Path
) -> None:
    def at(number: int, minute: float, name: str = "orders") -> Event:
        return Event({}, b"x" * number, name, f"{number:016x}", NOON_NS + int(minute * MINUTE_NS), 1)

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
