"""Replay: which archived messages to publish again, and how fast.

The rate is held where the rows are: each of `lanes` partitions hands on its share of it and waits in between. The
waiting is done in a task of its own in front of the writer, so whatever the writer's batches are, no more is sent.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import TypeVar

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from gnsq_pipeline.archive_layout import NS_PER_DAY
from gnsq_pipeline.errors import UsageError
from gnsq_pipeline.session import reason

T = TypeVar("T")

_STEPS_PER_SECOND = 10  # how evenly the rate is held


def select(
    archived: DataFrame,
    topics: Sequence[str] = (),
    since_ns: int | None = None,
    until_ns: int | None = None,
    where: str | None = None,
) -> DataFrame:
    """The rows of `archived` from `since_ns` on and before `until_ns`, of `topics`, that `where` keeps.

    `where` is an SQL expression over the columns. UsageError when a column that a condition needs isn't there, or the
    expression is none.
    """
    columns = set(archived.columns)
    if topics:
        _require(columns, "topic", "--topic")
        archived = archived.where(sf.col("topic").isin(*topics))
    for option, moment in (("--since", since_ns), ("--until", until_ns)):
        if moment is None:
            continue
        _require(columns, "timestamp_ns", option)
        limit = sf.lit(moment)
        archived = archived.where(
            sf.col("timestamp_ns") >= limit if option == "--since" else sf.col("timestamp_ns") < limit
        )
        if "date" in columns:  # so that Spark leaves out whole directories
            day = sf.lit(datetime.fromtimestamp(moment // NS_PER_DAY * 86400, UTC).date())
            archived = archived.where(sf.col("date") >= day if option == "--since" else sf.col("date") <= day)
    if where is not None:
        try:
            archived = archived.where(sf.expr(where))
            _ = archived.schema  # raises if the expression makes no sense
        except PySparkException as error:
            raise UsageError(f"--where {where!r}: {reason(error)}") from None
    return archived


def _require(columns: Iterable[str], column: str, option: str) -> None:
    if column not in columns:
        raise UsageError(f"{option}: there is no column {column!r}, only {', '.join(sorted(columns))}")


def messages(selected: DataFrame, to_topic: str | None = None) -> DataFrame:
    """What `format("nsq")` writes: `value` and `topic`, which is `to_topic` when that is given."""
    if to_topic is not None:
        return selected.select("value", sf.lit(to_topic).alias("topic"))
    if "topic" not in selected.columns:
        raise UsageError("--to-topic is required: there is no column 'topic'")
    return selected.select("value", "topic")


def paced(frame: DataFrame, rate: float, lanes: int) -> DataFrame:
    """`frame`, of which `rate` rows a second come out at most; in `lanes` partitions at most."""
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
    """The `rows`, `rate` a second at most: in steps of a tenth of a second, and what a pause left isn't made up for."""
    step = max(1, int(rate / _STEPS_PER_SECOND))
    due = clock()
    for number, row in enumerate(rows):
        if number % step == 0:
            now = clock()
            if now < due:
                sleep(due - now)
            due = max(due, now) + step / rate
        yield row
