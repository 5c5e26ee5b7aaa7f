"""Roll-ups of messages: counts, bytes, rates and latencies per topic and window of the message's timestamp.

Latency is the time from the message's timestamp to the start of the batch that reads it or, of an archive, that wrote
it (`archived_at`). A message from a clock that runs ahead has a latency of 0.
"""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

_ACCURACY = 10_000  # of percentile_approx: the error of the rank is at most 1/10000 of the count


def by_window(
    messages: DataFrame, window: str, watermark: str, keys: Sequence[str | Column], *sums: Column
) -> DataFrame:
    """`messages` grouped by window and `keys`, with the columns `window`, `messages`, `bytes` and those of `sums`; both
    spans as Spark writes them ("5 minutes")."""
    marked = messages.withWatermark("timestamp", watermark)
    size = sf.sum(sf.octet_length("value").cast("long")).alias("bytes")
    grouped = marked.groupBy(sf.window("timestamp", window).alias("window"), *keys)
    return grouped.agg(sf.count(sf.lit(1)).alias("messages"), size, *sums)


def span_columns() -> list[Column]:
    """The begin and the end of the window."""
    return [sf.col("window.start").alias("window_start"), sf.col("window.end").alias("window_end")]


def per_second(column: str) -> Column:
    """`column` of a window, divided by its length."""
    seconds = (sf.unix_micros("window.end") - sf.unix_micros("window.start")) / sf.lit(1_000_000.0)
    return (sf.col(column) / seconds).alias(f"{column}_per_second")


def roll_up(
    messages: DataFrame,
    window: str = "1 minute",
    watermark: str = "10 minutes",
    percentiles: Sequence[float] = (0.5, 0.95, 0.99),
    channels: bool = False,
) -> DataFrame:
    """One row for each topic (and channel, if `channels`) and window in which there were messages.

    `messages` needs `value, topic, timestamp, attempts`. A latency percentile p is the smallest latency that at least
    the fraction p of the messages does not exceed; its column is latency_p50_ms or latency_p99_9_ms.
    """
    processed = sf.col("archived_at") if "archived_at" in messages.columns else sf.current_timestamp()
    late_us = sf.unix_micros(processed) - sf.unix_micros("timestamp")
    keys = ["topic", *(["channel"] if channels else [])]
    grouped = by_window(
        messages.withColumn("latency_ms", sf.greatest(late_us, sf.lit(0)) / sf.lit(1000.0)), window, watermark, keys,
        sf.sum(sf.when(sf.col("attempts") > 1, 1).otherwise(0)).alias("redelivered"),
        sf.percentile_approx("latency_ms", list(percentiles), _ACCURACY).alias("percentiles"),
        sf.max("latency_ms").alias("latency_max_ms"),
    )  # fmt: skip
    names = [f"latency_p{percentile * 100:.6g}_ms".replace(".", "_") for percentile in percentiles]
    latencies = [sf.col("percentiles")[number].alias(name) for number, name in enumerate(names)]
    rates = per_second("messages"), per_second("bytes")
    return grouped.select(
        *span_columns(), *keys, "messages", "bytes", *rates, "redelivered", *latencies, "latency_max_ms"
    )
