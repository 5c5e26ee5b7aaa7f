"""Roll-ups per topic and window of the messages' timestamps: counts, bytes, rates and latencies, or fields of JSON
bodies, which are parsed by a schema that is given or inferred.

Latency is the time from the message's timestamp to the start of the batch that reads it or, of an archive, that wrote
it (`archived_at`). A message from a clock that runs ahead has a latency of 0.
"""

import difflib
import json
from collections.abc import Sequence

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import ArrayType, DataType, MapType, NumericType, StringType, StructField, StructType

from gnsq_pipeline.errors import PipelineError, UsageError, reason

_ACCURACY = 10_000  # of percentile_approx: the error of the rank is at most 1/10000 of the count
_SECONDS = "((unix_micros(window.end) - unix_micros(window.start)) / 1000000D)"
_MALFORMED = "_malformed"
_COLUMNS = ("topic", "window", "messages", "bytes", "malformed", "messages_per_second", "window_start", "window_end")
_SUMS = {"count": sf.count, "sum": sf.sum, "min": sf.min, "max": sf.max, "avg": sf.avg}


def by_window(
    messages: DataFrame, window: str, watermark: str, keys: Sequence[str | Column], *sums: Column
) -> DataFrame:
    """`messages` grouped by window and `keys`; both spans as Spark writes them ("5 minutes").

    Columns: window, window_start, window_end, messages, messages_per_second, bytes, the keys and the `sums`.
    """
    grouped = messages.withWatermark("timestamp", watermark).groupBy(sf.window("timestamp", window), *keys)
    size = sf.sum(sf.octet_length("value").cast("long")).alias("bytes")
    return grouped.agg(sf.count(sf.lit(1)).alias("messages"), size, *sums).selectExpr(
        "*", "window.start AS window_start", "window.end AS window_end", f"messages / {_SECONDS} AS messages_per_second"
    )


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
    processed = "archived_at" if "archived_at" in messages.columns else "current_timestamp()"
    latency = sf.expr(f"greatest(unix_micros({processed}) - unix_micros(timestamp), 0) / 1000D")
    keys = ["topic", *(["channel"] if channels else [])]
    grouped = by_window(
        messages.withColumn("latency_ms", latency), window, watermark, keys,
        sf.count_if(sf.col("attempts") > 1).alias("redelivered"),
        sf.percentile_approx("latency_ms", list(percentiles), _ACCURACY).alias("percentiles"),
        sf.max("latency_ms").alias("latency_max_ms"),
    )  # fmt: skip
    names = [f"latency_p{percentile * 100:.6g}_ms".replace(".", "_") for percentile in percentiles]
    return grouped.select(
        "window_start", "window_end", *keys, "messages", "bytes", "messages_per_second",
        sf.expr(f"bytes / {_SECONDS}").alias("bytes_per_second"), "redelivered",
        *(sf.col("percentiles")[number].alias(name) for number, name in enumerate(names)),
        "latency_max_ms",
    )  # fmt: skip


def read_schema(text: str) -> StructType:
    """A schema from its DDL (`user STRING, amount DOUBLE`) or from Spark's JSON form; UsageError when it is neither.

    Needs a running session.
    """
    try:
        if text.lstrip().startswith("{"):
            return StructType.fromJson(json.loads(text))
        schema = StructType.fromDDL(text)
    except (PySparkException, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"--json-schema: {reason(error)}") from None
    if not isinstance(schema, StructType):
        raise UsageError(f"--json-schema: {text!r} is the type of one field; expected fields: name TYPE, name TYPE")
    return schema


def infer_schema(spark: SparkSession, messages: DataFrame, rows: int) -> StructType:
    """The schema of the JSON bodies of `rows` of the `messages`; PipelineError when none is a JSON object."""
    bodies = messages.limit(rows).selectExpr("cast(value as string) as body").rdd.map(lambda row: row[0])
    schema = spark.read.option("columnNameOfCorruptRecord", _MALFORMED).json(bodies).schema
    found = [field for field in schema.fields if field.name != _MALFORMED]
    if not found:
        raise PipelineError(f"no JSON object among the first {rows} messages: nothing to infer a schema from")
    return StructType(found)


def parse(messages: DataFrame, schema: StructType) -> DataFrame:
    """`messages` with `body`, a struct of `schema`, and `malformed`: the body isn't a JSON object that fits it."""
    wide = StructType([*schema.fields, StructField(_MALFORMED, StringType())])
    body = sf.from_json(sf.col("value").cast("string"), wide, {"columnNameOfCorruptRecord": _MALFORMED})
    with_body = messages.withColumn("body", body)
    malformed = sf.col("body").isNull() | sf.col(f"body.{_MALFORMED}").isNotNull()
    return with_body.withColumn("malformed", malformed)


def fields(schema: StructType, column: Column, prefix: str = "") -> dict[str, tuple[Column, DataType]]:
    """Column and type of each field of `column`, of the type `schema`, and of the fields in these (`user.country`)."""
    found = {}
    for field in schema.fields:
        inner, path = column.getField(field.name), prefix + field.name
        found[path] = inner, field.dataType
        if isinstance(field.dataType, StructType):
            found |= fields(field.dataType, inner, f"{path}.")
    return found


def roll_up_json(
    messages: DataFrame,
    schema: StructType,
    group_by: Sequence[str],
    values: Sequence[str] = (),
    window: str = "1 minute",
    watermark: str = "10 minutes",
) -> DataFrame:
    """One row for each topic, window and combination of the fields `group_by`: messages, rate, bytes, malformed bodies.

    Of each numeric field in `values` there are its count, sum, min, max and mean. Malformed bodies have no fields, so
    they count in the row where these are NULL. A field `user.country` becomes the column user_country. UsageError when
    a field isn't in `schema` or can't be grouped or summed.
    """
    known = fields(schema, sf.col("body"))

    def found(path: str, option: str) -> tuple[Column, DataType, str]:
        if path not in known:
            near = difflib.get_close_matches(path, known, 1)
            meant = f"; did you mean {near[0]!r}?" if near else f", only {', '.join(known)}"
            raise UsageError(f"{option} {path!r}: no such field in the bodies{meant}")
        return sf.when(~sf.col("malformed"), known[path][0]), known[path][1], path.replace(".", "_")

    keys: dict[str, Column] = {}
    sums = {"malformed": sf.count_if("malformed")}
    for path in values:
        column, kind, name = found(path, "--value")
        if not isinstance(kind, NumericType):
            raise UsageError(f"--value {path!r}: is of type {kind.simpleString()}, which has no sum")
        sums |= {f"{name}_{what}": aggregate(column) for what, aggregate in _SUMS.items()}
    for path in group_by:
        column, kind, name = found(path, "--group-by")
        if isinstance(kind, ArrayType | MapType | StructType):
            raise UsageError(f"--group-by {path!r}: a field with fields or elements of its own can't be grouped by")
        if name in (*_COLUMNS, *sums, *keys):
            raise UsageError(f"--group-by {path!r}: the result has another column of the name {name!r}")
        keys[name] = column
    named = [[column.alias(name) for name, column in columns.items()] for columns in (keys, sums)]
    grouped = by_window(parse(messages, schema), window, watermark, ["topic", *named[0]], *named[1])
    return grouped.select(
        "window_start", "window_end", "topic", *keys, "messages", "messages_per_second", "bytes", *sums
    )
