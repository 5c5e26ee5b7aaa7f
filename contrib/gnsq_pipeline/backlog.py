"""Backlogs of nodes that are down: what is in their data directories, for each queue, with damaged files named.

Rows come from `format("nsq_diskqueue")`, one task for each data file, with a row for each damaged place
(`corruption` = `column`).
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

_KEYS = ("nsqd", "topic", "channel")


def summarise(records: DataFrame, now_ns: int) -> DataFrame:
    """One row for each queue: its messages, their bytes and ages at `now_ns`, its files, and the damage in them.

    Columns: nsqd, topic, channel, messages, bytes, oldest, newest, oldest_age_seconds, retried, due_later, files,
    damaged_places.
    """
    sound = sf.col("corruption").isNull()
    now = sf.lit(now_ns)
    return (
        records.groupBy(*_KEYS)
        .agg(
            sf.sum(sound.cast("long")).alias("messages"),
            sf.coalesce(sf.sum(sf.octet_length("value").cast("long")), sf.lit(0)).alias("bytes"),
            sf.min("timestamp").alias("oldest"),
            sf.max("timestamp").alias("newest"),
            ((now - sf.min("timestamp_ns")) / sf.lit(1e9)).alias("oldest_age_seconds"),
            sf.sum((sf.col("attempts") > 1).cast("long")).alias("retried"),
            sf.sum((sf.col("due") > sf.timestamp_micros(sf.lit(now_ns // 1000))).cast("long")).alias("due_later"),
            sf.count_distinct("file").alias("files"),
            sf.sum((~sound).cast("long")).alias("damaged_places"),
        )
        .fillna(0, ["retried", "due_later"])
        .orderBy(*_KEYS)
    )


def damages(records: DataFrame) -> DataFrame:
    """One row for each damaged place: nsqd, topic, channel, file, position, corruption (what is wrong there)."""
    return (
        records.where(sf.col("corruption").isNotNull())
        .select(*_KEYS, "file", "position", "corruption")
        .orderBy("file", "position")
    )
