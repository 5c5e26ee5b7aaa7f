"""What an archive looks like: the columns of its Parquet files, and how they are partitioned.

    topic=orders/date=2026-11-21/hour=13/….parquet        date and hour of the message's timestamp, in UTC

The files hold every column of the source but the topic, and `archived_at`, the time when the batch that wrote them
began. The hour is computed from `timestamp_ns`, so no session's time zone affects it.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

SCHEMA = (
    "value BINARY, channel STRING, nsqd STRING, message_id STRING, timestamp TIMESTAMP, timestamp_ns LONG,"
    " attempts INT, archived_at TIMESTAMP, topic STRING, date DATE, hour INT"
)
PARTITION_COLUMNS = ("topic", "date", "hour")
NS_PER_HOUR = 3_600_000_000_000
NS_PER_DAY = 24 * NS_PER_HOUR


def to_archive(messages: DataFrame) -> DataFrame:
    """Rows of the source as rows of the archive; an `archived_at` that is there is kept."""
    archived_at = sf.col("archived_at") if "archived_at" in messages.columns else sf.current_timestamp()
    return messages.select(
        "value",
        "channel",
        "nsqd",
        "message_id",
        "timestamp",
        "timestamp_ns",
        "attempts",
        archived_at.alias("archived_at"),
        "topic",
        sf.expr(f"date_from_unix_date(cast({_whole(NS_PER_DAY)} as int))").alias("date"),
        sf.expr(f"cast(pmod({_whole(NS_PER_HOUR)}, 24L) as int)").alias("hour"),
    )


def _whole(period_ns: int) -> str:
    """How many whole periods `timestamp_ns` is after 1970, rounded down before it too; in integers, to be exact."""
    return f"(timestamp_ns - pmod(timestamp_ns, {period_ns}L)) div {period_ns}L"
