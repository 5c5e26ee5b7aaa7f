"""Backlogs of nodes that are down: what is in their data directories, for each queue, with damaged files named.

Rows come from `format("nsq_diskqueue")`, one task for each data file, with a row for each damaged place
(`corruption` = `column`).
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SUMMARY = """
    SELECT nsqd, topic, channel,
           count_if(corruption IS NULL) AS messages,
           coalesce(sum(octet_length(value)), 0) AS bytes,
           min(timestamp) AS oldest,
           max(timestamp) AS newest,
           ({now_ns} - min(timestamp_ns)) / 1e9 AS oldest_age_seconds,
           count_if(attempts > 1) AS retried,
           count_if(due > timestamp_micros({now_ns} div 1000)) AS due_later,
           count(DISTINCT file) AS files,
           count_if(corruption IS NOT NULL) AS damaged_places
    FROM {records} GROUP BY nsqd, topic, channel ORDER BY nsqd, topic, channel
"""
_DAMAGES = """
    SELECT nsqd, topic, channel, file, position, corruption
    FROM {records} WHERE corruption IS NOT NULL ORDER BY file, position
"""


def summarise(records: "DataFrame", now_ns: int) -> "DataFrame":
    """One row for each queue: its messages, their bytes and ages at `now_ns`, its files, and the damage in them."""
    return records.sparkSession.sql(_SUMMARY, records=records, now_ns=now_ns)


def damages(records: "DataFrame") -> "DataFrame":
    """One row for each damaged place, with what is wrong there in `corruption`."""
    return records.sparkSession.sql(_DAMAGES, records=records)
