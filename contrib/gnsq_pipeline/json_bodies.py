"""Roll-ups of what is in JSON bodies: bodies parsed by a schema that is given or inferred, grouped by their fields."""

import difflib
import json
from collections.abc import Sequence

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import ArrayType, DataType, MapType, NumericType, StringType, StructField, StructType

from gnsq_pipeline.errors import PipelineError, UsageError
from gnsq_pipeline.rollup import per_second, span_columns, windows
from gnsq_pipeline.session import reason

_MALFORMED = "_malformed"


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
    if not [field for field in schema.fields if field.name != _MALFORMED]:
        raise PipelineError(f"no JSON object among the first {rows} messages: nothing to infer a schema from")
    return type(schema)([field for field in schema.fields if field.name != _MALFORMED])


def parse(messages: DataFrame, schema: StructType) -> DataFrame:
    """`messages` with `body`, a struct of `schema`, and `malformed`: the body isn't a JSON object that fits it."""
    wide = StructType([*schema.fields, StructField(_MALFORMED, StringType())])
    body = sf.from_json(sf.col("value").cast("string"), wide, {"columnNameOfCorruptRecord": _MALFORMED})
    with_body = messages.withColumn("body", body)
    malformed = sf.col("body").isNull() | sf.col(f"body.{_MALFORMED}").isNotNull()
    return with_body.withColumn("malformed", malformed)


def field_type(schema: StructType, path: str, option: str) -> DataType:
    """The type of the field `path` (`user.country`); UsageError, with what it may have meant, when there is none."""
    found: DataType = schema
    for name in path.split("."):
        if not isinstance(found, StructType) or name not in found.names:
            known = _paths(schema)
            near = difflib.get_close_matches(path, known, 1)
            meant = f"; did you mean {near[0]!r}?" if near else f", only {', '.join(known)}"
            raise UsageError(f"{option} {path!r}: no such field in the bodies{meant}")
        found = found[name].dataType
    return found


def _paths(schema: StructType, prefix: str = "") -> list[str]:
    paths = []
    for field in schema.fields:
        paths.append(prefix + field.name)
        if isinstance(field.dataType, StructType):
            paths += _paths(field.dataType, f"{prefix}{field.name}.")
    return paths


def column_name(path: str) -> str:
    """The column of the field `path` in the result: user.country is user_country."""
    return path.replace(".", "_")


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
    they count in the row where these are NULL. UsageError when a field isn't in `schema` or can't be grouped or summed.
    """
    for path in group_by:
        if isinstance(field_type(schema, path, "--group-by"), ArrayType | MapType | StructType):
            raise UsageError(f"--group-by {path!r}: a field with fields or elements of its own can't be grouped by")
    for path in values:
        if not isinstance(found := field_type(schema, path, "--value"), NumericType):
            raise UsageError(f"--value {path!r}: is of type {found.simpleString()}, which has no sum")
    taken = ["topic", "window", "messages", "bytes", "malformed", "messages_per_second", "window_start", "window_end"]
    taken += [f"{column_name(path)}_{name}" for path in values for name in ("count", "sum", "min", "max", "avg")]
    for path in group_by:
        if column_name(path) in taken:
            raise UsageError(f"--group-by {path!r}: the result has another column of the name {column_name(path)!r}")
        taken.append(column_name(path))

    def field(path: str) -> str:
        return "body." + ".".join(f"`{name}`" for name in path.split("."))

    marked, by_window = windows(parse(messages, schema), window, watermark)
    sound = ~sf.col("malformed")
    keys = [sf.when(sound, sf.col(field(path))).alias(column_name(path)) for path in group_by]
    sums = []
    for path in values:
        value, name = sf.when(sound, sf.col(field(path))), column_name(path)
        sums += [
            sf.count(value).alias(f"{name}_count"),
            sf.sum(value).alias(f"{name}_sum"),
            sf.min(value).alias(f"{name}_min"),
            sf.max(value).alias(f"{name}_max"),
            sf.avg(value).alias(f"{name}_avg"),
        ]
    grouped = marked.groupBy(by_window, "topic", *keys).agg(
        sf.count(sf.lit(1)).alias("messages"),
        sf.sum(sf.octet_length("value").cast("long")).alias("bytes"),
        sf.sum(sf.col("malformed").cast("long")).alias("malformed"),
        *sums,
    )
    names = [name for name in grouped.columns if name not in ("window", "messages")]
    keys_first = ["topic", *(column_name(path) for path in group_by)]
    rest = [name for name in names if name not in keys_first]
    return grouped.select(*span_columns(), *keys_first, "messages", per_second("messages"), *rest)
