"""Spark's limits of a batch, which 4.2 has and 4.1 has not: there a batch has all that is there.

Spark 4.1 asks for the latest offset without `start` and `limit`. But before a query continues, it passes the last
offset to `partitions`, as the start and as the end.
"""

import pyspark

from pyspark_nsq.errors import OptionError
from pyspark_nsq.options import Settings

try:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

    HAS_LIMITS = True
except ImportError:
    SupportsTriggerAvailableNow = object  # type: ignore[assignment,misc]
    HAS_LIMITS = False

__all__ = ["SupportsTriggerAvailableNow", "check_limits", "default_limit"]


def check_limits(settings: Settings) -> None:
    """Raises OptionError if the settings limit a batch, and this Spark cannot."""
    for name, value in (
        ("maxMessagesPerTrigger", settings.max_messages_per_trigger),
        ("maxBytesPerTrigger", settings.max_bytes_per_trigger),
    ):
        if value is not None and not HAS_LIMITS:
            raise OptionError(
                f"option {name!r} needs Spark 4.2 or newer, this is {pyspark.__version__}: "
                "here each batch reads all queued messages"
            )


def default_limit(settings: Settings) -> "ReadLimit":
    """Returns the limit that Spark passes to `latestOffset`."""
    limit = settings.max_messages_per_trigger
    return ReadAllAvailable() if limit is None else ReadMaxRows(limit)
