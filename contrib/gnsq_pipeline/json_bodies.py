"""Roll-ups of what is in JSON bodies: bodies parsed by a schema that is given or inferred, grouped by their fields."""

import difflib
import json
from collections.abc import Sequence

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import ArrayType, DataType, MapType, NumericType, StringType, StructField, StructType

from gnsq_pipeline.errors import PipelineError, UsageError, reason
from gnsq_pipeline.rollup import by_window, per_second, span_columns

_MALFORMED = "_malformed"
_COLUMNS = ("topic", "window", "messages", "bytes", "malformed", "messages_per_second", "window_start", "window_end")
_SUMS = {"count": sf.count, "sum": sf.sum, "min": sf.min, "max": sf.max, "avg": sf.avg}


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

    def found(path: str, option: str) -> tuple[Column, DataType]:
        if path not in known:
            near = difflib.get_close_matches(path, known, 1)
            meant = f"; did you mean {near[0]!r}?" if near else f", only {', '.join(known)}"
            raise UsageError(f"{option} {path!r}: no such field in the bodies{meant}")
        column, kind = known[path]
        return sf.when(~sf.col("malformed"), column), kind

    keys: dict[str, Column] = {}
    sums: dict[str, Column] = {}
    for path in values:
        column, kind = found(path, "--value")
        if not isinstance(kind, NumericType):
            raise UsageError(f"--value {path!r}: is of type {kind.simpleString()}, which has no sum")
        for what, aggregate in _SUMS.items():
            name = f"{path.replace('.', '_')}_{what}"
            sums[name] = aggregate(column).alias(name)
    for path in group_by:
        column, kind = found(path, "--group-by")
        if isinstance(kind, ArrayType | MapType | StructType):
            raise UsageError(f"--group-by {path!r}: a field with fields or elements of its own can't be grouped by")
        name = path.replace(".", "_")
        if name in (*_COLUMNS, *sums, *keys):
            raise UsageError(f"--group-by {path!r}: the result has another column of the name {name!r}")
        keys[name] = column.alias(name)
    malformed = sf.sum(sf.col("malformed").cast("long")).alias("malformed")
    parsed = parse(messages, schema)
    grouped = by_window(parsed, window, watermark, ["topic", *keys.values()], malformed, *sums.values())
    return grouped.select(
        *span_columns(), "topic", *keys, "messages", per_second("messages"), "bytes", "malformed", *sums
    )
