"""The columns of a message in a DataFrame.

Spark takes a batch only if its schema is exactly the declared one: `timestamp` is in microseconds, UTC. The whole
nanoseconds of NSQ are in `timestamp_ns`. (`nsqd`, `topic`, `message_id`) identifies a message.
"""

from functools import cache

import pyarrow as pa

COLUMNS = (
    ("value", "BINARY"),
    ("topic", "STRING"),
    ("channel", "STRING"),
    ("nsqd", "STRING"),
    ("message_id", "STRING"),
    ("timestamp", "TIMESTAMP"),
    ("timestamp_ns", "LONG"),
    ("attempts", "INT"),
)
SCHEMA_DDL = ", ".join(f"{name} {kind}" for name, kind in COLUMNS)


@cache
def arrow_schema() -> pa.Schema:
    """COLUMNS in Arrow's types."""
    types = {
        "BINARY": pa.binary(),
        "STRING": pa.string(),
        "TIMESTAMP": pa.timestamp("us", tz="UTC"),
        "LONG": pa.int64(),
        "INT": pa.int32(),
    }
    return pa.schema([(name, types[kind]) for name, kind in COLUMNS])
