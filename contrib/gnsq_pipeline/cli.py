"""The `gnsq-pipeline` command line: its commands.

A user's mistake is a line on stderr, never a traceback; only --verbose shows where an error of Spark comes from. The
modules that need Spark or pyarrow are imported by the commands, as --help needs neither.
"""

from types import SimpleNamespace
from typing import TYPE_CHECKING

import click

from gnsq_pipeline.archive import PARTITION_COLUMNS, read_archive, to_archive
from gnsq_pipeline.errors import UsageError
from gnsq_pipeline.options import (
    DESTINATION,
    DIRECTORY,
    DRY_RUN,
    FORMAT,
    JSON,
    NAME,
    PERIOD,
    SPARK,
    STREAM,
    TIMEOUT,
    TO_TOPIC,
    Rows,
    command,
    nsq_options,
    option,
    require_directory,
)
from gnsq_pipeline.running import run_job, run_stream, spark_session
from gnsq_pipeline.spool import spool
from gnsqd.shared.version import VERSION

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(VERSION, prog_name="gnsq-pipeline", message="%(prog)s %(version)s")
def cli() -> None:
    """Pipelines between NSQ and tables on Spark.

    \b
    Exit codes:
      0    success; also if SIGTERM stopped a run with --continuous
      1    Spark, a node or a disk refused; a new run continues after what was committed
      2    wrong usage
      3    SIGTERM stopped a run before everything was read; a new run continues there
      4    the topic, archive, directory or spool does not exist
      130  interrupted, and stopped cleanly
    """


@command(
    cli, "archive", *STREAM, click.Argument(["output"], metavar="DIRECTORY"), FORMAT, *SPARK,
    short_help="Write topics to a table: Parquet, Delta Lake or Iceberg.",
)  # fmt: skip
def archive(given: SimpleNamespace) -> None:
    """Write topics to the table DIRECTORY, partitioned by topic and by date (UTC) of the messages' timestamps.

    Reads all queued messages and ends; with --continuous it does not end. Each message is archived exactly once, even
    if the run is killed and started again with the same spool and checkpoint, which are in DIRECTORY by default. With
    --format iceberg, DIRECTORY is the name of a table.
    """
    run_stream("archive", given, to_archive, PARTITION_COLUMNS)


@command(
    cli, "replay", DIRECTORY, *DESTINATION, TO_TOPIC,
    option("--topic", "chosen", type=NAME, multiple=True, help="Only messages of this topic; may be repeated."),
    *PERIOD,
    option("--where", metavar="SQL", help="Only messages that match: attempts > 1, value like '%error%'."),
    option("--rate", type=click.FloatRange(min=0, min_open=True), help="Maximum number of messages a second."),
    DRY_RUN, FORMAT, JSON, *SPARK,
    short_help="Publish messages of an archive again.",
)  # fmt: skip
def replay(given: SimpleNamespace) -> Rows:
    """Publish messages of the archive in DIRECTORY, or of any table with a column `value`, to NSQ.

    Delivery is at least once: a task that fails runs again, and publishes its messages again. The order is not kept.
    """
    if given.since is not None and given.until is not None and given.since >= given.until:
        raise UsageError("--since and --until: the time between them is empty")
    nsq = {} if given.dry_run else nsq_options(given, "write")
    if given.table_format != "iceberg":
        require_directory(given.directory)
    from gnsq_pipeline.replay import count_by_topic, messages, publish, select

    with spark_session(given) as (spark, stop):
        archived = read_archive(spark, given.directory, given.table_format)
        selected = select(archived, given.chosen, given.since, given.until, given.where)
        frame = messages(selected, given.topic)
        return run_job(spark, lambda: count_by_topic(frame) if given.dry_run else publish(frame, nsq, given.rate), stop)


@command(
    cli, "rollup", *STREAM,
    option("--from-archive", metavar="DIRECTORY", help="Aggregate this archive, not topics of nsqds."),
    *PERIOD, FORMAT,
    option("--window", type=TIMEOUT, default="1m", show_default=True, help="Length of a window."),
    option("--watermark", type=TIMEOUT, default="10m", show_default=True, help="Maximum delay of a message."),
    option("--percentile", "percentiles", type=click.FloatRange(0, 100), multiple=True, default=(50.0, 95.0, 99.0),
           show_default=True, help="Percentile of the latencies; may be repeated."),
    option("--by-channel", is_flag=True, help="Also group by channel."),
    option("--output", metavar="DIRECTORY", help="Table for the result; that of an archive is printed without it."),
    JSON, *SPARK,
    short_help="Aggregate counts, bytes, rates and latencies per topic and window.",
)  # fmt: skip
def rollup(given: SimpleNamespace) -> Rows | None:
    """Report counts, bytes, rates and latency percentiles for each topic and window of the messages' timestamps.

    A window of a stream is written when the watermark has passed its end; open windows are kept for the next run. Of an
    archive all windows are reported. --format is the format of both tables, archive and output.
    """

    def rolled_up(messages: "DataFrame") -> "DataFrame":
        from gnsq_pipeline.rollup import roll_up

        spans = f"{round(given.window * 1000)} milliseconds", f"{round(given.watermark * 1000)} milliseconds"
        return roll_up(messages, *spans, [value / 100 for value in given.percentiles], given.by_channel)

    archive = given.from_archive
    source = click.get_current_context().get_parameter_source
    for other in PERIOD if archive is None else STREAM:
        if other.name != "topics" and source(other.name or "") is click.core.ParameterSource.COMMANDLINE:
            raise UsageError(f"{other.opts[0]} {'needs' if archive is None else 'contradicts'} --from-archive")
    if given.as_json and given.output is not None:
        raise UsageError("--json is for a result that is printed, not for --output")
    if archive is None:
        if given.output is None:
            raise UsageError("--output is required, unless --from-archive is given")
        run_stream("rollup", given, rolled_up)
        return None
    if given.table_format != "iceberg":
        require_directory(archive)
    with spark_session(given) as (spark, stop):
        from gnsq_pipeline.replay import select

        archived = read_archive(spark, archive, given.table_format)
        result = rolled_up(select(archived, given.topics, given.since, given.until))
        if given.output is None:
            ordered = result.orderBy("window_start", "topic")
            return run_job(spark, lambda: [row.asDict() for row in ordered.collect()], stop)
        if given.table_format == "iceberg":
            run_job(spark, lambda: result.writeTo(given.output).create(), stop)
        else:
            run_job(spark, lambda: result.write.format(given.table_format).save(given.output), stop)
        return None


cli.add_command(spool)


def main() -> None:
    """Run the command line of this process."""
    cli(prog_name="gnsq-pipeline")
