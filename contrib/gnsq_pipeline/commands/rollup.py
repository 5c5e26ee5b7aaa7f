"""`gnsq-pipeline rollup`: what happened in each window, of a stream or of an archive."""

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gnsq_pipeline.archive import FileLog, only_writer, read_archive, start
from gnsq_pipeline.errors import NotFound, UsageError
from gnsq_pipeline.output import show_rows
from gnsq_pipeline.parameters import (
    TIMEOUT,
    StreamOptions,
    format_option,
    json_option,
    period_options,
    spark_options,
    stream_options,
    together,
)
from gnsq_pipeline.progress import Summary, summarised
from gnsq_pipeline.session import SessionSettings, spark_session
from gnsq_pipeline.source import local_path, placed, read_options, require_directory, require_topics

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_BODIES = together(
    click.option("--json-schema", metavar="DDL|@FILE", help="Aggregate JSON bodies: user STRING, amount DOUBLE."),
    click.option("--infer", is_flag=True, help="Aggregate JSON bodies, with a schema inferred from the archive."),
    click.option("--infer-from", metavar="DIRECTORY", help="For topics of nsqds: archive from which to infer it."),
    click.option("--infer-rows", type=click.IntRange(min=1), default=10_000, show_default=True, metavar="N",
                 help="Bodies to infer it from."),
    click.option("--group-by", metavar="FIELDS", help="Fields of the bodies to group by: kind,user.country."),
    click.option("--value", "values", multiple=True, help="Number in the bodies to aggregate; may be repeated."),
)  # fmt: skip


@click.command()
@stream_options
@click.option("--from-archive", metavar="DIRECTORY", help="Aggregate this archive, not topics of nsqds.")
@period_options
@format_option
@click.option("--window", type=TIMEOUT, default="1m", show_default=True, help="Length of a window.")
@click.option("--watermark", type=TIMEOUT, default="10m", show_default=True, help="Maximum delay of a message.")
@click.option("--percentile", "percentiles", type=click.FloatRange(0, 100), multiple=True, default=(50.0, 95.0, 99.0),
              show_default=True, help="Percentile of the latencies; may be repeated.")  # fmt: skip
@click.option("--by-channel", is_flag=True, help="Also group by channel.")
@_BODIES
@click.option("--output", metavar="DIRECTORY", help="Write the result to a table instead of printing it.")
@click.option("--updates", is_flag=True, help="Print windows of a stream at each change, not at their end.")
@json_option
@spark_options
def rollup(
    options: StreamOptions,
    from_archive: str | None,
    since: int | None,
    until: int | None,
    table_format: str,
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
    as_json: bool,
    session: SessionSettings,
) -> None:
    """Report counts, bytes, rates and latency percentiles for each topic and window of the messages' timestamps.

    With --json-schema or --infer it aggregates fields of JSON bodies. A window of a stream is reported when the
    watermark has passed its end; open windows are kept for the next run. Of an archive all windows are reported.
    --format is the format of both tables, archive and output.
    """
    from gnsq_pipeline.running import follow, run_job, stoppable, stopping

    bodies = bool(json_schema or infer or infer_from)
    if json_schema and (infer or infer_from):
        raise UsageError("--json-schema and --infer contradict each other")
    if (group_by or values) and not bodies:
        raise UsageError("--group-by and --value are for JSON bodies: they need --json-schema or --infer")
    if infer and not (infer_from or from_archive):
        raise UsageError("--infer needs bodies that can be read twice: --from-archive, or --infer-from an archive")
    schema_text = _schema_text(json_schema) if json_schema else None
    source: dict[str, str] = {}
    if from_archive is None:
        if since is not None or until is not None:
            raise UsageError("--since and --until belong to --from-archive")
        if updates and output:
            raise UsageError("--updates belongs to a result that is printed, not to --output")
        if output is not None:
            options = placed(options, output, table_format)
        elif options.spool is None or options.checkpoint is None:
            raise UsageError("--spool and --checkpoint are required, unless there is an --output to keep them in")
        source = read_options(options)
    elif options.nodes or options.channel or options.continuous or updates:
        raise UsageError("--from-archive is read from files: it has no nodes, --channel, --continuous or --updates")
    for directory in (from_archive, infer_from):
        if directory and table_format != "iceberg":
            require_directory(directory)

    def rolled_up(spark: "SparkSession", messages: "DataFrame") -> "DataFrame":
        spans = f"{round(window * 1000)} milliseconds", f"{round(watermark * 1000)} milliseconds"
        if not bodies:
            from gnsq_pipeline.rollup import roll_up

            return roll_up(messages, *spans, [value / 100 for value in percentiles], by_channel)
        from gnsq_pipeline.json_bodies import infer_schema, read_schema, roll_up_json

        if schema_text is not None:
            schema = read_schema(schema_text)
        else:
            sample = read_archive(spark, infer_from, table_format) if infer_from else messages
            if options.topics and "topic" in sample.columns:
                sample = sample.where(sample.topic.isin(*options.topics))
            schema = infer_schema(spark, sample, infer_rows)
        return roll_up_json(messages, schema, [name for name in (group_by or "").split(",") if name], values, *spans)

    def show(result: "DataFrame", empty: bool) -> None:
        ordered = result.orderBy(*(name for name in ("window_start", "topic") if name in result.columns))
        show_rows([row.asDict() for row in ordered.collect()], as_json, empty=empty)

    about = Summary("rollup", options.topics, options.channel)
    with summarised(options.summary, about) as summary, contextlib.ExitStack() as stack:
        if source and not options.allow_missing_topics:
            require_topics(source)
        checkpoint = str(options.checkpoint)
        if source:
            stack.enter_context(only_writer(output or checkpoint, local_path(checkpoint)))
        spark, stop = stack.enter_context(spark_session(session)), stack.enter_context(stoppable())
        if from_archive is not None:
            from gnsq_pipeline.replay import select

            result = rolled_up(
                spark, select(read_archive(spark, from_archive, table_format), options.topics, since, until)
            )
            if output is None:
                run_job(spark, lambda: show(result, True), stop)
            elif table_format == "iceberg":
                run_job(spark, lambda: result.writeTo(output).create(), stop)
            else:
                run_job(spark, lambda: result.write.format(table_format).save(output), stop)
            summary.finished = True
            return
        if output is not None and table_format != "iceberg":
            FileLog(spark, output).check_writable(table_format)
        writer = rolled_up(spark, spark.readStream.format("nsq").options(**source).load()).writeStream
        if output is not None:
            table = output
            follow(
                "rollup",
                writer,
                lambda triggered: start(triggered, table, table_format, checkpoint),
                options,
                summary,
                stop,
            )
            return
        printed = writer.outputMode("update" if updates else "append").option("checkpointLocation", checkpoint)
        printed = printed.foreachBatch(stopping(lambda frame, _: show(frame, False), stop))
        follow("rollup", printed, lambda triggered: triggered.start(), options, summary, stop)


def _schema_text(given: str) -> str:
    if not given.startswith("@"):
        return given
    try:
        return Path(given[1:]).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise NotFound(f"--json-schema {given}: {getattr(error, 'strerror', None) or error}") from None
