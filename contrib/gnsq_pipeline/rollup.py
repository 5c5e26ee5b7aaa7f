"""Roll-ups per topic and window of the messages' timestamps: counts, bytes, rates and latencies.

Latency is the time from the message's timestamp to the start of the batch that reads it or, of an archive, that wrote
it (`archived_at`). A message from a clock that runs ahead has a latency of 0.
"""

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

_ACCURACY = 10_000  # of percentile_approx: the error of the rank is at most 1/10000 of the count
_SECONDS = "((unix_micros(window.end) - unix_micros(window.start)) / 1000000D)"


def roll_up(
    messages: DataFrame,
    window: str = "1 minute",
    watermark: str = "10 minutes",
    percentiles: Sequence[float] = (0.5, 0.95, 0.99),
    channels: bool = False,
) -> DataFrame:
    """Returns a row for each topic (and channel, if `channels`) and window in which there were messages.

    `messages` needs `value, topic, timestamp, attempts`. A latency percentile p is the smallest latency that at least
    the fraction p of the messages does not exceed; its column is latency_p50_ms or latency_p99_9_ms.
    """
    processed = "archived_at" if "archived_at" in messages.columns else "current_timestamp()"
    latency = sf.expr(f"greatest(unix_micros({processed}) - unix_micros(timestamp), 0) / 1000D")
    keys = ["topic", *(["channel"] if channels else [])]
    timed = messages.withColumn("latency_ms", latency).withWatermark("timestamp", watermark)
    grouped = timed.groupBy(sf.window("timestamp", window), *keys).agg(
        sf.count(sf.lit(1)).alias("messages"),
        sf.sum(sf.octet_length("value").cast("long")).alias("bytes"),
        sf.count_if(sf.col("attempts") > 1).alias("redelivered"),
        sf.percentile_approx("latency_ms", list(percentiles), _ACCURACY).alias("percentiles"),
        sf.max("latency_ms").alias("latency_max_ms"),
    )
    names = [f"latency_p{percentile * 100:.6g}_ms".replace(".", "_") for percentile in percentiles]
    return grouped.selectExpr(
        "window.start AS window_start", "window.end AS window_end", *keys, "messages", "bytes",
        f"messages / {_SECONDS} AS messages_per_second", f"bytes / {_SECONDS} AS bytes_per_second", "redelivered",
        *(f"percentiles[{number}] AS {name}" for number, name in enumerate(names)),
        "latency_max_ms",
    )  # fmt: skip
