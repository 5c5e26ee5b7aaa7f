"""`gnsq-pipeline rollup`: what happened in each window, of a stream or of an archive."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gnsq_pipeline.errors import NotFound, UsageError
from gnsq_pipeline.output import json_option, show_rows
from gnsq_pipeline.parameters import (
    MOMENT,
    TIMEOUT,
    reading_options,
    run_options,
    source_options,
    spark_options,
    subscription_options,
)
from gnsq_pipeline.session import SessionSettings, spark_session
from gnsq_pipeline.source import directories, require_topics, stream_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from gnsq_pipeline.running import Stop

Rollup = Callable[["DataFrame"], "DataFrame"]


@click.command()
@subscription_options
@source_options
@click.option("--from-archive", metavar="DIRECTORY", help="Aggregate this archive, not topics of nsqds.")
@click.option("--since", type=MOMENT, metavar="TIME", help="With an archive: only messages at or after this time.")
@click.option("--until", type=MOMENT, metavar="TIME", help="With an archive: only messages before this time.")
@click.option("--window", type=TIMEOUT, default="1m", show_default=True, help="Length of a window.")
@click.option("--watermark", type=TIMEOUT, default="10m", show_default=True, help="Maximum delay of a message.")
@click.option(
    "--percentile",
    "percentiles",
    type=click.FloatRange(0, 100),
    multiple=True,
    default=(50.0, 95.0, 99.0),
    show_default=True,
    help="Percentile of the latencies; may be repeated.",
)
@click.option("--by-channel", is_flag=True, help="Also group by channel.")
@click.option(
    "--json-schema", metavar="DDL|@FILE", help="Aggregate JSON bodies of this schema: user STRING, amount DOUBLE."
)
@click.option("--infer", is_flag=True, help="Aggregate JSON bodies, with a schema inferred from the archive.")
@click.option("--infer-from", metavar="DIRECTORY", help="For topics of nsqds: archive from which to infer the schema.")
@click.option(
    "--infer-rows",
    type=click.IntRange(min=1),
    default=10_000,
    show_default=True,
    metavar="N",
    help="Bodies to infer it from.",
)
@click.option("--group-by", metavar="FIELDS", help="Fields of the bodies to group by: kind,user.country.")
@click.option(
    "--value", "values", multiple=True, metavar="FIELD", help="Number in the bodies to aggregate; may be repeated."
)
@click.option("--output", metavar="DIRECTORY", help="Write the result to Parquet files instead of printing it.")
@click.option("--updates", is_flag=True, help="Print windows of a stream at each change, not at their end.")
@reading_options
@json_option
@run_options
@spark_options
def rollup(
    topics: tuple[str, ...],
    channel: str | None,
    nodes: dict[str, str],
    from_archive: str | None,
    since: int | None,
    until: int | None,
    window: float,
    watermark: float,
    percentiles: tuple[float, ...],
    by_channel: bool,
    json_schema: str | None,
    infer: bool,
    infer_from: str | None,
    infer_rows: int,
    group_by: str | None,
    values: tuple[str, ...],
    output: str | None,
    updates: bool,
    spool: str | None,
    checkpoint: str | None,
    max_messages: int | None,
    continuous: bool,
    trigger: float,
    allow_missing_topics: bool,
    as_json: bool,
    progress: str,
    metrics_address: tuple[str, int] | None,
    summary_file: str | None,
    session: SessionSettings,
) -> None:
    """Report counts, bytes, rates and latency percentiles for each topic and window of the messages' timestamps.

    With --json-schema or --infer it aggregates fields of JSON bodies. A window of a stream is reported when the
    watermark has passed its end; open windows are kept for the next run. Of an archive all windows are reported.
    """
    from gnsq_pipeline.running import stoppable, stopping
    from gnsq_pipeline.streaming import follow, triggered
    from gnsq_pipeline.summary import summarised

    bodies = _bodies_wanted(json_schema, infer or infer_from is not None, group_by, values)
    if infer and not (infer_from or from_archive):
        raise UsageError("--infer needs bodies that can be read twice: --from-archive, or --infer-from an archive")
    schema_text = _schema_text(json_schema) if json_schema else None
    options: dict[str, str] = {}
    if from_archive is None:
        if since is not None or until is not None:
            raise UsageError("--since and --until belong to --from-archive")
        if updates and output:
            raise UsageError("--updates belongs to a result that is printed, not to --output")
        if output is None and (spool is None or checkpoint is None):
            raise UsageError("--spool and --checkpoint are required, unless there is an --output to keep them in")
        spool, checkpoint = directories(output or "", channel, spool, checkpoint)
        options = stream_options(nodes, topics, channel, spool, max_messages)
    elif nodes or channel or continuous or updates:
        raise UsageError("--from-archive is read from files: it has no nodes, --channel, --continuous or --updates")
    for directory in (from_archive, infer_from):
        if directory and "://" not in directory and not Path(directory).is_dir():
            raise NotFound(f"{directory}: no such directory")

    def rolled_up(spark: "SparkSession", messages: "DataFrame") -> "DataFrame":
        spans = f"{round(window * 1000)} milliseconds", f"{round(watermark * 1000)} milliseconds"
        if bodies:
            from gnsq_pipeline.archive import read_archive
            from gnsq_pipeline.json_bodies import infer_schema, read_schema, roll_up_json

            if schema_text is not None:
                schema = read_schema(schema_text)
            else:
                sample = read_archive(spark, infer_from) if infer_from else messages
                schema = infer_schema(spark, _of_topics(sample, topics), infer_rows)
            fields = [field for field in (group_by or "").split(",") if field]
            return roll_up_json(messages, schema, fields, values, *spans)
        from gnsq_pipeline.rollup import roll_up

        return roll_up(messages, *spans, [value / 100 for value in percentiles], by_channel)

    with summarised(summary_file, "rollup", topics, channel) as summary, contextlib.ExitStack() as stack:
        if from_archive is None and not allow_missing_topics:
            require_topics(options)
        spark, stop = stack.enter_context(spark_session(session)), stack.enter_context(stoppable())
        if from_archive is not None:
            from gnsq_pipeline.archive import read_archive
            from gnsq_pipeline.replay import select

            chosen = select(read_archive(spark, from_archive), topics, since, until)
            _of_archive(spark, rolled_up(spark, chosen), output, as_json, stop)
            summary.ended(True, stop)
            return
        result = rolled_up(spark, spark.readStream.format("nsq").options(**options).load())
        assert checkpoint is not None
        writer = triggered(result.writeStream, continuous, trigger).option("checkpointLocation", checkpoint)
        if output is not None:
            writer = writer.format("parquet").option("path", output).outputMode("append")
        else:
            writer = writer.outputMode("update" if updates else "append").foreachBatch(
                stopping(lambda frame, _: show_rows("", _in_order(frame), as_json, empty=False), stop)
            )
        title = f"rollup {', '.join(topics)}"
        follow("rollup", title, writer.start, stop, progress, metrics_address, summary, continuous)


def _bodies_wanted(json_schema: str | None, infer: bool, group_by: str | None, values: tuple[str, ...]) -> bool:
    if json_schema and infer:
        raise UsageError("--json-schema and --infer contradict each other")
    if not json_schema and not infer and (group_by or values):
        raise UsageError("--group-by and --value are of JSON bodies: they want --json-schema or --infer")
    return bool(json_schema or infer)


def _schema_text(given: str) -> str:
    if not given.startswith("@"):
        return given
    try:
        return Path(given[1:]).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise NotFound(f"--json-schema {given}: {getattr(error, 'strerror', None) or error}") from None


def _of_topics(messages: "DataFrame", topics: tuple[str, ...]) -> "DataFrame":
    return messages.where(messages.topic.isin(*topics)) if topics and "topic" in messages.columns else messages


def _in_order(result: "DataFrame") -> list[dict[str, object]]:
    keys = [name for name in ("window_start", "topic") if name in result.columns]
    return [row.asDict() for row in result.orderBy(*keys).collect()]


def _of_archive(spark: "SparkSession", result: "DataFrame", output: str | None, as_json: bool, stop: "Stop") -> None:
    from gnsq_pipeline.display import tasks_shown
    from gnsq_pipeline.running import run_job

    with tasks_shown("rollup", "auto") as display:
        if output is not None:
            run_job(spark, lambda: result.write.parquet(output), stop, display.tick)
            return
        rows = run_job(spark, lambda: _in_order(result), stop, display.tick)
    show_rows("", rows, as_json)
