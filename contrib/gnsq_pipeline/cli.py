"""The `gnsq-pipeline` command line: its commands, and how a run ends.

A user's mistake is a line on stderr, never a traceback; only --verbose shows where an error of Spark comes from. The
modules that need Spark or pyarrow are imported by the commands, as --help needs neither.
"""

import glob
import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, NoReturn

import click

from gnsq_pipeline.archive import PARTITION_COLUMNS, read_archive, to_archive
from gnsq_pipeline.errors import INTERRUPTED, NotFound, PipelineError, UsageError
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
    local_path,
    nsq_options,
    option,
    places,
    require_directory,
    show_rows,
)
from gnsq_pipeline.progress import Summary, summarised
from gnsq_pipeline.running import run_job, run_stream, spark_session
from gnsq_pipeline.spool import spool
from gnsqd.version import VERSION

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# What the extra `spark` in pyproject.toml installs; gnsqd itself, whose extra that is, may be on no index.
INSTALL = "pip install 'pyarrow>=18' 'pyspark>=4.2'"


class Group(click.Group):
    """A group whose commands are listed in the order of their definition."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
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
    given.spool_location, given.checkpoint = places(given)
    source = nsq_options(given, "readStream")
    with summarised(given.summary, Summary("archive", given.topics, given.channel)) as summary:
        run_stream(given, source, summary, to_archive, PARTITION_COLUMNS)


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
    option("--json-schema", metavar="DDL|@FILE", help="Aggregate JSON bodies: user STRING, amount DOUBLE."),
    option("--infer", is_flag=True, help="Aggregate JSON bodies, with a schema inferred from the archive."),
    option("--infer-from", metavar="DIRECTORY", help="For topics of nsqds: archive from which to infer it."),
    option("--infer-rows", type=click.IntRange(min=1), default=10_000, show_default=True, metavar="N",
           help="Bodies to infer it from."),
    option("--group-by", metavar="FIELDS", help="Fields of the bodies to group by: kind,user.country."),
    option("--value", "values", multiple=True, help="Number in the bodies to aggregate; may be repeated."),
    option("--output", metavar="DIRECTORY", help="Write the result to a table instead of printing it."),
    option("--updates", is_flag=True, help="Print windows of a stream at each change, not at their end."),
    JSON, *SPARK,
    short_help="Aggregate counts, bytes, rates and latencies per topic and window, or fields of JSON bodies.",
)  # fmt: skip
def rollup(given: SimpleNamespace) -> None:
    """Report counts, bytes, rates and latency percentiles for each topic and window of the messages' timestamps.

    With --json-schema or --infer it aggregates fields of JSON bodies. A window of a stream is reported when the
    watermark has passed its end; open windows are kept for the next run. Of an archive all windows are reported.
    --format is the format of both tables, archive and output.
    """
    archive, printed, infers = given.from_archive, given.output is None, given.infer or given.infer_from
    bodies = given.json_schema or infers
    nodes = given.lookupd_http_addresses or given.nsqd_tcp_addresses or given.nsqd_http_addresses or given.extra
    mistakes = {
        "--json-schema and --infer contradict each other": given.json_schema and infers,
        "--group-by and --value are for JSON bodies: they need --json-schema or --infer":
            (given.group_by or given.values) and not bodies,
        "--infer needs bodies that can be read twice: --from-archive, or --infer-from an archive":
            given.infer and not (given.infer_from or archive),
        "--since and --until belong to --from-archive": not archive and (given.since, given.until) != (None, None),
        "--updates belongs to a result that is printed, not to --output": not archive and given.updates and not printed,
        "--spool and --checkpoint are required, unless there is an --output to keep them in":
            not archive and printed and None in (given.spool_location, given.checkpoint),
        "--from-archive is read from files: it has no nodes, --channel, --continuous or --updates":
            archive and (nodes or given.channel or given.continuous or given.updates),
    }  # fmt: skip
    for text, is_made in mistakes.items():
        if is_made:
            raise UsageError(text)
    schema_text = given.json_schema or ""
    if schema_text.startswith("@"):
        try:
            schema_text = Path(schema_text[1:]).read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reported = getattr(error, "strerror", None) or error
            raise NotFound(f"--json-schema {schema_text}: {reported}") from None
    source: dict[str, str] = {}
    if archive is None:
        if not printed:
            given.spool_location, given.checkpoint = places(given)
        source = nsq_options(given, "readStream")
    for directory in (archive, given.infer_from):
        if directory and given.table_format != "iceberg":
            require_directory(directory)

    def rolled_up(messages: "DataFrame") -> "DataFrame":
        from gnsq_pipeline.rollup import infer_schema, read_schema, roll_up, roll_up_json

        spark = messages.sparkSession
        spans = f"{round(given.window * 1000)} milliseconds", f"{round(given.watermark * 1000)} milliseconds"
        if not bodies:
            return roll_up(messages, *spans, [value / 100 for value in given.percentiles], given.by_channel)
        if given.json_schema:
            schema = read_schema(schema_text)
        else:
            sample = read_archive(spark, given.infer_from, given.table_format) if given.infer_from else messages
            if given.topics and "topic" in sample.columns:
                sample = sample.where(sample.topic.isin(*given.topics))
            schema = infer_schema(spark, sample, given.infer_rows)
        fields = [name for name in (given.group_by or "").split(",") if name]
        return roll_up_json(messages, schema, fields, given.values, *spans)

    def show(result: "DataFrame", batch: int | None = None) -> None:
        ordered = result.orderBy(*(name for name in ("window_start", "topic") if name in result.columns))
        show_rows([row.asDict() for row in ordered.collect()], given.as_json, empty=batch is None)

    with summarised(given.summary, Summary("rollup", given.topics, given.channel)) as summary:
        if source:
            run_stream(given, source, summary, rolled_up, show=show)
            return
        with spark_session(given) as (spark, stop):
            from gnsq_pipeline.replay import select

            archived = read_archive(spark, archive, given.table_format)
            result = rolled_up(select(archived, given.topics, given.since, given.until))
            if printed:
                run_job(spark, lambda: show(result), stop)
            elif given.table_format == "iceberg":
                run_job(spark, lambda: result.writeTo(given.output).create(), stop)
            else:
                run_job(spark, lambda: result.write.format(given.table_format).save(given.output), stop)
            summary.finished = True


@command(
    cli, "backlog", click.Argument(["directories"], metavar="DIRECTORY...", nargs=-1, required=True),
    option("--topic", "topics", type=NAME, multiple=True, help="Only queues of this topic; may be repeated."),
    option("--channel", "channels", type=NAME, multiple=True, help="Only queues of this channel; may be repeated."),
    option("--all", "all_messages", is_flag=True, help="Include messages that were read but are still in the files."),
    JSON, *SPARK,
    short_help="Report the queued messages in the data directories of nodes that are down.",
)  # fmt: skip
def backlog(given: SimpleNamespace) -> int | None:
    """Report the queued messages in data directories of gnsqd or nsqd, for nodes that are down, with a row per queue.

    The directories (patterns such as /mnt/*/nsqd may be quoted) are read in parallel, with a task for each file. Damage
    is reported with its position, and causes exit code 1.
    """
    from gnsq_pipeline.backlog import damages, summarise

    for directory in given.directories:
        if local_path(directory) is not None and not glob.glob(directory):
            raise NotFound(f"{directory}: no such directory")
    options = {"corruption": "column", "messages": "all" if given.all_messages else "unread"}
    for name, names in (("topic", given.topics), ("channel", given.channels)):
        if names:
            options[name] = ",".join(names)
    with spark_session(given) as (spark, stop):
        records = spark.read.format("nsq_diskqueue").options(**options).load(list(given.directories))
        summary, damage = summarise(records, time.time_ns()), damages(records)
        rows = run_job(spark, lambda: [row.asDict() for row in summary.collect()], stop)
        damaged = []
        if any(row["damaged_places"] for row in rows):
            damaged = run_job(spark, lambda: [row.asDict() for row in damage.collect()], stop)
    show_rows(rows, given.as_json)
    if not damaged:
        return None
    if not given.as_json:
        click.echo()
    show_rows(damaged, given.as_json, "Damaged")
    return PipelineError.exit_code


cli.add_command(spool)


def main() -> NoReturn:
    """Run the command line of this process."""
    try:
        status: int = cli.main(prog_name="gnsq-pipeline", standalone_mode=False) or 0
    except click.ClickException as error:
        error.show()
        status = error.exit_code
    except (click.Abort, KeyboardInterrupt):
        status = INTERRUPTED
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("pyspark", "pyarrow"):
            raise
        click.echo(f"Error: {error.name} is not installed: {INSTALL}", err=True)
        status = PipelineError.exit_code
    except OSError as error:
        click.echo(f"Error: {error.filename or 'standard output'}: {error.strerror or error}", err=True)
        status = PipelineError.exit_code
    try:
        sys.stdout.flush()
    except OSError:  # whoever read it went away
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(status)
