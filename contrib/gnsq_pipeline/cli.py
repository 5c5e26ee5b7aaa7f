"""The `gnsq-pipeline` command line: its commands.

A user's mistake is a line on stderr, never a traceback; only --verbose shows where an error of Spark comes from. The
modules that need Spark or pyarrow are imported by the commands, as --help needs neither.
"""

from types import SimpleNamespace
from typing import TYPE_CHECKING

import click

from gnsq_pipeline.archive import PARTITION_COLUMNS, read_archive, to_archive, write
from gnsq_pipeline.errors import UsageError
from gnsq_pipeline.options import (
    DESTINATION,
    DRY_RUN,
    FORMAT,
    JSON,
    LOGS,
    NAME,
    PERIOD,
    QUERY,
    RANGE,
    SPARK,
    STREAM,
    TIMEOUT,
    TO_TOPIC,
    Rows,
    command,
    nsq_options,
    option,
    refuse,
    require_directory,
)
from gnsq_pipeline.running import run_batch, run_job, run_stream, spark_session
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
      4    the topic, archive or directory does not exist
      130  interrupted, and stopped cleanly
    """


@command(
    cli, "archive", *STREAM, click.Argument(["output"], metavar="DIRECTORY"), FORMAT, *SPARK,
    short_help="Write topics to a table: Parquet, Delta Lake or Iceberg.",
)  # fmt: skip
def archive(given: SimpleNamespace) -> None:
    """Write topics to the table DIRECTORY, partitioned by topic and by date (UTC) of the messages' timestamps.

    Reads all unread messages and ends; with --continuous it does not end. Each message is archived exactly once where
    every nsqd is a gnsqd with --durability, and otherwise at least once, even if the run is killed and started again
    with the same checkpoint, which is in DIRECTORY by default. The first run begins --from. With --to, the messages of
    a range are written to a new table, and nothing is consumed. With --format iceberg, DIRECTORY is the name of a
    table.
    """
    if given.end is None:
        run_stream("archive", given, to_archive, PARTITION_COLUMNS)
    else:
        refuse(QUERY, "contradicts --to")
        run_batch("archive", given, to_archive, PARTITION_COLUMNS)


@command(
    cli, "replay", click.Argument(["directory"], metavar="[DIRECTORY]", required=False), *DESTINATION, TO_TOPIC,
    option("--topic", "topics", type=NAME, multiple=True, help="Only messages of this topic; may be repeated."),
    *LOGS, *PERIOD,
    option("--where", metavar="SQL", help="Only messages that match: attempts > 1, value like '%error%'."),
    option("--rate", type=click.FloatRange(min=0, min_open=True), help="Maximum number of messages a second."),
    DRY_RUN, FORMAT, JSON, *SPARK,
    short_help="Publish messages of an archive, or of a range of topics, again.",
)  # fmt: skip
def replay(given: SimpleNamespace) -> Rows:
    """Publish messages of the archive in DIRECTORY, or of any table with a column `value`, to NSQ. Without DIRECTORY,
    publish messages that the nsqds have --from one position --to another.

    Delivery is at least once: a task that fails runs again, and publishes its messages again. The order is not kept.
    """
    if given.since is not None and given.until is not None and given.since >= given.until:
        raise UsageError("--since and --until: the time between them is empty")
    if given.directory is not None:
        refuse(RANGE, "contradicts DIRECTORY")
    elif given.begin is None:
        raise UsageError("DIRECTORY or --from is required")
    else:
        refuse(PERIOD, "needs DIRECTORY")
    nsq = {} if given.dry_run else nsq_options(given, "write", "read" if given.directory is None else "")
    source = {} if given.directory is not None else nsq_options(given, "read", "write")
    if given.directory is not None and given.table_format != "iceberg":
        require_directory(given.directory)
    from gnsq_pipeline.replay import count_by_topic, messages, publish, select

    with spark_session(given) as (spark, stop):
        if given.directory is not None:
            published = read_archive(spark, given.directory, given.table_format)
        else:
            published = spark.read.format("nsq").options(**source).load()
        selected = select(published, given.topics, given.since, given.until, given.where)
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
    option("--output", metavar="DIRECTORY",
           help="Table for the result; without it, that of an archive or range is printed."),
    JSON, *SPARK,
    short_help="Aggregate counts, bytes, rates and latencies per topic and window.",
)  # fmt: skip
def rollup(given: SimpleNamespace) -> Rows | None:
    """Report counts, bytes, rates and latency percentiles for each topic and window of the messages' timestamps.

    A window of a stream is written when the watermark has passed its end; open windows are kept for the next run. Of an
    archive, and of a range (--to), all windows are reported. --format is the format of both tables, archive and output.
    """

    def rolled_up(messages: "DataFrame") -> "DataFrame":
        from gnsq_pipeline.rollup import roll_up

        spans = f"{round(given.window * 1000)} milliseconds", f"{round(given.watermark * 1000)} milliseconds"
        return roll_up(messages, *spans, [value / 100 for value in given.percentiles], given.by_channel)

    archive, is_batch = given.from_archive, given.from_archive is not None or given.end is not None
    if archive is None:
        refuse(PERIOD, "needs --from-archive")
    else:
        refuse([parameter for parameter in STREAM if parameter.name != "topics"], "contradicts --from-archive")
    if given.end is not None:
        refuse(QUERY, "contradicts --to")
    if given.as_json and given.output is not None:
        raise UsageError("--json is for a result that is printed, not for --output")
    if not is_batch:
        if given.output is None:
            raise UsageError("--output is required, unless --from-archive or --to is given")
        run_stream("rollup", given, rolled_up)
        return None
    source = {} if archive is not None else nsq_options(given, "read")
    if archive is not None and given.table_format != "iceberg":
        require_directory(archive)
    with spark_session(given) as (spark, stop):
        from gnsq_pipeline.replay import select

        if archive is None:
            messages = spark.read.format("nsq").options(**source).load()
        else:
            messages = read_archive(spark, archive, given.table_format)
        result = rolled_up(select(messages, given.topics, given.since, given.until))
        if given.output is None:
            ordered = result.orderBy("window_start", "topic")
            return run_job(spark, lambda: [row.asDict() for row in ordered.collect()], stop)
        run_job(spark, lambda: write(result, given.output, given.table_format), stop)
        return None


def main() -> None:
    cli(prog_name="gnsq-pipeline")
