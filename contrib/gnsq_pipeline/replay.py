"""Replay: which archived messages to publish again, and how fast.

The rate is held where the rows are: each of a number of partitions passes on its share of it and waits in between. The
waiting is done in a task of its own in front of the writer, so whatever the writer's batches are, no more is sent.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as sf

from gnsq_pipeline.archive import NS_PER_DAY
from gnsq_pipeline.errors import UsageError, reason

T = TypeVar("T")

_STEPS_PER_SECOND = 10  # how evenly the rate is held


def select(
    archived: DataFrame,
    topics: Sequence[str] = (),
    since_ns: int | None = None,
    until_ns: int | None = None,
    where: str | None = None,
) -> DataFrame:
    """Returns the rows of `archived` from `since_ns` on and before `until_ns`, of `topics`, that `where` keeps.

    `where` is an SQL expression over the columns. Raises UsageError if it is not, or if a column is missing.
    """
    needed = (("--topic", topics or None, "topic"), ("--since", since_ns, "timestamp_ns"))
    for option, value, column in (*needed, ("--until", until_ns, "timestamp_ns")):
        if value is not None and column not in archived.columns:
            raise UsageError(f"{option}: there is no column {column!r}, only {', '.join(sorted(archived.columns))}")
    if topics:
        archived = archived.where(sf.col("topic").isin(*topics))
    for ns, time_is, date_is in ((since_ns, ">=", ">="), (until_ns, "<", "<=")):
        if ns is not None:
            archived = archived.where(f"timestamp_ns {time_is} {ns}L")
            if "date" in archived.columns:  # so that Spark omits whole directories
                archived = archived.where(f"date {date_is} date_from_unix_date({ns // NS_PER_DAY})")
    try:
        return archived if where is None else archived.where(sf.expr(where))
    except PySparkException as error:
        raise UsageError(f"--where {where!r}: {reason(error)}") from None


def messages(selected: DataFrame, to_topic: str | None = None) -> DataFrame:
    """Returns the columns that `format("nsq")` writes: `value` and `topic`, which is `to_topic` if that is given."""
    if to_topic is not None:
        return selected.select("value", sf.lit(to_topic).alias("topic"))
    if "topic" not in selected.columns:
        raise UsageError("--to-topic is required: there is no column 'topic'")
    return selected.select("value", "topic")


def count_by_topic(frame: DataFrame) -> list[dict[str, object]]:
    """Counts the messages, and their bytes, that go to each topic."""
    size = sf.sum(sf.octet_length("value").cast("long"))
    counted = frame.groupBy("topic").agg(sf.count(sf.lit(1)).alias("messages"), size.alias("bytes"))
    return [row.asDict() for row in counted.orderBy("topic").collect()]


def publish(frame: DataFrame, nodes: Mapping[str, str], rate: float | None) -> list[dict[str, object]]:
    """Writes `messages` to the nsqds of `nodes`, at most `rate` a second; returns a row with their number."""
    if rate is not None:
        frame = paced(frame, rate, frame.sparkSession.sparkContext.defaultParallelism)
    seen = Observation()
    counted = frame.observe(seen, sf.count(sf.lit(1)).alias("messages"))
    counted.write.format("nsq").mode("append").options(**nodes).save()
    return [dict(seen.get)]


def paced(frame: DataFrame, rate: float, lanes: int) -> DataFrame:
    """Returns `frame`, of which at most `rate` rows a second come out; in at most `lanes` partitions."""
    rows = frame.coalesce(lanes).rdd
    share = rate / max(1, rows.getNumPartitions())
    held = rows.mapPartitions(lambda lane: hold_rate(lane, share))
    return frame.sparkSession.createDataFrame(held, frame.schema, verifySchema=False)


def hold_rate(
    rows: Iterable[T],
    rate: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[T]:
    """Yields the `rows`, at most `rate` a second: in steps of a tenth of a second; a pause is not made up for."""
    step = max(1, int(rate / _STEPS_PER_SECOND))
    due = clock()
    for number, row in enumerate(rows):
        if number % step == 0:
            now = clock()
            if now < due:
                sleep(due - now)
            due = max(due, now) + step / rate
        yield row
