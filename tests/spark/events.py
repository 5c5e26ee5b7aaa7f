"""Events for the tests of pipelines: generated as plain Python values, from which what is expected is computed."""

import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NOON_NS = 1_768_478_400_000_000_000  # 2026-01-15T12:00:00Z
HOUR_NS = 3_600_000_000_000
COUNTRIES = ("at", "de", "fr", None)


class EventRow(NamedTuple):
    """A message as the source hands it on, with its body as the value that was made JSON of."""

    body: dict[str, Any]
    value: bytes
    topic: str
    message_id: str
    timestamp_ns: int
    attempts: int

    @property
    def key(self) -> tuple[str, str]:
        return self.topic, self.message_id


def json_body(number: int, rng: random.Random) -> dict[str, Any]:
    """Returns an order: whole cents, so that sums of them can be compared."""
    return {
        "n": number,
        "kind": rng.choice(("buy", "sell", "look")),
        "cents": rng.randrange(100_000),
        "user": {"id": rng.randrange(1000), "country": rng.choice(COUNTRIES)},
    }


def bodies(count: int, seed: int) -> Iterator[bytes]:
    """Yields `count` bodies, the same for the same seed."""
    rng = random.Random(seed)
    for number in range(count):
        yield json.dumps(json_body(number, rng)).encode()


def generate(
    count: int, topics: Sequence[str] = ("orders", "clicks"), hours: float = 3, seed: int = 1
) -> list[EventRow]:
    """Returns `count` events, spread over `hours` from noon on, in no order."""
    rng = random.Random(seed)
    events = []
    for number in range(count):
        body = json_body(number, rng)
        when = NOON_NS + rng.randrange(int(hours * HOUR_NS))
        attempts = 1 if rng.random() < 0.9 else rng.randrange(2, 5)
        value = json.dumps(body).encode()
        events.append(EventRow(body, value, rng.choice(topics), f"{number:016x}", when, attempts))
    return events


def as_frame(
    spark: "SparkSession", events: Sequence[EventRow], archived_ns: Sequence[int] | None = None
) -> "DataFrame":
    """Returns the events as rows of `format("nsq")`; with `archived_ns` also as if archived then."""
    import pyarrow as pa

    columns: dict[str, Any] = {
        "value": pa.array([event.value for event in events], pa.binary()),
        "topic": pa.array([event.topic for event in events], pa.string()),
        "channel": pa.array(["archive"] * len(events), pa.string()),
        "nsqd": pa.array(["127.0.0.1:4150"] * len(events), pa.string()),
        "message_id": pa.array([event.message_id for event in events], pa.string()),
        "timestamp": pa.array([event.timestamp_ns // 1000 for event in events], pa.timestamp("us", "UTC")),
        "timestamp_ns": pa.array([event.timestamp_ns for event in events], pa.int64()),
        "attempts": pa.array([event.attempts for event in events], pa.int32()),
        "offset": pa.nulls(len(events), pa.int64()),
    }
    if archived_ns is not None:
        columns["archived_at"] = pa.array([when // 1000 for when in archived_ns], pa.timestamp("us", "UTC"))
    return spark.createDataFrame(pa.table(columns))


def archive(spark: "SparkSession", directory: Path, events: Sequence[EventRow], batches: int = 1) -> None:
    """Archives the events to `directory`, by as many batches of a streaming query; more of them the next time."""
    from gnsq_pipeline.archive import CHECKPOINT, PARTITION_COLUMNS, start, to_archive

    source = directory.with_name(f"{directory.name} source")
    for batch in range(batches):
        as_frame(spark, events[batch::batches]).coalesce(1).write.mode("append").parquet(str(source))
    rows = spark.readStream.schema(as_frame(spark, []).schema).option("maxFilesPerTrigger", 1).parquet(str(source))
    writer = to_archive(rows).writeStream.trigger(availableNow=True)
    query = start(writer, str(directory), "parquet", str(directory / CHECKPOINT), PARTITION_COLUMNS)
    assert query.awaitTermination(120)
